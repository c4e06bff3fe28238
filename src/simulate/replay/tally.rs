//! The counts of a replay: by limit and by key, each key apart as long as the table of the limit would keep it apart.

use std::collections::HashMap;

use serde::Serialize;

use super::timeline::{RequestTimeline, WaitLengths};
use sluicegate_http::request::key::{KeyInput, KeyName, KeySpec};
use sluicegate_limit::LimitOutcome;
use sluicegate_model::{Config, LimitConfig, LimitId};

/// The counts of a whole replay.
#[derive(Default)]
pub struct ReplayTally {
    /// All requests, whatever their verdict.
    pub requests: u64,
    /// Requests that all limits admit, those that wait included.
    pub admitted: u64,
    /// Admitted requests that waited in a queue before.
    pub waited: u64,
    /// Requests that a limit rejected, at once or after a wait.
    pub rejected: u64,
    /// Rejected for another reason than a limit: no location, denied, malformed.
    pub faults: u64,
    /// The requests over time.
    pub timeline: RequestTimeline,
    /// The waits by their length.
    pub waits: WaitLengths,
    /// The counts by limit.
    pub limits: Vec<LimitTally>,
}

/// The counts of one limit.
pub struct LimitTally {
    /// The parts of the limit's key.
    pub spec: KeySpec,
    /// The counts of all keys together.
    pub sum: KeyTally,
    /// Indices by the id of the counter.
    index: HashMap<u128, u32>,
    /// The keys in the order of their first requests, at most `state.max_keys`.
    pub keys: Vec<(KeyName, KeyTally)>,
    keys_max: usize,
    /// Requests of keys beyond the maximum.
    pub beyond: KeyTally,
}

/// The counts of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KeyTally {
    /// Requests that the limit judged.
    pub requests: u64,
    /// Requests that it let pass and that no other limit rejected, the waiting ones included.
    pub admitted: u64,
    /// Requests that the limit made wait, and admitted.
    pub waited: u64,
    /// Requests that the limit rejected, at once or after a wait.
    pub rejected: u64,
    /// Rejected by this limit here, and not rejected by the other configuration.
    #[serde(skip)]
    pub changed: u64,
}

/// A request's part in the counts of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DemandedLimit {
    /// The limit that judged the request.
    pub limit: LimitId,
    /// The index of its key; `None` = it has none, or there are too many.
    pub key: Option<u32>,
    /// The decision of the limit, also that of a dry run.
    pub outcome: LimitOutcome,
}

impl ReplayTally {
    /// The counts for the limits of a configuration, all zero.
    pub fn new(config: &Config) -> ReplayTally {
        let tally = |limit: &LimitConfig| LimitTally {
            spec: KeySpec::new(&limit.key, limit.missing_key),
            sum: KeyTally::default(),
            index: HashMap::new(),
            keys: Vec::new(),
            keys_max: config.state.max_keys,
            beyond: KeyTally::default(),
        };
        ReplayTally { limits: config.limits.iter().map(tally).collect(), ..ReplayTally::default() }
    }

    /// Counts one request for the limits that it asked. `is_rejected`: one of them rejects it, so that the others let
    /// nothing pass.
    pub fn count_asked(&mut self, asked: &[DemandedLimit], is_rejected: bool) {
        for one in asked {
            self.limits[one.limit.0].change(one.key, |tally| {
                tally.requests += 1;
                match one.outcome {
                    LimitOutcome::Reject => tally.rejected += 1,
                    _ if is_rejected => {}
                    LimitOutcome::Wait => {
                        (tally.admitted, tally.waited) = (tally.admitted + 1, tally.waited + 1)
                    }
                    LimitOutcome::Admit => tally.admitted += 1,
                }
            });
        }
    }

    /// A request that was counted as waiting is rejected by `limit` after all.
    pub fn count_late_rejection(&mut self, asked: &[DemandedLimit], limit: Option<LimitId>, arrival_ns: u64) {
        // A request that no location serves waits as well, but is a fault and not admitted.
        (self.admitted, self.waited) = (self.admitted.saturating_sub(1), self.waited.saturating_sub(1));
        self.rejected += 1;
        let part = self.timeline.part_mut(arrival_ns);
        (part.waited, part.rejected) = (part.waited.saturating_sub(1), part.rejected + 1);
        for one in asked.iter().filter(|one| one.outcome != LimitOutcome::Reject) {
            self.limits[one.limit.0].change(one.key, |tally| {
                tally.admitted = tally.admitted.saturating_sub(1);
                if one.outcome == LimitOutcome::Wait {
                    tally.waited = tally.waited.saturating_sub(1);
                }
                tally.rejected += u64::from(limit == Some(one.limit));
            });
        }
    }
}

impl LimitTally {
    /// The index of a key, which is added if it is new; `None`: there are too many.
    pub fn key_index(&mut self, id: u128, subject: &KeyInput<'_>) -> Option<u32> {
        if let Some(index) = self.index.get(&id) {
            return Some(*index);
        }
        if self.keys.len() >= self.keys_max {
            return None;
        }
        let index = self.keys.len() as u32;
        self.index.insert(id, index);
        self.keys.push((KeyName::capture(&self.spec, subject, None), KeyTally::default()));
        Some(index)
    }

    /// Changes the counts of a key, and those of the limit.
    pub fn change(&mut self, key: Option<u32>, change: impl Fn(&mut KeyTally)) {
        change(&mut self.sum);
        match key.and_then(|key| self.keys.get_mut(key as usize)) {
            Some((_, tally)) => change(tally),
            None => change(&mut self.beyond),
        }
    }
}
