//! The program's own log, on stderr. The access log is another: see `access_log`.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::config::{LogConfig, LogFormat, LogLevel};

/// Lines on their way to stderr; more are dropped, so that a reader who stops reading stops nobody here.
const LINES_MAX: usize = 1024;

static QUEUE: OnceLock<SyncSender<Vec<u8>>> = OnceLock::new();
static PENDING: AtomicUsize = AtomicUsize::new(0);
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Sends events to stderr from here on; a second call changes nothing.
pub fn start_logging(config: &LogConfig) {
    let terminal = io::stderr().is_terminal();
    start_stderr_thread();
    let lines =
        tracing_subscriber::fmt::layer().with_writer(|| StderrLines).with_target(false).with_ansi(terminal);
    let lines = match is_json(config.format, terminal) {
        true => lines.json().flatten_event(true).boxed(),
        false => lines.boxed(),
    };
    let (filter, handle) = reload::Layer::new(level_filter(config.level));
    // The only failure is that a subscriber is set already.
    if tracing_subscriber::registry()
        .with(filter)
        .with(lines.with_filter(filter_fn(is_ours)))
        .try_init()
        .is_ok()
    {
        let _ = LEVEL.set(handle);
    }
}

/// Tells events of this level and above from now on.
pub fn apply_level(config: &LogConfig) {
    if let Some(handle) = LEVEL.get() {
        // The only failure is that the subscriber is gone.
        let _ = handle.reload(level_filter(config.level));
    }
}

/// Waits until all lines are written, but not for ever.
pub fn flush_lines() {
    for _ in 0..50 {
        if PENDING.load(Ordering::Acquire) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts the one thread that may block on stderr.
fn start_stderr_thread() {
    let (sender, lines) = sync_channel::<Vec<u8>>(LINES_MAX);
    let writing = std::thread::Builder::new().name("log".to_owned()).spawn(move || {
        for line in lines {
            // Nobody is left to tell that stderr is broken.
            let _ = io::stderr().write_all(&line);
            PENDING.fetch_sub(1, Ordering::Release);
        }
    });
    if writing.is_ok() {
        let _ = QUEUE.set(sender);
    }
}

/// Takes whole lines, as the subscriber writes them.
struct StderrLines;

impl Write for StderrLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(queue) = QUEUE.get() {
            PENDING.fetch_add(1, Ordering::AcqRel);
            if queue.try_send(line.to_vec()).is_err() {
                PENDING.fetch_sub(1, Ordering::Release);
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// False for what a library warns of: any client can bring HTTP/2 to that, as often as it likes.
fn is_ours(event: &Metadata<'_>) -> bool {
    *event.level() != Level::WARN || event.target().starts_with("sluicegate")
}

fn is_json(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Auto => !terminal,
        LogFormat::Pretty => false,
        LogFormat::Json => true,
    }
}

fn level_filter(level: LogLevel) -> LevelFilter {
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
        let log = LogConfig { level: LogLevel::Error, format: LogFormat::Json };
        start_logging(&log);
        start_logging(&log);
    }
}
