//! Answers admin requests: authorizes the caller, finds the endpoint in the table, reads its parameters and its body,
//! runs its handler, and audits changes.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::header::{CONNECTION, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use super::answer::{AdminBody, AdminError, Answer, sends_json};
use super::audit::{self, REASON_MAX};
use super::authorize::{CallerPolicy, CallerRejection, is_from_other_site};
use super::connections::AdminConnection;
use super::endpoint::{AdminRequest, Endpoint, EndpointAccess};
use super::endpoints::ENDPOINTS;
use super::events::STREAM_EVENTS;
use super::routes::{EndpointRoute, list_methods, read_query};
use super::state::AdminState;
use sluicegate_model::AdminRights;

/// Bytes of a request's body.
const BODY_MAX: usize = 64 * 1024;
/// Time for the whole body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers admin requests; cheap to clone.
#[derive(Clone)]
pub(super) struct AdminService {
    state: AdminState,
    policy: CallerPolicy,
}

impl AdminService {
    pub(super) fn new(state: AdminState, policy: CallerPolicy) -> AdminService {
        AdminService { state, policy }
    }

    /// Answers a request that came over `connection` from `peer`.
    pub(super) async fn answer_request(
        self,
        request: Request<Incoming>,
        peer: SocketAddr,
        connection: Rc<AdminConnection>,
    ) -> Response<AdminBody> {
        let (head, body) = request.into_parts();
        let route = EndpointRoute::find(ENDPOINTS, head.method.as_str(), head.uri.path());
        let is_public = match &route {
            EndpointRoute::Found { endpoint, .. } => endpoint.access == EndpointAccess::Public,
            EndpointRoute::WrongMethod(endpoints) => {
                endpoints.iter().all(|endpoint| endpoint.access == EndpointAccess::Public)
            }
            EndpointRoute::Unknown => false,
        };
        let answer = match self.policy.check_request(&head, peer, is_public) {
            Err(rejection) => reject_caller(rejection),
            Ok(caller) => match route {
                EndpointRoute::Unknown => list_endpoints().into(),
                EndpointRoute::WrongMethod(endpoints) => AdminError::wrong_method(&list_methods(&endpoints)),
                EndpointRoute::Found { endpoint, path_values } => {
                    let routed = AdminRequest {
                        state: self.state.clone(),
                        endpoint,
                        endpoints: ENDPOINTS,
                        needs_token: self.policy.needs_token(),
                        connection,
                        path_values,
                        query_values: Vec::new(),
                        body: Map::new(),
                        reason: None,
                        caller,
                    };
                    answer_routed(routed, &head, body).await
                }
            },
        };
        let mut response = answer.into_response(&head.headers);
        // Rejected callers do not keep their connections.
        if response.status().is_client_error() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if head.method == Method::HEAD && !matches!(response.body(), AdminBody::Whole(_)) {
            *response.body_mut() = AdminBody::from(String::new());
        }
        response
    }
}

/// Answers a request for an endpoint of the table, by an accepted caller.
async fn answer_routed(mut routed: AdminRequest, head: &Parts, body: Incoming) -> Answer {
    let endpoint = routed.endpoint;
    let read = read_request(&mut routed, head, body).await;
    let (state, caller) = (routed.state.clone(), routed.caller.clone());
    let (path_values, reason) = (routed.path_values.clone(), routed.reason.clone());
    let answer = match read {
        Err(rejection) => Err(rejection),
        Ok(()) => (endpoint.handler)(routed).await,
    };
    let answer = answer.unwrap_or_else(Answer::from);
    if endpoint.access == EndpointAccess::Change {
        audit::record_change(endpoint, &caller, &path_values, reason.as_deref(), &answer);
        state.changes.count_change(endpoint.name, answer.status.is_success());
    }
    answer
}

