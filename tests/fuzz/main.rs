//! Everything that reads what strangers write, fed with what nobody would write.
//!
//! Each target runs for a bounded time: two seconds, or `FUZZ_SECONDS` (`make fuzz`). What fails is shrunk and shown;
//! it then becomes a named test where the thing itself is tested.

#![allow(clippy::disallowed_types, reason = "targets run for a real time, and real sockets are used")]

#[allow(dead_code, unused_imports, reason = "shared by several test binaries")]
#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code, reason = "shared with the corpora")]
#[path = "../corpus/recorder.rs"]
mod recorder;
#[allow(dead_code, reason = "shared with the corpora")]
#[path = "../corpus/table.rs"]
mod table;

mod answers;
mod files;
mod grammar;
mod hops;
mod paths;
mod proxy_header;
mod requests;

use std::time::{Duration, Instant};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// Tries what `strategy` makes for the time there is.
#[track_caller]
pub fn fuzz<S: Strategy>(strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(2));
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: 500,
        max_shrink_time: 20_000,
        ..Config::with_cases(16)
    };
    while Instant::now() < end {
        if let Err(failure) = TestRunner::new(config.clone()).run(&strategy, &test) {
            panic!("{failure}");
        }
    }
}
