//! Sluicegate beside the proxies in use: `cargo bench --bench peers`.
//!
//! nginx of two versions, HAProxy, Envoy, Traefik and Caddy proxy to the same backends under the same load, with limits
//! by their own means. The proxy has one core for itself, load and backends share another; runs are interleaved.
//! Everything stays on the loopback interface. Only ratios between runs of the same round mean anything.

#![forbid(unsafe_code)]

#[path = "../side_by_side/backend.rs"]
mod backend;
#[path = "../edge/bench.rs"]
mod bench;
mod caddy;
#[path = "../side_by_side/child.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod child;
#[path = "../side_by_side/client.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod client;
#[path = "../edge/contest.rs"]
mod contest;
#[path = "../side_by_side/delays.rs"]
mod delays;
mod envoy;
#[path = "../side_by_side/facts.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod facts;
#[path = "../side_by_side/heading.rs"]
mod heading;
mod idle;
#[path = "../edge/kinds.rs"]
#[allow(dead_code, reason = "shared with the benchmark of the client's side")]
mod kinds;
#[path = "../edge/large.rs"]
mod large;
mod latency;
#[path = "../support/limits.rs"]
mod limits;
mod load;
#[path = "../side_by_side/open_loop.rs"]
mod open_loop;
mod peer;
mod plot;
#[path = "../side_by_side/report.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod report;
#[path = "../edge/rivals.rs"]
#[allow(dead_code, reason = "shared with the benchmark of the client's side")]
mod rivals;
#[path = "../side_by_side/rounds.rs"]
mod rounds;
mod summary;
#[path = "../support/svg.rs"]
mod svg;
mod traefik;
#[path = "../edge/unused.rs"]
mod unused;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bench::Bench;
use child::Result;
use kinds::Kind;
use peer::Program;
use summary::Figures;

const HELP: &str = "\
cargo bench --bench peers -- [OPTIONS]

  --rounds N       interleaved rounds of the load                      [9]
  --secs N         seconds of a run; twice that for the limits of Debian's nginx, HAProxy and Sluicegate   [1]
  --rate N         requests per second of the latency runs             [4000]
  --kinds A,B      none pass reject h2c tls tls-h2 small body          [all]
  --only A,B       load latency idle                                   [all]
  --quick          2 rounds of short runs, 200 and 1,000 idle connections: 3 minutes
  --write          rewrite the section in benches/results.md and docs/peers.svg also after --quick or a part
  --no-write       leave both alone
  --packages DIR   the environment with the packages of the peers      [target/bench-peers]
  --dist FILE      the program of `make dist`; left out if it is missing    [target/dist-work/stage/sluicegate]
  --gateway FILE   another sluicegate binary";

const PLOT: &str = "docs/peers.svg";

/// The extent of the measurement.
pub struct Plan {
    pub rounds: usize,
    pub secs: u64,
    pub rate: u64,
    pub kinds: Vec<Kind>,
    /// The idle connections, at first and in the end.
    pub idle: (usize, usize),
    /// How long memory settles.
    pub settle: Duration,
    pub quick: bool,
    parts: Vec<String>,
    write: bool,
    packages: PathBuf,
    dist: PathBuf,
    gateway: PathBuf,
    typed: Vec<String>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(outcome) = bench::become_child(&arguments) {
        return outcome;
    }
    // `cargo test --all-targets` runs benchmarks without any argument.
    if arguments.is_empty() || arguments.iter().any(|word| word == "--help") {
        println!("{HELP}");
        return Ok(());
    }
    let plan = Plan::parse(&arguments)?;
    let programs = peer::find(&plan.packages, &plan.gateway, &plan.dist)?;
    let bench = Bench::start("peers", plan.gateway.clone())?;
    measure(&plan, &bench, &programs)?;
    bench.finish()
}

