//! What happens to the backend during a run, and how much is offered.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::backend::Ability;

/// The backend at first: 16 workers of 20 ms, and 25 ms under full load, so 640 requests per second at most.
pub const WORKERS: u64 = 16;
const SERVICE_US: f64 = 20_000.0;
pub const CAPACITY: f64 = 640.0;
/// Clients give up after ten times the latency under full load.
pub const DEADLINE: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Steady,
    Step,
    Drift,
    Mixed,
}

#[derive(Clone, Copy, PartialEq)]
pub struct Scenario {
    pub change: Change,
    /// Requests offered, as a multiple of the capacity at first.
    pub load: f64,
}

impl Change {
    pub const ALL: [Change; 4] = [Change::Steady, Change::Step, Change::Drift, Change::Mixed];

    pub fn name(self) -> &'static str {
        match self {
            Change::Steady => "steady",
            Change::Step => "step",
            Change::Drift => "drift",
            Change::Mixed => "mixed",
        }
    }

    /// Sets what the backend can do at a moment, as a part of the run, and returns its capacity then.
    pub fn apply(self, part: f64, ability: &Ability) -> f64 {
        let halved = self == Change::Step && part < 0.5;
        let slower = if self == Change::Drift { 1.0 + part } else { 1.0 };
        let [quick, slow] = if self == Change::Mixed { [0.5, 3.0] } else { [1.0, 1.0] };
        ability.workers.store(if halved { WORKERS / 2 } else { WORKERS }, Relaxed);
        ability.quick_us.store((SERVICE_US * quick * slower) as u64, Relaxed);
        ability.slow_us.store((SERVICE_US * slow * slower) as u64, Relaxed);
        CAPACITY * if halved { 0.5 } else { 1.0 } / slower
    }
}

impl Scenario {
    pub fn rate(self) -> f64 {
        CAPACITY * self.load
    }
}
