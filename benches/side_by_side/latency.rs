//! Latency under a fixed rate, far from saturation.
//!
//! Open loop: request *i* is due at start + *i* / rate whatever happened before, and its latency counts from that
//! moment. A proxy that stalls is charged for every request that was due meanwhile.

use std::collections::VecDeque;

use crate::child::Result;
use crate::client::Client;
use crate::facts::{self, Core, Cpu};
use crate::options::Options;
use crate::peers::{Bench, GET, Instance, Log, Mode, Proxy};
use crate::report::{Ratio, Remarks, Table, median, percentile};
use crate::throughput::order;

const CONNECTIONS: usize = 32;
const SECOND: u64 = 1_000_000_000;

/// A requests' schedule and what became of it.
#[derive(Default)]
pub struct Outcome {
    /// Sorted, in nanoseconds, of the exchanges with an expected status.
    pub latencies: Vec<u64>,
    /// Answers with another status, broken connections, and no answer at all.
    pub wrong: usize,
}

impl Outcome {
    pub fn percentile_us(&self, share: f64) -> f64 {
        percentile(&self.latencies, share) as f64 / 1e3
    }
}

/// Sends `rate` requests per second for `secs` seconds and waits for the answers, at most five seconds longer.
pub fn open_loop(
    port: u16,
    rate: u64,
    secs: u64,
    request: &str,
    expected: fn(u16) -> bool,
) -> Result<Outcome> {
    let mut client = Client::connect(port, CONNECTIONS)?;
    let mut idle: VecDeque<usize> = (0..CONNECTIONS).collect();
    let mut due = [0; CONNECTIONS];
    let mut outcome = Outcome::default();
    let total = rate * secs;
    let start = facts::now() + SECOND / 100;
    let when = |place: u64| start + place * SECOND / rate;
    let end = when(total) + 5 * SECOND;
    let (mut sent, mut answered) = (0, 0);
    while answered < total && facts::now() < end {
        while sent < total && when(sent) <= facts::now() {
            let Some(connection) = idle.pop_front() else { break };
            due[connection] = when(sent);
            client.send(connection, request.as_bytes());
            sent += 1;
        }
        // With every connection at work only an answer helps.
        let until = if sent < total && !idle.is_empty() { when(sent) } else { end };
        for done in client.finished(until)? {
            answered += 1;
            idle.push_back(done.connection);
            if expected(done.status) {
                outcome.latencies.push(done.at - due[done.connection]);
            } else {
                outcome.wrong += 1;
            }
        }
    }
    outcome.wrong += usize::try_from(total - answered)?;
    outcome.latencies.sort_unstable();
    Ok(outcome)
}

struct Row {
    name: &'static str,
    mode: Option<Mode>,
    instance: Option<Instance>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    remarks: Remarks,
}

/// Watches whether anybody else computes meanwhile: a stall of a few milliseconds is a whole p99.
struct Quiet {
    start: u64,
    own: Cpu,
    cores: [Core; 2],
}

impl Quiet {
    fn cores(bench: &Bench) -> [Core; 2] {
        [bench.proxy_core, bench.load_core].map(Core::of)
    }

    fn begin(bench: &Bench) -> Self {
        Self { start: facts::now(), own: Cpu::of(std::process::id()), cores: Self::cores(bench) }
    }

    /// The part of one core that went to other programs, or to the host.
    fn others(&self, bench: &Bench) -> f64 {
        let own =
            Cpu::of(std::process::id()).since(self.own).total as f64 / (facts::now() - self.start) as f64;
        let shares = Self::cores(bench).into_iter().zip(self.cores).map(|(now, then)| now.shares(then));
        shares.map(|(busy, stolen)| busy + stolen).sum::<f64>() - own
    }
}

pub fn measure(bench: &Bench, options: &Options) -> Result<Table> {
    let row = |name, mode, instance| Row {
        name,
        mode,
        instance,
        p50: Vec::new(),
        p99: Vec::new(),
        remarks: Remarks::default(),
    };
    let mut rows = vec![row("no proxy", None, None)];
    for &mode in &options.modes {
        for proxy in [Proxy::Nginx, Proxy::Sluicegate] {
            rows.push(row(proxy.name(), Some(mode), Some(bench.start(proxy, mode, Log::Off)?)));
        }
    }
    // Round 0 warms up and is not counted.
    for round in 0..=options.rounds {
        let secs = if round == 0 { 1 } else { options.secs };
        for place in order(round, rows.len()) {
            let row = &mut rows[place];
            let port = row.instance.as_ref().map_or(bench.backend_port, |instance| instance.port);
            let expected = match row.mode {
                // The limit of one per second admits a few.
                Some(mode) if mode.rejects() => |status| status == 429 || status == 200,
                _ => |status| status == 200,
            };
            let quiet = Quiet::begin(bench);
            let outcome = open_loop(port, options.rate, secs, GET, expected)?;
            if round > 0 {
                row.p50.push(outcome.percentile_us(0.5));
                row.p99.push(outcome.percentile_us(0.99));
                row.remarks.note(outcome.wrong > 0, "wrong or missing answers");
                row.remarks.note(quiet.others(bench) > 0.1, "others used the cores");
            }
        }
        eprintln!("latency: round {round} of {}", options.rounds);
    }
    Ok(table(&rows))
}

fn table(rows: &[Row]) -> Table {
    let mut table =
        Table::new(&["mode", "proxy", "p50 µs", "× nginx", "p99 µs", "× nginx", "range", "remarks"]);
    for row in rows {
        let nginx = rows.iter().find(|other| other.mode == row.mode && other.name == Proxy::Nginx.name());
        let against = |pick: fn(&Row) -> &Vec<f64>| {
            let other = nginx.map(pick).into_iter().flatten().copied();
            Ratio::of(pick(row).iter().copied(), other)
        };
        let (middle, tail) = (against(|row| &row.p50), against(|row| &row.p99));
        table.row([
            row.mode.map_or("–", Mode::name).to_owned(),
            row.name.to_owned(),
            format!("{:.0}", median(row.p50.iter().copied())),
            middle.middle(),
            format!("{:.0}", median(row.p99.iter().copied())),
            tail.middle(),
            tail.range(),
            row.remarks.render(row.p99.len()),
        ]);
    }
    table
}
