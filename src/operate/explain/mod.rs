//! Explains the decision on a request: `sluicegate explain`, offline and for the running gateway.
//!
//! The functions of production make every decision; this module only describes them. Nothing is charged, nothing is
//! sent.

mod call;
mod describe;
mod limits;
mod query;
mod render;
mod verdict;

use std::io;

use serde::Serialize;

use crate::admission::chain::{Decisions, WaitingRequest};
use crate::base::clock::Now;
use crate::base::wall_clock::WallClock;
use crate::config::describe::describe_location;
use crate::config::{AccessLogOutput, Config, LocationConfig};
use crate::proxy::gateway::Gateway;
use crate::proxy::judge;
use crate::proxy::judge::{BodyView, Judgement, RequestFacts};
use crate::proxy::reject::{Fault, Rejection};
use crate::request::cors;
use crate::request::location::{Arrival, LocationCandidate};
use crate::request::source::{BodyValues, Token, TokenVerifier};
use crate::shared::Session;
use limits::LookMode;

pub use limits::{CounterExplanation, GrantExplanation, LimitExplanation};
pub(super) use query::ParsedQuery;
pub use query::Query;
pub use verdict::VerdictExplanation;

/// The decision on one request, and its reasons. `Display` renders it for people.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The limits that a call of the rate-limit service names; empty for a request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named_limits: Vec<String>,
    /// Absent for a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientExplanation>,
    /// Canonical; absent when it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Normalised; absent when it cannot be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Where the request comes in; absent if no location depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival: Option<ArrivalExplanation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<LocationExplanation>,
    /// Locations that match but do not serve the request, with the reason.
    pub passed_over: Vec<LocationExplanation>,
    /// The decision of the access rules; absent without rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<&'static str>,
    /// Time left of the client's ban.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ban_left_ms: Option<u64>,
    /// The ban, if an operator set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ban: Option<BanExplanation>,
    /// The stop by the upstream; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopExplanation>,
    /// The queue in front of the servers of its upstream; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueExplanation>,
    /// Absent where tokens are not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenExplanation>,
    /// Absent unless the configuration has an account source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountExplanation>,
    /// Absent without tiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// The chain, in the order of judging.
    pub limits: Vec<LimitExplanation>,
    /// The names of the limits that do not judge the request, because it is decided before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits_not_judged: Vec<String>,
    pub verdict: VerdictExplanation,
}

