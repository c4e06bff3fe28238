//! The reason to refuse input.

/// A reason why the input is no RESP; nothing behind it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolFault(pub &'static str);
