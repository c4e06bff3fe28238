//! Envoy's rate limit service: `ShouldRateLimit` over gRPC and as JSON, and the health of the process over gRPC.
//!
//! `wire` is gRPC, `messages` are its messages. `plan` finds the rule of each descriptor, `run` judges all descriptors
//! as one transaction, and `status` is the answer.

mod json;
mod messages;
mod plan;
mod run;
mod status;
mod wire;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http::header::HeaderMap;
use http::{Method, Response, StatusCode};
use http_body::Body;

use super::{BODY_MAX, FROM_BROWSER, NO_SERVICE, count_call};
use crate::forward::{self, GrpcFrames, ResponseBody};
use crate::gateway::CallerFault;
use crate::judge;
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::{RequestState, Verdict};
use crate::reject::Fault;
use messages::{HealthCheckRequest, HealthCheckResponse, RateLimitRequest, ServingStatus};
use run::CallDeadline;
use sluicegate_base::clock::Now;
use sluicegate_http::request::body;
use sluicegate_http::request::headers::grpc;
use sluicegate_observe::metrics::CallResult;
use wire::RlsFault;

/// A call of the service, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RlsCall {
    /// The question about descriptors, over gRPC.
    ShouldRateLimit,
    /// The question about the health of the process.
    HealthCheck,
    /// The question that is answered again at every change of the health.
    HealthWatch,
    /// The first as JSON.
    Json,
    /// gRPC of another kind.
    Unknown,
}

// === impl RlsCall ===

impl RlsCall {
    /// `None` = the request is no call of Envoy's service.
    #[inline]
    pub fn find(inbound: &InboundRequest) -> Option<RlsCall> {
        match inbound.request.uri().path() {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => Some(RlsCall::ShouldRateLimit),
            "/json" => Some(RlsCall::Json),
            "/grpc.health.v1.Health/Check" => Some(RlsCall::HealthCheck),
            "/grpc.health.v1.Health/Watch" => Some(RlsCall::HealthWatch),
            _ => grpc::is_grpc(inbound.request.headers()).then_some(RlsCall::Unknown),
        }
    }

    fn bad_result(self) -> CallResult {
        match self {
            RlsCall::ShouldRateLimit | RlsCall::Json => CallResult::RlsBad,
            RlsCall::HealthCheck | RlsCall::HealthWatch => CallResult::RlsHealthBad,
            RlsCall::Unknown => CallResult::RlsNoCall,
        }
    }
}

/// Answers one call. If the caller hangs up while it waits, the future never ends, and everything is given back.
pub async fn answer_rls(
    call: RlsCall,
    mut inbound: Box<InboundRequest>,
    mut state: Box<RequestState>,
) -> Response<ResponseBody> {
    if let Some(fields) = &mut state.log_fields {
        fields.protocol = Some("rls");
    }
    let (deadline, bytes) = match read_call(call, &mut inbound, &mut state).await {
        Ok(read) => read,
        Err(refusal) => {
            body::discard_body(&mut inbound.request);
            return refuse_call(call, refusal, state);
        }
    };
    let request = match call {
        RlsCall::ShouldRateLimit => wire::read_message::<RateLimitRequest>(&bytes),
        RlsCall::Json => json::read_request(&bytes),
        RlsCall::HealthCheck | RlsCall::HealthWatch | RlsCall::Unknown => {
            return match answer_health(call, &bytes, &state) {
                Ok(response) => {
                    count_call(&state, CallResult::RlsHealthDone);
                    forward::grpc_response(response, state)
                }
                Err(fault) => refuse_call(call, CallRefusal::bad(call, fault), state),
            };
        }
    };
    drop(bytes);
    let request = match request {
        Ok(request) => request,
        Err(fault) => return refuse_call(call, CallRefusal::bad(call, fault), state),
    };
    let (state, answered) = run::run_call(&request, deadline, inbound, state).await;
    match answered {
        Ok(answer) if call == RlsCall::Json => forward::local_response(json::render_response(&answer), state),
        Ok(answer) => forward::grpc_response(wire::render_unary(&answer), state),
        Err(refusal) => refuse_call(call, refusal, state),
    }
}

/// Why a call gets no answer of its own, and how that is counted.
pub(super) struct CallRefusal {
    fault: RlsFault,
    result: CallResult,
    /// `None` = it is counted already.
    counted: Option<Fault>,
}

impl CallRefusal {
    fn bad(call: RlsCall, fault: RlsFault) -> CallRefusal {
        CallRefusal { fault, result: call.bad_result(), counted: Some(Fault::BadCall) }
    }

    fn of_body(call: RlsCall, fault: Fault) -> CallRefusal {
        let result = match fault {
            Fault::LocationTimeout => CallResult::RlsLate,
            fault if fault.is_by_client() => call.bad_result(),
            _ => CallResult::RlsFault,
        };
        CallRefusal { fault: RlsFault::of_gateway(fault), result, counted: Some(fault) }
    }
}

