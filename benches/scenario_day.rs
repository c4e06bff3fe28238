//! A day of traffic as a scenario: 10⁶ requests of 10⁴ clients, written by a seeded generator, run by `sluicegate test`.
//!
//! ```sh
//! cargo bench --bench scenario_day -- --gateway target/release/sluicegate
//! ```
//!
//! Half of the clients come evenly over the day and must all be admitted, the others come in bursts. Without `--gateway`
//! the program that cargo built with the benchmark runs the scenario.

#![allow(clippy::disallowed_types, reason = "a benchmark is timed by the real clock")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const CLIENTS: u64 = 10_000;
const REQUESTS_OF_EACH: u64 = 100;
const DAY_MS: u64 = 86_400_000;
/// What a release build must keep.
const SECONDS_MAX: f64 = 10.0;

const CONFIG: &str = "\
upstreams: { app: \"127.0.0.1:9\" }
limits:
  per-ip: { key: ip, rate: 10/s, burst: 20 }
  per-hour: { key: ip, algorithm: sliding_window, rate: 1000/h }
  in-flight: { key: global, algorithm: concurrency, max_concurrent: 1000 }
locations: [{ path: /, upstream: app, limits: [per-ip, per-hour, in-flight] }]
";

/// Deterministic numbers (Vigna 2015, splitmix64).
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The scenario: one step per client, in the order of their first requests.
fn write_scenario() -> String {
    let mut random = SplitMix(1);
    let mut steps: Vec<(u64, u64, u64)> = (0..CLIENTS)
        .map(|client| {
            let every_ms =
                if client % 2 == 0 { 800_000 + random.below(60_000) } else { 1 + random.below(50) };
            (random.below(DAY_MS - every_ms * (REQUESTS_OF_EACH - 1)), client, every_ms)
        })
        .collect();
    steps.sort_unstable();
    let mut text = "config: gateway.yaml\nscenarios:\n  - name: a day\n    steps:\n".to_owned();
    for (at_ms, client, every_ms) in steps {
        let (high, low) = (client / 250, 1 + client % 250);
        // Evenly spread clients are never limited. Every tenth request waits at the upstream.
        let hold = if client % 10 == 0 { ", hold: 40ms" } else { "" };
        let expect = if client % 2 == 0 { ", expect: { admitted: 100 }" } else { "" };
        let _ = writeln!(
            text,
            "      - {{ at: {at_ms}ms, send: {REQUESTS_OF_EACH}, every: {every_ms}ms, from: 10.0.{high}.{low}{hold}{expect} }}"
        );
    }
    text
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let named = args.iter().position(|arg| arg == "--gateway").and_then(|at| args.get(at + 1));
    let gateway = named.map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_sluicegate")), PathBuf::from);
    let folder = std::env::temp_dir().join(format!("sluicegate-day-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("day_test.yaml");
    std::fs::write(folder.join("gateway.yaml"), CONFIG).expect("a configuration");
    std::fs::write(&file, write_scenario()).expect("a scenario");
    let passed = measure(&gateway, &file);
    let _ = std::fs::remove_dir_all(&folder);
    assert!(passed, "the scenario failed");
}

fn measure(gateway: &Path, file: &Path) -> bool {
    let started = Instant::now();
    let status = Command::new(gateway).arg("test").arg(file).status().expect("the gateway starts");
    let seconds = started.elapsed().as_secs_f64();
    let requests = CLIENTS * REQUESTS_OF_EACH;
    let each = seconds * 1e6 / requests as f64;
    let verdict = if seconds <= SECONDS_MAX { "within" } else { "BEYOND" };
    println!(
        "{requests} requests of {CLIENTS} clients over a day: {seconds:.1} s, {each:.1} µs each, {verdict} {SECONDS_MAX} s"
    );
    status.success()
}
