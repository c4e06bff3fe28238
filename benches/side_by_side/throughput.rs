//! Closed-loop load by wrk: requests per second and CPU time per request, in interleaved rounds.

use std::fs::{self, OpenOptions};
use std::time::Duration;

use crate::child::Result;
use crate::facts::{self, Core, Cpu};
use crate::options::Options;
use crate::peers::{Bench, Instance, Log, Mode, Proxy};
use crate::report::{Ratio, Remarks, Table, median};
use crate::rounds::order;
use crate::wrk::{Load, wrk};

/// One run of one proxy.
struct Run {
    per_second: f64,
    cpu_us: f64,
    user_share: f64,
    busy: f64,
}

struct Contestant {
    instance: Instance,
    runs: Vec<Run>,
    remarks: Remarks,
    memory_kib: u64,
}

pub fn measure(bench: &Bench, options: &Options) -> Result<Table> {
    let mut contestants = Vec::new();
    for (proxy, mode, log) in field(&options.modes) {
        let instance = bench.start(proxy, mode, log)?;
        contestants.push(Contestant {
            instance,
            runs: Vec::new(),
            remarks: Remarks::default(),
            memory_kib: 0,
        });
    }
    for contestant in &contestants {
        wrk(bench, contestant.instance.port, 1)?;
    }
    for round in 0..options.rounds {
        for place in order(round, contestants.len()) {
            contestants[place].run(bench, options.secs)?;
        }
        eprintln!("throughput: round {} of {}", round + 1, options.rounds);
    }
    for contestant in &mut contestants {
        contestant.memory_kib = facts::resident_kib(contestant.instance.child.pid());
    }
    Ok(table(&contestants))
}

/// The contestants: neighbours in the list are rivals. The log is written in the three main modes only.
fn field(modes: &[Mode]) -> Vec<(Proxy, Mode, Log)> {
    let mut field = Vec::new();
    for &mode in modes {
        field.push((Proxy::Nginx, mode, Log::Off));
        field.push((Proxy::Sluicegate, mode, Log::Off));
    }
    for &mode in modes.iter().filter(|mode| !matches!(mode, Mode::PassBare | Mode::RejectBare)) {
        field.push((Proxy::Nginx, mode, Log::File));
        field.push((Proxy::Nginx, mode, Log::Buffered));
        field.push((Proxy::Sluicegate, mode, Log::File));
    }
    field
}

impl Contestant {
    fn run(&mut self, bench: &Bench, secs: u64) -> Result<()> {
        let pid = self.instance.child.pid();
        let logs = self.instance.log != Log::Off;
        if logs {
            // Emptied before each run: a whole benchmark would fill gigabytes.
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&self.instance.log_file)?
                .set_len(0)?;
        }
        let (cpu, core, start) = (Cpu::of(pid), Core::of(bench.proxy_core), facts::now());
        let load = wrk(bench, self.instance.port, secs)?;
        let used = Cpu::of(pid).since(cpu);
        let took = facts::now() - start;
        let (busy, stolen) = Core::of(bench.proxy_core).shares(core);
        self.judge(&load, busy, used.total as f64 / took as f64);
        self.remarks.note(stolen > 0.05, "the host took over 5 % of the core");
        if logs {
            self.count_lines(load.requests)?;
        }
        self.runs.push(Run {
            per_second: load.per_second,
            cpu_us: used.total as f64 / 1e3 / load.requests.max(1) as f64,
            user_share: used.user_share(),
            busy,
        });
        Ok(())
    }

    fn judge(&mut self, load: &Load, busy: f64, own: f64) {
        let rejects = self.instance.mode.rejects();
        let mut note = |odd, text| self.remarks.note(odd, text);
        note(load.socket_errors, "socket errors");
        note(rejects && load.not_2xx * 10 < load.requests * 9, "fewer than 90 % refused");
        note(!rejects && load.not_2xx > 0, "answers other than 2xx");
        note(busy < 0.9, "core below 90 %: requests/s is a lower bound");
        note(busy - own > 0.1, "others used the core");
    }

    /// Checks the number of lines, because a log that loses lines would be cheap.
    fn count_lines(&mut self, requests: u64) -> Result<()> {
        std::thread::sleep(Duration::from_millis(300));
        // A writer that does not append leaves a hole of zeros in front, which does not affect the count.
        let lines = fs::read(&self.instance.log_file)?.iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.remarks.note(lines * 100 < requests * 98, "log lines missing");
        Ok(())
    }
}

fn table(contestants: &[Contestant]) -> Table {
    let mut table = Table::new(&[
        "mode",
        "access log",
        "proxy",
        "req/s",
        "× nginx",
        "CPU µs",
        "× nginx",
        "range",
        "user",
        "kernel",
        "core",
        "MiB",
        "remarks",
    ]);
    for contestant in contestants {
        let own = &contestant.instance;
        // The baseline of every row: nginx in its default setup.
        let plain = if own.log == Log::Off { Log::Off } else { Log::File };
        let yardstick = contestants.iter().find(|other| {
            let other = &other.instance;
            other.proxy == Proxy::Nginx && other.mode == own.mode && other.log == plain
        });
        let of = |pick: fn(&Run) -> f64| median(contestant.runs.iter().map(pick));
        let against = |pick: fn(&Run) -> f64| match yardstick {
            Some(other) => Ratio::of(contestant.runs.iter().map(pick), other.runs.iter().map(pick)),
            None => Ratio::of(std::iter::empty(), std::iter::empty()),
        };
        let (speed, cost) = (against(|run| run.per_second), against(|run| run.cpu_us));
        table.row([
            own.mode.name().to_owned(),
            own.log.name().to_owned(),
            own.proxy.name().to_owned(),
            format!("{:.0}", of(|run| run.per_second)),
            speed.middle(),
            format!("{:.2}", of(|run| run.cpu_us)),
            cost.middle(),
            cost.range(),
            format!("{:.2}", of(|run| run.cpu_us * run.user_share)),
            format!("{:.2}", of(|run| run.cpu_us * (1.0 - run.user_share))),
            format!("{:.0} %", of(|run| run.busy) * 100.0),
            format!("{:.1}", contestant.memory_kib as f64 / 1024.0),
            contestant.remarks.render(contestant.runs.len()),
        ]);
    }
    table
}
