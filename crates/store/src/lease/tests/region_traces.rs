//! Single traces of regions and windows, which random steps reach too seldom.

use super::super::{
    HomeCall, HomeReport, HomeTerms, LeaseAnswer, LeaseCall, LeaseNode, LeaseSpend, LeaseTerms, PendingRun,
};
use super::script_agrees::{START_US, Script};
use super::simulation::Setting;
use super::store_model::StoreModel;
use crate::script::rule_shape::RuleShape;
use sluicegate_model::WindowAlign;

const BORDER_US: u64 = 2_000_000;

struct Region {
    script: Script,
    terms: LeaseTerms,
    home: HomeTerms,
    number: u64,
}

// === impl Region ===

impl Region {
    fn new(rate: u64, burst: u64, share: u32) -> Region {
        let terms = Setting::new(0, 1, rate, burst).terms();
        Region { script: Script::start(), terms, home: HomeTerms::new(&terms, share), number: 0 }
    }

    fn call(
        &mut self,
        at: u64,
        call: LeaseCall,
        report: Option<HomeReport>,
    ) -> (LeaseAnswer, Option<HomeCall>) {
        self.number += 1;
        let (call, new_name) = (LeaseCall { number: self.number, ..call }, 1_000_000 + self.number);
        let part = Some((self.home, report, new_name));
        self.script.answer(&self.terms, (START_US + at, 1), "region", &call, part)
    }

    /// The call of the home to which a request leads.
    fn begin(&mut self, at: u64) -> HomeCall {
        self.call(at, ask(1, 2_000_000), None).1.expect("a call of the home")
    }

    fn fail(&mut self, at: u64, call: &HomeCall) {
        self.call(at, ask(1, 2_000_000), Some(HomeReport { number: call.call.number, answer: None }));
    }

    fn ask_home(&mut self, at: u64, call: &HomeCall) -> Option<HomeReport> {
        let (terms, caller) = (self.home.own, (START_US + at, call.name));
        let (answer, _) = self.script.answer(&terms, caller, "home", &call.call, None);
        Some(HomeReport { number: call.call.number, answer: Some(answer) })
    }

    /// What a gateway beside the home gets.
    fn ask_beside(&mut self, at: u64, call: LeaseCall) -> u64 {
        self.number += 1;
        let call = LeaseCall { number: self.number, ..call };
        self.script.answer(&self.terms, (START_US + at, 9), "home", &call, None).0.granted
    }
}

fn ask(count: u32, demand: u64) -> LeaseCall {
    let pending = if count > 0 { vec![PendingRun { count, cost: 1 }] } else { vec![] };
    LeaseCall { stopped: true, pending, demand, ..LeaseCall::default() }
}

/// A unit that was spent in the window before is not given back to the present one.
#[test]
fn a_refund_over_a_border_is_none() {
    assert_eq!([false, true].map(granted_in_a_window_of_ten), [10, 10]);
}

/// `calls_before`: the node calls in the new window before the unit comes back.
fn granted_in_a_window_of_ten(calls_before: bool) -> u64 {
    let shape = RuleShape::FixedWindow { max: 10, period: 1_000_000, align: WindowAlign::Clock };
    let terms = LeaseTerms::new(shape).unwrap();
    let mut store = StoreModel::full(&terms, 1_000_000);
    let (mut one, mut other) = (LeaseNode::default(), LeaseNode::default());
    let runs = |count| vec![PendingRun { count, cost: 1 }];
    let call = one.send_call((BORDER_US - 150_000, 1), (0, 2 * terms.unit, 10_000), runs(2));
    let answer = store.answer_call(&terms, BORDER_US - 149_900, 1, &call);
    assert!(one.apply_answer(&terms, (BORDER_US - 149_800, 1), &answer) && answer.held > 0);
    // It calls, spends a unit while the call is under way, and the border passes.
    let call = one.send_call((BORDER_US - 1_000, 2), (answer.held, 0, 0), vec![]);
    assert_eq!(one.spend(&terms, BORDER_US - 500, 1), LeaseSpend::Taken);
    let answer = store.answer_call(&terms, BORDER_US + 100, 1, &call);
    assert!(one.apply_answer(&terms, (BORDER_US + 1_000, 2), &answer) && answer.held == 0);
    let call_one = |one: &mut LeaseNode, store: &mut StoreModel, at, number| {
        let call = one.begin_call(&terms, (at, number), vec![]);
        let answer = store.answer_call(&terms, at + 100, 1, &call);
        assert!(one.apply_answer(&terms, (at + 200, number), &answer));
    };
    if calls_before {
        call_one(&mut one, &mut store, BORDER_US + 1_100, 3);
    }
    let mut ask_other = |store: &mut StoreModel, at, number| {
        let call = other.begin_call(&terms, (at, number), runs(20));
        let answer = store.answer_call(&terms, at + 500, 2, &call);
        assert!(other.apply_answer(&terms, (at + 600, number), &answer));
        answer.granted
    };
    let mut granted = ask_other(&mut store, BORDER_US + 2_000, 4);
    one.put_back(&terms, LeaseNode::mark_spent(BORDER_US - 500), 1);
    granted += u64::from(one.spend(&terms, BORDER_US + 3_500, 1) == LeaseSpend::Taken);
    call_one(&mut one, &mut store, BORDER_US + 4_000, 5);
    granted + ask_other(&mut store, BORDER_US + 6_000, 6)
}

