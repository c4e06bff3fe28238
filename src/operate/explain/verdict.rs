//! Explains the verdict: the final outcome of a request.

use http::Response;
use http::header::RETRY_AFTER;
use http::uri::PathAndQuery;

use super::describe;
use super::limits::PlannedWait;
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_http::upstream::{NoServer, Upstream};
use sluicegate_model::LocationId;
use sluicegate_proxy::gateway::{Action, Gateway, LimitChain};
use sluicegate_proxy::judge::RequestFacts;
use sluicegate_proxy::reject::{DegradedTo, Fault, RejectContext, Rejection};

json_object! {
    /// The verdict of the chain and of the checks around it.
    #[derive(Debug, Clone, Default)]
    pub struct VerdictExplanation as "ExplainedVerdict" {
        pub outcome: &'static str = "The decision." in ["admit", "wait", "reject", "degrade"],
        pub status: Option<u16> = maybe "The status of a rejection.",
        pub limit: Option<String> = maybe "The limit that decides.",
        pub cause: Option<&'static str> = maybe "The cause, as logs and metrics name it.",
        pub retry_after: Option<String> = maybe "The `Retry-After` of the answer, in seconds.",
        pub retry_after_ms: Option<u64> = maybe "The same, exactly.",
        pub turn: Option<bool> = maybe "True if that is its turn among the rejected requests.",
        pub wait_ms: Option<u64> = maybe "Milliseconds in a queue.",
        pub position: Option<u64> = maybe "The position in a queue for slots, from 1; its wait is not known.",
        pub then: Option<String> = maybe "What happens to the request.",
        pub servers: Option<String> = maybe "Why its upstream takes it later or not at all.",
    }
}

pub(super) fn explain_admitted(
    gateway: &Gateway,
    facts: &RequestFacts<'_>,
    route: LocationId,
    wait: Option<PlannedWait>,
) -> VerdictExplanation {
    let sent = facts.head.uri.path_and_query();
    let target = facts.target.as_ref().or(sent).map_or("/", PathAndQuery::as_str);
    let route = &gateway.routes[route.0];
    let then = match &route.action {
        _ if facts.is_preflight() => describe_preflight(facts),
        Action::Upstream(upstream) if upstream.is_demo() => {
            let answered = "answered by the built-in upstream demo";
            facts
                .target
                .as_ref()
                .map_or(answered.to_owned(), |target| format!("{answered} as {} {target}", facts.head.method))
        }
        Action::Upstream(upstream) => {
            format!("forwarded to upstream {} as {} {target}", upstream.name, facts.head.method)
        }
        Action::Respond { status, .. } => format!("answered here with {}", status.as_u16()),
        Action::Usage(_) => "answered here with what is left".to_owned(),
        Action::Redirect { to, status } => {
            let url = to.render(&redirect_context(facts, &route.name));
            format!("redirected to {} with {}", describe::escape_bytes(&url), status.as_u16())
        }
    };
    VerdictExplanation { then: Some(then), ..explain_wait(&route.chain, wait) }
}

/// The verdict on a request for the servers of `upstream`: `admitted` where one takes it.
pub(super) fn explain_servers(
    upstream: &Upstream,
    now: Now,
    admitted: VerdictExplanation,
    reject: impl Fn(&Rejection) -> VerdictExplanation,
) -> VerdictExplanation {
    let (name, servers) = (&upstream.name, describe::describe_servers(upstream, now));
    let (fault, why) = match (upstream.find_refusal(), upstream.queue(), upstream.waiting_count()) {
        (None, ..) => return admitted,
        (Some(NoServer::Full), Some(queue), waiting) if waiting < queue.size => {
            let wait = format!("{waiting} of {} before it in the queue of upstream {name}", queue.size);
            let is_first = admitted.outcome == "admit";
            let outcome = if is_first { "wait" } else { admitted.outcome };
            return VerdictExplanation { outcome, servers: is_first.then_some(wait), ..admitted };
        }
        (Some(NoServer::Full), ..) => (Fault::NoServer, format!("no server of {name} is free ({servers})")),
        (Some(NoServer::Down), ..) => (Fault::ServersDown, format!("no server of {name} is up ({servers})")),
    };
    VerdictExplanation { servers: Some(why), ..reject(&fault.into()) }
}

