//! The link to a Cluster: three primaries with a replica each.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use sluicegate_model::{self as model, RedisServers};
use sluicegate_store::{KeyGroup, Link, SharedKey, Store, StoreFault};
use tokio::time::sleep;

use crate::link::support::{RedisProcess, ask_in, config, echo, settled, until, with_store};
use crate::support::{eventually, free_addr, ms};

/// The first three are primaries; each is followed by the server three positions behind.
struct Cluster(Vec<RedisProcess>);

impl Cluster {
    fn start() -> Cluster {
        let start = |_| {
            let bus = free_addr().port().to_string();
            RedisProcess::start(&[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                "1500",
                "--cluster-require-full-coverage",
                "no",
                "--repl-diskless-sync-delay",
                "0",
            ])
        };
        let cluster = Cluster((0..6).map(start).collect());
        for (index, range) in [(0, "0 5460"), (1, "5461 10922"), (2, "10923 16383")] {
            let words: Vec<_> = ["CLUSTER", "ADDSLOTSRANGE"].into_iter().chain(range.split(' ')).collect();
            assert_eq!(cluster.0[index].command(&words), "+OK");
            let epoch = (index + 1).to_string();
            assert_eq!(cluster.0[index].command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]), "+OK");
        }
        let first = &cluster.0[0];
        for node in &cluster.0[1..] {
            let (port, bus) = (node.addr.port().to_string(), node.word_behind("--cluster-port"));
            assert_eq!(first.command(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]), "+OK");
        }
        cluster.everywhere("six nodes", |node| node.command(&["CLUSTER", "NODES"]).lines().count() == 6);
        for (index, node) in cluster.0[3..].iter().enumerate() {
            let primary = cluster.0[index].command(&["CLUSTER", "MYID"]);
            eventually("a replica", || node.command(&["CLUSTER", "REPLICATE", &primary]) == "+OK");
        }
        cluster.everywhere("a Cluster that is whole", |node| {
            let nodes = node.command(&["CLUSTER", "NODES"]);
            let info = node.command(&["CLUSTER", "INFO"]);
            nodes.matches("slave").count() == 3
                && !nodes.contains("handshake")
                && info.contains("cluster_state:ok")
                && info.contains("cluster_slots_ok:16384")
        });
        for primary in &cluster.0[..3] {
            eventually("a replica that follows", || {
                primary.command(&["INFO", "replication"]).contains("state=online")
            });
        }
        cluster
    }

    fn everywhere(&self, what: &str, done: impl Fn(&RedisProcess) -> bool) {
        for node in &self.0 {
            eventually(what, || done(node));
        }
    }

    fn config(&self) -> model::RedisConfig {
        let seed = |node: &RedisProcess| ("127.0.0.1".to_owned(), node.addr.port());
        config(RedisServers::Cluster(self.0.iter().map(seed).collect()))
    }

    fn name(&self, index: usize) -> String {
        self.0[index].addr.to_string()
    }
}

/// A key, its group, and the index of its primary.
#[derive(Clone)]
struct Key {
    group: KeyGroup,
    name: String,
    index: usize,
}

/// One key in each third of the slots.
fn keys(store: &Store) -> Vec<Key> {
    use base64::Engine as _;
    let mut found: Vec<Option<Key>> = vec![None; 3];
    for number in 0..1000u32 {
        let key = SharedKey(std::array::from_fn(|index| number.to_le_bytes()[index % 4]));
        let group = store.group_of(&key);
        let index = usize::from(group.0 >= 5461) + usize::from(group.0 >= 10923);
        let tag = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(key.0);
        found[index].get_or_insert(Key { group, name: format!("test:{{{tag}}}"), index });
    }
    found.into_iter().flatten().collect()
}

async fn call(link: &Link, key: &Key, turn: usize) -> Result<(), StoreFault> {
    ask_in(link, key.group, &key.name, &echo(), &format!("turn {turn} at {}", key.index)).await
}

/// Calls about each key in turn while it lives; records the faults and the primaries where they occurred.
struct Load {
    over: Rc<Cell<bool>>,
    answered: Rc<Cell<[usize; 3]>>,
    failed: Rc<Cell<[usize; 3]>>,
}

