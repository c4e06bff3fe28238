//! The log of the program itself, on stderr. For the access log, see [`super::access_log`].

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use sluicegate_model::{LogConfig, LogFormat, LogLevel};

/// Maximum number of queued lines; more are dropped, so that a blocked stderr does not block the program.
const LINES_MAX: usize = 1024;

/// Maximum time that lines wait for the banner, so that a slow start shows its reasons.
const HOLD_MAX: Duration = Duration::from_secs(2);

static QUEUE: OnceLock<SyncSender<Vec<u8>>> = OnceLock::new();
static RELEASE: OnceLock<SyncSender<()>> = OnceLock::new();
/// True if stderr holds JSON lines.
static JSON: OnceLock<bool> = OnceLock::new();
static PENDING: AtomicUsize = AtomicUsize::new(0);
static LEVEL: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// The target of lines about changes by operators, which are written at any level.
pub const AUDIT_TARGET: &str = "sluicegate::audit";

/// Starts to log events to stderr, where they appear from [`release_lines`] on; a second call has no effect.
pub fn start_logging(config: &LogConfig) {
    let terminal = io::stderr().is_terminal();
    let json = *JSON.get_or_init(|| is_json_format(config.format));
    start_stderr_thread();
    let lines =
        tracing_subscriber::fmt::layer().with_writer(|| StderrLines).with_target(false).with_ansi(terminal);
    let lines = match json {
        true => lines.json().flatten_event(true).boxed(),
        false => lines.boxed(),
    };
    let (filter, handle) = reload::Layer::new(level_filter(config.level));
    // It fails only if a subscriber is set already.
    let subscriber = tracing_subscriber::registry().with(filter).with(lines.with_filter(filter_fn(is_ours)));
    if subscriber.try_init().is_ok() {
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

/// True if stderr holds JSON lines; before [`start_logging`], true if the default format does.
pub fn is_json() -> bool {
    JSON.get().copied().unwrap_or_else(|| is_json_format(LogFormat::Auto))
}

/// True if this format means JSON lines on the stderr of this process.
pub fn is_json_format(format: LogFormat) -> bool {
    is_json_on(format, io::stderr().is_terminal())
}

/// Queues text that is no event behind the lines so far.
pub fn queue_text(text: &str) {
    // The queue takes any line.
    let _ = StderrLines.write(text.as_bytes());
}

/// Writes the queued lines, and all later ones at once. The banner comes first.
pub fn release_lines() {
    if let Some(release) = RELEASE.get() {
        // They are released already.
        let _ = release.try_send(());
    }
}

/// Waits until all lines are written, at most 500 ms.
pub fn flush_lines() {
    release_lines();
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
    let (release, released) = sync_channel::<()>(1);
    let write_lines = move || write_queued(&lines, &released);
    if std::thread::Builder::new().name("log".to_owned()).spawn(write_lines).is_ok() {
        let _ = QUEUE.set(sender);
        let _ = RELEASE.set(release);
    }
}

fn write_queued(lines: &Receiver<Vec<u8>>, released: &Receiver<()>) {
    // Lines flow when they are released, and after the longest wait.
    let _ = released.recv_timeout(HOLD_MAX);
    for line in lines {
        // A broken stderr cannot be reported anywhere.
        let _ = io::stderr().write_all(&line);
        PENDING.fetch_sub(1, Ordering::Release);
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

fn is_json_on(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Auto => !terminal,
        LogFormat::Pretty => false,
        LogFormat::Json => true,
    }
}

fn level_filter(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new().with_default(level).with_target(AUDIT_TARGET, level.max(LevelFilter::INFO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_pretty_on_a_terminal_alone() {
        assert!(is_json_on(LogFormat::Auto, false) && !is_json_on(LogFormat::Auto, true));
        assert!(is_json_on(LogFormat::Json, true) && !is_json_on(LogFormat::Pretty, false));
    }

    #[test]
    fn a_second_start_is_harmless() {
        let log = LogConfig { level: LogLevel::Error, format: LogFormat::Json };
        start_logging(&log);
        start_logging(&log);
    }
}
