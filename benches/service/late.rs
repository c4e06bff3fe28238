//! Latency at half of the rates that are aimed at, in interleaved rounds. h2load counts from the moment at which it
//! sends a call, and not from the moment at which the call was due.

use std::fs;

use crate::child::Result;
use crate::load::run_h2load;
use crate::report::{Remarks, Table, median, percentile};
use crate::rivals::Instance;
use crate::rounds::{Quiet, order};
use crate::{Bench, Judges, Plan, Protocol};

/// Calls per second: half of what one core is to take.
fn rate(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Grpc => 50_000,
        Protocol::Check => 30_000,
    }
}

fn connections(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Grpc => 1,
        Protocol::Check => 60,
    }
}

struct Row {
    place: usize,
    protocol: Protocol,
    calls: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    remarks: Remarks,
}

pub fn measure(bench: &Bench, plan: &Plan, started: &[Instance]) -> Result<Table> {
    let mut rows = Vec::new();
    for &protocol in &bench.protocols {
        for place in 0..started.len() {
            let (calls, p50, p99) = (Vec::new(), Vec::new(), Vec::new());
            rows.push(Row { place, protocol, calls, p50, p99, remarks: Remarks::default() });
        }
    }
    for round in 0..plan.rounds {
        for place in order(round, rows.len()) {
            let row = &mut rows[place];
            let quiet = Quiet::begin([bench.server_core, bench.load_core]);
            let (latencies, wrong) = run(bench, &started[row.place], row.protocol, plan.secs)?;
            row.calls.push(latencies.len() as f64 / plan.secs as f64);
            row.p50.push(percentile(&latencies, 0.5) as f64 / 1e3);
            row.p99.push(percentile(&latencies, 0.99) as f64 / 1e3);
            row.remarks.note(wrong > 0, "wrong or missing answers");
            // Server and load use both cores; what is above them is not theirs.
            row.remarks.note(quiet.others() > 1.5, "the cores were full");
        }
        eprintln!("latency: round {} of {}", round + 1, plan.rounds);
    }
    let mut table = Table::new(&["protocol", "server", "rate", "calls/s", "p50 µs", "p99 µs", "remarks"]);
    for row in &rows {
        table.row([
            row.protocol.name().to_owned(),
            started[row.place].rival.name().to_owned(),
            rate(row.protocol).to_string(),
            format!("{:.0}", median(row.calls.iter().copied())),
            format!("{:.0}", median(row.p50.iter().copied())),
            format!("{:.0}", median(row.p99.iter().copied())),
            row.remarks.render(row.p99.len()),
        ]);
    }
    Ok(table)
}

/// Sorted latencies in ns, and the number of wrong or missing answers.
fn run(bench: &Bench, instance: &Instance, protocol: Protocol, secs: u64) -> Result<(Vec<u64>, usize)> {
    let log = bench.folder.join("h2load.log");
    // h2load adds to the file.
    if log.exists() {
        fs::remove_file(&log)?;
    }
    // The rate is that of one connection.
    let rate = rate(protocol) / connections(protocol);
    let [file, rate, seconds] = [log.display().to_string(), rate.to_string(), secs.to_string()];
    let words = ["-D", &seconds, "--rps", &rate, "--log-file", &file];
    let count = connections(protocol);
    run_h2load(bench, instance, protocol, Judges::Admits, count, &words)?;
    // Each line has the start, the status and the time until the response, both times in µs.
    let text = fs::read_to_string(&log)?;
    let lines = text.lines().map(|line| {
        let mut fields = line.split('\t');
        let (status, micros) = (fields.nth(1)?, fields.next()?);
        (status == "200").then(|| micros.parse::<u64>().ok()).flatten()
    });
    let (right, wrong): (Vec<_>, Vec<_>) = lines.partition(Option::is_some);
    let mut latencies: Vec<u64> = right.into_iter().flatten().map(|micros| micros * 1000).collect();
    latencies.sort_unstable();
    Ok((latencies, wrong.len()))
}
