//! What one process holds of one key.

use super::LeaseTerms;

/// The longest time for which an answer without units is repeated.
const TRUST_US: u64 = 1_000_000;

/// The time for which an unused key is remembered, so that refunds find it.
const FORGOTTEN_US: u64 = 10_000_000;

/// The holdings of one process for one key. Times are in microseconds of a clock that runs on while the machine sleeps;
/// amounts are in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct LeaseNode {
    /// Units taken in advance.
    pub(super) held: u64,
    /// Of `held`, spent since the newest call.
    pub(super) spent: u64,
    /// What the leased rate has brought.
    pub(super) level: u64,
    /// The leased rate, and the most that it may bring unspent.
    pub(super) rate: u64,
    pub(super) depth: u64,
    /// The moment up to which `level` is counted.
    pub(super) filled_at: u64,
    /// The end of the holdings.
    pub(super) until: u64,
    /// The number and moment of the newest call; 0 = none.
    pub(super) call: u64,
    pub(super) called_at: u64,
    pub(super) is_calling: bool,
    /// The number of the last call whose answer was applied, and the time that it took.
    pub(super) applied: u64,
    round_trip: u64,
    /// The store is not asked again until then, because it had too little.
    pub(super) quiet_until: u64,
    /// What was left in the store by its last answer, and the moment of that.
    left: u64,
    answered_at: u64,
    /// The window of its last answer, and the moment of the first call that was answered in it.
    window: u64,
    window_since: u64,
    /// The moment of that answer: units that were spent before are of an earlier window.
    window_known: u64,
    /// The moments at which that window ends, and at which units have come back, if nobody takes others (0: by rate).
    window_end: u64,
    regained_at: u64,
    /// What calls are to charge beyond the lease; and what is sent until an answer comes, with the number of the first
    /// call that did.
    owed: u64,
    owed_sent: u64,
    owed_since: u64,
    /// What the next call gives back beyond the lease, and the earliest moment of a charge among that.
    refund: u64,
    refund_since: u64,
    demand: Demand,
}

/// An average of the units that requests ask for, weighted over one term.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Demand {
    /// Thousandths of a unit per second.
    rate: u64,
    /// Units asked for since `measured_at`.
    asked: u64,
    measured_at: u64,
}

/// What a limit has left for a key, as far as one process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLeft {
    /// Units in hand.
    pub here: u64,
    /// Units that were in the store at the moment of its last answer.
    pub stored: u64,
    /// Microseconds until one more unit comes back, and until all have.
    pub next_us: u64,
    /// See `next_us`.
    pub full_us: u64,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseSpend {
    /// Its units are spent.
    Taken,
    /// They are not there, and the store need not be asked; they may be after so many microseconds.
    Refused(u64),
    /// The store is to be asked.
    Ask,
}

/// So many requests, one after the other, that wait for an answer and cost as many units each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PendingRun {
    /// Requests.
    pub count: u32,
    /// Units of each.
    pub cost: u32,
}

/// A question about one key. Amounts are in ticks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct LeaseCall {
    /// The number of the call, greater than those of all earlier calls of the process.
    pub number: u64,
    /// The number of the last call whose answer the node has applied.
    pub applied: u64,
    /// What the node holds of its lease, and what it keeps of that.
    pub held: u64,
    /// See `held`.
    pub keep: u64,
    /// What it would like to have.
    pub want: u64,
    /// Charged beyond the lease: once, however many calls have the same `owed_since`.
    pub owed: u64,
    /// See `owed`.
    pub owed_since: u64,
    /// Given back beyond the lease, and the microseconds since the earliest charge among that.
    pub refund: u64,
    /// See `refund`.
    pub refund_age: u64,
    /// Thousandths of a unit that its requests ask for per second.
    pub demand: u64,
    /// The node has no leased rate, and uses none that an answer on its way may bring.
    pub stopped: bool,
    /// The requests that wait.
    pub pending: Vec<PendingRun>,
}

/// The answer to a question. Amounts are in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct LeaseAnswer {
    /// What the node holds as of its call, units kept included.
    pub held: u64,
    /// The leased rate, per microsecond.
    pub rate: u64,
    /// The most that it may bring unspent.
    pub depth: u64,
    /// The waiting requests that are admitted, in their order.
    pub granted: u64,
    /// What is left in the store.
    pub left: u64,
    /// Microseconds until the window ends; of a bucket, until a lease does.
    pub rest: u64,
    /// The name of the window; of a bucket 0.
    pub window: u64,
    /// Microseconds until the units for the first request without a grant come back, or one unit; 0: by the rate.
    pub wait: u64,
    /// In a region: its home may have more.
    pub asks_home: bool,
    /// Another gateway asks the home now.
    pub is_home_asked: bool,
}

