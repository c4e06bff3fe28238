//! Explains the decision on a request: `sluicegate explain`, offline and for the running gateway.
//!
//! The functions of production make every decision; this module only describes them. Nothing is charged, nothing is
//! sent.

mod describe;
mod limits;
mod query;
mod render;
mod verdict;

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use http::Version;
use serde::Serialize;

use crate::base::clock::Now;
use crate::base::wall_clock::WallClock;
use crate::config::LocationId;
use crate::config::describe::describe_location;
use crate::config::{AccessLogOutput, Config, TierRules};
use crate::proxy::gateway::Gateway;
use crate::proxy::judge;
use crate::proxy::judge::{Caller, CallerIdentity, RequestHead};
use crate::proxy::reject::{Fault, Rejection};
use crate::request::access::AccessDecision;
use crate::request::account;
use crate::request::account::DuplicateAccount;
use crate::request::client::Client;
use crate::request::location;
use crate::request::location::{LocationCandidate, LocationLookup};
use crate::request::source::{Token, TokenVerifier};
use crate::shared::Session;
use query::ParsedQuery;

pub use limits::{CounterExplanation, LimitExplanation};
pub use query::Query;
pub use verdict::VerdictExplanation;

/// The decision on one request, and its reasons. `Display` renders it for people.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    pub client: ClientExplanation,
    /// Canonical; absent when it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Normalised; absent when it cannot be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
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
pub struct LocationExplanation {
    /// Index in the file, from 0.
    pub index: usize,
    /// "/api/ (a.test, GET) -> app".
    pub location: String,
    /// Why it serves the request, or why not.
    pub why: String,
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
    let parsed = ParsedQuery::parse_query(query)?;
    let client = gateway.clients.find_client(Some(parsed.peer), &parsed.headers);
    let mut explanation = Explanation {
        client: describe::explain_client(gateway, &parsed, client),
        host: None,
        path: None,
        location: None,
        passed_over: Vec::new(),
        access: None,
        ban_left_ms: None,
        token: None,
        account: None,
        tier: None,
        limits: Vec::new(),
        verdict: VerdictExplanation::default(),
    };
    explanation.verdict = match trace_request(gateway, session, &parsed, client, now, &mut explanation).await
    {
        Ok(plan) => verdict::explain_admitted(gateway, &parsed, &plan),
        Err((rejection, route)) => verdict::explain_rejected(gateway, &rejection, route),
    };
    Ok(explanation)
}

/// A request that is forwarded, perhaps after a wait.
struct ForwardPlan {
    route: LocationId,
    /// Nanoseconds, and the index of the limit in the chain.
    wait: Option<(u64, usize)>,
    /// The rewritten target, if it differs from the one sent.
    target: Option<String>,
}

type LocatedRejection = (Rejection, Option<LocationId>);

impl TokenExplanation {
    fn from_token(token: &Token<'_>) -> TokenExplanation {
        let fault = token.fault();
        TokenExplanation { accepted: fault.is_none(), why: fault.map(|fault| fault.to_string()) }
    }
}

