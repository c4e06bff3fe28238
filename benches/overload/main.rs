//! Sluicegate's `max_concurrent: auto` beside Envoy, HAProxy and nginx under overload: `cargo bench --bench overload`.
//!
//! The same backend stands behind all, and the order of the runs turns. The proxy has one core for itself, load and
//! backend share another. Everything stays on the loopback interface.

#![forbid(unsafe_code)]

#[path = "../support/answer.rs"]
mod answer;
mod backend;
#[path = "../side_by_side/child.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod child;
#[path = "../side_by_side/facts.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod facts;
#[path = "../side_by_side/heading.rs"]
mod heading;
mod load;
mod peers;
mod plot;
mod random;
#[path = "../side_by_side/report.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod report;
#[path = "../side_by_side/rounds.rs"]
mod rounds;
mod scenario;
#[path = "../support/svg.rs"]
mod svg;

use std::path::{Path, PathBuf};
use std::time::Duration;

use backend::Backend;
use child::Result;
use load::Outcome;
use peers::Peer;
use report::{Remarks, Table, median};
use scenario::{Change, Scenario};

const HELP: &str = "\
cargo bench --bench overload -- [OPTIONS]

  --seeds N        rounds, each with other arrivals                    [3]
  --secs N         seconds of a run, after 3 s in which it warms up    [20]
  --loads A,B      offered load as a multiple of the capacity          [0.9,1.5,3,10]
  --changes A,B    steady step drift mixed                             [all]
  --quick          one seed, runs of 5 s, load 3: 3 minutes
  --plot FILE      where the plot goes                                 [target/overload.svg]
  --packages DIR   the environment with the packages of the peers      [target/bench-peers]
  --gateway FILE   another sluicegate binary";

struct Plan {
    seeds: usize,
    span: Duration,
    loads: Vec<f64>,
    changes: Vec<Change>,
    plot: PathBuf,
    packages: PathBuf,
    gateway: PathBuf,
    typed: Vec<String>,
}

/// What all proxies share.
pub struct Bench {
    pub gateway: PathBuf,
    pub envoy: String,
    envoy_version: String,
    /// The folder for configurations and logs.
    pub folder: PathBuf,
    pub backend_port: u16,
    pub proxy_core: usize,
    /// How often Envoy measures the latency without load: at least twice in each run.
    pub measure_every: Duration,
}

/// One run.
pub struct Cell {
    pub peer: Peer,
    pub scenario: Scenario,
    pub outcome: Outcome,
    /// The share of a core that other programs used.
    others: f64,
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut plan = Plan {
            seeds: if quick { 1 } else { 3 },
            span: Duration::from_secs(if quick { 5 } else { 20 }),
            loads: if quick { vec![3.0] } else { vec![0.9, 1.5, 3.0, 10.0] },
            changes: Change::ALL.to_vec(),
            plot: root.join("target/overload.svg"),
            packages: root.join("target/bench-peers"),
            gateway: PathBuf::from(env!("CARGO_BIN_EXE_sluicegate")),
            typed: typed.clone(),
        };
        let mut words = typed.iter().filter(|word| *word != "--quick");
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag}?\n\n{HELP}"))?;
            plan.set(flag, value)?;
        }
        Ok(plan)
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<()> {
        match flag {
            "--seeds" => self.seeds = value.parse::<usize>()?.clamp(1, 100),
            "--secs" => self.span = Duration::from_secs(value.parse::<u64>()?.clamp(4, 600)),
            "--loads" => {
                let loads = value.split(',').map(|load| Ok(load.parse::<f64>()?.clamp(0.1, 20.0)));
                self.loads = loads.collect::<Result<_>>()?;
            }
            "--changes" => {
                let known = |name| Change::ALL.into_iter().find(|change| change.name() == name);
                let found = value
                    .split(',')
                    .map(|name| known(name).ok_or_else(|| format!("no {name}\n\n{HELP}").into()));
                self.changes = found.collect::<Result<_>>()?;
            }
            "--plot" => self.plot = std::path::absolute(value)?,
            "--packages" => self.packages = PathBuf::from(value).canonicalize()?,
            "--gateway" => self.gateway = PathBuf::from(value).canonicalize()?,
            _ => return Err(format!("{flag}?\n\n{HELP}").into()),
        }
        Ok(())
    }

    fn scenarios(&self) -> Vec<Scenario> {
        let of = |change: &Change| {
            let change = *change;
            self.loads.iter().map(move |load| Scenario { change, load: *load })
        };
        self.changes.iter().flat_map(of).collect()
    }
}

