//! The traffic of now and of the last minute, from samples of the counters: one each second, at most 60.

mod sample;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::history::TrafficHistory;
use sample::TrafficSample;
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_config::describe::describe_class;
use sluicegate_model::LimitId;
use sluicegate_observe::metrics::cells::{BucketCounts, estimate_quantile};
use sluicegate_observe::metrics::{DecisionCounts, OWN_CAUSES, VERDICT_NAMES};
use sluicegate_proxy::gateway::Gateway;

/// Time between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
const SAMPLES_MAX: usize = 60;
/// The rate of now is that of at least this span.
const RECENT_NS: u64 = 1_000_000_000;
/// The newest samples, of which one is old enough for the rates of now.
const RECENT_SAMPLES: usize = 4;

/// The last samples of the counters, and the history of the last day.
pub struct TrafficSampler {
    samples: RefCell<VecDeque<TrafficSample>>,
    /// The values of the last ten minutes and of the last day.
    pub history: RefCell<TrafficHistory>,
}

json_object! {
    /// A count and its rates.
    #[derive(Debug, Clone, Copy, Default, PartialEq)]
    pub struct Traffic as "Traffic" {
        pub total: u64 = "Since the start.",
        pub per_s: f64 = "Per second, now.",
        pub per_s_1m: f64 = "Per second, over the last minute.",
    }
}

/// Everything that the samples tell about a gateway.
pub struct TrafficLook {
    /// The span of the rates of now.
    pub over_seconds: f64,
    /// One for each name of a limit, in file order.
    pub limits: Vec<LimitTraffic>,
    /// Finished requests by verdict, as [`VERDICT_NAMES`] names them.
    pub verdicts: [Traffic; VERDICT_NAMES.len()],
    /// Requests rejected because of a ban.
    pub ban_rejections: Traffic,
    /// The waits in all queues, of the last minute.
    pub waits: Option<Quantiles>,
    /// The response times of each upstream, of the last minute, by their index.
    pub upstream_times: Vec<Option<Quantiles>>,
    /// The responses of each upstream per second, by status class.
    pub upstream_responses: Vec<[f64; 5]>,
    /// The answers of each location.
    pub locations: Vec<LocationTraffic>,
}

/// The answers of the locations of one name, per second now.
pub struct LocationTraffic {
    /// The name, or `none` for requests without a location.
    pub location: Arc<str>,
    /// Responses of servers, by status class.
    pub responses: [f64; 5],
    /// Answers in place of a server's, by [`OWN_CAUSES`].
    pub own: [f64; OWN_CAUSES.len()],
}

/// The decisions of the limits of one name.
pub struct LimitTraffic {
    /// The first one of the name.
    pub limit: LimitId,
    /// Requests that were admitted at once.
    pub admitted: Traffic,
    /// Requests that were made to wait in a queue.
    pub waited: Traffic,
    /// Rejected requests, also if they got another response instead.
    pub rejected: Traffic,
    /// Requests that a dry run would have rejected.
    pub dry_run_rejected: Traffic,
    /// The decisions on each class of its shares; empty without shares.
    pub classes: Vec<ClassTraffic>,
}

json_object! {
    /// The decisions of a limit on one class of its shares.
    pub struct ClassTraffic as "ClassTraffic" {
        pub class: String = "Its name.",
        pub share: String = "Its share in words.",
        pub admitted: Traffic = "Requests that were admitted at once.",
        pub waited: Traffic = "Requests that were made to wait in a queue.",
        pub rejected: Traffic = "Rejected requests, also if they got another response instead.",
    }
}

json_object! {
    /// Estimates from a histogram.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Quantiles as "Quantiles" {
        pub p50_ms: f64 = "The median, in milliseconds.",
        pub p99_ms: f64 = "99 of 100 are not longer.",
    }
}

