//! Closed-loop load: calls per second and CPU time per call, in interleaved rounds.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::child::{self, Result};
use crate::client;
use crate::facts::{self, Core, Cpu};
use crate::report::{Ratio, Remarks, Table, median};
use crate::rivals::{Instance, Rival};
use crate::rounds::order;
use crate::{Bench, Judges, Plan, Protocol, grpc};

/// One server under one kind of load.
struct Contestant {
    place: usize,
    protocol: Protocol,
    judges: Judges,
    /// CPU µs per call, and calls per second.
    runs: Vec<(f64, f64)>,
    busy: Vec<f64>,
    remarks: Remarks,
}

/// What a load generator says.
struct Load {
    calls: u64,
    /// Of HTTP/1, where the status tells.
    rejected: Option<u64>,
    failed: bool,
}

/// Reads answers before the load, whose generators see nothing but statuses: gRPC's is always 200.
pub fn verify(bench: &Bench, instance: &Instance) -> Result<()> {
    for &protocol in &bench.protocols {
        let (port, name) = (instance.port(protocol), instance.rival.name());
        match protocol {
            Protocol::Grpc => {
                let never = grpc::ask(port, Judges::Admits.limit(), 100)?;
                // More calls than the limit takes in a second or two.
                let (_, rejected) = grpc::ask(port, Judges::Rejects.limit(), 10_000)?;
                if never != (100, 0) || rejected == 0 {
                    return Err(format!("{name}: admits {never:?}, rejects {rejected} by gRPC").into());
                }
            }
            Protocol::Check => {
                let (status, text) = client::probe(port, &http_request(instance.rival, Judges::Admits))?;
                if status != 200 {
                    return Err(format!("{name}: {text}").into());
                }
            }
        }
    }
    Ok(())
}

