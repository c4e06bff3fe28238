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
use std::rc::Rc;

use limits::{LookMode, PlannedWait};
use sluicegate_admission::chain::{Decisions, WaitingRequest};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_base::wall_clock::WallClock;
use sluicegate_config::describe::describe_location;
use sluicegate_http::request::cors;
use sluicegate_http::request::location::{Arrival, LocationCandidate, LossReason, UnmetCondition};
use sluicegate_http::request::source::{Token, TokenVerifier};
use sluicegate_model::{AccessLogOutput, Config, LocationConfig};
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::gateway::auth::{AuthAnswer, RouteAuth};
use sluicegate_proxy::judge::{self, BodyView, JudgeProgress, RequestFacts};
use sluicegate_proxy::reject::Rejection;
use sluicegate_store::Session;

pub use limits::{ClassExplanation, CounterExplanation, GrantExplanation, LeasedUnits, LimitExplanation};
pub use query::{ParsedQuery, Query};
pub use verdict::VerdictExplanation;

json_object! {
    /// The decision on one request, and its reasons. `Display` renders it for people.
    #[derive(Debug, Clone, Default)]
    pub struct Explanation as "Explanation" {
        pub named_limits: Vec<String> = maybe "The limits that a call names; absent for a request.",
        pub client: Option<ClientExplanation> = maybe "The client, behind trusted proxies; absent for a call.",
        pub host: Option<String> = maybe "The host; absent when it cannot be read.",
        pub path: Option<String> = maybe "The normalised path; absent when there is none.",
        pub arrival: Option<ArrivalExplanation>
            = maybe "Where the request comes in; absent if no location depends on it.",
        pub location: Option<LocationExplanation> = maybe "The location that serves the request.",
        pub passed_over: Vec<LocationExplanation> = "Locations that match but do not serve the request.",
        pub access: Option<&'static str> = maybe "The decision of the access rules.",
        pub ban_left_ms: Option<u64> = maybe "Milliseconds left of the client's ban.",
        pub ban: Option<BanExplanation> = maybe "The ban, if an operator set it.",
        pub stop: Option<StopExplanation> = maybe "The stop by its upstream.",
        pub servers: Option<String>
            = maybe "The servers of its upstream by state, and its queue; absent where none is asked.",
        pub token: Option<TokenExplanation> = maybe "Whether the client's token is accepted.",
        pub auth: Option<String> = maybe "The question to the auth service; absent where none is asked.",
        pub account: Option<AccountExplanation> = maybe "The account.",
        pub tier: Option<String> = maybe "The tier of the account.",
        pub limits: Vec<LimitExplanation> = "The chain, in the order of judging.",
        pub limits_not_judged: Vec<String>
            = maybe "The limits that do not judge it, because it is decided before.",
        pub verdict: VerdictExplanation = "The decision.",
    }

    /// The address that counts as the client, and the reason.
    #[derive(Debug, Clone)]
    pub struct ClientExplanation as "ExplainedClient" {
        pub ip: String = "Its address.",
        pub peer: String = "The address of the peer.",
        pub trusted_peer: bool = "Whether the peer is a trusted proxy.",
        pub why: String = "Why this address counts.",
    }

    /// The connection that the request comes in by.
    #[derive(Debug, Clone)]
    pub struct ArrivalExplanation as "ExplainedArrival" {
        pub scheme: &'static str = "http or https.",
        pub listener: Option<String> = maybe "The name of the listener.",
    }

    /// A location that matches the request.
    #[derive(Debug, Clone)]
    pub struct LocationExplanation as "ExplainedLocation" {
        pub index: usize = "Its index in the file, from 0.",
        pub location: String = "The location.",
        pub why: String = "Why it serves the request, or why not.",
    }

    /// A ban that an operator set.
    #[derive(Debug, Clone)]
    pub struct BanExplanation as "ExplainedBan" {
        pub target: String = "An address, a network or `account=NAME`.",
        pub by: String = "The name of the operator's token.",
        pub reason: String = "The operator's reason.",
    }

    /// A stop that its upstream asked for.
    #[derive(Debug, Clone)]
    pub struct StopExplanation as "ExplainedStop" {
        pub upstream: String = "The upstream.",
        pub status: Option<u16> = maybe "The status that began it; absent if it said that nothing is left.",
        pub left_ms: u64 = "Milliseconds left; 0 while the pace climbs after it.",
        pub until_ms: u64 = "Its end, in milliseconds since 1970.",
        pub wait_ms: u64 = "Milliseconds until this request may pass, behind those that wait.",
    }

    /// The token of the client, accepted or not.
    #[derive(Debug, Clone)]
    pub struct TokenExplanation as "ExplainedToken" {
        pub accepted: bool = "Whether its claims are used.",
        pub why: Option<String> = maybe "Why not.",
    }

    /// The account of the request, and its source.
    #[derive(Debug, Clone)]
    pub struct AccountExplanation as "ExplainedAccount" {
        pub name: Option<String> = "Null if the request has none.",
        pub from: String = "The source of the account.",
        // The source is a claim of a token that is not accepted.
        token_not_accepted: bool,
    }
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
/// The query is not a valid request: a sentence on how to write it.
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
    explain_by_parts(gateway, session, query, now).await
}

