//! Access logs as requests in the order of their arrival.
//!
//! A line is written when its request ends, so the lines of long requests come late. [`LogStream`] merges the logs by
//! the ends of requests, and a window of bounded size puts them into the order of arrivals. Lines that come later still
//! are counted, and are taken as arriving at the end of the window. Requests with times known to the second are
//! spread evenly inside it.

mod haproxy;
mod json_line;
pub mod line_format;
pub mod line_pattern;
pub mod line_source;
pub mod record;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use sluicegate_base::file::describe_failure;

use line_format::LogLineFormat;
use line_source::{LineSource, LogBytes, NextLine};
pub use record::KnownFields;
use record::{HeaderNames, LogRecord, TextField};

/// Requests that the window holds.
const WINDOW: usize = 100_000;
/// Lines at the beginning of a log of which one must have a known format.
const GUESSED_LINES: u64 = 1_000;
/// Characters of an unreadable line that are shown.
const SHOWN_MAX: usize = 120;

/// Requests of one or several logs, in the order of their arrival.
#[derive(Default)]
pub struct LogStream {
    sources: Vec<LogSource>,
    names: HeaderNames,
    /// The memory of records; those in `free` are in no use.
    records: Vec<LogRecord>,
    free: Vec<u32>,
    /// Ordered by arrival, then by line.
    window: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// Requests in the window by the second that is all that is known of their arrival.
    per_second: HashMap<u64, u32>,
    /// The second that is being spread.
    spread: SpreadSecond,
    /// The record that was handed out last.
    current: Option<u32>,
    sequence: u64,
    latest_ns: u64,
    /// The bytes of all logs that were read so far.
    pub bytes: LogBytes,
    /// The lines and requests that were read so far.
    pub counts: LogCounts,
    /// The facts of the first lines, as many as the window holds.
    pub fields: KnownFields,
}

struct LogSource {
    lines: LineSource,
    /// `None` until it is guessed.
    format: Option<LogLineFormat>,
    /// The next request of this log.
    head: Option<u32>,
    line: Vec<u8>,
}

#[derive(Default)]
struct SpreadSecond {
    start_ns: u64,
    total: u32,
    given: u32,
}

/// The counts of lines and requests that were read.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LogCounts {
    /// All lines, unreadable ones and those without a request included.
    pub lines: u64,
    /// Lines that have another format.
    pub unreadable: u64,
    /// The first of them: its log, number and text.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "write_place")]
    pub first_unreadable: Option<(String, u64, String)>,
    /// Lines that are no requests: bad ones that no server could judge.
    pub without_request: u64,
    /// Requests that came later than the window.
    pub late: u64,
    /// Some lines were written by the gateway, which may log a sample alone.
    #[serde(skip)]
    pub may_be_sampled: bool,
}

/// One request of the log.
pub struct LoggedRequest<'s> {
    /// The facts of its line.
    pub record: &'s LogRecord,
    /// The names of the headers that `record` refers to.
    pub names: &'s HeaderNames,
    /// Nanoseconds since 1970; never before that of the request before.
    pub arrival_ns: u64,
    /// The start of its second, where no more is known; else `arrival_ns`.
    pub earliest_ns: u64,
}

impl LogStream {
    /// Opens the logs; `-` is stdin. Without a `format` that of each log is guessed.
    ///
    /// # Errors
    /// A sentence: a log cannot be read, or its format is unknown.
    pub fn open(paths: &[PathBuf], format: Option<&LogLineFormat>) -> Result<LogStream, String> {
        let bytes = LogBytes::default();
        let open = |path: &PathBuf| {
            LineSource::open(path, &bytes)
                .map_err(|error| format!("{} {}", path.display(), describe_failure(error)))
        };
        let sources = paths.iter().map(open).collect::<Result<_, _>>()?;
        LogStream::with_sources(sources, format, bytes)
    }

    /// A log in memory.
    ///
    /// # Errors
    /// As [`LogStream::open`].
    pub fn from_bytes(bytes: Vec<u8>, format: Option<&LogLineFormat>) -> Result<LogStream, String> {
        let read = LogBytes::default();
        let lines = LineSource::from_reader(io::Cursor::new(bytes), "log", &read)
            .map_err(|error| format!("the log cannot be read: {error}"))?;
        LogStream::with_sources(vec![lines], format, read)
    }

    fn with_sources(
        sources: Vec<LineSource>,
        format: Option<&LogLineFormat>,
        bytes: LogBytes,
    ) -> Result<LogStream, String> {
        let build = |lines| LogSource { lines, format: format.cloned(), head: None, line: Vec::new() };
        let sources = sources.into_iter().map(build).collect();
        let mut stream = LogStream { sources, bytes, ..LogStream::default() };
        for index in 0..stream.sources.len() {
            stream.read_head(index)?;
        }
        stream.fill_window()?;
        for Reverse((_, _, slot)) in &stream.window {
            stream.fields.note_record(&stream.records[*slot as usize], &stream.names);
        }
        if stream.window.is_empty() {
            return Err(stream.explain_nothing());
        }
        Ok(stream)
    }

