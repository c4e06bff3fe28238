//! Nodes beside the store in simulated time: delays, losses, repetitions, deaths and stops.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::super::{LeaseAnswer, LeaseCall, LeaseNode, LeaseSpend, LeaseTerms, PendingRun};
use super::oracle::OneLimit;
use super::store_model::StoreModel;
use crate::script::rule_shape::RuleShape;
use sluicegate_model::WindowAlign;

/// What is simulated.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    /// Units per second of the limit, and its burst.
    pub(super) rate: u64,
    pub(super) burst: u64,
    /// Instead of a bucket, windows of this many units.
    pub(super) windows: Option<WindowSetting>,
    /// What all nodes together are asked for, as a multiple of the rate.
    pub(super) load: f64,
    /// Demand of the first node over that of the last one.
    pub(super) skew: f64,
    /// Demand swings threefold each second.
    pub(super) swings: bool,
    pub(super) span_ms: u64,
    pub(super) round_trip_us: u64,
    /// A message takes up to so many times longer.
    pub(super) jitter: f64,
    pub(super) loss: f64,
    pub(super) repeats: f64,
    /// The store forgets everything halfway.
    pub(super) forgets: bool,
    /// Deaths and stops of nodes per second.
    pub(super) deaths: f64,
    pub(super) stops: f64,
    /// The part of admitted requests that give their units back.
    pub(super) refunds: f64,
    /// The greatest cost of a request.
    pub(super) cost_max: u64,
    /// A flaw: nodes take refunds for those of charges at this moment.
    pub(super) refunds_late: bool,
}

/// The windows of a limit, which begin at multiples of their length.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowSetting {
    pub(super) period_ms: u64,
    /// Sub-windows of a sliding window; 0: a fixed one.
    pub(super) buckets: u8,
}

#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Ticks that one bucket would have lacked at worst.
    pub(super) excess: i128,
    pub(super) asked: u64,
    pub(super) admitted: u64,
    /// What one bucket would have admitted.
    pub(super) ideal: u64,
    pub(super) calls: u64,
    pub(super) of_first: u64,
}

enum Event {
    Request(usize),
    Call(usize, u64, LeaseCall),
    Answer(usize, u64, u64, LeaseAnswer),
    Timeout(usize, u64, u64),
    Idle(usize),
    /// The node, its name, the mark and the moment of the charge, and the units.
    PutBack(usize, u64, (u64, u64), u64),
    Death,
    Stop,
    Forget,
}

struct SimNode {
    name: u64,
    lease: LeaseNode,
    pending: VecDeque<u64>,
    /// The costs of those that wait for the call under way.
    asked: VecDeque<u64>,
    stopped_until: u64,
    per_second: f64,
}

struct Simulation {
    setting: Setting,
    terms: LeaseTerms,
    random: Random,
    now: u64,
    events: BinaryHeap<(Reverse<(u64, u64)>, usize)>,
    stored: Vec<Option<Event>>,
    order: u64,
    numbers: u64,
    store: StoreModel,
    nodes: Vec<SimNode>,
    bucket: OneLimit,
    ideal: OneLimit,
    /// The moments of the grants of calls, by their number.
    granted_at: HashMap<u64, u64>,
    outcome: Outcome,
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub(super) struct Random(pub(super) u64);

// === impl Random ===

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn below(&mut self, most: u64) -> u64 {
        self.next() % most.max(1)
    }
}

// === impl Setting ===

impl Setting {
    pub(super) fn new(seed: u64, nodes: usize, rate: u64, burst: u64) -> Setting {
        Setting {
            seed,
            nodes,
            rate,
            burst,
            windows: None,
            load: 2.0,
            skew: 1.0,
            swings: false,
            span_ms: 1_000,
            round_trip_us: 1_000,
            jitter: 1.0,
            loss: 0.0,
            repeats: 0.0,
            forgets: false,
            deaths: 0.0,
            stops: 0.0,
            refunds: 0.0,
            cost_max: 1,
            refunds_late: false,
        }
    }

