//! Output for operators: metrics, the access log, traces, the program's own log, the start-up banner.

pub mod access_log;
pub mod banner;
pub mod logging;
pub mod metrics;
pub mod stderr_line;
pub mod traces;
