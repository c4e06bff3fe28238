//! Operators read while a million keys are under load: `cargo bench --bench operators`.
//!
//! Two questions: how long the calls take that show keys, and whether decisions notice them. The second is answered by
//! rounds of requests at a fixed rate, alone, beside calls that read nothing, and beside calls that read. The calls
//! that read nothing start as many processes and connections, so the rest of the difference belongs to the reading.

#![forbid(unsafe_code)]

#[path = "side_by_side/child.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod child;
#[path = "side_by_side/client.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod client;
#[path = "side_by_side/facts.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod facts;
#[path = "side_by_side/heading.rs"]
mod heading;
#[path = "side_by_side/open_loop.rs"]
mod open_loop;
#[path = "side_by_side/report.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod report;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use child::{Child, Result};
use open_loop::{Outcome, open_loop};
use report::{Table, percentile};

const HELP: &str = "\
cargo bench --bench operators -- [OPTIONS]

  --rounds N       rounds of each kind, interleaved                    [7]
  --secs N         seconds of one round                                [10]
  --rate N         requests per second                                 [4000]
  --keys N         keys that the limit holds                           [1000000]
  --gateway FILE   another sluicegate binary";

/// Between two calls of an operator.
const PAUSE: Duration = Duration::from_millis(100);
const FILL_CONNECTIONS: usize = 16;
/// Requests that are sent at once while the table is filled.
const FILL_BATCH: usize = 64;
/// The tail that is compared.
const TAIL: f64 = 0.9999;

struct Plan {
    rounds: usize,
    secs: u64,
    rate: u64,
    keys: u64,
    gateway: PathBuf,
}

/// A running gateway whose limit holds all keys.
struct Gateway {
    program: String,
    file: String,
    port: u16,
    admin: u16,
    _child: Child,
}

/// What happens beside the requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    EmptyCalls,
    Reads,
}

/// One call of an operator, with its times in nanoseconds.
struct Call {
    name: &'static str,
    kind: CallKind,
    times: Vec<u64>,
}

enum CallKind {
    Get(String),
    /// The program with these arguments.
    Run(Vec<String>),
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("launch") => child::launch(&arguments[1..]),
        // `cargo test --all-targets` runs benchmarks without any argument.
        Some(_) if !arguments.iter().any(|word| word == "--help") => run(&arguments),
        _ => {
            println!("{HELP}");
            Ok(())
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let typed: Vec<String> = arguments.iter().filter(|word| *word != "--bench").cloned().collect();
    let gateway = PathBuf::from(env!("CARGO_BIN_EXE_sluicegate"));
    let mut plan = Plan { rounds: 7, secs: 10, rate: 4_000, keys: 1_000_000, gateway };
    let mut words = typed.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word}?\n\n{HELP}"));
        match word.as_str() {
            "--rounds" => plan.rounds = value()?.parse::<usize>()?.clamp(1, 100),
            "--secs" => plan.secs = value()?.parse::<u64>()?.clamp(1, 600),
            "--rate" => plan.rate = value()?.parse::<u64>()?.clamp(1, 100_000),
            "--keys" => plan.keys = value()?.parse::<u64>()?.clamp(1, 10_000_000),
            "--gateway" => plan.gateway = PathBuf::from(value()?).canonicalize()?,
            _ => return Err(format!("{word}?\n\n{HELP}").into()),
        }
    }
    let own_core = *child::cores()?.last().ok_or("no cores")?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("operators");
    std::fs::create_dir_all(&folder)?;
    let gateway = Gateway::start(&plan, &folder)?;
    child::pin(own_core)?;
    fill(gateway.port, plan.keys)?;
    println!("{}", heading::heading("bench-operators", "operators", &typed, &[]));
    println!("{}\n", gateway.describe_keys()?);
    let (calls, rounds) = measure(&plan, &gateway)?;
    println!("{}\n{}", render_calls(&calls), render_rounds(&plan, &rounds));
    Ok(std::fs::remove_dir_all(&folder)?)
}