#[derive(Debug, Clone, Serialize)]
pub struct ClientExplanation {
    pub ip: String,
    pub peer: String,
    pub trusted_peer: bool,
    pub why: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct ArrivalExplanation {
    pub scheme: &'static str,
    /// Absent if the listener has no name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct LocationExplanation {
    /// Index in the file, from 0.
    pub index: usize,
    /// "/api/ (a.test, GET) -> app".
    pub location: String,
    /// Why it serves the request, or why not.
    pub why: String,
}

/// A ban that an operator set.
#[derive(Debug, Clone, Serialize)]
pub struct BanExplanation {
    /// "192.0.2.7", "10.0.0.0/8", "account=acme".
    pub target: String,
    pub by: String,
    pub reason: String,
}

/// A stop that its upstream asked for.
#[derive(Debug, Clone, Serialize)]
pub struct StopExplanation {
    pub upstream: String,
    /// The status that began it; absent if the upstream only said that nothing is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The rest of the stop; 0 while the pace climbs after it.
    pub left_ms: u64,
    /// Its end, in milliseconds since 1970.
    pub until_ms: u64,
    /// Until this request may pass, behind those that wait.
    pub wait_ms: u64,
}

/// The queue in front of the servers of an upstream.
#[derive(Debug, Clone, Serialize)]
pub struct QueueExplanation {
    pub upstream: String,
    /// Requests that wait now.
    pub waiting: usize,
    /// The most that may wait.
    pub size: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct TokenExplanation {
    /// Whether its claims are used.
    pub accepted: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct AccountExplanation {
    /// `None` = the request has no account.
    pub name: Option<String>,
    /// The source of the account, e.g. "header x-account-id".
    pub from: String,
    /// The source is a claim of a token that is not accepted.
    #[serde(skip)]
    token_not_accepted: bool,
}

/// A gateway with fresh counters that opens neither sockets nor files.
///
/// # Errors
/// As [`Gateway::build`], but never because of a file.
pub fn build_offline(mut config: Config) -> io::Result<Gateway> {
    config.access_log.output = AccessLogOutput::None;
    config.server.workers = 1;
    Gateway::build(&config, None)
}

/// Explains the decision of `gateway` on a request at `now`. `session` reads the limits that are counted in the store;
/// without it their counters are unknown.
///
/// # Errors
/// When the query is not a valid request: a sentence on how to write it.
pub async fn explain_request(
    gateway: &Gateway,
    session: Option<&Session>,
    query: &Query,
    now: Now,
) -> Result<Explanation, String> {
    if let Some(call) = &query.call {
        if query.describes_request() {
            return Err("`call` stands alone: a call has the parts of its key, and no request".to_owned());
        }
        return call::explain_call(gateway, session, call, now).await;
    }
    let parsed = ParsedQuery::parse_query(query, &gateway.config.listen)?;
    let client = gateway.clients.find_client(Some(parsed.peer), &parsed.headers);
    let verifier = gateway.jwt.as_ref().map(|(jwt, claims)| TokenVerifier::new(jwt, claims));
    let today = WallClock::new(now).unix_ms(now) / 1_000;
    let token = verifier.as_ref().map(|verifier| Token::new(verifier, &parsed.headers, today));
    let head = parsed.to_head(client, now);
    let mut facts = RequestFacts::new(head, parsed.body_size(), token.as_ref());
    if parsed.data.is_some() {
        facts.body_view = BodyView::Unread;
    }
    let mut look = LookMode::default();
    let mut decisions = Decisions::new();
    let mut verdict = None;
    let mut judged = match parsed.find_parser_fault(gateway) {
        Some(fault) => Err(fault.into()),
        None => judge::judge(gateway, &mut facts, &mut look, &mut decisions, &mut verdict),
    };
    let values;
    if let (Ok(Judgement::AwaitsBody), Some(data)) = (&judged, &parsed.data)
        && let Some(plan) = gateway.body_plan_for(facts.route())
    {
        values = BodyValues::read(plan, data.as_bytes(), true);
        facts = RequestFacts::new(head, parsed.body_size(), token.as_ref());
        facts.body_view = BodyView::Read(&values);
        judged = judge::judge(gateway, &mut facts, &mut look, &mut decisions, &mut verdict);
    }
    let waiting_size = || facts.waiting_bytes();
    let waiter = WaitingRequest::new(&gateway.waiting, &waiting_size).with_hold(facts.hold_ns());
    let planned = look.finish_chain(session, waiter, verdict, &mut decisions).await;
    let outcome = judged.and(planned);
    let chain = gateway.chain_for(facts.route());
    look.add_counters(chain, &decisions);
    let mut explanation = explain_facts(gateway, &parsed, &facts, outcome.as_ref().err());
    let not_judged = chain.chain.limits().iter().skip(look.limits.len());
    explanation.limits_not_judged = not_judged.map(|limit| limit.name.to_string()).collect();
    explanation.limits = look.limits;
    let reject =
        |rejection: &Rejection| verdict::explain_rejected(gateway, rejection, facts.route(), facts.is_grpc());
    let is_down = |route| describe::is_upstream_down(gateway, &facts, route);
    explanation.verdict = match (outcome, facts.route_or_rejection()) {
        (Ok(_), Ok(route)) if is_down(route) => reject(&Fault::ServersDown.into()),
        (Ok(wait), Ok(route)) => verdict::explain_admitted(gateway, &facts, route, wait),
        (Ok(wait), Err(unserved)) => {
            VerdictExplanation { wait_ms: wait.and_then(|wait| wait.wait_ms), ..reject(&unserved) }
        }
        (Err(rejection), _) => reject(&rejection),
    };
    Ok(explanation)
}

/// Describes the facts that judging has collected.
fn explain_facts(
    gateway: &Gateway,
    parsed: &ParsedQuery,
    facts: &RequestFacts<'_>,
    rejection: Option<&Rejection>,
) -> Explanation {
    let unless_empty = |text: String| (!text.is_empty()).then_some(text);
    let mut explanation = Explanation {
        named_limits: Vec::new(),
        client: Some(describe::explain_client(gateway, parsed, facts.head.client)),
        host: unless_empty(facts.host.to_string()),
        path: unless_empty(describe::escape_bytes(&facts.path)),
        arrival: explain_arrival(gateway, facts),
        location: None,
        passed_over: Vec::new(),
        access: facts.access.map(|decision| describe::describe_access_decision(decision, rejection)),
        ban_left_ms: match rejection {
            Some(Rejection::Banned { left_ns, .. }) => Some(left_ns.div_ceil(1_000_000)),
            _ => None,
        },
        ban: describe::explain_ban(gateway, facts, rejection),
        stop: describe::explain_stop(gateway, facts),
        queue: describe::explain_queue(gateway, facts),
        token: None,
        account: None,
        tier: facts.tier.as_ref().map(|tier| tier.as_str().to_owned()),
        limits: Vec::new(),
        limits_not_judged: Vec::new(),
        verdict: VerdictExplanation::default(),
    };
    if !facts.path.is_empty() {
        // A preflight belongs to the location of the request that it asks for.
        let requested = cors::requested_method(facts.head.method, facts.head.headers);
        let method = requested.as_ref().filter(|_| facts.is_preflight()).unwrap_or(facts.head.method);
        let arrival = Arrival { method, ..facts.arrival() };
        let candidates = gateway.locations.list_candidates(&facts.host, &facts.path, &arrival);
        explain_locations(gateway, &candidates, &mut explanation);
    }
    if facts.is_token_read {
        explanation.token = facts.token.map(TokenExplanation::from_token);
    }
    if facts.is_account_read {
        explanation.account = describe::explain_account(gateway, facts.account.as_deref(), facts.token);
    }
    explanation
}

fn explain_arrival(gateway: &Gateway, facts: &RequestFacts<'_>) -> Option<ArrivalExplanation> {
    let depends = |location: &LocationConfig| location.scheme.is_some() || !location.listeners.is_empty();
    let arrival = facts.arrival();
    let explained =
        ArrivalExplanation { scheme: arrival.scheme.as_str(), listener: arrival.listener.map(str::to_owned) };
    gateway.config.locations.iter().any(depends).then_some(explained)
}

impl TokenExplanation {
    fn from_token(token: &Token<'_>) -> TokenExplanation {
        let fault = token.fault();
        TokenExplanation { accepted: fault.is_none(), why: fault.map(|fault| fault.to_string()) }
    }
}

fn explain_locations(gateway: &Gateway, candidates: &[LocationCandidate], explanation: &mut Explanation) {
    for candidate in candidates {
        let index = candidate.location;
        let location = describe_location(&gateway.config, &gateway.config.locations[index]);
        match candidate.loss {
            None => {
                explanation.location =
                    Some(LocationExplanation { index: index.0, location, why: candidate.winning_reason() })
            }
            Some(loss) => explanation.passed_over.push(LocationExplanation {
                index: index.0,
                location,
                why: loss.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