/// After a rest, the store is taken to have what the rate has brought.
#[test]
fn a_rest_brings_units() {
    let terms = Setting::new(0, 1, 100, 100).terms();
    let (mut store, mut node) = (StoreModel::full(&terms, START_US), LeaseNode::default());
    let call = node.begin_call(&terms, (START_US, 1), vec![PendingRun { count: 100, cost: 1 }]);
    assert!(node.apply_answer(&terms, (START_US, 1), &store.answer_call(&terms, START_US, 1, &call)));
    let known = node.find_left(&terms, START_US + 2_000_000);
    assert!(known.units() == 0 && known.next_us > 0, "{known:?}");
    let [half, all] = [500_000, 2_000_000].map(|rest| node.estimate_left(&terms, START_US + rest));
    assert_eq!((half.stored, half.next_us, half.full_us), (50, 0, 500_000));
    assert_eq!((all.units(), all.full_us), (100, 0));
}

/// A region with a leased rate that owes units does not say that it has some.
#[test]
fn a_region_in_debt_has_nothing() {
    let mut region = Region::new(2_000, 2_000, 300_000);
    assert_eq!(region.ask_beside(0, ask(2_000, 0)), 2_000);
    let mut call = region.begin(1_000);
    call.call.pending = vec![PendingRun { count: 200, cost: 1 }];
    let report = region.ask_home(41_000, &call);
    assert!(report.and_then(|report| report.answer).is_some_and(|answer| answer.rate > 0));
    region.call(81_000, ask(0, 2_000_000), report);
    let owed = LeaseCall { owed: 200 * region.terms.unit, owed_since: 4, ..ask(0, 2_000_000) };
    region.call(82_000, owed, None);
    for at in (150_000..400_000).step_by(3_000) {
        let (answer, home_call) = region.call(at, ask(5, 2_000_000), None);
        if home_call.is_some() {
            break;
        }
        assert!(answer.granted > 0 || answer.left < region.terms.unit, "{answer:?}");
    }
}

/// A region that owes more than it leases has its home charge the rest.
#[test]
fn a_debt_beyond_the_lease_goes_to_the_home() {
    let mut region = Region::new(2_000, 2_000, 300_000);
    let (unit, call) = (region.terms.unit, region.begin(0));
    let report = region.ask_home(40_000, &call);
    let leased = region.call(80_000, ask(0, 2_000_000), report).0.left / unit;
    assert_eq!(leased, 800);
    region.call(82_000, LeaseCall { owed: 1_000 * unit, owed_since: 3, ..ask(0, 2_000_000) }, None);
    let LeaseCall { owed, held, keep, .. } = region.begin(90_000).call;
    assert_eq!((owed / unit, held, keep), (200, 0, 0));
}

