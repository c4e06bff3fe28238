//! Judges a request by its head: every decision that needs no wait, in one sequence for requests and explanations.

use bytes::Bytes;
use http::header::{EXPECT, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Version};

use super::body_reading;
use super::demand::{Caller, ChargeFault};
use super::facts::{RequestFacts, RequestHead};
use super::mode::JudgeMode;
use crate::gateway::auth::RouteAuth;
use crate::gateway::{Action, Gateway, LimitChain, Route};
use crate::reject::{Fault, PauseRejection, Rejection};
use sluicegate_admission::chain::{
    ChainMode, ChainVerdict, Decisions, LimitDemand, PendingStore, WaitingRequest,
};
use sluicegate_base::clock;
use sluicegate_http::request::access::AccessDecision;
use sluicegate_http::request::account::{self, DuplicateAccount, Tier};
use sluicegate_http::request::api_key::{self, KeyFault};
use sluicegate_http::request::cors;
use sluicegate_http::request::headers::hop_by_hop;
use sluicegate_http::request::headers::summary::HeaderSummary;
use sluicegate_http::request::location::{self, Arrival, LocationLookup, RequestTarget, TargetError};
use sluicegate_http::request::source::{SourceValue, TokenFault};
use sluicegate_http::upstream::Upstream;
use sluicegate_limit::Limit;
use sluicegate_limit::bandwidth::BandwidthShare;
use sluicegate_limit::pushback::PauseCheck;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{ApiKeysConfig, BodyUse, LimitId};

/// The progress of judging a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JudgeProgress {
    /// The request is judged, by its body too where a limit asks for that.
    Complete,
    /// The body must be read for this, and then the request is judged again.
    AwaitsBody(BodyUse),
    /// The key of its token may come by a fetch, and then the request is judged again.
    AwaitsKeys,
    /// The limits before the question have judged: the auth service is asked, and then the request is judged again.
    AwaitsAnswer,
}

/// Judges a request by its head, and by its body where a limit asks for that, and collects its facts on the way. The
/// decisions of the limits are added to `decisions`. `verdict` is set to that of the chain; `None` = no limit applies.
/// It is passed by reference, because it is large.
///
/// # Errors
/// The rejection, unless a limit is its cause.
#[inline(always)]
pub fn judge<'r, M: JudgeMode<'r>>(
    gateway: &Gateway,
    facts: &mut RequestFacts<'r>,
    mode: &mut M,
    decisions: &mut Decisions,
    verdict: &mut Option<ChainVerdict<PendingStore<M::Chain>>>,
) -> Result<JudgeProgress, Rejection> {
    check_head(gateway, facts)?;
    locate_request(gateway, facts, mode)?;
    facts.access = gateway.access_for(facts.route()).map(|access| access.decide_access(facts.head.client.ip));
    if facts.access == Some(AccessDecision::Rejected) {
        return Err(Fault::AccessDenied.into());
    }
    // A preflight costs nothing: without its answer the browser would not even send the request that is limited.
    if facts.is_preflight() {
        return Ok(JudgeProgress::Complete);
    }
    // Checked before tokens are verified: a rejection under overload must cost next to nothing.
    if !mode.try_count_in_flight(gateway) {
        return Err(Fault::TooManyInFlight.into());
    }
    if facts.token.is_some() && awaits_keys(gateway, facts)? {
        return Ok(JudgeProgress::AwaitsKeys);
    }
    if M::ASKS_SERVICE
        && facts.answer.is_none()
        && let Some(route) = facts.route()
        && let Some(auth) = &gateway.routes[route.0].auth
    {
        facts.answer = mode.find_answer(route, auth, facts);
        if facts.answer.is_none() && judge_question(gateway, auth, facts, mode, decisions, verdict)? {
            return Ok(JudgeProgress::AwaitsAnswer);
        }
    }
    if let Some(plan) = gateway.body_plan_for(facts.route())
        && let Some(body_use) = body_reading::awaits_body(gateway, plan, facts)?
    {
        return Ok(JudgeProgress::AwaitsBody(body_use));
    }
    identify_caller(gateway, facts).map_err(|DuplicateAccount| Fault::RepeatedKey)?;
    // Before `bypass`, which operators overrule.
    check_operator_ban(gateway, facts)?;
    if facts.access == Some(AccessDecision::Bypassed) {
        if let Some(fault) = facts.key_fault {
            return Err(Fault::from(fault).into());
        }
        prepare_forward(gateway, facts)?;
        check_pause(gateway, facts, mode)?;
        return Ok(JudgeProgress::Complete);
    }
    check_ban(gateway, facts, mode)?;
    if facts.key_fault.is_none() {
        // Prepared before the limits: a queue must not make room for a request that cannot be forwarded.
        prepare_forward(gateway, facts)?;
        // Assigned before the limits: a degraded response is paced as well.
        assign_bandwidth(gateway, facts, mode)?;
        check_pause(gateway, facts, mode)?;
    }
    judge_limits(gateway, facts, mode, decisions, verdict)?;
    Ok(JudgeProgress::Complete)
}

