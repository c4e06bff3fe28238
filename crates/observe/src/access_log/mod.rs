//! The access log: each worker fills its own buffer, and one thread writes them all.
//!
//! A request never waits for the log. If the reader of the log is slow or its disk fails, lines are dropped and
//! counted.

pub mod line;
mod writer_thread;

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::access_log::line::{AccessRecord, CallRecord, LineForm, LineFormat};
use sluicegate_base::random::RandomNumbers;
use sluicegate_base::value_hash::ValueHasher;
use sluicegate_model::{self as model, AccessLogOutput, LogFormat};

/// The access log of the process.
#[derive(Debug, Clone)]
pub struct AccessLog {
    /// `None` = no requests are logged.
    writer: Option<Arc<WriterHandle>>,
    output: AccessLogOutput,
    form: LineForm,
    /// Hashes accounts and keys; `None` = they are shown in clear.
    hasher: Option<ValueHasher>,
    /// The secret of the hasher is not that of the configuration: it is random, or shared with other processes.
    is_hasher_random: bool,
    sample: f64,
    /// Dropped lines of all outputs since the start of the process.
    dropped: Arc<AtomicU64>,
}

/// One worker's end of the access log.
#[derive(Debug)]
pub struct LineWriter {
    writer: Option<Arc<WriterHandle>>,
    buffer_index: usize,
    format: LineFormat,
    /// Requests with a random number below this are logged; `None` = all are logged.
    sample_below: Option<u64>,
    random: RandomNumbers,
}

/// The right to write lines; the thread ends when the last handle is dropped.
#[derive(Debug)]
struct WriterHandle(Arc<WriterState>);

#[derive(Debug)]
struct WriterState {
    buffers: Box<[LineBuffer]>,
    /// Bytes that one worker's buffer may hold before lines are dropped.
    capacity: usize,
    signal: Mutex<WriterSignal>,
    wake: Condvar,
    written: Condvar,
    dropped: Arc<AtomicU64>,
}

/// Aligned, so that workers do not share cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
struct LineBuffer(Mutex<Vec<u8>>);

/// The signals between the workers and the writer thread.
#[derive(Debug, Default)]
struct WriterSignal {
    /// A buffer holds lines.
    pending: bool,
    /// Lines are to be written at once, without gathering more.
    urgent: bool,
    /// Reopen the file before the next line.
    reopen: bool,
    /// The last handle is dropped.
    ended: bool,
    /// Requested and written rounds, so that a flush recognises its own.
    rounds_requested: u64,
    rounds_written: u64,
}

/// Bytes per worker: half a second of lines at full load.
const BUFFER_CAPACITY: usize = 1 << 20;

// === impl AccessLog ===

impl AccessLog {
    /// Opens the output and starts the writer thread, or adopts that of `before` if the output is the same.
    ///
    /// # Errors
    /// The output cannot be opened.
    pub fn continue_from(
        before: Option<&AccessLog>,
        config: &model::AccessLogConfig,
        workers: usize,
    ) -> io::Result<AccessLog> {
        let mut log = AccessLog {
            writer: None,
            output: config.output.clone(),
            form: choose_form(config, io::stdout().is_terminal()),
            hasher: build_hasher(before, config),
            is_hasher_random: config.hash_secret.is_none(),
            sample: config.sample,
            dropped: before.map(|before| before.dropped.clone()).unwrap_or_default(),
        };
        let same_output = before.filter(|before| before.output == config.output);
        if let Some(state) = same_output.and_then(|before| before.writer.clone()) {
            log.writer = Some(state);
            return Ok(log);
        }
        let sink: Box<dyn Write + Send> = match &config.output {
            AccessLogOutput::None => return Ok(log),
            // Bypasses the standard library's buffer, because lines are gathered already.
            AccessLogOutput::Stdout => Box::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
            AccessLogOutput::File(path) => Box::new(append_to(path)?),
        };
        log.start_thread(sink, workers, BUFFER_CAPACITY)?;
        Ok(log)
    }

    /// Starts the writer thread.
    fn start_thread(
        &mut self,
        sink: Box<dyn Write + Send>,
        workers: usize,
        capacity: usize,
    ) -> io::Result<()> {
        let state = Arc::new(WriterState {
            buffers: (0..workers.max(1)).map(|_| LineBuffer::default()).collect(),
            capacity,
            signal: Mutex::default(),
            wake: Condvar::new(),
            written: Condvar::new(),
            dropped: self.dropped.clone(),
        });
        let thread_state = state.clone();
        let path = match &self.output {
            AccessLogOutput::File(path) => Some(path.clone()),
            AccessLogOutput::Stdout | AccessLogOutput::None => None,
        };
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        thread.spawn(move || writer_thread::run_writer(&thread_state, sink, path.as_deref()))?;
        self.writer = Some(Arc::new(WriterHandle(state)));
        Ok(())
    }

    /// The line writer of the worker with this index.
    pub fn line_writer(&self, worker: usize) -> LineWriter {
        let sample_below = (self.sample < 100.0).then(|| (self.sample / 100.0 * u64::MAX as f64) as u64);
        LineWriter {
            buffer_index: self.writer.as_ref().map_or(0, |state| worker % state.0.buffers.len()),
            writer: self.writer.clone(),
            format: LineFormat::new(self.hasher.clone(), self.form),
            sample_below,
            random: RandomNumbers::seeded(worker),
        }
    }

