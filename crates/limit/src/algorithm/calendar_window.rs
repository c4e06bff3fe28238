//! fixed_window by the calendar, or with steps: N units per window, and nothing crosses a border.
//!
//! A counter keeps the latest window that it has seen: a request of an earlier one, by another clock, file or zone,
//! counts in that. The units of the window before stay until the present one ends, for responses that settle charges
//! late and for invoices.

use std::sync::Arc;
use std::task::Waker;

use super::meter::{Locked, Meter, MeterSpec};
use super::open_charges::{OpenUnits, ShardCharges};
use super::settle::{ForcedUnits, GivenBack, SettleParams};
use super::slab::Slab;
use super::window_quota::{WindowParams, WindowQuota};
use crate::steps::{KEY_NAME_MAX, StepJudgement, StepTerms, WindowUsage};
use crate::table::persistent::{PersistentEntry, take_bytes};
use crate::table::{CounterKey, OwnEntry, TableEntry, TableParams};
use crate::{ChargeMark, ChargeRecord, Decision, LimitOutcome, Units};
use sluicegate_base::calendar::{Anchor, Calendar, CalendarUnit, CalendarWindow};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_model::{LimitConfig, Rate};

pub(crate) struct CalendarParams {
    /// Its most units are those of the last step.
    quota: WindowQuota,
    steps: StepTerms,
    /// `None`: a window begins with its first request.
    borders: Option<(CalendarUnit, Arc<Calendar>)>,
}

/// The newest window of one key, and the one before. All times are in ns since 1970.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CalendarEntry {
    ends: u64,
    /// The moment at which the bucket of a step that slows is full.
    full_at: u64,
    present: CountedWindow,
    before: CountedWindow,
    /// One more than the index of its name; 0 = it has none.
    name: u32,
    /// The date of its account that its windows begin by.
    anchor: Option<Anchor>,
}

/// The counts of one window.
#[derive(Clone, Copy, Default, Debug)]
struct CountedWindow {
    /// The number of the window; 0 = there is none.
    begins: u64,
    used: u64,
    /// The part of `used` that responses under way have reserved.
    reserved: u64,
    /// The quota by which it was last judged.
    quota: u64,
    /// The steps that were reached, a bit for each.
    reached: u8,
}

/// The charges and the names of the keys of one shard.
#[derive(Default)]
pub(crate) struct CalendarShard {
    charges: ShardCharges,
    names: Slab<Box<str>>,
}

/// The steps that a key has reached, with those that are new.
pub(crate) struct NotedSteps {
    pub usage: WindowUsage,
    pub fired: u8,
    pub name: Box<str>,
}

/// A window that begins this much later shows that the clock was set back.
const CLOCK_STEP_NS: u64 = 60 * SECOND_NS;
const SECOND_NS: u64 = 1_000_000_000;

// === impl CalendarParams ===

impl CalendarParams {
    pub(crate) fn new(
        rate: Rate,
        limit: &LimitConfig,
        spec: &MeterSpec<'_, CalendarParams>,
    ) -> CalendarParams {
        let steps = StepTerms::new(rate.units.get(), limit.steps_of(&rate), 1);
        let quota = WindowQuota::new(rate, u64::MAX, spec, |before| &before.quota);
        let quota = WindowQuota { max: steps.ceiling, ..quota };
        let borders = rate.calendar.zip(limit.calendar.clone());
        CalendarParams { quota, steps, borders }
    }

    /// Units that fit when nothing is used.
    pub(crate) fn idle_capacity(&self) -> u64 {
        self.steps.remaining(0, 0, 0)
    }

    /// The window with a moment, for an account with this date.
    fn window_at(&self, at: u64, anchor: Option<Anchor>) -> (u64, u64) {
        let Some((unit, calendar)) = &self.borders else { return (at, at.saturating_add(self.quota.period)) };
        let CalendarWindow { begins, ends } = calendar.window_at(*unit, at / SECOND_NS, anchor);
        (begins.saturating_mul(SECOND_NS), ends.saturating_mul(SECOND_NS))
    }

    /// Brings a counter to the window of now.
    #[inline]
    fn advance_window(&self, entry: &mut CalendarEntry, now: Now) {
        let at = now.to_unix_ns();
        if at < entry.present.begins || entry.ends <= at {
            self.find_window(entry, at);
        }
    }