/// The steps of `proxy::judge`, in its order.
async fn trace_request(
    gateway: &Gateway,
    session: Option<&Session>,
    parsed: &ParsedQuery,
    client: Client,
    now: Now,
    explanation: &mut Explanation,
) -> Result<ForwardPlan, LocatedRejection> {
    let nowhere = |fault: Fault| (Rejection::from(fault), None);
    let target = location::check_target(&parsed.method, &parsed.uri)
        .map_err(|error| (judge::target_fault(error), None))?;
    let host = location::request_host(Version::HTTP_11, &parsed.headers, None)
        .map_err(|_| nowhere(Fault::BadHost))?;
    explanation.host = Some(host.to_string());
    let path = target.normalised_path().map_err(|_| nowhere(Fault::BadTarget))?;
    explanation.path = Some(describe::escape_bytes(&path));
    let located = gateway.locations.find_location(&host, &path, &parsed.method);
    explain_locations(gateway, &gateway.locations.list_candidates(&host, &path, &parsed.method), explanation);
    let route = match located {
        LocationLookup::Found(index) => Some(index),
        _ => None,
    };
    let reject = |rejection: Rejection| (rejection, route);
    let bypassed =
        explain_access(gateway, route, client, explanation).map_err(|fault| reject(fault.into()))?;
    let verifier = gateway.jwt.as_ref().map(|(jwt, claims)| TokenVerifier::new(jwt, claims));
    let today = WallClock::new(now).unix_ms(now) / 1_000;
    let token = verifier.as_ref().map(|verifier| Token::new(verifier, &parsed.headers, today));
    let (headers, query, token) = (&parsed.headers, parsed.uri.query(), token.as_ref());
    explanation.token = token.map(TokenExplanation::from_token);
    let repeated = |DuplicateAccount| reject(Fault::RepeatedKey.into());
    let account = account::find_account(gateway.account.as_ref(), headers, query, token).map_err(repeated)?;
    explanation.account = describe::explain_account(gateway, account.as_deref(), token);
    let tiers = gateway.tiers.as_ref();
    let tier = tiers.map(|tiers| tiers.find_tier(account.as_deref(), headers, query, token)).transpose();
    let tier = tier.map_err(repeated)?;
    explanation.tier = tier.as_ref().map(|tier| tier.as_str().to_owned());
    let tier = tier.as_ref().map_or(TierRules::DEFAULT, |tier| tier.as_str());
    let head = RequestHead { method: &parsed.method, uri: &parsed.uri, headers, host: &host, path: &path };
    let identity = CallerIdentity { account: account.as_deref(), tier, token };
    let caller = Caller::new(gateway, head, client, None, identity, route);
    if !bypassed {
        explain_ban(gateway, &caller, now, explanation).map_err(reject)?;
    }
    let rewritten = |id: LocationId| {
        judge::strip_target(&gateway.routes[id.0], &parsed.method, &parsed.uri, &path).transpose()
    };
    let target = route.and_then(rewritten).transpose().map_err(|fault| reject(fault.into()))?;
    let wait = match bypassed {
        true => None,
        false => {
            let judged =
                limits::explain_chain(gateway, session, &caller, route, now, &mut explanation.limits).await;
            judged.map_err(reject)?
        }
    };
    let route = match located {
        LocationLookup::Found(index) => index,
        LocationLookup::NotFound => return Err(reject(Fault::NoLocation.into())),
        LocationLookup::MethodNotAllowed { allow } => {
            return Err(reject(Rejection::MethodNotAllowed { allow }));
        }
    };
    Ok(ForwardPlan { route, wait, target: target.map(|target| target.to_string()) })
}

/// Whether the client bypasses limits and bans.
fn explain_access(
    gateway: &Gateway,
    route: Option<LocationId>,
    client: Client,
    explanation: &mut Explanation,
) -> Result<bool, Fault> {
    let decision = gateway.access_for(route).map(|access| access.decide_access(client.ip));
    explanation.access = decision.map(describe::describe_access_decision);
    if decision == Some(AccessDecision::Rejected) {
        return Err(Fault::AccessDenied);
    }
    if gateway.server.max_in_flight.is_some_and(|max| gateway.in_flight.load(Relaxed) >= max) {
        return Err(Fault::TooManyInFlight);
    }
    Ok(decision == Some(AccessDecision::Bypassed))
}

fn explain_ban(
    gateway: &Gateway,
    caller: &Caller<'_>,
    now: Now,
    explanation: &mut Explanation,
) -> Result<(), Rejection> {
    let Some(bans) = gateway.bans.as_ref() else { return Ok(()) };
    match bans.ban_left_ns(&bans.client_key(&gateway.keys, &caller.subject), now) {
        None => Ok(()),
        Some(left_ns) => {
            explanation.ban_left_ms = Some(left_ns.div_ceil(1_000_000));
            Err(Rejection::Banned { left_ns })
        }
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
