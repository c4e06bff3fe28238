//! One request stays one request: random HTTP/2 connections against a model of RFC 9113.
//!
//! A script is the bytes of one client, with its streams, resets, pauses and departure. [`model`] reads from these bytes
//! the requests that exist. The upstream, the access log and the answers may know exactly those: each once, with its own
//! body and its own answer. `FUZZ_SECONDS` tries other scripts than the usual ones, and
//! `FUZZ_SEED` begins with the script of that number.

#![allow(clippy::disallowed_types, reason = "scripts run for a real time, and real sockets are used")]

use sluicegate_testkit as support;

#[allow(dead_code, reason = "shared with the ledger")]
#[path = "../ledger/random.rs"]
mod random;
#[allow(dead_code, reason = "shared with the corpora")]
#[path = "../corpus/recorder.rs"]
mod recorder;

mod answers;
mod model;
mod script;
mod upstream;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use answers::Answers;
use model::{Fate, Sent};
use rustls::ClientConfig;
use script::{Leaving, Script};
use support::tls::shake_hands;
use support::wire::Socket;
use support::*;
use upstream::{Record, Upstream};

/// Scripts of one gateway.
const BATCH: u64 = 3_200;
/// Connections at once.
const LANES: usize = 320;
/// Bytes of a thread's stack.
const STACK: usize = 512 * 1024;

/// h2 ignores frames on a stream that it has reset for this long, and may (RFC 9113, section 5.1).
const FORGETS: Duration = Duration::from_secs(1);

/// The requests of all scripts that ran, by id, with the end of their connection.
type Known = HashMap<String, (Sent, Leaving)>;

/// Bytes of a body, shown as text.
#[derive(Clone, Default, PartialEq)]
pub struct Text(pub Vec<u8>);

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes `{}`", self.0.len(), self.0[..self.0.len().min(80)].escape_ascii())
    }
}

#[test]
fn each_stream_is_one_request() {
    raise_descriptors();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("FUZZ_SECONDS");
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    let random = || seconds.map_or(0, |_| RandomState::new().hash_one(()) >> 16);
    let mut first = number("FUZZ_SEED").unwrap_or_else(random);
    loop {
        run_batch(first);
        first += BATCH;
        if Instant::now() >= end {
            return;
        }
    }
}

struct Site {
    gateway: Gateway,
    tls: Arc<ClientConfig>,
    upstream: Upstream,
}

fn site() -> Site {
    let upstream = Upstream::new();
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    let gateway = Gateway::start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\" }}, {{ address: \"127.0.0.1:0\", tls: {{ {} }} }}]\n\
         service: {{ listen: 127.0.0.1:0 }}\n\
         access_log: {{ headers: [x-id] }}\n\
         limits:\n  \
           once: {{ key: global, rate: 1/d, burst: 1 }}\n  \
           soft: {{ key: global, rate: 1/d, burst: 1, on_reject: {{ degrade: {{ body: \"sold out ${{request_uri}}\" }} }} }}\n  \
           peek: {{ key: json:/model, rate: 100000/s }}\n  \
           calls: {{ key: account, rate: 100000/s }}\n\
         locations:\n\
         \x20 - {{ path: /read/, upstream: \"{url}\" }}\n\
         \x20 - {{ path: /early/, upstream: \"{url}\" }}\n\
         \x20 - {{ path: /peek/, upstream: \"{url}\", limits: peek }}\n\
         \x20 - {{ path: /respond/, respond: {{ body: \"at ${{request_uri}}\" }} }}\n\
         \x20 - {{ path: /redirect/, redirect: {{ to: \"https://a.test${{request_uri}}\" }} }}\n\
         \x20 - {{ path: /limited/, respond: {{}}, limits: once }}\n\
         \x20 - {{ path: /degraded/, respond: {{}}, limits: soft }}\n\
         \x20 - {{ path: /put/, methods: [PUT], respond: {{ body: \"at ${{request_uri}}\" }} }}\n",
        authority.entry("a"),
        url = upstream.url()
    ));
    gateway.get("/limited/").expect(200);
    gateway.get("/degraded/").expect(200);
    let mut tls = authority.client(None);
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Site { gateway, tls: Arc::new(tls), upstream }
}

fn run_batch(first: u64) {
    let site = site();
    let next = AtomicU64::new(first);
    let (known, faults) = (Mutex::new(Known::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..LANES {
            let lane = || {
                while let Some(seed) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < first + BATCH)
                {
                    let script = Script::new(seed);
                    let sent = model::requests(&script.bytes());
                    let leaving = play(&site, &script, &sent).unwrap_or_else(|fault| {
                        faults.lock().unwrap().push(format!("seed {seed}, {:?}: {fault}", script.leaving));
                        Leaving::Close
                    });
                    let sent = sent.into_values().map(|one| (one.id.clone(), (one, leaving)));
                    known.lock().unwrap().extend(sent);
                }
            };
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, lane).expect("a thread");
        }
    });
    let mut faults = faults.into_inner().unwrap();
    let known = known.into_inner().unwrap();
    eventually("all requests to end", || site.gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
    // The upstream records an unfinished request when its connection ends.
    thread::sleep(ms(300));
    let (records, broken) = site.upstream.take();
    let parts = records.iter().filter(|record| !record.is_whole).count();
    println!(
        "{} requests; the upstream has {} of them and {parts} parts",
        known.len(),
        records.len() - parts
    );
    assert!(known.len() > 9_000 && records.len() > 3_000 && parts > 100, "the scripts do too little");
    faults.extend(broken.into_iter().map(|fault| format!("the upstream: {fault}")));
    faults.extend(check_records(&known, &records));
    faults.extend(check_log(&known, &site.gateway));
    let count = faults.len();
    faults.truncate(10);
    assert!(faults.is_empty(), "{count} faults of {} requests, first:\n{}", known.len(), faults.join("\n"));
}

