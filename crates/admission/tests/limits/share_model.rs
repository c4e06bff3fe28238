//! A queue with shares as a plain simulation, millisecond by millisecond: tokens instead of schedules, and start and
//! finish tags of fair queueing as the literature has them.

/// Milliseconds of one unit.
pub const STEP: u64 = 10;
/// Tokens of one unit; a millisecond brings a hundred.
const UNIT: i64 = 1000;
/// The virtual time of one unit at one per cent: all floors of the tests divide it.
const TIME: u64 = 5 * 232_792_560;

struct Class {
    least: u64,
    most: i64,
    tokens: i64,
    depth: i64,
    /// The finish tag of its last departure.
    finish: u64,
    /// (cost, request) in order of arrival.
    waiters: Vec<(u64, u64)>,
}

pub struct ShareModel {
    burst: i64,
    queue: u64,
    at: u64,
    tokens: i64,
    /// The start tag of the last departure.
    clock: u64,
    classes: Vec<Class>,
    /// Departures so far: (time, class, request).
    pub left: Vec<(u64, usize, u64)>,
    pub displaced: Vec<u64>,
}

impl ShareModel {
    pub fn new(classes: &[(u32, u32)], burst: u64, queue: u64) -> ShareModel {
        let burst = burst as i64 * UNIT;
        let class = |&(least, most): &(u32, u32)| {
            let depth = (burst * i64::from(most) / 100).max(UNIT);
            Class { least: least.into(), most: most.into(), tokens: depth, depth, finish: 0, waiters: vec![] }
        };
        let classes = classes.iter().map(class).collect();
        ShareModel { burst, queue, at: 0, tokens: burst, clock: 0, classes, left: vec![], displaced: vec![] }
    }

    /// Lets all depart that are due by `at`.
    pub fn run(&mut self, at: u64) {
        while self.at < at {
            self.at += 1;
            self.tokens = (self.tokens + UNIT / STEP as i64).min(self.burst);
            for class in &mut self.classes {
                class.tokens += class.most;
                if class.waiters.is_empty() {
                    class.tokens = class.tokens.min(class.depth);
                }
            }
            while self.tokens >= UNIT
                && let Some(class) = self.next()
            {
                let (cost, request) = self.classes[class].waiters[0];
                let waiting = self.classes.iter().filter(|class| !class.waiters.is_empty()).count() as i64;
                let own = &mut self.classes[class];
                // Turns of others may have held it up, for a request of each class.
                own.tokens = own.tokens.min(own.depth + waiting * cost as i64 * own.most * UNIT / 100);
                self.depart(class, cost, request);
                self.classes[class].waiters.remove(0);
            }
        }
    }

    /// The class with the smallest start tag of those that wait and are within their `most`.
    fn next(&self) -> Option<usize> {
        let allowed = |class: &usize| {
            let own = &self.classes[*class];
            !own.waiters.is_empty() && own.within_most()
        };
        (0..self.classes.len()).filter(allowed).min_by_key(|class| self.start_tag(*class))
    }

    fn start_tag(&self, class: usize) -> u64 {
        self.clock.max(self.classes[class].finish)
    }

    fn depart(&mut self, class: usize, cost: u64, request: u64) {
        self.clock = self.start_tag(class);
        let sum: u64 = self.classes.iter().map(|class| class.least).sum();
        let without_floor =
            |other: &(usize, &Class)| other.1.least == 0 && (other.0 == class || !other.1.waiters.is_empty());
        let sharing = self.classes.iter().enumerate().filter(without_floor).count() as u64;
        let time = match self.classes[class].least {
            0 => TIME * sharing / (100 - sum).max(1),
            least => TIME / least,
        };
        self.classes[class].finish = self.clock + cost * time;
        self.classes[class].tokens -= cost as i64 * UNIT;
        self.tokens -= cost as i64 * UNIT;
        self.left.push((self.at, class, request));
    }

    pub fn arrive(&mut self, at: u64, class: usize, cost: u64, request: u64) -> bool {
        self.run(at);
        let own = &mut self.classes[class];
        if own.waiters.is_empty() {
            own.tokens = own.tokens.min(own.depth);
            if self.tokens >= UNIT && own.within_most() {
                if self.tokens == self.burst {
                    self.classes.iter_mut().for_each(|class| class.finish = 0);
                }
                self.depart(class, cost, request);
                return true;
            }
        }
        if !self.has_room(0) {
            let Some(other) = self.class_to_displace(class) else { return false };
            let Some(&(cost, displaced)) = self.classes[other].waiters.last() else { return false };
            if !self.has_room(cost) {
                return false;
            }
            self.classes[other].waiters.pop();
            self.displaced.push(displaced);
        }
        self.classes[class].waiters.push((cost, request));
        true
    }

    fn has_room(&self, freed: u64) -> bool {
        let units = self.classes.iter().map(Class::units).sum::<u64>() - freed;
        let missing = (UNIT - self.tokens).max(0);
        units < self.queue && missing + units as i64 * UNIT <= self.queue as i64 * UNIT
    }

    /// A class below its places takes one of the class furthest above its own.
    fn class_to_displace(&self, class: usize) -> Option<usize> {
        let excess = |class: usize| {
            let places = self.queue * self.classes[class].least / 100;
            self.classes[class].units() as i64 - places as i64
        };
        let others = (0..self.classes.len()).filter(|other| *other != class);
        if excess(class) < 0 { others.max_by_key(|other| excess(*other)) } else { None }
    }

    /// A waiter leaves, unless it has departed.
    pub fn leave(&mut self, at: u64, request: u64) {
        self.run(at);
        for class in &mut self.classes {
            class.waiters.retain(|(_, waiter)| *waiter != request);
        }
    }

    /// True if the request departs at this very moment.
    pub fn departs_at(&mut self, at: u64, request: u64) -> bool {
        self.run(at);
        self.left.iter().any(|(left, _, own)| (*left, *own) == (at, request))
    }
}

impl Class {
    fn units(&self) -> u64 {
        self.waiters.iter().map(|(cost, _)| cost).sum()
    }

    fn within_most(&self) -> bool {
        self.most == 100 || self.tokens >= UNIT
    }
}
