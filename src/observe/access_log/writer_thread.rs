//! The thread that writes the access log: it sleeps until there are lines, gathers, and writes in large pieces.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{WriterState, append_to};

/// How long lines are gathered before they are written.
const GATHER_TIME: Duration = Duration::from_millis(50);
/// How long to wait before an output that is not ready is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(10);

struct LogWriter {
    sink: Box<dyn Write + Send>,
    /// The last write broke off inside a line.
    is_mid_line: bool,
    /// The output failed and nobody has been told that it works again.
    is_failing: bool,
}

/// Until nobody writes lines any more; `path` is that of the sink, if it is a file with a name.
pub(super) fn run_writer(shared: &WriterState, sink: Box<dyn Write + Send>, path: Option<&Path>) {
    let mut writer = LogWriter { sink, is_mid_line: false, is_failing: false };
    let mut batch = Vec::new();
    loop {
        let WriteRound { number, reopen, last } = wait_for_lines(shared);
        if let Some(path) = path.filter(|_| reopen) {
            writer.reopen_file(path);
        }
        for buffer in &shared.buffers {
            // The worker gets the empty buffer back, so that neither side allocates again.
            std::mem::swap(&mut *buffer.0.lock(), &mut batch);
            let lost = writer.write_lines(&batch);
            if lost > 0 {
                shared.dropped.fetch_add(lost, Relaxed);
            }
            batch.clear();
        }
        shared.signal.lock().rounds_written = number;
        shared.written.notify_all();
        if last {
            return;
        }
    }
}

/// What there is to do.
struct WriteRound {
    /// Of the flushes that are served by it.
    number: u64,
    /// The file is to be opened anew.
    reopen: bool,
    last: bool,
}

/// Sleeps until there is something to do.
fn wait_for_lines(shared: &WriterState) -> WriteRound {
    let mut signal = shared.signal.lock();
    while !signal.pending && !signal.urgent {
        shared.wake.wait(&mut signal);
    }
    while !signal.urgent {
        if shared.wake.wait_for(&mut signal, GATHER_TIME).timed_out() {
            break;
        }
    }
    // Taken back before the buffers are looked at: a line that comes in between asks for one more round.
    signal.pending = false;
    signal.urgent = false;
    WriteRound {
        number: signal.rounds_requested,
        reopen: std::mem::take(&mut signal.reopen),
        last: signal.ended,
    }
}

impl LogWriter {
    /// When it cannot be opened the old one is written on.
    fn reopen_file(&mut self, path: &Path) {
        match append_to(path) {
            Ok(file) => {
                self.sink = Box::new(file);
                self.is_mid_line = false;
                tracing::info!("the access log was opened anew");
            }
            Err(error) => tracing::warn!(%error, "the access log stays in its old file"),
        }
    }

    /// Writes whole lines; returns how many of them were lost.
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

    /// Writes all of `bytes`, or tells how many were written and why no more.
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), (usize, ErrorKind)> {
        let mut written = 0;
        while written < bytes.len() {
            match self.sink.write(&bytes[written..]) {
                Ok(0) => return Err((written, ErrorKind::WriteZero)),
                Ok(more) => written += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A terminal or pipe that somebody set to non-blocking: wait here, it is nobody else's time.
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY_DELAY),
                Err(error) => return Err((written, error.kind())),
            }
        }
        Ok(())
    }
}
