//! Gateways that share the entries of operators through a real server, also across outages of it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_base::clock::Now;
use sluicegate_store::Store;
use sluicegate_store::operator_entries::{OperatorEntries, share_entries};

use crate::link::support::{settled, single, until};
use crate::support::{Cluster, Redis, ms};

/// One gateway, without its sockets.
struct Gateway {
    entries: Arc<OperatorEntries>,
    /// What it was last told of: names and values, sorted.
    told: Rc<RefCell<Vec<String>>>,
    store: Arc<Store>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Gateway {
    async fn start(redis: &Redis) -> Gateway {
        let gateway = Gateway::start_on(Store::new(&single(redis.addr()), None), Arc::default());
        settled(&gateway.store).await;
        gateway
    }

    fn start_on(store: Arc<Store>, entries: Arc<OperatorEntries>) -> Gateway {
        let told = Rc::<RefCell<Vec<String>>>::default();
        let tell = told.clone();
        let sharing = share_entries(entries.clone(), store.clone(), move |living| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let line = |entry: &sluicegate_store::operator_entries::OperatorEntry| {
                format!("{}={}", text(&entry.name), text(&entry.value))
            };
            let mut lines: Vec<String> = living.iter().map(line).collect();
            lines.sort();
            tell.replace(lines);
        });
        let tasks = [tokio::spawn(store.clone().supervise()), tokio::task::spawn_local(sharing)];
        Gateway { entries, told, store, tasks }
    }

    #[track_caller]
    fn put(&self, name: &str, value: &str) {
        self.put_for(name, value, Duration::from_secs(600));
    }

    #[track_caller]
    fn put_for(&self, name: &str, value: &str, lasts: Duration) {
        let until = Now(Now::read_clock().0 + lasts.as_nanos() as u64);
        self.entries.put(name.as_bytes(), value.as_bytes(), until).unwrap();
    }

    fn knows(&self, lines: &[&str]) -> bool {
        *self.told.borrow() == lines
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
    }
}

/// Runs `test` on a runtime like that of the control thread.
fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build_local(Default::default()).unwrap().block_on(test);
}

async fn all_know(gateways: &[Gateway], lines: &[&str]) -> Duration {
    until(&format!("{lines:?}"), || gateways.iter().all(|gateway| gateway.knows(lines))).await
}

#[test]
fn a_change_of_one_gateway_reaches_all() {
    let redis = Redis::start();
    run(async {
        let gateways = [Gateway::start(&redis).await, Gateway::start(&redis).await];
        gateways[0].put("ban/10.0.0.1", "abuse");
        all_know(&gateways, &["ban/10.0.0.1=abuse"]).await;
        gateways[1].put("ban/10.0.0.1", "other");
        gateways[1].put_for("grant", "1", ms(1500));
        all_know(&gateways, &["ban/10.0.0.1=other", "grant=1"]).await;
        let ended = all_know(&gateways, &["ban/10.0.0.1=other"]).await;
        assert!(ended < ms(2500) + crate::link::support::MARGIN, "it ended after {ended:?}");
        gateways[0].put("second", "2");
        all_know(&gateways, &["ban/10.0.0.1=other", "second=2"]).await;
        // A gateway that starts afterwards.
        let late = [Gateway::start(&redis).await];
        all_know(&late, &["ban/10.0.0.1=other", "second=2"]).await;
        assert!(gateways[1].entries.delete_all(&[b"ban/10.0.0.1"[..].into()]).unwrap());
        assert!(!gateways[1].entries.delete_all(&[b"unknown"[..].into()]).unwrap());
        all_know(&gateways, &["second=2"]).await;
        all_know(&late, &["second=2"]).await;
        assert!(redis.keys().iter().all(|(_, ttl)| *ttl > 0), "every key expires by itself");
    });
}

#[test]
fn changes_during_an_outage_act_here_and_win_when_redis_is_back() {
    let mut redis = Redis::start();
    run(async {
        let gateways = [Gateway::start(&redis).await, Gateway::start(&redis).await];
        ["a", "b"].iter().for_each(|name| gateways[0].put(name, "1"));
        all_know(&gateways, &["a=1", "b=1"]).await;
        for is_empty in [false, true] {
            if is_empty {
                redis.kill()
            } else {
                redis.pause()
            }
            until("an outage", || gateways.iter().all(|gateway| gateway.store.is_degraded())).await;
            gateways[0].entries.delete_all(&[b"a"[..].into()]).unwrap();
            gateways[0].put("c", "1");
            all_know(&gateways[..1], &["b=1", "c=1"]).await;
            assert!(gateways[1].knows(&["a=1", "b=1"]) && gateways[0].entries.pending_count() == 2);
            if is_empty {
                redis.restart()
            } else {
                redis.resume()
            }
            all_know(&gateways, &["b=1", "c=1"]).await;
            until("acknowledged changes", || gateways.iter().all(|g| g.entries.pending_count() == 0)).await;
            // Nothing comes back.
            tokio::time::sleep(ms(700)).await;
            assert!(gateways.iter().all(|gateway| gateway.knows(&["b=1", "c=1"])));
            gateways[1].put("a", "1");
            gateways[1].entries.delete_all(&[b"c"[..].into()]).unwrap();
            all_know(&gateways, &["a=1", "b=1"]).await;
        }
    });
}

