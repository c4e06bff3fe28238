//! The queue in front of a server that takes N requests at once, beside HAProxy's: `cargo bench --bench queue`.
//!
//! The same backend stands behind both, and the runs alternate. The proxy has one core for itself, load and backend
//! share another. Only ratios between runs of the same round mean anything.

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
#[path = "../side_by_side/report.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod report;
#[path = "../side_by_side/rounds.rs"]
mod rounds;

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use backend::Backend;
use child::Result;
use load::Load;
use peers::Peer;
use report::{Ratio, Remarks, Table, median, percentile};

const HELP: &str = "\
cargo bench --bench queue -- [OPTIONS]

  --rounds N       interleaved rounds                                  [7]
  --secs N         seconds of each run                                 [3]
  --places N       requests that the backend takes at once             [8]
  --service N      milliseconds that each of them takes                [10]
  --quick          3 rounds of 1 s
  --write          rewrite the section in benches/results.md also after --quick
  --no-write       leave benches/results.md alone
  --gateway FILE   another sluicegate binary";

/// The longest wait. In the closed loops requests wait for a fraction of it.
const MAX_WAIT: Duration = Duration::from_millis(300);

/// How much more is offered than the backend takes.
const OVERLOAD: usize = 4;

struct Plan {
    rounds: usize,
    secs: u64,
    places: usize,
    service: Duration,
    write: bool,
    gateway: PathBuf,
    typed: Vec<String>,
}

/// What both proxies share.
pub struct Bench {
    pub gateway: PathBuf,
    /// The folder for configurations and logs.
    pub folder: PathBuf,
    pub backend_port: u16,
    /// Requests that the backend takes at once.
    pub places: usize,
    pub max_wait: Duration,
    pub proxy_core: usize,
}

/// One run against one proxy.
#[derive(Clone, Copy)]
struct Run {
    served: f64,
    rejected: f64,
    p50: f64,
    p99: f64,
    left: f64,
    /// Requests of clients that hang up, at the backend.
    reached: f64,
    /// The most requests at once at the backend.
    most: u64,
    wrong: u64,
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
        let mut plan = Plan {
            rounds: if quick { 3 } else { 7 },
            secs: if quick { 1 } else { 3 },
            places: 8,
            service: Duration::from_millis(10),
            write: !quick,
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
            "--places" => self.places = value.parse::<usize>()?.clamp(1, 200),
            "--service" => self.service = Duration::from_millis(value.parse::<u64>()?.clamp(1, 1000)),
            "--gateway" => self.gateway = PathBuf::from(value).canonicalize()?,
            _ => return Err(format!("{flag}?\n\n{HELP}").into()),
        }
        Ok(())
    }
}

fn compare(plan: &Plan) -> Result<()> {
    let child::Place { measured_core: proxy_core, load_core, folder } = child::take_place("queue")?;
    let backend = Backend::start(plan.service)?;
    let bench = Bench {
        gateway: plan.gateway.clone(),
        folder: folder.clone(),
        backend_port: backend.port,
        places: plan.places,
        max_wait: MAX_WAIT,
        proxy_core,
    };
    let section = measure(plan, &bench, &backend, [proxy_core, load_core])?;
    println!("{section}");
    // Logs of a failed run are worth reading.
    std::fs::remove_dir_all(&folder)?;
    if plan.write {
        report::write_section("queue", &section)?;
        println!("benches/results.md is up to date.");
    }
    Ok(())
}

fn measure(plan: &Plan, bench: &Bench, backend: &Backend, cores: [usize; 2]) -> Result<String> {
    let clients = OVERLOAD * plan.places;
    let capacity = plan.places as f64 / plan.service.as_secs_f64();
    // They leave when half of those before them are served.
    let patience = plan.service * (OVERLOAD as u32 - 1) / 2;
    let none = Load { clients: 0, rate: 0, leavers: 0, patience };
    let loads = [
        ("closed loop", Load { clients, ..none }),
        ("closed loop and leavers", Load { clients, leavers: clients / 2, ..none }),
        ("open loop", Load { rate: (OVERLOAD as f64 * capacity) as u64, ..none }),
    ];
    let mut table = Table::new(&[
        "load",
        "proxy",
        "served/s",
        "ratio",
        "p50 ms",
        "p99 ms",
        "ratio",
        "range",
        "rejected/s",
        "left",
        "reached",
        "remarks",
    ]);
    for (name, load) in loads {
        let mut runs: [Vec<Run>; 2] = Default::default();
        for round in 0..plan.rounds {
            for which in rounds::order(round, Peer::ALL.len()) {
                runs[which].push(run(plan, bench, backend, Peer::ALL[which], load, cores)?);
            }
        }
        let [_, other] = &runs;
        for (peer, these) in Peer::ALL.into_iter().zip(&runs) {
            let of = |get: fn(&Run) -> f64| median(these.iter().map(get));
            let against = |get: fn(&Run) -> f64| Ratio::of(these.iter().map(get), other.iter().map(get));
            let (served, late) = (against(|run| run.served), against(|run| run.p99));
            table.row([
                name.to_owned(),
                peer.name().to_owned(),
                format!("{:.0}", of(|run| run.served)),
                served.middle(),
                format!("{:.1}", of(|run| run.p50)),
                format!("{:.1}", of(|run| run.p99)),
                late.middle(),
                late.range(),
                format!("{:.0}", of(|run| run.rejected)),
                format!("{:.0}", these.iter().map(|run| run.left).sum::<f64>()),
                format!("{:.0}", these.iter().map(|run| run.reached).sum::<f64>()),
                remarks(these, plan),
            ]);
        }
    }
    let title = format!(
        "A backend that takes {} requests at once, {} ms each, offered {OVERLOAD} times its capacity: median of {} \
         interleaved rounds of {} s",
        plan.places,
        plan.service.as_millis(),
        plan.rounds,
        plan.secs
    );
    let heading = heading::heading("bench-queue", "queue", &plan.typed, &[&["haproxy", "-v"]]);
    Ok(format!("{heading}\n### {title}\n\n{}", table.render()))
}

fn remarks(runs: &[Run], plan: &Plan) -> String {
    let mut remarks = Remarks::default();
    for run in runs {
        remarks.note(run.wrong > 0, "wrong answers");
        remarks.note(run.most > plan.places as u64, "too many at once at the backend");
        remarks.note(run.others > 0.2, "other programs ran");
    }
    remarks.render(runs.len())
}

fn run(
    plan: &Plan,
    bench: &Bench,
    backend: &Backend,
    peer: Peer,
    load: Load,
    cores: [usize; 2],
) -> Result<Run> {
    let (child, port) = peer.start(bench)?;
    backend.reset();
    let quiet = rounds::Quiet::begin(cores);
    let span = Duration::from_secs(plan.secs);
    let answers = load::run(port, load, span, &backend.counts)?;
    let others = quiet.others();
    drop(child);
    // Requests that are still on their way reach the backend, too.
    std::thread::sleep(2 * plan.service);
    let ms = |share| percentile(&answers.served, share) as f64 / 1e6;
    Ok(Run {
        served: answers.served.len() as f64 / span.as_secs_f64(),
        rejected: answers.rejected as f64 / span.as_secs_f64(),
        p50: ms(0.5),
        p99: ms(0.99),
        left: answers.left as f64,
        reached: backend.counts.leaving.load(Relaxed) as f64,
        most: answers.most,
        wrong: answers.wrong,
        others,
    })
}