/// Explains the decision on a request that is no call.
async fn explain_by_parts(
    gateway: &Gateway,
    session: Option<&Session>,
    query: &Query,
    now: Now,
) -> Result<Explanation, String> {
    let mut parsed = ParsedQuery::parse_query(query, &gateway.config.listen)?;
    if let Some(copied) = &gateway.headers.copied {
        copied.strip(&mut parsed.headers);
    }
    let client = gateway.clients.find_client(Some(parsed.peer.to_canonical()), &parsed.headers);
    let verifier = gateway.callers.tokens.as_ref().map(TokenVerifier::new);
    let today = WallClock::new(now).unix_ms(now) / 1_000;
    let token = verifier.as_ref().map(|verifier| Token::new(verifier, &parsed.headers, today));
    let head = parsed.to_head(client, now);
    let facts_with = |answer: Option<Rc<AuthAnswer>>, body_view| {
        let mut facts = RequestFacts::new(head, parsed.body_size(), token.as_ref());
        (facts.is_question_charged, facts.answer, facts.body_view) = (answer.is_some(), answer, body_view);
        facts
    };
    let unread = || if parsed.data.is_some() { BodyView::Unread } else { BodyView::Absent };
    let mut facts = facts_with(None, unread());
    let mut look = LookMode::default();
    let mut decisions = Decisions::new();
    let mut verdict = None;
    let mut judged = match parsed.find_parser_fault(gateway) {
        Some(fault) => Err(fault.into()),
        None => judge::judge(gateway, &mut facts, &mut look, &mut decisions, &mut verdict),
    };
    let service = facts.route().and_then(|route| gateway.routes[route.0].auth.as_deref());
    let mut chain = gateway.chain_for(facts.route());
    let mut question = None;
    if let (Ok(JudgeProgress::AwaitsAnswer), Some(auth)) = (&judged, service) {
        let waiter = WaitingRequest::from(&gateway.load.waiting);
        match look.finish_chain(session, waiter, verdict.take(), &mut decisions).await {
            Ok(_) => {
                (look, decisions) = (LookMode::default(), Decisions::new());
                question = Some(describe::describe_question(auth));
                facts = facts_with(Some(state_answer(gateway, auth, &parsed)?), unread());
                judged = judge::judge(gateway, &mut facts, &mut look, &mut decisions, &mut verdict);
            }
            Err(rejection) => (judged, chain) = (Err(rejection), &auth.chain),
        }
    } else if let (false, None, Some(_)) = (parsed.answer.is_empty(), service, facts.route()) {
        return Err("the location has no auth service, whose answer --auth would be".to_owned());
    }
    let values;
    if let (Ok(JudgeProgress::AwaitsBody(_)), Some(data)) = (&judged, &parsed.data)
        && let Some(plan) = gateway.body_plan_for(facts.route())
    {
        values = judge::find_values(&parsed.headers, plan, data.as_bytes(), true);
        facts = facts_with(facts.answer.take(), BodyView::Read(&values));
        judged = judge::judge(gateway, &mut facts, &mut look, &mut decisions, &mut verdict);
    }
    let waiting_size = || facts.waiting_bytes();
    let waiter = WaitingRequest::new(&gateway.load.waiting, &waiting_size).with_pause(facts.pause_ns());
    let planned = look.finish_chain(session, waiter, verdict, &mut decisions).await;
    let outcome = judged.and(planned);
    look.add_counters(chain, &decisions, now);
    let mut explanation = explain_facts(gateway, &parsed, &facts, outcome.as_ref().err());
    let not_judged = chain.chain.limits().iter().skip(look.limits.len());
    explanation.limits_not_judged = not_judged.map(|limit| limit.name.to_string()).collect();
    (explanation.limits, explanation.auth) = (look.limits, question);
    explain_outcome(gateway, &facts, outcome, &mut explanation);
    Ok(explanation)
}

