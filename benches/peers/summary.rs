//! The table of all proxies: one row each.

use crate::contest::Contestant;
use crate::delays::Row;
use crate::idle::Memory;
use crate::kinds::Kind;
use crate::peer::Program;
use crate::report::Table;

/// The figures of a run; a part that was not measured is empty.
#[derive(Default)]
pub struct Figures {
    pub load: Vec<Contestant>,
    pub latency: Vec<Row>,
    pub memory: Vec<Memory>,
}

const NONE: &str = "–";

pub fn table(figures: &Figures, programs: &[Program], kinds: &[Kind]) -> Table {
    let titles: Vec<&str> = ["proxy"]
        .into_iter()
        .chain(kinds.iter().map(|kind| kind.title()))
        .chain(["p50 µs", "p99 µs", "MiB", "bytes each"])
        .collect();
    let mut table = Table::new(&titles);
    for (place, program) in programs.iter().enumerate() {
        let mut cells = vec![program.name.clone()];
        for kind in kinds {
            let own = figures.load.iter().find(|one| one.place == place && one.kind == *kind);
            cells.push(own.map_or(NONE.to_owned(), |one| one.against(&figures.load, 0).middle()));
        }
        let row = figures.latency.iter().find(|row| row.is(Kind::Plain.name(), &program.name));
        let (p50, p99) = row.map_or((NONE.to_owned(), NONE.to_owned()), |row| {
            let (p50, p99) = row.middles();
            (format!("{p50:.0}"), format!("{p99:.0}"))
        });
        let (at_rest, each) =
            figures.memory.get(place).map_or((NONE.to_owned(), NONE.to_owned()), |memory| {
                (format!("{:.1}", memory.at_rest_mib), memory.bytes_each.to_string())
            });
        cells.extend([p50, p99, at_rest, each]);
        table.row(cells);
    }
    table
}
