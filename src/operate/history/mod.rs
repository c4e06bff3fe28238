//! The traffic of the last ten minutes by seconds and of the last day by minutes, per limit, location and upstream.
//!
//! The control thread takes one sample each second from the counters that exist anyway, so a request costs nothing
//! more. Memory is bounded: each kind has at most 100 series and one of the rest.

mod series;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use series::{HistorySeries, MINUTE, MINUTES, SeriesRow, TIMES};
use sluicegate_base::clock::Now;
use sluicegate_observe::metrics::{Metrics, SeriesKind};

/// The most sources of one kind with a series of their own.
const SERIES_MAX: usize = 100;
/// The most sources of one kind; more are left out.
const SOURCES_MAX: usize = 4_096;
/// The most sources that change places at once.
const CHANGES_MAX: usize = 10;
const SECOND_NS: u64 = 1_000_000_000;
/// Seconds after which a series has nothing from before, neither in an unfinished minute.
const SPAN_MAX: u64 = (MINUTES + 1) * MINUTE;

/// The series of all kinds.
pub struct TrafficHistory {
    tables: [HistoryTable; SeriesKind::ALL.len()],
    /// The number of the seconds so far.
    seconds: u64,
    /// The end of the last second; `None` = no sample was taken.
    end: Option<Now>,
}

/// A history for another process: the seconds so far, their end in milliseconds since 1970, and each series by kind and
/// name.
pub type SavedHistory = (u64, u64, Vec<(String, Option<String>, Vec<SeriesRow>)>);

/// All series of one kind.
#[derive(Default)]
struct HistoryTable {
    sources: BTreeMap<Arc<str>, HistorySource>,
    /// The sum of the sources without a series; `None` = each has one.
    rest: Option<Box<HistorySeries>>,
}

#[derive(Default)]
struct HistorySource {
    last: [u64; 5],
    /// The end of the last second in which it was there.
    seen: u64,
    /// A count of the last minutes, in which older ones weigh less.
    recent: u64,
    series: Option<Box<HistorySeries>>,
}

/// The names of the values: counts, then times in milliseconds.
fn columns_of(kind: SeriesKind) -> &'static [&'static str] {
    match kind {
        SeriesKind::Limits => &["admitted", "waited", "rejected", "would_reject"],
        SeriesKind::Locations => &["2xx", "3xx", "4xx", "5xx", "own"],
        SeriesKind::Upstreams => &["2xx", "3xx", "4xx", "5xx", "p50_ms", "p99_ms"],
    }
}

impl TrafficHistory {
    /// Begins with counters that are zero.
    pub fn new(metrics: &Metrics) -> TrafficHistory {
        let mut history = TrafficHistory { tables: Default::default(), seconds: 0, end: None };
        history.append(metrics, 0);
        history
    }

    /// Appends the time since the last sample, rounded to seconds; call it each second.
    pub fn record(&mut self, metrics: &Metrics, now: Now) {
        let span = self.end.map_or(1, |end| (now.ns_since(end) + SECOND_NS / 2) / SECOND_NS);
        self.end = Some(self.end.map_or(now, |end| Now(end.0 + span * SECOND_NS)));
        if span > 0 {
            self.append(metrics, span.min(SPAN_MAX));
        }
    }

    fn append(&mut self, metrics: &Metrics, span: u64) {
        self.seconds += span;
        for kind in SeriesKind::ALL {
            self.tables[kind as usize].record(metrics, kind, (self.seconds, span));
        }
    }

    /// The bytes of all series; names are not counted.
    pub fn bytes(&self) -> usize {
        let series: usize = SeriesKind::ALL.iter().map(|kind| self.names(*kind).count()).sum();
        let sources: usize = self.tables.iter().map(|table| table.sources.len()).sum();
        series * HistorySeries::BYTES + sources * size_of::<(Arc<str>, HistorySource)>()
    }

    /// The names of a kind that have a series, in order; last `None` for the rest, if there is one.
    pub fn names(&self, kind: SeriesKind) -> impl Iterator<Item = Option<Arc<str>>> {
        let HistoryTable { sources, rest } = &self.tables[kind as usize];
        let own = sources.iter().filter(|(_, source)| source.series.is_some());
        own.map(|(name, _)| Some(name.clone())).chain(rest.iter().map(|_| None))
    }

    /// The number of the seconds or minutes so far, and their end in milliseconds since 1970, which is 0 at first.
    pub fn end_of(&self, of_minutes: bool) -> (u64, u64) {
        let end_ms = self.end.map_or(0, |end| end.to_unix_ns() / 1_000_000);
        match of_minutes {
            false => (self.seconds, end_ms),
            true => (self.seconds / MINUTE, end_ms.saturating_sub(self.seconds % MINUTE * 1_000)),
        }
    }