    /// The next request in the order of arrivals; `None` = the logs are at their end.
    ///
    /// # Errors
    /// A sentence: a log cannot be read any further.
    pub fn next_request(&mut self) -> Result<Option<LoggedRequest<'_>>, String> {
        if let Some(slot) = self.current.take() {
            self.free.push(slot);
        }
        self.fill_window()?;
        let Some(Reverse((arrival, _, slot))) = self.window.pop() else { return Ok(None) };
        self.current = Some(slot);
        let is_whole_second = self.records[slot as usize].is_whole_second;
        let spread = if is_whole_second { self.spread_in_second(arrival) } else { arrival };
        self.counts.late += u64::from(arrival < self.latest_ns && spread < self.latest_ns);
        let arrival_ns = spread.max(self.latest_ns);
        self.latest_ns = arrival_ns;
        let earliest_ns = if is_whole_second { arrival } else { arrival_ns };
        let record = &self.records[slot as usize];
        Ok(Some(LoggedRequest { record, names: &self.names, arrival_ns, earliest_ns }))
    }

    /// The arrival of the next request of a second: the middle of its share of the second.
    fn spread_in_second(&mut self, start_ns: u64) -> u64 {
        let left = self.per_second.get_mut(&start_ns);
        let in_window = left.as_ref().map_or(1, |left| **left);
        if let Some(left) = left {
            *left -= 1;
            if *left == 0 {
                self.per_second.remove(&start_ns);
            }
        }
        if self.spread.start_ns != start_ns {
            self.spread = SpreadSecond { start_ns, total: in_window, given: 0 };
        }
        let SpreadSecond { total, given, .. } = &mut self.spread;
        let place = u64::from((*given).min(*total - 1));
        *given = given.saturating_add(1);
        start_ns + (2 * place + 1) * sluicegate_base::time_text::SECOND / (2 * u64::from(*total))
    }

    fn fill_window(&mut self) -> Result<(), String> {
        while self.window.len() < WINDOW {
            let ends = self.sources.iter().enumerate().filter_map(|(index, source)| {
                Some((self.records[source.head? as usize].end_ns(), index, source.head?))
            });
            let Some((_, index, slot)) = ends.min() else { return Ok(()) };
            let record = &self.records[slot as usize];
            if record.is_whole_second {
                *self.per_second.entry(record.arrival_ns).or_default() += 1;
            }
            self.window.push(Reverse((record.arrival_ns, self.sequence, slot)));
            self.sequence += 1;
            self.read_head(index)?;
        }
        Ok(())
    }

    /// Reads the next request of one log.
    fn read_head(&mut self, index: usize) -> Result<(), String> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.records.push(LogRecord::default());
            (self.records.len() - 1) as u32
        });
        let LogStream { sources, names, records, counts, .. } = self;
        let source = &mut sources[index];
        source.head = None;
        let record = &mut records[slot as usize];
        loop {
            let next = source.lines.read_line(&mut source.line).map_err(|error| {
                let LineSource { name, line_number, .. } = &source.lines;
                format!("{name} cannot be read after line {line_number}: {error}")
            })?;
            if next == NextLine::End {
                self.free.push(slot);
                return Ok(());
            }
            if source.line.is_empty() && next == NextLine::Line {
                continue;
            }
            counts.lines += 1;
            if source.format.is_none() && next == NextLine::Line {
                source.format = LogLineFormat::guess(&source.line);
                // The gateway may log a sample alone.
                counts.may_be_sampled |= matches!(source.format, Some(LogLineFormat::Json));
            }
            let is_read = match &source.format {
                Some(format) if next == NextLine::Line => format.parse_line(&source.line, names, record),
                _ => false,
            };
            if !is_read {
                counts.note_unreadable(source);
                if source.format.is_none() && source.lines.line_number >= GUESSED_LINES {
                    return Err(source.explain_unknown());
                }
            } else if record.text(TextField::Target).is_none() {
                counts.without_request += 1;
            } else {
                source.head = Some(slot);
                return Ok(());
            }
        }
    }

    fn explain_nothing(&self) -> String {
        let unguessed = self.sources.iter().find(|source| source.format.is_none());
        match (&self.counts, unguessed) {
            (LogCounts { lines: 0, .. }, _) => "the log is empty".to_owned(),
            (LogCounts { first_unreadable: Some((name, number, text)), unreadable, .. }, None) => format!(
                "none of {unreadable} lines can be read; the first is line {number} of {name}: {text}"
            ),
            (_, Some(source)) if self.counts.unreadable > 0 => source.explain_unknown(),
            _ => "the log has no request".to_owned(),
        }
    }
}

impl LogSource {
    fn explain_unknown(&self) -> String {
        let name = &self.lines.name;
        format!("{name} has no known format; say with --format which one it has: {}", line_format::FORMATS)
    }
}

fn write_place<S: Serializer>(first: &Option<(String, u64, String)>, to: S) -> Result<S::Ok, S::Error> {
    let place = first.as_ref().map(|(name, number, text)| format!("{name}:{number}: {text}"));
    place.serialize(to)
}

impl LogCounts {
    /// A sentence about the unreadable lines, if there are any.
    pub fn describe_unreadable(&self) -> Option<String> {
        let LogCounts { lines, unreadable, first_unreadable, .. } = self;
        let (name, number, text) = first_unreadable.as_ref()?;
        Some(format!("{unreadable} of {lines} lines cannot be read; the first is {name}:{number}: {text}"))
    }

    #[cold]
    fn note_unreadable(&mut self, source: &LogSource) {
        self.unreadable += 1;
        if self.first_unreadable.is_none() {
            let text: String = String::from_utf8_lossy(&source.line).chars().take(SHOWN_MAX).collect();
            let text = text.escape_debug().to_string();
            self.first_unreadable = Some((source.lines.name.clone(), source.lines.line_number, text));
        }
    }
}

#[cfg(test)]
mod tests;
