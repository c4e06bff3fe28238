//! Several OS threads on one key: never one unit too many, and none lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use sluicegate_admission::chain::{Chain, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, Units};

use crate::support::*;

#[test]
fn two_threads_never_admit_one_too_many() {
    const BURST: u64 = 20_000;
    let limits = vec![limit(token(1, DAY, BURST)), limit(token(1, DAY, 3 * BURST))];
    let chain = Chain::new(limits);
    let waiting = Arc::new(WaitingCap::new(1));
    let passed = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for turn in 0..BURST {
                    let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
                    let Verdict::Admit(mut permit) = chain.judge_request(Now(START), &waiting, ask).verdict
                    else {
                        continue;
                    };
                    // Every third request leaves before it was forwarded and is refunded.
                    if turn % 3 != 0 {
                        permit.keep_charges();
                        passed.fetch_add(1, Relaxed);
                    }
                }
            });
        }
    });
    let rest = (0..).take_while(|_| {
        let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
        match chain.judge_request(Now(START), &waiting, ask).verdict {
            Verdict::Admit(mut permit) => {
                permit.keep_charges();
                true
            }
            Verdict::Reject(_) => false,
        }
    });
    assert_eq!(passed.load(Relaxed) + rest.count() as u64, BURST);
}

#[test]
fn two_threads_never_admit_one_too_many_in_a_window() {
    const MAX: u64 = 10_000;
    let windows = all_windows(MAX, DAY).into_iter().map(limit);
    let (tokens, queue) = (token(1, DAY, MAX), leaky(1, DAY, MAX, 0));
    let buckets = [limit(tokens.clone()), limit(queue.clone()), fair(queue.clone())];
    let climbing = [warm(tokens, SECOND), warm(queue, SECOND)];
    for limit in windows.chain(buckets).chain(climbing) {
        let (config, gate) = (limit.config.clone(), Gate::new(vec![limit]));
        let (at, passed) = (AtomicU64::new(0), AtomicU64::new(0));
        let hammer = || {
            for turn in 0..MAX {
                // The threads' clocks overtake each other.
                let at = at.fetch_add(100, Relaxed);
                let Verdict::Admit(mut permit) = gate.judge(at, 1, 1).verdict else { continue };
                if turn % 3 != 0 {
                    permit.keep_charges();
                    passed.fetch_add(1, Relaxed);
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(hammer);
            scope.spawn(hammer);
        });
        let end = 2 * MAX * 100;
        let rest = (0..).take_while(|_| gate.passes(end)).count() as u64;
        let passed = passed.load(Relaxed) + rest;
        // Buckets regain less than one unit meanwhile; the first units of a cold one take longer.
        let least = if config.warm_up.is_some() { MAX - 2 } else { MAX };
        assert!((least..=MAX).contains(&passed), "{passed}: {config:?}");
    }
}

#[test]
fn two_threads_share_concurrency_slots() {
    let limit = limit(concurrency(3));
    let chain = Chain::new(vec![limit]);
    let waiting = Arc::new(WaitingCap::new(1));
    let (inside, most) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
                    let mut permits: Vec<_> = (0..3)
                        .filter_map(|_| match chain.judge_request(Now(START), &waiting, ask).verdict {
                            Verdict::Admit(permit) => Some(permit),
                            Verdict::Reject(_) => None,
                        })
                        .collect();
                    most.fetch_max(
                        inside.fetch_add(permits.len() as u64, Relaxed) + permits.len() as u64,
                        Relaxed,
                    );
                    inside.fetch_sub(permits.len() as u64, Relaxed);
                    permits.clear();
                }
            });
        }
    });
    assert!(most.load(Relaxed) <= 3);
    let mut after: Vec<_> = Vec::new();
    for _ in 0..3 {
        let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
        // None is rejected: no slot was lost.
        after.push(admitted(chain.judge_request(Now(START), &waiting, ask)));
    }
}

