//! One request stays one request: the boundaries that a strict parser finds in the bytes of a client are those that
//! the gateway answers, logs and forwards.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod parser;
mod play;
mod script;
mod sequences;
mod verdict;

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use play::Entries;
use script::Script;
use support::*;
use verdict::{Played, check_answers, check_log, check_upstream};

/// Scripts of one run, and those that one gateway gets.
const SCRIPTS: u64 = 20_000;
const BATCH: u64 = 5_000;
/// Connections at once.
const THREADS: usize = 300;

fn start(upstream: &Upstream, authority: &Authority) -> Gateway {
    let (url, tls) = (upstream.url(), authority.entry("a"));
    Gateway::start(&format!(
        "listen:\n  - 127.0.0.1:0\n  - {{ address: 127.0.0.1:0, tls: {{ {tls} }} }}\n  \
           - {{ address: 127.0.0.1:0, proxy_protocol: required }}\n\
         service: {{ listen: 127.0.0.1:0 }}\n\
         server: {{ trusted_proxies: [127.0.0.1], workers: 2 }}\n\
         limits:\n  \
           none-left: {{ key: global, rate: 1/1d, burst: 1 }}\n  \
           sold-out: {{ key: global, rate: 1/1d, burst: 1, on_reject: {{ degrade: {{ body: sold out }} }} }}\n  \
           by-model: {{ key: json:/model, rate: 1000/s, missing_key: skip }}\n  \
           counted: {{ key: global, rate: 1000000/s }}\n\
         locations:\n  \
           - {{ path: /respond/, respond: {{ body: at once }} }}\n  \
           - {{ path: /redirect/, redirect: {{ to: /respond/ }} }}\n  \
           - {{ path: /limited/, limits: none-left, upstream: \"{url}\" }}\n  \
           - {{ path: /get/, methods: GET, upstream: \"{url}\" }}\n  \
           - {{ path: /degraded/, limits: sold-out, upstream: \"{url}\" }}\n  \
           - {{ path: /peeked/, limits: by-model, upstream: \"{url}\" }}\n  \
           - {{ path: /demo/, upstream: demo }}\n  \
           - {{ path: /early/, upstream: \"{url}\" }}\n  \
           - {{ path: /large/, upstream: \"{url}\" }}\n  \
           - {{ path: /slow/, upstream: \"{url}\" }}\n  \
           - {{ path: /echo/, upstream: \"{url}\" }}\n",
    ))
}

/// Most answers come before the body, and those of `/large/` in pieces that the gateway writes without a copy.
fn upstream() -> Upstream {
    Upstream::new(|seen| {
        let text = match seen.target.split('/').nth(1) {
            Some("large") => format!("{}{}", seen.target, "x".repeat(20_000)),
            _ => seen.target.clone(),
        };
        let text = if seen.method == "HEAD" { "" } else { &text };
        match seen.target.split('/').nth(1) {
            Some("early" | "large") => Reply::text(text).early(),
            Some("slow") => Reply::text(text).early().after(ms(30)),
            _ => Reply::text(text),
        }
    })
}

/// Plays the scripts from `first` on until there is a batch, or until `end`; returns their number.
fn play_batch(seed: u64, first: u64, end: Option<Instant>) -> Result<u64, String> {
    let (upstream, authority) = (upstream(), Authority::new());
    authority.issue("a", &["a.test"]);
    let gateway = start(&upstream, &authority);
    let entries = Entries::new(&gateway, &authority);
    let (next, played, fault) = (AtomicU64::new(first), Mutex::new(Vec::new()), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while fault.lock().unwrap().is_none() && end.is_none_or(|end| Instant::now() < end) {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= first + BATCH {
                        return;
                    }
                    match play_one(&entries, seed, number) {
                        Ok(one) => played.lock().unwrap().push(one),
                        Err(text) => *fault.lock().unwrap() = Some(text),
                    }
                }
            });
        }
    });
    if let Some(fault) = fault.into_inner().unwrap() {
        return Err(fault);
    }
    let played = played.into_inner().unwrap();
    eventually("the end of all requests", || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
    // The log is written a moment later.
    std::thread::sleep(ms(1_200));
    check_log(&played, &gateway.log_lines())?;
    let connections: Vec<Vec<u8>> = (0..upstream.connections()).map(|one| upstream.raw(one)).collect();
    check_upstream(&played, &connections)?;
    Ok(played.len() as u64)
}

fn play_one(entries: &Entries, seed: u64, number: u64) -> Result<Played, String> {
    let script = Script::random(seed, number);
    let received = entries.play(&script);
    let told = format!("{}\n{}", script.describe(), received.bytes.escape_ascii());
    check_answers(script, &received).map_err(|fault| format!("script {number}: {fault}\n{told}"))
}

#[test]
fn a_strict_parser_finds_the_requests_that_the_gateway_finds() {
    raise_descriptors();
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let seed = if end.is_some() { RandomState::new().hash_one(()) } else { 1 };
    let mut played = 0;
    while end.map_or(played < SCRIPTS, |end| Instant::now() < end) {
        match play_batch(seed, played, end) {
            Ok(more) => played += more,
            Err(fault) => panic!("seed {seed}, after {played} scripts: {fault}"),
        }
    }
    println!("seed {seed}: {played} scripts");
}
