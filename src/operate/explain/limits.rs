//! Explains each limit of the chain: whether it applies, by which key it counts, and its decision.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::describe;
use sluicegate_admission::chain::{
    self, ChainVerdict, Decisions, LimitDemand, Look, PendingStore, Queued, RateDecision, UndecidedLimit,
    WaitingRequest,
};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_config::describe::{describe_chain_limit, describe_key_part, describe_rate};
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, LimitOutcome};
use sluicegate_model::{Amount, KeyPart, LimitConfig, MissingKey, ValueSource};
use sluicegate_proxy::gateway::usage::UsageStep;
use sluicegate_proxy::gateway::{Gateway, LimitChain};
use sluicegate_proxy::judge::{self, BodyView, Caller, ChargeFault, Exemption, JudgeMode, RequestFacts};
use sluicegate_proxy::reject::Rejection;
use sluicegate_store::{Session, SharedKey};

json_object! {
    /// One limit of the chain.
    #[derive(Debug, Clone, Default)]
    pub struct LimitExplanation as "ExplainedLimit" {
        pub name: String = "Its name.",
        pub does: String = "The limit as a sentence.",
        pub dry_run: bool = "Whether it only counts.",
        pub unenforced: bool = maybe "True if it is a dry run for this key, which is not in its share.",
        pub skipped: Option<String> = maybe "Why it does not count the request.",
        pub problem: Option<String> = maybe "Why it cannot count the request.",
        pub body: Option<&'static str> = maybe "What is missing for a limit that reads the body.",
        pub counts_by: Option<String> = maybe "The key.",
        pub class: Option<ClassExplanation> = maybe "Its class, where the limit has shares.",
        pub grant: Option<GrantExplanation> = maybe "The other numbers that an operator granted the key.",
        pub cost: Option<u64> = maybe "The units that the request takes.",
        pub reserves: Option<Amount> = maybe "The units, or the money, that it reserves; its response settles them.",
        pub without_redis: Option<&'static str> = maybe "The fallback in force, if Redis does not answer.",
        pub counters: Vec<CounterExplanation> = "One for each rate.",
        // A call of the rate-limit service names the limit.
        pub(super) is_named: bool,
        // The key by which a limit with shares counts it here.
        pub(super) key: Option<CounterKey>,
        // The name of the key in the store.
        pub(super) shared_key: Option<SharedKey>,
    }
}

/// The fault of a request whose model has no price.
const NO_PRICE: &str = "its model has no price";
/// The remark on a limit that reads the body, where none is given.
const BODY_MISSING: &str = "no body was given, so its values are missing";

json_object! {
    /// A grant of an operator.
    #[derive(Debug, Clone)]
    pub struct GrantExplanation as "ExplainedGrant" {
        pub left_ms: u64 = "Milliseconds until it ends.",
        pub by: String = "The name of the operator's token.",
        pub reason: String = "The operator's reason.",
    }

    /// The class of the request in the shares of the limit.
    #[derive(Debug, Clone)]
    pub struct ClassExplanation as "ExplainedClass" {
        pub name: String = "Its name.",
        pub why: String = "How it was found.",
    }

    /// The units of a leased limit, as this gateway knows them.
    #[derive(Debug, Clone)]
    pub struct LeasedUnits as "LeasedUnits" {
        pub here: u64 = "Units that this gateway holds.",
        pub store: u64 = "Units that Redis had left at its last answer.",
    }

    /// One rate, or the slots of a concurrency limit, as the request finds it.
    #[derive(Debug, Clone)]
    pub struct CounterExplanation as "ExplainedCounter" {
        pub rate: Option<String> = maybe "The rate; absent for slots.",
        pub remaining: Amount = "Units that still fit, or money.",
        pub own: Option<Amount> = maybe "Those of them that only its class may take, where that is known.",
        pub leased: Option<LeasedUnits> = maybe "Where they are, if the limit is leased.",
        pub of: Amount = "Units that fit when nothing is used, or money.",
        pub reset_ms: u64 = "Milliseconds until one more fits.",
        pub outcome: &'static str = "The decision." in ["admit", "wait", "reject"],
        pub wait_ms: u64 = "Milliseconds in the queue.",
        pub retry_after_ms: Option<u64> = maybe "Milliseconds until the request would fit.",
        pub begins: Option<String> = maybe "The beginning of the calendar's window.",
        pub ends: Option<String> = maybe "Its end.",
        pub window: Option<String> = maybe "Both in words.",
        pub step: Option<UsageStep> = maybe "The last step of the quota that is reached.",
    }
}

