//! The writer thread of the access log: it sleeps until there are lines, gathers more, and writes them in large pieces.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{WriterState, append_to};

/// Time to gather lines before they are written.
const GATHER_TIME: Duration = Duration::from_millis(50);
/// Delay before an output that is not ready is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(10);

struct LogWriter {
    sink: Box<dyn Write + Send>,
    /// The last write ended inside a line.
    is_mid_line: bool,
    /// The output failed, and its recovery has not been logged.
    is_failing: bool,
}

/// Writes until the last handle is dropped; `path` is the path of the sink, if it is a file.
pub(super) fn run_writer(state: &WriterState, sink: Box<dyn Write + Send>, path: Option<&Path>) {
    let mut writer = LogWriter { sink, is_mid_line: false, is_failing: false };
    let mut batch = Vec::new();
    loop {
        let (number, reopen, last) = wait_for_lines(state);
        if let Some(path) = path.filter(|_| reopen) {
            writer.reopen_file(path);
        }
        for buffer in &state.buffers {
            // The worker gets the empty buffer back, so that neither side allocates again.
            std::mem::swap(&mut *buffer.0.lock(), &mut batch);
            let lost = writer.write_lines(&batch);
            if lost > 0 {
                state.dropped.fetch_add(lost, Relaxed);
            }
            batch.clear();
        }
        state.signal.lock().rounds_written = number;
        state.written.notify_all();
        if last {
            return;
        }
    }
}

/// Sleeps until there are lines to write or a signal is urgent. Returns the number of the last flush that the next
/// round serves, whether the file is to be reopened first, and whether the round is the last.
fn wait_for_lines(state: &WriterState) -> (u64, bool, bool) {
    let mut signal = state.signal.lock();
    while !signal.pending && !signal.urgent {
        state.wake.wait(&mut signal);
    }
    while !signal.urgent {
        if state.wake.wait_for(&mut signal, GATHER_TIME).timed_out() {
            break;
        }
    }
    // Reset before the buffers are read, so that a line in between requests another round.
    signal.pending = false;
    signal.urgent = false;
    (signal.rounds_requested, std::mem::take(&mut signal.reopen), signal.ended)
}

impl LogWriter {
    /// Reopens the file; if that fails, the old one stays in use.
    fn reopen_file(&mut self, path: &Path) {
        match append_to(path) {
            Ok(file) => {
                self.sink = Box::new(file);
                self.is_mid_line = false;
                tracing::info!("the access log was reopened");
            }
            Err(error) => tracing::warn!(%error, "the access log stays in its old file"),
        }
    }

    /// Writes whole lines; returns the number of lost ones.
    fn write_lines(&mut self, lines: &[u8]) -> u64 {
        if lines.is_empty() {
            return 0;
        }
        if self.is_mid_line && self.write_all(b"\n").is_ok() {
            self.is_mid_line = false;
        }
        let Err((written, kind)) = self.write_all(lines) else {
            if self.is_failing {
                self.is_failing = false;
                tracing::info!("the access log is written again");
            }
            return 0;
        };
        if written > 0 {
            self.is_mid_line = lines[written - 1] != b'\n';
        }
        if !self.is_failing {
            self.is_failing = true;
            tracing::warn!(error = %kind, "the access log cannot be written; its lines are dropped");
        }
        lines[written..].iter().filter(|byte| **byte == b'\n').count() as u64
    }

    /// Writes all of `bytes`; the error contains the number of written bytes and the cause.
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), (usize, ErrorKind)> {
        let mut written = 0;
        while written < bytes.len() {
            match self.sink.write(&bytes[written..]) {
                Ok(0) => return Err((written, ErrorKind::WriteZero)),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The terminal or pipe is set to non-blocking: waiting here delays no other thread.
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY_DELAY),
                Err(error) => return Err((written, error.kind())),
            }
        }
        Ok(())
    }
}