impl Load {
    fn start(link: Link, keys: Vec<Key>) -> Load {
        let load = Load { over: Rc::default(), answered: Rc::default(), failed: Rc::default() };
        let link = Rc::new(link);
        for key in keys {
            let (over, link) = (load.over.clone(), link.clone());
            let (answered, failed) = (load.answered.clone(), load.failed.clone());
            tokio::task::spawn_local(async move {
                let mut turn = 0;
                while !over.get() {
                    let cell = if call(&link, &key, turn).await.is_ok() { &answered } else { &failed };
                    let mut counts = cell.get();
                    counts[key.index] += 1;
                    cell.set(counts);
                    turn += 1;
                    sleep(ms(2)).await;
                }
            });
        }
        load
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.set(true);
    }
}

#[test]
fn calls_reach_the_owner_and_follow_keys_that_move() {
    let cluster = Cluster::start();
    with_store(&cluster.config(), async |store| {
        settled(&store).await;
        let mut names: Vec<_> = store.reading().servers.into_iter().map(|(name, _)| name).collect();
        names.sort();
        let mut wanted: Vec<_> = (0..3).map(|index| cluster.name(index)).collect();
        wanted.sort();
        assert_eq!(names, wanted, "the primaries alone");
        assert_eq!(store.nodes(), 1);
        let keys = keys(&store);
        for key in &keys {
            call(&store.open_link(), key, 0).await.unwrap();
            assert_eq!(cluster.0[key.index].command(&["GET", &key.name]), "1");
        }
        let load = Load::start(store.open_link(), keys.clone());
        move_slot(&cluster, &keys[0], 0, 1).await;
        sleep(ms(300)).await;
        move_slot(&cluster, &keys[0], 1, 0).await;
        sleep(ms(300)).await;
        assert_eq!(load.failed.get(), [0; 3], "no call failed");
        assert!(load.answered.get().iter().all(|&answered| answered > 50), "{:?}", load.answered);
        drop(load);
        sleep(ms(300)).await;
    });
}

/// Pauses at each step, so that calls are answered with ASK and MOVED.
async fn move_slot(cluster: &Cluster, key: &Key, from: usize, to: usize) {
    let slot = key.group.0.to_string();
    let (from, to) = (&cluster.0[from], &cluster.0[to]);
    let (source, target) = (from.command(&["CLUSTER", "MYID"]), to.command(&["CLUSTER", "MYID"]));
    assert_eq!(to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]), "+OK");
    assert_eq!(from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]), "+OK");
    sleep(ms(100)).await;
    // The target forgets the script as well.
    assert_eq!(to.command(&["SCRIPT", "FLUSH"]), "+OK");
    let port = to.addr.port().to_string();
    assert_eq!(from.command(&["MIGRATE", "127.0.0.1", &port, &key.name, "0", "5000"]), "+OK");
    sleep(ms(200)).await;
    assert_eq!(to.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]), "+OK");
    assert_eq!(from.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]), "+OK");
}

#[test]
fn a_replica_takes_over_by_order_and_after_a_death_and_others_notice_nothing() {
    let mut cluster = Cluster::start();
    with_store(&cluster.config(), async |store| {
        settled(&store).await;
        let keys = keys(&store);
        let load = Load::start(store.open_link(), keys.clone());
        sleep(ms(200)).await;
        assert_eq!(cluster.0[3].command(&["CLUSTER", "FAILOVER"]), "+OK");
        let name = cluster.name(3);
        until("the new primary", || store.reading().servers.contains(&(name.clone(), true))).await;
        until("answers of the new primary", || {
            let before = load.answered.get()[0];
            cluster.0[3].command(&["ROLE"]).starts_with('*') && before > 0 && !store.is_degraded()
        })
        .await;
        let link = store.open_link();
        call(&link, &keys[0], 1).await.unwrap();
        assert_eq!(load.failed.get()[1..], [0; 2], "the others noticed nothing");
        cluster.0[1].kill();
        let died = Instant::now();
        until("a server that is known to be dead", || {
            store.reading().servers.iter().any(|(_, answers)| !answers)
        })
        .await;
        assert_eq!(call(&link, &keys[1], 2).await, Err(StoreFault::Down));
        call(&link, &keys[0], 2).await.unwrap();
        call(&link, &keys[2], 2).await.unwrap();
        while call(&link, &keys[1], 3).await.is_err() {
            assert!(died.elapsed() < ms(20_000), "never used again");
            sleep(ms(10)).await;
        }
        assert_eq!(load.failed.get()[2], 0, "the third noticed nothing");
        assert!(store.reading().servers.contains(&(cluster.name(4), true)));
    });
}
