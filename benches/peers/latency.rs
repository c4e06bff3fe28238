//! Latency of all proxies at one rate, without and with a limit that admits.

use crate::Plan;
use crate::bench::Bench;
use crate::child::Result;
use crate::delays::{self, Extent, Row};
use crate::kinds::Kind;
use crate::peer::{Program, request};

const KINDS: [Kind; 2] = [Kind::Plain, Kind::Passing];

pub fn measure(bench: &Bench, plan: &Plan, programs: &[Program]) -> Result<Vec<Row>> {
    let expected = |status| status == 200;
    let mut rows = vec![Row::new("–", "no proxy", bench.backend_port, request(Kind::Plain), expected)];
    let kinds = if plan.quick { &KINDS[..1] } else { &KINDS };
    let started = programs.iter().map(|program| program.start(bench, kinds));
    let started = started.collect::<Result<Vec<_>>>()?;
    for &kind in kinds {
        for instance in started.iter().filter(|instance| instance.serves(kind)) {
            rows.push(Row::new(kind.name(), &instance.name, instance.port(kind), request(kind), expected));
        }
    }
    let cores = [bench.proxy_core, bench.load_core];
    let extent = Extent { rate: plan.rate, rounds: plan.rounds.div_ceil(2), secs: plan.secs, cores };
    delays::measure(&mut rows, &extent)?;
    Ok(rows)
}