impl Plan {
    fn parse(arguments: &[String]) -> Result<Self> {
        let typed: Vec<String> = arguments.iter().filter(|word| *word != "--bench").cloned().collect();
        let quick = typed.iter().any(|word| word == "--quick");
        let partial = typed.iter().any(|word| word == "--only" || word == "--kinds");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut plan = Self {
            rounds: if quick { 2 } else { 9 },
            secs: 1,
            rate: 4000,
            kinds: Kind::PEERS.to_vec(),
            idle: if quick { (200, 1_000) } else { (1_000, 10_000) },
            settle: Duration::from_secs(if quick { 1 } else { 5 }),
            quick,
            parts: ["load", "latency", "idle"].map(str::to_owned).to_vec(),
            write: !quick && !partial,
            packages: root.join("target/bench-peers"),
            dist: root.join("target/dist-work/stage/sluicegate"),
            gateway: PathBuf::from(env!("CARGO_BIN_EXE_sluicegate")),
            typed: typed.clone(),
        };
        let mut words = typed.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => continue,
                "--write" => plan.write = true,
                "--no-write" => plan.write = false,
                flag => {
                    let value = words.next().ok_or_else(|| format!("{flag}?\n\n{HELP}"))?;
                    plan.set(flag, value)?;
                }
            }
        }
        Ok(plan)
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<()> {
        let one_of = |known: bool, name: &str| -> Result<()> {
            if known { Ok(()) } else { Err(format!("no {name}\n\n{HELP}").into()) }
        };
        match flag {
            "--rounds" => self.rounds = value.parse::<usize>()?.clamp(1, 100),
            "--secs" => self.secs = value.parse::<u64>()?.clamp(1, 60),
            "--rate" => self.rate = value.parse::<u64>()?.clamp(10, 50_000),
            "--packages" => self.packages = PathBuf::from(value).canonicalize()?,
            "--dist" => self.dist = std::path::absolute(value)?,
            "--gateway" => self.gateway = PathBuf::from(value).canonicalize()?,
            "--only" => {
                self.parts = value.split(',').map(str::to_owned).collect();
                for part in &self.parts {
                    one_of(["load", "latency", "idle"].contains(&part.as_str()), part)?;
                }
            }
            "--kinds" => {
                self.kinds.retain(|kind| value.split(',').any(|name| name == kind.name()));
                for name in value.split(',') {
                    one_of(self.kinds.iter().any(|kind| kind.name() == name), name)?;
                }
            }
            _ => return Err(format!("{flag}?\n\n{HELP}").into()),
        }
        Ok(())
    }

    fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|wanted| wanted == part)
    }
}

fn measure(plan: &Plan, bench: &Bench, programs: &[Program]) -> Result<()> {
    let tools: [&[&str]; 2] = [&["wrk", "-v"], &["h2load", "--version"]];
    let heading = heading::heading("bench-peers", "peers", &plan.typed, &tools);
    let (mut figures, mut details) = (Figures::default(), String::new());
    if plan.has("load") {
        figures.load = load::measure(bench, plan, programs)?;
        let title = format!("Load: median of {} interleaved rounds", plan.rounds);
        write!(details, "\n### {title}\n\n{}", load::table(&figures.load, programs).render())?;
    }
    if plan.has("latency") {
        figures.latency = latency::measure(bench, plan, programs)?;
        let title = format!("Latency at a fixed {} requests/s, open loop", plan.rate);
        let yardstick = programs.first().map_or("", |program| program.name.as_str());
        write!(details, "\n### {title}\n\n{}", delays::table(&figures.latency, yardstick).render())?;
    }
    if plan.has("idle") {
        let (table, memory) = idle::measure(bench, plan, programs)?;
        figures.memory = memory;
        write!(details, "\n### Memory beside connections that stand unused\n\n{}", table.render())?;
    }
    let summary = summary::table(&figures, programs, &plan.kinds).render();
    let section = format!(
        "{heading}\n### CPU time per request as a multiple of the first proxy's, latency, memory\n\n{summary}{details}"
    );
    println!("{section}");
    if plan.write {
        report::write_section("peers", &section)?;
        if plan.has("load") {
            let plot = plot::draw(&figures.load, programs, &plan.kinds);
            std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(PLOT), plot)?;
        }
        println!("benches/results.md and {PLOT} are up to date.");
    }
    Ok(())
}
