//! Each limit of the chain: whether it concerns the request, by which key it counts, and what it would say.

use serde::Serialize;

use super::words;
use crate::admission::chain::{Ask, Foreseen, Judged};
use crate::base::clock::Now;
use crate::config::describe::{describe_limit, describe_rate};
use crate::config::{MissingKey, OnFailure};
use crate::limit::{Limit, Outcome};
use crate::proxy::gateway::{Gateway, LimitChain};
use crate::proxy::judge;
use crate::proxy::judge::{AskFault, Caller, Exempt};
use crate::proxy::reject::{Fault, Rejection};
use crate::shared::Session;

/// One limit of the chain.
#[derive(Debug, Clone, Serialize)]
pub struct LimitTold {
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
    pub counters: Vec<CounterTold>,
}

/// One rate, or the slots of a concurrency limit, as the request finds it.
#[derive(Debug, Clone, Serialize)]
pub struct CounterTold {
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
pub(super) async fn look(
    gateway: &Gateway,
    session: Option<&Session>,
    caller: &Caller<'_>,
    route: Option<usize>,
    now: Now,
    told: &mut Vec<LimitTold>,
) -> Result<Foreseen, Rejection> {
    let LimitChain { chain, keys } = gateway.chain(route);
    let mut keys = keys.iter();
    let mut fault: Option<AskFault> = None;
    let ask = |limit: &Limit| {
        let asked = match keys.next() {
            Some(spec) => caller.ask(&gateway.keys, limit, spec),
            None => Ok(Ask::Skip),
        };
        told.push(tell(gateway, caller, route, limit, &asked));
        asked.unwrap_or_else(|found| {
            fault = Some(found);
            Ask::MissingKey
        })
    };
    let foreseen = match session {
        Some(session) => chain.peek_shared(session, now, &gateway.waiting, ask).await,
        None => chain.peek(now, &gateway.waiting, ask),
    };
    for unsaid in &foreseen.unsaid {
        told[unsaid.place].without_redis = Some(unsaid.instead.map_or("offline", OnFailure::word));
    }
    for judged in &foreseen.decisions {
        let place = usize::from(judged.place);
        let share = foreseen.unsaid.iter().find(|unsaid| unsaid.place == place);
        let limit = share.and_then(|unsaid| unsaid.share.as_ref()).unwrap_or(&chain.limits()[place]);
        told[place].counters.push(counter(limit, judged));
    }
    if let Some(fault) = fault {
        return Err(Fault::from(fault).into());
    }
    match &foreseen.refusal {
        Some(refusal) => Err(judge::rejection(refusal)),
        None => Ok(foreseen),
    }
}

fn tell(
    gateway: &Gateway,
    caller: &Caller<'_>,
    route: Option<usize>,
    limit: &Limit,
    asked: &Result<Ask, AskFault>,
) -> LimitTold {
    let config = &limit.config;
    let location = route.map(|place| &gateway.config.locations[place]);
    let keyed = words::key(gateway, config, &caller.subject, route);
    let mut told = LimitTold {
        name: limit.name.to_string(),
        does: describe_limit(&gateway.config, limit.index, location),
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
        Ok(Ask::Units(units) | Ask::Shared(units, _)) => {
            told.counts_by = Some(keyed.words);
            told.cost = Some(units.cost);
        }
        Ok(Ask::Skip) => {
            told.skipped = Some(match caller.variant(limit).err() {
                Some(Exempt::Methods) => {
                    let methods: Vec<&str> = config.methods.iter().map(http::Method::as_str).collect();
                    format!("it limits {} only", methods.join(" and "))
                }
                Some(Exempt::Tier) => format!("tier {} has no limit here", caller.subject.tier),
                Some(Exempt::Bypass) => format!("{} is in its bypass", caller.client.ip),
                None => {
                    format!("the request has no {missing}, and missing_key is {}", word(config.missing_key))
                }
            });
        }
        Ok(Ask::MissingKey) => {
            let problem =
                format!("the request has no {missing}, and missing_key is {}", word(config.missing_key));
            told.problem = Some(problem);
        }
        Err(AskFault::InvalidCost) => {
            told.problem = Some("its cost is not a number, and invalid_cost is reject".to_owned());
        }
        Err(AskFault::KeyRepeated) => {
            told.problem = Some(format!("what it counts by is given more than once: {}", keyed.words));
        }
    }
    told
}

fn word(missing: MissingKey) -> &'static str {
    match missing {
        MissingKey::Ip => "ip",
        MissingKey::Shared => "shared",
        MissingKey::Reject => "reject",
        MissingKey::Skip => "skip",
    }
}

fn counter(limit: &Limit, judged: &Judged) -> CounterTold {
    let rate = usize::from(judged.rate);
    let quota =
        limit.config.locate(rate).and_then(|(_, numbers, place)| numbers.quotas().get(place).copied());
    let decision = &judged.decision;
    let ms = |ns: u64| ns.div_ceil(1_000_000);
    let retries =
        decision.outcome == Outcome::Reject && quota.is_some() && decision.retry_after_ns != u64::MAX;
    CounterTold {
        rate: quota.map(|(rate, _)| describe_rate(&rate)),
        remaining: decision.remaining,
        of: quota.map_or_else(|| limit.capacity(rate), |(_, units)| units),
        reset_ms: ms(decision.reset_ns),
        outcome: match decision.outcome {
            Outcome::Admit => "admit",
            Outcome::Wait => "wait",
            Outcome::Reject => "reject",
        },
        wait_ms: ms(decision.wait_ns),
        retry_after_ms: retries.then(|| ms(decision.retry_after_ns)),
    }
}
