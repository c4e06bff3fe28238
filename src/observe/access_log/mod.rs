//! The access log: each worker fills a buffer of its own, one thread writes them all.
//!
//! A request never waits for the log. When the reader of the log is slow or its disk fails, lines are dropped
//! and counted.

pub mod line;
mod writer_thread;

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::config::{self, AccessLogOutput};
use crate::observe::access_log::line::{AccessRecord, LineFormat};

/// The access log of the process.
#[derive(Debug, Clone)]
pub struct AccessLog {
    /// `None` = nothing is logged.
    writer: Option<Arc<WriterHandle>>,
    output: AccessLogOutput,
    hash_key: Option<RandomState>,
    sample: f64,
    /// Of all outputs since the start of the process.
    dropped: Arc<AtomicU64>,
}

/// One worker's end of the access log.
#[derive(Debug)]
pub struct LineWriter {
    writer: Option<Arc<WriterHandle>>,
    place: usize,
    format: LineFormat,
    /// Requests are logged when the dice show less; `None` = all of them.
    sample_below: Option<u64>,
    random_state: Cell<u64>,
}

/// Whoever may write lines; the thread ends after the last of them.
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

/// What the workers and the writer tell each other.
#[derive(Debug, Default)]
struct WriterSignal {
    /// A buffer holds lines.
    pending: bool,
    /// Do not gather any longer.
    urgent: bool,
    /// Open the file anew before the next line.
    reopen: bool,
    /// Nobody writes lines any more.
    ended: bool,
    /// Rounds asked for and rounds written, so that a flush knows its own.
    rounds_requested: u64,
    rounds_written: u64,
}

/// Bytes per worker: half a second of lines at full speed.
const BUFFER_CAPACITY: usize = 1 << 20;

// === impl AccessLog ===

impl AccessLog {
    /// Opens the output and starts the writer; an output that cannot be opened is an error.
    pub fn start_writer(config: &config::AccessLogConfig, workers: usize) -> io::Result<AccessLog> {
        AccessLog::continue_from(None, config, workers)
    }

    /// The same, going on with the writer of the log `before` if it has the same output.
    ///
    /// # Errors
    /// An output that cannot be opened.
    pub fn continue_from(
        before: Option<&AccessLog>,
        config: &config::AccessLogConfig,
        workers: usize,
    ) -> io::Result<AccessLog> {
        let known = before.and_then(|before| before.hash_key.clone()).filter(|_| config.hash_keys);
        let mut log = AccessLog {
            writer: None,
            output: config.output.clone(),
            hash_key: known.or_else(|| new_hash_key(config)),
            sample: config.sample,
            dropped: before.map(|before| before.dropped.clone()).unwrap_or_default(),
        };
        let same = before.filter(|before| before.output == config.output);
        if let Some(shared) = same.and_then(|before| before.writer.clone()) {
            log.writer = Some(shared);
            return Ok(log);
        }
        let sink: Box<dyn Write + Send> = match &config.output {
            AccessLogOutput::None => return Ok(log),
            // Past the standard library's buffer: lines are gathered already.
            AccessLogOutput::Stdout => Box::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
            AccessLogOutput::File(path) => Box::new(append_to(path)?),
        };
        log.start_thread(sink, workers, BUFFER_CAPACITY)?;
        Ok(log)
    }

    #[cfg(test)]
    fn start_with_sink(
        sink: Box<dyn Write + Send>,
        config: &config::AccessLogConfig,
        workers: usize,
        capacity: usize,
    ) -> io::Result<AccessLog> {
        let none = config::AccessLogConfig { output: AccessLogOutput::None, ..config.clone() };
        let mut log = AccessLog::start_writer(&none, workers)?;
        log.output = config.output.clone();
        log.start_thread(sink, workers, capacity)?;
        Ok(log)
    }

    /// Starts the thread that writes.
    fn start_thread(
        &mut self,
        sink: Box<dyn Write + Send>,
        workers: usize,
        capacity: usize,
    ) -> io::Result<()> {
        let shared = Arc::new(WriterState {
            buffers: (0..workers.max(1)).map(|_| LineBuffer::default()).collect(),
            capacity,
            signal: Mutex::default(),
            wake: Condvar::new(),
            written: Condvar::new(),
            dropped: self.dropped.clone(),
        });
        let theirs = shared.clone();
        let path = match &self.output {
            AccessLogOutput::File(path) => Some(path.clone()),
            AccessLogOutput::Stdout | AccessLogOutput::None => None,
        };
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        thread.spawn(move || writer_thread::run_writer(&theirs, sink, path.as_deref()))?;
        self.writer = Some(Arc::new(WriterHandle(shared)));
        Ok(())
    }

