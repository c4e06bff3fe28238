//! A million keys: memory per key, time per decision beside governor's own keyed store, and the longest pauses.

#![allow(clippy::disallowed_types, reason = "a benchmark is timed by the real clock")]

#[path = "support/keys.rs"]
mod keys;

use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::{Quota, RateLimiter};
use keys::{key, next};
use rustix::time::{ClockId, clock_gettime};
use sluicegate_admission::chain::{Chain, ChainVerdict, Charge, Decisions, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, Units, snapshot};
use sluicegate_model::{
    self as model, Algorithm, Cost, KeyPart, LimitId, MissingKey, OnRejectPatch, Rate, TokenBucketRate,
};

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const START: u64 = 1 << 60;
const SECOND: u64 = 1_000_000_000;
const MILLION: u64 = 1_000_000;
const ROUNDS: usize = 9;
/// The number of times a table is filled, to see which pauses repeat.
const FILLS: usize = 5;
/// Decisions of one round.
const DECISIONS: u64 = 2_000_000;

/// A token bucket of `burst` per hour, in its own chain.
struct Ours {
    chain: Chain,
    waiting: Arc<WaitingCap>,
}

impl Ours {
    fn new(burst: u64) -> Ours {
        let rate = Rate::new(NonZeroU64::new(burst).unwrap(), Duration::from_secs(3600));
        let config = model::LimitConfig {
            name: "bench".into(),
            owner: None,
            key: vec![KeyPart::Ip],
            missing_key: MissingKey::Ip,
            missing_key_status: http::StatusCode::FORBIDDEN,
            algorithm: Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate, burst }] },
            tiers: vec![],
            grants: vec![],
            views: vec![],
            fair_by: vec![],
            warm_up: None,
            calendar: None,
            steps: Vec::new(),
            shares: None,
            anchors: None,
            cost: Cost::Units(1),
            charge: None,
            methods: vec![],
            bypass: model::NetworkList::default(),
            dry_run: false,
            enforce: None,
            shadow: None,
            shadow_of: None,
            pause: None,
            set: None,
            file: None,
            shared: None,
            leased: false,
            on_reject: OnRejectPatch::default(),
        };
        let limit = Arc::new(Limit::new(LimitId(0), &config, MILLION as usize));
        Ours { chain: Chain::new(vec![limit]), waiting: Arc::new(WaitingCap::new(1000)) }
    }

    fn limit(&self) -> &Arc<Limit> {
        &self.chain.limits()[0]
    }

    /// One whole request: judged, forwarded, dropped.
    #[inline]
    fn admits(&self, now: u64, key: CounterKey) -> bool {
        let ask = |_: &Limit| LimitDemand::Units(Units::new(key, 1));
        let mut decisions = Decisions::new();
        let verdict = self.chain.judge::<Charge>(Now(now), &self.waiting, true, ask, &mut decisions);
        black_box(&decisions);
        let ChainVerdict::Admit(mut permit) = verdict else { return false };
        permit.keep_charges();
        true
    }
}

/// The resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells the memory of a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB") * 1024
}

/// Processor time of this thread in ns, so that other load on the machine does not count as a pause.
fn spent() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

/// The longest and the median of the times of `run`, in ns.
fn longest(times: u64, run: impl FnMut(u64)) -> (u64, u64) {
    longest_of(each(times, run))
}

fn longest_of(mut took: Vec<u64>) -> (u64, u64) {
    took.sort_unstable();
    (took[took.len() - 1], took[took.len() / 2])
}

/// The times of `run`, in ns.
fn each(times: u64, mut run: impl FnMut(u64)) -> Vec<u64> {
    let mut took: Vec<u64> = Vec::with_capacity(times as usize);
    for number in 0..times {
        let start = spent();
        run(number);
        took.push(spent() - start);
    }
    took
}

/// The least time each step took in any round. Every round takes the same steps, so pauses that remain are the
/// program's own: interrupts, and a host that stops the machine, do not repeat at the same step.
struct Least(Vec<u64>);

impl Least {
    fn take(&mut self, round: &[u64]) {
        self.0.resize(round.len(), u64::MAX);
        self.0.iter_mut().zip(round).for_each(|(least, took)| *least = (*took).min(*least));
    }

    fn print(self, what: &str) {
        let (most, _) = longest_of(self.0);
        println!("{what:37} {:7.1} us", micros(most));
    }
}

fn least_and_median(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_unstable_by(f64::total_cmp);
    [values[0], values[values.len() / 2]]
}

