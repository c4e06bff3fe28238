//! The memory of a client's counters on the server.

use crate::Plan;
use crate::calls::fill;
use crate::cases::of_memory;
use crate::child::Result;
use crate::peers::Bench;
use crate::report::Table;
use crate::store::Redis;

const CLIENTS: u64 = 100_000;

pub fn measure(bench: &Bench, _plan: &Plan) -> Result<Table> {
    let mut redis = Redis::start(bench.proxy_core, &bench.folder.join("memory"))?;
    let mut table = Table::new(&["counters of one client", "keys", "bytes"]);
    for case in of_memory() {
        redis.load(case.code())?;
        let decisions = case.decisions(CLIENTS)?;
        redis.clear()?;
        let before = redis.used_memory()?;
        fill(redis.port, &case, &decisions)?;
        let (keys, bytes) = (redis.keys()?, redis.used_memory()? - before);
        if keys != CLIENTS * case.calls() as u64 {
            return Err(format!("{}: {keys} keys", case.name).into());
        }
        table.row([
            case.name.to_owned(),
            (keys / CLIENTS).to_string(),
            format!("{:.0}", bytes as f64 / CLIENTS as f64),
        ]);
        eprintln!("memory: {}", case.name);
    }
    Ok(table)
}
