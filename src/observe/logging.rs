//! The log of the program itself, on stderr. For the access log, see [`super::access_log`].

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

/// Maximum number of queued lines; more are dropped, so that a blocked stderr does not block the program.
const LINES_MAX: usize = 1024;

static QUEUE: OnceLock<SyncSender<Vec<u8>>> = OnceLock::new();
static PENDING: AtomicUsize = AtomicUsize::new(0);
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Starts to log events to stderr; a second call has no effect.
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
    // It fails only if a subscriber is set already.
    if tracing_subscriber::registry()
        .with(filter)
        .with(lines.with_filter(filter_fn(is_ours)))
        .try_init()
        .is_ok()
    {
        let _ = LEVEL.set(handle);
    }
}

/// Logs events of the configured level and above from now on.
pub fn apply_level(config: &LogConfig) {
    if let Some(handle) = LEVEL.get() {
        // It fails only if the subscriber is gone.
        let _ = handle.reload(level_filter(config.level));
    }
}

/// Waits until all lines are written, at most 500 ms.
pub fn flush_lines() {
    for _ in 0..50 {
        if PENDING.load(Ordering::Acquire) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts the only thread that may block on stderr.
fn start_stderr_thread() {
    let (sender, lines) = sync_channel::<Vec<u8>>(LINES_MAX);
    let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || {
        for line in lines {
            // A broken stderr cannot be reported anywhere.
            let _ = io::stderr().write_all(&line);
            PENDING.fetch_sub(1, Ordering::Release);
        }
    });
    if thread.is_ok() {
        let _ = QUEUE.set(sender);
    }
}

/// Queues lines; the subscriber writes each with one call.
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

/// False for warnings of libraries: any client can provoke those of HTTP/2, as often as it likes.
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
