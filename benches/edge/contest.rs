//! Closed-loop load of every kind: CPU time per request in interleaved rounds.

use crate::bench::Bench;
use crate::child::Result;
use crate::facts::{self, Core, Cpu};
use crate::kinds::Kind;
use crate::report::{Ratio, Remarks, median};
use crate::rivals::Instance;
use crate::rounds::order;

/// One proxy under one kind of load.
pub struct Contestant {
    /// The place of the proxy among those that were started.
    pub place: usize,
    pub kind: Kind,
    pub runs: Vec<Run>,
    pub remarks: Remarks,
}

/// One run of one proxy.
pub struct Run {
    pub cpu_us: f64,
    pub user_share: f64,
    pub per_second: f64,
    /// The share of the time in which the core was busy.
    pub busy: f64,
}

/// Measures every proxy in `started` with those of `kinds` that it serves, each for `secs` of them in every round.
pub fn contest(
    bench: &Bench,
    started: &[Instance],
    kinds: &[Kind],
    rounds: usize,
    secs: impl Fn(&Instance, Kind) -> u64,
) -> Result<Vec<Contestant>> {
    let mut contestants = Vec::new();
    for &kind in kinds {
        for place in (0..started.len()).filter(|&place| started[place].serves(kind)) {
            contestants.push(Contestant { place, kind, runs: Vec::new(), remarks: Remarks::default() });
        }
    }
    for round in 0..rounds {
        for place in order(round, contestants.len()) {
            let contestant = &mut contestants[place];
            let instance = &started[contestant.place];
            contestant.run(bench, instance, secs(instance, contestant.kind))?;
        }
        eprintln!("load: round {} of {rounds}", round + 1);
    }
    Ok(contestants)
}

impl Contestant {
    fn run(&mut self, bench: &Bench, instance: &Instance, secs: u64) -> Result<()> {
        let pid = instance.child.pid();
        let (cpu, core, start) = (Cpu::of(pid), Core::of(bench.proxy_core), facts::now());
        let load = self.kind.load(bench, instance.port(self.kind), secs)?;
        let used = Cpu::of(pid).since(cpu);
        let took = (facts::now() - start) as f64;
        let (busy, stolen) = Core::of(bench.proxy_core).shares(core);
        let total = used.total as f64;
        self.remarks.note(load.failed, "failed requests");
        self.remarks.note(busy - total / took > 0.1, "others used the core");
        self.remarks.note(stolen > 0.05, "the host took over 5 % of the core");
        self.runs.push(Run {
            cpu_us: total / 1e3 / load.requests.max(1) as f64,
            user_share: used.user_share(),
            per_second: load.per_second,
            busy,
        });
        Ok(())
    }

    /// The median of one figure over the runs.
    pub fn middle(&self, pick: fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(pick))
    }

    /// CPU time per request as a multiple of that of the proxy at `place` under the same load.
    pub fn against(&self, all: &[Contestant], place: usize) -> Ratio {
        let other = all.iter().find(|other| other.kind == self.kind && other.place == place);
        let cpu = |run: &Run| run.cpu_us;
        Ratio::of(self.runs.iter().map(cpu), other.iter().flat_map(|other| &other.runs).map(cpu))
    }
}
