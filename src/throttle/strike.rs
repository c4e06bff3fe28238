//! A refusal that a client is to blame for is a strike; enough of them are a ban.

use std::time::Duration;

use crate::ban::{Started, Strike};
use crate::clock::Now;
use crate::metrics::Banning;
use crate::reject::Why;
use crate::visit::Visit;
use crate::worker::Worker;

/// Counts a final refusal by a limit against the client, unless there are no bans or it is spared from them.
pub fn strike(worker: &Worker, visit: &Visit, why: Why) {
    let (Some(bans), Some(key)) = (&worker.gateway.bans, visit.ban_key) else { return };
    if !matches!(why, Why::Rate | Why::Queue | Why::QueuedTooLong) {
        return;
    }
    let now = Now(visit.started.0.saturating_add(visit.waited_ns));
    let count = |what| worker.gateway.metrics.banned(worker.id, what);
    match bans.strike(&key, now) {
        Strike::Counted => count(Banning::Strike),
        Strike::Uncounted => count(Banning::Uncounted),
        Strike::Banned => {}
        Strike::Started(started) => {
            count(Banning::Strike);
            count(Banning::Started);
            tell(worker, visit, &started);
        }
    }
}

fn tell(worker: &Worker, visit: &Visit, started: &Started) {
    let Some(untold) = started.told else { return };
    let account = visit.account.as_deref().map(|account| worker.log.account(account));
    let lasts = humantime::format_duration(Duration::from_nanos(started.lasts_ns));
    let (ip, repeats) = (visit.client.ip, started.repeats);
    tracing::info!(%ip, account, %lasts, repeats, untold, "a client is banned");
}
