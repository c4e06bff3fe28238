//! The link to a server that answers but does not accept writes.

use sluicegate_store::StoreFault;
use tokio::time::sleep;

use crate::link::support::{RedisProcess, ask, echo, settled, single, until, with_store};
use crate::support::{free_addr, ms};

/// `on` puts it into that state and `off` ends it; calls fail with `wanted` until the server is left alone.
fn unwritable(on: &[&str], off: &[&str], wanted: StoreFault) {
    let redis = RedisProcess::start(&[]);
    with_store(&single(redis.addr), async |store| {
        settled(&store).await;
        let (link, script) = (store.open_link(), echo());
        ask(&link, &script, "before").await.unwrap();
        assert_eq!(redis.command(on), "+OK");
        let mut failures = Vec::new();
        while failures.last() != Some(&StoreFault::Down) {
            failures.extend(ask(&link, &script, "meanwhile").await.err());
            sleep(ms(1)).await;
        }
        assert_eq!(failures[0], wanted, "{failures:?}");
        sleep(ms(1200)).await;
        assert!(!store.reading().servers[0].1, "no probe succeeds meanwhile");
        assert_eq!(redis.command(off), "+OK");
        settled(&store).await;
        ask(&link, &script, "after").await.unwrap();
        assert_eq!(redis.command(on), "+OK");
        until("a probe that finds it out without any call", || store.is_degraded()).await;
    });
}

#[test]
fn a_server_whose_memory_is_full_is_not_used() {
    let set = |value| ["CONFIG", "SET", "maxmemory", value];
    unwritable(&set("1"), &set("0"), StoreFault::Full);
}

#[test]
fn a_replica_is_not_used() {
    let port = free_addr().port().to_string();
    unwritable(&["REPLICAOF", "127.0.0.1", &port], &["REPLICAOF", "NO", "ONE"], StoreFault::Unready);
}

#[test]
fn a_primary_without_its_replicas_is_not_used() {
    let set = |value| ["CONFIG", "SET", "min-replicas-to-write", value];
    unwritable(&set("1"), &set("0"), StoreFault::Unready);
}
