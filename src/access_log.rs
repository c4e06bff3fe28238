//! The access log: each worker fills a buffer of its own, one thread writes them all.
//!
//! A request never waits for the log. When the reader of the log is slow or its disk fails, lines are dropped
//! and counted.

mod writer;

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::config::{self, AccessLogOutput};
use crate::record::{LineFormat, Record};

/// The access log of the process.
#[derive(Debug, Clone)]
pub struct AccessLog {
    /// `None` = nothing is logged.
    shared: Option<Arc<Shared>>,
    hash: Option<RandomState>,
    sample: f64,
}

/// One worker's end of the access log.
#[derive(Debug)]
pub struct LineWriter {
    shared: Option<Arc<Shared>>,
    place: usize,
    format: LineFormat,
    /// Requests are logged when the dice show less; `None` = all of them.
    sample_below: Option<u64>,
    dice: Cell<u64>,
}

#[derive(Debug)]
struct Shared {
    buffers: Box<[Buffer]>,
    /// Bytes that one worker's buffer may hold before lines are dropped.
    capacity: usize,
    signal: Mutex<Signal>,
    wake: Condvar,
    written: Condvar,
    dropped: AtomicU64,
}

/// Aligned, so that workers do not share cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Buffer(Mutex<Vec<u8>>);

/// What the workers and the writer tell each other.
#[derive(Debug, Default)]
struct Signal {
    /// A buffer holds lines.
    pending: bool,
    /// Do not gather any longer.
    urgent: bool,
    /// Open the file anew before the next line.
    reopen: bool,
    /// Rounds asked for and rounds written, so that a flush knows its own.
    asked: u64,
    done: u64,
}

/// Bytes per worker: half a second of lines at full speed.
const CAPACITY: usize = 1 << 20;

// === impl AccessLog ===

impl AccessLog {
    /// Opens the output and starts the writer; an output that cannot be opened is an error.
    pub fn start(config: &config::AccessLog, workers: usize) -> io::Result<AccessLog> {
        let sink: Box<dyn Write + Send> = match &config.output {
            AccessLogOutput::None => {
                return Ok(AccessLog { shared: None, hash: hash_key(config), sample: 0.0 });
            }
            // Past the standard library's buffer: lines are gathered already.
            AccessLogOutput::Stdout => Box::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
            AccessLogOutput::File(path) => Box::new(append_to(path)?),
        };
        AccessLog::start_into(sink, config, workers, CAPACITY)
    }

    fn start_into(
        sink: Box<dyn Write + Send>,
        config: &config::AccessLog,
        workers: usize,
        capacity: usize,
    ) -> io::Result<AccessLog> {
        let shared = Arc::new(Shared {
            buffers: (0..workers.max(1)).map(|_| Buffer::default()).collect(),
            capacity,
            signal: Mutex::default(),
            wake: Condvar::new(),
            written: Condvar::new(),
            dropped: AtomicU64::new(0),
        });
        let theirs = shared.clone();
        let path = match &config.output {
            AccessLogOutput::File(path) => Some(path.clone()),
            AccessLogOutput::Stdout | AccessLogOutput::None => None,
        };
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        thread.spawn(move || writer::run(&theirs, sink, path.as_deref()))?;
        Ok(AccessLog { shared: Some(shared), hash: hash_key(config), sample: config.sample })
    }

    /// The end that worker number `worker` writes to.
    pub fn writer(&self, worker: usize) -> LineWriter {
        let sample_below = (self.sample < 100.0).then(|| (self.sample / 100.0 * u64::MAX as f64) as u64);
        LineWriter {
            place: self.shared.as_ref().map_or(0, |shared| worker % shared.buffers.len()),
            shared: self.shared.clone(),
            format: LineFormat::new(self.hash.clone()),
            sample_below,
            dice: Cell::new(RandomState::new().hash_one(worker)),
        }
    }

    /// Lines that were not written, since the start.
    pub fn dropped(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.dropped.load(Relaxed))
    }

    /// Has the writer open its file anew, for one that was moved away; other outputs stay as they are.
    pub fn reopen(&self) {
        let Some(shared) = &self.shared else { return };
        let mut signal = shared.signal.lock();
        signal.reopen = true;
        signal.urgent = true;
        shared.wake.notify_one();
    }

    /// Writes what is buffered and returns when it is written, at the latest after `timeout`; false = not all
    /// was.
    pub fn flush(&self, timeout: Duration) -> bool {
        let Some(shared) = &self.shared else { return true };
        let mut signal = shared.signal.lock();
        signal.asked += 1;
        signal.urgent = true;
        let mine = signal.asked;
        shared.wake.notify_one();
        let waits = |signal: &mut Signal| signal.done < mine;
        !shared.written.wait_while_for(&mut signal, waits, timeout).timed_out()
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map_err(|error| io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display())))
}

fn hash_key(config: &config::AccessLog) -> Option<RandomState> {
    config.hash_keys.then(RandomState::new)
}

// === impl LineWriter ===

impl LineWriter {
    /// An account as lines show it.
    pub fn account(&self, account: &str) -> String {
        self.format.shown_account(account)
    }

    /// True if this request is to be logged: the dice decide, once per request.
    #[inline]
    pub fn wanted(&self) -> bool {
        match (&self.shared, self.sample_below) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(_), Some(below)) => self.roll() < below,
        }
    }

    /// Appends the record's line, or drops and counts it when the buffer is full.
    pub fn write(&self, record: &Record<'_>) {
        let Some(shared) = &self.shared else { return };
        let mut buffer = shared.buffers[self.place].0.lock();
        let before = buffer.len();
        if before >= shared.capacity {
            drop(buffer);
            shared.dropped.fetch_add(1, Relaxed);
            return;
        }
        self.format.write(record, &mut buffer);
        let after = buffer.len();
        drop(buffer);
        let half = shared.capacity / 2;
        if before == 0 {
            shared.signal(false);
        } else if before < half && after >= half {
            shared.signal(true);
        }
    }

    /// SplitMix64.
    fn roll(&self) -> u64 {
        let state = self.dice.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.dice.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

// === impl Shared ===

impl Shared {
    /// Tells the writer that there is work; one that knows already is not woken again.
    #[cold]
    fn signal(&self, urgent: bool) {
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