impl Gateway {
    /// Starts it before this program is pinned, so that its threads may use every core.
    fn start(plan: &Plan, folder: &Path) -> Result<Gateway> {
        let (port, admin) = (child::free_port()?, child::free_port()?);
        let file = folder.join("gateway.yaml").display().to_string();
        let text = format!(
            "listen: \"127.0.0.1:{port}\"
admin: 127.0.0.1:{admin}
log: {{ level: warn }}
access_log: {{ output: none }}
server: {{ workers: 1, keepalive: {{ requests: 100000000 }} }}
state: {{ max_keys: {} }}
limits: {{ per-key: {{ key: header:x-key, rate: 100/h }} }}
locations: [{{ path: /, respond: {{ body: ok~ }}, limits: per-key }}]
",
            2 * plan.keys
        );
        std::fs::write(&file, text)?;
        let program = plan.gateway.display().to_string();
        let cores: Vec<String> = child::cores()?.iter().map(usize::to_string).collect();
        // A child begins on one core.
        let argv = ["taskset", "-c", &cores.join(","), &program, "run", "-c", &file];
        let mut child = child::spawn(child::cores()?[0], &argv, &folder.join("gateway.log"))?;
        child.wait_port(port, Duration::from_secs(10))?;
        Ok(Gateway { program, file, port, admin, _child: child })
    }

    fn describe_keys(&self) -> Result<String> {
        let answer = get(self.admin, "/limits")?;
        let at = answer.find("\"keys\"").ok_or("no keys in /limits")?;
        let number: String = answer[at + 6..].chars().filter(|c| c.is_ascii_digit() || *c == ',').collect();
        let held = number.split(',').next().unwrap_or_default();
        Ok(format!("The limit holds {held} keys."))
    }

    fn calls(&self, beside: Beside) -> Vec<Call> {
        let get = |name, path: &str| Call { name, kind: CallKind::Get(path.to_owned()), times: Vec::new() };
        let run = |name, words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            Call { name, kind: CallKind::Run(words), times: Vec::new() }
        };
        match beside {
            Beside::Nothing => Vec::new(),
            Beside::EmptyCalls => vec![
                get("GET /healthz", "/healthz"),
                get("GET /healthz", "/healthz"),
                get("GET /healthz", "/healthz"),
                run("sluicegate --version", &["--version"]),
            ],
            Beside::Reads => vec![
                get("GET /limits", "/limits"),
                get("GET /limits/L/keys", "/limits/per-key/keys?by=asked"),
                get("GET /limits/L/keys/K", "/limits/per-key/keys/header:x-key=7"),
                run("sluicegate top --once", &["top", "--once", "-c", &self.file]),
            ],
        }
    }
}

/// Sends one request for each key.
fn fill(port: u16, keys: u64) -> Result<()> {
    let mut streams = (0..FILL_CONNECTIONS)
        .map(|_| {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            Ok(stream)
        })
        .collect::<std::io::Result<Vec<TcpStream>>>()?;
    let mut next = 0..keys;
    let mut answers = vec![0; 64 * 1024];
    while !next.is_empty() {
        let batches: Vec<Vec<u64>> =
            streams.iter().map(|_| next.by_ref().take(FILL_BATCH).collect()).collect();
        for (stream, batch) in streams.iter_mut().zip(&batches) {
            stream.write_all(batch.iter().map(|key| request(*key)).collect::<String>().as_bytes())?;
        }
        for (stream, batch) in streams.iter_mut().zip(&batches) {
            let mut left = batch.len();
            while left > 0 {
                let length = stream.read(&mut answers)?;
                if length == 0 {
                    return Err("the gateway closed a connection".into());
                }
                // Each response ends with this byte of its body, which no head contains.
                left = left.saturating_sub(answers[..length].iter().filter(|byte| **byte == b'~').count());
            }
        }
    }
    Ok(())
}

fn request(key: u64) -> String {
    format!("GET / HTTP/1.1\r\nHost: bench.test\r\nX-Key: {key}\r\n\r\n")
}

