//! Closed-loop load: processor time per request of the proxy and of Redis, and requests per second.

use crate::Plan;
use crate::child::Result;
use crate::facts::{self, Core, Cpu};
use crate::peers::Bench;
use crate::report::{Ratio, Remarks, Table, median};
use crate::rounds::order;
use crate::store::Redis;
use crate::ways::{Fate, Running, Way};
use crate::wrk::wrk;

/// One run of one setup, per request.
struct Run {
    per_second: f64,
    proxy_us: f64,
    redis_us: f64,
    calls: f64,
    busy: f64,
}

struct Contestant {
    running: Running,
    runs: Vec<Run>,
    remarks: Remarks,
}

/// Every setup that starts, in an order in which neighbours are rivals; for the others the reason.
pub fn start_all(bench: &Bench, redis: &mut Redis, fate: Fate) -> (Vec<Running>, Vec<String>) {
    let ways = Way::ALL.into_iter().filter(|way| way.has(fate));
    let (mut running, mut missing) = (Vec::new(), Vec::new());
    for way in ways {
        match way.start(fate, bench, redis) {
            Ok(started) => running.push(started),
            Err(error) => missing.push(format!("not measured: {error}")),
        }
    }
    missing.iter().for_each(|line| eprintln!("{line}"));
    (running, missing)
}

pub fn measure(bench: &Bench, plan: &Plan) -> Result<Table> {
    let mut redis = Redis::start(bench.load_core, &bench.folder.join("load"))?;
    let (mut contestants, mut missing) = (Vec::new(), Vec::new());
    for fate in [Fate::Pass, Fate::Refuse] {
        let (running, without) = start_all(bench, &mut redis, fate);
        let fresh = |running| Contestant { running, runs: Vec::new(), remarks: Remarks::default() };
        contestants.extend(running.into_iter().map(fresh));
        missing.extend(without);
    }
    for contestant in &contestants {
        wrk(bench, contestant.running.port, 1)?;
    }
    for round in 0..plan.rounds {
        for place in order(round, contestants.len()) {
            contestants[place].run(bench, plan.secs, &mut redis)?;
        }
        eprintln!("load: round {} of {}", round + 1, plan.rounds);
    }
    Ok(table(&contestants, missing))
}

impl Contestant {
    fn run(&mut self, bench: &Bench, secs: u64, redis: &mut Redis) -> Result<()> {
        let pid = self.running.child.pid();
        let (work, cpu, core, start) =
            (redis.work()?, Cpu::of(pid), Core::of(bench.proxy_core), facts::now());
        let load = wrk(bench, self.running.port, secs)?;
        let used = Cpu::of(pid).since(cpu).total as f64;
        let took = (facts::now() - start) as f64;
        let (busy, stolen) = Core::of(bench.proxy_core).shares(core);
        let work = redis.work()?.since(work);
        let requests = load.requests.max(1) as f64;
        let refused = load.not_2xx as f64 / requests;
        // One per second, the burst, and one of the current second.
        let is_beyond = load.requests - load.not_2xx > secs + 2;
        let mut note = |odd, text| self.remarks.note(odd, text);
        note(load.socket_errors, "socket errors");
        note(self.running.fate == Fate::Pass && load.not_2xx > 0, "answers other than 2xx");
        note(self.running.fate == Fate::Refuse && refused < 0.9, "fewer than 90 % refused");
        note(self.running.fate == Fate::Refuse && is_beyond, "more passed than the limit allows");
        note(work.connections * 20 > load.requests, "connections to redis were not kept");
        note(busy < 0.9, "core below 90 %: requests/s is a lower bound");
        note(busy - used / took > 0.1, "others used the core");
        note(stolen > 0.05, "the host took over 5 % of the core");
        self.runs.push(Run {
            per_second: load.per_second,
            proxy_us: used / 1e3 / requests,
            redis_us: work.cpu as f64 / 1e3 / requests,
            calls: work.calls as f64 / requests,
            busy,
        });
        Ok(())
    }
}

fn table(contestants: &[Contestant], missing: Vec<String>) -> Table {
    let mut table = Table::new(&[
        "requests",
        "way",
        "proxy CPU µs",
        "× nginx + Lua",
        "range",
        "redis CPU µs",
        "both",
        "× nginx + Lua",
        "range",
        "calls",
        "req/s",
        "core",
        "remarks",
    ]);
    for contestant in contestants {
        let own = &contestant.running;
        let rival =
            contestants.iter().find(|other| other.running.way == Way::Lua && other.running.fate == own.fate);
        let of = |pick: fn(&Run) -> f64| median(contestant.runs.iter().map(pick));
        let against = |pick: fn(&Run) -> f64| {
            let other = rival.map(|rival| rival.runs.iter().map(pick)).into_iter().flatten();
            Ratio::of(contestant.runs.iter().map(pick), other)
        };
        let (proxy, both) = (against(|run| run.proxy_us), against(|run| run.proxy_us + run.redis_us));
        table.row([
            own.fate.name().to_owned(),
            own.way.name().to_owned(),
            format!("{:.1}", of(|run| run.proxy_us)),
            proxy.middle(),
            proxy.range(),
            format!("{:.1}", of(|run| run.redis_us)),
            format!("{:.1}", of(|run| run.proxy_us + run.redis_us)),
            both.middle(),
            both.range(),
            format!("{:.3}", of(|run| run.calls)),
            format!("{:.0}", of(|run| run.per_second)),
            format!("{:.0} %", of(|run| run.busy) * 100.0),
            contestant.remarks.render(contestant.runs.len()),
        ]);
    }
    for line in missing {
        let mut cells: [String; 13] = std::array::from_fn(|_| "–".to_owned());
        cells[12] = line;
        table.row(cells);
    }
    table
}