#[test]
fn a_store_that_lost_its_memory_gets_all_back() {
    let mut redis = Redis::start();
    run(async {
        let gateways = [Gateway::start(&redis).await, Gateway::start(&redis).await];
        (0..300).for_each(|id| gateways[id % 2].put(&format!("{id:03}"), "x"));
        let lines: Vec<String> = (0..300).map(|id| format!("{id:03}=x")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        all_know(&gateways, &lines).await;
        for how in ["flush", "restart", "delete"] {
            match how {
                "flush" => redis.command(&["FLUSHALL"]),
                "delete" => redis.command(&["DEL", "test:{operator}"]),
                _ => redis.restart(),
            }
            let late = [Gateway::start(&redis).await];
            all_know(&late, &lines).await;
            all_know(&gateways, &lines).await;
        }
        // A foreign value under the name is not ours.
        redis.command(&["DEL", "test:{operator}"]);
        redis.command(&["SET", "test:{operator}", "foreign"]);
        let late = [Gateway::start(&redis).await];
        all_know(&late, &lines).await;
    });
}

#[test]
fn a_gateway_that_was_cut_off_learns_of_deletions() {
    let redis = Redis::start();
    let proxy = crate::support::Proxy::start(redis.addr());
    run(async {
        let far = Gateway::start_on(Store::new(&single(proxy.addr()), None), Arc::default());
        settled(&far.store).await;
        let near = Gateway::start(&redis).await;
        ["a", "b"].iter().for_each(|name| near.put(name, "1"));
        let gateways = [near, far];
        all_know(&gateways, &["a=1", "b=1"]).await;
        proxy.refuse();
        until("an outage", || gateways[1].store.is_degraded()).await;
        gateways[0].entries.delete_all(&[b"a"[..].into()]).unwrap();
        gateways[0].put("c", "1");
        gateways[1].put("d", "1");
        all_know(&gateways[..1], &["b=1", "c=1"]).await;
        proxy.forward();
        all_know(&gateways, &["b=1", "c=1", "d=1"]).await;
    });
}

#[test]
fn entries_survive_another_store_of_the_same_process() {
    let (redis, other) = (Redis::start(), Redis::start());
    run(async {
        let gateway = Gateway::start(&redis).await;
        gateway.put("a", "1");
        until("an acknowledged change", || gateway.entries.pending_count() == 0).await;
        let entries = gateway.entries.clone();
        drop(gateway);
        let moved = [Gateway::start_on(Store::new(&single(other.addr()), None), entries)];
        let late = [Gateway::start(&other).await];
        all_know(&late, &["a=1"]).await;
        drop(moved);
    });
}

#[test]
fn ten_thousand_entries_are_shared_soon() {
    let redis = Redis::start();
    run(async {
        let gateway = Gateway::start(&redis).await;
        let value = "x".repeat(150);
        (0..10_000).for_each(|id| gateway.put(&format!("{id:06}"), &value));
        let began = Instant::now();
        until("acknowledged changes", || gateway.entries.pending_count() == 0).await;
        let sent = began.elapsed();
        let late = Gateway::start(&redis).await;
        let learned = until("all entries", || late.told.borrow().len() == 10_000).await;
        assert!(sent < ms(15_000) && learned < ms(10_000), "{sent:?}, {learned:?}");
        let slowest: i64 = redis.ask(&["SLOWLOG", "LEN"]);
        assert!(slowest < 20, "{slowest} calls took longer than 10 ms");
    });
}

#[test]
fn entries_are_shared_in_a_cluster() {
    let cluster = Cluster::start();
    run(async {
        let seeds = cluster.nodes.iter().map(|node| (node.addr().ip().to_string(), node.addr().port()));
        let config = crate::link::support::config(sluicegate_model::RedisServers::Cluster(seeds.collect()));
        let gateways = [(); 2].map(|()| Gateway::start_on(Store::new(&config, None), Arc::default()));
        for gateway in &gateways {
            settled(&gateway.store).await;
        }
        gateways[0].put("a", "1");
        all_know(&gateways, &["a=1"]).await;
        gateways[1].entries.delete_all(&[b"a"[..].into()]).unwrap();
        all_know(&gateways, &[]).await;
    });
}
