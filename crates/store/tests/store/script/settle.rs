//! Charges that responses settle: the script and the local engine agree on every trace of reservations, settlements and
//! answers that forget.

use std::cell::RefCell;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, StatusCode};
use proptest::prelude::*;
use sluicegate_admission::chain::{
    Chain, ChainPermit, ChainVerdict, Charge, Decisions, LimitDemand, Look, WaitingCap,
};
use sluicegate_admission::settlement::{ReadingPlan, ResponseReading};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, Limit};
use sluicegate_model::{
    self as model, Algorithm, ChargeConfig, ChargedUnits, LimitId, MissingUnits, OverrunAction, Reserve,
    ResponseSet, StatusRanges, TokenBucketRate, WindowAlign,
};
use sluicegate_store::{CallItem, RateAnswer, ScriptOp, SettleItem, SettledKey};

use crate::limits::{self, rate};
use crate::script::support::*;

const COST: HeaderName = HeaderName::from_static("x-cost");
/// The status that forgets what the key has used.
const CLEARS: StatusCode = StatusCode::NO_CONTENT;

/// A step after a gap: its parts in ‰ of the period, and microseconds more.
#[derive(Debug, Clone, Copy)]
enum Step {
    Reserve {
        units: u64,
    },
    Settle {
        which: usize,
        percent: u64,
        more: u64,
        clears: bool,
    },
    /// The request never reached its server.
    Refund {
        which: usize,
    },
    Peek {
        units: u64,
    },
}

/// A reservation in both engines.
struct Open {
    permit: ChainPermit,
    answers: Vec<RateAnswer>,
    units: u64,
}

struct Twin<'a> {
    counters: &'a RefCell<Counters>,
    shared: Shared,
    chain: Chain,
    waiting: Arc<WaitingCap>,
    open: Vec<Open>,
    sequence: u64,
}

pub fn charging(algorithm: Algorithm) -> model::LimitConfig {
    let charge = ChargeConfig {
        when: None,
        clear: ResponseSet {
            statuses: StatusRanges(vec![(CLEARS.as_u16(), CLEARS.as_u16())]),
            grpc_codes: vec![],
        },
        units: vec![ChargedUnits::Header(COST)],
        reserve: Reserve::Cost,
        missing: MissingUnits::Nothing,
        over: OverrunAction::Finish,
        counts_kib: false,
        pricing: None,
    };
    model::LimitConfig { charge: Some(charge), ..limits::config(algorithm) }
}

fn up(decision: &Decision) -> Decision {
    let us = |ns: u64| ns.div_ceil(1_000) * 1_000;
    let (reset_ns, retry_after_ns) = (us(decision.reset_ns), us(decision.retry_after_ns));
    // The store does not tell when the newest charge of a window leaves.
    Decision { reset_ns, retry_after_ns, full_ns: 0, ..*decision }
}

