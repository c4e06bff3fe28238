//! The precision of limits: counts under overload, thousands of waiting requests, a neighbour's latency.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::child::{self, Child, Result};
use crate::client::{self, Client};
use crate::facts;
use crate::open_loop::open_loop;
use crate::options::{Options, Size};
use crate::peers::{Bench, GET};
use crate::report::Table;
use crate::waiting;

pub const SECOND: u64 = 1_000_000_000;

pub fn measure(bench: &Bench, options: &Options) -> Result<Table> {
    let mut table = Table::new(&["check", "load", "measured", "wanted", "remarks"]);
    let mut add = |name: &str, row: Result<[String; 4]>| {
        let [load, measured, wanted, remarks] = row.unwrap_or_else(|error| {
            [String::new(), String::new(), String::new(), format!("not measured: {error}")]
        });
        eprintln!("{name}: {measured} {remarks}");
        table.row([name.to_owned(), load, measured, wanted, remarks]);
    };
    let secs = match options.size {
        Size::Smoke => 3,
        Size::Quick => 5,
        Size::Default => 10,
        Size::Long => 30,
    };
    add("counts", counts(bench, secs));
    // Each waiter needs a descriptor here and one in the gateway, which reserves up to 4096 for other uses.
    let open = child::raise_open_files();
    let room = usize::try_from(open - (open / 3).min(4096))?.saturating_sub(200) * 10 / 11;
    let (waiters, others) = match options.size {
        Size::Smoke | Size::Quick => (500, 500),
        Size::Default => (5000, 2000),
        Size::Long => (50_000, 20_000),
    };
    add("waiters", waiting::measure(bench, waiters.min(room) / 10 * 10));
    add("neighbour", neighbour(bench, others.min(room), if options.size == Size::Smoke { 2 } else { 5 }));
    Ok(table)
}

/// A gateway whose only limit counts by the header `X-Key`; `limit` holds its further fields.
pub fn gateway(bench: &Bench, name: &str, max_waiting: usize, limit: &str) -> Result<(Child, u16)> {
    let port = child::free_port()?;
    let rest = format!(
        "    limits: [per-key]\nlimits: {{ per-key: {{ key: \"header:X-Key\", {limit} }} }}\n\
         access_log: {{ output: none }}\n"
    );
    let mut child = bench.gateway(&bench.folder.join(name), port, max_waiting, &rest)?;
    child.wait_port(port, Duration::from_secs(10))?;
    let (status, text) = client::probe(port, &request("first"))?;
    if status == 200 { Ok((child, port)) } else { Err(format!("expected 200, got\n{text}").into()) }
}

pub fn request(key: &str) -> String {
    GET.replace("\r\n\r\n", &format!("\r\nX-Key: {key}\r\n\r\n"))
}

/// An empty cell, or a conspicuous word.
pub fn verdict(good: bool) -> String {
    if good { String::new() } else { "MISSED".to_owned() }
}

#[derive(Default, Clone)]
struct Key {
    admitted: u64,
    first: Option<(u64, u64)>,
    last: (u64, u64),
}

