//! All orders of few steps: calls that are late, lost, doubled or overtaken, answers alike, leases that end meanwhile,
//! beside exact calls of others.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::super::{LeaseAnswer, LeaseCall, LeaseNode, LeaseSpend, LeaseTerms, LeaseWindows, PendingRun};
use super::oracle::OneLimit;
use super::store_model::{StoreFlaw, StoreModel};

/// Three units, refilled one per microsecond; two may be leased.
const TERMS: LeaseTerms =
    LeaseTerms { rate: 2, unit: 2, depth: 6, leased_max: 4, term: 16, hold: 3, guard: 1, windows: None };
/// Longer leases of the same bucket.
const LONG: LeaseTerms = LeaseTerms { hold: 8, ..TERMS };
/// Twelve units, refilled four per microsecond: two nodes may hold rates.
const WIDE: LeaseTerms =
    LeaseTerms { rate: 8, unit: 2, depth: 24, leased_max: 24, term: 4, hold: 8, guard: 1, windows: None };
/// Windows of three units and two microseconds.
const FIXED: LeaseTerms = LeaseTerms {
    rate: 0,
    unit: 1,
    depth: 3,
    leased_max: 2,
    term: 1,
    windows: Some(LeaseWindows { width: 3, earlier: 0, is_aligned: true }),
    ..TERMS
};
/// The same over two sub-windows and the present one.
const SLIDING: LeaseTerms =
    LeaseTerms { windows: Some(LeaseWindows { width: 2, earlier: 2, is_aligned: true }), ..FIXED };
/// The clock does not begin at 0.
const START: u64 = 10;
/// The node that only makes exact calls.
const OTHER: usize = 9;
/// The demand of each node.
const DEMAND: u64 = 1_000;

/// A fault that the bucket must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    Store(StoreFlaw),
    /// The end of a lease is counted from its answer.
    EndFromAnswer,
    /// A node goes on spending what it said that it gives up.
    KeepsWhatItReturns,
    /// What a node keeps is added to an answer that counts it.
    CountsKeptTwice,
}

/// How far the search goes.
#[derive(Clone, Copy)]
struct Bounds {
    nodes: usize,
    span: u64,
    /// Calls of each node, and of the other.
    calls: u8,
    exact_calls: u8,
    /// Calls that arrive twice.
    repeats: u8,
    /// What a call may ask for.
    choices: &'static [Choice],
    /// The bucket is empty at first.
    is_drained: bool,
    /// The demand of the node that makes exact calls, and the units that each asks for.
    exact: (u64, u32),
    terms: LeaseTerms,
    flaw: Option<Flaw>,
}

/// What a call asks for.
#[derive(Clone, Copy, PartialEq)]
enum Choice {
    /// Keeps what it holds, and wants more.
    Renew,
    /// Gives back what it holds, and wants more.
    Exchange,
    /// Keeps what it holds, for a request that waits.
    Serve,
    /// Keeps what it holds, and wants nothing.
    Hold,
    /// Gives back everything.
    Return,
}

const RENEW: &[Choice] = &[Choice::Renew];
const ALL: &[Choice] = &[Choice::Renew, Choice::Exchange, Choice::Serve, Choice::Return];

#[derive(Clone)]
struct World {
    terms: LeaseTerms,
    now: u64,
    store: StoreModel,
    nodes: Vec<LeaseNode>,
    calls: Vec<(usize, LeaseCall)>,
    answers: Vec<(usize, u64, LeaseAnswer)>,
    bucket: OneLimit,
    sent: Vec<u8>,
    exact_calls: u8,
    repeats: u8,
    excess: bool,
}

struct Search {
    bounds: Bounds,
    seen: HashSet<u64>,
    ahead: VecDeque<World>,
    found: bool,
}

// === impl World ===

