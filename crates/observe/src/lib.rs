//! Output for operators: metrics, the access log, traces, the program's own log.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

pub mod access_log;
pub mod logging;
pub mod metrics;
pub mod stderr_line;
pub mod traces;
