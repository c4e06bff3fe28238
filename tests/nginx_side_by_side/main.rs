//! The gateway beside a real nginx: the same seeded arrivals, the same decisions, the same release times.
//!
//! nginx's `burst=N` is a leaky_bucket with a queue of N, `burst=N nodelay` a token_bucket of N+1, `burst=N
//! delay=M` a leaky_bucket with a burst of M+1 and a queue of N−M. A zone that several locations use with other bursts
//! is one limit and `{ use: NAME, burst: N+1 }`. Traces keep every arrival [`MARGIN_MS`]
//! away from the moment at which its decision would change, so that decisions must agree exactly. A stalled
//! machine, or two arrivals that overtook each other, can make them differ once but not every time: a trace on which
//! they differ is replayed on both, and must agree within [`ROUNDS`].

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::nginx::Nginx;
use support::{Gateway, Noise, ms, raise_descriptors};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SEEDS: u64 = 50;
const ARRIVALS: usize = 24;
const MARGIN_MS: u64 = 12;
const ROUNDS: usize = 5;

/// One nginx server and the limit with the same behaviour.
struct Kind {
    path: &'static str,
    nginx: &'static str,
    ours: &'static str,
    per_second: u64,
    /// Requests beyond the first that are not rejected.
    burst: u64,
    /// Of them, those that do not wait.
    delay: u64,
}

const KINDS: [Kind; 3] = [
    Kind {
        path: "/queue",
        nginx: "burst=5",
        ours: "algorithm: leaky_bucket, rate: 10/s, queue: 5",
        per_second: 10,
        burst: 5,
        delay: 0,
    },
    Kind {
        path: "/nodelay",
        nginx: "burst=6 nodelay",
        ours: "algorithm: token_bucket, rate: 8/s, burst: 7",
        per_second: 8,
        burst: 6,
        delay: 6,
    },
    Kind {
        path: "/delay",
        nginx: "burst=7 delay=3",
        ours: "algorithm: leaky_bucket, rate: 10/s, burst: 4, queue: 4",
        per_second: 10,
        burst: 7,
        delay: 3,
    },
];

