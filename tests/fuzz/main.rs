//! Fuzz targets for every parser of foreign input.
//!
//! Each target runs for a bounded time: by default two seconds with the same cases in each run, so that a commit fails
//! for its own changes; with `FUZZ_SECONDS` (`make fuzz`) new cases. A failing case is shrunk and shown; it then
//! becomes a named test beside the other tests of its module.

#![allow(clippy::disallowed_types, reason = "targets run for a real time, and real sockets are used")]

use sluicegate_testkit as support;

#[allow(dead_code, reason = "shared with the corpora")]
#[path = "../corpus/recorder.rs"]
mod recorder;
#[allow(dead_code, reason = "shared with the corpora")]
#[path = "../corpus/table.rs"]
mod table;

mod answers;
mod files;
mod grammar;
mod heads;
mod hops;
mod json;
mod log_lines;
mod mangled_heads;
mod paths;
mod proxy_header;
mod requests;
mod resp;
mod response_bodies;
mod servers;

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// Tries cases of `strategy` for the time available.
#[track_caller]
pub fn fuzz<S: Strategy>(strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(2));
    let first = if seconds.is_some() { RandomState::new().hash_one(()) >> 1 } else { 0 };
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: 500,
        max_shrink_time: 20_000,
        ..Config::with_cases(16)
    };
    for batch in first.. {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&u64::to_le_bytes(batch));
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        if let Err(failure) = TestRunner::new_with_rng(config.clone(), random).run(&strategy, &test) {
            panic!("seed {batch}: {failure}");
        }
        if Instant::now() >= end {
            return;
        }
    }
}