/// Checks the head of a call, and reads its body within its deadline.
async fn read_call(
    call: RlsCall,
    inbound: &mut InboundRequest,
    state: &mut RequestState,
) -> Result<(CallDeadline, Bytes), CallRefusal> {
    check_call(call, inbound, state)?;
    let timeout = wire::read_timeout(inbound.request.headers());
    let deadline = CallDeadline::new(state.started, timeout.map_err(|fault| CallRefusal::bad(call, fault))?);
    deadline.watch_request(state);
    let read = judge::read_call_body(state, inbound, BODY_MAX).await;
    state.judged_at = Now::read_clock();
    Ok((deadline, read.map_err(|fault| CallRefusal::of_body(call, fault))?))
}

/// Checks the caller and the head of its call.
fn check_call(call: RlsCall, inbound: &InboundRequest, state: &RequestState) -> Result<(), CallRefusal> {
    let headers = inbound.request.headers();
    authorize(headers, state)?;
    let no_call =
        |fault| CallRefusal { fault, result: CallResult::RlsNoCall, counted: Some(Fault::NoLocation) };
    if call == RlsCall::Unknown {
        let path = inbound.request.uri().path();
        return Err(no_call(RlsFault::unimplemented(format!("there is no method {path}"))));
    }
    if inbound.request.method() != Method::POST || call != RlsCall::Json && !grpc::is_grpc(headers) {
        let message = "calls are sent with POST, those of gRPC as application/grpc";
        let fault =
            RlsFault { http_status: StatusCode::METHOD_NOT_ALLOWED, ..RlsFault::unimplemented(message) };
        return Err(no_call(fault));
    }
    if headers.get(wire::GRPC_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(CallRefusal::bad(call, wire::compressed()));
    }
    if inbound.request.body().size_hint().lower() > BODY_MAX {
        return Err(CallRefusal::of_body(call, Fault::BodyTooLarge));
    }
    Ok(())
}

/// Refuses callers without a token, and pages in a browser.
fn authorize(headers: &HeaderMap, state: &RequestState) -> Result<(), CallRefusal> {
    let Err(fault) = state.worker.gateway.calls.authorize_caller(headers) else { return Ok(()) };
    let (fault, counted) = match fault {
        CallerFault::Token => (RlsFault::of_gateway(Fault::BadToken), Fault::BadToken),
        CallerFault::Origin => (RlsFault::new("7", FROM_BROWSER, StatusCode::FORBIDDEN), Fault::AccessDenied),
        CallerFault::NoService => (RlsFault::unimplemented(NO_SERVICE), Fault::NoLocation),
    };
    Err(CallRefusal { fault, result: CallResult::RlsDenied, counted: Some(counted) })
}

fn refuse_call(call: RlsCall, refusal: CallRefusal, mut state: Box<RequestState>) -> Response<ResponseBody> {
    count_call(&state, refusal.result);
    if let Some(fault) = refusal.counted {
        state.outcome.verdict = Verdict::Fault(fault);
        state.worker.gateway.metrics.count_fault(state.worker.id, fault.index());
    }
    let response: Response<Bytes> = match call {
        RlsCall::Json => json::render_fault(&refusal.fault),
        _ => refusal.fault.render(),
    };
    forward::local_response(response, state)
}

/// The services with a told health; the empty name is the whole process. envoyproxy/ratelimit tells its own as
/// `ratelimit`.
const SERVICES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// The answer to a question about health.
///
/// # Errors
/// The message is malformed, or nothing is known of the service.
fn answer_health(
    call: RlsCall,
    bytes: &[u8],
    state: &RequestState,
) -> Result<Response<GrpcFrames>, RlsFault> {
    let HealthCheckRequest { service } = wire::read_message(bytes)?;
    let is_known = SERVICES.contains(&service.as_str());
    let mut serving = state.worker.gateway.calls.serving.subscribe();
    let is_serving = *serving.borrow_and_update();
    let status = match (is_known, is_serving) {
        (true, true) => ServingStatus::Serving,
        (true, false) => ServingStatus::NotServing,
        (false, _) => ServingStatus::ServiceUnknown,
    };
    if call == RlsCall::HealthCheck {
        if !is_known {
            let message = "nothing is known of the health of this service";
            return Err(RlsFault::new("5", message, StatusCode::NOT_FOUND));
        }
        return Ok(wire::render_unary(&report_status(status)));
    }
    // The stream lasts until the process stops; its sender is gone only then, too.
    let last = async move {
        let _ = serving.wait_for(|serving| !serving).await;
        let status = if is_known { ServingStatus::NotServing } else { ServingStatus::ServiceUnknown };
        stream::iter([wire::frame_message(&report_status(status)), wire::trailers("14", "the process ends")])
    };
    let first = stream::iter([wire::frame_message(&report_status(status))]);
    Ok(wire::render_frames(first.chain(stream::once(last).flatten())))
}

fn report_status(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}
