//! `recommend`: for each rate the smallest burst that would have rejected no request of nearly all keys.
//!
//! One pass over the log. Each key has a virtual queue for each rate ([`sluicegate_limit::algorithm::burst_need`]), in
//! the arithmetic of token buckets; its largest level is the burst that the key needs. A share of the keys is spared:
//! those that need least. Memory grows with keys, not with requests. [`quota`] counts in windows of the calendar.

pub mod quota;
pub mod recommendation;
pub mod recommended_key;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::simulate::log::LogStream;
use recommendation::{CurvePoint, HEAVIEST_KEYS, HeavyClient, Recommendation};
use recommended_key::RecommendedKey;
use sluicegate_limit::algorithm::burst_need::{BurstNeed, NeedRate};
use sluicegate_model::Rate;

/// Keys that are told apart; requests of further ones are counted, and told.
const KEYS_MAX: usize = 1_000_000;
/// Requests between two calls of the progress function.
const PROGRESS_EVERY: u64 = 1 << 12;
/// The units per period of the rates that are tried.
const UNITS: [u64; 16] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000];
/// Points of a curve, at least.
const POINTS_MIN: usize = 5;

/// The question that a recommendation answers.
pub struct RecommendTask {
    /// The key by which the limit will count.
    pub key: RecommendedKey,
    /// The share of keys that is spared, from 0 to 1.
    pub spare: f64,
    /// The periods of the rates, as written and as time.
    pub periods: Vec<(String, Duration)>,
}

/// A rate, as the file writes it.
struct TriedRate {
    text: String,
    need: NeedRate,
    /// Units per nanosecond.
    per_ns: f64,
    units: u64,
    period: usize,
}

/// The keys of a log, each with its place.
#[derive(Default)]
struct LogKeys {
    index: HashMap<Box<[u8]>, u32>,
    /// The requests of each key, and the moments of the first and the last one.
    spans: Vec<KeySpan>,
    requests: u64,
    beyond: u64,
    without_key: u64,
}

struct KeyNeeds {
    keys: LogKeys,
    /// The virtual queues of each key by all rates.
    needs: Vec<BurstNeed>,
}

#[derive(Debug, Clone, Copy)]
struct KeySpan {
    requests: u64,
    first_ns: u64,
    last_ns: u64,
}

/// Recommends a limit by a log. `progress` is called now and then with the requests so far.
///
/// # Errors
/// A sentence: the log has no such key, or cannot be read to its end.
pub fn recommend_limit(
    stream: &mut LogStream,
    task: &RecommendTask,
    progress: impl FnMut(u64, &LogStream),
) -> Result<Recommendation, String> {
    let rates = list_rates(&task.periods);
    let mut needs = Vec::new();
    let keys = LogKeys::read(stream, &task.key, progress, |place, now_ns| {
        let start = place * rates.len();
        if start == needs.len() {
            needs.resize(start + rates.len(), BurstNeed::default());
        }
        for (need, rate) in needs[start..].iter_mut().zip(&rates) {
            need.add_unit(&rate.need, now_ns);
        }
    })?;
    Ok(build_recommendation(stream, task, &rates, &KeyNeeds { keys, needs }))
}

/// All rates that are tried, by period and then by their units.
fn list_rates(periods: &[(String, Duration)]) -> Vec<TriedRate> {
    let of_period = |(index, (text, period)): (usize, &(String, Duration))| {
        let text =
            text.strip_prefix('1').filter(|unit| unit.starts_with(char::is_alphabetic)).unwrap_or(text);
        UNITS.map(|units| {
            // Cannot be zero: none of them is.
            let rate = Rate::new(NonZeroU64::new(units).unwrap_or(NonZeroU64::MIN), *period);
            TriedRate {
                text: format!("{units}/{text}"),
                need: NeedRate::new(rate),
                per_ns: units as f64 / period.as_nanos().max(1) as f64,
                units,
                period: index,
            }
        })
    };
    periods.iter().enumerate().flat_map(of_period).collect()
}

