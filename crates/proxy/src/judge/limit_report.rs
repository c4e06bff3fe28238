//! Reports the decisions of the limits in the metrics, in the head of the response, and in the access log.

use http::HeaderMap;
use smallvec::SmallVec;

use crate::gateway::{Gateway, LimitChain};
use crate::judge::quotas::{has_steps, log_steps, write_steps};
use crate::judge::request_state::{RequestJudgement, RequestState, chain_of};
use crate::reject::{LimitCause, LimitRejection};
use sluicegate_admission::chain::{self, ChainRejection, Queued, RateDecision};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, Limit, LimitOutcome};
use sluicegate_model::{LimitId, LocationId};
use sluicegate_observe::metrics::DecisionKind;

/// Counts the decisions of limits that accepted the request. Rejections are counted where they are final.
#[inline]
pub fn count_accepted(state: &RequestState) {
    count_kinds(state, |kind, _| kind != DecisionKind::Reject);
}

/// Counts the effects of a rejected request besides the rejection: those of dry runs, and all decisions of the
/// shadow of the limit that rejected. The rest was refunded or only peeked at.
#[inline]
pub fn count_dry_run_rejections(state: &RequestState, rejected_by: Option<LimitId>) {
    if state.judgement.decisions.iter().any(|judged| judged.dry_run) {
        count_kinds(state, |kind, limit| {
            kind.is_dry_rejection() || rejected_by.is_some() && limit.config.shadow_of == rejected_by
        });
    }
}

fn count_kinds(state: &RequestState, counts: impl Fn(DecisionKind, &Limit) -> bool) {
    let limits = state.chain().chain.limits();
    for judged in chain::strictest_by_limit(&state.judgement.decisions) {
        let limit = &limits[usize::from(judged.limit_index)];
        let kind = decision_kind(&judged, limit);
        if counts(kind, limit) {
            count_decision(state, (limit.id, judged.class), kind);
        }
    }
}

#[inline]
fn count_decision(state: &RequestState, limit: (LimitId, u8), kind: DecisionKind) {
    state.worker.gateway.metrics.count_decision(state.worker.id, limit, kind);
    if kind.is_dry_rejection() {
        state.count_refused(limit.0);
    }
}

/// Counts the decisions of concurrency limits with slots of the request, and keeps them for its response. Where it
/// waited for them, that is counted already.
#[inline]
pub fn count_slots(state: &mut RequestState) {
    let has_waited = |judged: &RateDecision| !judged.dry_run && judged.decision.outcome == LimitOutcome::Wait;
    let Some(permit) = state.permits.chain.as_ref().filter(|permit| permit.may_hold_slots()) else { return };
    let slots: SmallVec<[RateDecision; 4]> = permit.slot_decisions().collect();
    for judged in slots.iter().filter(|judged| !has_waited(judged)) {
        let limit = &state.chain().chain.limits()[usize::from(judged.limit_index)];
        count_decision(state, (limit.id, judged.class), decision_kind(judged, limit));
    }
    state.judgement.decisions.extend(slots);
}

/// Records the waits of a request that has left its queues at `now`, each with the limit that made it wait. The limit
/// of the longest one is the request's.
pub fn record_stays(state: &mut RequestState, queued: &Queued, now: Now) {
    state.judgement.wait_ns = now.ns_since(state.judged_at);
    count_slot_waits(state, queued);
    let stays = queued.stays();
    let limits = state.chain().chain.limits();
    let mut longest = None;
    for (index, stay) in stays.iter().enumerate() {
        let limit = limits[usize::from(stay.limit_index)].id;
        let since = if index == 0 { state.judged_at } else { stay.since };
        let left = stays.get(index + 1).map_or(now, |next| next.since);
        let wait_ns = left.ns_since(since);
        state.worker.gateway.metrics.observe_wait(state.worker.id, limit, wait_ns);
        longest = longest.max(Some((wait_ns, limit)));
    }
    state.judgement.limit = longest.map(|(_, limit)| limit).or(state.judgement.limit);
}