/// The arrivals of one key, in milliseconds, and the planned release of each (`None` = rejected).
struct Trace {
    seed: u64,
    kind: &'static Kind,
    arrivals: Vec<u64>,
    releases: Vec<Option<u64>>,
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

impl Trace {
    fn roll(seed: u64, kind: &'static Kind) -> Trace {
        let mut dice = Dice(seed * KINDS.len() as u64 + kind.burst);
        let interval = 1000 / kind.per_second;
        let (mut now, mut next) = (dice.below(400), 0u64);
        let mut trace = Trace { seed, kind, arrivals: Vec::new(), releases: Vec::new() };
        while trace.arrivals.len() < ARRIVALS {
            // How far the schedule is ahead; a request is rejected when that is beyond the burst.
            while next.saturating_sub(now).abs_diff(kind.burst * interval) < MARGIN_MS {
                now += 5;
            }
            let ahead = next.saturating_sub(now);
            let passes = ahead <= kind.burst * interval;
            trace.arrivals.push(now);
            let waits = ahead.saturating_sub(kind.delay * interval);
            trace.releases.push(passes.then_some(now + waits));
            if passes {
                next = next.max(now) + interval;
            }
            now += match dice.below(10) {
                0..=5 => 4 + dice.below(10),
                6..=8 => 20 + dice.below(180),
                _ => 300 + dice.below(400),
            };
        }
        trace
    }
}

/// The outcome of one arrival; times from the start of the round.
#[derive(Debug, Clone, Copy)]
struct Fate {
    sent: Duration,
    status: u16,
    answered: Duration,
}

type Pool = Arc<Mutex<Vec<TcpStream>>>;

async fn ask(addr: SocketAddr, pool: Pool, start: Instant, due: Duration, head: String) -> Fate {
    tokio::time::sleep_until((start + due).into()).await;
    let kept = pool.lock().unwrap().pop();
    let mut stream = match kept {
        Some(stream) => stream,
        None => TcpStream::connect(addr).await.expect("the proxy accepts"),
    };
    let sent = start.elapsed();
    stream.write_all(head.as_bytes()).await.expect("the proxy takes the request");
    let mut answer = Vec::new();
    let mut whole = None;
    while whole.is_none_or(|length| answer.len() < length) {
        let n = stream.read_buf(&mut answer).await.expect("the proxy answers");
        assert_ne!(n, 0, "closed after {}", String::from_utf8_lossy(&answer));
        whole = whole.or_else(|| length_of(&answer));
    }
    let answered = start.elapsed();
    pool.lock().unwrap().push(stream);
    let status = support::http::status_of(&answer).expect("a status");
    Fate { sent, status, answered }
}

/// The length of the whole response, once its head is there.
fn length_of(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let length = support::Headers::parse(&answer[..head]).get("content-length").expect("a Content-Length");
    Some(head + length.parse::<usize>().expect("a length"))
}

/// Replays all traces at once; the proxy of each kind is at `addrs`.
fn replay(traces: &[Trace], addrs: [SocketAddr; 3], round: usize) -> Vec<Vec<Fate>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let pools: [Pool; 3] = Default::default();
        let start = Instant::now() + ms(100);
        let mut tasks = Vec::new();
        for trace in traces {
            let place = KINDS.iter().position(|k| k.path == trace.kind.path).expect("a known kind");
            for &due in &trace.arrivals {
                let (path, seed) = (trace.kind.path, trace.seed);
                let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Key: {round}-{seed}\r\n\r\n");
                let pool = pools[place].clone();
                tasks.push(tokio::spawn(ask(addrs[place], pool, start, ms(due), head)));
            }
        }
        let mut fates = Vec::new();
        for task in tasks {
            fates.push(task.await.expect("every arrival is answered"));
        }
        fates.chunks(ARRIVALS).map(<[Fate]>::to_vec).collect()
    })
}

/// How far the send times of one trace drifted from its plan.
fn skew(trace: &Trace, fates: &[Fate]) -> Duration {
    let late = || fates.iter().zip(&trace.arrivals).map(|(fate, &due)| fate.sent.saturating_sub(ms(due)));
    late().max().unwrap_or_default() - late().min().unwrap_or_default()
}

/// The differences between the plan, nginx and the gateway, as text; empty = none.
fn differences(trace: &Trace, nginx: &[Fate], ours: &[Fate], slack: Duration) -> String {
    let mut text = String::new();
    for place in 0..ARRIVALS {
        let (n, o) = (nginx[place], ours[place]);
        let at = trace.arrivals[place];
        let status = if trace.releases[place].is_some() { 200 } else { 429 };
        if n.status != status {
            let _ = writeln!(text, "  at {at} ms the plan says {status}, nginx {}", n.status);
        }
        if n.status != o.status {
            let _ = writeln!(text, "  at {at} ms nginx said {}, the gateway {}", n.status, o.status);
            continue;
        }
        let Some(planned) = trace.releases[place].map(ms) else {
            continue;
        };
        let apart = n.answered.abs_diff(o.answered);
        if apart > support::timing::LATE + slack {
            let _ =
                writeln!(text, "  at {at} ms nginx released {:?}, the gateway {:?}", n.answered, o.answered);
        }
        if o.status == 200 && o.answered + support::timing::EARLY < planned {
            let _ = writeln!(text, "  at {at} ms released {:?}, before {planned:?}", o.answered);
        }
    }
    text
}

