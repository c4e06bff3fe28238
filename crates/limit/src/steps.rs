//! The steps of a quota in units: where each begins, and the pace of requests above one that slows.
//!
//! The pace is a token bucket of requests by virtual scheduling (ITU-T I.371): a counter keeps the moment at which the
//! bucket is full again.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;

use sluicegate_model::{QuotaStep, Rate, STEPS_MAX, StepAction};

/// The steps of one rate, in its units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepTerms {
    steps: Box<[StepTerm]>,
    /// The whole of which the steps are parts.
    pub quota: u64,
    /// The most units that a window counts.
    pub ceiling: u64,
}

/// One step of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepTerm {
    /// The fewest used units that reach it.
    pub reached_at: u64,
    /// The most units below it: those that the step lets pass if it slows or rejects.
    pub most: u64,
    /// Its place among percentages, in millionths of the quota.
    pub at: u64,
    /// `None`: it warns; a pace of 0 rejects.
    pub bars: Option<StepPace>,
}

/// The pace above a step, in ticks; all zero where nothing passes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepPace {
    /// The time that a request takes; 0 = none passes.
    pub interval: u64,
    /// The time by which requests may be ahead.
    pub ahead: u64,
}

/// The judgement of a request by the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepJudgement {
    /// It fits below all steps that slow or reject.
    Fits,
    /// It is above one that slows, and has a place in its pace.
    Paced {
        /// The moment at which its bucket is full then.
        full_at: u64,
        /// The time that the request takes.
        interval: u64,
    },
    /// It has to wait so many ticks for its pace.
    TooSoon(u64),
    /// It is above the last step.
    Rejected,
}

/// The use of one window of a key, times in seconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WindowUsage {
    /// The quota by which it was last judged.
    pub quota: u64,
    /// Units, reserved ones included.
    pub used: u64,
    /// Units that responses under way have reserved.
    pub reserved: u64,
    /// The first second.
    pub begins: u64,
    /// The first second of the next window.
    pub ends: u64,
    /// The steps that were reached, a bit for each.
    pub reached: u8,
}

/// Steps that a key reached just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepNote {
    /// The rate of the limit.
    pub rate: usize,
    /// The variant by whose numbers it was judged.
    pub variant: usize,
    /// The name of the key.
    pub name: Box<str>,
    /// Its window.
    pub usage: WindowUsage,
    /// The new steps, a bit for each.
    pub fired: u8,
}

/// The notes of a limit until they are told, and how many were told of each step, by [`QuotaStep::at`].
#[derive(Default)]
pub struct StepNotes {
    waiting: Mutex<VecDeque<StepNote>>,
    told: Mutex<BTreeMap<u64, u64>>,
}

/// Bytes of a key's name that a counter keeps.
pub const KEY_NAME_MAX: usize = 256;

/// A quota that slows for ever counts so many units; the doubles of the store hold twice as many.
const UNITS_MAX: u64 = 1 << 51;
const NOTES_MAX: usize = 10_000;

// === impl StepTerms ===

impl StepTerms {
    /// The steps of a quota of `quota` units; without any it rejects what is above. `tick_ns` is the unit of the times
    /// that judge it.
    pub fn new(quota: u64, steps: &[QuotaStep], tick_ns: u64) -> StepTerms {
        let term = |step: &QuotaStep| {
            let part = u128::from(quota) * u128::from(step.at);
            let whole = u128::from(QuotaStep::WHOLE);
            let units = |units: u128| u64::try_from(units).unwrap_or(u64::MAX).min(UNITS_MAX);
            let bars = match step.then {
                StepAction::Warn => None,
                StepAction::Slow(rate) => Some(StepPace::of_rate(rate, tick_ns)),
                StepAction::Reject => Some(StepPace::default()),
            };
            StepTerm {
                reached_at: units(part.div_ceil(whole)).max(1),
                most: units(part / whole),
                at: step.at,
                bars,
            }
        };
        let steps: Box<[StepTerm]> = steps.iter().take(STEPS_MAX).map(term).collect();
        let ceiling = match steps.last() {
            None => quota,
            Some(StepTerm { bars: Some(StepPace { interval: 0, .. }), most, .. }) => *most,
            Some(_) => UNITS_MAX,
        };
        StepTerms { steps, quota, ceiling }
    }

