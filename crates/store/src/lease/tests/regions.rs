//! Regions and their home in simulated time: the script of the store itself, called over short and long ways.

use std::collections::{BTreeMap, HashMap};

use super::super::{
    HomeCall, HomeReport, HomeTerms, LeaseAnswer, LeaseCall, LeaseNode, LeaseSpend, LeaseTerms, PendingRun,
};
use super::oracle::OneLimit;
use super::script_agrees::{START_US, Script};
use super::simulation::{Random, Setting};

/// The round trip of a gateway to the store of its region.
const NEAR_US: u64 = 1_000;
/// The longest wait of a request.
const WAIT_US: u64 = 200_000;

struct Case {
    seed: u64,
    regions: usize,
    /// Gateways of each region, and beside the home.
    gateways: usize,
    at_home: usize,
    /// Units per second of the limit, its burst, and the units of all requests as a multiple of the rate.
    rate: u64,
    burst: u64,
    load: f64,
    span_us: u64,
    /// The round trip to the home, and how many times longer it may take.
    far_us: u64,
    jitter: f64,
    loss: f64,
    /// The floor in millionths; `None`: nobody tells a region that its home does not answer.
    share: Option<u32>,
    /// The first region is cut off from the home between these moments.
    cut_us: (u64, u64),
    /// The store of the first region forgets everything halfway.
    forgets: bool,
}

#[derive(Debug, Default)]
struct Outcome {
    excess: i128,
    asked: u64,
    admitted: u64,
    ideal: u64,
    home_calls: u64,
    /// Admissions by the home itself.
    of_home: u64,
    /// Admissions of gateways beside the home.
    beside_home: u64,
    /// What the first region admitted while it was cut off.
    cut_off: u64,
    /// What one bucket has left at the end.
    level: i128,
}

enum Event {
    Request,
    Call(LeaseCall, Option<HomeReport>),
    Answer(u64, LeaseAnswer, Option<HomeCall>),
    HomeCall(HomeCall),
    HomeAnswer(u64, Option<LeaseAnswer>),
    Poll,
    Forget,
}

#[derive(Default)]
struct Gateway {
    /// `None`: it is beside the home.
    region: Option<usize>,
    node: LeaseNode,
    /// The moments at which waiting requests came.
    waiting: Vec<u64>,
    asked: Vec<u64>,
    /// Those that calls of the home ask for.
    carried: HashMap<u64, Vec<u64>>,
    report: Option<HomeReport>,
    paused_until: u64,
}

struct World<'a> {
    case: &'a Case,
    script: &'a mut Script,
    terms: LeaseTerms,
    home: HomeTerms,
    random: Random,
    now: u64,
    events: BTreeMap<(u64, u64), (usize, Event)>,
    order: u64,
    numbers: u64,
    gateways: Vec<Gateway>,
    bucket: OneLimit,
    ideal: OneLimit,
    outcome: Outcome,
}

// === impl Case ===

impl Case {
    fn new(seed: u64) -> Case {
        Case {
            seed,
            regions: 3,
            gateways: 2,
            at_home: 0,
            rate: 2_000,
            burst: 2_000,
            load: 2.0,
            span_us: 2_000_000,
            far_us: 80_000,
            jitter: 0.5,
            loss: 0.0,
            share: None,
            cut_us: (0, 0),
            forgets: false,
        }
    }

    fn run(&self, script: &mut Script) -> Outcome {
        let terms = Setting::new(0, 1, self.rate, self.burst).terms();
        let in_regions = self.regions * self.gateways;
        let region_of = |place: usize| (place < in_regions).then_some(place % self.regions);
        let gateway = |place: usize| Gateway { region: region_of(place), ..Gateway::default() };
        let count = in_regions + self.at_home;
        let mut world = World {
            case: self,
            script,
            terms,
            home: HomeTerms::new(&terms, self.share.unwrap_or(1)),
            random: Random(self.seed),
            now: START_US,
            events: BTreeMap::new(),
            order: 0,
            numbers: 0,
            gateways: (0..count).map(gateway).collect(),
            bucket: OneLimit::full(&terms, START_US),
            ideal: OneLimit::full(&terms, START_US),
            outcome: Outcome::default(),
        };
        for place in 0..count {
            world.push(START_US, place, Event::Request);
            world.push(START_US + world.terms.term, place, Event::Poll);
        }
        if self.forgets {
            world.push(START_US + self.span_us / 2, 0, Event::Forget);
        }
        world.run();
        world.outcome
    }
}

// === impl World ===