/// Plays one connection and compares what it reads; returns its end.
fn play(site: &Site, script: &Script, sent: &BTreeMap<u32, Sent>) -> Result<Leaving, String> {
    let addrs = site.gateway.addrs();
    let mut h2 = match (script.is_service, script.is_tls) {
        (false, true) => {
            let stream = shake_hands(addrs[1], &site.tls, "a.test").map_err(|error| error.to_string())?;
            H2::over(Socket::Tls(Box::new(stream)))
        }
        (is_service, _) => {
            let addr = addrs[if is_service { 2 } else { 0 }];
            let stream = TcpStream::connect_timeout(&addr, PATIENCE).map_err(|error| error.to_string())?;
            stream.set_nodelay(true).expect("nodelay can be set");
            H2::over(Socket::Tcp(stream))
        }
    };
    let start = Instant::now();
    for (pause, bytes) in &script.writes {
        thread::sleep(*pause);
        // Its end is read below.
        if h2.try_write(bytes).is_err() {
            break;
        }
    }
    let read = match script.leaving {
        Leaving::Done => Answers::read_all(&mut h2, sent).and_then(|answers| answers.check(sent, true)),
        Leaving::HalfClose => {
            h2.leave(false);
            Answers::read_rest(&mut h2).and_then(|answers| answers.check(sent, false))
        }
        leaving => {
            h2.leave(leaving == Leaving::Reset);
            Ok(())
        }
    };
    match read {
        Err(fault) if start.elapsed() > FORGETS && may_forget(&fault) => Ok(Leaving::Close),
        read => read.map(|()| script.leaving),
    }
}

/// h2 ends the connection when trailers follow on a stream that it has forgotten.
fn may_forget(fault: &str) -> bool {
    fault.starts_with("GOAWAY 1:") || fault.starts_with("the connection ended")
}

/// The upstream knows each request once, with its own body.
fn check_records(known: &Known, records: &[Record]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut whole = HashSet::new();
    let mut ids = HashSet::new();
    for record in records {
        let fault = match known.get(&record.id) {
            None => Some("an unknown request"),
            Some(_) if !ids.insert(&record.id) => Some("a request twice"),
            Some((sent, leaving)) => check_record(sent, *leaving, record).err(),
        };
        if record.is_whole {
            whole.insert(&record.id);
        }
        faults.extend(
            fault.map(|fault| format!("the upstream has {fault}: {record:?}, {:?}", known.get(&record.id))),
        );
    }
    for (sent, leaving) in known.values() {
        let is_due = sent.fate == Fate::Complete && matches!(sent.place(), "read" | "peek");
        if is_due && *leaving == Leaving::Done && !whole.contains(&sent.id) {
            faults.push(format!("the upstream lacks {sent:?}"));
        }
    }
    faults
}

fn check_record(sent: &Sent, leaving: Leaving, record: &Record) -> Result<(), &'static str> {
    if !matches!(sent.place(), "read" | "early" | "peek") {
        return Err("a request for another place");
    }
    if record.method != sent.method || record.path != sent.path {
        return Err("another head");
    }
    if !sent.body.0.starts_with(&record.body.0) {
        return Err("a part of another body");
    }
    // The end of a stream, or more bytes, may follow later than the last byte that its head announces.
    let has_length = sent.length == Some(record.body.0.len());
    let is_complete = sent.was_complete && record.body == sent.body;
    if record.is_whole && !is_complete && !has_length {
        return Err("a part that passes for the whole");
    }
    if !record.is_whole && sent.fate == Fate::Complete && leaving == Leaving::Done && sent.place() != "early"
    {
        return Err("a part of a whole request");
    }
    Ok(())
}

/// The access log knows each request once.
fn check_log(known: &Known, gateway: &Gateway) -> Vec<String> {
    let mut faults = Vec::new();
    let mut logged = HashSet::new();
    for line in gateway.log_lines() {
        let Some(id) = line["headers"]["x-id"].as_str().map(str::to_owned) else { continue };
        match known.get(&id) {
            Some((sent, _)) if line["method"] == sent.method.as_str() => {}
            _ => faults.push(format!("the log has an unknown request: {line}")),
        }
        if !logged.insert(id) {
            faults.push(format!("the log has a request twice: {line}"));
        }
    }
    for (sent, leaving) in known.values() {
        if sent.awaits_answer() && *leaving == Leaving::Done && !logged.contains(&sent.id) {
            faults.push(format!("the log lacks {sent:?}"));
        }
    }
    faults
}
