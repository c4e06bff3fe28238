//! Calls of the rate-limit service: applications ask for limits by HTTP, and nothing is forwarded.
//!
//! `/check` is judged as a request is: by the same chain, with the same bans, queues, metrics and log lines. Slots and
//! reservations of an admitted call go into a lease ([`sluicegate_admission::leases`]), which `/release`, `/settle` and
//! `/renew` change, over any connection. `call_body` reads the calls, `described` makes the request that a check
//! describes, `check` judges it, and `answer` renders the answer. By `/auth` other proxies ask about the
//! requests that they receive: `original` reads such a request, and `auth` judges it.

mod answer;
mod auth;
mod call_body;
mod call_value;
mod check;
mod described;
mod original;
pub mod resp;
mod rls;

use bytes::Bytes;
use http::header::{ALLOW, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Response, StatusCode};
use http_body::Body;

use crate::forward::{self, ResponseBody};
use crate::gateway::CallerFault;
use crate::judge;
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::{RequestState, Verdict};
use crate::reject::Fault;
pub use auth::answer_auth;
use call_value::CallFault;
pub use described::Described;
pub use rls::{RlsCall, answer_rls};
use sluicegate_admission::leases::{LeaseId, SettleFault};
use sluicegate_base::clock::Now;
use sluicegate_http::request::headers::hop_by_hop;
use sluicegate_http::request::{body, location};
use sluicegate_observe::metrics::CallResult;

/// Bytes of the body of a call.
const BODY_MAX: u64 = 64 * 1024;
const FROM_BROWSER: &str = "pages in a browser may not call the rate-limit service";
const NO_SERVICE: &str = "the configuration has no rate-limit service";

/// The calls, by their paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Check,
    Release,
    Settle,
    Renew,
}

impl CallKind {
    fn from_path(path: &str) -> Option<CallKind> {
        Some(match path {
            "/check" => CallKind::Check,
            "/release" => CallKind::Release,
            "/settle" => CallKind::Settle,
            "/renew" => CallKind::Renew,
            _ => return None,
        })
    }

    fn bad_result(self) -> CallResult {
        match self {
            CallKind::Check => CallResult::CheckBad,
            CallKind::Release => CallResult::ReleaseBad,
            CallKind::Settle => CallResult::SettleBad,
            CallKind::Renew => CallResult::RenewBad,
        }
    }
}

/// The protocols that calls come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallProtocol {
    /// The calls of applications: `/check`, `/release`, `/settle` and `/renew`.
    Check,
    /// The calls of other proxies by `/auth`.
    Auth,
    /// A call of Envoy's rate limit service.
    Rls(RlsCall),
}

impl CallProtocol {
    /// The protocol of a call.
    #[inline]
    pub fn find(inbound: &InboundRequest) -> CallProtocol {
        // The path comes first: `/auth` has the headers of a client, which may say that they are gRPC's.
        match inbound.request.uri().path() {
            auth::PATH => CallProtocol::Auth,
            _ => RlsCall::find(inbound).map_or(CallProtocol::Check, CallProtocol::Rls),
        }
    }
}

/// Answers one call of an application. If the caller hangs up while it waits, the future never ends, and everything is
/// given back.
pub async fn answer_check(
    mut inbound: Box<InboundRequest>,
    mut state: Box<RequestState>,
) -> Response<ResponseBody> {
    if let Some(fields) = &mut state.log_fields {
        fields.protocol = Some("check");
    }
    let kind = match find_call(&inbound, &mut state) {
        Ok(kind) => kind,
        Err(response) => {
            body::discard_body(&mut inbound.request);
            return forward::local_response(*response, state);
        }
    };
    let read = judge::read_call_body(&state, &mut inbound, BODY_MAX).await;
    state.judged_at = Now::read_clock();
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(fault) => {
            count_call(&state, if fault.is_by_client() { kind.bad_result() } else { CallResult::CheckFault });
            let mut response = refuse_fault(&mut state, fault, "", fault.detail());
            // The rest of the body would be read as the next request.
            hop_by_hop::set_connection_close(response.headers_mut());
            return forward::local_response(response, state);
        }
    };
    drop(inbound);
    let answered = match kind {
        CallKind::Check => match check::prepare_check(&bytes, &state) {
            // The body is no longer needed while the call waits.
            Ok((described, lease_for)) => {
                drop(bytes);
                return match check::judge_check(described, state) {
                    Ok((judged, place)) => match judged.conclude_call().await {
                        Ok(admitted) => check::answer_admitted(admitted.into_parts().1, place, lease_for),
                        Err(rejected) => check::answer_refused(rejected.state, rejected.response.status()),
                    },
                    Err(response) => *response,
                };
            }
            Err(fault) => Err(fault),
        },
        CallKind::Release => answer_release(&bytes, &mut state),
        CallKind::Settle => answer_settlement(&bytes, &mut state),
        CallKind::Renew => answer_renewal(&bytes, &mut state),
    };
    let response = answered.unwrap_or_else(|fault| {
        count_call(&state, kind.bad_result());
        refuse_fault(&mut state, Fault::BadCall, &fault.field, &fault.message)
    });
    forward::local_response(response, state)
}