/// Waiters on the runtimes of two threads, some of which leave: all others get through on schedule.
#[test]
fn waiters_of_two_threads_share_one_queue() {
    const EACH: u64 = 200;
    Now::read_clock();
    let chain = Chain::new(vec![limit(leaky(1000, SECOND, 1, 2 * EACH))]);
    let waiting = Arc::new(WaitingCap::new(1000));
    let passed = AtomicU64::new(0);
    let last = AtomicU64::new(0);
    let start = Now::read_clock();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                let tasks = async {
                    let one = |number: u64| {
                        let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
                        let mut permit = admitted(chain.judge_request(Now::read_clock(), &waiting, ask));
                        let (passed, last) = (&passed, &last);
                        async move {
                            let timeout = std::time::Duration::from_millis(number % 50);
                            let wait = permit.wait_turn();
                            if number.is_multiple_of(5) {
                                if tokio::time::timeout(timeout, wait).await.is_err() {
                                    return;
                                }
                            } else {
                                wait.await.unwrap();
                            }
                            permit.keep_charges();
                            passed.fetch_add(1, Relaxed);
                            last.fetch_max(Now::read_clock().ns_since(start), Relaxed);
                        }
                    };
                    let mut all: Vec<_> = (0..EACH).map(|number| Box::pin(one(number))).collect();
                    std::future::poll_fn(|cx| {
                        all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
                        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                    })
                    .await;
                };
                runtime.block_on(tasks);
            });
        }
    });
    let passed = passed.load(Relaxed);
    assert!(passed >= 2 * EACH * 4 / 5, "all that stayed got through: {passed}");
    assert!(last.load(Relaxed) >= (passed - 1) * MS, "{passed} passed within {} ns", last.load(Relaxed));
    assert_eq!((waiting.count_waiting(), chain.limits()[0].waiter_count()), (0, 0));
}

/// A wide limit before one that rejects: the interleaved charges and refunds of threads add up to zero.
#[test]
fn rejections_cost_nothing_under_contention() {
    // All refunds together are smaller than the bucket's backlog. Beyond that, a refund that comes late because its
    // thread was not run loses the units that the bucket might have regained.
    const EACH: u64 = 20_000;
    const UNIT: u64 = 10_000;
    let (wide, narrow) = (limit(token(100_000, SECOND, 100_000)), limit(token(1, DAY, 1)));
    let gate = Gate::new(vec![wide.clone(), narrow]);
    assert!(gate.passes(0));
    assert_eq!(Gate::new(vec![wide.clone()]).send(0, 1, 49_999), Ok((0, 50_000)));
    let at = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..EACH).for_each(|_| assert!(!gate.passes(at.fetch_add(100, Relaxed)))));
        }
    });
    let end = 2 * EACH * 100;
    let left = Gate::new(vec![wide]).judge(end, 1, 1).decisions[0].decision.remaining;
    assert_eq!(left, 50_000 + end / UNIT - 1);
}

/// Floods of two threads into a short fair queue: displaced and expired waiters leave no trace.
#[test]
fn two_threads_take_turns_in_one_queue() {
    const EACH: u64 = 300;
    Now::read_clock();
    let max_wait = Some(std::time::Duration::from_millis(40));
    let chain = Chain::new(vec![fair(leaky_within(500, SECOND, 1, 30, max_wait))]);
    let waiting = Arc::new(WaitingCap::new(1000));
    let (passed, rejected) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Now::read_clock();
    thread::scope(|scope| {
        for thread in 0..2 {
            let (chain, waiting, passed, rejected) = (&chain, &waiting, &passed, &rejected);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                let one = |number: u64| async move {
                    tokio::time::sleep(std::time::Duration::from_millis(number / 4)).await;
                    let value = number % 3 * (thread + 1);
                    let ask = |_: &Limit| LimitDemand::Units(Units { fair_hash: value, ..units(1, 1) });
                    let Verdict::Admit(mut permit) =
                        chain.judge_request(Now::read_clock(), waiting, ask).verdict
                    else {
                        return rejected.fetch_add(1, Relaxed);
                    };
                    match permit.wait_turn().await {
                        Ok(()) => {
                            permit.keep_charges();
                            passed.fetch_add(1, Relaxed)
                        }
                        Err(_) => rejected.fetch_add(1, Relaxed),
                    }
                };
                let mut all: Vec<_> = (0..EACH).map(|number| Box::pin(one(number))).collect();
                runtime.block_on(std::future::poll_fn(|cx| {
                    all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
                    if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                }));
            });
        }
    });
    let (passed, rejected, took) =
        (passed.load(Relaxed), rejected.load(Relaxed), Now::read_clock().ns_since(start));
    assert_eq!((passed + rejected, rejected > 0), (2 * EACH, true));
    assert!((passed - 1) * 2 * MS <= took, "{passed} passed within {took} ns");
    assert_eq!((waiting.count_waiting(), chain.limits()[0].waiter_count()), (0, 0));
}
