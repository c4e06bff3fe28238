//! `recommend --period month`: the smallest quota that nearly all keys stay within, in all windows of the calendar.
//!
//! Requests come in the order of their arrivals, so a key has one window at a time, and of those before it only the
//! largest count is kept.

use std::fmt;

use serde::Serialize;

use super::recommendation::describe_heaviest;
use super::recommended_key::RecommendedKey;
use super::{LogKeys, count_spared, list_notes, show_share};
use crate::operate::text_table::show_count;
use crate::simulate::log::LogStream;
use sluicegate_base::calendar::{Calendar, CalendarUnit, CalendarWindow};

/// The question that a recommended quota answers.
pub struct QuotaTask {
    /// The key by which the limit will count.
    pub key: RecommendedKey,
    /// The share of keys that is spared, from 0 to 1.
    pub spare: f64,
    /// The windows in which requests are counted.
    pub unit: CalendarUnit,
    /// Where they begin.
    pub calendar: Calendar,
}

/// The recommended quota for a key.
#[derive(Debug, Clone, Serialize)]
pub struct RecommendedQuota {
    /// The key, as `gateway.yaml` writes it.
    pub key: String,
    /// "99.9%"
    pub spare: String,
    /// Keys that were told apart, at most a million.
    pub keys: u64,
    /// Keys that are spared: never above the quota.
    pub spared: u64,
    /// All requests of the log, those without the key included.
    pub requests: u64,
    /// "100000/month"
    pub rate: String,
    /// The time zone of the windows.
    pub zone: String,
    /// The first request with the key, in the time zone.
    pub from: String,
    /// The last one.
    pub to: String,
    /// Windows with such requests.
    pub windows: u64,
    /// Those of them that lie between the first and the last request from their first second to their last one.
    pub whole_windows: u64,
    /// The share of the key with most requests in those of all keys, from 0 to 1.
    pub heaviest_share: f64,
    /// The quota without the five keys with most requests; `None` = there are few keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_heaviest: Option<String>,
    /// The limit as YAML.
    pub paste: String,
    /// The bounds of the result, a sentence each.
    pub notes: Vec<String>,
}

/// The requests of a key.
#[derive(Clone, Copy, Default)]
struct WindowCounts {
    /// The beginning of its latest window, and the requests in it.
    latest: (u64, u64),
    /// Those of the window with most requests.
    largest: (u64, u64),
}

impl WindowCounts {
    fn add_request(&mut self, begins: u64) {
        if self.latest.0 != begins {
            self.latest = (begins, 0);
        }
        self.latest.1 += 1;
        if self.latest.1 > self.largest.1 {
            self.largest = self.latest;
        }
    }
}

/// Recommends a quota by a log. `progress` is called now and then with the requests so far.
///
/// # Errors
/// A sentence: the log has no such key, or cannot be read to its end.
pub fn recommend_quota(
    stream: &mut LogStream,
    task: &QuotaTask,
    progress: impl FnMut(u64, &LogStream),
) -> Result<RecommendedQuota, String> {
    let mut counts: Vec<WindowCounts> = Vec::new();
    let (mut window, mut windows) = (CalendarWindow { begins: 0, ends: 0 }, 0);
    let keys = LogKeys::read(stream, &task.key, progress, |place, now_ns| {
        let now = now_ns / NS_PER_S;
        if now >= window.ends {
            window = task.calendar.window_at(task.unit, now, None);
            windows += 1;
        }
        if place == counts.len() {
            counts.push(WindowCounts::default());
        }
        counts[place].add_request(window.begins);
    })?;
    Ok(build_quota(stream, task, &keys, &counts, windows))
}

const NS_PER_S: u64 = 1_000_000_000;

fn build_quota(
    stream: &LogStream,
    task: &QuotaTask,
    keys: &LogKeys,
    counts: &[WindowCounts],
    windows: u64,
) -> RecommendedQuota {
    let (unit, zone) = (task.unit.as_str(), task.calendar.zone_name());
    let find_quota = |left_out: &[usize]| {
        let order = keys.by_need(left_out, |key| counts[key].largest.1);
        let spared = count_spared(order.len(), task.spare);
        (spared, order[spared - 1])
    };
    let (spared, (quota, key)) = find_quota(&[]);
    let left_out = keys.heaviest();
    let without = (!left_out.is_empty()).then(|| find_quota(&left_out));
    let first = keys.spans.iter().map(|span| span.first_ns).min().unwrap_or(0) / NS_PER_S;
    let last = keys.spans.iter().map(|span| span.last_ns).max().unwrap_or(0) / NS_PER_S;
    let [from, to] = [first, last].map(|at| task.calendar.show_moment(at).1);
    let [begin, end] = [first, last].map(|at| task.calendar.window_at(task.unit, at, None));
    let is_cut = [begin.begins < first, last + 1 < end.ends];
    let whole_windows = windows.saturating_sub(is_cut.iter().filter(|cut| **cut).count() as u64);
    let largest = counts[key].largest.0;
    let mut notes = list_notes(stream, keys);
    if whole_windows == 0 {
        notes.push(format!("the log covers no whole {unit}: a whole one may need a larger quota"));
    } else if is_cut[0] && largest == begin.begins || is_cut[1] && largest == end.begins {
        notes.push(format!(
            "the quota is the count of a {unit} that the log covers in part: it may be too small"
        ));
    }
    let of_zone = if zone == "UTC" { String::new() } else { format!("\n    zone: {zone}") };
    RecommendedQuota {
        key: task.key.to_string(),
        spare: show_share(task.spare),
        keys: keys.spans.len() as u64,
        spared: spared as u64,
        requests: keys.requests,
        rate: format!("{quota}/{unit}"),
        zone: zone.to_owned(),
        from,
        to,
        windows,
        whole_windows,
        heaviest_share: keys.heaviest_share(),
        without_heaviest: without.map(|(_, (quota, _))| format!("{quota}/{unit}")),
        paste: task.key.write_limit(&format!("rate: {quota}/{unit}{of_zone}")),
        notes,
    }
}

impl fmt::Display for RecommendedQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecommendedQuota { key, spare, keys, spared, requests, rate, zone, from, to, .. } = self;
        let counts = [*requests, *keys, *spared, self.windows, self.whole_windows];
        let [requests, keys, spared, windows, whole] = counts.map(show_count);
        writeln!(f, "requests  {requests}, by {keys} keys ({key})")?;
        writeln!(f, "time      {from} to {to}: {windows} windows, of which {whole} whole")?;
        writeln!(f, "spared    {spared} keys, at least {spare}: none of their requests is rejected")?;
        let without = self.without_heaviest.as_deref();
        writeln!(f, "heaviest  {}", describe_heaviest(self.heaviest_share, without))?;
        writeln!(f, "quota     {rate} ({zone})\n\n{}", self.paste)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}
