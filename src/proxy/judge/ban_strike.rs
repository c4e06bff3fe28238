//! Counts a rejection that the client caused as a strike; enough strikes are a ban.

use crate::admission::ban::{ClientIdentity, StrikeOutcome, StrikeTarget};
use crate::base::clock::Now;
use crate::observe::metrics::BanEvent;
use crate::proxy::reject::LimitCause;
use crate::proxy::request_state::RequestState;
use crate::proxy::worker::Worker;

/// Counts a final rejection by a rate or a queue as a strike against the client, unless bans are off or it is exempt.
pub fn record_strike(worker: &Worker, state: &RequestState, cause: LimitCause) {
    let gateway = &worker.gateway;
    let (Some(bans), Some(strike_target)) = (&gateway.bans, state.strike_target) else { return };
    if !matches!(cause, LimitCause::Rate | LimitCause::Queue | LimitCause::QueuedTooLong) {
        return;
    }
    let key = match strike_target {
        StrikeTarget::Key(key) => key,
        StrikeTarget::Deferred => {
            let ip = gateway.clients.mask_address(state.client.ip);
            bans.deferred_key(&gateway.keys, ip, state.account.as_deref())
        }
    };
    let now = Now(state.started.0.saturating_add(state.wait_ns));
    let count = |event| gateway.metrics.count_ban_event(worker.id, event);
    let identity = || {
        let account = state.account.as_deref().map(|account| worker.log.shown_account(account));
        let network = gateway.clients.mask_network(state.client.ip);
        ClientIdentity { ip: state.client.ip, network, account }
    };
    match bans.queue_strike(&key, now, identity).unwrap_or_else(|| bans.count_strike(&key, now)) {
        StrikeOutcome::Counted => count(BanEvent::Strike),
        StrikeOutcome::Uncounted => count(BanEvent::Uncounted),
        StrikeOutcome::Banned => {}
        StrikeOutcome::Started(started) => {
            count(BanEvent::Strike);
            count(BanEvent::Started);
            let (client, until) = (identity(), Now(now.0.saturating_add(started.lasts_ns)));
            bans.name_ban(&key, &client, until, started.repeats, now);
            started.log_start(&client);
        }
    }
}