    /// Begins a new window, or gives the present one a number or an end that suits `at`, in ns since 1970.
    #[cold]
    fn find_window(&self, entry: &mut CalendarEntry, at: u64) {
        let (begins, ends) = self.window_at(at, entry.anchor);
        let ahead = CLOCK_STEP_NS.min(self.quota.period);
        if entry.present.begins < begins {
            let present = CountedWindow { begins, quota: self.steps.quota, ..CountedWindow::default() };
            *entry = CalendarEntry { ends, full_at: 0, present, before: entry.present, ..*entry };
        } else if entry.present.begins > at.saturating_add(ahead) {
            (entry.present.begins, entry.ends) = (begins, ends);
        } else {
            entry.ends = entry.ends.max(ends);
        }
    }

    /// The window before the present one of a counter that is up to date; `None` = the key used nothing in it.
    fn last_window(&self, entry: &CalendarEntry) -> Option<WindowUsage> {
        let begins = self.window_at(entry.present.begins.checked_sub(1)?, entry.anchor).0;
        (begins..entry.present.begins)
            .contains(&entry.before.begins)
            .then(|| entry.before.to_usage(entry.present.begins))
    }
}

impl TableParams<CalendarEntry> for CalendarParams {
    /// The units of a window count until the one after it ends.
    fn is_idle(&self, entry: &CalendarEntry, now: Now) -> bool {
        let at = now.to_unix_ns();
        (entry.present.used == 0 && entry.present.reached == 0 && entry.full_at <= at
            || entry.ends.saturating_add(self.quota.period) <= at)
            && (entry.before.used == 0 || entry.ends <= at)
    }

    /// A window goes on until the next border, wherever the new calendar has it; one without borders for its new
    /// length.
    fn convert_entry(
        &self,
        (entry, _): Locked<'_, Self>,
        before: &CalendarParams,
        now: Now,
        _: &mut Vec<Waker>,
    ) {
        before.advance_window(entry, now);
        entry.ends = match self.borders {
            Some(_) => 0,
            None => entry.present.begins.saturating_add(self.quota.period),
        };
        entry.present.reached = self.steps.convert_bits(&before.steps, entry.present.reached);
        self.advance_window(entry, now);
    }
}

impl WindowParams for CalendarParams {
    type Entry = CalendarEntry;
    const SHARES_COUNTERS: bool = true;

    #[inline]
    fn quota(&self) -> &WindowQuota {
        &self.quota
    }

    /// As after a reload that moves `begins`.
    #[inline]
    fn follow_anchor(&self, entry: &mut CalendarEntry, anchor: Anchor, now: Now) {
        if entry.anchor == Some(anchor) || self.borders.is_none() {
            return;
        }
        if entry.present.begins > 0 {
            self.advance_window(entry, now);
        }
        (entry.anchor, entry.ends) = (Some(anchor), 0);
    }

    #[inline]
    fn carry_debt(&self, (entry, _): Locked<'_, Self>, now: Now) {
        self.advance_window(entry, now);
    }

    #[inline]
    fn take_units(&self, (entry, _): Locked<'_, Self>, cost: u64, now: Now, _: bool) -> Option<ChargeMark> {
        let present = &mut entry.present;
        present.quota = self.steps.quota;
        let mark = match self.steps.judge(present.used, cost, entry.full_at, now.to_unix_ns()) {
            StepJudgement::Fits => ChargeMark::at_moment(present.begins),
            StepJudgement::Paced { full_at, interval } => {
                entry.full_at = full_at;
                ChargeMark::paced_at(present.begins, interval)
            }
            StepJudgement::TooSoon(_) | StepJudgement::Rejected => return None,
        };
        present.used = present.used.saturating_add(cost);
        if self.quota.settle_terms.settles {
            present.reserved = present.reserved.saturating_add(cost);
        }
        Some(mark)
    }

    #[inline]
    fn build_decision(&self, (entry, _): &Locked<'_, Self>, cost: u64, now: Now) -> Decision {
        let (used, anchor, at) = (entry.present.used, entry.anchor, now.to_unix_ns());
        let left_ns = entry.ends.saturating_sub(at);
        let full_ns = if used == 0 { 0 } else { left_ns };
        let wait_ns = |cost| self.steps.wait(used, cost, entry.full_at, at, left_ns);
        let retry = if cost > 0 { wait_ns(cost) } else { None };
        let outcome = if retry.is_some() { LimitOutcome::Reject } else { LimitOutcome::Admit };
        Decision {
            reached: entry.present.reached,
            remaining: self.steps.remaining(used, entry.full_at, at),
            reset_ns: wait_ns(1).unwrap_or(0),
            retry_after_ns: retry.unwrap_or(0),
            full_ns,
            anchor,
            ..Decision::without_numbers(outcome)
        }
    }

