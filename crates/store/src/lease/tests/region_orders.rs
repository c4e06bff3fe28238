//! Regions and their home in random orders of steps, each as odd as it may be: the script itself against one bucket.

use super::super::{
    HomeCall, HomeReport, HomeTerms, LeaseAnswer, LeaseCall, LeaseNode, LeaseSpend, LeaseTerms, PendingRun,
};
use super::oracle::OneLimit;
use super::script_agrees::{START_US, Script};
use super::simulation::{Random, Setting};

#[derive(Default)]
struct Region {
    nodes: [LeaseNode; 2],
    answers: Vec<(usize, u64, LeaseAnswer)>,
    /// Calls of the home that arrive some time, perhaps twice, and what came of them.
    calls: Vec<HomeCall>,
    reports: Vec<Option<HomeReport>>,
}

struct World<'a> {
    script: &'a mut Script,
    terms: LeaseTerms,
    home: HomeTerms,
    random: Random,
    seed: u64,
    now: u64,
    numbers: u64,
    regions: Vec<Region>,
    bucket: OneLimit,
    excess: i128,
    /// Regions are told that their home does not answer.
    fails: bool,
    /// The stores of regions forget everything now and then.
    forgets: bool,
}

// === impl World ===

impl World<'_> {
    fn charge(&mut self, units: u64) {
        if units > 0 {
            let lacking = self.bucket.take(&self.terms, self.now, units * self.terms.unit);
            self.excess = self.excess.max(lacking);
        }
    }

    fn any_pending(&mut self, most: u64) -> Vec<PendingRun> {
        let count = [0, 1, most, self.random.below(most + 1)][self.random.below(4) as usize];
        if count > 0 { vec![PendingRun { count: count as u32, cost: 1 }] } else { vec![] }
    }

    fn call_region(&mut self, region: usize, node: usize, report: Option<HomeReport>) {
        let (now, unit) = (self.now, self.terms.unit);
        self.numbers += 1;
        let number = self.numbers;
        let demand = [0, 10_000, 1_000_000, 5_000_000][self.random.below(4) as usize];
        let most = [0, 0, 3, 2_000][self.random.below(4) as usize];
        let pending = self.any_pending(most);
        let want = if demand == 0 { 0 } else { self.random.below(200) * unit };
        let own = &mut self.regions[region].nodes[node];
        let held = own.ticks_held(now).0 / unit * unit;
        let keep = if self.random.below(3) == 0 { 0 } else { held.min(own.held) };
        let call = own.send_call((now, number), (keep, want, demand), pending);
        let part = Some((self.home, report, self.random.next()));
        let (caller, key) = ((now, 10 * region as u64 + node as u64), self.key(region));
        let (answer, home_call) = self.script.answer(&self.terms, caller, &key, &call, part);
        self.regions[region].calls.extend(home_call);
        self.regions[region].answers.push((node, number, answer));
        self.charge(answer.granted);
    }

    fn key(&self, region: usize) -> String {
        format!("{} region {region}", self.seed)
    }

    fn call_home(&mut self, caller: u64, terms: LeaseTerms, call: &LeaseCall) -> LeaseAnswer {
        let key = format!("{} home", self.seed);
        let (answer, _) = self.script.answer(&terms, (self.now, caller), &key, call, None);
        self.charge(answer.granted);
        answer
    }

    fn apply_answer(&mut self, region: usize, place: usize) {
        let (node, number, answer) = self.regions[region].answers.swap_remove(place);
        self.regions[region].nodes[node].apply_answer(&self.terms, (self.now, number), &answer);
    }

    /// The last of so many half of the time, else any.
    fn any_place(&mut self, count: usize) -> usize {
        match self.random.below(2) {
            0 => count - 1,
            _ => self.random.below(count as u64) as usize,
        }
    }

    fn step(&mut self) {
        let own = self.home.own;
        self.now += match self.random.below(36) {
            0 => own.term,
            1 => own.hold / 2,
            2 => self.random.below(own.hold + own.guard),
            3..=6 => self.random.below(own.term / 4),
            7 => 1_000,
            _ => 0,
        };
        let region = self.random.below(self.regions.len() as u64) as usize;
        let node = self.random.below(2) as usize;
        match self.random.below(20) {
            0 => {
                self.numbers += 1;
                let pending = vec![PendingRun { count: 1_000_000, cost: 1 }];
                let call = LeaseCall { number: self.numbers, stopped: true, pending, ..LeaseCall::default() };
                self.call_home(999, self.terms, &call);
            }
            1..=4 => {
                self.call_region(region, node, None);
                if self.random.below(4) > 0 {
                    self.apply_answer(region, self.regions[region].answers.len() - 1);
                }
            }
            5 if !self.regions[region].answers.is_empty() => {
                let place = self.any_place(self.regions[region].answers.len());
                self.apply_answer(region, place);
            }
            6..=9 => self.spend(region, node),
            10..=14 if !self.regions[region].calls.is_empty() => self.deliver_call(region),
            15..=18 if !self.regions[region].reports.is_empty() => {
                let place = self.any_place(self.regions[region].reports.len());
                let report = self.regions[region].reports[place];
                if self.random.below(5) > 0 {
                    self.regions[region].reports.swap_remove(place);
                }
                self.call_region(region, node, report);
            }
            19 => self.break_something(region, node),
            _ => {}
        }
    }

    fn spend(&mut self, region: usize, node: usize) {
        for _ in 0..[1, 10, 100_000][self.random.below(3) as usize] {
            let own = &mut self.regions[region].nodes[node];
            if own.spend_again(&self.terms, self.now, 1) != LeaseSpend::Taken {
                break;
            }
            self.charge(1);
        }
    }

    fn deliver_call(&mut self, region: usize) {
        let place = self.any_place(self.regions[region].calls.len());
        let mut home_call = match self.random.below(5) {
            0 => self.regions[region].calls[place].clone(),
            _ => self.regions[region].calls.swap_remove(place),
        };
        home_call.call.pending = self.any_pending(3);
        let answer = self.call_home(home_call.name, self.home.own, &home_call.call);
        self.regions[region]
            .reports
            .push(Some(HomeReport { number: home_call.call.number, answer: Some(answer) }));
    }

    fn break_something(&mut self, region: usize, node: usize) {
        match self.random.below(8) {
            0 if self.forgets => {
                let key = self.key(region);
                self.script.forget(&key);
            }
            1 => {
                self.regions[region].nodes[node] = LeaseNode::default();
                self.regions[region].answers.clear();
            }
            2..=4 if self.fails => {
                let last = self.regions[region].calls.last().map(|call| call.call.number);
                if let Some(number) = last {
                    self.call_region(region, node, Some(HomeReport { number, answer: None }));
                }
            }
            _ => {}
        }
    }
}

#[test]
fn no_order_of_steps_of_regions_admits_too_many() {
    let mut script = Script::start();
    for seed in 0..150 {
        let mut random = Random(seed);
        let terms = Setting::new(0, 1, 1_000, [1_000, 300][random.below(2) as usize]).terms();
        let (fails, forgets) = (random.below(3) == 0, random.below(2) == 0);
        let mut world = World {
            script: &mut script,
            terms,
            home: HomeTerms::new(&terms, 1),
            seed,
            now: START_US,
            numbers: 0,
            regions: (0..1 + random.below(2)).map(|_| Region::default()).collect(),
            bucket: OneLimit::full(&terms, START_US),
            excess: 0,
            fails,
            forgets,
            random,
        };
        // The least floor is a unit of each region.
        let most = if fails { 2 * terms.unit } else { 0 };
        for step in 0..400 {
            world.step();
            assert!(world.excess <= most.into(), "seed {seed}, step {step}: {} too many", world.excess);
        }
    }
}
