//! The load on all proxies: CPU time per request beside the first one.

use crate::Plan;
use crate::bench::Bench;
use crate::child::Result;
use crate::contest::{Contestant, contest};
use crate::kinds::Kind;
use crate::peer::Program;
use crate::report::Table;

pub fn measure(bench: &Bench, plan: &Plan, programs: &[Program]) -> Result<Vec<Contestant>> {
    let started = programs.iter().map(|program| program.start(bench, &plan.kinds));
    let started = started.collect::<Result<Vec<_>>>()?;
    let main: Vec<&str> =
        programs.iter().filter(|program| program.is_main).map(|program| program.name.as_str()).collect();
    contest(bench, &started, &plan.kinds, plan.rounds, |instance, kind| {
        let is_main_kind = matches!(kind, Kind::Plain | Kind::Passing | Kind::Rejecting);
        // The closest rivals get twice the time, as their differences are the smallest.
        let is_main = is_main_kind && main.contains(&instance.name.as_str());
        if is_main && !plan.quick { plan.secs * 2 } else { plan.secs }
    })
}

pub fn table(contestants: &[Contestant], programs: &[Program]) -> Table {
    let mut table = Table::new(&[
        "kind", "proxy", "req/s", "CPU µs", "× nginx", "range", "user", "kernel", "core", "remarks",
    ]);
    for contestant in contestants {
        let ratio = contestant.against(contestants, 0);
        table.row([
            contestant.kind.name().to_owned(),
            programs[contestant.place].name.clone(),
            format!("{:.0}", contestant.middle(|run| run.per_second)),
            format!("{:.2}", contestant.middle(|run| run.cpu_us)),
            ratio.middle(),
            ratio.range(),
            format!("{:.2}", contestant.middle(|run| run.cpu_us * run.user_share)),
            format!("{:.2}", contestant.middle(|run| run.cpu_us * (1.0 - run.user_share))),
            format!("{:.0} %", 100.0 * contestant.middle(|run| run.busy)),
            contestant.remarks.render(contestant.runs.len()),
        ]);
    }
    table
}
