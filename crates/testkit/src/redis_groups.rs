//! Groups of Redis servers: a primary watched by a Sentinel, and a Cluster.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use super::PATIENCE;
use super::redis::Redis;
use super::timing::{eventually, eventually_within, ms};

/// A primary and its replica, and a Sentinel that promotes the replica soon after the primary fails.
pub struct Sentinel {
    pub primary: Redis,
    pub replica: Redis,
    sentinel: Redis,
}

/// Three primaries with a third of the slots each, then one replica of each, in the same order.
pub struct Cluster {
    pub nodes: Vec<Redis>,
}

const PRIMARIES: usize = 3;

// === impl Sentinel ===

impl Sentinel {
    #[track_caller]
    pub fn start() -> Sentinel {
        let primary = Redis::start_with(&["--repl-diskless-sync-delay", "0"]);
        let port = primary.addr().port().to_string();
        let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]);
        eventually("a replica", || {
            replica.info("replication", "master_link_status").as_deref() == Some("up")
        });
        let sentinel = watching(&port);
        eventually("a Sentinel that knows the replica", || {
            let info: String = sentinel.ask(&["INFO", "sentinel"]);
            info.contains("slaves=1")
        });
        Sentinel { primary, replica, sentinel }
    }

    /// The URL for `state.redis.url`.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/main", self.sentinel.addr())
    }

    /// Has the replica take over from a primary that is well, and waits until the Sentinel names it.
    #[track_caller]
    pub fn fail_over(&self) {
        // A replica gets nothing for a moment after its first copy.
        eventually("a replica that has every write", || {
            let written = self.primary.info("replication", "master_repl_offset");
            written.is_some() && written == self.replica.info("replication", "slave_repl_offset")
        });
        eventually("a replica that the Sentinel takes", || {
            self.sentinel.try_ask::<String>(&["SENTINEL", "FAILOVER", "main"]).is_ok()
        });
        eventually_within(Duration::from_secs(60), "another name", || {
            let named: (String, u16) = self.sentinel.ask(&["SENTINEL", "get-master-addr-by-name", "main"]);
            named.1 == self.replica.addr().port()
        });
    }

    /// Waits until the replica is the primary.
    #[track_caller]
    pub fn wait_promoted(&self) {
        // A Sentinel with late timers does nothing for half a minute.
        eventually_within(Duration::from_secs(60), "a new primary", || {
            self.replica.info("replication", "role").as_deref() == Some("master")
        });
    }
}

/// A Sentinel needs a file that it may write to.
#[track_caller]
fn watching(port: &str) -> Redis {
    let file = "bind 127.0.0.1\n\
                sentinel monitor main 127.0.0.1 @ 1\n\
                sentinel down-after-milliseconds main 500\n\
                sentinel failover-timeout main 3000\n";
    Redis::start_from(&file.replace('@', port), &["--sentinel"])
}

// === impl Cluster ===

impl Cluster {
    #[track_caller]
    pub fn start() -> Cluster {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let more = ["--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"];
        let nodes: Vec<_> =
            (0..2 * PRIMARIES).map(|_| Redis::start_with(&[&options[..], &more[..]].concat())).collect();
        let cluster = Cluster { nodes };
        cluster.share_slots();
        cluster.meet();
        cluster.wait_ok();
        cluster
    }