    /// The steps, rising; empty = the quota rejects what is above it.
    pub fn steps(&self) -> &[StepTerm] {
        &self.steps
    }

    /// The bits of the steps that so many used units have reached.
    pub fn reached_by(&self, used: u64) -> u8 {
        let reached = self.steps.iter().take_while(|step| step.reached_at <= used).count();
        ((1_u16 << reached) - 1) as u8
    }

    /// The bit of the step that slows or rejects `after` used units; 0 = none.
    pub fn barred_by(&self, after: u64) -> u8 {
        self.barrier(after).map_or(0, |index| 1 << index)
    }

    /// The last step that slows or rejects `after` used units.
    fn barrier(&self, after: u64) -> Option<usize> {
        self.steps.iter().rposition(|step| step.bars.is_some() && step.most < after)
    }

    /// Judges `cost` units beside the used ones; `full_at` is the moment at which the bucket of its pace is full, in
    /// ticks as `now`.
    #[inline]
    pub fn judge(&self, used: u64, cost: u64, full_at: u64, now: u64) -> StepJudgement {
        let after = used.saturating_add(cost);
        if after > self.ceiling {
            return StepJudgement::Rejected;
        }
        let Some(pace) = self.barrier(after).and_then(|index| self.steps[index].bars) else {
            return StepJudgement::Fits;
        };
        let StepPace { interval, ahead } = pace;
        // No request has gone as far ahead: the clock was set back, or the pace was slower.
        let is_beyond = full_at > now.saturating_add(ahead).saturating_add(interval);
        let from = if is_beyond { now.saturating_add(ahead) } else { full_at.max(now) };
        match (from - now).checked_sub(ahead).filter(|wait| *wait > 0) {
            Some(wait) => StepJudgement::TooSoon(wait),
            None => StepJudgement::Paced { full_at: from.saturating_add(interval), interval },
        }
    }

    /// The ticks until `cost` more units fit, at most until the window ends in `left`; `None` = they fit now.
    #[inline]
    pub fn wait(&self, used: u64, cost: u64, full_at: u64, now: u64, left: u64) -> Option<u64> {
        match self.judge(used, cost, full_at, now) {
            StepJudgement::Fits | StepJudgement::Paced { .. } => None,
            StepJudgement::TooSoon(wait) => Some(wait.min(left)),
            StepJudgement::Rejected => Some(left),
        }
    }

    /// The units that fit at once: those below the first step that slows or rejects, or else a single one by its pace.
    pub fn remaining(&self, used: u64, full_at: u64, now: u64) -> u64 {
        let first = self.steps.iter().find(|step| step.bars.is_some()).map_or(self.ceiling, |step| step.most);
        match first.saturating_sub(used) {
            0 => matches!(self.judge(used, 1, full_at, now), StepJudgement::Paced { .. }).into(),
            below => below,
        }
    }

    /// The same bits by the steps `before` these; a step that is new was not reached.
    pub fn convert_bits(&self, before: &StepTerms, bits: u8) -> u8 {
        let was_reached = |step: &StepTerm| {
            let known = before.steps.iter().position(|other| other.at == step.at);
            known.is_some_and(|index| bits >> index & 1 > 0)
        };
        (0_u8..).zip(&self.steps).filter(|(_, step)| was_reached(step)).map(|(index, _)| 1 << index).sum()
    }
}

// === impl StepPace ===

impl StepPace {
    fn of_rate(rate: Rate, tick_ns: u64) -> StepPace {
        let period = u64::try_from(rate.period.as_nanos()).unwrap_or(u64::MAX);
        let interval = period.div_ceil(rate.units.get()).div_ceil(tick_ns).max(1);
        StepPace { interval, ahead: interval.saturating_mul(rate.units.get() - 1) }
    }
}

// === impl StepNotes ===

impl StepNotes {
    /// Adds a note; the oldest ones go if nobody takes them.
    pub fn push(&self, note: StepNote) {
        let mut notes = self.waiting.lock();
        if notes.len() >= NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back(note);
    }

    /// Takes all notes, the oldest first.
    pub fn take(&self) -> VecDeque<StepNote> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Counts a step that is told.
    pub fn count_told(&self, at: u64) {
        *self.told.lock().entry(at).or_default() += 1;
    }

    /// How often a step was told.
    pub fn told_count(&self, at: u64) -> u64 {
        self.told.lock().get(&at).copied().unwrap_or(0)
    }
}