/// A whole call over HTTP/1.
fn http_request(rival: Rival, judges: Judges) -> String {
    let (path, body) = rival.http_call(judges);
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

pub fn measure(bench: &Bench, plan: &Plan, started: &[Instance]) -> Result<Table> {
    let mut contestants = Vec::new();
    for &protocol in &bench.protocols {
        for judges in Judges::ALL {
            for place in 0..started.len() {
                let (runs, busy) = (Vec::new(), Vec::new());
                contestants.push(Contestant {
                    place,
                    protocol,
                    judges,
                    runs,
                    busy,
                    remarks: Remarks::default(),
                });
            }
        }
    }
    for one in &contestants {
        one.load(bench, &started[one.place], 1)?;
    }
    for round in 0..plan.rounds {
        for place in order(round, contestants.len()) {
            contestants[place].run(bench, started, plan.secs)?;
        }
        eprintln!("calls: round {} of {}", round + 1, plan.rounds);
    }
    Ok(table(&contestants, started))
}

impl Contestant {
    fn run(&mut self, bench: &Bench, started: &[Instance], secs: u64) -> Result<()> {
        let instance = &started[self.place];
        let pid = instance.child.pid();
        let (cpu, core, start) = (Cpu::of(pid), Core::of(bench.server_core), facts::now());
        let load = self.load(bench, instance, secs)?;
        let used = Cpu::of(pid).since(cpu).total as f64;
        let took = (facts::now() - start) as f64;
        let (busy, stolen) = Core::of(bench.server_core).shares(core);
        let rejects = self.judges == Judges::Rejects;
        let most_rejected = load.rejected.is_none_or(|rejected| rejected * 10 > load.calls * 8);
        let some_rejected = load.rejected.is_some_and(|rejected| rejected > 0);
        self.remarks.note(load.failed, "failed calls");
        self.remarks.note(if rejects { !most_rejected } else { some_rejected }, "wrong answers");
        self.remarks.note(busy - used / took > 0.1, "others used the core");
        self.remarks.note(stolen > 0.05, "the host took over 5 % of the core");
        self.runs.push((used / 1e3 / load.calls.max(1) as f64, load.calls as f64 * 1e9 / took));
        self.busy.push(used / took);
        Ok(())
    }

    fn load(&self, bench: &Bench, instance: &Instance, secs: u64) -> Result<Load> {
        let port = instance.port(self.protocol);
        match self.protocol {
            Protocol::Grpc => h2load(bench, instance, self.judges, secs),
            Protocol::Check => wrk(bench, instance.rival, port, self.judges, secs),
        }
    }
}

/// Calls of gRPC on one connection with 64 streams.
fn h2load(bench: &Bench, instance: &Instance, judges: Judges, secs: u64) -> Result<Load> {
    let text = run_h2load(bench, instance, Protocol::Grpc, judges, 1, &["-D", &secs.to_string()])?;
    let counts = text.lines().find_map(|line| line.strip_prefix("requests: ")).unwrap_or_default();
    let count = |what: &str| {
        let part = counts.split(", ").find_map(|part| part.strip_suffix(what))?;
        part.trim().parse::<u64>().ok()
    };
    let (Some(done), Some(failed), Some(wrong)) = (count(" done"), count(" failed"), count(" errored"))
    else {
        return Err(format!("h2load: {text}").into());
    };
    Ok(Load { calls: done, rejected: None, failed: failed + wrong > 0 })
}

/// Runs h2load on `connections`, and returns its output. `words`: how long, and how fast.
pub fn run_h2load(
    bench: &Bench,
    instance: &Instance,
    protocol: Protocol,
    judges: Judges,
    connections: u64,
    words: &[&str],
) -> Result<String> {
    let (path, data) = match protocol {
        Protocol::Grpc => (grpc::PATH, grpc::call(judges.limit())),
        Protocol::Check => {
            let (path, body) = instance.rival.http_call(judges);
            (path, body.into_bytes())
        }
    };
    let body = bench.folder.join("body");
    fs::write(&body, data)?;
    let body = body.display().to_string();
    let (url, connections) =
        (format!("http://127.0.0.1:{}{path}", instance.port(protocol)), format!("-c{connections}"));
    let mut argv = vec!["h2load", "-d", &body, &connections];
    argv.extend(match protocol {
        Protocol::Grpc => &["-m64", "-H", "content-type: application/grpc", "-H", "te: trailers"][..],
        Protocol::Check => &["--h1", "-H", "content-type: application/json"],
    });
    argv.extend(words);
    argv.push(&url);
    let output = child::run(bench.load_core, &argv, Duration::from_secs(90))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Calls over 64 connections that are kept.
fn wrk(bench: &Bench, rival: Rival, port: u16, judges: Judges, secs: u64) -> Result<Load> {
    let (path, body) = rival.http_call(judges);
    let script = wrk_script(bench, rival, judges, &body)?.display().to_string();
    let (duration, url) = (format!("-d{secs}s"), format!("http://127.0.0.1:{port}{path}"));
    let argv = ["wrk", "-t1", "-c64", &duration, "-s", &script, &url];
    let output = child::run(bench.load_core, &argv, Duration::from_secs(secs + 20))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let behind = |mark: &str| text.lines().find_map(|line| line.trim().strip_prefix(mark)).map(str::trim);
    let calls = text.lines().find_map(|line| line.trim().split_once(" requests in "));
    let calls = calls.and_then(|(count, _)| count.parse().ok()).ok_or_else(|| format!("wrk: {text}"))?;
    let rejected = behind("Non-2xx or 3xx responses:").map_or(Ok(0), str::parse)?;
    Ok(Load { calls, rejected: Some(rejected), failed: behind("Socket errors:").is_some() })
}

fn wrk_script(bench: &Bench, rival: Rival, judges: Judges, body: &str) -> Result<PathBuf> {
    let file = bench.folder.join(format!("{}-{}.lua", rival.name(), judges.limit()));
    let text = format!(
        "wrk.method = \"POST\"\nwrk.body = '{body}'\nwrk.headers[\"Content-Type\"] = \"application/json\"\n"
    );
    fs::write(&file, text)?;
    Ok(file)
}

fn table(contestants: &[Contestant], started: &[Instance]) -> Table {
    let titles =
        ["protocol", "limit", "server", "calls/s", "CPU µs", "× limitador", "range", "core", "remarks"];
    let mut table = Table::new(&titles);
    for one in contestants {
        let rival = contestants.iter().find(|other| {
            let is_rival = started[other.place].rival == Rival::Limitador;
            is_rival && other.protocol == one.protocol && other.judges == one.judges
        });
        let cpu = |one: &Contestant| one.runs.iter().map(|run| run.0).collect::<Vec<_>>();
        let ratio = Ratio::of(cpu(one).into_iter(), rival.map(cpu).unwrap_or_default().into_iter());
        table.row([
            one.protocol.name().to_owned(),
            one.judges.name().to_owned(),
            started[one.place].rival.name().to_owned(),
            format!("{:.0}", median(one.runs.iter().map(|run| run.1))),
            format!("{:.2}", median(one.runs.iter().map(|run| run.0))),
            ratio.middle(),
            ratio.range(),
            format!("{:.0} %", 100.0 * median(one.busy.iter().copied())),
            one.remarks.render(one.runs.len()),
        ]);
    }
    table
}
