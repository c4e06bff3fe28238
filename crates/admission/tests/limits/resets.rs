//! A reset key counts like a fresh one, whatever was charged and refunded before.

use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::Now;
use sluicegate_limit::{KeyReset, Limit, ResetFault};
use sluicegate_model::{self as model, LimitId, WindowAlign};
use tokio::time::{Duration, sleep};

use crate::properties::bound_holds;
use crate::support::*;

/// A limit, and one that is replaced by a fresh one at each reset.
struct Twins {
    build: Box<dyn Fn() -> Arc<Limit>>,
    real: Gate,
    fresh: Gate,
}

impl Twins {
    fn new(real: Arc<Limit>, build: impl Fn() -> Arc<Limit> + 'static) -> Twins {
        let fresh = Gate::new(vec![build()]);
        Twins { real: Gate::new(vec![real]), fresh, build: Box::new(build) }
    }

    fn reset(&mut self, at: u64) -> KeyReset {
        let limit = &self.real.chain.limits()[0];
        let reset = limit.reset_key(limit.rates_of(None).unwrap(), &key(1), Now(START + at)).unwrap();
        if reset.waiting == 0 {
            self.fresh = Gate::new(vec![(self.build)()]);
        }
        reset
    }
}

fn reset(limit: &Limit, id: u128, now: Now) -> Result<KeyReset, ResetFault> {
    limit.reset_key(limit.rates_of(None).unwrap(), &key(id), now)
}

/// (gap ns, cost, fate): fates 0 to 2 keep the charge, 3 and 4 hold it, 5 refunds one, 6 resets.
fn any_traffic() -> impl Strategy<Value = Vec<(u64, u64, usize)>> {
    let gap = prop_oneof![2 => Just(0), 1 => 0..30 * MS, 1 => 0..400 * MS];
    proptest::collection::vec((gap, 1..4u64, 0..7usize), 1..150)
}

/// Plays the traffic on both, which agree on every decision.
fn play(twins: &mut Twins, traffic: &[(u64, u64, usize)]) -> Result<(), TestCaseError> {
    let (mut at, mut pending) = (0, vec![]);
    for &(gap, cost, fate) in traffic {
        at += gap;
        if fate == 6 {
            twins.reset(at);
            // What is pending was charged to the counter before.
            pending.iter_mut().for_each(|(_, twin): &mut (Accepted, Option<Accepted>)| {
                if let Some(twin) = twin.as_mut() {
                    twin.keep_charges();
                }
            });
            continue;
        }
        if fate == 5 {
            if !pending.is_empty() {
                drop(pending.swap_remove(cost as usize % pending.len()));
            }
            continue;
        }
        let (real, fresh) = (twins.real.judge(at, 1, cost), twins.fresh.judge(at, 1, cost));
        let left = |one: &Judgement| one.decisions[0].decision.remaining;
        prop_assert_eq!(left(&real), left(&fresh), "at {}", at);
        match (real.verdict, fresh.verdict) {
            (Verdict::Admit(mut real), Verdict::Admit(mut fresh)) if fate < 3 => {
                real.keep_charges();
                fresh.keep_charges();
            }
            (Verdict::Admit(real), Verdict::Admit(fresh)) => pending.push((real, Some(fresh))),
            (Verdict::Reject(_), Verdict::Reject(_)) => {}
            _ => prop_assert!(false, "they differ at {}", at),
        }
    }
    Ok(())
}

