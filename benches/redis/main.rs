//! The cost of shared limits, beside local ones and nginx with Lua: `cargo bench --bench redis`.
//!
//! Everything stays on the loopback interface. Compare processor time; requests per second include the load, the
//! backend and Redis, which run on the same two cores.

#![forbid(unsafe_code)]

#[path = "../side_by_side/backend.rs"]
mod backend;
mod calls;
mod cases;
#[path = "../side_by_side/child.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod child;
#[path = "../side_by_side/client.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod client;
mod delay;
#[path = "../side_by_side/facts.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod facts;
#[path = "../side_by_side/heading.rs"]
mod heading;
mod leases;
#[path = "../support/limits.rs"]
mod limits;
mod load;
mod memory;
#[path = "../side_by_side/open_loop.rs"]
mod open_loop;
#[path = "../side_by_side/peers.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod peers;
#[path = "../side_by_side/report.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod report;
#[path = "../side_by_side/rounds.rs"]
mod rounds;
mod store;
mod ways;
#[path = "../side_by_side/wrk.rs"]
mod wrk;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use child::Result;
use peers::Bench;
use report::Table;

const HELP: &str = "\
cargo bench --bench redis -- [OPTIONS]

  --rounds N       interleaved rounds per table                        [5]
  --secs N         seconds of each end-to-end run                      [2]
  --only A,B       calls leases memory load delay                      [all]
  --quick          2 rounds of 1 s, one rate
  --write          rewrite the section in benches/results.md also after --quick or --only
  --no-write       leave benches/results.md alone
  --gateway FILE   another sluicegate binary";

/// The extent of the measurement.
pub struct Plan {
    pub rounds: usize,
    pub secs: u64,
    /// The length of each run against Redis alone.
    pub call_run: Duration,
    /// Requests per second.
    pub rates: Vec<u64>,
    parts: Vec<String>,
    write: bool,
    gateway: PathBuf,
    typed: Vec<String>,
}

type Measure = fn(&Bench, &Plan) -> Result<Table>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("launch") => child::launch(&arguments[1..]),
        Some("backend") => backend::serve(arguments.get(1).ok_or("backend PORT")?.parse()?, backend::BODY),
        // `cargo test --all-targets` runs benchmarks without any argument.
        Some(_) if !arguments.iter().any(|word| word == "--help") => compare(&Plan::parse(&arguments)?),
        _ => {
            println!("{HELP}");
            Ok(())
        }
    }
}

impl Plan {
    fn parse(arguments: &[String]) -> Result<Self> {
        let typed: Vec<String> = arguments.iter().filter(|word| *word != "--bench").cloned().collect();
        let quick = typed.iter().any(|word| word == "--quick");
        let mut plan = Self {
            rounds: if quick { 2 } else { 5 },
            secs: if quick { 1 } else { 2 },
            call_run: Duration::from_millis(if quick { 150 } else { 300 }),
            rates: if quick { vec![4000] } else { vec![1000, 4000] },
            parts: ["calls", "leases", "memory", "load", "delay"].map(str::to_owned).to_vec(),
            write: !quick && !typed.iter().any(|word| word == "--only"),
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
        match flag {
            "--rounds" => self.rounds = value.parse::<usize>()?.clamp(1, 100),
            "--secs" => self.secs = value.parse::<u64>()?.clamp(1, 60),
            "--gateway" => self.gateway = PathBuf::from(value).canonicalize()?,
            "--only" => {
                let wanted: Vec<String> = value.split(',').map(str::to_owned).collect();
                if let Some(unknown) = wanted.iter().find(|part| !self.parts.contains(part)) {
                    return Err(format!("no part {unknown}\n\n{HELP}").into());
                }
                self.parts = wanted;
            }
            _ => return Err(format!("{flag}?\n\n{HELP}").into()),
        }
        Ok(())
    }
}

fn compare(plan: &Plan) -> Result<()> {
    let child::Place { measured_core: proxy_core, load_core, folder } = child::take_place("redis")?;
    let outcome = in_folder(plan, &folder, proxy_core, load_core);
    if outcome.is_ok() {
        // Logs of a failed run are worth reading.
        std::fs::remove_dir_all(&folder)?;
    }
    outcome
}

fn in_folder(plan: &Plan, folder: &Path, proxy_core: usize, load_core: usize) -> Result<()> {
    let backend_port = child::free_port()?;
    let itself = std::env::current_exe()?.display().to_string();
    let log = folder.join("backend.log");
    let mut backend = child::spawn(load_core, &[&itself, "backend", &backend_port.to_string()], &log)?;
    backend.wait_port(backend_port, Duration::from_secs(5))?;
    let (gateway, folder) = (plan.gateway.clone(), folder.to_owned());
    let bench = Bench { gateway, folder, backend_port, proxy_core, load_core, under: Vec::new() };

    let tools: [&[&str]; 3] = [&["nginx", "-v"], &["wrk", "-v"], &["redis-server", "--version"]];
    let mut section = heading::heading("bench-redis", "redis", &plan.typed, &tools);
    let rounds = format!("median of {} interleaved rounds", plan.rounds);
    let parts: [(&str, String, Measure); 5] = [
        ("calls", format!("Processor time of redis-server per decision: {rounds}"), calls::measure),
        ("leases", "Leases: one key and the gateways that hold of it".to_owned(), leases::measure),
        ("memory", "Memory of redis-server per client".to_owned(), memory::measure),
        (
            "load",
            format!("Three limits per request, closed loop: {rounds} of {} s", plan.secs),
            load::measure,
        ),
        (
            "delay",
            format!("Three limits per request, open loop: {rounds} of {} s", plan.secs),
            delay::measure,
        ),
    ];
    let mut remarks = false;
    for (part, title, measure) in parts {
        if plan.parts.iter().any(|wanted| wanted == part) {
            let table = measure(&bench, plan)?;
            remarks |= part != "memory" && table.has_remarks();
            write!(section, "\n### {title}\n\n{}", table.render())?;
        }
    }
    println!("{section}");
    if plan.write {
        report::write_section("redis", &section)?;
        println!("benches/results.md is up to date.");
    }
    if remarks {
        println!("Some rows carry remarks: read them before the numbers.");
    }
    Ok(())
}