/// Counts the waits for slots; those by rates are counted when they begin.
pub fn count_slot_waits(state: &RequestState, queued: &Queued) {
    let limits = state.chain().chain.limits();
    for stay in queued.stays().iter().filter(|stay| stay.for_slots) {
        let limit = limits[usize::from(stay.limit_index)].id;
        count_decision(state, (limit, queued.class_in(stay.limit_index)), DecisionKind::Wait);
    }
}

/// Changes the limit's decision to a rejection that came after the judgement, for the fields of the response.
pub fn mark_rejected(state: &mut RequestState, rejection: &ChainRejection) {
    let Some(limit) = &rejection.limit else { return };
    let RequestState { worker, call_chain, route, .. } = state;
    let limits = chain_of(worker, call_chain.as_ref(), *route).chain.limits();
    let retry_ns = rejection.retry_after_ns.unwrap_or_default();
    for judged in &mut state.judgement.decisions {
        // Compare indices: a local share that judges instead of the store is another object than the limit.
        if limits[usize::from(judged.limit_index)].id == limit.id
            && usize::from(judged.rate) == rejection.rate
        {
            let (reset_ns, retry_after_ns) = (retry_ns, retry_ns);
            let outcome = LimitOutcome::Reject;
            judged.decision = Decision { outcome, remaining: 0, reset_ns, retry_after_ns, ..judged.decision };
        }
    }
}

/// Makes the decisions those of a rejection that came after them, or that concerns slots: clients are told its wait
/// as the window of the limit, so that none returns before.
#[inline]
pub fn mark_refused(state: &mut RequestState, rejection: &LimitRejection) {
    // A rate that has just rejected says so itself, which is the usual case.
    if matches!(rejection.cause, LimitCause::Rate | LimitCause::TooCostly | LimitCause::MissingKey) {
        return;
    }
    let RequestState { worker, call_chain, route, judgement, .. } = state;
    let rejects = |judged: &RateDecision| judged.decision.outcome == LimitOutcome::Reject && !judged.dry_run;
    let limits = chain_of(worker, call_chain.as_ref(), *route).chain.limits();
    let is_own = |judged: &RateDecision| {
        limits[usize::from(judged.limit_index)].id == rejection.limit && !judged.dry_run
    };
    if judgement.decisions.iter().any(|judged| rejects(judged) && is_own(judged)) {
        return;
    }
    let refused = Decision::without_numbers(LimitOutcome::Reject);
    if rejection.cause == LimitCause::Concurrency {
        let position = limits.iter().position(|limit| limit.id == rejection.limit);
        judgement.decisions.extend(position.map(|index| {
            let (limit_index, rate, class) = (index as u16, rejection.rate as u16, rejection.class);
            RateDecision { limit_index, rate, class, dry_run: false, decision: refused }
        }));
        return;
    }
    let retry_after_ns = rejection.retry_after_ns.unwrap_or_default();
    for judged in judgement.decisions.iter_mut().filter(|judged| is_own(judged)) {
        let Decision { remaining, anchor, .. } = judged.decision;
        judged.decision = Decision { remaining, retry_after_ns, anchor, ..refused };
    }
}

/// The metric that a decision is counted under.
#[inline]
fn decision_kind(judged: &RateDecision, limit: &Limit) -> DecisionKind {
    let either = |dry_run, unenforced| if limit.config.dry_run { dry_run } else { unenforced };
    match (judged.decision.outcome, judged.dry_run) {
        (LimitOutcome::Admit, _) => DecisionKind::Admit,
        (LimitOutcome::Wait, false) => DecisionKind::Wait,
        (LimitOutcome::Reject, false) => DecisionKind::Reject,
        (LimitOutcome::Wait, true) if limit.config.pause.is_some() => DecisionKind::PausedWait,
        (LimitOutcome::Reject, true) if limit.config.pause.is_some() => DecisionKind::PausedReject,
        (LimitOutcome::Wait, true) => either(DecisionKind::DryRunWait, DecisionKind::UnenforcedWait),
        (LimitOutcome::Reject, true) => either(DecisionKind::DryRunReject, DecisionKind::UnenforcedReject),
    }
}

