//! Counts rejections and responses that the client caused as strikes; enough strikes are a ban.

use http::StatusCode;

use crate::judge::request_state::{RequestState, Verdict};
use crate::reject::LimitCause;
use sluicegate_admission::ban::{Bans, ClientIdentity, StrikeOutcome, StrikeTarget};
use sluicegate_base::clock::Now;
use sluicegate_http::request::access::AccessDecision;
use sluicegate_observe::metrics::BanEvent;

/// Counts a final rejection by a limit, once: as a rejection, or by the status of its response.
pub fn record_rejection(state: &RequestState, cause: LimitCause, status: StatusCode) {
    let (Some(bans), Some(target)) = (&state.worker.gateway.bans, state.identity.strike_target) else {
        return;
    };
    let strikes = bans.strike_rules();
    let is_rejection = matches!(cause, LimitCause::Rate | LimitCause::Queue | LimitCause::QueuedTooLong);
    if strikes.rejections && is_rejection || strikes.statuses.contains(status.as_u16()) {
        record_strike(state, bans, target, state.judged_until());
    }
}

/// Counts a response by its status, as soon as its head is known.
#[inline]
pub fn record_response(state: &RequestState) {
    if let Some(bans) = &state.worker.gateway.bans
        && bans.strike_rules().statuses.contains(state.outcome.status.as_u16())
        && let Some(target) = find_target(state)
    {
        record_strike(state, bans, target, Now::read_clock());
    }
}

/// The client that a response counts against; `None` = the response is no strike.
#[cold]
fn find_target(state: &RequestState) -> Option<StrikeTarget> {
    match state.outcome.verdict {
        Verdict::Admit | Verdict::Wait => state.identity.strike_target,
        // Rejections by limits are counted before; degraded answers and refusals by a ban never are.
        Verdict::Reject | Verdict::MissingKey | Verdict::Degrade | Verdict::Ban | Verdict::Acme => None,
        Verdict::Fault(fault) if !fault.is_by_client() => None,
        // Most of these requests were refused before bans were judged.
        Verdict::Fault(_) => {
            state.identity.strike_target.or_else(|| (!is_bypassed(state)).then_some(StrikeTarget::Deferred))
        }
    }
}

fn is_bypassed(state: &RequestState) -> bool {
    let access = state.worker.gateway.access_for(state.route);
    access.is_some_and(|access| access.decide_access(state.identity.client.ip) == AccessDecision::Bypassed)
}

fn record_strike(state: &RequestState, bans: &Bans, target: StrikeTarget, now: Now) {
    let worker = &state.worker;
    let gateway = &worker.gateway;
    let key = match target {
        StrikeTarget::Key(key) => key,
        StrikeTarget::Deferred => {
            let ip = gateway.clients.mask_address(state.identity.client.ip);
            bans.deferred_key(&gateway.keys, ip, state.identity.account())
        }
    };
    let count = |event| gateway.metrics.count_ban_event(worker.id, event);
    let identity = || {
        let account = state.identity.account().map(|account| worker.log.shown_account(account));
        let network = gateway.clients.mask_network(state.identity.client.ip);
        ClientIdentity { ip: state.identity.client.ip, network, account }
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