/// Reads everything that the handler needs into `routed`.
async fn read_request(routed: &mut AdminRequest, head: &Parts, body: Incoming) -> Result<(), AdminError> {
    let (endpoint, caller) = (routed.endpoint, &routed.caller);
    let changes = endpoint.access == EndpointAccess::Change;
    let sets_numbers = caller.rights == AdminRights::Numbers;
    let may_change =
        caller.rights == AdminRights::All || sets_numbers && endpoint.name.ends_with("set_numbers");
    if changes && !may_change {
        let may = if sets_numbers { "read and set numbers" } else { "read" };
        let why = format!("the token `{}` may only {may}, and this call changes something", caller.name);
        return Err(AdminError::new(StatusCode::FORBIDDEN, &why));
    }
    // An image or a link on another site could take the streams from operators.
    if endpoint.name == STREAM_EVENTS && is_from_other_site(&head.headers) {
        let why = "the page of another site asks for events";
        return Err(AdminError::new(StatusCode::FORBIDDEN, why));
    }
    // A form on another site can send any other type.
    if changes && !sends_json(&head.headers) {
        let why = "send Content-Type: application/json to change something";
        return Err(AdminError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    routed.query_values = read_query(endpoint, head.uri.query().unwrap_or_default())
        .map_err(|why| AdminError::new(StatusCode::BAD_REQUEST, &why))?;
    if changes || endpoint.body.is_some() {
        routed.body = read_body(endpoint, body).await?;
    }
    if changes {
        routed.reason = take_reason(endpoint, &mut routed.body)?;
        if endpoint.body.is_none() {
            endpoint.check_members(&routed.body)?;
        }
    }
    Ok(())
}

/// The JSON object in the body; empty for an empty body that may be absent.
async fn read_body(endpoint: &Endpoint, body: Incoming) -> Result<Map<String, Value>, AdminError> {
    let error = AdminError::new;
    let bytes = match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, BODY_MAX).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(fault)) if fault.is::<http_body_util::LengthLimitError>() => {
            return Err(error(StatusCode::PAYLOAD_TOO_LARGE, "the body has more than 64 KiB"));
        }
        Ok(Err(_)) => return Err(error(StatusCode::BAD_REQUEST, "the body ended early")),
        Err(_) => return Err(error(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    };
    if bytes.is_empty() && endpoint.body.as_ref().is_none_or(|body| !body.required) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(endpoint.reject_body("the body is not a JSON object")),
        Err(fault) => Err(endpoint.reject_body(&fault.to_string())),
    }
}

/// Removes `reason` from the body of a change.
fn take_reason(endpoint: &Endpoint, body: &mut Map<String, Value>) -> Result<Option<String>, AdminError> {
    match body.remove("reason") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(reason)) if reason.chars().count() <= REASON_MAX => Ok(Some(reason)),
        Some(Value::String(_)) => {
            Err(endpoint.reject_body(&format!("`reason` has more than {REASON_MAX} characters")))
        }
        Some(_) => Err(endpoint.reject_body("`reason` is not a text")),
    }
}

/// The answer to a path that no endpoint has.
fn list_endpoints() -> AdminError {
    let width = ENDPOINTS.iter().map(|endpoint| endpoint.path.len()).max().unwrap_or_default();
    let line = |Endpoint { method, path, summary, .. }: &Endpoint| {
        format!("{method:<6} {path:<width$}  {summary}\n")
    };
    let names: Vec<String> = ENDPOINTS.iter().map(|one| format!("{} {}", one.method, one.path)).collect();
    AdminError {
        status: StatusCode::NOT_FOUND,
        text: format!(
            "no call has this path; the calls are:\n{}",
            ENDPOINTS.iter().map(line).collect::<String>()
        ),
        json: json!({
            "error": "no call has this path; GET /openapi.json describes all calls",
            "calls": names,
        }),
    }
}

fn reject_caller(rejection: CallerRejection) -> Answer {
    let (status, why) = match rejection {
        CallerRejection::Token => (StatusCode::UNAUTHORIZED, "this call needs an admin token"),
        CallerRejection::Host => (
            StatusCode::FORBIDDEN,
            "the Host is neither an address, nor localhost, nor one of admin.hosts, and there is no token",
        ),
        CallerRejection::Origin => (StatusCode::FORBIDDEN, "the Origin of the request is another site"),
    };
    let challenge =
        (rejection == CallerRejection::Token).then(|| (WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
    Answer::from(AdminError::new(status, why)).with_headers(challenge.into_iter().collect())
}