    /// The window before stays as it was, and so do the steps that were reached.
    fn forget_units(&self, (entry, _): Locked<'_, Self>) {
        (entry.present.used, entry.full_at) = (0, 0);
    }
}

impl SettleParams for CalendarParams {
    fn give_back(&self, (entry, _): Locked<'_, Self>, given: &GivenBack<'_>, _: Now) {
        if let Some(window) = entry.window_at(given.charge.since.at_ns()) {
            window.used = window.used.saturating_sub(given.units);
        }
    }

    fn credit_units(&self, (entry, _): Locked<'_, Self>, _: &CounterKey, units: u64, _: Now) {
        entry.present.used = entry.present.used.saturating_sub(units);
    }

    /// In the window of its reservation; all of it counts, because a border ends every debt.
    fn force_units(&self, (entry, _): Locked<'_, Self>, forced: &ForcedUnits<'_>, _: Now) -> u64 {
        let is_before = forced.own.is_some_and(|own| own.since.at_ns() == entry.before.begins)
            && entry.before.begins != entry.present.begins;
        let window = if is_before { &mut entry.before } else { &mut entry.present };
        window.used = window.used.saturating_add(forced.units);
        0
    }

    fn note_reserved(&self, (entry, _): Locked<'_, Self>, charge: &ChargeRecord, closed: u64, opened: u64) {
        if let Some(window) = entry.window_at(charge.since.at_ns()) {
            window.reserved = window.reserved.saturating_sub(closed).saturating_add(opened);
        }
    }

    fn keep_open_units(&self, (entry, _): Locked<'_, Self>, _: &CounterKey, open: &[OpenUnits], _: Now) {
        let begins = entry.present.begins;
        let counts = open.iter().filter(|open| open.at_ns.is_none_or(|at_ns| at_ns == begins));
        let kept = counts.fold(0, |sum: u64, open| sum.saturating_add(open.units));
        entry.present.used = entry.present.used.min(kept);
    }
}

// === impl Meter ===

impl Meter<CalendarParams> {
    /// True if the counter of a key is still without its name.
    pub(crate) fn lacks_name(&self, key: &CounterKey) -> bool {
        self.table.peek_entry(key, |entry, _, _| entry.name == 0)
    }

    /// Notes the steps that a key has reached, by its use or because one of them has refused `refused` units; `name` is
    /// that of a counter without one. Returns the bits of all, and the note about new ones.
    pub(crate) fn note_steps(
        &self,
        key: &CounterKey,
        name: Option<&str>,
        refused: Option<u64>,
    ) -> (u8, Option<NotedSteps>) {
        let noted = self.table.update_existing(key, false, |entry, shard, in_force| {
            let params =
                if self.params.quota.epoch == in_force.quota.epoch { &*self.params } else { in_force };
            if let Some(name) = name.filter(|_| entry.name == 0) {
                entry.name = shard.names.insert(name.into()) + 1;
            }
            let window = &mut entry.present;
            let barred = refused.map_or(0, |cost| params.steps.barred_by(window.used.saturating_add(cost)));
            let reached = window.reached | params.steps.reached_by(window.used) | barred;
            let fired = reached & !window.reached;
            let name = shard.names.get(entry.name.wrapping_sub(1)).filter(|_| fired > 0).cloned();
            // Without a name nothing can be told, so that the steps stay new.
            let noted = name.map(|name| {
                window.reached = reached;
                NotedSteps { usage: window.to_usage(entry.ends), fired, name }
            });
            (reached, noted)
        });
        noted.unwrap_or_default()
    }

    /// Gives the place in a pace back that a charge has taken.
    pub(crate) fn return_pace(&self, key: &CounterKey, charge: &ChargeRecord) {
        let interval = charge.since.interval_ns();
        if interval > 0 {
            self.table.update_existing(key, charge.overflow, |entry, _, _| {
                if entry.present.begins == charge.since.at_ns() {
                    entry.full_at = entry.full_at.saturating_sub(interval);
                }
            });
        }
    }

    /// The present window of a key; `None` if it shares its counter with others.
    pub(crate) fn window_usage(&self, units: &Units, now: Now) -> Option<WindowUsage> {
        let usage = |entry: &mut CalendarEntry, params: &CalendarParams| {
            if let Some(anchor) = units.anchor {
                WindowParams::follow_anchor(params, entry, anchor, now);
            }
            params.advance_window(entry, now);
            WindowUsage { quota: self.params.steps.quota, ..entry.present.to_usage(entry.ends) }
        };
        match self.table.update_own(&units.key, now, |entry, _, params| usage(entry, params)) {
            OwnEntry::Updated(found) => Some(found),
            OwnEntry::Absent => Some(usage(&mut CalendarEntry::default(), &self.params)),
            OwnEntry::Overflow => None,
        }
    }

