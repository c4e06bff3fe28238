//! Reports of gateways about themselves, and the secret that they share, on a real server.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sluicegate_store::node_reports::{NodeReport, publish_node_reports, read_node_reports};
use sluicegate_store::{Store, share_secret};

use crate::link::support::{settled, single, until};
use crate::support::{Redis, ms};

fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build_local(Default::default()).unwrap().block_on(test);
}

async fn store(redis: &Redis) -> (Arc<Store>, tokio::task::JoinHandle<()>) {
    let store = Store::new(&single(redis.addr()), None);
    let supervised = tokio::spawn(store.clone().supervise());
    settled(&store).await;
    (store, supervised)
}

fn report(name: &str, keys: usize) -> NodeReport {
    NodeReport {
        name: name.into(),
        version: "1.2.3".into(),
        top_keys: serde_json::json!({ "keys": "k".repeat(keys) }),
        ..NodeReport::default()
    }
}

async fn names(link: &sluicegate_store::Link) -> Vec<String> {
    let reports = read_node_reports(link).await.unwrap_or_default();
    reports.into_iter().map(|report| report.name).collect()
}

#[test]
fn each_gateway_reads_the_reports_of_all_until_they_are_stale() {
    let mut redis = Redis::start();
    run(async {
        let (one, _one) = store(&redis).await;
        let link = one.open_link();
        let mut tasks = Vec::new();
        for (name, keys) in [("b", 100), ("a", 15_000), ("c", 20_000)] {
            let (store, _supervised) = store(&redis).await;
            tasks.push(tokio::task::spawn_local(publish_node_reports(store, async move || {
                report(name, keys)
            })));
        }
        let wait = async || {
            while names(&link).await != ["a", "b", "c"] {
                tokio::time::sleep(ms(20)).await
            }
        };
        tokio::time::timeout(ms(20_000), wait()).await.expect("three reports");
        let reports = read_node_reports(&link).await.unwrap();
        assert_eq!(reports[0].top_keys, report("a", 15_000).top_keys);
        assert!(reports[2].top_keys.is_null(), "too long with its keys");
        assert!(reports.iter().all(|report| report.node.len() == 16 && report.version == "1.2.3"));
        redis.restart();
        tokio::time::timeout(ms(30_000), wait()).await.expect("three reports after a restart");
        // One stops: its report ends by itself.
        tasks.remove(0).abort();
        let stopped = std::time::Instant::now();
        while names(&link).await != ["a", "c"] {
            assert!(stopped.elapsed() < ms(20_000));
            tokio::time::sleep(ms(100)).await;
        }
        assert!(stopped.elapsed() > ms(5_000), "{:?}", stopped.elapsed());
        // Reports of strangers and broken ones are left out.
        redis.command(&["SET", "test:{operator}:node:0123456789abcdef", "no report"]);
        redis.command(&["ZADD", "test:{operator}:nodes", "9999999999999", "0123456789abcdef"]);
        assert_eq!(names(&link).await, ["a", "c"]);
        assert!(tasks.iter().all(|task| !task.is_finished()));
    });
}

#[test]
fn reports_of_too_many_gateways_are_not_kept() {
    let redis = Redis::start();
    for node in 0..256 {
        redis.command(&["ZADD", "test:{operator}:nodes", "99999999999999", &format!("{node:016x}")]);
    }
    run(async {
        let (store, _supervised) = store(&redis).await;
        let link = store.open_link();
        let task = tokio::task::spawn_local(publish_node_reports(store, async || report("late", 1)));
        tokio::time::sleep(ms(500)).await;
        assert!(names(&link).await.is_empty());
        redis.command(&["ZREM", "test:{operator}:nodes", "0000000000000007"]);
        tokio::time::sleep(ms(4_000)).await;
        assert_eq!(names(&link).await, ["late"]);
        task.abort();
    });
}

#[test]
fn gateways_share_one_secret_also_after_the_store_lost_it() {
    let mut redis = Redis::start();
    run(async {
        let (one, _one) = store(&redis).await;
        let (other, _other) = store(&redis).await;
        assert_eq!(one.shared_secret(), None);
        let learned = Rc::<RefCell<Vec<[u8; 16]>>>::default();
        for store in [&one, &other] {
            let learned = learned.clone();
            tokio::task::spawn_local(share_secret(store.clone(), move |secret| {
                learned.borrow_mut().push(secret)
            }));
        }
        until("two secrets", || learned.borrow().len() == 2).await;
        let secret = one.shared_secret().expect("a secret");
        assert_eq!((other.shared_secret(), learned.borrow().as_slice()), (Some(secret), &[secret; 2][..]));
        redis.restart();
        until("the secret again", || redis.keys().iter().any(|(key, _)| key.ends_with(b":secret"))).await;
        let (late, _late) = store(&redis).await;
        tokio::task::spawn_local(share_secret(late.clone(), |_| {}));
        until("a secret", || late.shared_secret().is_some()).await;
        assert_eq!(
            (late.shared_secret(), learned.borrow().len()),
            (Some(secret), 2),
            "nobody needs another one"
        );
        // The next configuration of the process knows it at once.
        let next = Store::new(&single(redis.addr()), Some(&late));
        assert_eq!(next.shared_secret(), Some(secret));
        assert!(redis.keys().iter().all(|(_, ttl)| *ttl > 0), "every key expires by itself");
    });
}
