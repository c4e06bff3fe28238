//! The typed model of `bandwidth`.

use super::key::KeyPart;
use crate::config::value::scalars::Rate;

/// The pace of response bodies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BandwidthConfig {
    /// In bytes.
    pub rate: Rate,
    /// Bytes that an idle bucket passes at once; at least those of 10 ms.
    pub burst: u64,
    /// A missing part falls back to the client's address.
    pub key: Vec<KeyPart>,
}
