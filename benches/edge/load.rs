//! The table of all kinds of load.

use crate::Plan;
use crate::bench::Bench;
use crate::child::Result;
use crate::contest::{Contestant, contest};
use crate::report::Table;
use crate::rivals::{Instance, Rival};

pub fn measure(bench: &Bench, plan: &Plan) -> Result<Table> {
    let started: Result<Vec<_>> =
        Rival::ALL.into_iter().map(|rival| rival.start(bench, &plan.kinds)).collect();
    let started = started?;
    // The first run fills the pools and is not counted.
    for kind in &plan.kinds {
        for instance in &started {
            kind.load(bench, instance.port(*kind), 1)?;
        }
    }
    let contestants = contest(bench, &started, &plan.kinds, plan.rounds, |_, _| plan.secs)?;
    Ok(table(&contestants, &started))
}

fn table(contestants: &[Contestant], started: &[Instance]) -> Table {
    let mut table =
        Table::new(&["kind", "proxy", "req/s", "CPU µs", "× nginx", "range", "target", "core", "remarks"]);
    let place_of = |rival: Rival| started.iter().position(|one| one.name == rival.name()).unwrap_or_default();
    let (nginx, own) = (place_of(Rival::Nginx), place_of(Rival::Sluicegate));
    for contestant in contestants {
        let ratio = contestant.against(contestants, nginx);
        table.row([
            contestant.kind.name().to_owned(),
            started[contestant.place].name.clone(),
            format!("{:.0}", contestant.middle(|run| run.per_second)),
            format!("{:.2}", contestant.middle(|run| run.cpu_us)),
            ratio.middle(),
            ratio.range(),
            if contestant.place == own { contestant.kind.target().to_owned() } else { String::new() },
            format!("{:.0} %", 100.0 * contestant.middle(|run| run.busy)),
            contestant.remarks.render(contestant.runs.len()),
        ]);
    }
    table
}