/// The answer of the auth service that the query states.
fn state_answer(gateway: &Gateway, auth: &RouteAuth, parsed: &ParsedQuery) -> Result<Rc<AuthAnswer>, String> {
    let answer = AuthAnswer::read(&auth.config, gateway.config.account.from.as_ref(), &parsed.answer);
    answer.map(Rc::new).ok_or("the answer has control bytes, or names two accounts".to_owned())
}

/// Describes the outcome of judging.
fn explain_outcome(
    gateway: &Gateway,
    facts: &RequestFacts<'_>,
    outcome: Result<Option<PlannedWait>, Rejection>,
    explanation: &mut Explanation,
) {
    let reject =
        |rejection: &Rejection| verdict::explain_rejected(gateway, rejection, facts.route(), facts.is_grpc());
    explanation.verdict = match (outcome, facts.route_or_rejection()) {
        (Ok(wait), Ok(route)) => {
            let admitted = verdict::explain_admitted(gateway, facts, route, wait);
            match describe::find_upstream(gateway, facts) {
                Some(upstream) => verdict::explain_servers(upstream, facts.head.received, admitted, reject),
                None => admitted,
            }
        }
        (Ok(wait), Err(unserved)) => {
            VerdictExplanation { wait_ms: wait.and_then(|wait| wait.wait_ms), ..reject(&unserved) }
        }
        (Err(rejection), _) => reject(&rejection),
    };
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
        client: Some(describe::explain_client(gateway, parsed, facts.head.client)),
        host: unless_empty(facts.host.to_string()),
        path: unless_empty(describe::escape_bytes(&facts.path)),
        arrival: explain_arrival(gateway, facts),
        access: facts.access.map(|decision| describe::describe_access_decision(decision, rejection)),
        ban_left_ms: describe::ban_left_ms(rejection),
        ban: describe::explain_ban(gateway, facts, rejection),
        stop: describe::explain_stop(gateway, facts),
        servers: describe::find_upstream(gateway, facts)
            .map(|upstream| describe::describe_servers(upstream, facts.head.received)),
        tier: facts.tier.as_ref().map(|tier| tier.as_str().to_owned()),
        ..Explanation::default()
    };
    if !facts.path.is_empty() {
        // A preflight belongs to the location of the request that it asks for.
        let requested = cors::requested_method(facts.head.method, facts.head.headers);
        let method = requested.as_ref().filter(|_| facts.is_preflight()).unwrap_or(facts.head.method);
        let arrival = Arrival { method, ..facts.arrival(&gateway.locations) };
        let candidates = gateway.locations.list_candidates(&facts.host, &facts.path, &arrival);
        explain_locations(gateway, &candidates, &arrival, &mut explanation);
    }
    if facts.is_token_read {
        let fault = facts.token.map(Token::fault);
        explanation.token = fault.map(|fault| TokenExplanation {
            accepted: fault.is_none(),
            why: fault.map(|fault| fault.text().to_owned()),
        });
    }
    if facts.is_account_read {
        explanation.account = describe::explain_account(gateway, facts);
    }
    explanation
}

fn explain_arrival(gateway: &Gateway, facts: &RequestFacts<'_>) -> Option<ArrivalExplanation> {
    let depends = |location: &LocationConfig| location.scheme.is_some() || !location.listeners.is_empty();
    let arrival = facts.arrival(&gateway.locations);
    let explained =
        ArrivalExplanation { scheme: arrival.scheme.as_str(), listener: arrival.listener.map(str::to_owned) };
    gateway.config.locations.iter().any(depends).then_some(explained)
}

fn explain_locations(
    gateway: &Gateway,
    candidates: &[LocationCandidate],
    arrival: &Arrival<'_>,
    explanation: &mut Explanation,
) {
    for candidate in candidates {
        let index = candidate.location;
        let config = &gateway.config.locations[index];
        let location = describe_location(&gateway.config, config);
        let unmet = || UnmetCondition::find(config, arrival);
        let why = match candidate.loss {
            None => candidate.winning_reason(),
            Some(LossReason::Condition) => unmet().map(|unmet| unmet.to_string()).unwrap_or_default(),
            Some(loss) => loss.text().to_owned(),
        };
        let explained = LocationExplanation { index: index.0, location, why };
        match candidate.loss {
            None => explanation.location = Some(explained),
            Some(_) => explanation.passed_over.push(explained),
        }
    }
}

#[cfg(test)]
mod tests;
