//! Why a request would be answered as it would be: `sluicegate explain`, offline and of the running gateway.
//!
//! Every decision is made by the functions that decide in production; only the words are made here. Nothing is
//! charged, nothing is sent.

mod limits;
mod request;
mod text;
mod verdict;
mod words;

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use http::Version;
use serde::Serialize;

use crate::admission::chain::Foreseen;
use crate::base::clock::Now;
use crate::base::wall_clock::Wall;
use crate::config::describe::describe_location;
use crate::config::{AccessLogOutput, Config, TierRules};
use crate::proxy::gateway::Gateway;
use crate::proxy::judge;
use crate::proxy::judge::{Caller, Head, Named};
use crate::proxy::reject::{Fault, Rejection};
use crate::request::access::Standing;
use crate::request::account;
use crate::request::account::Duplicate;
use crate::request::client::Client;
use crate::request::location;
use crate::request::location::{Candidate, Located};
use crate::request::source::{Token, Verifier};
use crate::shared::Session;
use request::Asked;

pub use limits::{CounterTold, LimitTold};
pub use request::Query;
pub use verdict::VerdictTold;

/// What would become of one request, and why. `Display` tells it to people.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    pub client: ClientTold,
    /// Canonical; absent when it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Normalised; absent when it cannot be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<LocationTold>,
    /// Locations that match and do not serve the request, with the reason.
    pub passed_over: Vec<LocationTold>,
    /// What the access rules say of the client; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<&'static str>,
    /// What is left of the client's ban.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ban_left_ms: Option<u64>,
    /// Absent where tokens are not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenTold>,
    /// Absent unless the configuration says where accounts stand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountTold>,
    /// Absent where tiers make no difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// The chain, in the order it is judged.
    pub limits: Vec<LimitTold>,
    pub verdict: VerdictTold,
}

