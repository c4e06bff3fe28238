//! The virtual clock of scenarios: tokio's paused one, moved exactly to the moments at which requests arrive.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_base::wall_clock;

/// A runtime with a clock that moves only while everything waits. Each process has one: the time of day follows it.
pub(super) struct VirtualClock {
    runtime: Runtime,
    zero: Now,
}

/// The resolution of tokio's timers.
const TIMER_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

impl VirtualClock {
    pub(super) fn start() -> io::Result<VirtualClock> {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let zero = runtime.block_on(async { Now::read_clock() });
        Ok(VirtualClock { runtime, zero })
    }

    /// Runs `work` from the next whole second on, at which the time of day is `start` since 1970. Tasks that it leaves
    /// behind end with it.
    pub(super) fn run_from<T>(&self, start: Duration, work: impl Future<Output = T>) -> T {
        let local = LocalSet::new();
        local.block_on(&self.runtime, async {
            let passed = Now::read_clock().ns_since(self.zero) % SECOND_NS;
            if passed > 0 {
                tokio::time::advance(Duration::from_nanos(SECOND_NS - passed)).await;
            }
            wall_clock::simulate_from(duration_ns(start));
            work.await
        })
    }
}

/// Moves the clock to `due`, counted from `zero`, a whole second of the clock. If requests are under way, everything
/// that is due before happens first, and so does everything that is due at that very moment.
pub(super) async fn wait_until(zero: Now, due: Now, has_pending: bool) {
    if has_pending {
        let whole = Now(due.0 - due.ns_since(zero) % TIMER_NS);
        if whole > Now::read_clock() {
            align_clock(zero).await;
            tokio::time::sleep_until(whole.to_instant()).await;
        }
    }
    let left = due.ns_since(Now::read_clock());
    if left > 0 {
        tokio::time::advance(Duration::from_nanos(left)).await;
    }
    if has_pending {
        let_others_run().await;
    }
}

/// Moves the clock to the next moment at which timers fire. Away from those, tokio would move a paused clock too far by
/// the rest.
pub(super) async fn align_clock(zero: Now) {
    let beyond = Now::read_clock().ns_since(zero) % TIMER_NS;
    if beyond > 0 {
        tokio::time::advance(Duration::from_nanos(TIMER_NS - beyond)).await;
    }
}

/// Lets requests that end now release their slots, and those that take them go on.
pub(super) async fn let_others_run() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}