    pub(super) fn terms(&self) -> LeaseTerms {
        if let Some(WindowSetting { period_ms, buckets }) = self.windows {
            let (max, period) = (self.rate * period_ms / 1_000, period_ms * 1_000);
            let fixed = RuleShape::FixedWindow { max, period, align: WindowAlign::Clock };
            let sliding = RuleShape::SlidingWindow { max, period, buckets };
            return LeaseTerms::new(if buckets == 0 { fixed } else { sliding }).unwrap();
        }
        let divisor = gcd(self.rate, 1_000_000);
        let (num, unit) = (self.rate / divisor, 1_000_000 / divisor);
        LeaseTerms::new(RuleShape::TokenBucket { num, unit, burst: self.burst }).unwrap()
    }

    pub(super) fn run(&self) -> Outcome {
        let mut simulation = Simulation::new(self);
        simulation.run_for(self.span_ms);
        simulation.outcome
    }

    /// The units in the store and in hands after a flood of two seconds, and three of this load.
    pub(super) fn after_a_flood(&self) -> (u64, u64) {
        let mut simulation = Simulation::new(&Setting { load: 20.0, ..self.clone() });
        simulation.run_for(2_000);
        simulation.nodes.iter_mut().for_each(|node| node.per_second *= self.load / 20.0);
        simulation.run_for(3_000);
        let (now, terms) = (simulation.now, simulation.terms);
        let held: u64 = simulation.nodes.iter_mut().map(|node| node.lease.ticks_held(now).0).sum();
        (simulation.store.free as u64 / terms.unit, held / terms.unit)
    }
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

// === impl Simulation ===

/// The clock does not begin at 0.
const START_US: u64 = 1_000_000;

impl Simulation {
    fn new(setting: &Setting) -> Simulation {
        let terms = setting.terms();
        let mut random = Random(setting.seed);
        let weights: Vec<f64> =
            (0..setting.nodes).map(|n| setting.skew.powf(-(n as f64) / setting.nodes as f64)).collect();
        let per_weight = setting.load * setting.rate as f64 / weights.iter().sum::<f64>();
        let nodes = weights.iter().map(|weight| SimNode {
            name: random.next(),
            lease: LeaseNode::default(),
            pending: VecDeque::new(),
            asked: VecDeque::new(),
            stopped_until: 0,
            per_second: weight * per_weight / ((setting.cost_max + 1) as f64 / 2.0),
        });
        let nodes = nodes.collect();
        let mut own = Simulation {
            setting: setting.clone(),
            terms,
            now: START_US,
            events: BinaryHeap::new(),
            stored: Vec::new(),
            order: 0,
            numbers: 0,
            store: StoreModel::full(&terms, START_US),
            nodes,
            bucket: OneLimit::full(&terms, START_US),
            ideal: OneLimit::full(&terms, START_US),
            granted_at: HashMap::new(),
            outcome: Outcome::default(),
            random,
        };
        for node in 0..setting.nodes {
            own.push_request(node);
            own.push(own.now + terms.term, Event::Idle(node));
        }
        if setting.forgets {
            own.push(START_US + setting.span_ms * 500, Event::Forget);
        }
        own.push_rare(setting.deaths, || Event::Death);
        own.push_rare(setting.stops, || Event::Stop);
        own
    }

    fn run_for(&mut self, span_ms: u64) {
        let end = self.now.max(START_US) + span_ms * 1_000;
        while let Some((Reverse((at, _)), place)) = self.events.pop() {
            self.now = at;
            if let Some(event) = self.stored[place].take() {
                self.handle(event);
            }
            if at > end {
                break;
            }
        }
    }

    fn push(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push((Reverse((at, self.order)), self.stored.len()));
        self.stored.push(Some(event));
    }

    fn push_request(&mut self, node: usize) {
        let swing = match self.setting.swings {
            true if (self.now / 500_000).is_multiple_of(2) => 0.5,
            true => 1.5,
            false => 1.0,
        };
        let per_us = self.nodes[node].per_second * swing / 1e6;
        let gap = -(1.0 - self.random.fraction()).ln() / per_us;
        self.push(self.now + gap.max(1.0) as u64, Event::Request(node));
    }