    /// Hashes by a secret shared with other processes, unless the configuration has one or nothing is hashed.
    pub fn with_shared_secret(mut self, secret: [u8; 16]) -> AccessLog {
        if self.uses_shared_secret() {
            self.hasher = Some(ValueHasher::from_shared_secret(secret));
        }
        self
    }

    /// True if the log can use a secret shared with other processes.
    pub fn uses_shared_secret(&self) -> bool {
        self.hasher.is_some() && self.is_hasher_random
    }

    /// Hashes accounts and keys wherever they are shown; `None` = they are shown in clear.
    pub fn hasher(&self) -> Option<&ValueHasher> {
        self.hasher.as_ref()
    }

    /// Lines that were dropped since the start.
    pub fn dropped_lines(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Reopens the file, after a log rotation moved it away; other outputs are unchanged.
    pub fn reopen_file(&self) {
        let Some(WriterHandle(state)) = self.writer.as_deref() else { return };
        let mut signal = state.signal.lock();
        signal.reopen = true;
        signal.urgent = true;
        state.wake.notify_one();
    }

    /// Writes all buffered lines, and waits for it at most `timeout`; false if that was not enough.
    pub fn flush_within(&self, timeout: Duration) -> bool {
        let Some(WriterHandle(state)) = self.writer.as_deref() else { return true };
        let mut signal = state.signal.lock();
        signal.rounds_requested += 1;
        signal.urgent = true;
        let own_round = signal.rounds_requested;
        state.wake.notify_one();
        let is_pending = |signal: &mut WriterSignal| signal.rounds_written < own_round;
        !state.written.wait_while_for(&mut signal, is_pending, timeout).timed_out()
    }
}

/// The form of the lines, where `terminal` says what stdout is. Colours are for terminals alone.
fn choose_form(config: &model::AccessLogConfig, terminal: bool) -> LineForm {
    let colors = terminal && config.output == AccessLogOutput::Stdout;
    match config.format {
        LogFormat::Pretty => LineForm::Pretty { colors },
        LogFormat::Auto if colors => LineForm::Pretty { colors },
        LogFormat::Auto | LogFormat::Json => LineForm::Json,
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    // Opening a pipe only for writing would block until it has a reader.
    let is_pipe = std::fs::metadata(path).is_ok_and(|data| data.file_type().is_fifo());
    let file = OpenOptions::new().create(true).append(true).read(is_pipe).open(path);
    file.map_err(|error| io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display())))
}

/// Builds the hasher with the secret of the configuration; without one, it is the hasher of the log `before` or a
/// random one, until [`AccessLog::with_shared_secret`].
fn build_hasher(before: Option<&AccessLog>, config: &model::AccessLogConfig) -> Option<ValueHasher> {
    if !config.hash_keys {
        return None;
    }
    if let Some(secret) = &config.hash_secret {
        return Some(ValueHasher::from_secret(&secret.0));
    }
    let known = before.filter(|before| before.is_hasher_random).and_then(|before| before.hasher.clone());
    Some(known.unwrap_or_else(ValueHasher::random))
}

// === impl LineWriter ===

impl LineWriter {
    /// An account in the form of log lines.
    pub fn shown_account(&self, account: &str) -> String {
        self.format.shown_account(account)
    }

    /// Decides at random whether to log this request; call it once per request.
    #[inline]
    pub fn is_sampled(&self) -> bool {
        match (&self.writer, self.sample_below) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(_), Some(below)) => self.random.next() < below,
        }
    }

    /// Appends the record's line, or drops and counts it when the buffer is full.
    pub fn write_record(&self, record: &AccessRecord<'_>) {
        self.append_line(|format, buffer| format.write_line(record, buffer));
    }

    /// Does the same for a call that is no request.
    pub fn write_call(&self, record: &CallRecord<'_>) {
        self.append_line(|format, buffer| format.write_call(record, buffer));
    }

    fn append_line(&self, write: impl FnOnce(&LineFormat, &mut Vec<u8>)) {
        let Some(WriterHandle(state)) = self.writer.as_deref() else { return };
        let mut buffer = state.buffers[self.buffer_index].0.lock();
        let before = buffer.len();
        if before >= state.capacity {
            drop(buffer);
            state.dropped.fetch_add(1, Relaxed);
            return;
        }
        write(&self.format, &mut buffer);
        let after = buffer.len();
        drop(buffer);
        let half = state.capacity / 2;
        if before == 0 {
            state.wake_writer(false);
        } else if before < half && after >= half {
            state.wake_writer(true);
        }
    }
}

// === impl WriterHandle ===

impl Drop for WriterHandle {
    fn drop(&mut self) {
        let mut signal = self.0.signal.lock();
        (signal.ended, signal.urgent) = (true, true);
        self.0.wake.notify_one();
    }
}

// === impl WriterState ===

impl WriterState {
    /// Signals work to the writer, and wakes it unless it knows already.
    #[cold]
    fn wake_writer(&self, urgent: bool) {
        let mut signal = self.signal.lock();
        let is_new = !signal.pending || urgent && !signal.urgent;
        signal.pending = true;
        signal.urgent |= urgent;
        drop(signal);
        if is_new {
            self.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
