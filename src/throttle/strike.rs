//! A refusal that a client is to blame for is a strike; enough of them are a ban.

use crate::ban::{Strike, Who};
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
    let who = || {
        let account = visit.account.as_deref().map(|account| worker.log.account(account));
        Who { ip: visit.client.ip, account }
    };
    match bans.note(&key, now, who).unwrap_or_else(|| bans.strike(&key, now)) {
        Strike::Counted => count(Banning::Strike),
        Strike::Uncounted => count(Banning::Uncounted),
        Strike::Banned => {}
        Strike::Started(started) => {
            count(Banning::Strike);
            count(Banning::Started);
            started.tell(&who());
        }
    }
}
