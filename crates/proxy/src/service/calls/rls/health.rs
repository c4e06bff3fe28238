//! `grpc.health.v1.Health`: whether the process takes calls.

use http::Response;

use super::RlsCall;
use super::messages::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use super::wire;
use super::wire::RlsFault;
use crate::forward::GrpcBody;
use crate::judge::request_state::RequestState;

/// The services with a told health; the empty name is the whole process. envoyproxy/ratelimit tells its own as
/// `ratelimit`.
const SERVICES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// The answer to a question about health.
///
/// # Errors
/// The message is malformed, or nothing is known of the service.
pub(super) fn answer_health(
    call: RlsCall,
    bytes: &[u8],
    state: &RequestState,
) -> Result<Response<GrpcBody>, RlsFault> {
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
            return Err(RlsFault::not_found("nothing is known of the health of this service"));
        }
        return Ok(wire::render_unary(&tell(status)));
    }
    // The stream lasts until the process stops; its sender is gone only then, too.
    let last = async move {
        let _ = serving.wait_for(|serving| !serving).await;
        let status = if is_known { ServingStatus::NotServing } else { ServingStatus::ServiceUnknown };
        (wire::frame_message(&tell(status)), wire::stopping_trailers())
    };
    Ok(wire::render_body(GrpcBody::stream(wire::frame_message(&tell(status)), last)))
}

fn tell(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}