    fn push_rare(&mut self, per_second: f64, event: fn() -> Event) {
        if per_second > 0.0 {
            let gap = -(1.0 - self.random.fraction()).ln() * 1e6 / per_second;
            self.push(self.now + gap as u64, event());
        }
    }

    /// A message on its way, or lost, or twice.
    fn send(&mut self, event: impl Fn() -> Event) {
        let copies = if self.random.fraction() < self.setting.repeats { 2 } else { 1 };
        for _ in 0..copies {
            if self.random.fraction() < self.setting.loss {
                continue;
            }
            let half = self.setting.round_trip_us as f64 / 2.0;
            let delay = half * (1.0 + self.setting.jitter * self.random.fraction());
            self.push(self.now + delay as u64, event());
        }
    }

    fn handle(&mut self, event: Event) {
        let node = match &event {
            Event::Request(node) | Event::Idle(node) | Event::PutBack(node, ..) => Some(*node),
            Event::Answer(node, ..) | Event::Timeout(node, ..) => Some(*node),
            Event::Call(..) | Event::Death | Event::Stop | Event::Forget => None,
        };
        if let Some(until) = node.map(|node| self.nodes[node].stopped_until).filter(|until| *until > self.now)
        {
            return self.push(until, event);
        }
        match event {
            Event::Request(node) => self.request(node),
            Event::Call(node, name, call) => self.answer_call(node, name, &call),
            Event::Answer(node, name, number, answer) => self.take_answer(node, (name, number), &answer),
            Event::Timeout(node, name, number) => self.time_out(node, (name, number)),
            Event::Idle(node) => self.check_idle(node),
            Event::PutBack(node, name, (mark, charged_at), cost) => {
                let own = &mut self.nodes[node];
                if own.name == name {
                    let mark = if self.setting.refunds_late { LeaseNode::mark_spent(self.now) } else { mark };
                    own.lease.put_back(&self.terms, mark, cost);
                    let ticks = cost * self.terms.unit;
                    self.bucket.put_back(&self.terms, (self.now, charged_at), ticks);
                }
            }
            Event::Forget => self.store = StoreModel::full(&self.terms, self.now),
            Event::Death => {
                let node = self.random.below(self.nodes.len() as u64) as usize;
                let name = self.random.next();
                let own = &mut self.nodes[node];
                (own.name, own.lease) = (name, LeaseNode::default());
                own.pending.clear();
                own.asked.clear();
                self.push_rare(self.setting.deaths, || Event::Death);
            }
            Event::Stop => {
                let node = self.random.below(self.nodes.len() as u64) as usize;
                let span = self.random.below(3 * self.terms.hold);
                self.nodes[node].stopped_until = self.now + span;
                self.push_rare(self.setting.stops, || Event::Stop);
            }
        }
    }

    fn request(&mut self, node: usize) {
        self.push_request(node);
        let cost = 1 + self.random.below(self.setting.cost_max);
        let ticks = cost * self.terms.unit;
        self.outcome.asked += cost;
        self.ideal.refill(&self.terms, self.now);
        if self.ideal.level() >= ticks.into() {
            self.ideal.take(&self.terms, self.now, ticks);
            self.outcome.ideal += cost;
        }
        match self.nodes[node].lease.spend(&self.terms, self.now, cost) {
            LeaseSpend::Taken => self.admit_here(node, cost),
            LeaseSpend::Refused(_) => {}
            LeaseSpend::Ask => self.nodes[node].pending.push_back(cost),
        }
        self.call_if_due(node);
    }

    fn admit_here(&mut self, node: usize, cost: u64) {
        self.charge(cost);
        self.count(node, cost);
        self.refund_later(node, (LeaseNode::mark_spent(self.now), self.now), cost);
    }

    fn refund_later(&mut self, node: usize, charge: (u64, u64), cost: u64) {
        if self.random.fraction() < self.setting.refunds {
            let name = self.nodes[node].name;
            let after = self.random.below(3 * self.terms.term);
            self.push(self.now + after, Event::PutBack(node, name, charge, cost));
        }
    }

    fn charge(&mut self, cost: u64) {
        let lacking = self.bucket.take(&self.terms, self.now, cost * self.terms.unit);
        self.outcome.excess = self.outcome.excess.max(lacking);
    }