/// Judges a request by all that may precede the question to the auth service; false if nothing is asked, because the
/// request lacks an API key.
///
/// # Errors
/// The rejection, unless a limit is its cause.
#[inline(never)]
fn judge_question<'r, M: JudgeMode<'r>>(
    gateway: &Gateway,
    auth: &RouteAuth,
    facts: &mut RequestFacts<'r>,
    mode: &mut M,
    decisions: &mut Decisions,
    verdict: &mut Option<ChainVerdict<PendingStore<M::Chain>>>,
) -> Result<bool, Rejection> {
    // The body is read after the answer.
    let is_in_body = gateway.body_plan_for(facts.route()).is_some_and(|plan| plan.identifies_caller);
    if !is_in_body {
        identify_caller(gateway, facts).map_err(|DuplicateAccount| Fault::RepeatedKey)?;
    }
    if facts.key_fault.is_some() {
        return Ok(false);
    }
    check_operator_ban(gateway, facts)?;
    if facts.access != Some(AccessDecision::Bypassed) {
        check_ban(gateway, facts, mode)?;
        judge_chain(gateway, &auth.chain, facts, mode, decisions, verdict)?;
    }
    Ok(true)
}

/// Rejects framing that hyper accepts although two parsers might read it differently, and a head with too many fields.
#[inline]
fn check_head(gateway: &Gateway, facts: &RequestFacts<'_>) -> Result<(), Fault> {
    let RequestFacts { head, summary, .. } = facts;
    // The parser of HTTP/1 has the limit of the time when the connection began.
    if head.headers.len() > gateway.config.server.max_headers {
        return Err(Fault::HeadTooLarge);
    }
    let tells_length = head.version == Version::HTTP_2 && summary.has_any(HeaderSummary::CONTENT_LENGTH);
    if summary.has_any(HeaderSummary::TRANSFER_ENCODING) || tells_length {
        hop_by_hop::check_request_framing(head.headers, head.version).map_err(|_| Fault::BadFraming)?;
    }
    if summary.has_any(HeaderSummary::EXPECT) && !head.headers.get_all(EXPECT).iter().all(is_100_continue) {
        return Err(Fault::BadExpectation);
    }
    Ok(())
}

fn is_100_continue(expectation: &HeaderValue) -> bool {
    expectation.as_bytes().eq_ignore_ascii_case(b"100-continue")
}

/// Reads host and path, and finds the location.
#[inline(always)]
fn locate_request<'r, M: JudgeMode<'r>>(
    gateway: &Gateway,
    facts: &mut RequestFacts<'r>,
    mode: &M,
) -> Result<(), Fault> {
    let head = facts.head;
    let target = location::check_target(head.method, head.uri).map_err(target_fault)?;
    facts.host = mode.read_host(&head).map_err(|_| Fault::BadHost)?;
    facts.path = target.normalised_path().map_err(|_| Fault::BadTarget)?;
    if M::ANSWERS_PREFLIGHTS
        && gateway.answers_preflights
        && *head.method == Method::OPTIONS
        && locate_preflight(gateway, facts)
    {
        return Ok(());
    }
    facts.location =
        gateway.locations.find_location(&facts.host, &facts.path, &facts.arrival(&gateway.locations));
    if let Some(cors) = facts.route().and_then(|route| gateway.routes[route.0].cors.as_ref()) {
        facts.cors = Some(cors.answer_request(head.headers, false));
    }
    Ok(())
}

