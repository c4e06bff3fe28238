//! The windows of quotas: what a key has used in them, and the steps that it has reached.

use super::counters::Meters;
use super::steps::{StepNote, WindowUsage};
use super::{ChargeRecord, Limit, Units};
use crate::algorithm::calendar_window::NotedSteps;
use crate::table::CounterKey;
use sluicegate_base::clock::Now;

// === impl Limit ===

impl Limit {
    /// True if its counters keep the names of their keys.
    #[inline]
    pub fn keeps_names(&self) -> bool {
        matches!(self.meters, Meters::CalendarWindow(_))
    }

    /// True if a counter of a key is still without its name.
    pub fn lacks_name(&self, units: &Units) -> bool {
        let Meters::CalendarWindow(meters) = &self.meters else { return false };
        self.rate_range(units.variant).any(|rate| meters[rate].lacks_name(&units.key))
    }

    /// Notes the steps that a key has reached by units that a rate has judged, and adds a note about new ones; `name`
    /// is that of the key if its counter lacks one. Returns the bits of all steps that the window has reached.
    pub fn note_steps(&self, rate: usize, units: &Units, name: Option<&str>, is_refused: bool) -> u8 {
        let Meters::CalendarWindow(meters) = &self.meters else { return 0 };
        if name.is_none() && self.config.steps.is_empty() {
            return 0;
        }
        let refused = is_refused.then_some(units.cost);
        let (reached, noted) = meters[rate].note_steps(&units.key, name, refused);
        self.push_note(rate, units.variant, noted);
        reached
    }

    /// Notes the steps that a response has reached.
    pub(crate) fn note_settled(&self, rate: usize, key: &CounterKey) {
        if let Meters::CalendarWindow(meters) = &self.meters
            && !self.config.dry_run
            && !self.config.steps.is_empty()
        {
            let variant = self.config.locate_rate(rate).map_or(0, |(variant, ..)| variant);
            self.push_note(rate, variant, meters[rate].note_steps(key, None, None).1);
        }
    }

    /// Gives the place in a pace back that a charge has taken.
    pub(crate) fn return_pace(&self, rate: usize, key: &CounterKey, charge: &ChargeRecord) {
        if let Meters::CalendarWindow(meters) = &self.meters {
            meters[rate].return_pace(key, charge);
        }
    }

    fn push_note(&self, rate: usize, variant: usize, noted: Option<NotedSteps>) {
        if let Some(NotedSteps { usage, fired, name }) = noted {
            self.step_notes.push(StepNote { rate, variant, name, usage, fired });
        }
    }

    /// The present window of a key; `None` for limits without such windows, and for a key that shares its counter.
    pub fn window_usage(&self, rate: usize, units: &Units, now: Now) -> Option<WindowUsage> {
        let Meters::CalendarWindow(meters) = &self.meters else { return None };
        meters[rate].window_usage(units, now)
    }

    /// Calls `visit` with the name and the present window of each key that used something, or with the `last` one.
    pub fn each_window(&self, rate: usize, last: bool, now: Now, visit: &mut dyn FnMut(&str, WindowUsage)) {
        if let Meters::CalendarWindow(meters) = &self.meters {
            meters[rate].each_window(last, now, visit);
        }
    }
}