fn compare(plan: &Plan) -> Result<()> {
    let child::Place { measured_core: proxy_core, load_core, folder } = child::take_place("overload")?;
    let backend = Backend::start()?;
    let (envoy, envoy_version) = peers::find_envoy(&plan.packages)?;
    let bench = Bench {
        gateway: plan.gateway.clone(),
        envoy,
        envoy_version,
        folder: folder.clone(),
        backend_port: backend.port,
        proxy_core,
        measure_every: plan.span / 3,
    };
    let (scenarios, mut cells) = (plan.scenarios(), Vec::new());
    for round in 0..plan.seeds {
        for (turn, scenario) in scenarios.iter().enumerate() {
            for place in rounds::order(round + turn, Peer::ALL.len()) {
                let (peer, cores) = (Peer::ALL[place], [proxy_core, load_core]);
                cells.push(run(plan, &bench, &backend, peer, *scenario, round as u64, cores)?);
            }
        }
    }
    println!("{}", section(plan, &bench, &scenarios, &cells));
    std::fs::write(&plan.plot, plot::draw(&scenarios, &cells))?;
    println!("{} has the plot.", plan.plot.display());
    // Logs of a failed run are worth reading.
    Ok(std::fs::remove_dir_all(&folder)?)
}

fn run(
    plan: &Plan,
    bench: &Bench,
    backend: &Backend,
    peer: Peer,
    scenario: Scenario,
    seed: u64,
    cores: [usize; 2],
) -> Result<Cell> {
    scenario.change.apply(1.0, &backend.ability);
    let (child, port) = peer.start(bench)?;
    let quiet = rounds::Quiet::begin(cores);
    let outcome = load::run(port, scenario, plan.span, seed, backend)?;
    let others = quiet.others();
    drop(child);
    backend.drain()?;
    let Outcome { goodput, p99_ms, .. } = outcome;
    let (name, change) = (peer.name(), scenario.change.name());
    eprintln!("{change}, × {}: {name} {goodput:.0} %, {p99_ms:.0} ms", scenario.load);
    Ok(Cell { peer, scenario, outcome, others })
}

fn section(plan: &Plan, bench: &Bench, scenarios: &[Scenario], cells: &[Cell]) -> String {
    let titles = ["scenario", "load", "proxy", "goodput %", "range", "p99 ms", "recovery s", "remarks"];
    let mut table = Table::new(&titles);
    for scenario in scenarios {
        for peer in Peer::ALL {
            let own: Vec<&Cell> =
                cells.iter().filter(|cell| cell.peer == peer && cell.scenario == *scenario).collect();
            let of = |get: fn(&Outcome) -> f64| median(own.iter().map(|cell| get(&cell.outcome)));
            let goodput = || own.iter().map(|cell| cell.outcome.goodput);
            let mut remarks = Remarks::default();
            for cell in &own {
                remarks.note(cell.outcome.wrong > 0, "wrong answers");
                remarks.note(cell.others > 0.4, "other programs ran");
            }
            let recovery = of(|outcome| outcome.recovery);
            table.row([
                scenario.change.name().to_owned(),
                scenario.load.to_string(),
                peer.name().to_owned(),
                format!("{:.0}", of(|outcome| outcome.goodput)),
                format!("{:.0}–{:.0}", goodput().fold(f64::MAX, f64::min), goodput().fold(0.0, f64::max)),
                format!("{:.0}", of(|outcome| outcome.p99_ms)),
                if scenario.change == Change::Step { format!("{recovery:.1}") } else { "–".to_owned() },
                remarks.render(own.len()),
            ]);
        }
    }
    let tools: [&[&str]; 2] = [&["haproxy", "-v"], &["nginx", "-v"]];
    let heading = heading::heading("bench-overload", "overload", &plan.typed, &tools);
    let title = format!(
        "Goodput within {} ms, of what the backend can give: median of {} seeds, runs of {} s; Envoy {} measures its \
         minRTT every {:.1} s",
        scenario::DEADLINE.as_millis(),
        plan.seeds,
        plan.span.as_secs(),
        bench.envoy_version,
        bench.measure_every.as_secs_f64()
    );
    format!("{heading}\n### {title}\n\n{}", table.render())
}