    /// The end that worker number `worker` writes to.
    pub fn line_writer(&self, worker: usize) -> LineWriter {
        let sample_below = (self.sample < 100.0).then(|| (self.sample / 100.0 * u64::MAX as f64) as u64);
        LineWriter {
            place: self.writer.as_ref().map_or(0, |shared| worker % shared.0.buffers.len()),
            writer: self.writer.clone(),
            format: LineFormat::new(self.hash_key.clone()),
            sample_below,
            random_state: Cell::new(RandomState::new().hash_one(worker)),
        }
    }

    /// Lines that were not written, since the start.
    pub fn dropped_lines(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Has the writer open its file anew, for one that was moved away; other outputs stay as they are.
    pub fn reopen_file(&self) {
        let Some(WriterHandle(shared)) = self.writer.as_deref() else { return };
        let mut signal = shared.signal.lock();
        signal.reopen = true;
        signal.urgent = true;
        shared.wake.notify_one();
    }

    /// Writes what is buffered and returns when it is written, at the latest after `timeout`; false = not all
    /// was.
    pub fn flush_within(&self, timeout: Duration) -> bool {
        let Some(WriterHandle(shared)) = self.writer.as_deref() else { return true };
        let mut signal = shared.signal.lock();
        signal.rounds_requested += 1;
        signal.urgent = true;
        let mine = signal.rounds_requested;
        shared.wake.notify_one();
        let waits = |signal: &mut WriterSignal| signal.rounds_written < mine;
        !shared.written.wait_while_for(&mut signal, waits, timeout).timed_out()
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    // Opened for writing alone, a pipe would have us wait for a reader.
    let is_pipe = std::fs::metadata(path).is_ok_and(|data| data.file_type().is_fifo());
    let file = OpenOptions::new().create(true).append(true).read(is_pipe).open(path);
    file.map_err(|error| io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display())))
}

fn new_hash_key(config: &config::AccessLogConfig) -> Option<RandomState> {
    config.hash_keys.then(RandomState::new)
}

// === impl LineWriter ===

impl LineWriter {
    /// An account as lines show it.
    pub fn shown_account(&self, account: &str) -> String {
        self.format.shown_account(account)
    }

    /// True if this request is to be logged: the dice decide, once per request.
    #[inline]
    pub fn is_sampled(&self) -> bool {
        match (&self.writer, self.sample_below) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(_), Some(below)) => self.next_random() < below,
        }
    }

    /// Appends the record's line, or drops and counts it when the buffer is full.
    pub fn write_record(&self, record: &AccessRecord<'_>) {
        let Some(WriterHandle(shared)) = self.writer.as_deref() else { return };
        let mut buffer = shared.buffers[self.place].0.lock();
        let before = buffer.len();
        if before >= shared.capacity {
            drop(buffer);
            shared.dropped.fetch_add(1, Relaxed);
            return;
        }
        self.format.write_line(record, &mut buffer);
        let after = buffer.len();
        drop(buffer);
        let half = shared.capacity / 2;
        if before == 0 {
            shared.wake_writer(false);
        } else if before < half && after >= half {
            shared.wake_writer(true);
        }
    }

    /// SplitMix64.
    fn next_random(&self) -> u64 {
        let state = self.random_state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random_state.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

// === impl Handle ===

impl Drop for WriterHandle {
    fn drop(&mut self) {
        let mut signal = self.0.signal.lock();
        (signal.ended, signal.urgent) = (true, true);
        self.0.wake.notify_one();
    }
}

// === impl Shared ===

impl WriterState {
    /// Tells the writer that there is work; one that knows already is not woken again.
    #[cold]
    fn wake_writer(&self, urgent: bool) {
        let mut signal = self.signal.lock();
        let news = !signal.pending || urgent && !signal.urgent;
        signal.pending = true;
        signal.urgent |= urgent;
        drop(signal);
        if news {
            self.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
