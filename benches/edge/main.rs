//! The cost of serving at the edge, beside nginx and HAProxy: `cargo bench --bench edge`.
//!
//! HTTP/2, TLS, handshakes, large bodies, connections that are used once, and idle connections.
//! Everything stays on the loopback interface; the proxy has one core for itself, load and backends share another.

#![forbid(unsafe_code)]

#[path = "../side_by_side/backend.rs"]
mod backend;
mod bench;
#[path = "../side_by_side/child.rs"]
mod child;
#[allow(dead_code, reason = "shared with the benchmark of all proxies, which uses all of it")]
mod contest;
#[path = "../side_by_side/facts.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod facts;
#[path = "../side_by_side/heading.rs"]
mod heading;
mod idle;
mod kinds;
mod large;
#[path = "../support/limits.rs"]
mod limits;
mod load;
#[path = "../side_by_side/report.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod report;
mod rivals;
#[path = "../side_by_side/rounds.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod rounds;
mod soak;
mod unused;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use bench::Bench;
use child::Result;
use kinds::Kind;

const HELP: &str = "\
cargo bench --bench edge -- [OPTIONS]

  --rounds N       interleaved rounds of the load                      [7]
  --secs N         seconds of each run                                 [2]
  --kinds A,B      h2c tls tls-h2 handshake close body unbuffered      [all]
  --only A,B       load idle soak                                      [load idle]
  --idle N         connections that are kept unused                    [8000]
  --soak N         seconds of the soak                                 [600]
  --quick          3 rounds of 1 s, 2,000 idle connections
  --write          rewrite the section in benches/results.md also after --quick, --kinds or --only
  --no-write       leave benches/results.md alone
  --gateway FILE   another sluicegate binary";

/// The extent of the measurement.
pub struct Plan {
    pub rounds: usize,
    pub secs: u64,
    pub kinds: Vec<Kind>,
    pub idle: usize,
    pub soak: Duration,
    parts: Vec<String>,
    write: bool,
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
    compare(&Plan::parse(&arguments)?)
}

impl Plan {
    fn parse(arguments: &[String]) -> Result<Self> {
        let typed: Vec<String> = arguments.iter().filter(|word| *word != "--bench").cloned().collect();
        let quick = typed.iter().any(|word| word == "--quick");
        let partial = typed.iter().any(|word| word == "--only" || word == "--kinds");
        let mut plan = Self {
            rounds: if quick { 3 } else { 7 },
            secs: if quick { 1 } else { 2 },
            kinds: Kind::EDGE.to_vec(),
            idle: if quick { 2000 } else { 8000 },
            soak: Duration::from_secs(600),
            parts: ["load", "idle"].map(str::to_owned).to_vec(),
            write: !quick && !partial,
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
            "--idle" => self.idle = value.parse::<usize>()?.clamp(100, 9_000),
            "--soak" => self.soak = Duration::from_secs(value.parse::<u64>()?.clamp(10, 7200)),
            "--gateway" => self.gateway = PathBuf::from(value).canonicalize()?,
            "--only" => {
                self.parts = value.split(',').map(str::to_owned).collect();
                for part in &self.parts {
                    one_of(["load", "idle", "soak"].contains(&part.as_str()), part)?;
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

fn compare(plan: &Plan) -> Result<()> {
    let bench = Bench::start("edge", plan.gateway.clone())?;
    measure(plan, &bench)?;
    bench.finish()
}

fn measure(plan: &Plan, bench: &Bench) -> Result<()> {
    let tools: [&[&str]; 4] =
        [&["nginx", "-v"], &["haproxy", "-v"], &["wrk", "-v"], &["h2load", "--version"]];
    let mut section = heading::heading("bench-edge", "edge", &plan.typed, &tools);
    if plan.has("load") {
        let title = format!("Load: median of {} interleaved rounds of {} s", plan.rounds, plan.secs);
        write!(section, "\n### {title}\n\n{}", load::measure(bench, plan)?.render())?;
    }
    if plan.has("idle") {
        let title = format!("{} connections that stand unused after one request", plan.idle);
        write!(section, "\n### {title}\n\n{}", idle::measure(bench, plan)?.render())?;
    }
    if plan.has("soak") {
        let title = format!("A soak of {} s with faults", plan.soak.as_secs());
        write!(section, "\n### {title}\n\n{}", soak::measure(bench, plan)?.render())?;
    }
    println!("{section}");
    if plan.write {
        report::write_section("edge", &section)?;
        println!("benches/results.md is up to date.");
    }
    Ok(())
}
