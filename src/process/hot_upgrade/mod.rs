//! The hot upgrade (USR2): a new process takes over sockets, counters and state from the old one.
//!
//! [`old_process`] and [`new_process`] are the two sides, [`fd_channel`] passes sockets between them, and [`sections`]
//! are the state beside sockets and counters, each with a name and a version.

pub(crate) mod fd_channel;
pub(crate) mod new_process;
pub(crate) mod old_process;
pub(crate) mod sections;
