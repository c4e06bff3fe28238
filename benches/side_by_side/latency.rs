//! The rows of the table of latencies.

use crate::child::Result;
use crate::delays::{self, Extent, Row};
use crate::options::Options;
use crate::peers::{Bench, GET, Log, Proxy};
use crate::report::Table;

pub fn measure(bench: &Bench, options: &Options) -> Result<Table> {
    let mut rows = vec![Row::new("–", "no proxy", bench.backend_port, GET, |status| status == 200)];
    let mut started = Vec::new();
    for &mode in &options.modes {
        for proxy in [Proxy::Nginx, Proxy::Sluicegate] {
            let instance = bench.start(proxy, mode, Log::Off)?;
            let expected: fn(u16) -> bool = if mode.rejects() {
                // The limit of one per second admits a few.
                |status| status == 429 || status == 200
            } else {
                |status| status == 200
            };
            rows.push(Row::new(mode.name(), proxy.name(), instance.port, GET, expected));
            started.push(instance);
        }
    }
    let cores = [bench.proxy_core, bench.load_core];
    let extent = Extent { rate: options.rate, rounds: options.rounds, secs: options.secs, cores };
    delays::measure(&mut rows, &extent)?;
    Ok(delays::table(&rows, Proxy::Nginx.name()))
}
