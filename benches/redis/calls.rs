//! The cost of decisions on the server: processor time, and the most decisions per second.

use std::time::Duration;

use crate::Plan;
use crate::cases::{Case, of_time};
use crate::child::Result;
use crate::facts;
use crate::peers::Bench;
use crate::report::{Remarks, Table, median};
use crate::rounds::{Quiet, order};
use crate::store::{Line, Redis, Work};

/// Calls in flight on each connection.
const DEPTHS: [usize; 3] = [1, 16, 64];
const CONNECTIONS: usize = 4;
const CLIENTS: u64 = 1000;

/// The cost per decision in one run.
struct Run {
    script_us: f64,
    cpu_us: f64,
    per_second: f64,
}

struct Row {
    case: Case,
    decisions: Vec<Vec<u8>>,
    /// Results by depth.
    runs: [Vec<Run>; DEPTHS.len()],
    remarks: Remarks,
}

pub fn measure(bench: &Bench, plan: &Plan) -> Result<Table> {
    let mut redis = Redis::start(bench.proxy_core, &bench.folder.join("calls"))?;
    let mut rows = Vec::new();
    for case in of_time() {
        redis.load(case.code())?;
        let decisions = case.decisions(CLIENTS)?;
        rows.push(Row { case, decisions, runs: Default::default(), remarks: Remarks::default() });
    }
    for round in 0..plan.rounds {
        for place in order(round, rows.len()) {
            redis.clear()?;
            let row = &mut rows[place];
            fill(redis.port, &row.case, &row.decisions)?;
            for (depth, runs) in DEPTHS.into_iter().zip(&mut row.runs) {
                let quiet = Quiet::begin([bench.proxy_core, bench.load_core]);
                let run = run(&mut redis, &row.case, &row.decisions, depth, plan.call_run)?;
                row.remarks.note(quiet.others() > 0.1, "others used the cores");
                runs.push(run);
            }
        }
        eprintln!("calls: round {} of {}", round + 1, plan.rounds);
    }
    Ok(table(&rows))
}

/// Requests each decision once.
pub fn fill(port: u16, case: &Case, decisions: &[Vec<u8>]) -> Result<()> {
    let mut line = Line::connect(port)?;
    for batch in decisions.chunks(64) {
        line.send(&batch.concat())?;
        for _ in 0..batch.len() * case.calls() {
            line.answer()?;
        }
    }
    Ok(())
}

fn run(redis: &mut Redis, case: &Case, decisions: &[Vec<u8>], depth: usize, time: Duration) -> Result<Run> {
    let batches: Vec<Vec<u8>> = decisions.chunks_exact(depth).map(<[Vec<u8>]>::concat).collect();
    let mut batches = batches.iter().cycle();
    let mut next = || batches.next().ok_or("no decisions");
    let mut lines = (0..CONNECTIONS).map(|_| Line::connect(redis.port)).collect::<Result<Vec<Line>>>()?;
    let before = redis.work()?;
    let start = facts::now();
    let end = start + u64::try_from(time.as_nanos())?;
    for line in &mut lines {
        line.send(next()?)?;
    }
    let (mut made, mut is_over) = (0, false);
    while !is_over {
        is_over = facts::now() >= end;
        for line in &mut lines {
            for _ in 0..depth * case.calls() {
                let answer = line.answer()?;
                if !case.is_sound(answer) {
                    return Err(format!("{}: {:?}", case.name, String::from_utf8_lossy(answer)).into());
                }
            }
            made += depth;
            if !is_over {
                line.send(next()?)?;
            }
        }
    }
    let took = (facts::now() - start) as f64;
    let Work { calls, script_us, cpu, .. } = redis.work()?.since(before);
    if calls != (made * case.calls()) as u64 {
        return Err(format!("{}: {calls} calls counted, {made} decisions made", case.name).into());
    }
    let made = made as f64;
    Ok(Run {
        script_us: script_us as f64 / made,
        cpu_us: cpu as f64 / 1e3 / made,
        per_second: made * 1e9 / took,
    })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "decision",
        "script µs, least",
        "CPU µs: 1 under way",
        "16",
        "64",
        "decisions/s, most",
        "per second of CPU",
        "remarks",
    ]);
    for row in rows {
        let last = &row.runs[DEPTHS.len() - 1];
        let least = |pick: fn(&Run) -> f64| last.iter().map(pick).fold(f64::INFINITY, f64::min);
        let cpu = |depth: usize| median(row.runs[depth].iter().map(|run| run.cpu_us));
        table.row([
            row.case.name.to_owned(),
            format!("{:.1}", least(|run| run.script_us)),
            format!("{:.1}", cpu(0)),
            format!("{:.1}", cpu(1)),
            format!("{:.1}", cpu(2)),
            format!("{:.0}", last.iter().map(|run| run.per_second).fold(0.0, f64::max)),
            format!("{:.0}", 1e6 / cpu(2)),
            row.remarks.render(row.runs.iter().map(Vec::len).sum()),
        ]);
    }
    table
}
