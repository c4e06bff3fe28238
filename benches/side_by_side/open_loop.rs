//! Requests at a fixed rate, far from saturation.
//!
//! Open loop: request *i* is due at start + *i* / rate regardless of earlier ones, and its latency counts from that
//! moment. A proxy that stalls is charged for every request that was due meanwhile.

use std::collections::VecDeque;

use crate::child::Result;
use crate::client::Client;
use crate::facts;
use crate::report::percentile;

const CONNECTIONS: usize = 32;
const SECOND: u64 = 1_000_000_000;

/// The results of one schedule of requests.
#[derive(Default)]
pub struct Outcome {
    /// Latencies of the exchanges with an expected status, sorted, in nanoseconds.
    pub latencies: Vec<u64>,
    /// The number of other statuses, broken connections and missing responses.
    pub wrong: usize,
}

impl Outcome {
    pub fn percentile_us(&self, share: f64) -> f64 {
        percentile(&self.latencies, share) as f64 / 1e3
    }
}

/// Sends `rate` requests per second for `secs` seconds and waits for the responses, at most five seconds longer.
pub fn open_loop<R: AsRef<[u8]>>(
    port: u16,
    rate: u64,
    secs: u64,
    mut request: impl FnMut() -> R,
    expected: fn(u16) -> bool,
) -> Result<Outcome> {
    let mut client = Client::connect(port, CONNECTIONS)?;
    let mut idle: VecDeque<usize> = (0..CONNECTIONS).collect();
    let mut due = [0; CONNECTIONS];
    let mut outcome = Outcome::default();
    let total = rate * secs;
    let start = facts::now() + SECOND / 100;
    let when = |place: u64| start + place * SECOND / rate;
    let end = when(total) + 5 * SECOND;
    let (mut sent, mut answered) = (0, 0);
    while answered < total && facts::now() < end {
        while sent < total && when(sent) <= facts::now() {
            let Some(connection) = idle.pop_front() else { break };
            due[connection] = when(sent);
            client.send(connection, request().as_ref());
            sent += 1;
        }
        // With all connections busy, only a response frees one.
        let until = if sent < total && !idle.is_empty() { when(sent) } else { end };
        for done in client.finished(until)? {
            answered += 1;
            idle.push_back(done.connection);
            if expected(done.status) {
                outcome.latencies.push(done.at - due[done.connection]);
            } else {
                outcome.wrong += 1;
            }
        }
    }
    outcome.wrong += usize::try_from(total - answered)?;
    outcome.latencies.sort_unstable();
    Ok(outcome)
}