impl World {
    fn new(bounds: &Bounds) -> World {
        let flaw = match bounds.flaw {
            Some(Flaw::Store(flaw)) => Some(flaw),
            _ => None,
        };
        let terms = bounds.terms;
        let (mut bucket, mut store) = (OneLimit::full(&terms, START), StoreModel::full(&terms, START));
        if bounds.is_drained {
            bucket.take(&terms, START, terms.depth);
            store.free = 0.0;
        }
        World {
            terms,
            now: START,
            store: StoreModel { flaw, ..store },
            nodes: vec![LeaseNode::default(); bounds.nodes],
            calls: Vec::new(),
            answers: Vec::new(),
            bucket,
            sent: vec![0; bounds.nodes],
            exact_calls: 0,
            repeats: 0,
            excess: false,
        }
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut calls: Vec<_> = self.calls.iter().collect();
        calls.sort_by_key(|(node, call)| (*node, call.number));
        let mut answers: Vec<_> = self.answers.iter().collect();
        answers.sort_by_key(|(node, number, _)| (*node, *number));
        (self.now, &self.nodes, calls, answers, &self.bucket, &self.sent).hash(&mut hasher);
        (self.exact_calls, self.repeats, self.store.digest()).hash(&mut hasher);
        hasher.finish()
    }

    fn take(&mut self, units: u64) {
        self.excess |= self.bucket.take(&self.terms, self.now, units * self.terms.unit) > 0;
    }

    fn spend(&mut self, node: usize) -> bool {
        let taken = self.nodes[node].spend_again(&self.terms, self.now, 1) == LeaseSpend::Taken;
        if taken {
            self.take(1);
        }
        taken
    }

    fn send(&mut self, node: usize, choice: Choice, flaw: Option<Flaw>) {
        let number = u64::from(self.sent[node]) + 1;
        self.sent[node] += 1;
        let own = &mut self.nodes[node];
        // The clock moves before the holdings are told.
        let _ = own.spend_again(&self.terms, self.now, u64::from(u32::MAX));
        let before = *own;
        let waits = PendingRun { count: 1, cost: 1 };
        let call = match choice {
            Choice::Renew => {
                own.send_call((self.now, number), (own.held, self.terms.leased_max, DEMAND), vec![])
            }
            Choice::Exchange => own.send_call((self.now, number), (0, self.terms.leased_max, DEMAND), vec![]),
            Choice::Serve => own.send_call((self.now, number), (own.held, 0, DEMAND), vec![waits]),
            Choice::Hold => own.send_call((self.now, number), (own.held, 0, DEMAND), vec![]),
            Choice::Return => own.begin_return(self.now, number),
        };
        if flaw == Some(Flaw::KeepsWhatItReturns) {
            own.held = before.held;
        }
        self.calls.push((node, call));
    }

    fn deliver_call(&mut self, place: usize, again: bool) {
        let (node, call) = if again { self.calls[place].clone() } else { self.calls.swap_remove(place) };
        let is_new = !self.store.knows_call(node as u64, call.number);
        let answer = self.store.answer_call(&self.terms, self.now, node as u64, &call);
        if is_new {
            self.take(answer.granted);
        }
        self.answers.push((node, call.number, answer));
    }

    fn deliver_answer(&mut self, place: usize, flaw: Option<Flaw>) {
        let (node, number, answer) = self.answers.swap_remove(place);
        let own = &mut self.nodes[node];
        if flaw == Some(Flaw::EndFromAnswer) && number == own.call {
            own.called_at = self.now;
        }
        let kept = own.held;
        if own.apply_answer(&self.terms, (self.now, number), &answer) && flaw == Some(Flaw::CountsKeptTwice) {
            own.held += kept;
        }
    }

    fn call_exactly(&mut self, (demand, count): (u64, u32)) {
        self.exact_calls += 1;
        let call = LeaseCall {
            number: self.exact_calls.into(),
            demand,
            stopped: true,
            pending: vec![PendingRun { count, cost: 1 }],
            ..LeaseCall::default()
        };
        let answer = self.store.answer_call(&self.terms, self.now, OTHER as u64, &call);
        self.take(answer.granted);
    }
}

// === impl Search ===

impl Search {
    fn run(bounds: Bounds) -> Search {
        let mut search = Search {
            bounds,
            seen: HashSet::new(),
            ahead: VecDeque::from([World::new(&bounds)]),
            found: false,
        };
        while let Some(world) = search.ahead.pop_front() {
            search.expand(&world);
            if search.found {
                break;
            }
        }
        search
    }

    fn push(&mut self, world: World) {
        self.found |= world.excess;
        if self.bounds.flaw.is_none() {
            assert!(world.store.counted() <= self.bounds.terms.depth as f64, "more than one bucket counts");
        }
        if self.seen.insert(world.digest()) {
            self.ahead.push_back(world);
        }
    }