/// Finds the location of the request that a preflight asks for; false if its `cors` does not answer preflights.
#[cold]
fn locate_preflight(gateway: &Gateway, facts: &mut RequestFacts<'_>) -> bool {
    let RequestHead { method, headers, .. } = facts.head;
    let Some(requested) = cors::requested_method(method, headers) else { return false };
    let arrival = Arrival { method: &requested, ..facts.arrival(&gateway.locations) };
    let location = gateway.locations.find_location(&facts.host, &facts.path, &arrival);
    let LocationLookup::Found(route) = location else { return false };
    let Some(cors) = &gateway.routes[route.0].cors else { return false };
    facts.cors = Some(cors.answer_request(headers, true));
    facts.location = location;
    true
}

fn target_fault(error: TargetError) -> Fault {
    match error {
        TargetError::Method => Fault::BadMethod,
        TargetError::MethodCase => Fault::BadHead,
        _ => Fault::BadTarget,
    }
}

/// True if a claim is read here, and the key of the token may come by a fetch.
///
/// # Errors
/// Nothing is known about the keys of its issuer.
#[inline(never)]
fn awaits_keys(gateway: &Gateway, facts: &mut RequestFacts<'_>) -> Result<bool, Fault> {
    let Some(token) = facts.token.filter(|_| gateway.reads_token(facts.route())) else { return Ok(false) };
    facts.is_token_read = true;
    if token.awaited_keys().is_some() && facts.may_await_keys {
        return Ok(true);
    }
    if token.fault() == Some(TokenFault::NoKeys) { Err(Fault::IssuerUnavailable) } else { Ok(false) }
}

/// Finds the account and the tier of the caller.
#[inline]
pub(super) fn identify_caller(
    gateway: &Gateway,
    facts: &mut RequestFacts<'_>,
) -> Result<(), DuplicateAccount> {
    if facts.route().is_some_and(|route| !gateway.routes[route.0].reads_account) {
        facts.token = None;
        return identify_stranger(gateway, facts);
    }
    let sources = facts.sources();
    facts.is_token_read = true;
    facts.account = match &facts.answer {
        Some(answer) if answer.account.is_some() => {
            answer.account.as_deref().map(|name| name.to_vec().into())
        }
        _ => account::find_account(gateway.config.account.from.as_ref(), &sources)?,
    };
    let key_tier = match &gateway.config.account.keys {
        Some(keys) => identify_by_key(keys, facts)?,
        None => None,
    };
    facts.is_account_read = true;
    if let Some(tiers) = &gateway.callers.tiers {
        facts.tier = Some(tiers.find_tier(key_tier, facts.account(), &sources)?);
    }
    Ok(())
}

/// Finds the tier of a caller without an account.
#[cold]
fn identify_stranger(gateway: &Gateway, facts: &mut RequestFacts<'_>) -> Result<(), DuplicateAccount> {
    if let Some(tiers) = &gateway.callers.tiers {
        facts.tier = Some(tiers.find_tier(None, None, &facts.sources())?);
    }
    Ok(())
}

/// Finds the account of the API key that the request presents, and its tier. Who presents another account as well is
/// two callers.
#[inline(never)]
fn identify_by_key(
    keys: &ApiKeysConfig,
    facts: &mut RequestFacts<'_>,
) -> Result<Option<Tier>, DuplicateAccount> {
    let key = match api_key::presented_key(keys, facts.summary, &facts.sources()) {
        SourceValue::One(key) => key,
        SourceValue::Repeated => return Err(DuplicateAccount),
        SourceValue::Absent => {
            let is_refused = keys.rejects_missing && facts.account.is_none();
            facts.key_fault = is_refused.then_some(KeyFault::Missing);
            return Ok(None);
        }
    };
    let now = clock::unix_at_zero().saturating_add(facts.head.received.0) / 1_000_000_000;
    let Some(caller) = api_key::find_caller(keys, &key, now) else {
        facts.key_fault = keys.rejects_unknown.then_some(KeyFault::Unknown);
        return Ok(None);
    };
    if facts.account.is_some() {
        return Err(DuplicateAccount);
    }
    let tier = caller.tier.clone();
    facts.key = Some(caller);
    Ok(tier)
}

/// The key of the client's address, if the connection has cached it.
#[inline]
fn cached_ip_key<'r, M: JudgeMode<'r>>(facts: &RequestFacts<'r>, mode: &M) -> Option<CounterKey> {
    if facts.head.client.trusted_peer { None } else { mode.peer_key() }
}

