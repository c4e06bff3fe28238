//! Plain models of settled charges: every unit by itself, with exact times.

use crate::{Decision, LimitOutcome};

/// The contract, by algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A unit per `period / max`.
    TokenBucket,
    /// Windows begin with their first unit.
    FixedWindow,
    SlidingWindow {
        buckets: u64,
    },
    SlidingLog,
}

/// The units of one key.
#[derive(Debug, Clone)]
pub(super) struct Model {
    kind: Kind,
    max: u64,
    period: u64,
    /// Windows: when each unit leaves, in order. Those beyond `max` are the debt.
    leaves: Vec<u64>,
    /// When the newest of them was to leave.
    newest: u64,
    /// Bucket: charges in order, (moment, units, id); a base of converted usage has no id.
    charges: Vec<(u64, u64, Option<usize>)>,
    /// Reservations by their ids.
    pub(super) open: Vec<Option<Reservation>>,
    epoch: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Reservation {
    /// Windows: when its units leave.
    leaves: u64,
    pub(super) units: u64,
    epoch: u64,
}

impl Model {
    pub(super) fn new(kind: Kind, max: u64, period: u64) -> Model {
        Model { kind, max, period, leaves: vec![], newest: 0, charges: vec![], open: vec![], epoch: 0 }
    }

    fn is_bucket(&self) -> bool {
        self.kind == Kind::TokenBucket
    }

    fn unit_ns(&self) -> u64 {
        self.period / self.max
    }

    /// The span for which units count: that of a debt is the same, from the moment it fits.
    fn width(&self) -> u64 {
        match self.kind {
            Kind::SlidingWindow { buckets } => self.period.div_ceil(buckets),
            _ => 1,
        }
    }

    /// When a unit leaves that is charged at `at`.
    fn leaving(&self, at: u64) -> u64 {
        match self.kind {
            Kind::FixedWindow => self.leaves.first().copied().unwrap_or(at + self.period),
            Kind::SlidingWindow { .. } => (at / self.width() + 1) * self.width() + self.period,
            _ => at + self.period,
        }
    }

    fn tat(&self) -> u64 {
        self.charges.iter().fold(0, |tat, (at, units, _)| tat.max(*at) + units * self.unit_ns())
    }

    /// Lets the units leave that are due, one by one; as each does, the debt is as new as that moment.
    fn advance(&mut self, at: u64) {
        while let Some(leaves) = self.leaves.first().copied().filter(|leaves| *leaves <= at) {
            let again = leaves + self.period.div_ceil(self.width()) * self.width();
            let counted = self.leaves.len().min(self.max as usize);
            if counted < self.leaves.len() {
                self.leaves[counted..].fill(again);
                self.newest = again;
            }
            self.leaves.remove(0);
            self.leaves.sort_unstable();
        }
    }

    fn remaining(&self, at: u64) -> u64 {
        match self.is_bucket() {
            true => {
                (self.max * self.unit_ns()).saturating_sub(self.tat().saturating_sub(at)) / self.unit_ns()
            }
            false => self.max.saturating_sub(self.leaves.len() as u64),
        }
    }

    /// Nanoseconds until `cost` units fit.
    fn wait_ns(&self, at: u64, cost: u64) -> u64 {
        if self.is_bucket() {
            return (self.tat().max(at) + cost * self.unit_ns())
                .saturating_sub(at + self.max * self.unit_ns());
        }
        let mut later = self.clone();
        let mut moment = at;
        while later.leaves.len() as u64 + cost > self.max {
            moment = later.leaves[0];
            later.advance(moment);
        }
        moment - at
    }

    pub(super) fn decide(&mut self, at: u64, cost: u64) -> Decision {
        self.advance(at);
        let (remaining, retry_after_ns) = (self.remaining(at), self.wait_ns(at, cost));
        let outcome = if retry_after_ns == 0 { LimitOutcome::Admit } else { LimitOutcome::Reject };
        let reset_ns = if remaining == 0 { self.wait_ns(at, 1) } else { 0 };
        // Not modelled.
        Decision { remaining, reset_ns, retry_after_ns, ..Decision::without_numbers(outcome) }
    }

    /// Reserves units that fit.
    pub(super) fn reserve(&mut self, at: u64, units: u64) {
        let leaves = self.leaving(at);
        match self.is_bucket() {
            true => self.charges.push((at, units, Some(self.open.len()))),
            false => self.add(leaves, units),
        }
        self.open.push(Some(Reservation { leaves, units, epoch: self.epoch }));
    }