/// Looks at the limits for a request without charging them, and explains each.
#[derive(Default)]
pub(super) struct LookMode {
    pub limits: Vec<LimitExplanation>,
    /// The shared limits that the store did not decide about.
    undecided: Vec<UndecidedLimit>,
    /// The indices of the limits that a call names, in the chain; `None` = all limits of the chain judge.
    selected: Option<SmallVec<[u16; 8]>>,
}

/// The wait of a request in a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedWait {
    /// `None` for a slot: nobody knows when one is freed.
    pub wait_ms: Option<u64>,
    /// The position in a queue for slots, from 1.
    pub position: Option<u64>,
    /// The index of the limit in the chain.
    pub limit_index: usize,
}

impl PlannedWait {
    fn of_queued(queued: &Queued) -> PlannedWait {
        let position = queued.slot_position();
        let wait_ms = position.is_none().then(|| queued.wait_ns().div_ceil(1_000_000));
        PlannedWait { wait_ms, position, limit_index: queued.limit_index() }
    }
}

impl<'r> JudgeMode<'r> for LookMode {
    type Chain = chain::Look;

    fn try_count_in_flight(&mut self, gateway: &Gateway) -> bool {
        gateway.config.server.max_in_flight.is_none_or(|max| gateway.load.in_flight.load(Relaxed) < max)
    }

    fn observe_demand(
        &mut self,
        gateway: &Gateway,
        facts: &RequestFacts<'r>,
        caller: &Caller<'_>,
        (_, limit): (usize, &Limit),
        demand: &Result<LimitDemand, ChargeFault>,
    ) {
        let is_named = self.selected.is_some();
        self.limits.push(explain_limit(gateway, facts, caller, limit, demand, is_named));
    }
}

impl LookMode {
    /// Looks at the limits that a call names, by their indices in the chain of all limits.
    pub(super) fn for_call(selected: SmallVec<[u16; 8]>) -> LookMode {
        LookMode { selected: Some(selected), ..LookMode::default() }
    }

    /// Completes the judgement of the chain, with the store if there is a `session`; `None` = admitted without a wait.
    ///
    /// # Errors
    /// The rejection by a limit.
    pub(super) async fn finish_chain(
        &mut self,
        session: Option<&Session>,
        waiter: WaitingRequest<'_>,
        verdict: Option<ChainVerdict<PendingStore<Look>>>,
        decisions: &mut Decisions,
    ) -> Result<Option<PlannedWait>, Rejection> {
        let undecided = &mut self.undecided;
        let answered = match verdict {
            Some(ChainVerdict::AskStore(pending)) => match session {
                Some(session) => pending.ask(session, waiter, decisions, undecided).await,
                None => pending.assume_admitted(waiter, decisions, undecided),
            },
            Some(ChainVerdict::Wait(queued)) => ChainVerdict::Wait(queued),
            Some(ChainVerdict::Reject(rejection)) => ChainVerdict::Reject(rejection),
            Some(ChainVerdict::Admit(_)) | None => return Ok(None),
        };
        match answered {
            ChainVerdict::Admit(_) => Ok(None),
            ChainVerdict::Wait(queued) => Ok(Some(PlannedWait::of_queued(&queued))),
            ChainVerdict::Reject(rejection) => Err(judge::translate_rejection(&rejection)),
        }
    }