// === impl LeaseLeft ===

impl LeaseLeft {
    /// The units in hand and in the store.
    pub fn units(&self) -> u64 {
        self.here.saturating_add(self.stored)
    }
}

// === impl LeaseNode ===

impl LeaseNode {
    /// Spends `cost` units for a new request, if they are in hand.
    pub(crate) fn spend(&mut self, terms: &LeaseTerms, now: u64, cost: u64) -> LeaseSpend {
        self.note_demand(now, cost);
        self.spend_again(terms, now, cost)
    }

    /// Spends like [`LeaseNode::spend`]; `None`, and nothing is counted, if a call is due or the store is to be asked.
    pub(crate) fn spend_at_once(&mut self, terms: &LeaseTerms, now: u64, cost: u64) -> Option<LeaseSpend> {
        if self.is_due(terms, now) {
            return None;
        }
        let spent = self.spend_again(terms, now, cost);
        (spent != LeaseSpend::Ask).then(|| {
            self.note_demand(now, cost);
            spent
        })
    }

    fn note_demand(&mut self, now: u64, cost: u64) {
        self.demand.asked = self.demand.asked.saturating_add(cost);
        if self.demand.measured_at == 0 {
            self.demand.measured_at = now;
        }
    }

    /// Spends like [`LeaseNode::spend`], for a request that has waited.
    pub(crate) fn spend_again(&mut self, terms: &LeaseTerms, now: u64, cost: u64) -> LeaseSpend {
        self.advance(now);
        let ticks = cost.saturating_mul(terms.unit);
        if ticks <= self.held + self.level {
            let of_lease = ticks.min(self.held);
            self.held -= of_lease;
            self.spent += of_lease;
            self.level -= ticks - of_lease;
            return LeaseSpend::Taken;
        }
        let lacking = ticks - self.held - self.level;
        if self.rate > 0 && ticks <= self.depth {
            return LeaseSpend::Refused(LeaseTerms::wait_for(lacking, self.rate));
        }
        if now < self.quiet_until && !self.is_calling {
            let at = self.regained_at(terms, lacking).max(self.quiet_until);
            return LeaseSpend::Refused(at - now);
        }
        LeaseSpend::Ask
    }

    /// The moment at which the store has so many ticks, if nobody takes others.
    fn regained_at(&self, terms: &LeaseTerms, ticks: u64) -> u64 {
        let lacking = ticks.saturating_sub(self.left);
        match self.regained_at {
            0 => self.answered_at.saturating_add(LeaseTerms::wait_for(lacking, terms.rate)),
            _ if lacking == 0 => self.answered_at,
            at => at,
        }
    }

    /// The microseconds until the store has so many ticks, if nobody takes others.
    pub(crate) fn wait_for(&self, terms: &LeaseTerms, now: u64, ticks: u64) -> u64 {
        self.regained_at(terms, ticks).saturating_sub(now).max(1)
    }

    /// The ticks in hand, and those left in the store by its last answer, less those that it does not know of.
    pub(crate) fn ticks_held(&mut self, now: u64) -> (u64, u64) {
        self.advance(now);
        let owed = self.owed.saturating_add(self.owed_sent);
        (self.held + self.level, self.left.saturating_add(self.refund).saturating_sub(owed))
    }

    /// What the limit has left in hand, and had in the store at the last answer.
    pub(crate) fn find_left(&mut self, terms: &LeaseTerms, now: u64) -> LeaseLeft {
        self.left_after(terms, now, 0)
    }

    /// `regained`: ticks that the store has got since its last answer.
    fn left_after(&mut self, terms: &LeaseTerms, now: u64, regained: u64) -> LeaseLeft {
        let (here, stored) = self.ticks_held(now);
        let stored = match regained {
            0 => stored,
            _ => stored.saturating_add(regained).min(terms.depth.saturating_sub(here)),
        };
        let used = terms.depth.saturating_sub(here).saturating_sub(stored);
        let (next_us, full_us) = match terms.windows {
            None => (LeaseTerms::wait_for(terms.unit, terms.rate), LeaseTerms::wait_for(used, terms.rate)),
            Some(_) if used == 0 => (0, 0),
            Some(windows) => {
                let all_left = self.window_end.saturating_add(windows.earlier * windows.width);
                (self.regained_at.saturating_sub(now), all_left.saturating_sub(now))
            }
        };
        let next_us = if here + stored < terms.unit { next_us } else { 0 };
        LeaseLeft { here: here / terms.unit, stored: stored / terms.unit, next_us, full_us }
    }

