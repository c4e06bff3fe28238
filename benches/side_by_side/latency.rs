//! Latency under a fixed rate, in interleaved rounds.

use crate::child::Result;
use crate::open_loop::open_loop;
use crate::options::Options;
use crate::peers::{Bench, GET, Instance, Log, Mode, Proxy};
use crate::report::{Ratio, Remarks, Table, median};
use crate::rounds::{Quiet, order};

struct Row {
    name: &'static str,
    mode: Option<Mode>,
    instance: Option<Instance>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    remarks: Remarks,
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
            let quiet = Quiet::begin([bench.proxy_core, bench.load_core]);
            let outcome = open_loop(port, options.rate, secs, || GET, expected)?;
            if round > 0 {
                row.p50.push(outcome.percentile_us(0.5));
                row.p99.push(outcome.percentile_us(0.99));
                row.remarks.note(outcome.wrong > 0, "wrong or missing answers");
                row.remarks.note(quiet.others() > 0.1, "others used the cores");
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