/// A leased rate that is not wanted any more is given up, and one that has ended keeps no request from the home.
#[test]
fn a_leased_rate_ends() {
    let rated = || {
        let mut region = Region::new(2_000, 2_000, 300_000);
        region.ask_beside(0, ask(2_000, 0));
        let mut call = region.begin(1_000);
        call.call.pending = vec![PendingRun { count: 200, cost: 1 }];
        let report = region.ask_home(41_000, &call);
        assert!(!region.call(81_000, ask(1, 2_000_000), report).0.asks_home);
        region
    };
    let (_, call) = rated().call(600_000, ask(0, 100), None);
    assert!(call.is_some_and(|call| call.call.stopped && call.call.want == 0));
    let mut region = rated();
    let (answer, call) = region.call(1_000 + region.home.own.hold, ask(1, 2_000_000), None);
    assert!(call.is_some() && answer.asks_home, "{answer:?}");
}

/// A region that was cut off for long owes its home no more than a full bucket.
#[test]
fn what_a_region_owes_is_bounded() {
    let mut region = Region::new(2_000, 2_000, 300_000);
    let mut call = region.begin(0);
    region.fail(10_000, &call);
    for second in 1..30 {
        if let Some(next) = region.call(second * 1_000_000, ask(2_000, 2_000_000), None).1 {
            call = next;
            region.fail(second * 1_000_000 + 10_000, &call);
        }
    }
    let report = region.ask_home(30_000_000, &call);
    region.call(30_000_000, ask(0, 2_000_000), report);
    let owed = region.begin(31_000_000).call.owed;
    assert!(owed > region.terms.depth / 2 && owed <= region.terms.depth, "{owed}");
}

/// What the floor brings and nobody spends is not charged at the home.
#[test]
fn unspent_units_of_the_floor_are_not_charged() {
    let mut region = Region::new(2_000, 2_000, 300_000);
    let call = region.begin(0);
    region.fail(10_000, &call);
    region.ask_beside(1_010_000, ask(2_000, 5_000_000));
    let want = LeaseCall { want: 100 * region.terms.unit, ..ask(0, 400_000) };
    let (answer, call) = region.call(1_010_000, want, None);
    let (held, mut call, own) = (answer.held, call, region.number);
    assert!(held > 0);
    let (mut debts, mut report) = (0, None);
    // A gateway keeps what it holds, and others use up the home.
    for turn in 0..30 {
        let at = 1_110_000 + turn * 100_000;
        if let Some(call) = call.take() {
            debts += call.call.owed;
            report = region.ask_home(at - 60_000, &call);
        }
        region.ask_beside(at, ask(2_000, 5_000_000));
        let keep = LeaseCall { applied: own, held, keep: held, ..ask(0, 400_000) };
        call = region.call(at, keep, std::mem::take(&mut report)).1;
    }
    // One request passed when the home had failed.
    assert!(debts <= held + region.terms.unit, "{} units", debts / region.terms.unit);
}

/// What the floor admits is charged at the home once.
#[test]
fn units_of_the_floor_are_charged_once() {
    let mut region = Region::new(2_000, 2_000, 300_000);
    let call = region.begin(0);
    region.fail(10_000, &call);
    let (answer, call) = region.call(510_000, ask(200, 2_000_000), None);
    assert_eq!(answer.granted, 200);
    let call = call.expect("the home is asked again");
    // One request passed when the home had failed.
    assert_eq!(call.call.owed / region.terms.unit, 201);
    // The answer is lost, and then the home answers the next call.
    let _ = region.ask_home(550_000, &call);
    let again = region.begin(1_010_000);
    assert_eq!((again.call.owed, again.call.owed_since), (call.call.owed, call.call.owed_since));
    let report = region.ask_home(1_050_000, &again);
    region.call(1_090_000, ask(0, 2_000_000), report);
    let (_, next) = region.call(1_500_000, ask(900, 2_000_000), None);
    let owed = next.map_or(0, |next| next.call.owed / region.terms.unit);
    assert!(owed <= 1, "{owed}");
}

/// A request waits for a home that had nothing left, but some time ago.
#[test]
fn a_used_up_home_is_asked_again() {
    let mut region = Region::new(5, 200, 300_000);
    region.ask_beside(0, ask(200, 0));
    let call = region.begin(1_000);
    let report = region.ask_home(41_000, &call);
    assert!(!region.call(81_000, ask(1, 10_000), report).0.asks_home);
    assert!(!region.call(400_000, ask(1, 10_000), None).0.asks_home);
    let (answer, call) = region.call(3_000_000, ask(1, 10_000), None);
    assert!(answer.asks_home && call.is_some());
}

