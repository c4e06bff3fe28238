//! Closed-loop load of every kind: CPU time per request in interleaved rounds.

use crate::child::Result;
use crate::facts::{self, Core, Cpu};
use crate::kinds::Kind;
use crate::report::{Ratio, Remarks, Table, median};
use crate::rivals::{Instance, Rival};
use crate::rounds::order;
use crate::{Bench, Plan};

/// One proxy under one kind of load.
struct Contestant {
    place: usize,
    kind: Kind,
    /// CPU µs per request, and requests per second.
    runs: Vec<(f64, f64)>,
    busy: Vec<f64>,
    remarks: Remarks,
}

pub fn measure(bench: &Bench, plan: &Plan) -> Result<Table> {
    let started: Result<Vec<_>> =
        Rival::ALL.into_iter().map(|rival| Instance::start(bench, rival, &plan.kinds)).collect();
    let started = started?;
    let mut contestants = Vec::new();
    for &kind in &plan.kinds {
        for place in 0..started.len() {
            let (runs, busy) = (Vec::new(), Vec::new());
            contestants.push(Contestant { place, kind, runs, busy, remarks: Remarks::default() });
        }
    }
    for contestant in &contestants {
        contestant.kind.load(bench, started[contestant.place].port(contestant.kind), 1)?;
    }
    for round in 0..plan.rounds {
        for place in order(round, contestants.len()) {
            contestants[place].run(bench, &started, plan.secs)?;
        }
        eprintln!("load: round {} of {}", round + 1, plan.rounds);
    }
    Ok(table(&contestants, &started))
}

impl Contestant {
    fn run(&mut self, bench: &Bench, started: &[Instance], secs: u64) -> Result<()> {
        let instance = &started[self.place];
        let pid = instance.child.pid();
        let (cpu, core, start) = (Cpu::of(pid), Core::of(bench.proxy_core), facts::now());
        let load = self.kind.load(bench, instance.port(self.kind), secs)?;
        let used = Cpu::of(pid).since(cpu).total as f64;
        let took = (facts::now() - start) as f64;
        let (busy, stolen) = Core::of(bench.proxy_core).shares(core);
        self.remarks.note(load.failed, "failed requests");
        self.remarks.note(busy - used / took > 0.1, "others used the core");
        self.remarks.note(stolen > 0.05, "the host took over 5 % of the core");
        self.runs.push((used / 1e3 / load.requests.max(1) as f64, load.per_second));
        self.busy.push(busy);
        Ok(())
    }
}

fn table(contestants: &[Contestant], started: &[Instance]) -> Table {
    let mut table =
        Table::new(&["kind", "proxy", "req/s", "CPU µs", "× nginx", "range", "target", "core", "remarks"]);
    for contestant in contestants {
        let rival = started[contestant.place].rival;
        let nginx = contestants
            .iter()
            .find(|other| other.kind == contestant.kind && started[other.place].rival == Rival::Nginx);
        let cpu = |one: &Contestant| one.runs.iter().map(|run| run.0).collect::<Vec<_>>();
        let others = nginx.map(cpu).unwrap_or_default();
        let ratio = Ratio::of(cpu(contestant).into_iter(), others.into_iter());
        let own = rival == Rival::Sluicegate;
        table.row([
            contestant.kind.name().to_owned(),
            rival.name().to_owned(),
            format!("{:.0}", median(contestant.runs.iter().map(|run| run.1))),
            format!("{:.2}", median(contestant.runs.iter().map(|run| run.0))),
            ratio.middle(),
            ratio.range(),
            if own { contestant.kind.target().to_owned() } else { String::new() },
            format!("{:.0} %", 100.0 * median(contestant.busy.iter().copied())),
            contestant.remarks.render(contestant.runs.len()),
        ]);
    }
    table
}
