//! The cost of the script that leases units, by the gateways that hold some.

use sluicegate_store::LuaScript;

use crate::Plan;
use crate::child::Result;
use crate::peers::Bench;
use crate::report::Table;
use crate::store::{Line, Redis, command};

const CALLS: u64 = 6_000;
/// Ticks of a unit in a bucket; 20,000 units a second are so many ticks in a microsecond.
const UNIT: f64 = 1e6;
const RATE: f64 = 20_000.0;
const UNITS: f64 = 10_000.0;
/// Microseconds of a term, of a lease, and beyond its end.
const TIMES: [f64; 3] = [100_000.0, 300_000.0, 75_000.0];

struct Limit {
    name: &'static str,
    unit: f64,
    /// Ticks per microsecond, of a full bucket, in the hands of gateways; the times; a window, and those before it.
    numbers: [f64; 10],
}

// === impl Limit ===

impl Limit {
    fn all() -> [Limit; 3] {
        let [term, hold, guard] = TIMES;
        let of_window = |name, earlier| {
            let numbers = [0.0, 1.0, UNITS, UNITS / 5.0, term, hold, guard, 1e6, earlier, 1.0];
            Limit { name, unit: 1.0, numbers }
        };
        let full = UNIT * UNITS;
        let numbers = [RATE, UNIT, full, full / 5.0, term, hold, guard, 0.0, 0.0, 0.0];
        [
            Limit { name: "token bucket", unit: UNIT, numbers },
            of_window("fixed window", 0.0),
            of_window("sliding window of 10", 10.0),
        ]
    }

    /// A call in the bytes of `lease.lua`: it keeps nothing, wants 20 units, and three requests wait.
    fn call(&self, sha: &str, key: &str, node: u64, number: u64) -> Vec<u8> {
        let number = number as f64;
        let own = [number, number - 1.0, 2.0 * self.unit, 0.0, 20.0 * self.unit, 200_000.0];
        let mut body = (node + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes().to_vec();
        for number in self.numbers.iter().chain(&own).chain(&[0.0; 6]) {
            body.extend(number.to_le_bytes());
        }
        body.extend(1_u16.to_le_bytes());
        body.extend([3_u32, 1].into_iter().flat_map(u32::to_le_bytes));
        command(&[b"EVALSHA", sha.as_bytes(), b"1", key.as_bytes(), &body])
    }
}

pub fn measure(bench: &Bench, plan: &Plan) -> Result<Table> {
    let mut redis = Redis::start(bench.proxy_core, &bench.folder.join("leases"))?;
    let script = LuaScript::lease_script();
    redis.load(script.code)?;
    let mut line = Line::connect(redis.port)?;
    let mut table = Table::new(&["a leased", "gateways", "script µs, least", "bytes, most"]);
    for limit in Limit::all() {
        for nodes in [1, 50] {
            // As long as the names of the product.
            let key = format!("sg:{{{:022}}}:H:{nodes:08x}", limit.name.len());
            let (mut least, mut bytes) = (f64::INFINITY, 0);
            for round in 0..plan.rounds as u64 {
                let before = redis.work()?;
                for call in 1..=CALLS {
                    line.send(&limit.call(&script.sha, &key, call % nodes, round * CALLS + call))?;
                    line.answer()?;
                }
                let work = redis.work()?.since(before);
                least = least.min(work.script_us as f64 / work.calls as f64);
                bytes = bytes.max(redis.key_memory(&key)?);
            }
            table.row([limit.name.to_owned(), nodes.to_string(), format!("{least:.1}"), bytes.to_string()]);
        }
        eprintln!("leases: {}", limit.name);
    }
    Ok(table)
}