/// Writes the `RateLimit` fields of enforced limits and the field of dry runs into the head of a response.
#[inline]
pub fn write_decisions(
    gateway: &Gateway,
    route: Option<LocationId>,
    decisions: &[RateDecision],
    headers: &mut HeaderMap,
) {
    write_judged(gateway, route, gateway.chain_for(route), decisions, headers);
}

/// [`write_decisions`] for a chain that is perhaps not that of the route.
#[inline]
pub fn write_judged(
    gateway: &Gateway,
    route: Option<LocationId>,
    chain: &LimitChain,
    decisions: &[RateDecision],
    headers: &mut HeaderMap,
) {
    if decisions.is_empty() {
        return;
    }
    let limits = chain.chain.limits();
    let enforced = decisions.iter().filter(|judged| !judged.dry_run).map(|judged| {
        (limits[usize::from(judged.limit_index)].id, usize::from(judged.rate), judged.decision)
    });
    gateway.rejecters.for_location(route).rate_limit_fields.write_fields(enforced, headers);
    write_dry_runs(gateway, route, chain, decisions, headers);
    if has_steps(decisions) {
        write_steps(chain, decisions, headers);
    }
}

/// Writes only the field of dry runs.
#[inline]
pub fn write_dry_runs(
    gateway: &Gateway,
    route: Option<LocationId>,
    chain: &LimitChain,
    decisions: &[RateDecision],
    headers: &mut HeaderMap,
) {
    let dry_runs = &gateway.rejecters.for_location(route).dry_runs;
    if !dry_runs.is_empty() {
        dry_runs.write_header(dry_run_decisions(chain, decisions), headers);
    }
}

/// The decision of each dry-run limit of a chain, with the index of the limit.
fn dry_run_decisions<'a>(
    chain: &'a LimitChain,
    decisions: &'a [RateDecision],
) -> impl Iterator<Item = (LimitId, Decision)> + 'a {
    let limits = chain.chain.limits();
    let dry_runs = chain::strictest_by_limit(decisions).filter(|judged| judged.dry_run);
    dry_runs.map(|judged| (limits[usize::from(judged.limit_index)].id, judged.decision))
}

/// The class of a request in the limit that made it wait, else in the first limit with shares.
#[cold]
fn find_class(chain: &LimitChain, judgement: &RequestJudgement) -> Option<(LimitId, u8)> {
    let limit_of = |judged: &RateDecision| &chain.chain.limits()[usize::from(judged.limit_index)];
    let classed = judgement.decisions.iter().filter(|judged| limit_of(judged).config.shares.is_some());
    let judged = classed.min_by_key(|judged| Some(limit_of(judged).id) != judgement.limit)?;
    Some((limit_of(judged).id, judged.class))
}

/// Stores the decisions of dry-run limits, the class and the steps of quotas, for the access log.
#[inline]
pub fn log_decisions(state: &mut RequestState) {
    let RequestState { worker, route, call_chain, judgement, log_fields, .. } = state;
    let dry_runs = &worker.gateway.rejecters.for_location(*route).dry_runs;
    let Some(fields) = log_fields.as_mut() else { return };
    let chain = chain_of(worker, call_chain.as_ref(), *route);
    if !dry_runs.is_empty() {
        let decisions = dry_run_decisions(chain, &judgement.decisions);
        fields.dry_run = dry_runs.log_summary(decisions, judgement.limit);
    }
    if chain.has_shares {
        fields.class = find_class(chain, judgement);
    }
    if has_steps(&judgement.decisions) {
        fields.step = log_steps(chain, &judgement.decisions);
    }
}
