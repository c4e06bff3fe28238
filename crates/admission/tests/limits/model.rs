//! Plain reference models, written from the contract alone: exact fractions in 128 bits, no virtual schedule.

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

    /// Takes `cost` tokens if there are as many.
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

/// A queue with one departure per `step` and waiters that may leave; times in ms, burst as in the contract.
pub struct QueueModel {
    step: u64,
    burst: u64,
    queue: usize,
    waiters: Vec<u64>,
    /// Departures so far: (time, request).
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

    /// Lets all waiters depart that are due by `at`; they waited before, so only the schedule decides.
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

    pub fn arrive(&mut self, at: u64, request: u64) -> bool {
        self.run(at);
        if self.waiters.is_empty() && self.next(at) == at {
            self.left.push((at, request));
            return true;
        }
        let fits = self.waiters.len() < self.queue;
        if fits {
            self.waiters.push(request);
        }
        fits
    }

    /// The same at a place with a queue of another length.
    pub fn arrive_at(&mut self, at: u64, request: u64, queue: usize) -> bool {
        let own = std::mem::replace(&mut self.queue, queue);
        let fits = self.arrive(at, request);
        self.queue = own;
        fits
    }

    pub fn leave(&mut self, at: u64, request: u64) {
        self.run(at);
        self.waiters.retain(|&waiter| waiter != request);
    }
}

/// A waiter: its request, and the end of its wait (ms).
type Waiting = (u64, Option<u64>);

/// A queue in which values take turns: a list of fair queues, the one with the next turn first; times in ms.
pub struct FairModel {
    model: QueueModel,
    max_wait: Option<u64>,
    queues: Vec<(u64, Vec<Waiting>)>,
    /// Departures so far: (time, request).
    pub left: Vec<(u64, u64)>,
    /// Waiters that were displaced or gave up: (time, request).
    pub rejected: Vec<(u64, u64)>,
}

impl FairModel {
    pub fn new(step: u64, burst: u64, queue: usize, max_wait: Option<u64>) -> FairModel {
        let model = QueueModel::new(step, burst, queue);
        FairModel { model, max_wait, queues: vec![], left: vec![], rejected: vec![] }
    }

    fn next(&self, left: &[(u64, u64)], at: u64) -> u64 {
        QueueModel { left: left.to_vec(), waiters: vec![], ..self.model }.next(at)
    }

    /// Takes the next turn and returns the request that departs.
    fn turn(queues: &mut Vec<(u64, Vec<Waiting>)>) -> u64 {
        let (value, mut queue) = queues.remove(0);
        let (request, _) = queue.remove(0);
        if !queue.is_empty() {
            queues.push((value, queue));
        }
        request
    }

    fn remove(queues: &mut Vec<(u64, Vec<Waiting>)>, gone: impl Fn(&Waiting) -> bool) {
        queues.iter_mut().for_each(|(_, queue)| queue.retain(|waiter| !gone(waiter)));
        queues.retain(|(_, queue)| !queue.is_empty());
    }

    /// Runs departures and expired waits until `at`.
    pub fn run(&mut self, at: u64) {
        while !self.queues.is_empty() {
            let due = self.next(&self.left, 0);
            let until =
                self.queues.iter().flat_map(|(_, queue)| queue.iter().filter_map(|waiter| waiter.1)).min();
            if due <= at && until.is_none_or(|until| due <= until) {
                self.left.push((due, FairModel::turn(&mut self.queues)));
            } else if let Some(until) = until.filter(|&until| until <= at) {
                let is_expired = |waiter: &Waiting| waiter.1 == Some(until);
                let gone = self.queues.iter().flat_map(|(_, queue)| queue.iter().copied().filter(is_expired));
                self.rejected.extend(gone.map(|(request, _)| (until, request)));
                FairModel::remove(&mut self.queues, is_expired);
            } else {
                return;
            }
        }
    }

    /// The wait of the newcomer if it is accepted.
    pub fn arrive(&mut self, at: u64, value: u64, request: u64) -> Option<u64> {
        self.run(at);
        if self.queues.is_empty() && self.next(&self.left, at) == at {
            self.left.push((at, request));
            return Some(0);
        }
        let mut queues = self.queues.clone();
        let count: usize = queues.iter().map(|(_, queue)| queue.len()).sum();
        let mut displaced = None;
        if count >= self.model.queue {
            let own = queues.iter().find(|(other, _)| *other == value).map_or(0, |(_, queue)| queue.len());
            // Among equally full ones, the one with the next turn.
            let fullest = queues.iter().rev().max_by_key(|(_, queue)| queue.len())?;
            if fullest.1.len() <= own {
                return None;
            }
            displaced = fullest.1.last().map(|(request, _)| *request);
            FairModel::remove(&mut queues, |waiter| Some(waiter.0) == displaced);
        }
        let waiter = (request, self.max_wait.map(|wait| at + wait));
        match queues.iter_mut().find(|(other, _)| *other == value) {
            Some((_, queue)) => queue.push(waiter),
            None => queues.push((value, vec![waiter])),
        }
        let wait = self.foresee(queues.clone(), request) - at;
        if self.max_wait.is_some_and(|max_wait| wait > max_wait) {
            return None;
        }
        self.rejected.extend(displaced.map(|request| (at, request)));
        self.queues = queues;
        Some(wait)
    }

    /// The departure of `request` if nothing else happens.
    fn foresee(&self, mut queues: Vec<(u64, Vec<Waiting>)>, request: u64) -> u64 {
        let mut left = self.left.clone();
        loop {
            let due = self.next(&left, 0);
            let head = FairModel::turn(&mut queues);
            left.push((due, head));
            if head == request {
                return due;
            }
        }
    }

    pub fn leave(&mut self, at: u64, request: u64) {
        self.run(at);
        FairModel::remove(&mut self.queues, |waiter| waiter.0 == request);
    }
}