    fn expand(&mut self, world: &World) {
        let bounds = self.bounds;
        let step = |act: &mut dyn FnMut(&mut World)| {
            let mut next = world.clone();
            act(&mut next);
            next
        };
        let mut next = Vec::new();
        if world.now < START + bounds.span {
            next.push(step(&mut |world| world.now += 1));
        }
        for node in 0..bounds.nodes {
            let mut spent = world.clone();
            if spent.spend(node) {
                next.push(spent);
            }
            if world.sent[node] < bounds.calls {
                for choice in bounds.choices {
                    next.push(step(&mut |world| world.send(node, *choice, bounds.flaw)));
                }
            }
        }
        for place in 0..world.calls.len() {
            next.push(step(&mut |world| world.deliver_call(place, false)));
            if world.repeats < bounds.repeats {
                next.push(step(&mut |world| {
                    world.repeats += 1;
                    world.deliver_call(place, true);
                }));
            }
        }
        for place in 0..world.answers.len() {
            next.push(step(&mut |world| world.deliver_answer(place, bounds.flaw)));
        }
        if world.exact_calls < bounds.exact_calls {
            next.push(step(&mut |world| world.call_exactly(bounds.exact)));
        }
        next.into_iter().for_each(|world| self.push(world));
    }
}

const BOUNDS: Bounds = Bounds {
    nodes: 1,
    span: 5,
    calls: 2,
    exact_calls: 1,
    repeats: 0,
    choices: ALL,
    is_drained: false,
    exact: (0, 9),
    terms: TERMS,
    flaw: None,
};

#[test]
fn no_order_of_steps_admits_too_many() {
    let drained = Bounds { is_drained: true, ..BOUNDS };
    for bounds in [
        Bounds { span: 4, ..BOUNDS },
        Bounds { repeats: 1, span: 4, choices: &[Choice::Renew, Choice::Return], ..BOUNDS },
        Bounds { calls: 3, span: 3, exact: (DEMAND, 9), ..drained },
        Bounds { nodes: 2, calls: 1, span: 3, choices: &[Choice::Renew, Choice::Serve], ..BOUNDS },
        Bounds { nodes: 2, span: 2, choices: RENEW, ..drained },
        Bounds { span: 6, terms: FIXED, choices: &[Choice::Renew, Choice::Serve, Choice::Return], ..BOUNDS },
        Bounds { span: 7, terms: SLIDING, choices: RENEW, ..BOUNDS },
        Bounds { nodes: 2, calls: 1, span: 4, terms: FIXED, choices: RENEW, ..BOUNDS },
    ] {
        assert!(!Search::run(bounds).found);
    }
}

#[test]
fn faults_are_found() {
    let drained = Bounds { is_drained: true, choices: RENEW, ..BOUNDS };
    let depth = Bounds {
        exact_calls: 2,
        exact: (DEMAND, 2),
        span: 6,
        choices: &[Choice::Serve, Choice::Hold],
        terms: LONG,
        ..BOUNDS
    };
    let rate = Bounds { nodes: 2, exact_calls: 0, span: 2, terms: WIDE, ..drained };
    for (flaw, bounds) in [
        (Flaw::Store(StoreFlaw::ExpiryBeforeRefill), Bounds { calls: 1, span: 6, ..drained }),
        (
            Flaw::Store(StoreFlaw::BackBeyondRecord),
            Bounds { span: 6, choices: &[Choice::Renew, Choice::Return], ..BOUNDS },
        ),
        (Flaw::Store(StoreFlaw::DepthWithAnswer), depth),
        (Flaw::Store(StoreFlaw::RateWithAnswer), rate),
        (
            Flaw::Store(StoreFlaw::LeaseBeyondWindow),
            Bounds { span: 6, terms: FIXED, choices: RENEW, ..BOUNDS },
        ),
        (Flaw::EndFromAnswer, Bounds { choices: RENEW, calls: 1, span: 6, ..BOUNDS }),
        (Flaw::KeepsWhatItReturns, Bounds { choices: &[Choice::Exchange, Choice::Return], ..BOUNDS }),
        (Flaw::CountsKeptTwice, Bounds { choices: RENEW, ..BOUNDS }),
    ] {
        assert!(Search::run(Bounds { flaw: Some(flaw), ..bounds }).found, "{flaw:?}");
    }
}
