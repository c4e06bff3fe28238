//! The first phase of a call of the rate-limit service. The phases after it are those of requests.

use std::time::Duration;

use http_body::SizeHint;

use super::{NextPhase, Received};
use crate::judge::call::{self, CallTerms, ChargeCall};
use crate::judge::conclusion;
use crate::judge::facts::{BodyView, RequestFacts, RequestHead};
use crate::judge::mode::ChargeRequest;
use crate::judge::quotas;
use crate::judge::request_state::RequestState;
use sluicegate_admission::chain::ChainVerdict;
use sluicegate_http::net::deadline::ticks_for;

impl Received {
    /// Judges a call by the request that it describes.
    pub fn judge_call(self, terms: &CallTerms) -> NextPhase {
        let Received { inbound, mut state } = self;
        let worker = state.worker.clone();
        let headers = inbound.request.headers();
        let token = match terms.limits {
            Some(_) => worker.state_claims(headers, &terms.stated.claims),
            None => worker.read_token(headers, state.judged_at),
        };
        let places = terms.limits.as_ref().map(|limits| worker.gateway.calls.places_of(limits));
        let head =
            RequestHead::of_inbound(&inbound, state.identity.client, terms.scheme, None, state.judged_at);
        let mut facts = RequestFacts::new(head, SizeHint::with_exact(0), token.as_ref());
        facts.body_view = terms.stated.body.as_ref().map_or(BodyView::Absent, BodyView::Read);
        let mut verdict = None;
        worker.heavy_keys.begin_request();
        let judged = {
            let RequestState { connection, permits, judgement, .. } = &mut *state;
            let request = ChargeRequest { worker: &worker, connection, in_flight: &mut permits.in_flight };
            let mut mode = ChargeCall { request, terms, places: places.as_deref() };
            call::judge_call(&worker.gateway, &mut facts, &mut mode, &mut judgement.decisions, &mut verdict)
        };
        facts.record_in(&mut state);
        let named = terms.limits.as_ref().map(|_| worker.gateway.call_route());
        let route = named.map_or_else(|| facts.route_or_rejection(), Ok);
        state.route = route.as_ref().ok().copied();
        quotas::note_judged(&mut state, verdict.as_ref());
        // No body is sent, and no upstream is asked.
        (state.permits.bandwidth, state.response.cors) = (None, None);
        // A rejection in the form of gRPC has the status 200, which callers take for an admission.
        state.identity.is_grpc = false;
        match terms.max_wait_ns {
            0 => {}
            u64::MAX => state.start_timeout(),
            most => state.watch.set_request_deadline(ticks_for(Duration::from_nanos(most))),
        }
        let rejection = match (judged, &verdict) {
            (Err(rejection), _) => rejection,
            (Ok(()), Some(ChainVerdict::Reject(rejection))) => {
                conclusion::translate_counted(&state, rejection)
            }
            (Ok(()), _) => {
                let received = Received { inbound, state };
                return match verdict {
                    None => received.admit(route),
                    Some(verdict) => received.apply_verdict(verdict, route, terms.max_wait_ns),
                };
            }
        };
        let conclusion = conclusion::conclude_rejection(&mut state, &facts.texts(), &rejection);
        Received { inbound, state }.apply_conclusion(conclusion)
    }
}
