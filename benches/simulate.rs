//! What a line of a log costs `replay` and `recommend`: `cargo bench --bench simulate`.
//!
//! A log of the gateway's own form is made from a seed: clients of very different weight, lines in the order in which
//! requests end. Each command reads it whole, pinned to one core, and the time of the process is divided by the lines.

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

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use child::Result;
use report::Table;

const HELP: &str = "\
cargo bench --bench simulate -- [OPTIONS]

  --lines N        lines of the log                              [10000000]
  --clients N      clients in it                                   [100000]
  --quick          a tenth of the lines
  --gateway FILE   another sluicegate binary";

const YAML: &str = "limits:
  per-ip: { key: ip, rate: 10/s, burst: 20 }
  line: { key: [ip, uri], rate: 5/s, algorithm: leaky_bucket, queue: 10 }
locations:
  - { path: /, upstream: demo, limits: per-ip }
  - { path: /api/, upstream: demo, limits: [per-ip, line] }
";

struct Plan {
    lines: u64,
    clients: u64,
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
    let mut plan = Plan { lines: 10_000_000, clients: 100_000, gateway };
    let mut words = typed.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word}?\n\n{HELP}"));
        match word.as_str() {
            "--lines" => plan.lines = value()?.parse::<u64>()?.clamp(1_000, 100_000_000),
            "--clients" => plan.clients = value()?.parse::<u64>()?.clamp(1, 1 << 24),
            "--quick" => plan.lines = 1_000_000,
            "--gateway" => plan.gateway = PathBuf::from(value()?).canonicalize()?,
            _ => return Err(format!("{word}?\n\n{HELP}").into()),
        }
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("simulate");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("gateway.yaml"), YAML)?;
    println!("{}", heading::heading("bench-simulate", "simulate", &typed, &[]));
    let log = folder.join("access.log");
    write_log(&plan, &log)?;
    // The child inherits the core.
    child::pin(*child::cores()?.last().ok_or("no cores")?)?;
    let mut table = Table::new(&["command", "lines", "seconds", "us per line"]);
    for (name, words) in [
        ("replay", &["replay", "access.log", "--json"][..]),
        ("replay --html", &["replay", "access.log", "--html", "report.html"]),
        ("recommend", &["recommend", "access.log", "--json"]),
    ] {
        let started = facts::now();
        let mut command = Command::new(&plan.gateway);
        let status = command.args(words).current_dir(&folder).stdout(Stdio::null()).status()?;
        let seconds = (facts::now() - started) as f64 / 1e9;
        if !status.success() {
            return Err(format!("{name}: {status}").into());
        }
        let per_line = seconds * 1e6 / plan.lines as f64;
        table.row([
            name.to_owned(),
            plan.lines.to_string(),
            format!("{seconds:.1}"),
            format!("{per_line:.2}"),
        ]);
    }
    println!("{}", table.render());
    std::fs::remove_file(log)?;
    Ok(())
}

/// Writes the log; a tenth of the clients sends nine tenths of the requests.
fn write_log(plan: &Plan, path: &Path) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let (mut state, mut at_us) = (7_u64, 0_u64);
    let mut roll = |sides: u64| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % sides
    };
    for line in 0..plan.lines {
        at_us += roll(200);
        let took_us = 100 + roll(20_000);
        let arrival = at_us.saturating_sub(took_us);
        let clients = if roll(10) == 0 { plan.clients } else { plan.clients / 10 + 1 };
        let client = roll(clients);
        let (second, us) = (arrival / 1_000_000, arrival % 1_000_000);
        let (minute, hour) = (second / 60 % 60, second / 3_600 % 24);
        let path = if line.is_multiple_of(3) { "/api/users/list" } else { "/static/site.css" };
        writeln!(
            out,
            "{{\"ts\":\"2026-01-{:02}T{hour:02}:{minute:02}:{:02}.{us:06}Z\",\"id\":\"01M83A7GNXYV7H1RS70{line:08}\",\
             \"ip\":\"10.{}.{}.{}\",\"method\":\"GET\",\"host\":\"www.example.com\",\"path\":\"{path}/{}\",\"status\":200,\
             \"bytes\":5120,\"dur_ms\":{}.{:03},\"wait_ms\":0.000,\"verdict\":\"admit\",\"location\":\"/\",\
             \"upstream\":\"10.0.0.7:8080\"}}",
            1 + second / 86_400 % 28,
            second % 60,
            client >> 16,
            client >> 8 & 0xff,
            client & 0xff,
            line % 100,
            took_us / 1_000,
            took_us % 1_000
        )?;
    }
    out.flush()?;
    Ok(())
}