impl LogKeys {
    /// Reads a log to its end. `count` gets the place of the key of each request, and its arrival; a new key has the
    /// place after the last one.
    fn read(
        stream: &mut LogStream,
        key: &RecommendedKey,
        mut progress: impl FnMut(u64, &LogStream),
        mut count: impl FnMut(usize, u64),
    ) -> Result<LogKeys, String> {
        key.check_fields(&stream.fields)?;
        let (mut keys, mut name) = (LogKeys::default(), Vec::new());
        while let Some(request) = stream.next_request()? {
            name.clear();
            keys.requests += 1;
            if !key.write_name(request.record, request.names, &mut name) {
                keys.without_key += 1;
            } else if let Some(place) = keys.add_request(&name, request.arrival_ns) {
                count(place, request.arrival_ns);
            }
            if keys.requests.is_multiple_of(PROGRESS_EVERY) {
                progress(keys.requests, stream);
            }
        }
        match keys.spans.is_empty() {
            true => Err(format!("no request of the log has the key {key}")),
            false => Ok(keys),
        }
    }

    /// The place of the key; `None` = it is one too many.
    fn add_request(&mut self, name: &[u8], now_ns: u64) -> Option<usize> {
        let place = match self.index.get(name) {
            Some(place) => *place as usize,
            None if self.spans.len() >= KEYS_MAX => {
                self.beyond += 1;
                return None;
            }
            None => {
                let place = self.spans.len();
                self.index.insert(name.into(), place as u32);
                self.spans.push(KeySpan { requests: 0, first_ns: now_ns, last_ns: now_ns });
                place
            }
        };
        let span = &mut self.spans[place];
        (span.requests, span.last_ns) = (span.requests + 1, now_ns);
        Some(place)
    }

    /// The keys by what they need, those that need least first.
    fn by_need(&self, left_out: &[usize], need: impl Fn(usize) -> u64) -> Vec<(u64, usize)> {
        let counted = (0..self.spans.len()).filter(|key| !left_out.contains(key));
        let mut all: Vec<_> = counted.map(|key| (need(key), key)).collect();
        all.sort_unstable();
        all
    }

    /// The share of the key with most requests in those of all keys.
    fn heaviest_share(&self) -> f64 {
        let most = self.spans.iter().map(|span| span.requests).max().unwrap_or(0);
        most as f64 / (self.requests - self.without_key).max(1) as f64
    }

    /// The places of the keys with most requests; empty where they are a large part of all keys.
    fn heaviest(&self) -> Vec<usize> {
        if self.spans.len() < HEAVIEST_KEYS * 10 {
            return Vec::new();
        }
        let mut all: Vec<usize> = (0..self.spans.len()).collect();
        all.sort_by_key(|key| std::cmp::Reverse(self.spans[*key].requests));
        all.truncate(HEAVIEST_KEYS);
        all
    }
}

impl KeyNeeds {
    /// The keys by the burst that they need at a rate, those that need least first.
    fn by_need(&self, rates: &[TriedRate], rate: usize, left_out: &[usize]) -> Vec<(u64, usize)> {
        let need = |key: usize| self.needs[key * rates.len() + rate].burst(&rates[rate].need);
        self.keys.by_need(left_out, need)
    }
}

/// The number of keys that are spared: at least the share.
fn count_spared(keys: usize, spare: f64) -> usize {
    // A share such as 99.9 % has no exact binary form, so a whole number may come out a little too large.
    let exact = keys as f64 * spare;
    let nearest = exact.round();
    let spared = if (exact - nearest).abs() < 1e-6 { nearest } else { exact.ceil() };
    (spared as usize).clamp(1, keys)
}

/// The share as text, without the digits that only the binary form has.
fn show_share(spare: f64) -> String {
    format!("{}%", (spare * 1e6).round() / 1e4)
}