    /// What the limit has left if nobody has taken units since the last answer.
    pub(crate) fn estimate_left(&mut self, terms: &LeaseTerms, now: u64) -> LeaseLeft {
        let regained = match terms.windows {
            None => terms.rate.saturating_mul(now.saturating_sub(self.answered_at)),
            Some(windows) if now >= self.window_end.saturating_add(windows.earlier * windows.width) => {
                terms.depth
            }
            Some(_) => 0,
        };
        self.left_after(terms, now, regained)
    }

    /// The mark of a charge at `now` from what is in hand, for [`LeaseNode::put_back`].
    pub(crate) fn mark_spent(now: u64) -> u64 {
        now << 1
    }

    /// The mark of a charge in the store by the newest call.
    pub(crate) fn mark_granted(&self) -> u64 {
        self.called_at << 1 | 1
    }

    /// Gives back units that were charged and not used. Those of the present lease return to it; others go back with
    /// the next call, less what the bucket has regained since their charge: else more than a full bucket might pass.
    /// Those of a window before have left with it.
    pub(crate) fn put_back(&mut self, terms: &LeaseTerms, mark: u64, cost: u64) {
        let (charged_at, is_granted) = (mark >> 1, mark & 1 == 1);
        let ticks = cost.saturating_mul(terms.unit);
        self.quiet_until = 0;
        if !is_granted && charged_at >= self.called_at && self.spent >= ticks {
            self.held += ticks;
            self.spent -= ticks;
            return;
        }
        if charged_at < if is_granted { self.window_since } else { self.window_known } {
            return;
        }
        self.refund_since = if self.refund == 0 { charged_at } else { self.refund_since.min(charged_at) };
        self.refund = self.refund.saturating_add(ticks).min(terms.depth);
    }

    /// Has the next call charge units beyond the lease, at most a full bucket of them.
    pub(crate) fn owe(&mut self, terms: &LeaseTerms, units: u64) {
        self.owed = self.owed.saturating_add(units.saturating_mul(terms.unit)).min(terms.depth);
    }

    /// True if a call is due, though no request waits: the units come to an end, or the leased rate is to be renewed.
    pub(crate) fn is_due(&self, terms: &LeaseTerms, now: u64) -> bool {
        let since = now.saturating_sub(self.called_at);
        let is_low = || {
            let want = self.demand.wanted(terms);
            // What is asked for in two round trips: the answer comes before the units end.
            let ahead = u128::from(want) * 2 * u128::from(self.round_trip) / u128::from(terms.term);
            let least = (ahead.min(u128::from(want) / 2) as u64).max(want / 5);
            want > 0 && self.demand.asked > 0 && self.held <= least && now >= self.quiet_until
        };
        !self.is_calling
            && match self.rate {
                0 => since >= terms.term / 2 && (is_low() || self.owes()),
                _ => since >= terms.term && self.demand.asked > 0,
            }
    }

    /// True if what it holds is to be returned: no request came for a term. To be asked about once per term.
    pub(crate) fn is_idle(&mut self, terms: &LeaseTerms, now: u64) -> bool {
        if now < self.demand.measured_at + terms.term {
            return false;
        }
        let was_asked = self.demand.asked > 0;
        self.demand.measure(terms, now);
        self.advance(now);
        !was_asked && !self.is_calling && self.holds_units()
    }

    fn owes(&self) -> bool {
        self.owed != 0 || self.owed_sent != 0 || self.refund != 0
    }

    /// True if there is something to return.
    pub(crate) fn holds_units(&self) -> bool {
        self.held > 0 || self.rate > 0 || self.owes()
    }

    /// A call that returns everything.
    pub(crate) fn begin_return(&mut self, now: u64, number: u64) -> LeaseCall {
        self.advance(now);
        (self.rate, self.depth, self.level) = (0, 0, 0);
        self.send_call((now, number), (0, 0, 0), Vec::new())
    }

    /// A call with the number `number`, for the requests that wait; what the node does not keep is no longer its own.
    /// No other call may be under way.
    pub(crate) fn begin_call(
        &mut self,
        terms: &LeaseTerms,
        (now, number): (u64, u64),
        pending: Vec<PendingRun>,
    ) -> LeaseCall {
        self.advance(now);
        self.demand.measure(terms, now);
        let want = self.demand.wanted(terms);
        if want == 0 {
            (self.rate, self.depth, self.level) = (0, 0, 0);
        }
        let demand = self.demand.rate;
        self.send_call((now, number), (self.held.min(want), want, demand), pending)
    }

