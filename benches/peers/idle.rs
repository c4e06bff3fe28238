//! Memory at rest and beside connections that stand unused.

use crate::Plan;
use crate::bench::Bench;
use crate::child::Result;
use crate::facts::memory_kib;
use crate::peer::Program;
use crate::report::Table;
use crate::unused::{connect, lost};

/// Memory in KiB: as most programs show it, and with shared pages counted once.
struct Look {
    rss: u64,
    pss: u64,
}

/// The memory of one proxy.
pub struct Memory {
    pub at_rest_mib: f64,
    pub bytes_each: u64,
}

/// The numbers of connections. A gateway reserves two descriptors for each, of those that a process may have.
fn counts(bench: &Bench, plan: &Plan) -> (usize, usize) {
    let fit = usize::try_from(bench.open_files.saturating_sub(400) / 2).unwrap_or(usize::MAX);
    (plan.idle.0.min(fit), plan.idle.1.min(fit))
}

pub fn measure(bench: &Bench, plan: &Plan, programs: &[Program]) -> Result<(Table, Vec<Memory>)> {
    let (few, many) = counts(bench, plan);
    let titles = [
        "proxy".to_owned(),
        "RSS MiB at rest".to_owned(),
        "PSS".to_owned(),
        format!("RSS with {few}"),
        "PSS".to_owned(),
        format!("RSS with {many}"),
        "PSS".to_owned(),
        "bytes each".to_owned(),
        "remarks".to_owned(),
    ];
    let mut table = Table::new(&titles.each_ref().map(String::as_str));
    let mut all = Vec::new();
    for program in programs {
        let instance = program.start(bench, &[])?;
        let look = |wait| {
            std::thread::sleep(wait);
            let pid = instance.child.pid();
            Look { rss: memory_kib(pid, "Rss:"), pss: memory_kib(pid, "Pss:") }
        };
        // Fixed costs that do not depend on the connections.
        drop(connect(instance.plain_port(), 64)?);
        let at_rest = look(plan.settle);
        let mut open = connect(instance.plain_port(), few)?;
        let with_few = look(plan.settle);
        open.extend(connect(instance.plain_port(), many - few)?);
        let with_many = look(plan.settle * 2);
        let lost = lost(open);
        let bytes_each = with_many.pss.saturating_sub(at_rest.pss) * 1024 / many.max(1) as u64;
        let mib = |kib: u64| format!("{:.1}", kib as f64 / 1024.0);
        table.row([
            program.name.clone(),
            mib(at_rest.rss),
            mib(at_rest.pss),
            mib(with_few.rss),
            mib(with_few.pss),
            mib(with_many.rss),
            mib(with_many.pss),
            bytes_each.to_string(),
            if lost > 0 { format!("{lost} connections were closed") } else { String::new() },
        ]);
        all.push(Memory { at_rest_mib: at_rest.pss as f64 / 1024.0, bytes_each });
        eprintln!("idle: {}", program.name);
    }
    Ok((table, all))
}