fn print_longest(what: &str, took: Vec<u64>) {
    let (most, usual) = longest_of(took);
    println!("{what:37} {:7.1} us (median {:.2})", micros(most), micros(usual));
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// ns per decision over known keys, all contestants in each round: ours, governor's.
fn decisions(keys: u64) -> [[f64; 2]; 2] {
    let ours = Ours::new(4_000_000_000);
    let governor = RateLimiter::hashmap(Quota::per_second(NonZeroU32::new(1_000_000).unwrap()));
    for number in 0..keys {
        assert!(ours.admits(START, key(number)));
        let _ = governor.check_key(&key(number).id);
    }
    let (mut now, mut times) = (START, [vec![], vec![]]);
    for round in 0..ROUNDS {
        let (mut number, start) = (round as u64, Instant::now());
        for _ in 0..DECISIONS {
            now += 100;
            assert!(ours.admits(black_box(now), key(next(&mut number, keys))));
        }
        times[0].push(start.elapsed().as_nanos() as f64 / DECISIONS as f64);
        let (mut number, start) = (round as u64, Instant::now());
        for _ in 0..DECISIONS {
            let _ = black_box(governor.check_key(&key(next(&mut number, keys)).id));
        }
        times[1].push(start.elapsed().as_nanos() as f64 / DECISIONS as f64);
    }
    times.map(least_and_median)
}

/// Fills a table with a million keys, then with a million others once the first are idle.
fn memory_and_pauses() -> Ours {
    let before = resident();
    let ours = Ours::new(10);
    (0..MILLION).for_each(|number| assert!(ours.admits(START, key(number))));
    let (used, held) = (resident() - before, ours.limit().key_count() as u64);
    println!("memory per key, {held} keys          {:7.1} bytes", used as f64 / held as f64);
    // Kept, so that the allocator releases no memory while others are timed.
    let mut kept = vec![ours];
    let (mut fills, mut refills, mut idles) = (Least(vec![]), Least(vec![]), Least(vec![]));
    for round in 1..=FILLS {
        let ours = Ours::new(10);
        let took = each(MILLION, |number| assert!(ours.admits(START, key(number))));
        fills.take(&took);
        print_longest(&format!("fill {round}: longest decision"), took);
        let later = START + 3600 * SECOND;
        let took = each(MILLION, |number| assert!(ours.admits(later, key(MILLION + number))));
        refills.take(&took);
        print_longest(&format!("refill {round}, all others idle: longest"), took);
        assert!(ours.limit().key_count() <= MILLION as usize);
        kept.push(ours);
        let took =
            each(MILLION, |number| _ = black_box((0..200).fold(number, |mixed, _| black_box(mixed + 1))));
        idles.take(&took);
        print_longest(&format!("no decision {round}: longest step"), took);
    }
    fills.print("longest decision in every fill");
    refills.print("longest decision in every refill");
    idles.print("longest step of no decision in all");
    for round in 1..=3 {
        let before = resident();
        let governor = RateLimiter::hashmap(Quota::per_hour(NonZeroU32::new(10).unwrap()));
        let (most, usual) = longest(MILLION, |number| drop(governor.check_key(&key(number).id)));
        println!(
            "fill {round}, governor's hash map         {:7.1} us (median {:.2})",
            micros(most),
            micros(usual)
        );
        let used = (resident() - before) as f64 / MILLION as f64;
        println!("memory per key, governor's hash map   {used:7.1} bytes");
    }
    kept.swap_remove(0)
}

/// A snapshot of a million keys: the longest lock, writing the whole file, and restoring it.
fn snapshots(ours: &Ours) {
    let rates = ours.limit().rate_tables();
    let table = rates[0].table;
    for round in 1..=3 {
        let mut buffer = Vec::new();
        let (most, usual) = longest(table.block_count() as u64, |block| {
            buffer.clear();
            table.encode_block(block as usize, Now(START), &mut buffer);
        });
        println!(
            "copy {round}: longest lock of a shard     {:7.1} us (median {:.1})",
            micros(most),
            micros(usual)
        );
    }
    let file = std::env::temp_dir().join(format!("sluicegate-million-{}", std::process::id()));
    let limits = [ours.limit().clone()];
    let start = Instant::now();
    snapshot::write_snapshot(&file, [1; 16], &limits[..], &mut Vec::new())
        .expect("the temporary folder takes a file");
    let length = std::fs::metadata(&file).expect("the snapshot").len();
    println!(
        "snapshot written and synced           {:7.1} ms, {length} bytes",
        start.elapsed().as_secs_f64() * 1e3
    );
    let start = Instant::now();
    let fresh = Ours::new(10);
    snapshot::find_snapshot(&file).expect("the snapshot").restore_into(std::slice::from_ref(fresh.limit()));
    println!(
        "snapshot read                         {:7.1} ms, {} keys",
        start.elapsed().as_secs_f64() * 1e3,
        fresh.limit().key_count()
    );
    let _ = std::fs::remove_file(file);
}

fn main() {
    // `cargo test --benches` runs it as well, to check that it starts.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    snapshots(&memory_and_pauses());
    for keys in [1_000, MILLION] {
        let [ours, governor] = decisions(keys);
        println!("decision, {keys:7} known keys         {:7.1} ns (median {:.1})", ours[0], ours[1]);
        println!("decision, governor's hash map         {:7.1} ns (median {:.1})", governor[0], governor[1]);
    }
}