    fn add(&mut self, leaves: u64, units: u64) {
        self.newest = if self.leaves.is_empty() { leaves } else { leaves.max(self.newest) };
        self.leaves.extend((0..units).map(|_| leaves));
        self.leaves.sort_unstable();
    }

    /// When units leave now that were to leave at `leaves`: a log keeps units that became newer in a later run.
    fn home(&self, leaves: u64) -> u64 {
        let later = self.leaves.iter().copied().find(|later| *later >= leaves);
        match self.kind {
            Kind::SlidingLog if self.newest < leaves + self.period => later.unwrap_or(leaves),
            _ => leaves,
        }
    }

    /// Settles a reservation; returns the units that are forgiven.
    pub(super) fn settle(&mut self, at: u64, id: usize, actual: u64) -> u64 {
        self.advance(at);
        let one = self.open[id].take().unwrap();
        let is_own = one.epoch == self.epoch;
        let home = self.home(one.leaves);
        let back = if self.is_bucket() || one.leaves > at { one.units.saturating_sub(actual) } else { 0 };
        for _ in 0..back {
            let own = self.leaves.iter().rposition(|leaves| *leaves == home);
            own.filter(|_| is_own).map(|index| self.leaves.remove(index));
            for charge in self.charges.iter_mut().filter(|charge| charge.2 == Some(id)) {
                charge.1 -= 1;
            }
        }
        let excess = actual.saturating_sub(one.units);
        let room = match self.is_bucket() {
            true => {
                (2 * self.max * self.unit_ns()).saturating_sub(self.tat().saturating_sub(at)) / self.unit_ns()
            }
            false => 2 * self.max - self.leaves.len() as u64,
        };
        let forced = excess.min(room);
        if forced > 0 {
            let is_known =
                self.kind != Kind::SlidingLog || self.leaves.iter().any(|later| *later >= one.leaves);
            let counts = is_own && is_known && one.leaves > at;
            let leaves = if counts { self.home(one.leaves) } else { self.leaving(at) };
            match self.is_bucket() {
                true => self.charges.push((at, forced, None)),
                false => self.add(leaves, forced),
            }
        }
        // What a charge kept is no reservation any more.
        self.charges.iter_mut().filter(|charge| charge.2 == Some(id)).for_each(|charge| charge.2 = None);
        excess - forced
    }

    /// Forgets all but open reservations; those that count later than they were charged are among the newest.
    pub(super) fn clear(&mut self, at: u64) {
        self.advance(at);
        self.charges.retain(|charge| charge.2.is_some());
        let homes: Vec<u64> = self.open.iter().flatten().map(|one| self.home(one.leaves)).collect();
        let mut all = std::mem::take(&mut self.leaves);
        let mut elsewhere = 0;
        for (one, home) in self.open.iter().flatten().zip(homes) {
            let is_own = one.epoch == self.epoch;
            for _ in (0..one.units).filter(|_| !is_own || one.leaves > at) {
                let own = all.iter().position(|leaves| *leaves == home);
                match own.filter(|_| is_own) {
                    Some(index) => self.leaves.push(all.remove(index)),
                    None => elsewhere += 1,
                }
            }
        }
        self.leaves.extend(all.into_iter().rev().take(elsewhere));
        self.leaves.sort_unstable();
    }

    pub(super) fn has_earlier_epochs(&self) -> bool {
        self.open.iter().flatten().any(|one| one.epoch != self.epoch)
    }

    /// A reload to a limit of `max` units in the same period, or for a bucket at the same rate.
    pub(super) fn change(&mut self, at: u64, max: u64) {
        self.advance(at);
        let unit_ns = self.unit_ns();
        let kept = |used: u64, one: u64| {
            let debt = used.saturating_sub(self.max * one);
            (used - debt).min(max * one) + debt.min(max * one)
        };
        if self.is_bucket() && max != self.max {
            let backlog = kept(self.tat().saturating_sub(at), unit_ns);
            // A charge of no units holds the time of what was used.
            self.charges = vec![(at + backlog, 0, None)];
            self.period = unit_ns * max;
        }
        let gone =
            self.leaves.len() - kept(self.leaves.len() as u64, 1).min(self.leaves.len() as u64) as usize;
        self.leaves.drain(..gone);
        let changes = if self.is_bucket() { max != self.max } else { gone > 0 };
        self.epoch += u64::from(changes);
        self.max = max;
    }
}
