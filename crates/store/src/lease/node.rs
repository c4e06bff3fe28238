//! What one process holds of one key.

use super::LeaseTerms;

/// The holdings of one process for one key. Times are in microseconds of a clock that runs on while the machine sleeps;
/// amounts are in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LeaseNode {
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
    /// The number of the last call whose answer was applied.
    pub(super) applied: u64,
    /// The store is not asked again until then, because it had too little.
    pub(super) quiet_until: u64,
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

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseSpend {
    /// Its units are spent.
    Taken,
    /// They are not there, and the store need not be asked; they may be after so many microseconds.
    Refused(u64),
    /// The store is to be asked.
    Ask,
}

/// So many requests, one after the other, that wait for an answer and cost as many units each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PendingRun {
    /// Requests.
    pub count: u32,
    /// Units of each.
    pub cost: u32,
}

/// A question about one key. Amounts are in ticks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseCall {
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
    /// Thousandths of a unit that its requests ask for per second.
    pub demand: u64,
    /// The node has no leased rate, and uses none that an answer on its way may bring.
    pub stopped: bool,
    /// The requests that wait.
    pub pending: Vec<PendingRun>,
}

/// The answer to a question. Amounts are in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LeaseAnswer {
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
}

// === impl LeaseNode ===

impl LeaseNode {
    /// Spends `cost` units for a new request, if they are in hand.
    pub fn spend(&mut self, terms: &LeaseTerms, now: u64, cost: u64) -> LeaseSpend {
        self.demand.asked = self.demand.asked.saturating_add(cost);
        if self.demand.measured_at == 0 {
            self.demand.measured_at = now;
        }
        self.spend_again(terms, now, cost)
    }

    /// Spends like [`LeaseNode::spend`], for a request that has waited.
    pub fn spend_again(&mut self, terms: &LeaseTerms, now: u64, cost: u64) -> LeaseSpend {
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
            return LeaseSpend::Refused(self.quiet_until - now);
        }
        LeaseSpend::Ask
    }

    /// The units in hand.
    pub fn units_held(&mut self, terms: &LeaseTerms, now: u64) -> u64 {
        self.advance(now);
        (self.held + self.level) / terms.unit
    }

    /// Gives back units that were spent and not used. They return to the lease if no call was sent since the one with
    /// the number `call`, the newest when they were spent; else the store is to be told, and the outcome is false.
    pub fn put_back(&mut self, terms: &LeaseTerms, call: u64, cost: u64) -> bool {
        let ticks = cost.saturating_mul(terms.unit);
        let is_own = call == self.call && self.spent >= ticks;
        if is_own {
            self.held += ticks;
            self.spent -= ticks;
        }
        is_own
    }

    /// True if a call is due, though no request waits: the units come to an end, or the leased rate is to be renewed.
    pub fn is_due(&self, terms: &LeaseTerms, now: u64) -> bool {
        let since = now.saturating_sub(self.called_at);
        let is_low = || {
            let want = self.demand.wanted(terms);
            want > 0 && self.held <= want / 5 && now >= self.quiet_until
        };
        !self.is_calling
            && match self.rate {
                0 => since >= terms.term / 2 && is_low(),
                _ => since >= terms.term,
            }
    }

    /// True if what it holds is to be returned: no request came for a term. To be asked about once per term.
    pub fn is_idle(&mut self, terms: &LeaseTerms, now: u64) -> bool {
        if now < self.demand.measured_at + terms.term {
            return false;
        }
        let was_asked = self.demand.asked > 0;
        self.demand.measure(terms, now);
        self.advance(now);
        !was_asked && !self.is_calling && (self.held > 0 || self.rate > 0)
    }

    /// A call that returns everything.
    pub fn begin_return(&mut self, now: u64, number: u64) -> LeaseCall {
        self.advance(now);
        (self.rate, self.depth, self.level) = (0, 0, 0);
        self.send_call((now, number), (0, 0, 0), Vec::new())
    }

    /// A call with the number `number`, for the requests that wait; what the node does not keep is no longer its own.
    /// No other call may be under way.
    pub fn begin_call(
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
        let (held, applied, stopped) = (self.held, self.applied, self.rate == 0);
        (self.call, self.called_at, self.is_calling) = (number, now, true);
        (self.held, self.spent) = (keep, 0);
        LeaseCall { number, applied, held, keep, want, demand, stopped, pending }
    }

    /// Applies the answer to the call with the number `number`, unless a newer call was sent or the answer was applied
    /// before. True if it was applied.
    pub fn apply_answer(
        &mut self,
        terms: &LeaseTerms,
        (now, number): (u64, u64),
        answer: &LeaseAnswer,
    ) -> bool {
        if number != self.call || number == self.applied {
            return false;
        }
        self.advance(now);
        (self.applied, self.is_calling) = (number, false);
        self.held = answer.held.saturating_sub(self.spent);
        (self.rate, self.depth) = (answer.rate, answer.depth);
        (self.level, self.filled_at) = (self.level.min(answer.depth), now);
        self.until = self.called_at + terms.hold;
        self.advance(now);
        if answer.left < terms.unit && self.rate == 0 {
            let retry = LeaseTerms::wait_for(terms.unit - answer.left, terms.rate);
            self.quiet_until = now + retry.max(terms.term / 2);
        }
        true
    }

    /// The call under way is given up: its answer may still come, and serves nobody.
    pub fn give_up_call(&mut self) {
        self.is_calling = false;
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
        *self = Demand { rate: rate.min(u32::MAX.into()) as u64, asked: 0, measured_at: now };
    }

    /// The ticks of a term; 0 if so few that each request may ask by itself.
    fn wanted(&self, terms: &LeaseTerms) -> u64 {
        let units = (u128::from(self.rate) * u128::from(terms.term) / 1_000_000_000) as u64;
        if units < 2 { 0 } else { units.saturating_mul(terms.unit) }
    }
}
