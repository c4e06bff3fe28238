//! What reading the usage of streams costs: `cargo bench --bench streams`.
//!
//! One gateway streams the answers of a provider of language models, by a location without limits and by one that
//! charges tokens; rounds alternate, and the gateway's CPU time of each MiB is compared. The provider writes each event
//! when the one before has arrived, as providers do that are slower than the network, and in a second part many events
//! at once, which is the dearest for the reader.

#![forbid(unsafe_code)]

#[path = "side_by_side/child.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod child;
#[path = "side_by_side/facts.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod facts;
#[path = "side_by_side/heading.rs"]
mod heading;
#[path = "side_by_side/report.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod report;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use child::{Child, Result};
use facts::Cpu;
use report::{Ratio, Table, median};

const HELP: &str = "\
cargo bench --bench streams -- [OPTIONS]

  --rounds N       rounds of each location, interleaved                [11]
  --streams N      streams of a MiB in one round                       [60]
  --gateway FILE   another sluicegate binary";

const STREAM_BYTES: usize = 1 << 20;
/// Bytes that the provider writes at once in the second part.
const BLOCK_BYTES: usize = 16 * 1024;
const TIMEOUT: Duration = Duration::from_secs(30);

/// The events that have arrived at the client since the start, and the provider that waits for them.
#[derive(Default)]
struct Arrivals {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Arrivals {
    fn add(&self, events: u64) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += events;
        self.changed.notify_one();
    }

    fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, events: u64) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(count, TIMEOUT, |count| *count < events));
    }
}

struct Plan {
    rounds: usize,
    streams: usize,
    gateway: PathBuf,
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
    let mut plan = Plan { rounds: 11, streams: 60, gateway };
    let mut words = typed.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word}?\n\n{HELP}"));
        match word.as_str() {
            "--rounds" => plan.rounds = value()?.parse::<usize>()?.clamp(1, 1_000),
            "--streams" => plan.streams = value()?.parse::<usize>()?.clamp(1, 10_000),
            "--gateway" => plan.gateway = PathBuf::from(value()?).canonicalize()?,
            _ => return Err(format!("{word}?\n\n{HELP}").into()),
        }
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("streams");
    std::fs::create_dir_all(&folder)?;
    let cores = child::cores()?;
    println!("{}", heading::heading("bench-streams", "streams", &typed, &[]));
    let mut table =
        Table::new(&["the provider writes", "without", "charging tokens", "ratio", "range of rounds"]);
    for (name, block) in [("each event by itself", 1), ("16 KiB at once", BLOCK_BYTES)] {
        let arrivals = Arc::new(Arrivals::default());
        let provider = start_provider(block, &arrivals)?;
        let (port, child) = start_gateway(&plan, &folder, provider)?;
        child::pin(*cores.last().ok_or("no cores")?)?;
        let mut costs: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        // The first round of each warms up.
        for round in 0..2 * (plan.rounds + 1) {
            let cost = measure_round(&plan, port, child.pid(), ["/plain", "/charged"][round % 2], &arrivals)?;
            if round > 1 {
                costs[round % 2].push(cost);
            }
        }
        let ratio = Ratio::of(costs[1].iter().copied(), costs[0].iter().copied());
        let shown = |costs: &[f64]| format!("{:.2} ms/MiB", median(costs.iter().copied()));
        table.row([name.to_owned(), shown(&costs[0]), shown(&costs[1]), ratio.middle(), ratio.range()]);
    }
    println!("{}", table.render());
    Ok(std::fs::remove_dir_all(&folder)?)
}

fn start_gateway(plan: &Plan, folder: &std::path::Path, provider: u16) -> Result<(u16, Child)> {
    let port = child::free_port()?;
    let file = folder.join("gateway.yaml").display().to_string();
    let text = format!(
        "listen: \"127.0.0.1:{port}\"
admin: none
log: {{ level: warn }}
access_log: {{ output: none }}
server: {{ workers: 1 }}
upstreams: {{ provider: 127.0.0.1:{provider} }}
limits: {{ tokens: {{ key: ip, rate: 1000000000/m, charge: {{ units: llm, reserve: 1000 }} }} }}
locations:
  - {{ path: /plain, upstream: provider }}
  - {{ path: /charged, upstream: provider, limits: tokens }}
"
    );
    std::fs::write(&file, text)?;
    let program = plan.gateway.display().to_string();
    let mut child = child::spawn(child::cores()?[0], &[&program, "run", "-c", &file], &folder.join("log"))?;
    child.wait_port(port, Duration::from_secs(10))?;
    Ok((port, child))
}