/// The call, or the response to one that is not read.
fn find_call(inbound: &InboundRequest, state: &mut RequestState) -> Result<CallKind, Box<Response<Bytes>>> {
    let worker = state.worker.clone();
    let headers = inbound.request.headers();
    let mut refuse = |result, fault: Fault, message: &str| {
        count_call(state, result);
        Box::new(refuse_fault(state, fault, "", message))
    };
    match worker.gateway.calls.authorize_caller(headers) {
        Ok(()) => {}
        Err(CallerFault::Token) => {
            let mut response = refuse(CallResult::Denied, Fault::BadToken, Fault::BadToken.detail());
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return Err(response);
        }
        Err(CallerFault::Origin) => {
            return Err(refuse(CallResult::Denied, Fault::AccessDenied, FROM_BROWSER));
        }
        Err(CallerFault::NoService) => return Err(refuse(CallResult::Denied, Fault::NoLocation, NO_SERVICE)),
    }
    if location::request_host(inbound.request.version(), headers, inbound.authority.as_ref()).is_err() {
        return Err(refuse(CallResult::NoCall, Fault::BadHost, Fault::BadHost.detail()));
    }
    let Some(kind) = CallKind::from_path(inbound.request.uri().path()) else {
        let message = "the calls are /check, /release, /settle, /renew and /auth";
        return Err(refuse(CallResult::NoCall, Fault::NoLocation, message));
    };
    if inbound.request.method() != Method::POST {
        let mut response = refuse(CallResult::NoCall, Fault::BadMethod, "calls are sent with POST");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Err(response);
    }
    if inbound.request.body().size_hint().lower() > BODY_MAX {
        let message = "the body of a call has at most 64 KiB";
        return Err(refuse(kind.bad_result(), Fault::BodyTooLarge, message));
    }
    Ok(kind)
}

fn answer_release(bytes: &[u8], state: &mut RequestState) -> Result<Response<Bytes>, CallFault> {
    let lease = call_body::read_release(bytes)?;
    let worker = state.worker.clone();
    let leases = &worker.gateway.calls.leases;
    if !lease.is_some_and(|lease| leases.release(lease, worker.id, state.judged_at)) {
        return Ok(refuse_unknown(state, CallResult::ReleaseUnknown));
    }
    count_call(state, CallResult::ReleaseDone);
    Ok(answer::render_done("released"))
}

fn answer_renewal(bytes: &[u8], state: &mut RequestState) -> Result<Response<Bytes>, CallFault> {
    let (lease, span) = call_body::read_renewal(bytes)?;
    let worker = state.worker.clone();
    let leases = &worker.gateway.calls.leases;
    if !lease.is_some_and(|lease| leases.renew(lease, span, state.judged_at)) {
        return Ok(refuse_unknown(state, CallResult::RenewUnknown));
    }
    count_call(state, CallResult::RenewDone);
    Ok(answer::render_done("renewed"))
}

fn answer_settlement(bytes: &[u8], state: &mut RequestState) -> Result<Response<Bytes>, CallFault> {
    let (lease, units) = call_body::read_settlement(bytes)?;
    let worker = state.worker.clone();
    let leases = &worker.gateway.calls.leases;
    let settle = |lease: LeaseId| leases.settle(lease, &units, worker.id, state.judged_at);
    match lease.ok_or(SettleFault::Unknown).and_then(settle) {
        Ok((settlements, goes_on)) => {
            count_call(state, CallResult::SettleDone);
            let names =
                settlements.iter().map(|settled| (settled, worker.gateway.limits.get(settled.limit.0)));
            let response = answer::render_settled(names, goes_on);
            state.response.settlement = settlements.first().copied().map(Box::new);
            Ok(response)
        }
        Err(SettleFault::Unknown) => Ok(refuse_unknown(state, CallResult::SettleUnknown)),
        Err(SettleFault::NotReserved(limit)) => Err(match limit.is_empty() {
            true => CallFault::new("lease", "nothing of this lease is to be settled"),
            false => {
                let message = format!("nothing of the limit `{limit}` is to be settled in this lease");
                CallFault::new(format!("units.{limit}"), message)
            }
        }),
    }
}

fn count_call(state: &RequestState, result: CallResult) {
    state.worker.gateway.calls.counts.count_call(state.worker.id, result);
}

fn refuse_unknown(state: &mut RequestState, result: CallResult) -> Response<Bytes> {
    count_call(state, result);
    state.outcome.error = Some("no such lease");
    let message = "there is no such lease, or it has ended";
    answer::render_fault(StatusCode::NOT_FOUND, "no_lease", "lease", message)
}

/// The response to a call that is not judged; stores and counts the fault.
fn refuse_fault(state: &mut RequestState, fault: Fault, field: &str, message: &str) -> Response<Bytes> {
    state.outcome.verdict = Verdict::Fault(fault);
    state.worker.gateway.metrics.count_fault(state.worker.id, fault.index());
    answer::render_fault(fault.status(), fault.cause(), field, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// A call's future is copied when it begins, so that the needs of few calls must not enlarge it.
    #[test]
    fn the_future_of_a_call_is_small() {
        let rls = |inbound, state| answer_rls(RlsCall::ShouldRateLimit, inbound, state);
        let sizes = [future_size(answer_check), future_size(answer_auth), future_size(rls)];
        for size in sizes {
            assert!(size <= 1536, "{sizes:?} bytes");
        }
    }
}
