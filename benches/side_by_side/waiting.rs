//! Thousands of requests wait in thousands of queues. Measures the cost of each, the precision of its departure,
//! the load of the gateway meanwhile, and the cap over all queues.

use crate::child::Result;
use crate::client::{Client, Done};
use crate::facts::{self, Cpu};
use crate::peers::Bench;
use crate::report::percentile;
use crate::throttle::{SECOND, gateway, request, verdict};

/// Requests behind each key's first one.
const DEPTH: usize = 10;
/// Requests beyond the cap.
const EXTRA: usize = 100;
const SENDS_PER_SECOND: u64 = 10_000;
/// Rounds of releases that are observed.
const WAVES: u64 = 3;
const PAUSE: u64 = SECOND / 5;

struct Crowd {
    client: Client,
    /// By key: the time of the first response, and the number since.
    keys: Vec<(u64, u64)>,
    off_by: Vec<u64>,
    early: u64,
    interval: u64,
    wrong: usize,
}

pub fn measure(bench: &Bench, waiters: usize) -> Result<[String; 4]> {
    let keys = waiters / DEPTH;
    // All of them are queued well before the first is due.
    let sending = (waiters + keys) as u64 / SENDS_PER_SECOND;
    let secs = (sending * 2).max(1) + 1;
    let limit = format!("algorithm: leaky_bucket, rate: 1/{secs}s, queue: {}, max_wait: none", DEPTH * 2);
    let (child, port) = gateway(bench, "waiting", waiters, &limit)?;
    let empty = facts::resident_kib(child.pid());
    let mut crowd = Crowd {
        client: Client::connect(port, waiters + keys + EXTRA)?,
        keys: vec![(0, 0); keys],
        off_by: Vec::new(),
        early: 0,
        interval: secs * SECOND,
        wrong: 0,
    };
    let start = facts::now();
    for connection in 0..waiters + keys {
        crowd.client.send(connection, request(&format!("key-{}", connection % keys)).as_bytes());
        let due = start + (connection as u64 + 1) * SECOND / SENDS_PER_SECOND;
        while facts::now() < due {
            crowd.take(due)?;
        }
    }
    crowd.take_until(facts::now() + PAUSE)?;
    let first = crowd.keys.iter().map(|key| key.0).min().unwrap_or(0);
    if first == 0 || !crowd.off_by.is_empty() {
        return Err("not every key's first request passed at once, or a second one did".into());
    }
    let per_waiter = facts::resident_kib(child.pid()).saturating_sub(empty) as f64 / waiters as f64;
    let refused = crowd.exceed(waiters + keys)?;

    let (cpu, since) = (Cpu::of(child.pid()), facts::now());
    crowd.take_until((first + crowd.interval).saturating_sub(PAUSE))?;
    let quiet = facts::now() - since;
    let idle = Cpu::of(child.pid()).since(cpu).total as f64 / quiet.max(1) as f64 * 100.0;
    let restful = crowd.off_by.is_empty() && quiet > SECOND / 10;

    crowd.take_until(first + crowd.interval * WAVES + crowd.interval / 2)?;
    crowd.off_by.sort_unstable();
    let jitter = percentile(&crowd.off_by, 0.99) as f64 / 1e6;
    let (released, wrong) = (crowd.off_by.len(), crowd.wrong);
    let complete = released as u64 == keys as u64 * WAVES;
    Ok([
        format!("{waiters} waiting over {keys} keys, one leaves each key every {secs} s"),
        format!(
            "{per_waiter:.1} KiB each; releases off by {jitter:.1} ms (p99), {:.1} ms early at most; {idle:.1} % CPU while \
             none is due; {refused} of {EXTRA} beyond the cap got 503; {released} released, {wrong} wrong answers",
            crowd.early as f64 / 1e6
        ),
        "≤ 32 KiB; p99 ≤ 20 ms; < 2 % CPU; all beyond the cap".to_owned(),
        verdict(
            per_waiter <= 32.0
                && jitter <= 20.0
                && idle < 2.0
                && restful
                && refused == EXTRA
                && complete
                && wrong == 0,
        ),
    ])
}

impl Crowd {
    fn take_until(&mut self, until: u64) -> Result<()> {
        while facts::now() < until {
            self.take(until)?;
        }
        Ok(())
    }

    fn take(&mut self, until: u64) -> Result<()> {
        for done in self.client.finished(until)? {
            self.note(done);
        }
        Ok(())
    }

    /// A key's first response sets its clock; each later one is due an interval after the previous one.
    fn note(&mut self, done: Done) {
        let place = done.connection % self.keys.len();
        let (first, count) = &mut self.keys[place];
        if done.status != 200 {
            self.wrong += 1;
        } else if *first == 0 {
            *first = done.at;
        } else {
            *count += 1;
            let due = *first + *count * self.interval;
            self.off_by.push(done.at.abs_diff(due));
            self.early = self.early.max(due.saturating_sub(done.at));
        }
    }

    /// With all places taken, returns the number of further requests that are rejected at once.
    fn exceed(&mut self, from: usize) -> Result<usize> {
        for connection in from..from + EXTRA {
            let key = format!("key-{}", connection % self.keys.len());
            self.client.send(connection, request(&key).as_bytes());
        }
        let (mut refused, mut left) = (0, EXTRA);
        let end = facts::now() + SECOND / 4;
        while left > 0 && facts::now() < end {
            for done in self.client.finished(end)? {
                if done.connection < from {
                    self.note(done);
                    continue;
                }
                left -= 1;
                refused += usize::from(done.status == 503);
            }
        }
        Ok(refused)
    }
}
