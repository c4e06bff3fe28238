//! The program's own log, on stderr. The access log is another: see `access_log`.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;

use crate::config::{Log, LogFormat, LogLevel};

/// Sends events to stderr from here on; a second call changes nothing.
pub fn start(config: &Log) {
    let terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(level(config.level))
        .with_target(false)
        .with_ansi(terminal);
    // The only failure is that a subscriber is set already.
    let _ = match is_json(config.format, terminal) {
        true => builder.json().flatten_event(true).try_init(),
        false => builder.try_init(),
    };
}

fn is_json(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Auto => !terminal,
        LogFormat::Pretty => false,
        LogFormat::Json => true,
    }
}

fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_pretty_on_a_terminal_alone() {
        assert!(is_json(LogFormat::Auto, false) && !is_json(LogFormat::Auto, true));
        assert!(is_json(LogFormat::Json, true) && !is_json(LogFormat::Pretty, false));
    }

    #[test]
    fn a_second_start_is_harmless() {
        let log = Log { level: LogLevel::Error, format: LogFormat::Json };
        start(&log);
        start(&log);
    }
}