    /// The call, with the choice of what to keep and to want.
    pub(super) fn send_call(
        &mut self,
        (now, number): (u64, u64),
        (keep, want, demand): (u64, u64, u64),
        pending: Vec<PendingRun>,
    ) -> LeaseCall {
        if self.owed_sent == 0 {
            (self.owed_sent, self.owed_since) = (std::mem::take(&mut self.owed), number);
        }
        (self.call, self.called_at, self.is_calling, self.spent) = (number, now, true, 0);
        LeaseCall {
            number,
            applied: self.applied,
            held: std::mem::replace(&mut self.held, keep),
            keep,
            want,
            owed: self.owed_sent,
            owed_since: self.owed_since,
            refund: std::mem::take(&mut self.refund),
            refund_age: now.saturating_sub(self.refund_since),
            demand,
            stopped: self.rate == 0,
            pending,
        }
    }

    /// Applies the answer to the call with the number `number`, unless a newer call was sent or the answer was applied
    /// before. True if it was applied.
    pub(crate) fn apply_answer(
        &mut self,
        terms: &LeaseTerms,
        (now, number): (u64, u64),
        answer: &LeaseAnswer,
    ) -> bool {
        if number != self.call || number == self.applied {
            return false;
        }
        self.advance(now);
        (self.applied, self.is_calling, self.left, self.owed_sent) = (number, false, answer.left, 0);
        (self.round_trip, self.answered_at) = (now.saturating_sub(self.called_at), now);
        self.held = answer.held.saturating_sub(self.spent);
        // What the store counts no more does not return to the lease.
        self.spent = self.spent.min(answer.held);
        (self.rate, self.depth) = (answer.rate, answer.depth);
        (self.level, self.filled_at) = (self.level.min(answer.depth), now);
        self.until = self.called_at + terms.hold.min(answer.rest);
        self.advance(now);
        self.window_end = now + answer.rest;
        self.regained_at = if answer.wait > 0 { now + answer.wait } else { 0 };
        if answer.window != self.window {
            (self.window, self.refund) = (answer.window, 0);
            (self.window_since, self.window_known) = (self.called_at, now);
        }
        self.quiet_until = match answer.left < terms.unit && self.rate == 0 && !answer.asks_home {
            true => now + self.wait_for(terms, now, terms.unit).min(TRUST_US).max(terms.term / 2),
            false => 0,
        };
        true
    }

    /// Ends what is held, because the store has forgotten it.
    pub(crate) fn forget_holdings(&mut self, terms: &LeaseTerms) {
        (self.held, self.level, self.rate, self.depth) = (0, 0, 0, 0);
        (self.until, self.quiet_until, self.owed, self.owed_sent, self.refund) = (0, 0, 0, 0, 0);
        // The answer to a call that was under way knows of what was forgotten.
        (self.applied, self.left) = (self.call, terms.depth);
    }

    /// True if nothing would be lost with the node.
    pub(crate) fn is_forgettable(&self, terms: &LeaseTerms, now: u64) -> bool {
        let is_unused = self.demand.asked == 0 && now >= self.demand.measured_at + FORGOTTEN_US;
        is_unused
            && now >= self.until
            && now >= self.called_at + terms.hold
            && !self.is_calling
            && !self.owes()
    }

    /// Brings what the leased rate brings until `now`; ends what has no time left.
    fn advance(&mut self, now: u64) {
        if now >= self.until {
            (self.held, self.level, self.rate, self.depth) = (0, 0, 0, 0);
        }
        let gained = self.rate.saturating_mul(now.saturating_sub(self.filled_at));
        self.level = self.level.saturating_add(gained).min(self.depth);
        self.filled_at = self.filled_at.max(now);
    }
}

// === impl Demand ===

impl Demand {
    fn measure(&mut self, terms: &LeaseTerms, now: u64) {
        let elapsed = now.saturating_sub(self.measured_at);
        if elapsed == 0 {
            return;
        }
        let seen = self.asked as f64 * 1e9 / elapsed as f64;
        let weight = 1.0 - (-(elapsed as f64) / terms.term as f64).exp();
        let rate = self.rate as f64 + (seen - self.rate as f64) * weight;
        // The store keeps it in 32 bits, and sums of it exactly.
        *self = Demand { rate: rate.min(1e15) as f32 as u64, asked: 0, measured_at: now };
    }

    /// The ticks of a term; 0 if so few that each request may ask by itself.
    fn wanted(&self, terms: &LeaseTerms) -> u64 {
        let units = (u128::from(self.rate) * u128::from(terms.term) / 1_000_000_000) as u64;
        if units < 2 { 0 } else { units.saturating_mul(terms.unit) }
    }
}
