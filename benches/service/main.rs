//! The rate-limit service under load, beside Limitador: `cargo bench --bench service`.
//!
//! Calls of Envoy's gRPC and of `POST /check`, one limit that never rejects and one that rejects nearly all. The server
//! has one core for itself, the load another; runs alternate. Only ratios between runs of the same round mean anything.

#![forbid(unsafe_code)]

#[path = "../side_by_side/child.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod child;
#[path = "../side_by_side/client.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod client;
#[path = "../side_by_side/facts.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod facts;
mod grpc;
#[path = "../side_by_side/heading.rs"]
mod heading;
mod late;
mod load;
#[path = "../side_by_side/report.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod report;
mod rivals;
#[path = "../side_by_side/rounds.rs"]
mod rounds;

use std::path::{Path, PathBuf};

use child::Result;
use rivals::{Instance, Rival};

const HELP: &str = "\
cargo bench --bench service -- [OPTIONS]

  --rounds N       interleaved rounds                                  [7]
  --secs N         seconds of each run                                 [2]
  --protocols A,B  grpc check                                          [all]
  --rival FILE     benches/service/limitador, built                    [target/limitador]
  --alone          without the rival
  --quick          3 rounds of 1 s
  --write          rewrite the section in benches/results.md also after --quick
  --no-write       leave benches/results.md alone
  --gateway FILE   another sluicegate binary";

/// Where `make bench-service` builds the rival.
const RIVAL: &str = "target/limitador/release/limitador-rival";

/// How calls come in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    Check,
}

impl Protocol {
    const ALL: [Protocol; 2] = [Protocol::Grpc, Protocol::Check];

    pub fn name(self) -> &'static str {
        match self {
            Protocol::Grpc => "grpc",
            Protocol::Check => "check",
        }
    }
}

/// Which limit judges a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Judges {
    /// The one that is never used up.
    Admits,
    /// The one of 1,000 a second.
    Rejects,
}

impl Judges {
    const ALL: [Judges; 2] = [Judges::Admits, Judges::Rejects];

    /// The name of the limit and of the domain.
    pub fn limit(self) -> &'static str {
        match self {
            Judges::Admits => "calls",
            Judges::Rejects => "full",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Judges::Admits => "admit",
            Judges::Rejects => "reject",
        }
    }
}

/// The extent of the measurement.
pub struct Plan {
    pub rounds: usize,
    pub secs: u64,
    protocols: Vec<Protocol>,
    rival: Option<PathBuf>,
    write: bool,
    gateway: PathBuf,
    typed: Vec<String>,
}

/// What all runs share.
pub struct Bench {
    pub gateway: PathBuf,
    pub rival: Option<PathBuf>,
    pub protocols: Vec<Protocol>,
    /// The folder for configurations, logs and bodies.
    pub folder: PathBuf,
    pub server_core: usize,
    pub load_core: usize,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("launch") => child::launch(&arguments[1..]),
        // `cargo test --all-targets` runs benchmarks without any argument.
        Some(_) if !arguments.iter().any(|word| word == "--help") => compare(&Plan::parse(&arguments)?),
        _ => {
            println!("{HELP}");
            Ok(())
        }
    }
}

impl Plan {
    fn parse(arguments: &[String]) -> Result<Plan> {
        let typed: Vec<String> = arguments.iter().filter(|word| *word != "--bench").cloned().collect();
        let quick = typed.iter().any(|word| word == "--quick");
        let partial = typed.iter().any(|word| word == "--protocols" || word == "--alone");
        let mut plan = Plan {
            rounds: if quick { 3 } else { 7 },
            secs: if quick { 1 } else { 2 },
            protocols: Protocol::ALL.to_vec(),
            rival: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join(RIVAL)),
            write: !quick && !partial,
            gateway: PathBuf::from(env!("CARGO_BIN_EXE_sluicegate")),
            typed: typed.clone(),
        };
        let mut words = typed.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => continue,
                "--alone" => plan.rival = None,
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
        match flag {
            "--rounds" => self.rounds = value.parse::<usize>()?.clamp(1, 100),
            "--secs" => self.secs = value.parse::<u64>()?.clamp(1, 60),
            "--gateway" => self.gateway = PathBuf::from(value).canonicalize()?,
            "--rival" => self.rival = Some(PathBuf::from(value).canonicalize()?),
            "--protocols" => {
                let known = |name| Protocol::ALL.into_iter().find(|protocol| protocol.name() == name);
                let named = value
                    .split(',')
                    .map(|name| known(name).ok_or_else(|| format!("no protocol {name}\n\n{HELP}").into()));
                self.protocols = named.collect::<Result<_>>()?;
            }
            _ => return Err(format!("{flag}?\n\n{HELP}").into()),
        }
        Ok(())
    }
}

fn compare(plan: &Plan) -> Result<()> {
    let child::Place { measured_core: server_core, load_core, folder } = child::take_place("service")?;
    let (gateway, rival, protocols) = (plan.gateway.clone(), plan.rival.clone(), plan.protocols.clone());
    let bench = Bench { gateway, rival, protocols, folder: folder.clone(), server_core, load_core };
    let section = measure(plan, &bench)?;
    println!("{section}");
    // Logs of a failed run are worth reading.
    std::fs::remove_dir_all(&folder)?;
    if plan.write {
        report::write_section("service", &section)?;
        println!("benches/results.md is up to date.");
    }
    Ok(())
}

fn measure(plan: &Plan, bench: &Bench) -> Result<String> {
    let rivals = Rival::ALL.into_iter().filter(|rival| *rival == Rival::Sluicegate || bench.rival.is_some());
    let started: Vec<Instance> = rivals.map(|rival| Instance::start(bench, rival)).collect::<Result<_>>()?;
    for instance in &started {
        load::verify(bench, instance)?;
    }
    let calls = load::measure(bench, plan, &started)?;
    let late = late::measure(bench, plan, &started)?;
    let (rounds, secs) = (plan.rounds, plan.secs);
    let tools: [&[&str]; 2] = [&["wrk", "-v"], &["h2load", "--version"]];
    let heading = heading::heading("bench-service", "service", &plan.typed, &tools);
    Ok(format!(
        "{heading}\n### Calls in a closed loop: median of {rounds} interleaved rounds of {secs} s\n\n{}\n\
         ### Latency at a fixed rate: median of {rounds} interleaved rounds of {secs} s\n\n{}",
        calls.render(),
        late.render()
    ))
}
