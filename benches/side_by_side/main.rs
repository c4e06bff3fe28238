//! Sluicegate beside nginx on the same machine, in interleaved runs: `cargo bench --bench side_by_side`.
//!
//! The proxy has one core for itself, load and backend share another. Only ratios between runs of the same round mean
//! anything; absolute numbers are those of the machine and the hour. Everything stays on the loopback interface.

#![forbid(unsafe_code)]

mod backend;
mod child;
mod client;
mod delays;
mod facts;
mod heading;
mod latency;
#[path = "../support/limits.rs"]
mod limits;
mod open_loop;
mod options;
mod peers;
mod report;
mod rounds;
mod throttle;
mod throughput;
mod waiting;
mod wrk;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use child::Result;
use options::{HELP, Options, Part, Size};
use peers::Bench;
use report::Table;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        // `cargo test --all-targets` runs benchmarks without any argument.
        None => {
            println!("{HELP}");
            Ok(())
        }
        Some("launch") => child::launch(&arguments[1..]),
        Some("backend") => backend::serve(arguments.get(1).ok_or("backend PORT")?.parse()?, backend::BODY),
        _ if arguments.iter().any(|word| word == "--help") => {
            println!("{HELP}");
            Ok(())
        }
        _ => compare(&Options::parse(&arguments)?),
    }
}

fn compare(options: &Options) -> Result<()> {
    let child::Place { measured_core: proxy_core, load_core, folder } = child::take_place("side_by_side")?;
    let outcome = in_folder(options, &folder, proxy_core, load_core);
    if outcome.is_ok() {
        // Logs of a failed run are worth reading, those of a good one only take room.
        std::fs::remove_dir_all(&folder)?;
    }
    outcome
}

fn in_folder(options: &Options, folder: &Path, proxy_core: usize, load_core: usize) -> Result<()> {
    let backend_port = child::free_port()?;
    let itself = std::env::current_exe()?.display().to_string();
    let log = folder.join("backend.log");
    let mut backend = child::spawn(load_core, &[&itself, "backend", &backend_port.to_string()], &log)?;
    backend.wait_port(backend_port, Duration::from_secs(5))?;
    let (gateway, folder) = (options.gateway.clone(), folder.to_owned());
    let bench = Bench { gateway, folder, backend_port, proxy_core, load_core, under: Vec::new() };

    let tools: [&[&str]; 2] = [&["nginx", "-v"], &["wrk", "-v"]];
    let mut section = heading::heading("bench", "side_by_side", &options.typed, &tools);
    let mut remarks = false;
    let mut part = |part, title: &str, measure: fn(&Bench, &Options) -> Result<Table>| -> Result<()> {
        if options.parts.contains(&part) {
            let table = measure(&bench, options)?;
            remarks |= table.has_remarks();
            write!(section, "\n### {title}\n\n{}", table.render())?;
        }
        Ok(())
    };
    let rounds = format!("median of {} interleaved rounds of {} s", options.rounds, options.secs);
    part(Part::Throughput, &format!("Throughput and CPU time: {rounds}"), throughput::measure)?;
    let title = format!("Latency at a fixed {} requests/s, open loop: {rounds}", options.rate);
    part(Part::Latency, &title, latency::measure)?;
    part(Part::Throttle, "Throttling under load, Sluicegate alone", throttle::measure)?;
    println!("{section}");

    if options.write {
        report::write_section("side-by-side", &section)?;
        println!("benches/results.md is up to date.");
    }
    if options.size == Size::Smoke && section.contains("not measured") {
        return Err("a part did not run".into());
    }
    if remarks {
        println!("Some rows carry remarks: read them before the numbers.");
    }
    Ok(())
}
