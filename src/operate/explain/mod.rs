//! Why a request would be answered as it would be: `sluicegate explain`, offline and of the running gateway.
//!
//! Every decision is made by the functions that decide in production; only the words are made here. Nothing is
//! charged, nothing is sent.

mod describe;
mod limits;
mod query;
mod render;
mod verdict;

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use http::Version;
use serde::Serialize;

use crate::admission::chain::ChainForecast;
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

/// What would become of one request, and why. `Display` tells it to people.
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
    /// Locations that match and do not serve the request, with the reason.
    pub passed_over: Vec<LocationExplanation>,
    /// What the access rules say of the client; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<&'static str>,
    /// What is left of the client's ban.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ban_left_ms: Option<u64>,
    /// Absent where tokens are not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenExplanation>,
    /// Absent unless the configuration says where accounts stand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountExplanation>,
    /// Absent where tiers make no difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// The chain, in the order it is judged.
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
    /// Place in the file, from 0.
    pub index: usize,
    /// "/api/ (a.test, GET) -> app".
    pub location: String,
    /// Why it serves the request, or why not.
    pub why: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct TokenExplanation {
    /// Its claims count.
    pub accepted: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct AccountExplanation {
    /// `None` = the request names none.
    pub name: Option<String>,
    /// Where it was looked for, e.g. "header x-account-id".
    pub from: String,
    /// It is a claim of a token that is not accepted.
    #[serde(skip)]
    token_not_accepted: bool,
}

/// A gateway with fresh counters that opens neither sockets nor files.
///
/// # Errors
/// Never for want of a file; as [`Gateway::build`] else.
pub fn build_offline(mut config: Config) -> io::Result<Gateway> {
    config.access_log.output = AccessLogOutput::None;
    config.server.workers = 1;
    Gateway::build(&config, None)
}

/// Explains what `gateway` would do with a request at `now`. `session` asks the store about limits that are counted
/// there; without one nothing is known of them.
///
/// # Errors
/// When the query is no request: what to write instead.
pub async fn explain_request(
    gateway: &Gateway,
    session: Option<&Session>,
    query: &Query,
    now: Now,
) -> Result<Explanation, String> {
    let asked = ParsedQuery::parse_query(query)?;
    let client = gateway.clients.find_client(Some(asked.peer), &asked.headers);
    let mut told = Explanation {
        client: describe::explain_client(gateway, &asked, client),
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
    told.verdict = match trace_request(gateway, session, &asked, client, now, &mut told).await {
        Ok(passed) => verdict::explain_admitted(gateway, &asked, &passed),
        Err((rejection, route)) => verdict::explain_rejected(gateway, &rejection, route),
    };
    Ok(told)
}

/// A request that is forwarded, perhaps after a wait.
struct ForwardPlan {
    route: LocationId,
    /// Nanoseconds, and the place of the limit in the chain.
    wait: Option<(u64, usize)>,
    /// The target to ask for, when it is not the one that was sent.
    target: Option<String>,
}

type LocatedRejection = (Rejection, Option<LocationId>);

impl TokenExplanation {
    fn from_token(token: &Token<'_>) -> TokenExplanation {
        let fault = token.fault();
        TokenExplanation { accepted: fault.is_none(), why: fault.map(|fault| fault.to_string()) }
    }
}

/// The steps of `throttle`'s judge, in its order.
async fn trace_request(
    gateway: &Gateway,
    session: Option<&Session>,
    asked: &ParsedQuery,
    client: Client,
    now: Now,
    told: &mut Explanation,
) -> Result<ForwardPlan, LocatedRejection> {
    let nowhere = |fault: Fault| (Rejection::from(fault), None);
    let target = location::check_target(&asked.method, &asked.uri)
        .map_err(|error| (judge::target_fault(error), None))?;
    let host = location::request_host(Version::HTTP_11, &asked.headers, None)
        .map_err(|_| nowhere(Fault::BadHost))?;
    told.host = Some(host.to_string());
    let path = target.normalised_path().map_err(|_| nowhere(Fault::BadTarget))?;
    told.path = Some(describe::escape_bytes(&path));
    let located = gateway.locations.find_location(&host, &path, &asked.method);
    explain_locations(gateway, &gateway.locations.list_candidates(&host, &path, &asked.method), told);
    let route = match located {
        LocationLookup::Found(place) => Some(place),
        _ => None,
    };
    let refuse = |rejection: Rejection| (rejection, route);
    let standing = gateway.access_for(route).map(|access| access.decide_access(client.ip));
    told.access = standing.map(describe::describe_access_decision);
    if standing == Some(AccessDecision::Rejected) {
        return Err(refuse(Fault::AccessDenied.into()));
    }
    if gateway.server.max_in_flight.is_some_and(|max| gateway.in_flight.load(Relaxed) >= max) {
        return Err(refuse(Fault::TooManyInFlight.into()));
    }
    let spared = standing == Some(AccessDecision::Bypassed);
    let verifier = gateway.jwt.as_ref().map(|(jwt, claims)| TokenVerifier::new(jwt, claims));
    let today = WallClock::new(now).unix_ms(now) / 1_000;
    let token = verifier.as_ref().map(|verifier| Token::new(verifier, &asked.headers, today));
    let (headers, query, token) = (&asked.headers, asked.uri.query(), token.as_ref());
    told.token = token.map(TokenExplanation::from_token);
    let repeated = |DuplicateAccount| refuse(Fault::RepeatedKey.into());
    let account = account::find_account(gateway.account.as_ref(), headers, query, token).map_err(repeated)?;
    told.account = describe::explain_account(gateway, account.as_deref(), token);
    let tiers = gateway.tiers.as_ref();
    let tier = tiers.map(|tiers| tiers.find_tier(account.as_deref(), headers, query, token)).transpose();
    let tier = tier.map_err(repeated)?;
    told.tier = tier.as_ref().map(|tier| tier.as_str().to_owned());
    let tier = tier.as_ref().map_or(TierRules::DEFAULT, |tier| tier.as_str());
    let head = RequestHead { method: &asked.method, uri: &asked.uri, headers, host: &host, path: &path };
    let caller = Caller::new(
        gateway,
        head,
        client,
        None,
        CallerIdentity { account: account.as_deref(), tier, token },
        route,
    );
    let ban = gateway.bans.as_ref().filter(|_| !spared);
    if let Some(left_ns) =
        ban.and_then(|bans| bans.ban_left_ns(&bans.client_key(&gateway.keys, &caller.subject), now))
    {
        told.ban_left_ms = Some(left_ns.div_ceil(1_000_000));
        return Err(refuse(Rejection::Banned { left_ns }));
    }
    let rewritten = |place: LocationId| {
        judge::strip_target(&gateway.routes[place.0], &asked.method, &asked.uri, &path).transpose()
    };
    let target = route.and_then(rewritten).transpose().map_err(|fault| refuse(fault.into()))?;
    let foreseen = match spared {
        true => ChainForecast::default(),
        false => {
            let looked = limits::explain_chain(gateway, session, &caller, route, now, &mut told.limits).await;
            looked.map_err(refuse)?
        }
    };
    let route = match located {
        LocationLookup::Found(place) => place,
        LocationLookup::NotFound => return Err(refuse(Fault::NoLocation.into())),
        LocationLookup::MethodNotAllowed { allow } => {
            return Err(refuse(Rejection::MethodNotAllowed { allow }));
        }
    };
    Ok(ForwardPlan { route, wait: foreseen.wait, target: target.map(|target| target.to_string()) })
}

fn explain_locations(gateway: &Gateway, candidates: &[LocationCandidate], told: &mut Explanation) {
    for candidate in candidates {
        let index = candidate.location;
        let location = describe_location(&gateway.config, &gateway.config.locations[index]);
        match candidate.loss {
            None => {
                told.location =
                    Some(LocationExplanation { index: index.0, location, why: candidate.winning_reason() })
            }
            Some(loss) => {
                told.passed_over.push(LocationExplanation { index: index.0, location, why: loss.to_string() })
            }
        }
    }
}

#[cfg(test)]
mod tests;
