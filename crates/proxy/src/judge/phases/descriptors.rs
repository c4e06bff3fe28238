//! The first phase of a call of Envoy's rate limit service. The phases after it are those of requests.

use std::time::Duration;

use super::{NextPhase, Received};
use crate::judge::descriptors::{CallFindings, DescriptorTerms, MergedPlaces, judge_descriptors};
use crate::judge::quotas;
use crate::judge::request_state::RequestState;
use crate::reject::Rejection;
use sluicegate_admission::chain::{ChainVerdict, Charge, Decisions, Look, WaitingRequest};
use sluicegate_http::net::deadline::ticks_for;
use sluicegate_http::request::client::UNIX_CLIENT;
use sluicegate_model::LimitId;

/// The outcome that descriptors would have, if they took their hits now.
pub struct LookedAt {
    /// The decisions of all limits, in chain order.
    pub decisions: Decisions,
    /// The places of the chain that an earlier place stands for.
    pub merged: MergedPlaces,
    /// They would be refused: by this limit, or by none that has numbers.
    pub refused: Option<Option<LimitId>>,
}

/// Looks at the limits of descriptors and charges none.
///
/// # Errors
/// The rejection, unless a limit is its cause.
pub async fn look_at_descriptors(
    state: &mut RequestState,
    terms: &DescriptorTerms<'_>,
) -> Result<LookedAt, Rejection> {
    let (worker, now) = (state.worker.clone(), state.judged_at);
    let (mut verdict, mut findings) = (None, CallFindings::default());
    let mut decisions = Decisions::new();
    let in_flight = &mut state.permits.in_flight;
    judge_descriptors::<Look>(&worker, now, terms, in_flight, &mut findings, &mut decisions, &mut verdict)?;
    let verdict = match (verdict, &worker.session) {
        (Some(ChainVerdict::AskStore(pending)), Some(session)) => {
            let waiting_size = || 0;
            let waiter = WaitingRequest::new(&worker.gateway.load.waiting, &waiting_size);
            let waiter = waiter.with_max_wait(terms.max_wait_ns);
            match pending.ask(session, waiter, &mut decisions, &mut Vec::new()).await {
                ChainVerdict::Reject(rejection) => Some(rejection),
                _ => None,
            }
        }
        (Some(ChainVerdict::Reject(rejection)), _) => Some(rejection),
        _ => None,
    };
    let refused = verdict.map(|rejection| rejection.limit.as_ref().map(|limit| limit.id));
    Ok(LookedAt { decisions, merged: findings.merged, refused })
}

impl Received {
    /// Judges the descriptors of a call. Returns also the places of its chain that an earlier place stands for.
    pub fn judge_descriptors(self, terms: &DescriptorTerms<'_>) -> (NextPhase, MergedPlaces) {
        let Received { inbound, mut state } = self;
        let worker = state.worker.clone();
        worker.heavy_keys.begin_request();
        state.call_chain = Some(terms.chain.clone());
        let route = worker.gateway.call_route();
        state.route = Some(route);
        let (mut verdict, mut findings) = (None, CallFindings::default());
        let now = state.judged_at;
        let RequestState { permits, judgement, .. } = &mut *state;
        let judged = judge_descriptors::<Charge>(
            &worker,
            now,
            terms,
            &mut permits.in_flight,
            &mut findings,
            &mut judgement.decisions,
            &mut verdict,
        );
        quotas::note_judged(&mut state, verdict.as_ref());
        let received = |state| Received { inbound, state };
        let CallFindings { merged, strike_target, client, account, tier } = findings;
        (state.identity.strike_target, state.identity.account, state.identity.tier) =
            (strike_target, account, tier);
        if let Some(client) = client {
            state.identity.client = client;
            if let Some(fields) = &mut state.log_fields {
                fields.ip = (client.ip != UNIX_CLIENT).then_some(client.ip);
            }
        }
        if terms.max_wait_ns > 0 {
            state.watch.set_request_deadline(ticks_for(Duration::from_nanos(terms.max_wait_ns)));
        }
        if let Err(rejection) = judged {
            return (received(state).reject(&rejection), merged);
        }
        let judged = match verdict {
            None => received(state).admit(Ok(route)),
            Some(verdict) => received(state).apply_verdict(verdict, Ok(route), terms.max_wait_ns),
        };
        (judged, merged)
    }
}