impl World<'_> {
    fn run(&mut self) {
        while let Some(((at, _), (place, event))) = self.events.pop_first() {
            self.now = at;
            if at > START_US + self.case.span_us {
                break;
            }
            self.handle(place, event);
        }
        self.bucket.refill(&self.terms, START_US + self.case.span_us);
        self.outcome.level = self.bucket.level();
    }

    fn push(&mut self, at: u64, place: usize, event: Event) {
        self.order += 1;
        self.events.insert((at, self.order), (place, event));
    }

    fn key(&self, region: usize) -> String {
        format!("{} region {region}", self.case.seed)
    }

    fn is_cut(&self, place: usize) -> bool {
        let (from, until) = self.case.cut_us;
        self.gateways[place].region == Some(0) && (START_US + from..START_US + until).contains(&self.now)
    }

    /// A message to the home or back, which may be lost.
    fn send_far(&mut self, place: usize, event: Event) {
        if self.is_cut(place) || self.random.fraction() < self.case.loss {
            return;
        }
        let half = self.case.far_us as f64 / 2.0;
        let delay = half * (1.0 + self.case.jitter * self.random.fraction());
        self.push(self.now + delay as u64, place, event);
    }

    fn handle(&mut self, place: usize, event: Event) {
        match event {
            Event::Request => self.request(place),
            Event::Call(call, report) => self.answer_call(place, &call, report),
            Event::Answer(number, answer, home_call) => self.take_answer(place, number, &answer, home_call),
            Event::HomeCall(home_call) => {
                let HomeCall { name, call } = home_call;
                let (key, terms) = (format!("{} home", self.case.seed), self.home.own);
                let (answer, _) = self.script.answer(&terms, (self.now, name), &key, &call, None);
                self.charge(answer.granted);
                self.outcome.of_home += answer.granted;
                self.send_far(place, Event::HomeAnswer(call.number, Some(answer)));
            }
            Event::HomeAnswer(number, answer) => {
                let own = &mut self.gateways[place];
                let Some(mut carried) = own.carried.remove(&number) else { return };
                let granted = answer.map_or(0, |answer| answer.granted as usize).min(carried.len());
                carried.drain(..granted);
                own.waiting.splice(..0, carried);
                let is_told = answer.is_some() || self.case.share.is_some();
                own.report = is_told.then_some(HomeReport { number, answer });
                own.paused_until = 0;
                self.admit(place, granted as u64);
                self.call_if_due(place);
            }
            Event::Poll => {
                self.push(self.now + self.terms.term, place, Event::Poll);
                if self.gateways[place].node.is_idle(&self.terms, self.now) {
                    self.numbers += 1;
                    let call = self.gateways[place].node.begin_return(self.now, self.numbers);
                    self.send_call(place, call);
                }
                self.call_if_due(place);
            }
            Event::Forget => self.script.forget(&self.key(0)),
        }
    }

    fn request(&mut self, place: usize) {
        let per_us = self.case.load * self.case.rate as f64 / 1e6 / self.gateways.len() as f64;
        let gap = -(1.0 - self.random.fraction()).ln() / per_us;
        self.push(self.now + gap.max(1.0) as u64, place, Event::Request);
        self.outcome.asked += 1;
        self.ideal.refill(&self.terms, self.now);
        if self.ideal.level() >= self.terms.unit.into() {
            self.ideal.take(&self.terms, self.now, self.terms.unit);
            self.outcome.ideal += 1;
        }
        match self.gateways[place].node.spend(&self.terms, self.now, 1) {
            LeaseSpend::Taken => self.spend_here(place),
            LeaseSpend::Refused(_) => {}
            LeaseSpend::Ask => self.gateways[place].waiting.push(self.now),
        }
        self.call_if_due(place);
    }

    fn spend_here(&mut self, place: usize) {
        self.charge(1);
        self.admit(place, 1);
    }

    fn charge(&mut self, units: u64) {
        if units > 0 {
            let lacking = self.bucket.take(&self.terms, self.now, units * self.terms.unit);
            self.outcome.excess = self.outcome.excess.max(lacking);
        }
    }

    fn admit(&mut self, place: usize, units: u64) {
        self.outcome.admitted += units;
        self.outcome.beside_home += if self.gateways[place].region.is_none() { units } else { 0 };
        self.outcome.cut_off += if self.is_cut(place) { units } else { 0 };
    }

    fn call_if_due(&mut self, place: usize) {
        let (now, terms) = (self.now, self.terms);
        let own = &mut self.gateways[place];
        own.waiting.retain(|came| now < came + WAIT_US);
        let has_report = own.report.is_some();
        if own.node.is_calling || now < own.paused_until && !has_report {
            return;
        }
        if own.waiting.is_empty() && !has_report && !own.node.is_due(&terms, now) {
            return;
        }
        own.asked = std::mem::take(&mut own.waiting);
        self.numbers += 1;
        let runs = vec![PendingRun { count: own.asked.len() as u32, cost: 1 }];
        let call = own.node.begin_call(&terms, (now, self.numbers), runs);
        self.send_call(place, call);
    }

    fn send_call(&mut self, place: usize, call: LeaseCall) {
        let report = std::mem::take(&mut self.gateways[place].report);
        self.push(self.now + NEAR_US / 2, place, Event::Call(call, report));
    }

    fn answer_call(&mut self, place: usize, call: &LeaseCall, report: Option<HomeReport>) {
        let region = self.gateways[place].region;
        let key = region.map_or_else(|| format!("{} home", self.case.seed), |region| self.key(region));
        let part = region.map(|_| (self.home, report, self.random.next()));
        let caller = (self.now, place as u64);
        let (answer, home_call) = self.script.answer(&self.terms, caller, &key, call, part);
        self.charge(answer.granted);
        self.push(self.now + NEAR_US / 2, place, Event::Answer(call.number, answer, home_call));
    }

    fn take_answer(&mut self, place: usize, number: u64, answer: &LeaseAnswer, home_call: Option<HomeCall>) {
        let (now, terms) = (self.now, self.terms);
        let own = &mut self.gateways[place];
        assert!(own.node.apply_answer(&terms, (now, number), answer));
        let asked = std::mem::take(&mut own.asked);
        let granted = (answer.granted as usize).min(asked.len());
        let mut others = asked[granted..].to_vec();
        others.append(&mut own.waiting);
        own.paused_until = if answer.is_home_asked { now + 5_000 } else { 0 };
        self.admit(place, granted as u64);
        for came in others {
            match self.gateways[place].node.spend_again(&terms, now, 1) {
                LeaseSpend::Taken => self.spend_here(place),
                LeaseSpend::Ask if answer.left >= terms.unit || answer.asks_home => {
                    self.gateways[place].waiting.push(came);
                }
                LeaseSpend::Ask | LeaseSpend::Refused(_) => {}
            }
        }
        if let Some(mut home_call) = home_call {
            self.outcome.home_calls += 1;
            let own = &mut self.gateways[place];
            let carried = std::mem::take(&mut own.waiting);
            home_call.call.pending = vec![PendingRun { count: carried.len() as u32, cost: 1 }];
            let number = home_call.call.number;
            own.carried.insert(number, carried);
            self.push(now + self.home.own.term, place, Event::HomeAnswer(number, None));
            self.send_far(place, Event::HomeCall(home_call));
        } else if answer.is_home_asked {
            self.push(now + 5_000, place, Event::Poll);
        }
        self.call_if_due(place);
    }
}

