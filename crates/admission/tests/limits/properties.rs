//! Properties over random traffic, against the plain models.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use crate::model::{QueueModel, TokenModel};
use crate::support::*;

/// Units, period (ns) and burst, from slow to beyond one per nanosecond.
fn any_rate() -> impl Strategy<Value = (u64, u64, u64)> {
    let units = prop_oneof![1..50u64, Just(3_000_000), Just(999_983), Just(3_000_000_017)];
    let period = prop_oneof![Just(SECOND), Just(7 * SECOND), Just(DAY), 1..5000u64];
    (units, period, prop_oneof![1..10u64, 1..2000u64])
}

/// Gaps between requests as a share of one unit's time (in percent), with their costs.
fn any_traffic() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((prop_oneof![Just(0), 0..150u64, 0..3000u64], 1..4u64), 1..200)
}

/// Whether never more than burst + rate·span units pass between any two of `passed`, (moment ns, cost).
pub fn bound_holds(passed: &[(u64, u64)], units: u64, period: u64, burst: u64) -> bool {
    (0..passed.len()).all(|first| {
        let mut sum = 0;
        passed[first..].iter().all(|&(at, cost)| {
            sum += u128::from(cost);
            let span = u128::from(at - passed[first].0);
            sum.saturating_sub(burst.into()) * u128::from(period) <= span * u128::from(units)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn token_bucket_is_the_plain_bucket((units, period, burst) in any_rate(), traffic in any_traffic()) {
        let gate = Gate::one(token(units, period, burst));
        let mut model = TokenModel::new(units, period, burst);
        let (mut at, mut passed) = (0, vec![]);
        for (gap, cost) in traffic {
            at += (u128::from(gap) * u128::from(period) / u128::from(units) / 100) as u64;
            let cost = cost.min(burst);
            let answer = gate.send(at, 1, cost);
            prop_assert_eq!(answer.is_ok(), model.take(at, cost), "at {} cost {}", at, cost);
            let left = match answer { Ok((_, left)) | Err((_, left)) => left };
            prop_assert_eq!(left, model.left());
            if answer.is_ok() {
                passed.push((at, cost));
            }
        }
        prop_assert!(bound_holds(&passed, units, period, burst));
    }

    #[test]
    fn retry_is_exact_to_the_nanosecond(
        algorithms in proptest::collection::vec((0..3u8, 1..50u64, 1..9u64), 1..4),
        traffic in proptest::collection::vec((0..300 * MS, 1..4u64), 1..60),
    ) {
        let build = |&(kind, units, burst): &(u8, u64, u64)| limit(match kind {
            0 => token(units, SECOND, burst + 3),
            1 => leaky(units, SECOND, burst, 3),
            _ => leaky_within(units, SECOND, burst, 40, Some(Duration::from_millis(333))),
        });
        let gate = Gate::new(algorithms.iter().map(build).collect());
        let mut at = 0;
        for (gap, cost) in traffic {
            at += gap;
            if let Err((retry, _)) = gate.send(at, 1, cost) {
                prop_assert!(retry > 0 && retry != u64::MAX);
                prop_assert!(gate.send(at + retry - 1, 1, cost).is_err(), "too long by 1 ns at least");
                at += retry;
                prop_assert!(gate.send(at, 1, cost).is_ok(), "too short");
            }
        }
    }

    /// Requests refunded before they were forwarded never let too many others through.
    #[test]
    fn refunds_never_break_the_bound(
        (units, burst) in (1..30u64, 1..6u64),
        traffic in proptest::collection::vec((0..250 * MS, 1..4u64, 0..6usize), 1..150),
        smooth in any::<bool>(),
    ) {
        let gate = Gate::one(if smooth { leaky(units, SECOND, burst, 0) } else { token(units, SECOND, burst) });
        let passed = send_and_refund(&gate, if smooth { 1 } else { burst }, traffic);
        prop_assert!(bound_holds(&passed, units, SECOND, burst), "{:?}", passed);
    }

    /// A refund is exact if no idle time of the bucket interferes.
    #[test]
    fn a_refund_restores(burst in 2..20u64, used in 0..10u64, cost in 1..5u64, later in 0..20 * SECOND) {
        let (gate, twin) = (Gate::one(token(3, SECOND, burst)), Gate::one(token(3, SECOND, burst)));
        let (used, cost) = (used.min(burst), cost.min(burst));
        for _ in 0..used {
            prop_assert_eq!(gate.send(0, 1, 1), twin.send(0, 1, 1));
        }
        if let Verdict::Admit(permit) = gate.judge(0, 1, cost).verdict {
            prop_assert_eq!(gate.send(0, 1, 1).is_ok(), used + cost < burst);
            prop_assert!(used + cost >= burst || twin.send(0, 1, 1).is_ok());
            drop(permit);
        }
        prop_assert_eq!(gate.send(later, 1, burst), twin.send(later, 1, burst));
        prop_assert_eq!(gate.send(later, 1, 1), twin.send(later, 1, 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// Arrivals on tens of ms, leavers in between: departures are those of the plain queue, to the millisecond.
    #[test]
    fn the_queue_is_the_plain_queue(
        (burst, queue) in (1..4u64, 0..8usize),
        events in proptest::collection::vec((0..8u64, proptest::option::weighted(0.3, 0..30usize)), 1..80),
    ) {
        let mut model = QueueModel::new(100, burst, queue);
        let gate = Gate::one(leaky(10, SECOND, burst, queue as u64));
        let left: Rc<RefCell<Vec<(u64, u64)>>> = Rc::default();
        let accepted = paused(drive(&gate, &mut model, &events, left.clone()));
        prop_assert!(accepted, "the two accept the same requests");
        model.run(u64::MAX);
        prop_assert_eq!(&*left.borrow(), &model.left);
        prop_assert_eq!(gate.waiting.count_waiting(), 0);
    }
}

/// Plays arrivals and leavers on the gate and the model; returns whether they agree on all.
async fn drive(
    gate: &Gate,
    model: &mut QueueModel,
    events: &[(u64, Option<usize>)],
    left: Rc<RefCell<Vec<(u64, u64)>>>,
) -> bool {
    let start = Instant::now();
    let (mut at, mut tasks) = (0, vec![]);
    for (who, &(gap, leaver)) in events.iter().enumerate() {
        at += gap * 10;
        sleep_until(start + Duration::from_millis(at)).await;
        let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
        let verdict = gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask).verdict;
        if matches!(verdict, Verdict::Admit(_)) != model.arrive(at, who as u64) {
            return false;
        }
        if let Verdict::Admit(mut permit) = verdict {
            let left = left.clone();
            let task = spawn_local(async move {
                permit.wait_turn().await.unwrap();
                permit.keep_charges();
                left.borrow_mut().push((start.elapsed().as_millis() as u64, who as u64));
            });
            tasks.push((who, task));
        }
        if let Some(leaver) = leaver
            && !tasks.is_empty()
        {
            sleep_until(start + Duration::from_millis(at + 5)).await;
            let (who, task) = &tasks[leaver % tasks.len()];
            task.abort();
            model.leave(at + 5, *who as u64);
            at += 10;
        }
    }
    sleep_until(start + Duration::from_millis(at + 10_000)).await;
    true
}
