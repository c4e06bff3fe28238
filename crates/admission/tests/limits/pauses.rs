//! Paused limits: those that wait leave at once, and a pause judges and counts as a dry run does.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, LimitOutcome, Units};
use sluicegate_model::{self as model, Algorithm, KeyPart, LimitChange, LimitId};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use crate::share_queues::shares;
use crate::support::*;

fn pause(config: &model::LimitConfig) -> model::LimitConfig {
    let (limit, by, reason) = ("test".to_owned(), "ann".to_owned(), String::new());
    let mut config = config.clone();
    config.change(LimitChange { limit, until_unix_ns: u64::MAX, by, reason, numbers: None }, None);
    config
}

fn reload(before: &Arc<Limit>, config: &model::LimitConfig, now: Now) -> Arc<Limit> {
    let next = Arc::new(Limit::continue_from(Some(before), LimitId(0), config, 1000));
    next.apply_numbers(&|| now);
    next
}

/// Seven requests of a bucket or of slots for one, of which six wait, go when it is paused, whatever held them up.
#[test]
fn all_that_wait_leave_at_once() {
    let fair = |numbers| model::LimitConfig { fair_by: vec![KeyPart::Account], ..config(numbers) };
    let classes =
        |numbers| model::LimitConfig { shares: Some(shares(&[(50, 60), (50, 100)])), ..config(numbers) };
    let (queue, slot) = (leaky(1, 10 * SECOND, 1, 9), slots(1, 9, Some(Duration::from_secs(90))));
    let warm = model::LimitConfig { warm_up: Some(Duration::from_secs(9)), ..config(queue.clone()) };
    for config in [
        config(queue.clone()),
        fair(queue.clone()),
        warm,
        classes(queue),
        config(slot.clone()),
        fair(slot.clone()),
        classes(slot),
    ] {
        paused(async {
            let limit = Arc::new(Limit::new(LimitId(0), &config, 1000));
            let gate = Gate::new(vec![limit.clone()]);
            let (start, ended) = (Instant::now(), tokio::sync::mpsc::unbounded_channel());
            let (told, mut left) = ended;
            for number in 0..7 {
                let ask = |_: &Limit| LimitDemand::Units(Units { fair_hash: number, ..units(1, 1) });
                let judged = gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask);
                let (mut permit, told) = (admitted(judged), told.clone());
                spawn_local(async move {
                    permit.wait_turn().await.expect("a turn");
                    permit.take_slots().await.expect("slots");
                    let _ = told.send(start.elapsed());
                    sleep(Duration::from_secs(1000)).await;
                    drop(permit);
                });
            }
            sleep(Duration::from_millis(50)).await;
            assert_eq!(limit.waiter_count(), 6, "{config:?}");
            let next = reload(&limit, &pause(&config), Now::read_clock());
            sleep(Duration::from_millis(1)).await;
            let all: Vec<u64> =
                std::iter::from_fn(|| left.try_recv().ok()).map(|at| at.as_millis() as u64).collect();
            assert_eq!(all, [0, 50, 50, 50, 50, 50, 50], "{config:?}");
            assert_eq!((limit.waiter_count(), next.waiter_count()), (0, 0), "{config:?}");
        });
    }
}

/// The outcomes of requests at these times, by a limit that is paused from the first request after `paused_at` on.
fn outcomes(config: &model::LimitConfig, traffic: &[(u64, u64)], paused_at: u64) -> Vec<LimitOutcome> {
    let mut limit = Arc::new(Limit::new(LimitId(0), config, 1000));
    let (mut is_paused, mut found) = (false, Vec::new());
    for (at, cost) in traffic {
        if *at >= paused_at && !is_paused {
            limit = reload(&limit, &pause(config), Now(START + at));
            is_paused = true;
        }
        let judgement = Gate::new(vec![limit.clone()]).judge(*at, 1, *cost);
        let decision = judgement.decisions[0];
        assert_eq!(decision.dry_run, config.dry_run || is_paused);
        found.push(decision.decision.outcome);
        if let Verdict::Admit(mut permit) = judgement.verdict {
            permit.keep_charges();
        } else {
            assert!(!is_paused, "a paused limit never acts");
        }
    }
    found
}

fn numbers() -> impl Strategy<Value = Algorithm> {
    let windows = || all_windows(5, SECOND).into_iter();
    let all: Vec<_> = windows().chain([token(5, SECOND, 3), leaky(5, SECOND, 2, 4)]).collect();
    proptest::sample::select(all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The oracle is a dry run: it judged the same requests on counters of its own from the first on.
    #[test]
    fn a_pause_counts_on_as_a_dry_run(
        numbers in numbers(),
        traffic in prop::collection::vec((0..400 * MS, 1_u64..3), 1..60),
        paused_at in 0..8 * SECOND,
    ) {
        let mut at = 0;
        let traffic: Vec<(u64, u64)> = traffic.into_iter().map(|(gap, cost)| { at += gap; (at, cost) }).collect();
        let dry = model::LimitConfig { dry_run: true, ..config(numbers.clone()) };
        prop_assert_eq!(outcomes(&config(numbers), &traffic, paused_at), outcomes(&dry, &traffic, u64::MAX));
    }
}

#[test]
fn requests_in_flight_count_on_and_end_after_the_pause() {
    let numbers = || concurrency(2);
    let limit = Arc::new(Limit::new(LimitId(0), &config(numbers()), 1000));
    let paused = reload(&limit, &pause(&config(numbers())), Now(START));
    let gate = Gate::new(vec![paused.clone()]);
    let mut permits: Vec<_> = (0..5).map(|_| admitted(gate.judge(0, 1, 1))).collect();
    let outcome = |permit: &Accepted| {
        let judged = permit.permit().slot_decisions().next().expect("a decision");
        assert!(judged.dry_run);
        judged.decision.outcome
    };
    let (admit, reject) = (LimitOutcome::Admit, LimitOutcome::Reject);
    assert_eq!(permits.iter().map(outcome).collect::<Vec<_>>(), [admit, admit, reject, reject, reject]);
    assert_eq!(paused.slots_in_use(0, &key(1)), 5);
    let resumed = reload(&paused, &config(numbers()), Now(START));
    let gate = Gate::new(vec![resumed.clone()]);
    for left in (1..=4).rev() {
        drop(rejected(gate.judge(0, 1, 1)));
        permits.pop();
        assert_eq!(resumed.slots_in_use(0, &key(1)), left);
        if left > 1 {
            continue;
        }
        drop(admitted(gate.judge(0, 1, 1)));
    }
}

#[test]
fn a_pause_of_a_dry_run_leaves_one() {
    let mut config = model::LimitConfig { dry_run: true, ..config(token(1, SECOND, 1)) };
    config = pause(&pause(&config));
    assert!(config.dry_run && config.end_change(false));
    assert!(config.dry_run && config.file.is_none());
    assert!(!config.end_change(false) && !config.end_change(true));
}
