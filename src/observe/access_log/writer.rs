//! The thread that writes the access log: it sleeps until there are lines, gathers, and writes in large pieces.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Shared, append_to};

/// How long lines are gathered before they are written.
const GATHER: Duration = Duration::from_millis(50);
/// How long to wait before an output that is not ready is tried again.
const NOT_READY: Duration = Duration::from_millis(10);

struct Writer {
    sink: Box<dyn Write + Send>,
    /// The last write broke off inside a line.
    torn: bool,
    /// The output failed and nobody has been told that it works again.
    failing: bool,
}

/// Until nobody writes lines any more; `path` is that of the sink, if it is a file with a name.
pub(super) fn run(shared: &Shared, sink: Box<dyn Write + Send>, path: Option<&Path>) {
    let mut writer = Writer { sink, torn: false, failing: false };
    let mut batch = Vec::new();
    loop {
        let Round { number, reopen, last } = wait(shared);
        if let Some(path) = path.filter(|_| reopen) {
            writer.reopen(path);
        }
        for buffer in &shared.buffers {
            // The worker gets the empty buffer back, so that neither side allocates again.
            std::mem::swap(&mut *buffer.0.lock(), &mut batch);
            let lost = writer.write(&batch);
            if lost > 0 {
                shared.dropped.fetch_add(lost, Relaxed);
            }
            batch.clear();
        }
        shared.signal.lock().done = number;
        shared.written.notify_all();
        if last {
            return;
        }
    }
}

/// What there is to do.
struct Round {
    /// Of the flushes that are served by it.
    number: u64,
    /// The file is to be opened anew.
    reopen: bool,
    last: bool,
}

/// Sleeps until there is something to do.
fn wait(shared: &Shared) -> Round {
    let mut signal = shared.signal.lock();
    while !signal.pending && !signal.urgent {
        shared.wake.wait(&mut signal);
    }
    while !signal.urgent {
        if shared.wake.wait_for(&mut signal, GATHER).timed_out() {
            break;
        }
    }
    // Taken back before the buffers are looked at: a line that comes in between asks for one more round.
    signal.pending = false;
    signal.urgent = false;
    Round { number: signal.asked, reopen: std::mem::take(&mut signal.reopen), last: signal.ended }
}

impl Writer {
    /// When it cannot be opened the old one is written on.
    fn reopen(&mut self, path: &Path) {
        match append_to(path) {
            Ok(file) => {
                self.sink = Box::new(file);
                self.torn = false;
                tracing::info!("the access log was opened anew");
            }
            Err(error) => tracing::warn!(%error, "the access log stays in its old file"),
        }
    }

    /// Writes whole lines; returns how many of them were lost.
    fn write(&mut self, lines: &[u8]) -> u64 {
        if lines.is_empty() {
            return 0;
        }
        if self.torn && self.write_all(b"\n").is_ok() {
            self.torn = false;
        }
        let Err((written, kind)) = self.write_all(lines) else {
            if self.failing {
                self.failing = false;
                tracing::info!("the access log is written again");
            }
            return 0;
        };
        if written > 0 {
            self.torn = lines[written - 1] != b'\n';
        }
        if !self.failing {
            self.failing = true;
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
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(NOT_READY),
                Err(error) => return Err((written, error.kind())),
            }
        }
        Ok(())
    }
}