    fn count(&mut self, node: usize, cost: u64) {
        self.outcome.admitted += cost;
        self.outcome.of_first += if node == 0 { cost } else { 0 };
    }

    fn call_if_due(&mut self, node: usize) {
        let own = &mut self.nodes[node];
        let is_calling = !own.asked.is_empty() || own.lease.is_calling;
        if is_calling || own.pending.is_empty() && !own.lease.is_due(&self.terms, self.now) {
            return;
        }
        own.asked = std::mem::take(&mut own.pending);
        let runs = own.asked.iter().map(|cost| PendingRun { count: 1, cost: *cost as u32 }).collect();
        self.numbers += 1;
        let call = own.lease.begin_call(&self.terms, (self.now, self.numbers), runs);
        self.send_call(node, call);
    }

    fn send_call(&mut self, node: usize, call: LeaseCall) {
        let own = &mut self.nodes[node];
        let (name, number) = (own.name, call.number);
        self.outcome.calls += 1;
        self.send(|| Event::Call(node, name, call.clone()));
        self.push(self.now + self.timeout_us(), Event::Timeout(node, name, number));
    }

    fn timeout_us(&self) -> u64 {
        20_000.max(3 * self.setting.round_trip_us)
    }

    fn answer_call(&mut self, node: usize, name: u64, call: &LeaseCall) {
        let repeated = self.store.knows_call(name, call.number);
        let answer = self.store.answer_call(&self.terms, self.now, name, call);
        if !repeated {
            let costs = call.pending.iter().map(|run| u64::from(run.cost));
            let granted: Vec<u64> = costs.take(answer.granted as usize).collect();
            granted.into_iter().for_each(|cost| self.charge(cost));
            self.granted_at.insert(call.number, self.now);
        }
        let most = self.terms.depth as f64 * (1.0 + 1e-9);
        assert!(self.store.counted() <= most, "{:?}", self.setting);
        let number = call.number;
        self.send(|| Event::Answer(node, name, number, answer));
    }

    fn take_answer(&mut self, node: usize, (name, number): (u64, u64), answer: &LeaseAnswer) {
        let own = &mut self.nodes[node];
        if own.name != name {
            return;
        }
        let in_time = own.lease.is_calling;
        if !own.lease.apply_answer(&self.terms, (self.now, number), answer) {
            return;
        }
        if in_time {
            let asked = std::mem::take(&mut own.asked);
            for (place, cost) in asked.into_iter().enumerate() {
                if (place as u64) < answer.granted {
                    self.count(node, cost);
                    let mark = self.nodes[node].lease.mark_granted();
                    self.refund_later(node, (mark, self.granted_at[&number]), cost);
                } else {
                    self.retry(node, cost, answer);
                }
            }
        }
        for cost in std::mem::take(&mut self.nodes[node].pending) {
            self.retry(node, cost, answer);
        }
        self.call_if_due(node);
    }

    /// A request that the call under way did not serve.
    fn retry(&mut self, node: usize, cost: u64, answer: &LeaseAnswer) {
        match self.nodes[node].lease.spend_again(&self.terms, self.now, cost) {
            LeaseSpend::Taken => self.admit_here(node, cost),
            LeaseSpend::Ask if answer.left >= cost * self.terms.unit => {
                self.nodes[node].pending.push_back(cost);
            }
            LeaseSpend::Ask | LeaseSpend::Refused(_) => {}
        }
    }

    fn time_out(&mut self, node: usize, (name, number): (u64, u64)) {
        let own = &mut self.nodes[node];
        if own.name != name || own.lease.call != number || !own.lease.is_calling {
            return;
        }
        own.lease.is_calling = false;
        own.asked.clear();
        self.call_if_due(node);
    }

    fn check_idle(&mut self, node: usize) {
        self.push(self.now + self.terms.term, Event::Idle(node));
        let own = &mut self.nodes[node];
        if own.lease.is_idle(&self.terms, self.now) {
            self.numbers += 1;
            let call = own.lease.begin_return(self.now, self.numbers);
            self.send_call(node, call);
        }
    }
}
