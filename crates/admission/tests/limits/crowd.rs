//! A crowd on a virtual clock: each client wants one request admitted, and comes back when it was told to.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

const SECOND: u64 = 1_000_000_000;

/// Clients that arrive evenly within a second.
#[derive(Clone, Copy)]
pub struct Crowd {
    pub clients: u64,
    /// They wait as Retry-After says, in whole seconds; else the fraction.
    pub whole_seconds: bool,
    /// The pause between the requests of one more client, who never waits.
    pub hasty_gap: Option<u64>,
}

#[derive(Debug)]
pub struct CrowdReport {
    pub refusals_per_client: f64,
    /// When the last client that waits was served; at most the two minutes that are simulated.
    pub last_ns: u64,
}

impl Crowd {
    /// `judge` is told the time and the client, the hasty one being the last, and returns the wait of a rejection.
    pub fn run(self, mut judge: impl FnMut(u64, u64) -> Result<(), u64>) -> CrowdReport {
        let arrivals = (0..self.clients).map(|client| Reverse((client * SECOND / self.clients, client)));
        let mut due: BinaryHeap<Reverse<(u64, u64)>> = arrivals.collect();
        due.extend(self.hasty_gap.map(|_| Reverse((0, self.clients))));
        let (mut refusals, mut waiting, mut last_ns) = (0, self.clients, 0);
        while let Some(Reverse((at, client))) = due.pop().filter(|Reverse((at, _))| *at < 120 * SECOND) {
            let judged = judge(at, client);
            if client == self.clients {
                due.extend(self.hasty_gap.filter(|_| waiting > 0).map(|gap| Reverse((at + gap, client))));
                continue;
            }
            match judged {
                Ok(()) => (waiting, last_ns) = (waiting - 1, at),
                Err(wait) => {
                    refusals += 1;
                    let wait = if self.whole_seconds { wait.div_ceil(SECOND).max(1) * SECOND } else { wait };
                    due.push(Reverse((at + wait, client)));
                }
            }
        }
        let last_ns = if waiting > 0 { 120 * SECOND } else { last_ns };
        CrowdReport { refusals_per_client: refusals as f64 / self.clients as f64, last_ns }
    }
}