impl TrafficSampler {
    /// Begins with `gateway`, which has judged nothing so far.
    pub fn new(gateway: &Gateway, now: Now) -> TrafficSampler {
        let samples = VecDeque::from([TrafficSample::take(gateway, now, None)]);
        let history = RefCell::new(TrafficHistory::new(&gateway.metrics));
        TrafficSampler { samples: RefCell::new(samples), history }
    }

    /// Takes the next sample; call it each second.
    pub fn take_sample(&self, gateway: &Gateway, now: Now) {
        self.history.borrow_mut().record(&gateway.metrics, now);
        let mut samples = self.samples.borrow_mut();
        let sample = TrafficSample::take(gateway, now, samples.back());
        if samples.len() >= SAMPLES_MAX {
            samples.pop_front();
        }
        if let Some(older) = samples.len().checked_sub(RECENT_SAMPLES) {
            (samples[older].responses, samples[older].locations) = Default::default();
        }
        samples.push_back(sample);
    }

    /// Compares the counters of `gateway`, the one in force, with the samples.
    pub fn look_at(&self, gateway: &Gateway, now: Now) -> TrafficLook {
        let samples = self.samples.borrow();
        let seen = TrafficSample::take(gateway, now, samples.back());
        let is_apart = |sample: &&TrafficSample| now.ns_since(sample.at) >= RECENT_NS;
        let recent = samples.iter().rev().find(is_apart).or(samples.front()).unwrap_or(&seen);
        let minute = samples.front().unwrap_or(&seen);
        let spans = Spans { recent: seconds_since(now, recent), minute: seconds_since(now, minute) };
        let recent_counts = recent.limits.counts_before(&seen.limits);
        let minute_counts = minute.limits.counts_before(&seen.limits);
        let (recent_classes, minute_classes) =
            (recent.classes.counts_before(&seen.classes), minute.classes.counts_before(&seen.classes));
        let mut of_classes = seen.classes.counts.iter().enumerate();
        let limits =
            seen.limit_ids.iter().zip(&seen.limits.counts).enumerate().map(|(at, (limit, counts))| {
                let (recent, minute) = (recent_counts(at), minute_counts(at));
                let traffic =
                    |of: fn(&DecisionCounts) -> u64| spans.traffic(of(counts), of(&recent), of(&minute));
                let config = &gateway.limits[limit.0].config;
                let classes = config
                    .shares
                    .iter()
                    .flat_map(|shares| shares.classes.iter().map(move |class| (class, shares.lend)));
                let classes = classes.zip(of_classes.by_ref()).map(|((class, lend), (at, counts))| {
                    let (recent, minute) = (recent_classes(at), minute_classes(at));
                    let traffic =
                        |of: fn(&DecisionCounts) -> u64| spans.traffic(of(counts), of(&recent), of(&minute));
                    ClassTraffic {
                        class: class.name.clone(),
                        share: describe_class(config, class, lend),
                        admitted: traffic(|counts| counts.admitted),
                        waited: traffic(|counts| counts.waited),
                        rejected: traffic(|counts| counts.rejected),
                    }
                });
                LimitTraffic {
                    limit: *limit,
                    admitted: traffic(|counts| counts.admitted),
                    waited: traffic(|counts| counts.waited),
                    rejected: traffic(|counts| counts.rejected),
                    dry_run_rejected: traffic(|counts| counts.dry_run_rejected),
                    classes: classes.collect(),
                }
            });
        let times_before = minute.upstream_times.counts_before(&seen.upstream_times);
        let times = (0..gateway.upstreams.len())
            .map(|at| quantiles_since(seen.upstream_times.counts.get(at)?, &times_before(at)));
        let responses_before = recent.responses.counts_before(&seen.responses);
        let responses = seen.responses.counts.iter().enumerate();
        let responses = responses.map(|(at, counts)| spans.rates(counts, &responses_before(at)));
        let locations_before = recent.locations.counts_before(&seen.locations);
        let locations = seen.locations.names.iter().zip(&seen.locations.counts).enumerate();
        let locations = locations.map(|(at, (name, counts))| LocationTraffic {
            location: name.clone(),
            responses: spans.rates(&counts.responses, &locations_before(at).responses),
            own: spans.rates(&counts.own, &locations_before(at).own),
        });
        TrafficLook {
            over_seconds: (now.ns_since(recent.at) / 1_000_000) as f64 / 1_000.0,
            limits: limits.collect(),
            verdicts: std::array::from_fn(|kind| {
                spans.traffic(seen.verdicts[kind], recent.verdicts[kind], minute.verdicts[kind])
            }),
            ban_rejections: spans.traffic(seen.ban_rejections, recent.ban_rejections, minute.ban_rejections),
            waits: quantiles_since(&seen.waits, &minute.waits),
            upstream_times: times.collect(),
            upstream_responses: responses.collect(),
            locations: locations.collect(),
        }
    }
}

