//! Plain reference models, written from the contract alone: whole fractions in 128 bits, no schedule tricks.

/// A bucket of tokens, counted in units of 1/period tokens.
pub struct TokenModel {
    units: u128,
    period: u128,
    burst: u128,
    level: u128,
    at: u64,
}

impl TokenModel {
    pub fn new(units: u64, period_ns: u64, burst: u64) -> TokenModel {
        let (units, period, burst) = (units.into(), period_ns.into(), burst.into());
        TokenModel { units, period, burst, level: burst * period, at: 0 }
    }

    /// Takes `cost` tokens if they are there.
    pub fn take(&mut self, at: u64, cost: u64) -> bool {
        self.level += self.units * u128::from(at.saturating_sub(self.at));
        self.level = self.level.min(self.burst * self.period);
        self.at = self.at.max(at);
        let need = u128::from(cost) * self.period;
        let fits = need <= self.level;
        self.level -= if fits { need } else { 0 };
        fits
    }

    /// Whole tokens left at the last `take`.
    pub fn left(&self) -> u64 {
        (self.level / self.period) as u64
    }
}

/// A queue that lets one request go per `step`, with waiters that may leave; times in ms, burst as in the contract.
pub struct QueueModel {
    step: u64,
    burst: u64,
    queue: usize,
    waiters: Vec<u64>,
    /// Departures so far: (when, who).
    pub left: Vec<(u64, u64)>,
}

impl QueueModel {
    pub fn new(step: u64, burst: u64, queue: usize) -> QueueModel {
        QueueModel { step, burst, queue, waiters: vec![], left: vec![] }
    }

    /// The earliest moment from `at` at which one more may leave: the bucket of `burst` is drained evenly.
    fn next(&self, at: u64) -> u64 {
        let mut full_until = 0;
        for &(when, _) in &self.left {
            full_until = when.max(full_until) + self.step;
        }
        at.max(full_until.saturating_sub((self.burst - 1) * self.step))
    }

    /// Lets everyone go who is due by `at`; they stand here since before, so the schedule alone says when.
    pub fn run(&mut self, at: u64) {
        while let Some(&head) = self.waiters.first() {
            let due = self.next(0);
            if due > at {
                return;
            }
            self.left.push((due, head));
            self.waiters.remove(0);
        }
    }

    pub fn arrive(&mut self, at: u64, who: u64) -> bool {
        self.run(at);
        if self.waiters.is_empty() && self.next(at) == at {
            self.left.push((at, who));
            return true;
        }
        let fits = self.waiters.len() < self.queue;
        if fits {
            self.waiters.push(who);
        }
        fits
    }

    pub fn leave(&mut self, at: u64, who: u64) {
        self.run(at);
        self.waiters.retain(|&waiter| waiter != who);
    }
}
