//! The hot upgrade (USR2): a new process takes over sockets, counters and state from the old one.

pub(crate) mod fd_channel;
pub(crate) mod new_process;
pub(crate) mod old_process;
pub(crate) mod sections;