#[derive(Debug, Clone, Serialize)]
pub struct ClientTold {
    pub ip: String,
    pub peer: String,
    pub trusted_peer: bool,
    pub why: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct LocationTold {
    /// Place in the file, from 0.
    pub index: usize,
    /// "/api/ (a.test, GET) -> app".
    pub location: String,
    /// Why it serves the request, or why not.
    pub why: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct TokenTold {
    /// Its claims count.
    pub accepted: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct AccountTold {
    /// `None` = the request names none.
    pub name: Option<String>,
    /// Where it was looked for, e.g. "header x-account-id".
    pub from: String,
    /// It is a claim of a token that is not accepted.
    #[serde(skip)]
    unread: bool,
}

/// A gateway with fresh counters that opens neither sockets nor files.
///
/// # Errors
/// Never for want of a file; as [`Gateway::build`] else.
pub fn offline(mut config: Config) -> io::Result<Gateway> {
    config.access_log.output = AccessLogOutput::None;
    config.server.workers = 1;
    Gateway::build(&config, None)
}

/// Explains what `gateway` would do with a request at `now`. `session` asks the store about limits that are counted
/// there; without one nothing is known of them.
///
/// # Errors
/// When the query is no request: what to write instead.
pub async fn explain(
    gateway: &Gateway,
    session: Option<&Session>,
    query: &Query,
    now: Now,
) -> Result<Explanation, String> {
    let asked = Asked::parse(query)?;
    let client = gateway.clients.address(Some(asked.peer), &asked.headers);
    let mut told = Explanation {
        client: words::client(gateway, &asked, client),
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
        verdict: VerdictTold::default(),
    };
    told.verdict = match settle(gateway, session, &asked, client, now, &mut told).await {
        Ok(passed) => verdict::admitted(gateway, &asked, &passed),
        Err((rejection, route)) => verdict::rejected(gateway, &rejection, route),
    };
    Ok(told)
}

/// A request that is forwarded, perhaps after a wait.
struct Passed {
    route: usize,
    /// Nanoseconds, and the place of the limit in the chain.
    wait: Option<(u64, usize)>,
    /// The target to ask for, when it is not the one that was sent.
    target: Option<String>,
}

type Refused = (Rejection, Option<usize>);

impl TokenTold {
    fn of(token: &Token<'_>) -> TokenTold {
        let fault = token.fault();
        TokenTold { accepted: fault.is_none(), why: fault.map(|fault| fault.to_string()) }
    }
}

/// The steps of `throttle`'s judge, in its order.
async fn settle(
    gateway: &Gateway,
    session: Option<&Session>,
    asked: &Asked,
    client: Client,
    now: Now,
    told: &mut Explanation,
) -> Result<Passed, Refused> {
    let nowhere = |fault: Fault| (Rejection::from(fault), None);
    let target = location::check_target(&asked.method, &asked.uri)
        .map_err(|error| (judge::target_fault(error), None))?;
    let host = location::host(Version::HTTP_11, &asked.headers, None).map_err(|_| nowhere(Fault::BadHost))?;
    told.host = Some(host.to_string());
    let path = target.path().map_err(|_| nowhere(Fault::BadTarget))?;
    told.path = Some(words::shown(&path));
    let located = gateway.locations.locate(&host, &path, &asked.method);
    tell_locations(gateway, &gateway.locations.candidates(&host, &path, &asked.method), told);
    let route = match located {
        Located::Found(place) => Some(place),
        _ => None,
    };
    let refuse = |rejection: Rejection| (rejection, route);
    let standing = gateway.access(route).map(|access| access.standing(client.ip));
    told.access = standing.map(words::standing);
    if standing == Some(Standing::Denied) {
        return Err(refuse(Fault::AccessDenied.into()));
    }
    if gateway.server.max_in_flight.is_some_and(|max| gateway.in_flight.load(Relaxed) >= max) {
        return Err(refuse(Fault::TooManyInFlight.into()));
    }
    let spared = standing == Some(Standing::Bypassed);
    let verifier = gateway.jwt.as_ref().map(|(jwt, claims)| Verifier::new(jwt, claims));
    let today = Wall::new(now).unix_ms(now) / 1_000;
    let token = verifier.as_ref().map(|verifier| Token::new(verifier, &asked.headers, today));
    let (headers, query, token) = (&asked.headers, asked.uri.query(), token.as_ref());
    told.token = token.map(TokenTold::of);
    let repeated = |Duplicate| refuse(Fault::RepeatedKey.into());
    let account = account::account(gateway.account.as_ref(), headers, query, token).map_err(repeated)?;
    told.account = words::account(gateway, account.as_deref(), token);
    let tiers = gateway.tiers.as_ref();
    let tier = tiers.map(|tiers| tiers.tier(account.as_deref(), headers, query, token)).transpose();
    let tier = tier.map_err(repeated)?;
    told.tier = tier.as_ref().map(|tier| tier.as_str().to_owned());
    let tier = tier.as_ref().map_or(TierRules::DEFAULT, |tier| tier.as_str());
    let head = Head { method: &asked.method, uri: &asked.uri, headers, host: &host, path: &path };
    let caller =
        Caller::new(gateway, head, client, None, Named { account: account.as_deref(), tier, token }, route);
    let ban = gateway.bans.as_ref().filter(|_| !spared);
    if let Some(left_ns) = ban.and_then(|bans| bans.left(&bans.key(&gateway.keys, &caller.subject), now)) {
        told.ban_left_ms = Some(left_ns.div_ceil(1_000_000));
        return Err(refuse(Rejection::Banned { left_ns }));
    }
    let rewritten =
        |place| judge::rewritten(&gateway.routes[place], &asked.method, &asked.uri, &path).transpose();
    let target = route.and_then(rewritten).transpose().map_err(|fault| refuse(fault.into()))?;
    let foreseen = match spared {
        true => Foreseen::default(),
        false => {
            let looked = limits::look(gateway, session, &caller, route, now, &mut told.limits).await;
            looked.map_err(refuse)?
        }
    };
    let route = match located {
        Located::Found(place) => place,
        Located::NotFound => return Err(refuse(Fault::NoLocation.into())),
        Located::MethodNotAllowed { allow } => return Err(refuse(Rejection::MethodNotAllowed { allow })),
    };
    Ok(Passed { route, wait: foreseen.wait, target: target.map(|target| target.to_string()) })
}

fn tell_locations(gateway: &Gateway, candidates: &[Candidate], told: &mut Explanation) {
    for candidate in candidates {
        let index = candidate.location;
        let location = describe_location(&gateway.config, &gateway.config.locations[index]);
        match candidate.loss {
            None => told.location = Some(LocationTold { index, location, why: candidate.merit() }),
            Some(loss) => told.passed_over.push(LocationTold { index, location, why: loss.to_string() }),
        }
    }
}

#[cfg(test)]
mod tests;