    #[track_caller]
    fn share_slots(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            // Equal epochs would first have to be resolved by votes.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
            if place < PRIMARIES {
                let first = |place: usize| 16_384 * place / PRIMARIES;
                let (from, to) = (first(place).to_string(), (first(place + 1) - 1).to_string());
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &from, &to]);
            }
        }
    }

    #[track_caller]
    fn meet(&self) {
        let all = Some(self.nodes.len().to_string());
        let knows_all = |node: &Redis| cluster_info(node, "cluster_known_nodes") == all;
        let mut met: Option<Instant> = None;
        eventually_within(3 * PATIENCE, "servers that know each other", || {
            // On a busy machine a handshake may be given up after a second.
            if met.is_none_or(|at| at.elapsed() > ms(3000)) && !knows_all(&self.nodes[0]) {
                met = Some(Instant::now());
                for node in &self.nodes[1..] {
                    self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &node.addr().port().to_string()]);
                }
            }
            self.nodes.iter().all(knows_all)
        });
        for (replica, primary) in self.nodes[PRIMARIES..].iter().zip(&self.nodes) {
            let id: String = primary.ask(&["CLUSTER", "MYID"]);
            replica.command(&["CLUSTER", "REPLICATE", &id]);
        }
    }

    /// Waits until every running server serves all slots, and every replica follows its primary.
    #[track_caller]
    pub fn wait_ok(&self) {
        eventually("a Cluster that serves", || {
            let replicas_follow =
                self.nodes[PRIMARIES..].iter().filter(|node| node.is_running()).all(|node| {
                    node.info("replication", "role").as_deref() == Some("master")
                        || node.info("replication", "master_link_status").as_deref() == Some("up")
                });
            let ok = Some("ok".to_owned());
            let mut running = self.nodes.iter().filter(|node| node.is_running());
            replicas_follow && running.all(|node| cluster_info(node, "cluster_state") == ok)
        });
    }

    /// The URL for `state.redis.url`: the primaries as seeds.
    pub fn url(&self) -> String {
        let seeds: Vec<_> = self.nodes[..PRIMARIES].iter().map(Redis::url).collect();
        format!("[{}]", seeds.iter().map(|url| format!("\"{url}\"")).collect::<Vec<_>>().join(", "))
    }

    /// The sum of [`Redis::judgements`] over the current primaries.
    #[track_caller]
    pub fn judgements(&self) -> u64 {
        self.primaries().map(Redis::judgements).sum()
    }

    /// The [`Redis::keys`] of the current primaries.
    #[track_caller]
    pub fn keys(&self) -> Vec<(Vec<u8>, i64)> {
        self.primaries().flat_map(Redis::keys).collect()
    }

    /// Moves each slot that has keys from its primary to the next one, piece by piece, while it is in use.
    #[track_caller]
    pub fn move_keys(&self) {
        let primaries: Vec<_> = self.primaries().collect();
        let moves: Vec<_> = (0..primaries.len())
            .map(|place| (primaries[place], primaries[(place + 1) % primaries.len()]))
            .flat_map(|(from, to)| slots_in_use(from).into_iter().map(move |slot| (from, to, slot)))
            .collect();
        for (from, to, slot) in moves {
            move_slot(from, to, slot);
        }
    }

    pub fn primaries(&self) -> impl Iterator<Item = &Redis> {
        let running = self.nodes.iter().filter(|node| node.is_running());
        running.filter(|node| node.info("replication", "role").as_deref() == Some("master"))
    }
}

/// The hash slots of all keys of a server.
fn slots_in_use(node: &Redis) -> BTreeSet<u16> {
    let mut connection = node.connect();
    let mut slot = |name: &[u8]| ::redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut connection);
    node.keys().iter().map(|(name, _)| slot(name).expect("the slot of a key")).collect()
}

/// Moves a slot, with a pause between the steps, during which the servers answer with ASK, TRYAGAIN and MOVED.
#[track_caller]
fn move_slot(from: &Redis, to: &Redis, slot: u16) {
    let number = slot.to_string();
    let (source, target): (String, String) = (from.ask(&["CLUSTER", "MYID"]), to.ask(&["CLUSTER", "MYID"]));
    to.command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &source]);
    from.command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &target]);
    thread::sleep(ms(20));
    let mut connection = from.connect();
    loop {
        let names: Vec<Vec<u8>> = ::redis::cmd("CLUSTER")
            .arg(&["GETKEYSINSLOT", &number, "100"])
            .query(&mut connection)
            .expect("the keys of a slot");
        if names.is_empty() {
            break;
        }
        for name in names {
            let mut migrate = ::redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(to.addr().port()).arg(name).arg(0).arg(5000);
            let _: String = migrate.query(&mut connection).expect("a key that moves");
            thread::sleep(ms(5));
        }
    }
    to.command(&["CLUSTER", "SETSLOT", &number, "NODE", &target]);
    from.command(&["CLUSTER", "SETSLOT", &number, "NODE", &target]);
}

fn cluster_info(node: &Redis, field: &str) -> Option<String> {
    let text: String = node.try_ask(&["CLUSTER", "INFO"]).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.map(|value| value.trim().to_owned())
}