/// The verdict on a request that the limits of `chain` admit, perhaps after a wait.
pub(super) fn explain_wait(chain: &LimitChain, wait: Option<PlannedWait>) -> VerdictExplanation {
    let name = |wait: PlannedWait| chain.chain.limits()[wait.limit_index].name.to_string();
    VerdictExplanation {
        outcome: if wait.is_some() { "wait" } else { "admit" },
        wait_ms: wait.and_then(|wait| wait.wait_ms),
        position: wait.and_then(|wait| wait.position),
        limit: wait.map(name),
        ..VerdictExplanation::default()
    }
}

/// The facts that a redirect may contain. The id of a request is made when it arrives.
fn redirect_context<'c>(facts: &'c RequestFacts<'_>, location: &'c str) -> RejectContext<'c> {
    let text =
        |bytes: Option<&'c [u8]>| bytes.and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default();
    let request_uri = facts.head.uri.path_and_query().map_or("", PathAndQuery::as_str);
    RejectContext {
        key_columns: facts.key.as_ref().map_or(&[], |caller| &caller.columns),
        body: None,
        request_id: b"REQUEST-ID",
        client_ip: Some(facts.head.client.ip),
        account: text(facts.account()),
        tier: facts.tier.as_ref().map_or("", |tier| tier.as_str()),
        class: "",
        host: &facts.host,
        uri: str::from_utf8(&facts.path).unwrap_or(facts.head.uri.path()),
        path: &facts.path,
        request_uri: if request_uri == "*" { "" } else { request_uri },
        scheme: facts.scheme.as_str(),
        location,
        upstream: "",
    }
}

fn describe_preflight(facts: &RequestFacts<'_>) -> String {
    match &facts.cors {
        Some(cors) if cors.allows_origin() => {
            "answered by cors with 204; the origin is allowed, and no limit counts it".to_owned()
        }
        _ => "answered by cors with 204; the origin is not allowed, so the browser stops here".to_owned(),
    }
}

/// Takes the status and Retry-After from the answer as it is rendered for `route`.
pub(super) fn explain_rejected(
    gateway: &Gateway,
    rejection: &Rejection,
    route: Option<LocationId>,
    grpc: bool,
) -> VerdictExplanation {
    let rejecter = gateway.rejecters.for_location(route);
    let response: Response<_> = rejecter.render_rejection(rejection, &RejectContext::default(), grpc);
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let (limit, retry_after_ns, instead) = match rejection {
        Rejection::Limit(rejected) => {
            let name = gateway.limits[rejected.limit.0].name.to_string();
            (Some(name), rejected.exact_retry_ns(), rejecter.degraded_to(rejected, grpc))
        }
        Rejection::Banned { left_ns, .. } => (None, Some(*left_ns), None),
        Rejection::Paused(pause) => (None, Some(pause.retry_after_ns), None),
        _ => (None, None, None),
    };
    let verdict = VerdictExplanation {
        outcome: if instead.is_some() { "degrade" } else { "reject" },
        limit,
        cause: Some(rejection.cause_name()),
        ..VerdictExplanation::default()
    };
    if let Some(DegradedTo::Upstream(index)) = instead {
        let upstream = &gateway.upstreams[index.0];
        let then = format!("sent to upstream {} instead", upstream.name);
        let degraded = VerdictExplanation { then: Some(then), ..verdict };
        let reject = |fault: &Rejection| explain_rejected(gateway, fault, route, grpc);
        return explain_servers(upstream, Now::read_clock(), degraded, reject);
    }
    VerdictExplanation {
        status: Some(response.status().as_u16()),
        retry_after: retry_after.map(str::to_owned),
        retry_after_ms: retry_after_ns.map(|ns| ns.div_ceil(1_000_000)),
        turn: matches!(rejection, Rejection::Limit(rejected) if rejected.is_turn).then_some(true),
        ..verdict
    }
}