/// Arrivals at five times the allowed rate, spread over 64 keys: the number admitted must be as promised.
fn counts(bench: &Bench, secs: u64) -> Result<[String; 4]> {
    const KEYS: usize = 64;
    const ARRIVALS: u64 = 5000;
    const BURST: f64 = 10.0;
    // 64 keys × 125 per 8 s = 1000/s in all.
    const PER_SECOND: f64 = 125.0 / 8.0;
    let (_child, port) = gateway(bench, "counts", 100, "algorithm: token_bucket, rate: 125/8s, burst: 10")?;
    let requests: Vec<String> = (0..KEYS).map(|key| request(&format!("key-{key}"))).collect();
    let mut client = Client::connect(port, KEYS)?;
    // One connection per key, so the responses of a key come in the order of its requests.
    let mut keys = vec![Key::default(); KEYS];
    let mut busy = [false; KEYS];
    let (mut sent, mut answered, mut wrong, mut behind) = (0, 0, 0, 0);
    let total = ARRIVALS * secs;
    let start = facts::now() + SECOND / 100;
    let end = start + (secs + 5) * SECOND;
    while answered < sent || sent < total {
        let now = facts::now();
        if now > end {
            return Err(format!("only {answered} of {sent} requests were answered").into());
        }
        let due = start + sent * SECOND / ARRIVALS;
        let key = usize::try_from(sent)? % KEYS;
        if sent < total && due <= now && !busy[key] {
            client.send(key, requests[key].as_bytes());
            (busy[key], sent) = (true, sent + 1);
            behind = behind.max(now - due);
            continue;
        }
        let until = if sent < total && !busy[key] { due } else { end };
        for done in client.finished(until)? {
            answered += 1;
            busy[done.connection] = false;
            let key = &mut keys[done.connection];
            key.first.get_or_insert((done.sent, done.at));
            key.last = (done.sent, done.at);
            match done.status {
                200 => key.admitted += 1,
                429 => {}
                _ => wrong += 1,
            }
        }
    }
    // The gateway decides between sending and response: each bound uses the end that favours it.
    let promised = |span: u64| (BURST + PER_SECOND * span as f64 / SECOND as f64).floor();
    let (mut over, mut under, mut admitted) = (0, 0, 0);
    for key in &keys {
        let (first_sent, first_at) = key.first.ok_or("a key without answers")?;
        over += usize::from(key.admitted as f64 > promised(key.last.1 - first_sent));
        under += usize::from((key.admitted as f64) < 0.99 * promised(key.last.0.saturating_sub(first_at)));
        admitted += key.admitted;
    }
    let bound = KEYS as f64 * promised(secs * SECOND);
    Ok([
        format!("{ARRIVALS}/s for {secs} s over {KEYS} keys, 1000/s allowed"),
        format!(
            "{admitted} admitted of {sent} (bound {bound:.0}); {over} keys over, {under} under; {wrong} wrong answers; \
             sender at most {:.1} ms late",
            behind as f64 / 1e6
        ),
        "0 over, 0 under by 1 %".to_owned(),
        verdict(over + under + wrong == 0),
    ])
}

/// Measures whether a key without a queue is slowed down while another key's queue stays full.
fn neighbour(bench: &Bench, waiters: usize, secs: u64) -> Result<[String; 4]> {
    const REFUSED: usize = 50;
    const RATE: u64 = 200;
    let limit = format!("algorithm: leaky_bucket, rate: 500/s, burst: 100, queue: {waiters}, max_wait: none");
    let (_child, port) = gateway(bench, "neighbour", waiters + 1000, &limit)?;
    let good = |status| status == 200;
    let idle_key = request("idle");
    open_loop(port, RATE, 1, || &idle_key, good)?;
    let alone = open_loop(port, RATE, secs, || &idle_key, good)?;
    let mut crowd = Client::connect(port, waiters + REFUSED)?;
    let stop = AtomicBool::new(false);
    let [released, refused, broken] = [const { AtomicUsize::new(0) }; 3];
    let beside = std::thread::scope(|scope| {
        scope.spawn(|| {
            let full_key = request("full");
            for connection in 0..waiters + REFUSED {
                crowd.send(connection, full_key.as_bytes());
            }
            while !stop.load(Ordering::Relaxed) {
                let Ok(finished) = crowd.finished(facts::now() + SECOND / 20) else { return };
                for done in finished {
                    let count = match done.status {
                        200 => &released,
                        429 => &refused,
                        _ => &broken,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    if done.status == 200 {
                        // A request that got through is sent again, so the queue stays full.
                        crowd.send(done.connection, full_key.as_bytes());
                    }
                }
            }
        });
        for _ in 0..100 {
            if refused.load(Ordering::Relaxed) > 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // The last waiters may still be arriving.
        std::thread::sleep(Duration::from_millis(500));
        let beside = open_loop(port, RATE, secs, || &idle_key, good);
        stop.store(true, Ordering::Relaxed);
        beside
    })?;
    let (before, after) = (alone.percentile_us(0.99) / 1e3, beside.percentile_us(0.99) / 1e3);
    let refused = refused.into_inner();
    let wrong = alone.wrong + beside.wrong + broken.into_inner();
    Ok([
        format!("{waiters} waiting on one key, {RATE}/s on another"),
        format!(
            "p99 {before:.2} ms alone, {after:.2} ms beside; {} released, {refused} refused, {wrong} wrong answers",
            released.into_inner()
        ),
        "p99 + less than 5 ms".to_owned(),
        verdict(after - before < 5.0 && refused > 0 && wrong == 0),
    ])
}