impl TrafficLook {
    /// Rejections of all limits and bans, per second now.
    pub fn rejections_per_second(&self) -> f64 {
        let limits = self.limits.iter().map(|limit| limit.rejected.per_s).sum::<f64>();
        round_rate(limits + self.ban_rejections.per_s)
    }
}

/// The seconds that rates are of.
struct Spans {
    recent: f64,
    minute: f64,
}

impl Spans {
    fn traffic(&self, total: u64, recent: u64, minute: u64) -> Traffic {
        let per_s = rate(total, recent, self.recent);
        Traffic { total, per_s, per_s_1m: rate(total, minute, self.minute) }
    }

    fn rates(&self, counts: &[u64; 5], before: &[u64; 5]) -> [f64; 5] {
        std::array::from_fn(|at| rate(counts[at], before[at], self.recent))
    }
}

/// Seconds, at least one, so that the first moments do not look busier than they are.
fn seconds_since(now: Now, sample: &TrafficSample) -> f64 {
    now.ns_since(sample.at).max(RECENT_NS) as f64 / 1e9
}

/// A count that is smaller than before belongs to something that was removed and came back.
fn rate(total: u64, before: u64, seconds: f64) -> f64 {
    round_rate(total.saturating_sub(before) as f64 / seconds)
}

/// Three decimals are enough for people and programs.
fn round_rate(rate: f64) -> f64 {
    (rate * 1000.0).round() / 1000.0
}

/// The quantiles of the values observed since `before`.
fn quantiles_since(now: &BucketCounts, before: &BucketCounts) -> Option<Quantiles> {
    let counts = std::array::from_fn(|bucket| now[bucket].saturating_sub(before[bucket]));
    let ms = |share| estimate_quantile(&counts, share).map(|ns| (ns / 1_000) as f64 / 1_000.0);
    Some(Quantiles { p50_ms: ms(0.5)?, p99_ms: ms(0.99)? })
}

/// The names of something, shared by the samples that have the same.
type Names = Arc<[Arc<str>]>;

/// The keys and the waiting requests of the limits of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitSize {
    /// Keys with counters; `None` = only the store knows them.
    pub keys: Option<usize>,
    /// Requests in the queues.
    pub waiting: usize,
}

/// Finds the size of all limits with the name of one; reads counts that are kept anyway, without a lock.
pub fn read_sizes(gateway: &Gateway) -> impl Fn(LimitId) -> LimitSize {
    let mut by_name: HashMap<&str, LimitSize> = HashMap::with_capacity(gateway.limits.len());
    for limit in &gateway.limits {
        let (keys, waiting) = (gateway.count_keys(limit.id), gateway.count_waiting(limit.id));
        let size = by_name.entry(&limit.name).or_insert(LimitSize { keys: Some(0), waiting: 0 });
        size.keys = size.keys.zip(keys).map(|(sum, keys)| sum + keys);
        size.waiting += waiting;
    }
    move |limit| {
        let found = by_name.get(&*gateway.limits[limit.0].name).copied();
        found.unwrap_or(LimitSize { keys: None, waiting: 0 })
    }
}

#[cfg(test)]
mod tests;
