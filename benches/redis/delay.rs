//! The latency that a limit adds to a request, at fixed rates far from saturation.

use crate::Plan;
use crate::child::Result;
use crate::load::start_all;
use crate::open_loop::open_loop;
use crate::peers::{Bench, GET};
use crate::report::{Remarks, Table, median};
use crate::rounds::{Quiet, order};
use crate::store::Redis;
use crate::ways::{Fate, Way};

/// Latencies in microseconds, by round.
#[derive(Default)]
struct Column {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

struct Row {
    name: &'static str,
    way: Option<Way>,
    port: u16,
    /// Results by rate.
    columns: Vec<Column>,
    remarks: Remarks,
}

pub fn measure(bench: &Bench, plan: &Plan) -> Result<Table> {
    let mut redis = Redis::start(bench.load_core, &bench.folder.join("delay"))?;
    let (running, missing) = start_all(bench, &mut redis, Fate::Pass);
    let row = |name, way, port| Row {
        name,
        way,
        port,
        columns: plan.rates.iter().map(|_| Column::default()).collect(),
        remarks: Remarks::default(),
    };
    let mut rows = vec![row("no proxy", None, bench.backend_port)];
    rows.extend(running.iter().map(|running| row(running.way.name(), Some(running.way), running.port)));
    for row in &rows {
        open_loop(row.port, plan.rates[0], 1, || GET, |_| true)?;
    }
    for round in 0..plan.rounds {
        for place in order(round, rows.len()) {
            rows[place].run(bench, plan)?;
        }
        eprintln!("delay: round {} of {}", round + 1, plan.rounds);
    }
    Ok(table(&rows, plan, missing))
}

impl Row {
    fn run(&mut self, bench: &Bench, plan: &Plan) -> Result<()> {
        for (rate, column) in plan.rates.iter().zip(&mut self.columns) {
            let quiet = Quiet::begin([bench.proxy_core, bench.load_core]);
            let outcome = open_loop(self.port, *rate, plan.secs, || GET, |status| status == 200)?;
            column.p50.push(outcome.percentile_us(0.5));
            column.p99.push(outcome.percentile_us(0.99));
            self.remarks.note(outcome.wrong > 0, "wrong or missing answers");
            self.remarks.note(quiet.others() > 0.1, "others used the cores");
        }
        Ok(())
    }
}

fn table(rows: &[Row], plan: &Plan, missing: Vec<String>) -> Table {
    let mut table = Table::new(&["rate", "way", "p50 µs", "added", "p99 µs", "added", "remarks"]);
    let plain = rows.iter().find(|row| row.way == Some(Way::Plain));
    for (place, rate) in plan.rates.iter().enumerate() {
        for row in rows {
            let added = |pick: fn(&Column) -> &Vec<f64>| {
                let Some(plain) = plain.filter(|_| row.way.is_some()) else { return "–".to_owned() };
                let pairs = pick(&row.columns[place]).iter().zip(pick(&plain.columns[place]));
                format!("{:+.0}", median(pairs.map(|(own, plain)| own - plain)))
            };
            let column = &row.columns[place];
            table.row([
                format!("{rate}/s"),
                row.name.to_owned(),
                format!("{:.0}", median(column.p50.iter().copied())),
                added(|column| &column.p50),
                format!("{:.0}", median(column.p99.iter().copied())),
                added(|column| &column.p99),
                row.remarks.render(plan.rounds * plan.rates.len()),
            ]);
        }
    }
    for line in missing {
        let mut cells: [String; 7] = std::array::from_fn(|_| "–".to_owned());
        cells[6] = line;
        table.row(cells);
    }
    table
}