/// CPU milliseconds of the gateway for one MiB.
fn measure_round(plan: &Plan, port: u16, pid: u32, path: &str, arrivals: &Arrivals) -> Result<f64> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let request = format!("POST {path} HTTP/1.1\r\nHost: bench.test\r\nContent-Length: 0\r\n\r\n");
    let mut buffer = vec![0; 256 * 1024];
    let before = Cpu::of(pid);
    for _ in 0..plan.streams {
        stream.write_all(request.as_bytes())?;
        let mut tail: Vec<u8> = Vec::new();
        while !tail.ends_with(b"\r\n0\r\n\r\n") {
            let length = stream.read(&mut buffer)?;
            if length == 0 {
                return Err("the gateway closed the connection".into());
            }
            tail.extend_from_slice(&buffer[..length]);
            // The first one ends in what was kept of the bytes before.
            let fresh = tail.len() - length;
            let ends = tail.windows(2).skip(fresh.saturating_sub(1)).filter(|two| *two == b"\n\n");
            arrivals.add(ends.count() as u64);
            tail.drain(..tail.len().saturating_sub(16));
        }
    }
    let used = Cpu::of(pid).since(before);
    Ok(used.total as f64 / 1e6 / plan.streams as f64)
}

/// A provider that answers every request with a stream of a MiB, in writes of at least `block` bytes. Single events wait
/// for the one before to arrive.
fn start_provider(block: usize, arrivals: &Arc<Arrivals>) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let writes: Vec<Vec<u8>> = stream_writes(block);
    let arrivals = (block == 1).then(|| Arc::clone(arrivals));
    thread::spawn(move || {
        for stream in listener.incoming().map_while(std::result::Result::ok) {
            let (writes, arrivals) = (writes.clone(), arrivals.clone());
            thread::spawn(move || serve(stream, &writes, arrivals.as_deref()));
        }
    });
    Ok(port)
}

fn serve(mut stream: TcpStream, writes: &[Vec<u8>], arrivals: Option<&Arrivals>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut buffer, mut seen) = (vec![0; 4096], Vec::new());
    loop {
        while !seen.ends_with(b"\r\n\r\n") {
            let length = stream.read(&mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            seen.extend_from_slice(&buffer[..length]);
        }
        seen.clear();
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        )?;
        let before = arrivals.map_or(0, Arrivals::count);
        for (written, write) in (0..).zip(writes) {
            if let Some(arrivals) = arrivals {
                arrivals.wait_for(before + written);
            }
            stream.write_all(write)?;
        }
    }
}

/// The chunks of a stream of events, joined to writes of at least `block` bytes.
fn stream_writes(block: usize) -> Vec<Vec<u8>> {
    let (mut writes, mut bytes) = (Vec::new(), 0);
    let mut write: Vec<u8> = Vec::new();
    while bytes < STREAM_BYTES {
        let event = format!(
            "data: {{\"id\":\"chatcmpl-9f2kQ1\",\"object\":\"chat.completion.chunk\",\"created\":1763670131,\
             \"model\":\"large-2\",\"system_fingerprint\":\"fp_44709d6fcb\",\"choices\":[{{\"index\":0,\"delta\":\
             {{\"content\":\" word{}\"}},\"logprobs\":null,\"finish_reason\":null}}]}}\n\n",
            bytes % 97
        );
        bytes += event.len();
        write.extend(format!("{:x}\r\n{event}\r\n", event.len()).into_bytes());
        if write.len() >= block {
            writes.push(std::mem::take(&mut write));
        }
    }
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":900,\"completion_tokens\":4400}}\n\n";
    write.extend(format!("{:x}\r\n{usage}\r\n0\r\n\r\n", usage.len()).into_bytes());
    writes.push(write);
    writes
}
