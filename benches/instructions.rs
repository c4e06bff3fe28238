//! User-space instructions for each proxied request: `cargo bench --bench instructions`.
//!
//! Time is noisy on shared machines, instruction counts are not: cachegrind counts all of them, once with few requests
//! and once with many, and the difference belongs to the requests alone. A mode that clearly exceeds the record in
//! `instructions.json` fails the run.

#![forbid(unsafe_code)]

#[path = "side_by_side/backend.rs"]
mod backend;
#[path = "side_by_side/child.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod child;
#[path = "side_by_side/client.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod client;
#[path = "side_by_side/facts.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod facts;
#[path = "support/limits.rs"]
mod limits;
#[path = "side_by_side/peers.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod peers;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use child::Result;
use client::Client;
use peers::{Bench, Log, Mode, Proxy};
use rustix::process::Signal;

const HELP: &str = "\
cargo bench --bench instructions -- [OPTIONS]

  --record         rewrite this profile's counts in benches/instructions.json
  --profile NAME   the profile that built the binary: release (the default), or dev with fewer requests
  --peers          count nginx too
  --gateway FILE   another sluicegate binary";

/// Requests of the two runs, and of those of an unoptimised program, which needs ten times as many instructions.
const REQUESTS: [usize; 2] = [4000, 12_000];
const DEV_REQUESTS: [usize; 2] = [1000, 3000];
const CONNECTIONS: usize = 16;
/// Repeats differ by a few percent, by hash seeds, timers, and the number of requests per wake-up.
const TOLERANCE: f64 = 1.08;
const MODES: [Mode; 6] = [Mode::None, Mode::Pass, Mode::Reject, Mode::KeyUnread, Mode::Key, Mode::Auth];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("launch") => return child::launch(&arguments[1..]),
        Some("backend") => {
            return backend::serve(arguments.get(1).ok_or("backend PORT")?.parse()?, backend::BODY);
        }
        // `cargo test --all-targets` runs benchmarks without any argument.
        None => {
            println!("{HELP}");
            return Ok(());
        }
        Some(_) => {}
    }
    let (mut record, mut peers) = (false, false);
    let mut gateway = PathBuf::from(env!("CARGO_BIN_EXE_sluicegate"));
    let mut profile = "release".to_owned();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--bench" => {}
            "--record" => record = true,
            "--peers" => peers = true,
            "--profile" => profile = words.next().ok_or(HELP)?.clone(),
            "--gateway" => gateway = PathBuf::from(words.next().ok_or(HELP)?).canonicalize()?,
            _ => return Err(HELP.into()),
        }
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let requests = if profile == "dev" { DEV_REQUESTS } else { REQUESTS };
    let counts = count(&folder, gateway, peers, requests)?;
    fs::remove_dir_all(&folder)?;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.json");
    let mut records: Records = serde_json::from_str(&fs::read_to_string(&file)?)?;
    if record {
        records.insert(profile, counts);
        fs::write(&file, serde_json::to_string_pretty(&records)? + "\n")?;
        println!("recorded in benches/instructions.json");
        return Ok(());
    }
    let record =
        records.get(&profile).ok_or_else(|| format!("{profile} is not recorded: run with --record"))?;
    compare(&counts, record)
}

/// Instructions per request by mode.
type Counts = BTreeMap<String, u64>;
/// Counts by the profile of the program.
type Records = BTreeMap<String, Counts>;