#[test]
fn regions_admit_one_bucket() {
    let mut script = Script::start();
    for seed in 0..12 {
        let mut random = Random(seed);
        let case = Case {
            load: [0.5, 2.0, 5.0][random.below(3) as usize],
            far_us: [20_000, 80_000, 200_000][random.below(3) as usize],
            jitter: 3.0 * random.fraction(),
            loss: [0.0, 0.1, 0.3][random.below(3) as usize],
            forgets: random.below(3) == 0,
            ..Case::new(seed)
        };
        let outcome = case.run(&mut script);
        assert_eq!(outcome.excess, 0, "seed {seed}: {outcome:?}");
        assert!(outcome.admitted > 0, "seed {seed}: {outcome:?}");
    }
}

#[test]
fn distant_regions_lose_little() {
    let mut script = Script::start();
    for (load, least) in [(0.8, 0.97), (2.0, 0.93), (5.0, 0.93)] {
        let case = Case { load, span_us: 6_000_000, ..Case::new(100 + load as u64) };
        let outcome = case.run(&mut script);
        assert!(outcome.admitted as f64 >= least * outcome.ideal as f64, "{load}: {outcome:?}");
    }
}

/// Gateways beside the home take no more than their part.
#[test]
fn regions_have_their_part_beside_the_home() {
    let mut script = Script::start();
    let case = Case {
        regions: 2,
        at_home: 1,
        rate: 500,
        burst: 250,
        load: 3.4,
        span_us: 5_000_000,
        ..Case::new(300)
    };
    let outcome = case.run(&mut script);
    assert_eq!(outcome.excess, 0);
    assert!(outcome.beside_home * 10 <= outcome.admitted * 4, "{outcome:?}");
}

/// A region that is cut off admits its floor and no more beyond one bucket, and pays for it later.
#[test]
fn a_region_that_is_cut_off_has_its_floor() {
    let mut script = Script::start();
    for seed in 200..208 {
        let mut random = Random(seed);
        let (from, cut_for) = (500_000 + random.below(1_000_000), 500_000 + random.below(2_500_000));
        let share = [100_000, 200_000, 300_000][random.below(3) as usize];
        let case = Case {
            load: [1.5, 2.0, 4.0][random.below(3) as usize],
            jitter: 2.0 * random.fraction(),
            share: Some(share),
            cut_us: (from, from + cut_for),
            span_us: from + cut_for + 4_000_000,
            ..Case::new(seed)
        };
        let (outcome, unit) = (case.run(&mut script), Setting::new(0, 1, 2_000, 2_000).terms().unit);
        let floor = case.rate * u64::from(share) / 1_000_000;
        // A full bucket of the floor, and its rate from the end of the lease until the home answers again.
        let most = floor + floor * (cut_for + 400_000) / 1_000_000;
        assert!(outcome.excess <= i128::from(most * unit), "seed {seed}: {outcome:?}");
        assert!(outcome.cut_off <= most + case.burst * 2 / 5, "seed {seed}: {outcome:?}");
        assert!(
            outcome.cut_off >= floor * cut_for.saturating_sub(1_200_000) / 1_000_000,
            "seed {seed}: {outcome:?}"
        );
        assert!(outcome.level >= 0, "seed {seed}: {outcome:?}");
    }
}
