//! Two workers serve clients over sockets, and their heavy keys are read as the admin pages do.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::*;
use crate::process::listeners::Listeners;
use sluicegate_config as config;
use sluicegate_proxy::downstream::bind::{OpenSockets, bind_listeners};
use sluicegate_proxy::downstream::connection_limits::ConnectionLimits;
use sluicegate_proxy::downstream::worker_thread::WorkerCommand;
use sluicegate_proxy::gateway::heavy_keys::report::KeyRate;

/// Two workers that serve a configuration, on a port of their own.
struct Served {
    runtime: tokio::runtime::LocalRuntime,
    workers: Workers,
    gateway: Arc<Gateway>,
    address: SocketAddr,
}

fn build_gateway(yaml: &str, previous: Option<&Gateway>) -> Arc<Gateway> {
    let yaml =
        format!("listen: 127.0.0.1:0\nserver: {{ workers: 2 }}\naccess_log: {{ output: none }}\n{yaml}");
    let loaded = config::parse(&yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    Arc::new(Gateway::build(&loaded.config, previous).unwrap())
}

impl Served {
    fn start(yaml: &str) -> Served {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(Default::default())
            .unwrap();
        let gateway = build_gateway(yaml, None);
        let (workers, address) = runtime.block_on(async {
            let (limits, inboxes) = ConnectionLimits::new(2, 100, None);
            let (workers, _) = Workers::start_threads(&gateway, &limits, inboxes).unwrap();
            let bound = bind_listeners(&gateway.config.listen, 2, &mut OpenSockets::default()).unwrap();
            let listeners = Listeners::new(bound, OpenSockets::default());
            let shown = listeners.display_addresses().remove(0);
            workers.send_commands(listeners.accept_commands(2).unwrap()).await;
            (workers, shown.trim_start_matches("http://").trim_end_matches('/').parse().unwrap())
        });
        Served { runtime, workers, gateway, address }
    }

    fn reload(&mut self, yaml: &str) {
        let gateway = build_gateway(yaml, Some(&self.gateway));
        gateway.apply_numbers(&Now::read_clock);
        self.runtime.block_on(self.workers.send_to_all(|| WorkerCommand::UseGateway(gateway.clone())));
        self.gateway = gateway;
    }

    /// The status of the answer to one request of a client at an address of this host.
    fn ask_from(&self, client: [u8; 4], header: &str) -> u16 {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
        socket.connect(&self.address.into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!("GET /a HTTP/1.1\r\nHost: a.test\r\n{header}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("{answer:?}"))
    }

    fn ask_often(&self, requests: usize) {
        for _ in 0..requests {
            self.ask_from(HERE, "");
        }
    }

    fn heavy_keys(&self, limit: &str, by: HeavyBy, top: usize) -> Result<Vec<HeavyKey>, KeyLookupError> {
        self.runtime.block_on(read_heavy_keys(&self.workers, &self.gateway, limit, by, top))
    }

    fn names(&self, limit: &str, by: HeavyBy) -> Vec<String> {
        self.heavy_keys(limit, by, 20).unwrap().into_iter().map(|key| key.name).collect()
    }

    fn find_key(&self, limit: &str, text: &str) -> Result<HeavyKey, String> {
        let found = self.runtime.block_on(read_key(&self.workers, &self.gateway, limit, text));
        found.map_err(|error| error.to_string())
    }

    fn refusals(&self) -> Vec<RecentRefusal> {
        self.runtime.block_on(read_refusals(&self.workers, &self.gateway))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.workers.end_now();
    }
}

const HERE: [u8; 4] = [127, 0, 0, 1];
const THERE: [u8; 4] = [127, 0, 0, 2];

const BY_IP: &str = "
limits:
  per-ip: { rate: 6/h }
  watched: { key: [ip, uri], rate: 2/h, dry_run: true }
  all: { key: global, rate: 99/s }
locations: [{ path: /, respond: { body: ok }, limits: [per-ip, watched, all] }]
";

#[test]
fn two_clients_are_listed_by_name() {
    let served = Served::start(BY_IP);
    let statuses: Vec<u16> = (0..9).map(|_| served.ask_from(HERE, "")).collect();
    assert_eq!(statuses, [[200; 6].as_slice(), &[429; 3]].concat());
    (0..4).for_each(|_| assert_eq!(served.ask_from(THERE, ""), 200));

    let asked = served.heavy_keys("per-ip", HeavyBy::Asked, 20).unwrap();
    let names: Vec<&str> = asked.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["ip=127.0.0.1", "ip=127.0.0.2"]);
    let share = asked[0].asked.per_s / asked[1].asked.per_s;
    assert!((2.0..2.5).contains(&share), "9 to 4 requests are {share}");
    assert_eq!((asked[0].asked.error_per_s, asked[1].refused), (0.0, KeyRate::default()));
    assert_eq!(asked[0].key, served.gateway.keys.hash_ip(IpAddr::from(HERE)), "all of its counters' key");
    assert!(asked[0].shared.is_none());

    let refused = served.heavy_keys("per-ip", HeavyBy::Refused, 20).unwrap();
    assert_eq!(refused.len(), 1);
    assert!((refused[0].refused.per_s * 3.0 - refused[0].asked.per_s).abs() < 0.05 * refused[0].asked.per_s);
    // Of a dry run, what it would have refused; the enforced limit's refusals are none of them.
    assert_eq!(served.names("watched", HeavyBy::Refused), ["ip=127.0.0.1,uri=/a", "ip=127.0.0.2,uri=/a"]);
    assert_eq!(served.names("all", HeavyBy::Asked), ["global"]);
    assert_eq!(served.heavy_keys("per-ip", HeavyBy::Asked, 1).unwrap().len(), 1);
    assert_eq!(served.heavy_keys("x", HeavyBy::Asked, 1), Err(KeyLookupError::NoLimit("x".into())));
}

#[test]
fn a_typed_name_finds_its_key_and_rates() {
    let served = Served::start(BY_IP);
    served.ask_often(9);
    let listed = served.heavy_keys("per-ip", HeavyBy::Asked, 1).unwrap().remove(0);
    let found = served.find_key("per-ip", "ip=127.0.0.1").unwrap();
    assert_eq!((&found.name, found.key), (&listed.name, listed.key));
    assert!(found.asked.per_s > 0.9 * listed.asked.per_s && found.refused.per_s > 0.9 * listed.refused.per_s);
    let silent = served.find_key("per-ip", "ip=192.0.2.1").unwrap();
    assert_eq!((silent.name.as_str(), silent.asked.per_s), ("ip=192.0.2.1", 0.0));
    assert_eq!(
        served.find_key("per-ip", "account=x"),
        Err("limit per-ip counts by ip: write ip=ADDRESS".to_owned())
    );
    assert_eq!(served.find_key("x", "ip=192.0.2.1"), Err("no limit is called `x`".to_owned()));
}

const BY_ACCOUNT: &str = "
account: { from: header:x-account }
limits: { per-account: { key: account, rate: 3/h } }
locations: [{ path: /a, respond: { body: ok }, limits: per-account }]
";

#[test]
fn accounts_are_listed_as_hashes_and_found_by_both() {
    let served = Served::start(BY_ACCOUNT);
    let long = format!("bob{}", "x".repeat(100));
    for _ in 0..2 {
        served.ask_from(HERE, "X-Account: alice\r\n");
    }
    served.ask_from(HERE, &format!("X-Account: {long}\r\n"));
    let hash = |name: &str| {
        let hasher = served.gateway.access_log.hasher().unwrap();
        format!("account=#{:016x}", hasher.hash_value(name.as_bytes()))
    };
    assert_eq!(served.names("per-account", HeavyBy::Asked), [hash("alice"), hash(&long)]);
    let shown = served.gateway.access_log.line_writer(0).shown_account("alice");
    assert_eq!(hash("alice"), format!("account=#{shown}"), "as the access log shows it");
    for (plain, hash) in [("alice", hash("alice")), (&*long, hash(&long))] {
        let by_name = served.find_key("per-account", &format!("account={plain}")).unwrap();
        let by_hash = served.find_key("per-account", &hash).unwrap();
        let encoded = served.find_key("per-account", &hash.replace('#', "%23")).unwrap();
        assert_eq!((by_name.key, &by_name.name), (by_hash.key, &hash));
        assert_eq!(by_hash.key, encoded.key);
        assert!(by_hash.asked.per_s > 0.0);
    }
    let unknown = served.find_key("per-account", "account=#0123456789abcdef").unwrap_err();
    assert!(unknown.starts_with("limit per-account: no key that is shown so is known now"), "{unknown}");
}

#[test]
fn counts_survive_a_reload_that_keeps_their_key() {
    let mut served = Served::start(BY_IP);
    served.ask_often(9);
    let before = served.find_key("per-ip", "ip=127.0.0.1").unwrap();
    served.reload(
        &BY_IP.replace("rate: 6/h", "rate: 7/h").replace("  per-ip:", "  a: { rate: 9/s }\n  per-ip:"),
    );
    let after = served.find_key("per-ip", "ip=127.0.0.1").unwrap();
    assert_eq!(before.key, after.key);
    assert!(after.asked.per_s > 0.9 * before.asked.per_s, "{before:?} {after:?}");
    assert_eq!(served.ask_from(THERE, ""), 200);
    assert_eq!(served.names("per-ip", HeavyBy::Asked), ["ip=127.0.0.1", "ip=127.0.0.2"]);
    served.reload(&BY_IP.replace("per-ip: { rate", "per-ip: { key: [ip, host], rate"));
    assert_eq!(served.names("per-ip", HeavyBy::Asked), [""; 0], "another key begins anew");
    assert!(!served.names("watched", HeavyBy::Asked).is_empty());
    served.reload(&format!("state: {{ heavy_hitters: none }}\n{BY_IP}"));
    assert_eq!(served.heavy_keys("per-ip", HeavyBy::Asked, 1), Err(KeyLookupError::NotKept));
    assert_eq!(served.ask_from(HERE, ""), 200);
    assert!(served.find_key("watched", "ip=127.0.0.1,uri=/a").is_ok(), "its counters have a name");
}

#[test]
fn the_last_refusals_are_remembered() {
    let served = Served::start(BY_IP);
    (0..6).for_each(|_| assert_eq!(served.ask_from(HERE, ""), 200));
    assert!(served.refusals().is_empty());
    (0..2).for_each(|_| assert_eq!(served.ask_from(HERE, ""), 429));
    let refusals = served.refusals();
    assert_eq!(refusals.len(), 2);
    assert!(refusals[0].unix_ms >= refusals[1].unix_ms && refusals[1].unix_ms > 1_600_000_000_000);
    let RecentRefusal { limit, key, ip, location, status, retry_after_ms, cause, .. } = &refusals[0];
    assert_eq!((limit.as_str(), key.as_deref()), ("per-ip", Some("ip=127.0.0.1")));
    assert_eq!((*ip, location.as_deref()), (Some(IpAddr::from(HERE)), Some("/")));
    assert_eq!((*status, *cause), (Some(429), "rate"));
    assert!(retry_after_ms.is_some_and(|ms| (500_000..600_001).contains(&ms)), "{retry_after_ms:?}");
    served.ask_often(250);
    assert_eq!(served.refusals().len(), REFUSALS_MAX);
}

/// No Redis listens there: the gateway judges for itself, and the keys are still those of the store.
#[test]
fn keys_of_the_store_are_listed_too() {
    let served = Served::start(
        "state: { redis: { url: \"redis://127.0.0.1:9\" } }
account: { from: header:x-account }
limits: { everywhere: { key: account, rate: 2/h, state: redis } }
locations: [{ path: /a, respond: { body: ok }, limits: everywhere }]
",
    );
    let statuses: Vec<u16> = (0..5).map(|_| served.ask_from(HERE, "X-Account: alice\r\n")).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    let refused = served.heavy_keys("everywhere", HeavyBy::Refused, 5).unwrap();
    assert_eq!(refused.len(), 1);
    let share = refused[0].refused.per_s / refused[0].asked.per_s;
    assert!((0.58..0.62).contains(&share), "3 of 5 are {share}");
    let typed = served.find_key("everywhere", "account=alice").unwrap();
    assert_eq!((typed.key, typed.shared), (refused[0].key, refused[0].shared));
    assert!(typed.shared.is_some());
    assert_eq!(served.refusals()[0].key.as_deref(), Some(&*refused[0].name));
}