impl<'a> Twin<'a> {
    fn new(counters: &'a RefCell<Counters>, configs: Vec<model::LimitConfig>) -> Twin<'a> {
        counters.borrow_mut().flush();
        let shared = Shared::new(configs);
        let limit = |(index, config)| Arc::new(Limit::new(LimitId(index), config, 1000));
        let chain = Chain::new(shared.configs.iter().enumerate().map(limit).collect());
        let waiting = Arc::new(WaitingCap::new(1000));
        Twin { counters, shared, chain, waiting, open: vec![], sequence: 0 }
    }

    fn demand(cost: u64) -> impl Fn(&Limit) -> LimitDemand {
        move |_| LimitDemand::Units(limits::units(1, cost))
    }

    fn peek(&self, cost: u64, now: u64, when: &str) {
        let items = self.shared.items(&[key(1)], cost);
        let reply = self.counters.borrow_mut().call(ScriptOp::Peek, &items, now);
        let mut found = Decisions::new();
        let at = Now(now * 1_000);
        drop(self.chain.judge::<Look>(at, &self.waiting, true, Self::demand(cost), &mut found));
        let ours: Vec<Decision> = reply.answers.iter().map(|answer| up(&answer.decision)).collect();
        let theirs: Vec<Decision> = found.iter().map(|judged| up(&judged.decision)).collect();
        assert_eq!(ours, theirs, "{when}, peek of {cost} at {now}");
    }

    fn reserve(&mut self, units: u64, now: u64) {
        let items = self.shared.items(&[key(1)], units);
        let reply = self.counters.borrow_mut().call(ScriptOp::Take, &items, now);
        let mut found = Decisions::new();
        let at = Now(now * 1_000);
        let verdict = self.chain.judge::<Charge>(at, &self.waiting, true, Self::demand(units), &mut found);
        let ours: Vec<Decision> = reply.answers.iter().map(|answer| up(&answer.decision)).collect();
        let theirs: Vec<Decision> = found.iter().map(|judged| up(&judged.decision)).collect();
        assert_eq!(ours, theirs, "reservation of {units} at {now}");
        match verdict {
            ChainVerdict::Admit(mut permit) => {
                assert!(reply.admitted);
                permit.keep_charges();
                self.open.push(Open { permit, answers: reply.answers.to_vec(), units });
            }
            ChainVerdict::Reject(_) => assert!(!reply.admitted),
            _ => panic!("neither admitted nor rejected"),
        }
    }

    /// The units that both forgive, of the rate that forgives most.
    fn settle_in_store(&mut self, open: &Open, used: u64, forgets: bool, now: u64) -> Option<u64> {
        let items = self.shared.items(&[key(1)], open.units);
        let settled = |(item, answer): (&CallItem<'_>, &RateAnswer)| {
            let (rule, mark) =
                (self.shared.rules.iter().flatten().find(|rule| *rule == item.rule), answer.mark);
            SettleItem {
                rule: rule.unwrap(),
                mark,
                reserved: open.units,
                used,
                forgets,
                anchor: None,
                class: 0,
            }
        };
        let items: Vec<_> = items.iter().zip(&open.answers).map(settled).collect();
        self.sequence += 1;
        let keys = [SettledKey { key: key(1), sequence: self.sequence, items }];
        let mut counters = self.counters.borrow_mut();
        let bytes = counters.settle(&keys, now);
        let forgiven = SettledKey::parse_reply(&keys, &bytes).unwrap();
        // A call that is repeated changes nothing.
        let before = counters.dump();
        let again = counters.settle(&keys, now);
        assert!(SettledKey::parse_reply(&keys, &again).unwrap()[0].iter().all(Option::is_none));
        assert_eq!(counters.dump(), before);
        forgiven[0].iter().copied().max().unwrap()
    }

    fn settle(&mut self, which: usize, used: u64, clears: bool, now: u64) {
        let mut open = self.open.swap_remove(which % self.open.len());
        let ours = self.settle_in_store(&open, used, clears, now);
        let plan = ReadingPlan::for_limits(self.shared.configs.iter()).unwrap();
        let mut reading = ResponseReading::new(plan, false, Vec::new());
        reading.begin_attempt();
        reading.read_head(&HeaderMap::from_iter([(COST, used.to_string().parse().unwrap())]));
        reading.set_status(if clears { CLEARS } else { StatusCode::OK });
        let settlements = open.permit.settle_charges(&reading, 0, Now(now * 1_000));
        let theirs = settlements.iter().map(|settled| settled.overrun).max();
        assert_eq!(ours, theirs, "settled to {used} at {now}");
    }

    fn refund(&mut self, which: usize, now: u64) {
        let mut open = self.open.swap_remove(which % self.open.len());
        let mut items = self.shared.items(&[key(1)], open.units);
        items.iter_mut().zip(&open.answers).for_each(|(item, answer)| item.mark = answer.mark);
        self.counters.borrow_mut().call(ScriptOp::Refund, &items, now);
        let plan = ReadingPlan::for_limits(self.shared.configs.iter()).unwrap();
        open.permit.settle_charges(&ResponseReading::new(plan, false, Vec::new()), 0, Now(now * 1_000));
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let percent = prop_oneof![Just(0), Just(100), 0..100u64, 100..400u64];
    let more = prop_oneof![4 => Just(0), 1 => 0..40u64];
    let settle = (any::<usize>(), percent, more, proptest::bool::weighted(0.15));
    prop_oneof![
        8 => prop_oneof![Just(1), 1..9u64].prop_map(|units| Step::Reserve { units }),
        7 => settle.prop_map(|(which, percent, more, clears)| Step::Settle { which, percent, more, clears }),
        1 => any::<usize>().prop_map(|which| Step::Refund { which }),
        2 => (1..9u64).prop_map(|units| Step::Peek { units }),
    ]
}

fn any_steps() -> impl Strategy<Value = Vec<(u64, u64, Step)>> {
    let share = prop_oneof![4 => Just(0), 3 => 0..120u64, 1 => 0..2500u64, 1 => Just(1000), 1 => Just(100)];
    proptest::collection::vec((share, 0..3u64, any_step()), 1..80)
}

/// 1 to 11 units in a period that is divisible by the units and by `buckets`.
fn any_rate(buckets: u64) -> impl Strategy<Value = model::Rate> {
    let unit_us = prop_oneof![Just(1), 2..50u64, Just(SECOND_US), Just(2_333_333)];
    (1..12u64, unit_us).prop_map(move |(units, unit_us)| rate(units, units * unit_us * buckets * 1_000))
}

fn any_algorithm(rates: usize) -> impl Strategy<Value = Algorithm> {
    let bucket = (any_rate(1), 1..12u64).prop_map(|(rate, burst)| TokenBucketRate { rate, burst });
    let buckets = proptest::collection::vec(bucket, 1..=rates);
    let fixed =
        (proptest::collection::vec(any_rate(1), 1..=rates), any::<bool>()).prop_map(|(rates, clock)| {
            Algorithm::FixedWindow {
                rates,
                align: if clock { WindowAlign::Clock } else { WindowAlign::First },
            }
        });
    let sliding = (1..=60u8).prop_flat_map(move |buckets| {
        proptest::collection::vec(any_rate(buckets.into()), 1..=rates)
            .prop_map(move |rates| Algorithm::SlidingWindow { rates, buckets })
    });
    prop_oneof![
        buckets.prop_map(|rates| Algorithm::TokenBucket { rates }),
        fixed,
        sliding,
        proptest::collection::vec(any_rate(1), 1..=rates).prop_map(|rates| Algorithm::SlidingLog { rates }),
    ]
}

fn run(twin: &mut Twin<'_>, steps: &[(u64, u64, Step)]) {
    let quotas = || twin.shared.configs.iter().flat_map(|config| config.algorithm.rate_quotas());
    let most = quotas().map(|(_, most)| most).min().unwrap();
    let period = quotas().map(|(rate, _)| rate.period.as_micros() as u64).min().unwrap();
    let mut now = START_US;
    for (share, nudge, step) in steps {
        now += share * period / 1000 + nudge;
        match *step {
            Step::Reserve { units } => twin.reserve(units.min(most), now),
            Step::Peek { units } => twin.peek(units.min(most), now, "a look"),
            Step::Settle { which, percent, more, clears } if !twin.open.is_empty() => {
                let reserved = twin.open[which % twin.open.len()].units;
                twin.settle(which, reserved * percent / 100 + more, clears, now);
            }
            Step::Refund { which } if !twin.open.is_empty() => twin.refund(which, now),
            _ => {}
        }
        twin.peek(1, now, &format!("after {step:?}"));
    }
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(count) }
}

#[test]
fn settled_charges_are_those_of_the_local_engine() {
    let counters = RefCell::new(Counters::start());
    proptest!(cases(500), |(algorithm in any_algorithm(1), steps in any_steps())| {
        run(&mut Twin::new(&counters, vec![charging(algorithm)]), &steps);
    });
}

#[test]
fn settled_chains_are_those_of_the_local_engine() {
    let counters = RefCell::new(Counters::start());
    let chains = proptest::collection::vec(any_algorithm(3), 1..3);
    proptest!(cases(300), |(chain in chains, steps in any_steps())| {
        run(&mut Twin::new(&counters, chain.into_iter().map(charging).collect()), &steps);
    });
}
