//! The quotas of a request: the names of their keys, and the steps that these reach.

use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::gateway::LimitChain;
use crate::gateway::worker::{QuotaDemand, Worker};
use crate::judge::request_state::RequestState;
use crate::reject::quote_name;
use sluicegate_admission::chain::{ChainVerdict, LimitDemand, RateDecision, UndecidedLimit};
use sluicegate_http::request::key::KeyInput;
use sluicegate_limit::steps::KEY_NAME_MAX;
use sluicegate_limit::{Limit, LimitOutcome};
use sluicegate_model::{LimitConfig, QuotaStep, StepAction};

const STEP: HeaderName = HeaderName::from_static("sluicegate-step");

/// Keeps the demand on a quota of the request that is being judged, and the name of its key.
#[inline]
pub(super) fn observe_demand(
    worker: &Worker,
    limit_index: usize,
    limit: &Limit,
    demand: &LimitDemand,
    subject: &KeyInput<'_>,
) {
    if limit.keeps_names() {
        keep_demand(worker, limit_index, limit, demand, subject);
    }
}

#[cold]
fn keep_demand(
    worker: &Worker,
    limit_index: usize,
    limit: &Limit,
    demand: &LimitDemand,
    subject: &KeyInput<'_>,
) {
    let (LimitDemand::Units(units) | LimitDemand::Shared(units, _)) = *demand else { return };
    if limit.is_dry_run(units.unenforced) {
        return;
    }
    let (gateway, spec) = (&worker.gateway, worker.heavy_keys.spec_of(limit.id));
    let render = || gateway.key_naming().render_full(spec, subject, units.key.id, KEY_NAME_MAX);
    let name = match &gateway.shared[limit.id.0] {
        Some(shared) => {
            shared.name_key(&units.key, render);
            None
        }
        None => limit.lacks_name(&units).then(render),
    };
    worker.quotas.borrow_mut().push(QuotaDemand { limit_index, units, name });
}

/// Notes the steps that a judged request reaches, or keeps its demands while the store is asked.
#[inline]
pub(super) fn note_judged(state: &mut RequestState, verdict: Option<&ChainVerdict>) {
    if !state.worker.quotas.borrow().is_empty() {
        note_demands(state, verdict);
    }
}

#[cold]
fn note_demands(state: &mut RequestState, verdict: Option<&ChainVerdict>) {
    let worker = state.worker.clone();
    let mut demands = worker.quotas.borrow_mut();
    match verdict {
        Some(ChainVerdict::AskStore(_)) => state.judgement.quotas = Some(std::mem::take(&mut demands)),
        Some(_) => note_steps(state, &demands, &[]),
        None => {}
    }
    demands.clear();
}

/// Notes the steps of a request about which the store was asked; it knows those that are counted there.
pub(super) fn note_answered(state: &mut RequestState, undecided: &[UndecidedLimit]) {
    if let Some(demands) = state.judgement.quotas.take() {
        note_steps(state, &demands, undecided);
    }
}

fn note_steps(state: &mut RequestState, demands: &[QuotaDemand], undecided: &[UndecidedLimit]) {
    let mut decisions = std::mem::take(&mut state.judgement.decisions);
    let limits = state.chain().chain.limits();
    for judged in decisions.iter_mut().filter(|judged| !judged.dry_run) {
        let index = usize::from(judged.limit_index);
        let Some(demand) = demands.iter().find(|demand| demand.limit_index == index) else { continue };
        let is_refused = judged.decision.outcome == LimitOutcome::Reject;
        let note = |limit: &Limit, name: Option<&str>| {
            // One that no window would admit is refused by none of the steps.
            let is_refused = is_refused && demand.units.cost <= limit.max_units(judged.rate.into(), 0);
            limit.note_steps(judged.rate.into(), &demand.units, name, is_refused)
        };
        let share = undecided.iter().find(|one| one.limit_index == index).and_then(|one| one.share.as_ref());
        match (&state.worker.gateway.shared[limits[index].id.0], share) {
            (None, _) => judged.decision.reached = note(&limits[index], demand.name.as_deref()),
            (Some(shared), Some(share)) => {
                judged.decision.reached = note(share, shared.find_name(&demand.units.key).as_deref());
            }
            (Some(_), None) => {}
        }
    }
    state.judgement.decisions = decisions;
}

/// The last step that each limit tells its caller to have reached, with the limit.
fn last_steps<'a>(
    chain: &'a LimitChain,
    decisions: &'a [RateDecision],
) -> impl Iterator<Item = (&'a LimitConfig, &'a QuotaStep)> {
    let rates = decisions.chunk_by(|one, next| one.limit_index == next.limit_index);
    rates.filter_map(|rates| {
        let told = rates.iter().filter(|judged| !judged.dry_run);
        let reached = told.fold(0, |bits: u8, judged| bits | judged.decision.reached);
        let config = &chain.chain.limits()[usize::from(rates[0].limit_index)].config;
        Some((config, config.steps_in(reached).next_back()?))
    })
}

/// The word of the gravest step that a response tells.
pub fn told_step(headers: &HeaderMap) -> Option<&'static str> {
    let told = headers.get(STEP)?.to_str().ok()?;
    StepAction::WORDS.into_iter().rfind(|word| told.contains(&format!(";then={word}")))
}

/// True if a decision tells a step.
#[inline]
pub fn has_steps(decisions: &[RateDecision]) -> bool {
    decisions.iter().any(|judged| judged.decision.reached > 0)
}

/// Writes `"plan";at=80;then=warn`: an RFC 9651 list with one item for each limit of which a step was reached.
#[cold]
pub fn write_steps(chain: &LimitChain, decisions: &[RateDecision], headers: &mut HeaderMap) {
    let mut line = Vec::new();
    for (config, step) in last_steps(chain, decisions) {
        if !line.is_empty() {
            line.extend_from_slice(b", ");
        }
        line.extend_from_slice(&quote_name(&config.name));
        line.extend(format!(";at={};then={}", step.percent(), step.then.as_str()).into_bytes());
    }
    if let (false, Ok(line)) = (line.is_empty(), HeaderValue::from_maybe_shared(Bytes::from(line))) {
        headers.insert(STEP, line);
    }
}

/// `plan=warn,budget=slow`: the last step of each limit, for the access log; `None` = there is none.
#[cold]
pub fn log_steps(chain: &LimitChain, decisions: &[RateDecision]) -> Option<String> {
    let mut text = String::new();
    for (config, step) in last_steps(chain, decisions) {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing into a String cannot fail.
        let _ = write!(text, "{comma}{}={}", config.name, step.then.as_str());
    }
    (!text.is_empty()).then_some(text)
}
