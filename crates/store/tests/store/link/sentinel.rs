//! The link to a primary that sentinels name.

use std::time::Instant;

use sluicegate_model::RedisServers;
use sluicegate_store::StoreFault;
use tokio::time::sleep;

use crate::link::support::{RedisProcess, ask, config, echo, settled, until, with_store};
use crate::support::{eventually, free_addr, ms};

/// A primary, its replica, and the sentinel that knows both.
fn watched() -> (RedisProcess, RedisProcess, RedisProcess) {
    let primary = RedisProcess::start(&["--repl-diskless-sync-delay", "0"]);
    let port = primary.addr.port().to_string();
    let replica = RedisProcess::start(&[
        "--replicaof",
        &format!("127.0.0.1 {port}"),
        "--repl-diskless-sync-delay",
        "0",
    ]);
    eventually("a replica that follows", || {
        primary.command(&["INFO", "replication"]).contains("state=online")
    });
    let sentinel = RedisProcess::sentinel(primary.addr, "main");
    eventually("a sentinel that knows the replica", || {
        sentinel.command(&["SENTINEL", "REPLICAS", "main"]).starts_with("*1")
    });
    (primary, replica, sentinel)
}

fn servers(sentinels: &[&RedisProcess]) -> RedisServers {
    // The first sentinel does not answer.
    let silent = ("127.0.0.1".to_owned(), free_addr().port());
    let known = sentinels.iter().map(|sentinel| ("127.0.0.1".to_owned(), sentinel.addr.port()));
    RedisServers::Sentinel { sentinels: [silent].into_iter().chain(known).collect(), name: "main".into() }
}

#[test]
fn a_primary_that_dies_is_replaced_by_the_one_that_sentinels_name() {
    let (mut primary, replica, sentinel) = watched();
    with_store(&config(servers(&[&sentinel])), async |store| {
        settled(&store).await;
        assert_eq!(store.reading().servers, [(primary.addr.to_string(), true)]);
        let (link, script) = (store.open_link(), echo());
        ask(&link, &script, "before").await.unwrap();
        primary.kill();
        let died = Instant::now();
        while ask(&link, &script, "meanwhile").await.is_err() {
            assert!(died.elapsed() < ms(20_000), "never used again");
            sleep(ms(5)).await;
        }
        assert_eq!(store.reading().servers[0].0, replica.addr.to_string());
        // The sentinel may have needed most of the time.
        let promoted = replica.command(&["ROLE"]);
        assert!(promoted.starts_with('*'), "{promoted}");
        settled(&store).await;
        for _ in 0..50 {
            ask(&link, &script, "after").await.unwrap();
        }
    });
}

#[test]
fn a_primary_that_was_demoted_is_left() {
    let (primary, replica, sentinel) = watched();
    with_store(&config(servers(&[&sentinel])), async |store| {
        settled(&store).await;
        let (link, script) = (store.open_link(), echo());
        ask(&link, &script, "before").await.unwrap();
        until("a replica that the sentinel takes", || {
            sentinel.command(&["SENTINEL", "FAILOVER", "main"]) == "+OK"
        })
        .await;
        until("the other server", || store.reading().servers == [(replica.addr.to_string(), true)]).await;
        settled(&store).await;
        until("a demoted primary", || primary.command(&["INFO", "replication"]).contains("role:slave")).await;
        for _ in 0..50 {
            ask(&link, &script, "after").await.unwrap();
        }
    });
}

#[test]
fn without_a_sentinel_no_server_is_asked_and_nothing_ends() {
    with_store(&config(servers(&[])), async |store| {
        sleep(ms(700)).await;
        assert!(store.is_degraded() && store.reading().servers.is_empty());
        assert_eq!(ask(&store.open_link(), &echo(), "x").await, Err(StoreFault::Down));
    });
}