fn algorithm(kind: usize, units: u64, burst: u64) -> model::Algorithm {
    match kind {
        0 => token(units, SECOND, burst),
        1 => leaky(units, SECOND, burst, 0),
        2 => fixed(units + 3, SECOND, WindowAlign::First),
        3 => fixed(units + 3, SECOND, WindowAlign::Clock),
        4 => sliding(units + 3, SECOND, 10),
        5 => sliding(units + 3, SECOND, 60),
        _ => log(units + 3, SECOND),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    /// Charges before a reset, refunded whenever, never give more than a fresh counter.
    #[test]
    fn a_reset_key_counts_like_a_fresh_one(
        kind in 0..7usize,
        (units, burst) in (1..20u64, 3..9u64),
        traffic in any_traffic(),
    ) {
        let build = move || limit(algorithm(kind, units, burst));
        play(&mut Twins::new(build(), build), &traffic)?;
    }

    /// A warm key stays warm, but never gets more than the full rate and burst since its reset.
    #[test]
    fn a_reset_warm_key_keeps_the_bound(
        smooth in any::<bool>(),
        (units, burst) in (1..20u64, 3..9u64),
        traffic in any_traffic(),
    ) {
        let gate = Gate::new(vec![warm(algorithm(usize::from(smooth), units, burst), 2 * SECOND)]);
        let (mut at, mut passed, mut pending) = (0, vec![], vec![]);
        for (gap, cost, fate) in traffic {
            at += gap;
            if fate == 6 {
                reset(&gate.chain.limits()[0], 1, Now(START + at)).unwrap();
                passed.clear();
            } else if fate == 5 && !pending.is_empty() {
                drop(pending.swap_remove(cost as usize % pending.len()));
            } else if let Verdict::Admit(mut permit) = gate.judge(at, 1, if smooth { 1 } else { cost }).verdict {
                match fate < 3 {
                    true => {
                        permit.keep_charges();
                        passed.push((at, if smooth { 1 } else { cost }));
                    }
                    false => pending.push(permit),
                }
            }
            prop_assert!(bound_holds(&passed, units, SECOND, burst), "{:?}", passed);
        }
    }
}

#[test]
fn a_used_up_key_begins_again_at_once() {
    for kind in 0..7 {
        let gate = Gate::one(algorithm(kind, 2, 3));
        let limit = &gate.chain.limits()[0];
        let accepted = |at| (0..100).take_while(|_| gate.passes(at)).count();
        let whole = accepted(0);
        assert!(whole > 0 && !gate.passes(0));
        assert_eq!(reset(limit, 2, Now(START)), Ok(KeyReset::default()), "a key that used nothing");
        assert!(!gate.passes(0), "another key");
        assert_eq!(reset(limit, 1, Now(START)), Ok(KeyReset { counters: 1, waiting: 0 }));
        assert_eq!(accepted(0), whole, "kind {kind}");
    }
}

#[test]
fn a_warm_key_stays_warm() {
    let gate = Gate::new(vec![warm(token(10, SECOND, 10), SECOND)]);
    let limit = gate.chain.limits()[0].clone();
    let accepted = |at| (0..100).take_while(|_| gate.passes(at)).count();
    let cold = accepted(0);
    (1..40).for_each(|step| assert!(accepted(step * 100 * MS) > 0));
    reset(&limit, 1, Now(START + 4 * SECOND)).unwrap();
    assert!(cold < 10 && accepted(4 * SECOND) == 10, "{cold} from cold");
}

#[test]
fn a_tier_is_reset_alone() {
    let tiers = vec![("gold".to_owned(), Some(token(1, DAY, 2))), ("staff".to_owned(), None)];
    let limit = Limit::new(LimitId(0), &model::LimitConfig { tiers, ..config(token(1, DAY, 1)) }, 1000);
    assert_eq!((limit.rates_of(None), limit.rates_of(Some("gold"))), (Some(0..2), Some(1..2)));
    assert_eq!((limit.rates_of(Some("staff")), limit.rates_of(Some("silver"))), (None, None));
    let gate = Gate::new(vec![Arc::new(limit)]);
    let passes = |variant| {
        let units = sluicegate_limit::Units { variant, ..units(1, 1) };
        let judged = gate.chain.judge_request(Now(START), &gate.waiting, |_| LimitDemand::Units(units));
        let Verdict::Admit(mut permit) = judged.verdict else { return false };
        permit.keep_charges();
        true
    };
    assert!(passes(0) && passes(1) && passes(1) && !passes(0) && !passes(1));
    let limit = &gate.chain.limits()[0];
    limit.reset_key(1..2, &key(1), Now(START)).unwrap();
    assert!(!passes(0) && passes(1));
}

#[test]
fn slots_and_shared_counters_are_not_reset() {
    assert_eq!(reset(&limit(concurrency(3)), 1, Now(START)), Err(ResetFault::Concurrency));
    let full = Arc::new(Limit::new(LimitId(0), &config(token(1, DAY, 5)), 1));
    let gate = Gate::new(vec![full.clone()]);
    // The table has room for a few more than its cap.
    (0..200).for_each(|id| assert!(gate.send(0, id, 1).is_ok() || id > 0));
    let outcomes: Vec<_> = (0..200).map(|id| reset(&full, id, Now(START))).collect();
    assert_eq!(outcomes[0], Ok(KeyReset { counters: 1, waiting: 0 }));
    assert_eq!(outcomes[199], Err(ResetFault::SharedCounter));
    assert!(
        full.reset_key(0..1, &key(199), Now(START + 6 * DAY * 200)).is_ok(),
        "long after, nothing is used"
    );
}

/// All departures after the reset are those before it, and newcomers come behind them.
#[test]
fn waiting_requests_keep_their_departures() {
    paused(async {
        let gate = Gate::one(leaky(10, SECOND, 1, 5));
        let limit = gate.chain.limits()[0].clone();
        let ask = || {
            let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
            admitted(gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask))
        };
        let start = tokio::time::Instant::now();
        ask().keep_charges();
        let mut waiters = vec![ask(), ask(), ask()];
        let reset_now = || reset(&limit, 1, Now::read_clock()).unwrap();
        assert_eq!(reset_now(), KeyReset { counters: 1, waiting: 3 });
        waiters.push(ask());
        assert_eq!(waiters[3].wait_ns(), 400 * MS, "behind all others");
        let mut left = vec![];
        for waiter in &mut waiters {
            waiter.wait_turn().await.unwrap();
            waiter.keep_charges();
            left.push(start.elapsed().as_millis());
        }
        assert_eq!(left, [100, 200, 300, 400]);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(ask().wait_ns(), 90 * MS);
        assert_eq!(reset_now().waiting, 0, "the one that asked has left");
        let mut first = ask();
        assert!(!first.must_wait());
        first.keep_charges();
        assert!(ask().must_wait());
    });
}
