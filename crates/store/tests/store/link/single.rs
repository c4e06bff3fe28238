//! The link to one real server: healthy, forgetful, stopped, killed.

use std::rc::Rc;
use std::time::{Duration, Instant};

use sluicegate_store::{Link, Store, StoreFault};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::link::support::{MARGIN, RedisProcess, ask, command, echo, settled, single, until, with_store};
use crate::support::{PATIENCE, Redis, ms};

#[test]
fn calls_are_answered_and_this_gateway_counts_as_living() {
    let redis = Redis::start();
    with_store(&single(redis.addr()), async |store| {
        assert!(store.is_degraded() && store.nodes() == 1);
        settled(&store).await;
        let (link, script) = (store.open_link(), echo());
        for turn in 0..100 {
            ask(&link, &script, &format!("call {turn}")).await.unwrap();
        }
        assert_eq!(command(redis.addr(), &["GET", "k"]), "100", "each ran once");
        let reading = store.reading();
        let calls: Vec<u64> = reading.calls.iter().map(|(_, calls)| *calls).collect();
        assert_eq!((calls[0], &calls[1..]), (100, &[0; 10][..]), "answered and failed");
        assert_eq!((reading.servers, reading.nodes), (vec![(redis.addr().to_string(), true)], 1));
    });
}

#[test]
fn gateways_count_each_other_and_one_that_leaves_is_not_counted() {
    let redis = Redis::start();
    let config = single(redis.addr());
    with_store(&config, async |first| {
        let second = Store::new(&config, None);
        let supervisor = tokio::spawn(second.clone().supervise());
        until("two gateways", || first.nodes() == 2 && second.nodes() == 2).await;
        let ttl: i64 = command(redis.addr(), &["PTTL", "test:{nodes.0}"])[1..].parse().unwrap();
        assert!((1..=15_000).contains(&ttl), "{ttl}");
        supervisor.abort();
        second.deregister_gateway().await;
        assert_eq!(command(redis.addr(), &["ZCARD", "test:{nodes.0}"]), ":1");
        until("one gateway", || first.nodes() == 1).await;
    });
}

#[test]
fn a_foreign_value_where_gateways_are_counted_is_replaced() {
    let redis = Redis::start();
    assert_eq!(command(redis.addr(), &["SADD", "test:{nodes.0}", "x"]), ":1");
    with_store(&single(redis.addr()), async |store| {
        settled(&store).await;
        assert_eq!(command(redis.addr(), &["ZCARD", "test:{nodes.0}"]), ":1");
    });
}

#[test]
fn a_server_that_is_made_to_forget_its_scripts_answers_every_call() {
    let redis = Redis::start();
    with_store(&single(redis.addr()), async |store| {
        settled(&store).await;
        let (link, script) = (Rc::new(store.open_link()), Rc::new(echo()));
        let mut tasks = JoinSet::new();
        let end = Instant::now() + ms(1500);
        for task in 0..16 {
            let (link, script) = (link.clone(), script.clone());
            tasks.spawn_local(async move {
                let mut turn = 0;
                while Instant::now() < end {
                    ask(&link, &script, &format!("task {task} turn {turn}")).await.unwrap();
                    turn += 1;
                }
                turn
            });
        }
        let addr = redis.addr();
        let flusher = std::thread::spawn(move || {
            while Instant::now() < end {
                command(addr, &["SCRIPT", "FLUSH"]);
                std::thread::sleep(ms(3));
            }
        });
        let calls: u64 = tasks.join_all().await.into_iter().sum();
        flusher.join().unwrap();
        assert_eq!(command(redis.addr(), &["GET", "k"]), calls.to_string(), "each ran once");
    });
}

/// On a busy machine a call may miss its short deadline.
async fn answered(link: &Link) {
    let began = Instant::now();
    while ask(link, &echo(), "again").await.is_err() {
        assert!(began.elapsed() < PATIENCE, "no call is answered");
        sleep(ms(5)).await;
    }
}

