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

/// A waiter: who, since when it may wait no longer (ms).
type Waiting = (u64, Option<u64>);

/// A queue whose values take turns: a list of lines, the one whose turn is next in front; times in ms.
pub struct FairModel {
    one: QueueModel,
    max_wait: Option<u64>,
    lines: Vec<(u64, Vec<Waiting>)>,
    /// Departures so far: (when, who).
    pub left: Vec<(u64, u64)>,
    /// Those that had to give up their place: (when, who).
    pub refused: Vec<(u64, u64)>,
}

impl FairModel {
    pub fn new(step: u64, burst: u64, queue: usize, max_wait: Option<u64>) -> FairModel {
        let one = QueueModel::new(step, burst, queue);
        FairModel { one, max_wait, lines: vec![], left: vec![], refused: vec![] }
    }

    fn next(&self, left: &[(u64, u64)], at: u64) -> u64 {
        QueueModel { left: left.to_vec(), waiters: vec![], ..self.one }.next(at)
    }

    /// The turn of the line in front: answers who goes.
    fn turn(lines: &mut Vec<(u64, Vec<Waiting>)>) -> u64 {
        let (value, mut line) = lines.remove(0);
        let (who, _) = line.remove(0);
        if !line.is_empty() {
            lines.push((value, line));
        }
        who
    }

    fn remove(lines: &mut Vec<(u64, Vec<Waiting>)>, gone: impl Fn(&Waiting) -> bool) {
        lines.iter_mut().for_each(|(_, line)| line.retain(|waiter| !gone(waiter)));
        lines.retain(|(_, line)| !line.is_empty());
    }

    /// Departures and those who gave up, until `at`.
    pub fn run(&mut self, at: u64) {
        while !self.lines.is_empty() {
            let due = self.next(&self.left, 0);
            let until =
                self.lines.iter().flat_map(|(_, line)| line.iter().filter_map(|waiter| waiter.1)).min();
            if due <= at && until.is_none_or(|until| due <= until) {
                self.left.push((due, FairModel::turn(&mut self.lines)));
            } else if let Some(until) = until.filter(|&until| until <= at) {
                let mine = |waiter: &Waiting| waiter.1 == Some(until);
                let gone = self.lines.iter().flat_map(|(_, line)| line.iter().copied().filter(mine));
                self.refused.extend(gone.map(|(who, _)| (until, who)));
                FairModel::remove(&mut self.lines, mine);
            } else {
                return;
            }
        }
    }

    /// The wait of the newcomer if it is accepted.
    pub fn arrive(&mut self, at: u64, value: u64, who: u64) -> Option<u64> {
        self.run(at);
        if self.lines.is_empty() && self.next(&self.left, at) == at {
            self.left.push((at, who));
            return Some(0);
        }
        let mut lines = self.lines.clone();
        let count: usize = lines.iter().map(|(_, line)| line.len()).sum();
        let mut displaced = None;
        if count >= self.one.queue {
            let own = lines.iter().find(|(other, _)| *other == value).map_or(0, |(_, line)| line.len());
            // Of several that are as full, the one whose turn is next.
            let fullest = lines.iter().rev().max_by_key(|(_, line)| line.len())?;
            if fullest.1.len() <= own {
                return None;
            }
            displaced = fullest.1.last().map(|(who, _)| *who);
            FairModel::remove(&mut lines, |waiter| Some(waiter.0) == displaced);
        }
        let waiter = (who, self.max_wait.map(|wait| at + wait));
        match lines.iter_mut().find(|(other, _)| *other == value) {
            Some((_, line)) => line.push(waiter),
            None => lines.push((value, vec![waiter])),
        }
        let wait = self.foresee(lines.clone(), who) - at;
        if self.max_wait.is_some_and(|max_wait| wait > max_wait) {
            return None;
        }
        self.refused.extend(displaced.map(|who| (at, who)));
        self.lines = lines;
        Some(wait)
    }

    /// When `who` leaves if nothing else happens.
    fn foresee(&self, mut lines: Vec<(u64, Vec<Waiting>)>, who: u64) -> u64 {
        let mut left = self.left.clone();
        loop {
            let due = self.next(&left, 0);
            let head = FairModel::turn(&mut lines);
            left.push((due, head));
            if head == who {
                return due;
            }
        }
    }

    pub fn leave(&mut self, at: u64, who: u64) {
        self.run(at);
        FairModel::remove(&mut self.lines, |waiter| waiter.0 == who);
    }
}