/// Rejects a client that an operator banned.
#[inline(always)]
pub(super) fn check_operator_ban(gateway: &Gateway, facts: &RequestFacts<'_>) -> Result<(), Rejection> {
    let (ip, now) = (facts.head.client.ip, facts.head.received);
    match gateway.operator_bans.ban_left_ns(ip, facts.account(), now) {
        Some(left_ns) => Err(Rejection::Banned { by_operator: true, left_ns }),
        None => Ok(()),
    }
}

/// Rejects a banned client, and finds the target of a possible strike.
#[inline]
pub(super) fn check_ban<'r, M: JudgeMode<'r>>(
    gateway: &Gateway,
    facts: &mut RequestFacts<'r>,
    mode: &M,
) -> Result<(), Rejection> {
    let Some(bans) = &gateway.bans else { return Ok(()) };
    let caller = Caller::new(gateway, facts, cached_ip_key(facts, mode));
    let (strike_target, left_ns) = bans.judge(&gateway.keys, &caller.subject, facts.head.received);
    facts.strike_target = Some(strike_target);
    match left_ns {
        Some(left_ns) => Err(Rejection::Banned { by_operator: false, left_ns }),
        None => Ok(()),
    }
}

/// Collects the facts that forwarding needs, and rejects a request that cannot be forwarded.
#[inline]
fn prepare_forward(gateway: &Gateway, facts: &mut RequestFacts<'_>) -> Result<(), Fault> {
    // Check a declared length before anything is charged and before a 100 Continue invites the body.
    if gateway.max_body_for(facts.route()).is_some_and(|max| facts.body.lower() > max) {
        return Err(Fault::BodyTooLarge);
    }
    let Some(route) = facts.route().map(|route| &gateway.routes[route.0]) else { return Ok(()) };
    // Only an upstream can open a tunnel; a local response cannot.
    let may_tunnel = matches!(&route.action, Action::Upstream(upstream) if !upstream.is_demo());
    if facts.head.is_websocket_connect && !may_tunnel {
        return Err(Fault::BadMethod);
    }
    facts.target = edit_target(route, facts)?;
    Ok(())
}

/// The target to forward; `None` = the path stays as it was sent.
#[inline]
fn edit_target(route: &Route, facts: &RequestFacts<'_>) -> Result<Option<PathAndQuery>, Fault> {
    let Some(edits) = &route.path_edits else { return Ok(None) };
    let RequestHead { method, uri, .. } = facts.head;
    if let Ok(RequestTarget::Asterisk) = location::check_target(method, uri) {
        return Ok(None);
    }
    let text = edits.build_target(&facts.path, uri.query()).map_err(|_| Fault::BadTarget)?;
    PathAndQuery::from_maybe_shared(Bytes::from(text)).map(Some).map_err(|_| Fault::BadTarget)
}

/// Assigns the bandwidth bucket of the response body, if the location limits bandwidth.
#[inline]
fn assign_bandwidth<'r, M: JudgeMode<'r>>(
    gateway: &Gateway,
    facts: &mut RequestFacts<'r>,
    mode: &M,
) -> Result<(), Fault> {
    let bandwidth = facts.route().and_then(|route| gateway.routes[route.0].bandwidth.as_ref());
    let Some((bandwidth, key_spec)) = bandwidth else { return Ok(()) };
    let caller = Caller::new(gateway, facts, cached_ip_key(facts, mode));
    let key = gateway.keys.hash_key(key_spec, &caller.subject).key_or_repeated().ok_or(Fault::RepeatedKey)?;
    facts.bandwidth = Some(Box::new(BandwidthShare::new(bandwidth.clone(), key)));
    Ok(())
}

/// Rejects a request that has to pause for longer than its queues may hold it; others may wait there.
#[inline(always)]
fn check_pause<'r, M: JudgeMode<'r>>(
    gateway: &Gateway,
    facts: &mut RequestFacts<'r>,
    mode: &M,
) -> Result<(), Rejection> {
    let Some(route) = facts.route().filter(|_| M::HEEDS_PAUSES) else { return Ok(()) };
    match &gateway.routes[route.0].action {
        Action::Upstream(upstream) if upstream.pushback.is_some() => {
            heed_pause(gateway, facts, mode, upstream)
        }
        _ => Ok(()),
    }
}