fn start_nginx() -> Nginx {
    let mut http = String::from("limit_req_status 429; server { listen @3@; return 200 ok; }\n");
    for (place, kind) in KINDS.iter().enumerate() {
        let (rate, limit) = (kind.per_second, kind.nginx);
        let _ = writeln!(
            http,
            "limit_req_zone $http_x_key zone=z{place}:4m rate={rate}r/s;
             server {{ listen @{place}@; keepalive_requests 1000000;
                       location / {{ limit_req zone=z{place} {limit}; proxy_pass http://@3@; }} }}"
        );
    }
    Nginx::start(&http, 4)
}

fn start_gateway(upstream: SocketAddr) -> Gateway {
    let mut yaml = String::from("access_log: { output: none }\nlocations:\n");
    for kind in &KINDS {
        let (path, limit) = (kind.path, kind.ours);
        let limits = format!("{{ key: header:x-key, {limit} }}");
        let _ = writeln!(yaml, "  - {{ path: {path}, upstream: \"http://{upstream}\", limits: {limits} }}");
    }
    Gateway::start(&yaml)
}

/// Fifty seeds in three shapes each: nginx and the gateway decide alike and release at the same times.
#[test]
fn the_gateway_decides_as_nginx_does() {
    raise_descriptors();
    let nginx = start_nginx();
    let gateway = start_gateway(nginx.addr(3));
    let mut open: Vec<_> =
        (0..SEEDS).flat_map(|seed| KINDS.iter().map(move |kind| Trace::roll(seed, kind))).collect();
    let passes = open.iter().flat_map(|t| &t.releases).filter(|r| r.is_some()).count();
    let share = passes * 100 / (open.len() * ARRIVALS);
    assert!((30..=90).contains(&share), "{share} % of the arrivals pass: the traces are too tame");
    for round in 0..ROUNDS {
        let noise = Noise::listen();
        let theirs = replay(&open, [0, 1, 2].map(|place| nginx.addr(place)), round);
        let ours = replay(&open, [gateway.addr(); 3], round);
        let stall = noise.worst();
        let mut again = Vec::new();
        for ((trace, theirs), ours) in open.into_iter().zip(theirs).zip(ours) {
            let skew = skew(&trace, &theirs).max(skew(&trace, &ours));
            let differences = differences(&trace, &theirs, &ours, skew + 2 * stall);
            let (seed, path) = (trace.seed, trace.kind.path);
            if differences.is_empty() {
                continue;
            }
            eprintln!("round {round}, seed {seed}, {path}, skew {skew:?}, stall {stall:?}:\n{differences}");
            again.push(trace);
        }
        if again.is_empty() {
            return;
        }
        open = again;
    }
    let seeds: Vec<_> = open.iter().map(|t| (t.seed, t.kind.path)).collect();
    panic!("in {ROUNDS} rounds these never agreed: {seeds:?}");
}

/// The bursts with which the locations `/0`, `/1` and `/2` use one zone, all with `nodelay`.
const BURSTS: [u64; 3] = [2, 4, 6];
const ZONE_PER_SECOND: u64 = 4;

/// An arrival at one of the three locations: milliseconds, location, and whether it passes.
type Arrival = (u64, usize, bool);

/// The arrivals of one key.
fn roll_places(seed: u64) -> Vec<Arrival> {
    let mut dice = Dice(seed * 7919 + 1);
    let interval = 1000 / ZONE_PER_SECOND;
    let (mut now, mut next) = (dice.below(400), 0u64);
    let mut arrivals = Vec::new();
    while arrivals.len() < ARRIVALS {
        let place = dice.below(3) as usize;
        let limit = BURSTS[place] * interval;
        while next.saturating_sub(now).abs_diff(limit) < MARGIN_MS {
            now += 5;
        }
        let passes = next.saturating_sub(now) <= limit;
        arrivals.push((now, place, passes));
        if passes {
            next = next.max(now) + interval;
        }
        now += match dice.below(10) {
            0..=5 => 4 + dice.below(10),
            6..=8 => 20 + dice.below(180),
            _ => 300 + dice.below(400),
        };
    }
    arrivals
}

/// Replays the arrivals of all seeds at once.
fn replay_places(traces: &[(u64, Vec<Arrival>)], addr: SocketAddr, round: usize) -> Vec<Vec<Fate>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (pool, start) = (Pool::default(), Instant::now() + ms(100));
        let mut tasks = Vec::new();
        for (seed, arrivals) in traces {
            for &(due, place, _) in arrivals {
                let head = format!("GET /{place} HTTP/1.1\r\nHost: a\r\nX-Key: {round}-{seed}\r\n\r\n");
                tasks.push(tokio::spawn(ask(addr, pool.clone(), start, ms(due), head)));
            }
        }
        let mut fates = Vec::new();
        for task in tasks {
            fates.push(task.await.expect("every arrival is answered"));
        }
        fates.chunks(ARRIVALS).map(<[Fate]>::to_vec).collect()
    })
}

/// One zone with three bursts in nginx, one limit with two further places here: the same decisions.
#[test]
fn one_zone_with_several_bursts_is_one_limit_at_several_places() {
    raise_descriptors();
    let locations: String = BURSTS
        .iter()
        .enumerate()
        .map(|(place, burst)| {
            format!(
                "location /{place} {{ limit_req zone=one burst={burst} nodelay; proxy_pass http://@1@; }}\n"
            )
        })
        .collect();
    let nginx = Nginx::start(
        &format!(
            "limit_req_status 429; server {{ listen @1@; return 200 ok; }}\n\
             limit_req_zone $http_x_key zone=one:4m rate={ZONE_PER_SECOND}r/s;\n\
             server {{ listen @0@; keepalive_requests 1000000; {locations} }}"
        ),
        2,
    );
    let upstream = nginx.addr(1);
    let [first, second, third] = BURSTS.map(|burst| burst + 1);
    let gateway = Gateway::start(&format!(
        "access_log: {{ output: none }}\n\
         limits: {{ one: {{ key: header:x-key, rate: {ZONE_PER_SECOND}/s, burst: {first} }} }}\nlocations:\n  \
           - {{ path: /0, upstream: \"http://{upstream}\", limits: one }}\n  \
           - {{ path: /1, upstream: \"http://{upstream}\", limits: {{ use: one, burst: {second} }} }}\n  \
           - {{ path: /2, upstream: \"http://{upstream}\", limits: {{ use: one, burst: {third} }} }}\n"
    ));
    let mut open: Vec<_> = (0..SEEDS).map(|seed| (seed, roll_places(seed))).collect();
    let arrivals = || open.iter().flat_map(|(_, arrivals)| arrivals);
    for place in 0..3 {
        let own = || arrivals().filter(|(_, at, _)| *at == place);
        let share = own().filter(|(.., passes)| *passes).count() * 100 / own().count();
        assert!((10..=95).contains(&share), "{share} % pass at /{place}: the traces are too tame");
    }
    for round in 0..ROUNDS {
        let theirs = replay_places(&open, nginx.addr(0), round);
        let ours = replay_places(&open, gateway.addr(), round);
        let mut again = Vec::new();
        for (((seed, arrivals), theirs), ours) in open.into_iter().zip(theirs).zip(ours) {
            let differs = |index: &usize| {
                let planned = if arrivals[*index].2 { 200 } else { 429 };
                theirs[*index].status != planned || ours[*index].status != planned
            };
            if let Some(index) = (0..ARRIVALS).find(differs) {
                let (at, place, passes) = arrivals[index];
                let (nginx, ours) = (theirs[index].status, ours[index].status);
                eprintln!(
                    "round {round}, seed {seed}: at {at} ms, /{place}: {passes}, nginx {nginx}, the gateway {ours}"
                );
                again.push((seed, arrivals));
            }
        }
        if again.is_empty() {
            return;
        }
        open = again;
    }
    let seeds: Vec<_> = open.iter().map(|(seed, _)| seed).collect();
    panic!("in {ROUNDS} rounds these never agreed: {seeds:?}");
}
