//! `import` of Ingress objects beside nginx with the configuration of ingress-nginx: random objects, the same requests to
//! both, the same answers.
//!
//! A file on which they disagree, but for the known differences, is made as small as can be and shown.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod case;
mod known;
mod nginx_conf;
mod objects;
mod requests;

use case::{Case, Programs, Services};
use known::KNOWN;

/// Files of `make test`.
const FILES: u64 = 20;

/// How often each known difference occurs in these files. Panics if others do.
fn compare(seeds: std::ops::Range<u64>, programs: &Programs) -> Vec<usize> {
    support::raise_descriptors();
    let services = Services::start();
    let mut counts = vec![0_usize; KNOWN.len()];
    let (mut requests, mut faulty) = (0, Vec::new());
    for seed in seeds.clone() {
        let case = Case::roll(seed);
        let trial = case.run(programs, &services);
        requests += case.requests.len();
        trial.known.iter().for_each(|known| counts[*known] += 1);
        if let Some(fault) = trial.faults.first() {
            eprintln!("{}", case.shrink(fault, programs, &services));
            faulty.push(seed);
        }
    }
    eprintln!("{requests} requests to the files of the seeds {seeds:?}");
    for (known, count) in KNOWN.iter().zip(&counts) {
        eprintln!("{count:6} {}: {}", known.side.name(), known.reason);
    }
    assert!(faulty.is_empty(), "they disagree; the seeds: {faulty:?}");
    counts
}

#[test]
fn imported_objects_answer_as_nginx_does() {
    compare(1..1 + FILES, &Programs { nginx: "/usr/sbin/nginx".into() });
}