    /// Adds the state of each counter.
    pub(super) fn add_counters(&mut self, limits: &LimitChain, decisions: &[RateDecision], now: Now) {
        let selected = self.selected.as_deref();
        let place_in = |all: &[u16], index| all.iter().position(|place| usize::from(*place) == index);
        let place_of = |index| selected.map_or(Some(index), |selected| place_in(selected, index));
        for limit in &self.undecided {
            let Some(looked) = place_of(limit.limit_index).and_then(|place| self.limits.get_mut(place))
            else {
                continue;
            };
            looked.without_redis = match (limit.fallback, &limit.share) {
                (Some(fallback), _) => Some(fallback.as_str()),
                (None, None) => Some("offline"),
                (None, Some(_)) => None,
            };
        }
        for decision in decisions {
            let index = usize::from(decision.limit_index);
            let undecided = self.undecided.iter().find(|one| one.limit_index == index);
            let limit = undecided
                .and_then(|one| one.share.as_deref())
                .unwrap_or_else(|| &limits.chain.limits()[index]);
            if let Some(looked) = place_of(index).and_then(|place| self.limits.get_mut(place)) {
                let own = looked.key.and_then(|key| limit.own_units(decision.rate.into(), &key, now));
                let own = own.map(|own| limit.config.amount(own));
                let shared = limits.chain.limits()[index].in_store.as_ref().zip(looked.shared_key);
                let leased = shared.and_then(|(own, key)| own.leased_units_of(decision.rate.into(), key));
                let leased = leased.map(|left| LeasedUnits { here: left.here, store: left.stored });
                let counter = explain_counter(limit, decision, now);
                looked.counters.push(CounterExplanation { own, leased, ..counter });
            }
        }
    }
}

fn explain_limit(
    gateway: &Gateway,
    facts: &RequestFacts<'_>,
    caller: &Caller<'_>,
    limit: &Limit,
    demand: &Result<LimitDemand, ChargeFault>,
    is_named: bool,
) -> LimitExplanation {
    let (config, route) = (&limit.config, facts.route());
    // The views of a location do not hold for a call that names the limit.
    let location = route.filter(|_| !is_named).map(|index| &gateway.config.locations[index]);
    let (key, missing) = describe::describe_key(gateway, config, &caller.subject, route);
    let lacks_body = config.reads_body() && matches!(facts.body_view, BodyView::Absent);
    let mut explanation = LimitExplanation {
        name: limit.name.to_string(),
        does: describe_chain_limit(&gateway.config, limit.id, location),
        dry_run: config.dry_run,
        body: (lacks_body && !is_named).then_some(BODY_MISSING),
        is_named,
        ..LimitExplanation::default()
    };
    match demand {
        Ok(LimitDemand::Units(units) | LimitDemand::Shared(units, _)) => {
            explanation.counts_by = Some(key);
            if let Ok(LimitDemand::Shared(_, own)) = demand {
                explanation.shared_key = Some(*own);
            }
            explanation.class = explain_class(caller, config, units.key.class);
            explanation.key = Some(units.key).filter(|_| config.shares.is_some() && config.shared.is_none());
            explanation.unenforced = units.unenforced;
            explanation.grant = config.variant_grant(units.variant).map(|grant| GrantExplanation {
                left_ms: Now(grant.until_ns).ns_since(facts.head.received).div_ceil(1_000_000),
                by: describe::escape_bytes(grant.by.as_bytes()),
                reason: describe::escape_bytes(grant.reason.as_bytes()),
            });
            match config.charge {
                None => explanation.cost = Some(units.cost),
                Some(_) => explanation.reserves = Some(config.amount(units.cost)),
            }
        }
        Ok(LimitDemand::Skip) => explanation.skipped = Some(explain_skip(caller, limit, &missing)),
        Ok(LimitDemand::MissingKey) => {
            // Without a key, it is in no share of them.
            explanation.unenforced = config.enforce.is_some();
            explanation.problem = Some(explain_missing(&missing, config.missing_key));
        }
        Err(fault) => {
            explanation.problem = Some(match fault {
                ChargeFault::InvalidCost => "its cost cannot be read, and invalid_cost is reject".to_owned(),
                ChargeFault::RepeatedCost => "its cost is given more than once".to_owned(),
                ChargeFault::UnknownModel => NO_PRICE.to_owned(),
                ChargeFault::Body(fault) => fault.detail().to_owned(),
                ChargeFault::RepeatedKey => format!("its key is given more than once: {key}"),
            });
        }
    }
    explanation
}