/// Calls one after the other until `end`; returns the faults and the longest call.
async fn pester(link: &Link, end: Instant) -> (Vec<StoreFault>, Duration) {
    let script = echo();
    let (mut failures, mut longest) = (Vec::new(), Duration::ZERO);
    let mut turn = 0;
    while Instant::now() < end {
        let began = Instant::now();
        failures.extend(ask(link, &script, &format!("turn {turn}")).await.err());
        longest = longest.max(began.elapsed());
        turn += 1;
        sleep(ms(2)).await;
    }
    (failures, longest)
}

#[test]
fn a_server_that_stops_is_left_alone_and_used_again_when_it_goes_on() {
    let redis = RedisProcess::start(&[]);
    let mut config = single(redis.addr);
    config.timeout = ms(50);
    with_store(&config, async |store| {
        settled(&store).await;
        let link = store.open_link();
        for pause in [100, 1000, 3000] {
            answered(&link).await;
            redis.pause();
            let (failures, longest) = pester(&link, Instant::now() + ms(pause)).await;
            redis.resume();
            let resumed = Instant::now();
            assert!(longest < ms(50) + MARGIN, "a call took {longest:?}");
            assert!(failures.iter().all(|fault| matches!(fault, StoreFault::Timeout | StoreFault::Down)));
            if pause >= 1000 {
                assert!(failures.contains(&StoreFault::Down), "the breaker opened");
                let tried = failures.iter().filter(|fault| **fault == StoreFault::Timeout).count();
                assert!((1..=30).contains(&tried), "{tried} calls waited, and no more after that");
                assert!(store.is_degraded() && !store.reading().servers[0].1);
            }
            settled(&store).await;
            let took = resumed.elapsed();
            assert!(took < ms(1000) + MARGIN, "used again only after {took:?}");
            answered(&link).await;
        }
    });
}

#[test]
fn calls_come_back_in_a_ramp() {
    let redis = RedisProcess::start(&[]);
    let mut config = single(redis.addr);
    config.timeout = ms(100);
    with_store(&config, async |store| {
        settled(&store).await;
        let link = store.open_link();
        // A busy machine may sleep through the whole ramp.
        for _ in 0..5 {
            answered(&link).await;
            redis.pause();
            while ask(&link, &echo(), "unheard").await != Err(StoreFault::Down) {}
            redis.resume();
            if is_ramp(&store, &link).await {
                answered(&link).await;
                return;
            }
        }
        panic!("five times all calls came back at once");
    });
}

/// True if some calls pass and others are rejected between the closing of the breaker and normal use.
async fn is_ramp(store: &Store, link: &Link) -> bool {
    until("a closed breaker", || store.reading().servers[0].1).await;
    let (mut passed, mut rejected) = (0, 0);
    while store.is_degraded() {
        match ask(link, &echo(), "ramp").await {
            Ok(()) => passed += 1,
            Err(_) => rejected += 1,
        }
        sleep(ms(1)).await;
    }
    passed > 0 && rejected > 0
}

#[test]
fn a_server_that_dies_and_comes_back_empty_is_used_again() {
    let mut redis = RedisProcess::start(&[]);
    with_store(&single(redis.addr), async |store| {
        settled(&store).await;
        let (link, script) = (store.open_link(), echo());
        for round in 0..3 {
            ask(&link, &script, "before").await.unwrap();
            redis.kill();
            let (failures, longest) = pester(&link, Instant::now() + ms(600)).await;
            assert!(longest < ms(2000) + MARGIN, "a call took {longest:?}");
            assert!(
                failures
                    .iter()
                    .all(|fault| *fault != StoreFault::Garbled && *fault != StoreFault::CommandError)
            );
            assert!(failures.contains(&StoreFault::Down) && store.is_degraded(), "round {round}");
            redis.restart();
            let took = settled(&store).await;
            assert!(took < ms(1000) + MARGIN, "used again only after {took:?}");
        }
        ask(&link, &script, "after").await.unwrap();
    });
}

#[test]
fn a_connection_that_broke_while_idle_costs_no_call() {
    let redis = Redis::start();
    with_store(&single(redis.addr()), async |store| {
        settled(&store).await;
        let (link, script) = (store.open_link(), echo());
        for _ in 0..3 {
            ask(&link, &script, "before").await.unwrap();
            command(redis.addr(), &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            sleep(ms(100)).await;
            ask(&link, &script, "after").await.unwrap();
        }
    });
}