    /// Appends one series as a JSON object, with the values before the second or minute `end`. All values of a name
    /// without a series are null.
    pub fn write_row(
        &self,
        out: &mut Vec<u8>,
        (kind, name): (SeriesKind, Option<&str>),
        (of_minutes, end): (bool, u64),
    ) {
        let absent = HistorySeries::default();
        let series = self.tables[kind as usize].find_series(name).unwrap_or(&absent);
        let ends = (end, self.end_of(of_minutes).0);
        // Writing into a vector cannot fail, nor can a list of numbers be no JSON.
        let _ = write!(out, "{{\"{}\":", kind.name().trim_end_matches('s'));
        let _ = serde_json::to_writer(&mut *out, &name);
        for (column, label) in columns_of(kind).iter().enumerate() {
            let _ = write!(out, ",\"{label}\":");
            let values = series.column(column, ends, of_minutes);
            let _ = match kind == SeriesKind::Upstreams && column >= TIMES {
                false => serde_json::to_writer(&mut *out, &values.collect::<Vec<_>>()),
                true => {
                    let ms = values.map(|us| us.map(|us| f64::from(us) / 1_000.0));
                    serde_json::to_writer(&mut *out, &ms.collect::<Vec<_>>())
                }
            };
        }
        out.push(b'}');
    }

    /// The history so far as a [`SavedHistory`] in JSON, for another process.
    pub fn save(&self) -> Vec<u8> {
        let names = SeriesKind::ALL.into_iter().zip(&self.tables).flat_map(|(kind, table)| {
            let own = table.sources.iter().map(|(name, source)| (Some(&**name), &source.series));
            let all = own.chain([(None, &table.rest)]);
            all.filter_map(move |(name, series)| Some((kind.name(), name, &series.as_ref()?.rows)))
        });
        // Only maps with odd keys fail to serialize, and there are none.
        let saved = (self.seconds, self.end_of(false).1, names.collect::<Vec<_>>());
        serde_json::to_vec(&saved).unwrap_or_default()
    }

    /// Goes on from the history of an earlier process; the time between the two is a gap.
    pub fn restore(&mut self, (seconds, end_ms, series): SavedHistory, metrics: &Metrics, now: Now) {
        // Far from the end of numbers, whatever another release wrote.
        (self.seconds, self.end) = (seconds.min(u64::MAX / 4), None);
        for (kind, name, rows) in series {
            let Some(kind) = SeriesKind::ALL.into_iter().find(|own| own.name() == kind) else { continue };
            let HistoryTable { sources, rest } = &mut self.tables[kind as usize];
            let own = match name {
                None => rest.as_mut(),
                Some(name) => sources.get_mut(&*name).and_then(|source| source.series.as_mut()),
            };
            if let Some(own) = own.filter(|own| own.rows.len() == rows.len()) {
                own.rows = rows;
            }
        }
        let gap_s = (now.to_unix_ns() / 1_000_000).saturating_sub(end_ms) / 1_000;
        self.append(metrics, gap_s.min(SPAN_MAX));
    }
}

impl HistoryTable {
    fn record(&mut self, metrics: &Metrics, kind: SeriesKind, (end, span): (u64, u64)) {
        let mut rest = [0; 5];
        let own = self.sources.values().filter(|source| source.series.is_some()).count();
        let mut free = SERIES_MAX.saturating_sub(own);
        for (name, counts, times) in metrics.read_series(kind).into_iter().take(SOURCES_MAX) {
            let source = self.sources.entry(name.into()).or_default();
            // A count that is smaller than before began anew.
            let since = |at| u64::checked_sub(counts[at], source.last[at]).unwrap_or(counts[at]);
            let added: [u64; 5] = std::array::from_fn(since);
            (source.last, source.seen) = (counts, end);
            source.recent += added.iter().sum::<u64>();
            if source.series.is_none() && free > 0 {
                (source.series, free) = (Some(Box::default()), free - 1);
            }
            match &mut source.series {
                Some(series) => series.append((end, span), &added, times),
                None => rest.iter_mut().zip(added).for_each(|(sum, count)| *sum += count),
            }
        }
        self.sources.retain(|_, source| source.seen == end);
        self.rest = self.rest.take().filter(|_| self.sources.len() > SERIES_MAX);
        if self.sources.len() > SERIES_MAX {
            self.rest.get_or_insert_default().append((end, span), &rest, None);
            if end / MINUTE > (end - span) / MINUTE {
                self.exchange_busiest();
            }
        }
    }

    /// Gives sources of the rest a series in place of those with less than half of their count, whose values so far
    /// become part of the rest.
    fn exchange_busiest(&mut self) {
        for _ in 0..CHANGES_MAX {
            let (own, others): (Vec<_>, Vec<_>) =
                self.sources.values_mut().partition(|source| source.series.is_some());
            let quiet = own.into_iter().min_by_key(|source| source.recent);
            let busy = others.into_iter().max_by_key(|source| source.recent);
            let Some((quiet, busy)) = quiet.zip(busy) else { break };
            if busy.recent / 2 <= quiet.recent {
                break;
            }
            busy.series = Some(Box::default());
            if let (Some(rest), Some(series)) = (&mut self.rest, quiet.series.take()) {
                rest.add_series(&series);
            }
        }
        self.sources.values_mut().for_each(|source| source.recent -= source.recent.div_ceil(8));
    }

    fn find_series(&self, name: Option<&str>) -> Option<&HistorySeries> {
        name.map_or(self.rest.as_deref(), |name| self.sources.get(name)?.series.as_deref())
    }
}

#[cfg(test)]
mod tests;