/// The class of a request, and how it was found.
fn explain_class(caller: &Caller<'_>, config: &LimitConfig, class: u8) -> Option<ClassExplanation> {
    let shares = config.shares.as_ref()?;
    let name = config.class_name(class)?.to_owned();
    let by = describe_key_part(&shares.by);
    let is_header = matches!(shares.by, KeyPart::Source(ValueSource::Header(_)));
    let why = match caller.read_class(shares).ok()? {
        None if is_header && !caller.subject.trusted_peer => format!("{by} counts from trusted proxies only"),
        None => format!("the request has no {by}"),
        Some(value) if value == name.as_bytes() => format!("by {by}"),
        Some(_) => format!("no class has the name of its {by}"),
    };
    Some(ClassExplanation { name, why })
}

/// Why a limit does not count a request. `missing`: the parts of the key that it lacks.
fn explain_skip(caller: &Caller<'_>, limit: &Limit, missing: &str) -> String {
    let config = &limit.config;
    match caller.select_variant(limit, 0).err() {
        Some(Exemption::Methods) => {
            let methods: Vec<&str> = config.methods.iter().map(http::Method::as_str).collect();
            format!("it limits {} only", methods.join(" and "))
        }
        Some(Exemption::Tier) => format!("tier {} has no limit here", caller.subject.tier),
        Some(Exemption::Bypass) => format!("{} is in its bypass", caller.client.ip),
        None if missing.is_empty() && config.pricing().is_some() => NO_PRICE.to_owned(),
        None => explain_missing(missing, config.missing_key),
    }
}

fn explain_missing(parts: &str, missing: MissingKey) -> String {
    format!("the request has no {parts}, and missing_key is {}", missing.as_str())
}

fn explain_counter(limit: &Limit, rate_decision: &RateDecision, now: Now) -> CounterExplanation {
    let rate = usize::from(rate_decision.rate);
    let quota = limit
        .config
        .locate_rate(rate)
        .and_then(|(_, numbers, index)| numbers.rate_quotas().get(index).copied());
    let decision = &rate_decision.decision;
    let ms = |ns: u64| ns.div_ceil(1_000_000);
    let retries =
        decision.outcome == LimitOutcome::Reject && quota.is_some() && decision.retry_after_ns != u64::MAX;
    let calendar = quota.and_then(|(rate, _)| rate.calendar.zip(limit.config.calendar.as_ref()));
    let window = calendar.map(|(unit, calendar)| {
        let window = calendar.window_at(unit, now.to_unix_ns() / 1_000_000_000, decision.anchor);
        let (begin, begins) = calendar.show_moment(window.begins);
        let (end, ends) = calendar.show_moment(window.ends);
        let window = format!("from {begin} to {end} {}", calendar.zone_name());
        (Some(window), Some(begins), Some(ends))
    });
    let (window, begins, ends) = window.unwrap_or_default();
    CounterExplanation {
        step: limit.config.steps_in(decision.reached).next_back().map(UsageStep::of),
        begins,
        ends,
        window,
        rate: quota.map(|(rate, _)| describe_rate(&limit.config, &rate)),
        remaining: limit.config.amount(decision.remaining),
        own: None,
        leased: None,
        of: limit.config.amount(match quota {
            Some((_, units)) if limit.config.shares.is_none() => units,
            _ => limit.max_units(rate, rate_decision.class),
        }),
        reset_ms: ms(decision.shown_reset_ns()),
        outcome: match decision.outcome {
            LimitOutcome::Admit => "admit",
            LimitOutcome::Wait => "wait",
            LimitOutcome::Reject => "reject",
        },
        wait_ms: ms(decision.wait_ns),
        retry_after_ms: retries.then(|| ms(decision.retry_after_ns)),
    }
}