/// Instructions per request of every mode.
fn count(folder: &Path, gateway: PathBuf, peers: bool, [few, many]: [usize; 2]) -> Result<Counts> {
    let cores = child::cores()?;
    let (Some(&proxy_core), Some(&load_core)) = (cores.first(), cores.last()) else {
        return Err("no cores".into());
    };
    child::pin(load_core)?;
    let backend_port = child::free_port()?;
    let itself = std::env::current_exe()?.display().to_string();
    let log = folder.join("backend.log");
    let mut backend = child::spawn(load_core, &[&itself, "backend", &backend_port.to_string()], &log)?;
    backend.wait_port(backend_port, Duration::from_secs(5))?;
    let mut bench =
        Bench { gateway, folder: folder.to_owned(), backend_port, proxy_core, load_core, under: Vec::new() };
    let mut counts = Counts::new();
    let proxies = [Proxy::Sluicegate, Proxy::Nginx];
    for &proxy in &proxies[..if peers { 2 } else { 1 }] {
        for mode in MODES.into_iter().take(if proxy == Proxy::Sluicegate { MODES.len() } else { 3 }) {
            let total_of_few = total(&mut bench, proxy, mode, few)?;
            let total_of_many = total(&mut bench, proxy, mode, many)?;
            let each = total_of_many.saturating_sub(total_of_few) / (many - few) as u64;
            println!("{:10} {:8} {each:7} user instructions per request", proxy.name(), mode.name());
            if proxy == Proxy::Sluicegate {
                counts.insert(mode.name().to_owned(), each);
            }
        }
    }
    Ok(counts)
}

/// All instructions of one run of the proxy with that many requests.
fn total(bench: &mut Bench, proxy: Proxy, mode: Mode, requests: usize) -> Result<u64> {
    let logs = bench.folder.join(format!("{}-{}-{requests}", proxy.name(), mode.name()));
    fs::create_dir_all(&logs)?;
    let log = format!("--log-file={}/%p", logs.display());
    let valgrind =
        ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", &log];
    bench.under = valgrind.map(str::to_owned).to_vec();
    let mut instance = bench.start(proxy, mode, Log::Off)?;
    exchange(instance.port, requests, mode)?;
    if !instance.child.end(Signal::TERM, Duration::from_secs(40)) {
        return Err(format!("{} did not end on SIGTERM", proxy.name()).into());
    }
    // One file per process. A forked worker's total includes its parent's part before the fork, so the largest counts.
    let mut largest = None;
    for entry in fs::read_dir(&logs)? {
        largest = largest.max(instructions(&fs::read_to_string(entry?.path())?));
    }
    largest.ok_or_else(|| format!("no totals in {}", logs.display()).into())
}

fn instructions(log: &str) -> Option<u64> {
    let (_, rest) = log.split_once("I refs:").or_else(|| log.split_once("I   refs:"))?;
    rest.lines().next()?.trim().replace(',', "").parse().ok()
}

/// Sends the requests over a few connections, each as soon as the previous one is answered, and checks every status.
fn exchange(port: u16, requests: usize, mode: Mode) -> Result<()> {
    let mut client = Client::connect(port, CONNECTIONS)?;
    for connection in 0..CONNECTIONS {
        client.send(connection, mode.request().as_bytes());
    }
    let (mut sent, mut answered, mut refused) = (CONNECTIONS, 0, 0);
    let end = facts::now() + 120_000_000_000;
    while answered < requests {
        let finished = client.finished(end)?;
        if finished.is_empty() {
            return Err(format!("only {answered} of {requests} requests were answered").into());
        }
        for done in finished {
            answered += 1;
            match done.status {
                200 => {}
                429 => refused += 1,
                other => return Err(format!("status {other}").into()),
            }
            if sent < requests {
                sent += 1;
                client.send(done.connection, mode.request().as_bytes());
            }
        }
    }
    let right = if mode.rejects() { refused * 10 > requests * 9 } else { refused == 0 };
    if right { Ok(()) } else { Err(format!("{refused} of {requests} requests were refused").into()) }
}

fn compare(counts: &Counts, record: &Counts) -> Result<()> {
    let mut worse = Vec::new();
    for (mode, &count) in counts {
        let &known = record.get(mode).ok_or_else(|| format!("{mode} is not recorded: run with --record"))?;
        let ratio = count as f64 / known as f64;
        println!("{mode:8} {ratio:.3} × the record of {known}");
        if ratio > TOLERANCE {
            worse.push(mode.as_str());
        } else if ratio < 1.0 / TOLERANCE {
            println!("{mode:8} has become clearly cheaper: --record keeps it so");
        }
    }
    if worse.is_empty() {
        Ok(())
    } else {
        Err(format!("more instructions than recorded: {}", worse.join(", ")).into())
    }
}