fn build_recommendation(
    stream: &LogStream,
    task: &RecommendTask,
    rates: &[TriedRate],
    needs: &KeyNeeds,
) -> Recommendation {
    let keys = &needs.keys;
    let spared = count_spared(keys.spans.len(), task.spare);
    let suggest = |left_out: &[usize]| {
        let spared = count_spared(keys.spans.len() - left_out.len(), task.spare);
        let burst = |rate| needs.by_need(rates, rate, left_out)[spared - 1].0;
        let bursts: Vec<u64> = (0..rates.len()).map(burst).collect();
        let shown = choose_rates(rates, &bursts, task.periods.len());
        let suggested = suggest_rate(rates, &bursts, &shown);
        (bursts, shown, suggested)
    };
    let (bursts, shown, suggested) = suggest(&[]);
    let order = needs.by_need(rates, suggested, &[]);
    let heaviest = order[..spared].iter().map(|(_, key)| keys.spans[*key]).max_by_key(|span| span.requests);
    let heavy = heaviest.map(|span| {
        let sends = span.requests.saturating_mul(10);
        let lasts_ns = span.last_ns.saturating_sub(span.first_ns);
        let most = bursts[suggested] + (rates[suggested].per_ns * lasts_ns as f64) as u64;
        HeavyClient { sends, passes: sends.min(most), seconds: lasts_ns as f64 / 1e9 }
    });
    let point = |rate: usize, bursts: &[u64]| CurvePoint {
        rate: rates[rate].text.clone(),
        burst: bursts[rate],
        per_s: rates[rate].per_ns * 1e9,
    };
    let mut notes = list_notes(stream, keys);
    if stream.fields.whole_seconds {
        let note = "the log tells seconds only: requests are spread evenly inside each, so real bursts may be larger";
        notes.insert(0, note.to_owned());
    }
    let left_out = keys.heaviest();
    let lighter = (!left_out.is_empty()).then(|| suggest(&left_out));
    Recommendation {
        key: task.key.to_string(),
        spare: show_share(task.spare),
        keys: keys.spans.len() as u64,
        spared: spared as u64,
        requests: keys.requests,
        curve: shown.into_iter().map(|rate| point(rate, &bursts)).collect(),
        heaviest_share: keys.heaviest_share(),
        without_heaviest: lighter.map(|(bursts, _, suggested)| point(suggested, &bursts)),
        suggested: point(suggested, &bursts),
        ten_times: heavy,
        paste: task
            .key
            .write_limit(&format!("rate: {}\n    burst: {}", rates[suggested].text, bursts[suggested])),
        notes,
    }
}

/// The rates around the data, of each period: from where the burst no longer depends on the rate much to where it is
/// smallest; at least five.
fn choose_rates(rates: &[TriedRate], bursts: &[u64], periods: usize) -> Vec<usize> {
    let mut shown = Vec::new();
    for period in 0..periods {
        let of_period: Vec<usize> = (0..rates.len()).filter(|rate| rates[*rate].period == period).collect();
        let smallest = of_period.iter().map(|rate| bursts[*rate]).min().unwrap_or(1);
        let largest = bursts[of_period[0]];
        let last = of_period.iter().position(|rate| bursts[*rate] == smallest).unwrap_or(0);
        let first = of_period.iter().rposition(|rate| bursts[*rate] * 10 >= largest * 9).unwrap_or(0);
        let first = first.min(last).min((last + 1).saturating_sub(POINTS_MIN));
        let last = last.max(first + POINTS_MIN - 1).min(of_period.len() - 1);
        shown.extend_from_slice(&of_period[first..=last]);
    }
    shown
}

/// The rate by which a client could send least in a minute: its burst and the units of a minute. Of equals, the slower.
fn suggest_rate(rates: &[TriedRate], bursts: &[u64], shown: &[usize]) -> usize {
    const MINUTE_NS: f64 = 60e9;
    let in_a_minute = |rate: usize| bursts[rate] as f64 + rates[rate].per_ns * MINUTE_NS;
    let better = |one: &usize, other: &usize| {
        in_a_minute(*one)
            .total_cmp(&in_a_minute(*other))
            .then(rates[*one].per_ns.total_cmp(&rates[*other].per_ns))
            .then(rates[*one].units.cmp(&rates[*other].units))
    };
    shown.iter().copied().min_by(better).unwrap_or(0)
}

fn list_notes(stream: &LogStream, keys: &LogKeys) -> Vec<String> {
    let mut notes = Vec::new();
    if keys.without_key > 0 {
        notes.push(format!("{} requests lack the key", keys.without_key));
    }
    if keys.beyond > 0 {
        notes.push(format!(
            "{} requests belong to keys beyond the first {KEYS_MAX}; they are not counted",
            keys.beyond
        ));
    }
    if stream.counts.late > 0 {
        notes.push(format!("{} requests came later than the window of 100,000 lines", stream.counts.late));
    }
    notes.extend(stream.counts.describe_unreadable());
    if stream.counts.may_be_sampled {
        notes.push("if access_log.sample of the gateway is below 100%, real clients need more".to_owned());
    }
    notes
}
