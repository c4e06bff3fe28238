//! What limits charge by responses equals an independent ledger, to the unit: random calls to a scripted provider, with
//! chunks split at every kind of place, aborts by client and server, retries, and reloads in between; in one gateway, and
//! in two that count in Redis.
//!
//! `LEDGER_CALLS=100000 cargo test --test ledger` makes as many calls; the default is fit for each test run.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod call;
mod dialect;
mod prices;
mod random;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use call::{Call, Ending};
use support::*;

const THREADS: u64 = 4;
const CALLS: u64 = 8_000;
const SHARED_CALLS: u64 = 4_000;
/// Of the rates, which no run uses up.
const NUMBERS: [u64; 2] = [3_900_000_000, 4_000_000_000];
const WINDOWS: [&str; 2] = ["tokens", "bytes"];

const FILE: &str = "
limits:
  tokens: { key: global, algorithm: fixed_window, rate: NUMBER/1d,
            charge: { units: { llm: { input: 1, output: 4, cached: 0.1 } }, reserve: 100 } }
  jobs: { key: global, algorithm: sliding_log, rate: NUMBER/1d, charge: { units: \"header:X-Cost\", reserve: 7 } }
  fields: { key: global, algorithm: sliding_window, rate: NUMBER/1d,
            charge: { units: \"json:/result/cost\", missing: nothing } }
  bytes: { key: global, algorithm: fixed_window, rate: NUMBER/1d, charge: { units: bytes } }
  login: { key: global, rate: NUMBER/1d, charge: { when: [401, 403] } }
upstreams: { provider: { servers: [\"UPSTREAM\"], retries: { attempts: 1, when: 503, budget: none } } }
locations:
  - { path: /tokens/, upstream: provider, limits: tokens }
  - { path: /jobs/, upstream: provider, limits: jobs }
  - { path: /fields/, upstream: provider, limits: fields }
  - { path: /bytes/, upstream: provider, limits: bytes }
  - { path: /login/, upstream: provider, limits: login }
";

/// What the provider and the clients tell each other about calls.
#[derive(Default)]
struct Rendezvous {
    /// Holds the answer until the client has left.
    gates: Mutex<HashMap<u64, Gate>>,
    /// Attempts that the provider has seen.
    tries: Mutex<HashMap<u64, u32>>,
}

impl Rendezvous {
    fn gate(&self, seed: u64) -> Gate {
        self.gates.lock().unwrap().entry(seed).or_default().clone()
    }

    fn count_try(&self, seed: u64) -> u32 {
        *self.tries.lock().unwrap().entry(seed).and_modify(|count| *count += 1).or_insert(1)
    }

    fn forget(&self, seed: u64) {
        self.gates.lock().unwrap().remove(&seed);
    }

    fn tries(&self, seed: u64) -> u32 {
        self.tries.lock().unwrap().get(&seed).copied().unwrap_or(0)
    }
}

fn provider(rendezvous: &Arc<Rendezvous>) -> Upstream {
    let rendezvous = rendezvous.clone();
    Upstream::new(move |seen| {
        let seed = seen.target.rsplit('/').next().and_then(|seed| seed.parse().ok()).expect("a seed");
        let call = Call::from_seed(seed);
        match rendezvous.count_try(seed) {
            1 if call.is_retried => Reply::with(503, &[("X-Cost", "999")], "{\"result\":{\"cost\":999}}"),
            _ => call.reply(&rendezvous.gate(seed)),
        }
    })
}

/// Makes the call as its client. A connection that may be used again stays in `client`.
fn make_call(gateway: &Gateway, client: &mut Option<Client>, call: &Call, rendezvous: &Rendezvous) {
    let mut connected = client.take().unwrap_or_else(|| gateway.client());
    connected.send(call.request());
    match call.ending {
        Ending::Whole => {
            let response = connected.response();
            assert_eq!(
                (response.status, &response.body[..]),
                (call.status, call.delivered()),
                "{}",
                call.shown()
            );
            *client = Some(connected);
            return rendezvous.forget(call.seed);
        }
        Ending::ServerCloses if call.sends_head => {
            assert_ne!(connected.rest(PATIENCE).1, End::Deadline, "{}", call.shown());
        }
        Ending::ServerCloses => drop(connected.response().expect(502)),
        Ending::ClientLeaves if call.sends_head => {
            connected.raw_head(PATIENCE).expect("a head");
            let length = call.delivered().len();
            let taken =
                if call.is_chunked() { connected.take_chunks(length) } else { connected.take(length) };
            assert_eq!(taken, call.delivered(), "{}", call.shown());
        }
        Ending::ClientLeaves => {
            let tries = if call.is_retried { 2 } else { 1 };
            eventually("the provider has the request", || rendezvous.tries(call.seed) >= tries);
        }
    }
    drop(connected);
    rendezvous.gate(call.seed).open();
    rendezvous.forget(call.seed);
}

/// Reloads with other numbers again and again until `is_over`.
fn reload_until(gateway: &Gateway, is_over: &AtomicBool) {
    let file = std::fs::read_to_string(gateway.file()).expect("its file");
    let [one, other] = NUMBERS.map(|number| number.to_string());
    while !is_over.load(Ordering::Relaxed) {
        for text in [file.replace(&one, &other), file.clone()] {
            gateway.change(&text);
            thread::sleep(ms(150));
        }
    }
}

/// The units that a limit with a window of a day has left.
fn remaining(gateway: &Gateway, limit: &str) -> u64 {
    let explained = serde_json::json!({ "method": "GET", "url": format!("/{limit}/0") }).to_string();
    let asked = post("/explain", explained.as_bytes()).header("Accept", "application/json");
    let explained = gateway.ask_admin(&asked).expect(200).json();
    explained["limits"][0]["counters"][0]["remaining"].as_u64().expect("a number")
}

/// The number of calls of a test; by default `usual`.
fn call_count(usual: u64) -> u64 {
    std::env::var("LEDGER_CALLS").ok().and_then(|calls| calls.parse().ok()).unwrap_or(usual)
}

/// Makes the calls, each by one of the gateways, with `besides` at the same time.
fn make_calls(
    gateways: &[Gateway],
    calls: u64,
    rendezvous: &Rendezvous,
    besides: impl Fn(&AtomicBool) + Sync,
) {
    let (next, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
    let (next, is_over) = (&next, &is_over);
    thread::scope(|scope| {
        let callers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let gateway = &gateways[thread as usize % gateways.len()];
                scope.spawn(move || {
                    let mut client = None;
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed > calls {
                            return;
                        }
                        make_call(gateway, &mut client, &Call::from_seed(seed), rendezvous);
                    }
                })
            })
            .collect();
        let besides = scope.spawn(|| besides(is_over));
        callers.into_iter().for_each(|caller| caller.join().expect("a caller"));
        is_over.store(true, Ordering::Relaxed);
        besides.join().expect("what runs besides");
    });
}

/// The units of each limit, where every line of the log says what its call costs.
fn check_log<'a>(lines: &[serde_json::Value]) -> HashMap<&'a str, u64> {
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for line in lines {
        let path = line["path"].as_str().expect("a path");
        let call =
            Call::from_seed(path.rsplit('/').next().and_then(|seed| seed.parse().ok()).expect("a seed"));
        let found = (line["reserved"].as_u64(), line["charged"].as_u64(), line["charged_by"].as_str());
        let expected = &call.expected;
        let expected = (Some(expected.reserved), Some(expected.charged), Some(expected.by));
        assert_eq!(found, expected, "{line}\n{}", call.shown());
        *sums.entry(call.limit).or_default() += call.expected.charged;
    }
    sums
}

#[test]
fn charges_equal_an_independent_ledger_to_the_unit() {
    let calls = call_count(CALLS);
    let rendezvous = Arc::new(Rendezvous::default());
    let upstream = provider(&rendezvous);
    let file = FILE.replace("NUMBER", &NUMBERS[0].to_string()).replace("UPSTREAM", &upstream.url());
    let gateways = [Gateway::start(&file)];
    let gateway = &gateways[0];
    make_calls(&gateways, calls, &rendezvous, |is_over| reload_until(gateway, is_over));
    let sums = check_log(&gateway.wait_log(calls as usize));
    for limit in ["tokens", "jobs", "fields", "bytes", "login"] {
        let label = format!("limit=\"{limit}\"");
        assert_eq!(
            gateway.metric("sluicegate_charged_units_total", &[&label]),
            sums[limit] as f64,
            "{limit}"
        );
        assert_eq!(gateway.metric("sluicegate_reserved_units", &[&label]), 0.0, "{limit}");
    }
    for limit in WINDOWS {
        assert_eq!(remaining(gateway, limit), NUMBERS[0] - sums[limit], "{limit}");
    }
    println!("{calls} calls; units charged: {sums:?}");
}

/// Two gateways count in one Redis: together they charge what the calls cost.
#[test]
fn two_gateways_on_redis_keep_one_ledger_to_the_unit() {
    undisturbed(keep_one_ledger);
}

/// `None`: Redis did not always answer in time, and a call without a reply may have reserved units.
fn keep_one_ledger() -> Option<()> {
    let calls = call_count(SHARED_CALLS);
    let rendezvous = Arc::new(Rendezvous::default());
    let (redis, upstream) = (Redis::start(), provider(&rendezvous));
    let file = FILE.replace("NUMBER", &NUMBERS[0].to_string()).replace("UPSTREAM", &upstream.url());
    let state = format!("state: {{ store: redis, redis: {{ url: \"{}\", timeout: 200ms }} }}\n", redis.url());
    let gateways = [(); 2].map(|()| Gateway::start(&format!("{state}{file}")));
    let total = |name: &str, label: &str| -> f64 {
        gateways.iter().map(|gateway| gateway.metric(name, &[label])).sum()
    };
    eventually("gateways that use Redis", || {
        gateways.iter().all(|gateway| gateway.metric("sluicegate_redis_nodes", &[]) == 2.0)
    });
    make_calls(&gateways, calls, &rendezvous, |_| ());
    let log = || gateways.iter().flat_map(Gateway::log_lines).collect::<Vec<_>>();
    eventually("all lines", || log().len() == calls as usize);
    let sums = check_log(&log());
    if total("sluicegate_degraded_decisions_total", "") > 0.0 {
        return None;
    }
    for limit in ["tokens", "jobs", "fields", "bytes", "login"] {
        let label = format!("limit=\"{limit}\"");
        assert_eq!(total("sluicegate_charged_units_total", &label), sums[limit] as f64, "{limit}");
        assert_eq!(total("sluicegate_reserved_units", &label), 0.0, "{limit}");
        assert_eq!(total("sluicegate_overrun_units_total", &label), 0.0, "{limit}");
    }
    for gateway in &gateways {
        for limit in ["tokens", "bytes", "jobs", "fields"] {
            let expected = NUMBERS[0] - sums[limit];
            eventually(&format!("{expected} left of {limit}"), || remaining(gateway, limit) == expected);
        }
    }
    println!("{calls} calls on two gateways; units charged: {sums:?}");
    Some(())
}