fn measure(plan: &Plan, gateway: &Gateway) -> Result<(Vec<Call>, [Vec<Outcome>; 3])> {
    let kinds = [Beside::Nothing, Beside::EmptyCalls, Beside::Reads];
    let mut outcomes: [Vec<Outcome>; 3] = Default::default();
    let mut calls = gateway.calls(Beside::Reads);
    let mut state = 1_u64;
    // Round 0 warms up and is not counted.
    for round in 0..=plan.rounds {
        let secs = if round == 0 { 1 } else { plan.secs };
        for place in (0..3).map(|place| (place + round) % 3) {
            let mut own = gateway.calls(kinds[place]);
            let outcome = run_beside(gateway, &mut own, || {
                let random_key = || {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    request((state >> 33) % plan.keys)
                };
                open_loop(gateway.port, plan.rate, secs, random_key, |status| status == 200 || status == 429)
            })?;
            if round > 0 {
                outcomes[place].push(outcome);
                if kinds[place] == Beside::Reads {
                    calls.iter_mut().zip(own).for_each(|(all, own)| all.times.extend(own.times));
                }
            }
        }
        eprintln!("round {round} of {}", plan.rounds);
    }
    Ok((calls, outcomes))
}

/// Runs `load` while another thread makes the calls, one after the other.
fn run_beside(
    gateway: &Gateway,
    calls: &mut [Call],
    load: impl FnOnce() -> Result<Outcome>,
) -> Result<Outcome> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for call in calls.iter_mut() {
                    let before = facts::now();
                    call.make(gateway).map_err(|error| error.to_string())?;
                    call.times.push(facts::now() - before);
                    std::thread::sleep(PAUSE);
                }
                if calls.is_empty() {
                    std::thread::sleep(PAUSE);
                }
            }
            Ok::<(), String>(())
        });
        let outcome = load();
        stop.store(true, Ordering::Relaxed);
        caller.join().map_err(|_| "the caller panicked")??;
        outcome
    })
}

impl Call {
    fn make(&self, gateway: &Gateway) -> Result<()> {
        match &self.kind {
            CallKind::Get(path) => get(gateway.admin, path).map(drop),
            CallKind::Run(words) => {
                // Nice, because the requests come from the same core.
                let output =
                    Command::new("nice").args(["-n", "19", &gateway.program]).args(words).output()?;
                let error = || format!("{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
                output.status.success().then_some(()).ok_or_else(|| error().into())
            }
        }
    }
}

/// The answer to a call of the admin API.
fn get(admin: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, admin))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.starts_with("HTTP/1.1 200 ") { Ok(answer) } else { Err(format!("{path}: {answer}").into()) }
}

fn render_calls(calls: &[Call]) -> String {
    let mut table = Table::new(&["call", "times", "median ms", "longest ms", "target"]);
    for call in calls {
        let mut times = call.times.clone();
        times.sort_unstable();
        let ms = |share| format!("{:.1}", percentile(&times, share) as f64 / 1e6);
        let target = "≤ 50 ms".to_owned();
        table.row([call.name.to_owned(), times.len().to_string(), ms(0.5), ms(1.0), target]);
    }
    table.render()
}

fn render_rounds(plan: &Plan, rounds: &[Vec<Outcome>; 3]) -> String {
    let mut table =
        Table::new(&["requests", "p50 µs", "p99.99 µs", "by round", "× alone", "longest µs", "wrong"]);
    let tail_of = |outcomes: &[Outcome]| {
        let mut all: Vec<u64> = outcomes.iter().flat_map(|one| &one.latencies).copied().collect();
        all.sort_unstable();
        [0.5, TAIL, 1.0].map(|share| percentile(&all, share) as f64 / 1e3)
    };
    let [_, alone, _] = tail_of(&rounds[0]);
    for (name, outcomes) in
        ["alone", "beside calls that read nothing", "beside reads"].into_iter().zip(rounds)
    {
        let [middle, tail, longest] = tail_of(outcomes);
        let mut tails: Vec<f64> = outcomes.iter().map(|one| one.percentile_us(TAIL)).collect();
        tails.sort_by(f64::total_cmp);
        let wrong: usize = outcomes.iter().map(|one| one.wrong).sum();
        table.row([
            name.to_owned(),
            format!("{middle:.0}"),
            format!("{tail:.0}"),
            format!("{:.0}–{:.0}", tails[0], tails[tails.len() - 1]),
            format!("{:.2}", tail / alone),
            format!("{longest:.0}"),
            wrong.to_string(),
        ]);
    }
    let Plan { rounds, secs, rate, .. } = plan;
    format!("{rounds} interleaved rounds of {secs} s at {rate} requests per second\n\n{}", table.render())
}
