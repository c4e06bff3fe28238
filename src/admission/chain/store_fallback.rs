//! What judges a shared limit where the store does not: its `on_failure`, or this gateway's own part of it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::local_pass::Judging;
use super::passage::{Claim, Hold};
use super::pending_slots::PendingSlots;
use super::shared_charge::{Kind, Owing, SharedHold, Taken};
use super::shared_pass::{Asked, Asking, Heard};
use super::{Cause, Passage};
use crate::base::clock::Now;
use crate::config::OnFailure;
use crate::limit::{Limit, Outcome};
use crate::shared::{Said, SharedLimit};

// === impl Passage ===

impl Passage {
    /// The limits, with the local share of each rate that is judged here.
    pub(super) fn limits_without(&self, asking: &Asking, heard: &Heard<'_>) -> Arc<[Arc<Limit>]> {
        let local = |asked: &&Asked| {
            let goes_on = asking.side(asked).is_some_and(|side| side.on_failure == OnFailure::Local);
            let is_concurrency = self.limits[usize::from(asked.place)].is_concurrency();
            heard.own.contains(&asked.place) || heard.failed(asked) && goes_on && !is_concurrency
        };
        if !asking.asked.iter().any(|asked| local(&asked)) {
            return self.limits.clone();
        }
        let mut limits: Vec<Arc<Limit>> = self.limits.to_vec();
        for asked in asking.asked.iter().filter(local) {
            if let Some(side) = asking.side(asked) {
                limits[usize::from(asked.place)] = side.share();
            }
        }
        limits.into()
    }
}

// === impl Judging ===

impl Judging<'_> {
    /// Judges rates by the `on_failure` of their limit, or by this gateway's own part. What counts locally stands in
    /// `limits` already.
    pub(super) fn instead(
        &mut self,
        asked: &Asked,
        side: &Arc<SharedLimit>,
        heard: &Heard<'_>,
        hold: &mut SharedHold,
    ) {
        let place = usize::from(asked.place);
        let limits = self.limits;
        let limit = &limits[place];
        let owing = || Owing { limit: side.clone(), place: asked.place, key: asked.key, units: asked.units };
        if heard.own.contains(&asked.place) {
            hold.owe(owing());
            return self.units(place, limit, limit.within(asked.units));
        }
        if limit.is_concurrency() {
            return;
        }
        side.decided_instead();
        match side.on_failure {
            OnFailure::Allow => {}
            OnFailure::Reject => self.refuse_outright(place, 0, limit, Cause::Unavailable),
            OnFailure::Local => {
                let units = limit.within(asked.units);
                limit.rates(units.variant).for_each(|rate| side.seed(limit, rate, &units));
                hold.owe(owing());
                self.units(place, limit, units);
            }
        }
    }

    /// Judges slots by the `on_failure` of their limit: what this process holds counts, whichever way it was admitted.
    pub(super) fn slots_instead(
        &mut self,
        heard: &Heard<'_>,
        place: usize,
        hold: &mut SharedHold,
        begun: &mut PendingSlots<'_>,
    ) {
        let (asked, question) = (&heard.asked[place], &heard.questions[place]);
        let side = question.limit;
        side.decided_instead();
        let admits = side.admits_alone(question.rate, question.key, question.in_process);
        match admits {
            true => begun.was_kept(question, heard.said.get(place)),
            false => begun.failed(question, heard.said.get(place)),
        }
        if admits || question.dry_run {
            let hold = Hold::Shared(hold.push(Taken::new(asked, question, Kind::Slots(admits)), None));
            self.claims.push(Claim::new(&asked.units, usize::from(asked.place), question.rate, hold));
        } else {
            let limits = self.limits;
            let cause = cause_alone(side);
            self.refuse_outright(asked.place.into(), question.rate, &limits[usize::from(asked.place)], cause);
        }
    }
}

/// Why a request has no slots while the store does not answer.
pub(super) fn cause_alone(side: &SharedLimit) -> Cause {
    if side.on_failure == OnFailure::Reject { Cause::Unavailable } else { Cause::Concurrency }
}

// === impl Heard ===

impl Heard<'_> {
    /// Limits that the store refuses and that this gateway's own part of them admits; none if another one refuses too.
    pub(super) fn admitted_alone(&self, now: Now) -> SmallVec<[u16; 2]> {
        let mut admitted = SmallVec::new();
        for ((asked, question), said) in self.asked.iter().zip(&self.questions).zip(&self.said) {
            let Said::Answered { answer, .. } = said else { continue };
            if question.dry_run || answer.decision.outcome != Outcome::Reject {
                continue;
            }
            if question.limit.own_part(&asked.units, now).is_none() {
                return SmallVec::new();
            }
            if !admitted.contains(&asked.place) {
                admitted.push(asked.place);
            }
        }
        admitted
    }

    /// The store does not decide about the limit.
    pub(super) fn is_judged_here(&self, asked: &Asked) -> bool {
        self.own.contains(&asked.place) || self.failed(asked)
    }
}
