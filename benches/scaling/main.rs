//! Cost against size: locations, limits in a chain, keys and open connections: `cargo bench --bench scaling`.
//!
//! A cost that grows with the size is found here before somebody with a large configuration finds it. Everything stays
//! on the loopback interface.

#![forbid(unsafe_code)]

#[path = "../side_by_side/child.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod child;
mod connections;
mod decisions;
#[path = "../side_by_side/facts.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod facts;
#[path = "../side_by_side/heading.rs"]
mod heading;
#[path = "../support/keys.rs"]
mod keys;
mod locations;
mod plot;
#[path = "../side_by_side/report.rs"]
#[allow(dead_code, reason = "shared with the side-by-side benchmark, which uses all of it")]
mod report;
#[path = "../support/svg.rs"]
mod svg;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use child::{Child, Result};
use report::Table;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const HELP: &str = "\
cargo bench --bench scaling -- [OPTIONS]

  --rounds N       rounds of each measurement; the median counts       [7]
  --only A,B       locations limits keys connections                   [all]
  --quick          3 rounds, smaller sizes
  --write          rewrite the section in benches/results.md and docs/scaling.svg also after --quick or --only
  --no-write       leave both alone
  --gateway FILE   another sluicegate binary";

const PLOT: &str = "docs/scaling.svg";

/// The extent of the measurement.
pub struct Plan {
    pub rounds: usize,
    pub quick: bool,
    parts: Vec<String>,
    write: bool,
    typed: Vec<String>,
}

/// What the parts share.
pub struct Bench {
    gateway: PathBuf,
    /// The folder for configurations and logs.
    folder: PathBuf,
    gateway_core: usize,
}

/// The cost of each size, for the plot.
pub struct Series {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

type Measure = fn(&Bench, &Plan) -> Result<(Table, Vec<Series>)>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("launch") => child::launch(&arguments[1..]),
        Some("keys") => decisions::print_keys(&arguments[1..]),
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
    let quick = typed.iter().any(|word| word == "--quick");
    let mut plan = Plan {
        rounds: if quick { 3 } else { 7 },
        quick,
        parts: ["locations", "limits", "keys", "connections"].map(str::to_owned).to_vec(),
        write: !quick && !typed.iter().any(|word| word == "--only"),
        typed: typed.clone(),
    };
    let mut gateway = PathBuf::from(env!("CARGO_BIN_EXE_sluicegate"));
    let mut words = typed.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word}?\n\n{HELP}"));
        match word.as_str() {
            "--quick" => {}
            "--write" => plan.write = true,
            "--no-write" => plan.write = false,
            "--rounds" => plan.rounds = value()?.parse::<usize>()?.clamp(1, 100),
            "--gateway" => gateway = PathBuf::from(value()?).canonicalize()?,
            "--only" => plan.parts = plan.choose_parts(value()?)?,
            _ => return Err(format!("{word}?\n\n{HELP}").into()),
        }
    }
    measure(&plan, gateway)
}

impl Plan {
    fn choose_parts(&self, wanted: &str) -> Result<Vec<String>> {
        let wanted: Vec<String> = wanted.split(',').map(str::to_owned).collect();
        match wanted.iter().find(|part| !self.parts.contains(part)) {
            Some(unknown) => Err(format!("no part {unknown}\n\n{HELP}").into()),
            None => Ok(wanted),
        }
    }
}

fn measure(plan: &Plan, gateway: PathBuf) -> Result<()> {
    let cores = child::cores()?;
    let (Some(&gateway_core), Some(&own_core)) = (cores.first(), cores.last()) else {
        return Err("no cores".into());
    };
    child::pin(own_core)?;
    child::raise_open_files();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scaling");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let bench = Bench { gateway, folder: folder.clone(), gateway_core };
    let mut section = heading::heading("bench-scaling", "scaling", &plan.typed, &[]);
    let parts: [(&str, &str, Measure); 4] = [
        ("locations", "Locations", locations::measure),
        ("limits", "Limits in a chain", decisions::measure_limits),
        ("keys", "Keys of a limit", decisions::measure_keys),
        ("connections", "Open connections", connections::measure),
    ];
    let mut all = Vec::new();
    for (part, title, measure) in parts {
        if plan.parts.iter().any(|wanted| wanted == part) {
            eprintln!("{part} …");
            let (table, series) = measure(&bench, plan)?;
            write!(section, "\n### {title}\n\n{}", table.render())?;
            all.extend(series);
        }
    }
    println!("{section}");
    if plan.write {
        report::write_section("scaling", &section)?;
        std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(PLOT), plot::draw(&all))?;
        println!("benches/results.md and {PLOT} are up to date.");
    }
    // Logs of a failed run are worth reading.
    Ok(std::fs::remove_dir_all(&folder)?)
}

impl Bench {
    /// Starts the gateway with `text` as its configuration, on a core of its own.
    pub fn start_gateway(&self, name: &str, text: &str) -> Result<Child> {
        let file = self.folder.join(format!("{name}.yaml"));
        std::fs::write(&file, text)?;
        let (gateway, file) = (self.gateway.display().to_string(), file.display().to_string());
        let log = self.folder.join(format!("{name}.log"));
        child::spawn(self.gateway_core, &[&gateway, "run", "-c", &file], &log)
    }
}

/// Processor time of this thread in ns, so that other load on the machine does not count.
pub fn spent_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The median of some rounds of `run`.
pub fn median_of(rounds: usize, mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let values = (0..rounds).map(|_| run()).collect::<Result<Vec<f64>>>()?;
    Ok(report::median(values.into_iter()))
}

/// "10 000"
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    groups.join(" ")
}
