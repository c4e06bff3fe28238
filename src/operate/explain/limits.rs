//! Each limit of the chain: whether it concerns the request, by which key it counts, and what it would say.

use serde::Serialize;

use super::describe;
use crate::admission::chain::{ChainForecast, LimitDemand, RateDecision};
use crate::base::clock::Now;
use crate::config::LocationId;
use crate::config::describe::{describe_limit, describe_rate};
use crate::config::{MissingKey, OnFailure};
use crate::limit::{Limit, LimitOutcome};
use crate::proxy::gateway::{Gateway, LimitChain};
use crate::proxy::judge;
use crate::proxy::judge::{Caller, ChargeFault, Exemption};
use crate::proxy::reject::{Fault, Rejection};
use crate::shared::Session;

/// One limit of the chain.
#[derive(Debug, Clone, Serialize)]
pub struct LimitExplanation {
    pub name: String,
    /// The limit as a sentence.
    pub does: String,
    pub dry_run: bool,
    /// Why it does not count the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Why it cannot count the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// "client IP 203.0.113.7".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// Of a limit that is counted in Redis, when nothing is known of that: `offline`, or else what decides while Redis
    /// does not answer: `local`, `allow` or `reject`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_redis: Option<&'static str>,
    pub counters: Vec<CounterExplanation>,
}

/// One rate, or the slots of a concurrency limit, as the request finds it.
#[derive(Debug, Clone, Serialize)]
pub struct CounterExplanation {
    /// "300 requests per 60 seconds"; absent for slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    pub remaining: u64,
    pub of: u64,
    /// Until one more fits.
    pub reset_ms: u64,
    /// `admit`, `wait` or `reject`.
    pub outcome: &'static str,
    pub wait_ms: u64,
    /// When it rejects; absent if no time helps, or none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// Looks at the chain of `route`; what it finds is added to `told` even when the chain refuses.
pub(super) async fn explain_chain(
    gateway: &Gateway,
    session: Option<&Session>,
    caller: &Caller<'_>,
    route: Option<LocationId>,
    now: Now,
    told: &mut Vec<LimitExplanation>,
) -> Result<ChainForecast, Rejection> {
    let LimitChain { chain, keys } = gateway.chain_for(route);
    let mut keys = keys.iter();
    let mut fault: Option<ChargeFault> = None;
    let ask = |limit: &Limit| {
        let asked = match keys.next() {
            Some(spec) => caller.build_charge(&gateway.keys, limit, spec),
            None => Ok(LimitDemand::Skip),
        };
        told.push(explain_limit(gateway, caller, route, limit, &asked));
        asked.unwrap_or_else(|found| {
            fault = Some(found);
            LimitDemand::MissingKey
        })
    };
    let foreseen = match session {
        Some(session) => chain.peek_shared(session, now, &gateway.waiting, ask).await,
        None => chain.peek(now, &gateway.waiting, ask),
    };
    for unsaid in &foreseen.unanswered {
        told[unsaid.limit_index].without_redis = Some(unsaid.fallback.map_or("offline", OnFailure::as_str));
    }
    for judged in &foreseen.decisions {
        let place = usize::from(judged.limit_index);
        let share = foreseen.unanswered.iter().find(|unsaid| unsaid.limit_index == place);
        let limit = share.and_then(|unsaid| unsaid.share.as_ref()).unwrap_or(&chain.limits()[place]);
        told[place].counters.push(explain_counter(limit, judged));
    }
    if let Some(fault) = fault {
        return Err(Fault::from(fault).into());
    }
    match &foreseen.rejection {
        Some(refusal) => Err(judge::translate_rejection(refusal)),
        None => Ok(foreseen),
    }
}

fn explain_limit(
    gateway: &Gateway,
    caller: &Caller<'_>,
    route: Option<LocationId>,
    limit: &Limit,
    asked: &Result<LimitDemand, ChargeFault>,
) -> LimitExplanation {
    let config = &limit.config;
    let location = route.map(|place| &gateway.config.locations[place]);
    let keyed = describe::describe_key(gateway, config, &caller.subject, route);
    let mut told = LimitExplanation {
        name: limit.name.to_string(),
        does: describe_limit(&gateway.config, limit.id, location),
        dry_run: config.dry_run,
        skipped: None,
        problem: None,
        counts_by: None,
        cost: None,
        without_redis: None,
        counters: Vec::new(),
    };
    let missing = keyed.missing.join(" or ");
    match asked {
        Ok(LimitDemand::Units(units) | LimitDemand::Shared(units, _)) => {
            told.counts_by = Some(keyed.text);
            told.cost = Some(units.cost);
        }
        Ok(LimitDemand::Skip) => {
            told.skipped = Some(match caller.select_variant(limit).err() {
                Some(Exemption::Methods) => {
                    let methods: Vec<&str> = config.methods.iter().map(http::Method::as_str).collect();
                    format!("it limits {} only", methods.join(" and "))
                }
                Some(Exemption::Tier) => format!("tier {} has no limit here", caller.subject.tier),
                Some(Exemption::Bypass) => format!("{} is in its bypass", caller.client.ip),
                None => {
                    format!(
                        "the request has no {missing}, and missing_key is {}",
                        missing_key_word(config.missing_key)
                    )
                }
            });
        }
        Ok(LimitDemand::MissingKey) => {
            let problem = format!(
                "the request has no {missing}, and missing_key is {}",
                missing_key_word(config.missing_key)
            );
            told.problem = Some(problem);
        }
        Err(ChargeFault::InvalidCost) => {
            told.problem = Some("its cost is not a number, and invalid_cost is reject".to_owned());
        }
        Err(ChargeFault::RepeatedKey) => {
            told.problem = Some(format!("what it counts by is given more than once: {}", keyed.text));
        }
    }
    told
}

fn missing_key_word(missing: MissingKey) -> &'static str {
    match missing {
        MissingKey::Ip => "ip",
        MissingKey::Shared => "shared",
        MissingKey::Reject => "reject",
        MissingKey::Skip => "skip",
    }
}

fn explain_counter(limit: &Limit, judged: &RateDecision) -> CounterExplanation {
    let rate = usize::from(judged.rate);
    let quota = limit
        .config
        .locate_rate(rate)
        .and_then(|(_, numbers, place)| numbers.rate_quotas().get(place).copied());
    let decision = &judged.decision;
    let ms = |ns: u64| ns.div_ceil(1_000_000);
    let retries =
        decision.outcome == LimitOutcome::Reject && quota.is_some() && decision.retry_after_ns != u64::MAX;
    CounterExplanation {
        rate: quota.map(|(rate, _)| describe_rate(&rate)),
        remaining: decision.remaining,
        of: quota.map_or_else(|| limit.max_units(rate), |(_, units)| units),
        reset_ms: ms(decision.reset_ns),
        outcome: match decision.outcome {
            LimitOutcome::Admit => "admit",
            LimitOutcome::Wait => "wait",
            LimitOutcome::Reject => "reject",
        },
        wait_ms: ms(decision.wait_ns),
        retry_after_ms: retries.then(|| ms(decision.retry_after_ns)),
    }
}
