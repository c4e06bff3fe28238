//! A refusal that a client is to blame for is a strike; enough of them are a ban.

use crate::admission::ban::{Blamed, Strike, Who};
use crate::base::clock::Now;
use crate::observe::metrics::Banning;
use crate::proxy::reject::Why;
use crate::proxy::request_state::Visit;
use crate::proxy::worker::Worker;

/// Counts a final refusal by a limit against the client, unless there are no bans or it is spared from them.
pub fn strike(worker: &Worker, visit: &Visit, why: Why) {
    let gateway = &worker.gateway;
    let (Some(bans), Some(blamed)) = (&gateway.bans, visit.blamed) else { return };
    if !matches!(why, Why::Rate | Why::Queue | Why::QueuedTooLong) {
        return;
    }
    let key = match blamed {
        Blamed::Key(key) => key,
        Blamed::Named => {
            let ip = gateway.clients.masked(visit.client.ip);
            bans.key_of(&gateway.keys, ip, visit.account.as_deref())
        }
    };
    let now = Now(visit.started.0.saturating_add(visit.waited_ns));
    let count = |what| gateway.metrics.banned(worker.id, what);
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