    /// Calls `visit` with the name and the present window of each key that used something, or with the `last` one.
    pub(crate) fn each_window(&self, last: bool, now: Now, visit: &mut dyn FnMut(&str, WindowUsage)) {
        self.table.for_each_entry(|entry, shard, params| {
            let mut entry = *entry;
            params.advance_window(&mut entry, now);
            let usage = match last {
                true => params.last_window(&entry),
                false => Some(entry.present.to_usage(entry.ends)),
            };
            if let (Some(usage), Some(name)) = (usage, shard.names.get(entry.name.wrapping_sub(1)))
                && (usage.used > 0 || usage.reached > 0)
            {
                visit(name, usage);
            }
        });
    }
}

// === impl CountedWindow ===

impl CountedWindow {
    fn to_usage(self, ends: u64) -> WindowUsage {
        let CountedWindow { begins, used, reserved, quota, reached } = self;
        let (begins, ends) = (begins / SECOND_NS, ends / SECOND_NS);
        WindowUsage { quota, used, reserved: reserved.min(used), begins, ends, reached }
    }
}

// === impl CalendarEntry ===

impl CalendarEntry {
    /// The window with this beginning; `None` = it is neither the newest nor the one before.
    fn window_at(&mut self, begins: u64) -> Option<&mut CountedWindow> {
        [&mut self.present, &mut self.before].into_iter().find(|window| window.begins == begins)
    }
}

impl TableEntry for CalendarEntry {
    type Extra = CalendarShard;

    #[inline]
    fn is_idle(&self, _: Now) -> bool {
        self.present.used == 0 && self.present.reached == 0 && self.before.used == 0
    }

    /// The name of an overflow counter is of another shard.
    fn inherit_overflow(&self) -> Option<CalendarEntry> {
        Some(CalendarEntry { name: 0, ..*self })
    }

    fn release_extra(self, shard: &mut CalendarShard) {
        if let Some(index) = self.name.checked_sub(1) {
            shard.names.remove(index);
        }
    }
}

impl PersistentEntry for CalendarEntry {
    /// Nothing is reserved after a restart.
    fn encode_entry(&self, shard: &CalendarShard, out: &mut Vec<u8>) {
        let CalendarEntry { ends, full_at, present, before, name, anchor } = self;
        for window in [present, before] {
            let numbers = [window.begins, window.used, window.quota];
            numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
            out.push(window.reached);
        }
        [ends, full_at].iter().for_each(|number| out.extend(number.to_le_bytes()));
        let name = shard.names.get(name.wrapping_sub(1)).map_or("", |name| name);
        out.extend(Anchor::to_bits(*anchor).to_le_bytes());
        out.extend((name.len() as u16).to_le_bytes());
        out.extend(name.as_bytes());
    }

    fn decode_entry(bytes: &mut &[u8], _: ClockShift, shard: &mut CalendarShard) -> Option<CalendarEntry> {
        let mut window = || {
            let mut number = || Some(u64::from_le_bytes(take_bytes(bytes)?));
            let (begins, used, quota) = (number()?, number()?, number()?);
            let [reached] = take_bytes(bytes)?;
            Some(CountedWindow { begins, used, reserved: 0, quota, reached })
        };
        // In any order, because a window gets another number when the clock is set back.
        let (present, before) = (window()?, window()?);
        let mut number = || Some(u64::from_le_bytes(take_bytes(bytes)?));
        let (ends, full_at) = (number()?, number()?);
        let anchor = Anchor::from_bits(u16::from_le_bytes(take_bytes(bytes)?));
        let length = usize::from(u16::from_le_bytes(take_bytes(bytes)?));
        let (text, rest) = bytes.split_at_checked(length).filter(|_| length <= KEY_NAME_MAX)?;
        let text = str::from_utf8(text).ok()?;
        *bytes = rest;
        let name = if text.is_empty() { 0 } else { shard.names.insert(text.into()) + 1 };
        Some(CalendarEntry { ends, full_at, present, before, name, anchor })
    }
}

// === impl CalendarShard ===

impl AsMut<ShardCharges> for CalendarShard {
    fn as_mut(&mut self) -> &mut ShardCharges {
        &mut self.charges
    }
}
