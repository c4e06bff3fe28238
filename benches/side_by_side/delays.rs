//! Latency under a fixed rate, in interleaved rounds.

use crate::child::Result;
use crate::open_loop::open_loop;
use crate::report::{Ratio, Remarks, Table, median};
use crate::rounds::{Quiet, order};

/// One proxy in one mode.
pub struct Row {
    mode: &'static str,
    proxy: String,
    port: u16,
    request: String,
    expected: fn(u16) -> bool,
    p50: Vec<f64>,
    p99: Vec<f64>,
    remarks: Remarks,
}

impl Row {
    pub fn new(
        mode: &'static str,
        proxy: &str,
        port: u16,
        request: impl Into<String>,
        expected: fn(u16) -> bool,
    ) -> Row {
        let (proxy, request) = (proxy.to_owned(), request.into());
        Row { mode, proxy, port, request, expected, p50: vec![], p99: vec![], remarks: Remarks::default() }
    }

    /// Whether the row is that of a proxy in a mode.
    pub fn is(&self, mode: &str, proxy: &str) -> bool {
        self.mode == mode && self.proxy == proxy
    }

    /// The medians of p50 and p99 in µs.
    pub fn middles(&self) -> (f64, f64) {
        (median(self.p50.iter().copied()), median(self.p99.iter().copied()))
    }
}

/// How much is measured, and on which cores.
pub struct Extent {
    pub rate: u64,
    pub rounds: usize,
    pub secs: u64,
    pub cores: [usize; 2],
}

/// Measures all rows in every round. Round 0 warms up and is not counted.
pub fn measure(rows: &mut [Row], extent: &Extent) -> Result<()> {
    for round in 0..=extent.rounds {
        let secs = if round == 0 { 1 } else { extent.secs };
        for place in order(round, rows.len()) {
            let row = &mut rows[place];
            let quiet = Quiet::begin(extent.cores);
            let outcome = open_loop(row.port, extent.rate, secs, || row.request.as_str(), row.expected)?;
            if round > 0 {
                row.p50.push(outcome.percentile_us(0.5));
                row.p99.push(outcome.percentile_us(0.99));
                row.remarks.note(outcome.wrong > 0, "wrong or missing answers");
                row.remarks.note(quiet.others() > 0.1, "others used the cores");
            }
        }
        eprintln!("latency: round {round} of {}", extent.rounds);
    }
    Ok(())
}

/// The table of all rows, beside the proxy named `nginx`.
pub fn table(rows: &[Row], nginx: &str) -> Table {
    let mut table =
        Table::new(&["mode", "proxy", "p50 µs", "× nginx", "p99 µs", "× nginx", "range", "remarks"]);
    for row in rows {
        let other = rows.iter().find(|other| other.is(row.mode, nginx));
        let against = |pick: fn(&Row) -> &Vec<f64>| {
            let other = other.map(pick).into_iter().flatten().copied();
            Ratio::of(pick(row).iter().copied(), other)
        };
        let (middle, tail) = (against(|row| &row.p50), against(|row| &row.p99));
        let (p50, p99) = row.middles();
        table.row([
            row.mode.to_owned(),
            row.proxy.clone(),
            format!("{p50:.0}"),
            middle.middle(),
            format!("{p99:.0}"),
            tail.middle(),
            tail.range(),
            row.remarks.render(row.p99.len()),
        ]);
    }
    table
}