#[cold]
fn heed_pause<'r, M: JudgeMode<'r>>(
    gateway: &Gateway,
    facts: &mut RequestFacts<'r>,
    mode: &M,
    upstream: &Upstream,
) -> Result<(), Rejection> {
    let Some(pushback) = &upstream.pushback else { return Ok(()) };
    let caller = Caller::new(gateway, facts, cached_ip_key(facts, mode));
    let key =
        pushback.hash_key(&gateway.keys, &caller.subject).key_or_repeated().ok_or(Fault::RepeatedKey)?;
    let paused = pushback.pauses().find_pause(&key, facts.head.received);
    facts.pause = Some(Box::new(PauseCheck { key, paused }));
    // Nothing holds a request that no limit judges.
    let is_judged = facts.access != Some(AccessDecision::Bypassed);
    let max_pause_ns = if is_judged { gateway.chain_for(facts.route()).max_pause_ns } else { 0 };
    match paused {
        Some(pause) if pause.wait_ns > max_pause_ns => {
            Err(Rejection::Paused(PauseRejection::new(upstream.id, pause)))
        }
        _ => Ok(()),
    }
}

/// Judges the chain of the location; `None` if it has no limits.
#[inline(always)]
pub(super) fn judge_limits<'r, M: JudgeMode<'r>>(
    gateway: &Gateway,
    facts: &mut RequestFacts<'r>,
    mode: &mut M,
    decisions: &mut Decisions,
    verdict: &mut Option<ChainVerdict<PendingStore<M::Chain>>>,
) -> Result<(), Fault> {
    let limits = mode.find_chain(gateway, facts.route());
    if !limits.pricings.is_empty() && !mode.states_units() {
        facts.prices = Some(limits.find_prices(facts.body_values()));
    }
    judge_chain(gateway, limits, facts, mode, decisions, verdict)
}

/// Judges a chain; without limits there is no verdict.
#[inline(always)]
fn judge_chain<'r, M: JudgeMode<'r>>(
    gateway: &Gateway,
    limits: &LimitChain,
    facts: &RequestFacts<'r>,
    mode: &mut M,
    decisions: &mut Decisions,
    verdict: &mut Option<ChainVerdict<PendingStore<M::Chain>>>,
) -> Result<(), Fault> {
    if limits.places.is_empty() {
        return Ok(());
    }
    let caller = Caller::new(gateway, facts, cached_ip_key(facts, mode));
    let waiting_size = || facts.waiting_bytes();
    let waiter = WaitingRequest::new(&gateway.load.waiting, &waiting_size).with_pause(facts.pause_ns());
    let waiter = waiter.with_max_wait(mode.max_wait_ns());
    let takes_slots = mode.takes_slots(facts.route());
    let mut fault: Option<ChargeFault> = None;
    let selection = mode.selection();
    let demand_of = |index: usize, limit: &Limit| {
        // A request without a caller is charged to its address alone.
        if facts.key_fault.is_some() && !limit.config.counts_by_address() {
            return LimitDemand::Skip;
        }
        if facts.is_question_charged && is_before_question(gateway, facts, limit.id) {
            return LimitDemand::Skip;
        }
        let demand = caller.build_demand(&gateway.keys, limit, &limits.places[index]);
        let demand = demand.map(|demand| mode.adjust_demand(limit, demand));
        mode.observe_demand(gateway, facts, &caller, (index, limit), &demand);
        demand.unwrap_or_else(|charge_fault| {
            fault = Some(charge_fault);
            LimitDemand::MissingKey
        })
    };
    let now = facts.head.received;
    limits.chain.judge_into::<M::Chain>(now, waiter, takes_slots, selection, demand_of, decisions, verdict);
    // A dry-run limit admits a request with a repeated key, so the fault decides here, not the verdict.
    match fault {
        Some(fault) => {
            // An explanation goes on to show the counters.
            if M::Chain::CHARGES {
                *verdict = None;
            }
            Err(Fault::from(fault))
        }
        None => Ok(()),
    }
}

/// True if a limit has judged the request before the question.
#[cold]
fn is_before_question(gateway: &Gateway, facts: &RequestFacts<'_>, limit: LimitId) -> bool {
    let auth = facts.route().and_then(|route| gateway.routes[route.0].auth.as_ref());
    auth.is_some_and(|auth| auth.chain.chain.limits().iter().any(|own| own.id == limit))
}
