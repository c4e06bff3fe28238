//! Memory of connections that are idle after one request.

use std::time::Duration;

use crate::Plan;
use crate::bench::Bench;
use crate::child::Result;
use crate::facts;
use crate::report::Table;
use crate::rivals::Rival;
use crate::unused::{connect, lost};

/// The times at which memory is read, from the last request.
const LOOKS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];

pub fn measure(bench: &Bench, plan: &Plan) -> Result<Table> {
    let mut table =
        Table::new(&["proxy", "MiB at first", "bytes each after 2 s", "after 15 s", "target", "remarks"]);
    for rival in Rival::ALL {
        let instance = rival.start(bench, &[])?;
        // Fixed costs that do not depend on the connections.
        drop(connect(instance.plain_port(), 64)?);
        std::thread::sleep(Duration::from_secs(2));
        let before = facts::resident_kib(instance.child.pid());
        let connections = connect(instance.plain_port(), plan.idle)?;
        let (start, mut each) = (facts::now(), Vec::new());
        for look in LOOKS {
            let wait = Duration::from_nanos(facts::now() - start);
            std::thread::sleep(look.saturating_sub(wait));
            let now = facts::resident_kib(instance.child.pid());
            each.push(now.saturating_sub(before) * 1024 / plan.idle as u64);
        }
        let lost = lost(connections);
        table.row([
            rival.name().to_owned(),
            format!("{:.1}", before as f64 / 1024.0),
            each[0].to_string(),
            each[1].to_string(),
            if rival == Rival::Sluicegate { "4096".to_owned() } else { String::new() },
            if lost > 0 { format!("{lost} connections were closed") } else { String::new() },
        ]);
    }
    Ok(table)
}