/// A key that is asked for first while the home is away has the floor's burst.
#[test]
fn a_floor_begins_full() {
    let mut region = Region::new(2_000, 2_000, 300_000);
    let call = region.begin(0);
    let report = Some(HomeReport { number: call.call.number, answer: None });
    let (answer, _) = region.call(1_000, ask(700, 2_000_000), report);
    assert_eq!(answer.granted, 600);
}

/// An answer to a region that was emptied is none to the one that follows.
#[test]
fn an_answer_to_a_forgotten_region_is_none() {
    let mut region = Region::new(400, 2_000, 1);
    let first = region.begin(0);
    let report = region.ask_home(40_000, &first);
    let later = region.home.own.hold + region.home.own.guard + 2_050_000;
    region.script.forget("region");
    let second = region.begin(later);
    assert_ne!(first.name, second.name);
    // The gateway that made the first call was stopped until now.
    let beside = region.ask_beside(later + 500, ask(4_000, 1_000));
    let granted = region.call(later + 1_000, ask(2_000, 2_000_000), report).0.granted;
    assert!(beside + granted <= 2_001, "{beside} and {granted}");
}

/// A clock that steps back a little loses nothing of a region that has not leased yet.
#[test]
fn a_small_step_back_keeps_a_region() {
    let mut region = Region::new(2_000, 2_000, 300_000);
    let first = region.begin(0);
    region.fail(10_000, &first);
    region.call(400_000, ask(200, 2_000_000), None);
    let later = [399_000, 510_000].map(|at| region.call(at, ask(1, 2_000_000), None).1);
    assert!(later.into_iter().flatten().all(|call| call.name == first.name));
}

/// Requests do not wait for a home that did not answer.
#[test]
fn requests_do_not_wait_for_a_home_that_failed() {
    let mut region = Region::new(2_000, 2_000, 300_000);
    let call = region.begin(0);
    let report = region.ask_home(40_000, &call);
    region.call(80_000, ask(10_000, 2_000_000), report);
    let mut waits = 0;
    for at in (81_000..2_000_000).step_by(10_000) {
        let (answer, call) = region.call(at, ask(1, 2_000_000), None);
        waits += u32::from(answer.asks_home);
        if let Some(call) = call {
            region.fail(at + 500, &call);
        }
    }
    assert!(waits < 60, "{waits}");
}

/// A lease of the region ends by the moment of its call, however late the answer is applied, and those of gateways end
/// before it.
#[test]
fn no_lease_outlives_that_at_the_home() {
    let mut region = Region::new(400, 2_000, 1);
    let (call, hold) = (region.begin(0), region.home.own.hold);
    let report = region.ask_home(40_000, &call);
    let at = hold - 300_000;
    let want = LeaseCall { want: 100 * region.terms.unit, ..ask(0, 2_000_000) };
    let (answer, _) = region.call(at, want, report);
    assert!(answer.held > 0 && answer.rest < hold - at, "{answer:?}");
    let later = hold + region.home.own.guard + 500_000;
    let beside = region.ask_beside(later, ask(4_000, 1_000));
    let granted = region.call(later, ask(2_000, 2_000_000), None).0.granted;
    assert!(beside + granted <= 2_000, "{beside} and {granted}");
}

/// A region whose last unit is taken does not keep requests from its home.
#[test]
fn a_region_without_units_asks_its_home() {
    let mut region = Region::new(100, 200, 400_000);
    let mut call = region.begin(0);
    call.call.pending = vec![PendingRun { count: 1, cost: 1 }];
    call.call.want = 2 * region.terms.unit;
    let report = region.ask_home(1_000, &call);
    let (answer, _) = region.call(2_000, ask(2, 10_000), report);
    assert_eq!((answer.granted, answer.left, answer.asks_home), (2, 0, true));
    let (answer, call) = region.call(3_000, ask(1, 10_000), None);
    assert!(call.is_some() && answer.asks_home && !answer.is_home_asked);
    let (answer, call) = region.call(4_000, ask(1, 10_000), None);
    assert!(call.is_none() && answer.is_home_asked);
}
