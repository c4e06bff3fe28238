//! Judges the descriptors of a call of Envoy's rate limit service, all of them as one transaction.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::demand::{Caller, ChargeFault};
use super::quotas;
use crate::gateway::worker::{RequestInFlight, Worker};
use crate::gateway::{Gateway, LimitChain};
use crate::reject::{Fault, Rejection};
use sluicegate_admission::ban::StrikeTarget;
use sluicegate_admission::chain::{
    ChainMode, ChainVerdict, ChainedLimit, Decisions, LimitDemand, PendingStore, WaitingRequest,
};
use sluicegate_base::clock::Now;
use sluicegate_http::request::account::{self, Tier};
use sluicegate_http::request::client::{Client, UNIX_CLIENT};
use sluicegate_http::request::descriptor::DescriptorFacts;
use sluicegate_http::request::key::KeyInput;
use sluicegate_http::request::source::SourceInput;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{BanKey, TierRules};

/// The terms of a call.
pub struct DescriptorTerms<'d> {
    /// The limits of all descriptors, those of the first before those of the second, and so on.
    pub chain: Arc<LimitChain>,
    /// The descriptors with a rule, in the order of the call.
    pub descriptors: SmallVec<[JudgedDescriptor<'d>; 2]>,
    /// The longest wait that the caller accepts, ns.
    pub max_wait_ns: u64,
}

/// One descriptor with a rule.
pub struct JudgedDescriptor<'d> {
    /// The facts that the descriptor states.
    pub facts: DescriptorFacts<'d>,
    /// The range of its limits in the chain.
    pub places: Range<usize>,
    /// The units of each of them, at least 1; `None` = as configured.
    pub hits: Option<u64>,
}

/// The earlier place of a chain that counts for a place as well, because limit and key are the same; empty =
/// there is none.
pub type MergedPlaces = SmallVec<[Option<u16>; 8]>;

/// The client that a descriptor is about.
struct Identity<'d> {
    client: Client,
    account: Option<Cow<'d, [u8]>>,
    tier: Option<Tier>,
}

/// The findings of judging beside the verdict.
#[derive(Default)]
pub(super) struct CallFindings {
    pub merged: MergedPlaces,
    /// The client for bans, of the first descriptor that tells one.
    pub strike_target: Option<StrikeTarget>,
    pub client: Option<Client>,
    pub account: Option<Box<str>>,
    pub tier: Option<Tier>,
}

/// Judges the descriptors; `verdict` is set to that of the chain, or stays `None` if they have no limits. `findings`
/// are set also if a rejection ends it.
///
/// # Errors
/// The rejection, unless a limit is its cause.
pub(super) fn judge_descriptors<M: ChainMode>(
    worker: &Worker,
    now: Now,
    terms: &DescriptorTerms<'_>,
    in_flight: &mut Option<RequestInFlight>,
    findings: &mut CallFindings,
    decisions: &mut Decisions,
    verdict: &mut Option<ChainVerdict<PendingStore<M>>>,
) -> Result<(), Rejection> {
    let gateway = &*worker.gateway;
    if let Some(max) = gateway.config.server.max_in_flight.filter(|_| in_flight.is_none()) {
        *in_flight = RequestInFlight::try_count(&gateway.load.in_flight, max);
        if in_flight.is_none() {
            return Err(Fault::TooManyInFlight.into());
        }
    }
    with_callers(gateway, terms, now, |identities, callers| {
        if let Some(first) = identities.first() {
            findings.client = Some(first.client);
            findings.account = first.account.as_ref().map(|account| String::from_utf8_lossy(account).into());
            findings.tier = first.tier.clone();
        }
        // Descriptors that tell nothing of a client are not checked for bans.
        for caller in callers {
            let (ip, account) = (caller.client.ip, caller.subject.account);
            if let Some(left_ns) = gateway.operator_bans.ban_left_ns(ip, account, now) {
                return Err(Rejection::Banned { by_operator: true, left_ns });
            }
            let Some(bans) = &gateway.bans else { continue };
            let is_known = match gateway.config.bans.as_ref().map(|bans| bans.key) {
                Some(BanKey::Account) => ip != UNIX_CLIENT || account.is_some(),
                _ => ip != UNIX_CLIENT,
            };
            if is_known {
                let (target, left_ns) = bans.judge(&gateway.keys, &caller.subject, now);
                findings.strike_target = findings.strike_target.or(Some(target));
                if let Some(left_ns) = left_ns {
                    findings.strike_target = Some(target);
                    return Err(Rejection::Banned { by_operator: false, left_ns });
                }
            }
        }
        if !terms.chain.places.is_empty() {
            let mut demands = collect_demands(worker, terms, callers, now, M::CHARGES)?;
            if callers.len() > 1 {
                findings.merged = merge_demands(terms.chain.chain.limits(), &mut demands);
            }
            // The call that waits is small.
            let waiting_size = || 0;
            let waiter =
                WaitingRequest::new(&gateway.load.waiting, &waiting_size).with_max_wait(terms.max_wait_ns);
            let mut demands = demands.iter().copied();
            let demand_of = |_, _: &Limit| demands.next().unwrap_or(LimitDemand::Skip);
            terms.chain.chain.judge_into::<M>(now, waiter, true, None, demand_of, decisions, verdict);
        }
        Ok(())
    })
}

/// Gives the hits of descriptors back, to limits that are counted here and have no queue.
///
/// # Errors
/// The key of a limit is repeated.
pub fn give_back_hits(worker: &Worker, now: Now, terms: &DescriptorTerms<'_>) -> Result<(), Rejection> {
    with_callers(&worker.gateway, terms, now, |_, callers| {
        let demands = collect_demands(worker, terms, callers, now, false)?;
        for (limit, demand) in terms.chain.chain.limits().iter().zip(&demands) {
            let LimitDemand::Units(units) = demand else { continue };
            for rate in limit.rate_range(units.variant) {
                limit.credit_units(rate, &units.key, units.cost, now);
            }
        }
        Ok(())
    })
}

/// Runs `run` with the identity and the caller of each descriptor.
fn with_callers<R>(
    gateway: &Gateway,
    terms: &DescriptorTerms<'_>,
    now: Now,
    run: impl FnOnce(&[Identity<'_>], &[Caller<'_>]) -> Result<R, Rejection>,
) -> Result<R, Rejection> {
    let identities: SmallVec<[Identity<'_>; 2]> =
        terms.descriptors.iter().map(|one| identify(gateway, &one.facts)).collect::<Result<_, _>>()?;
    let callers: SmallVec<[Caller<'_>; 2]> = terms
        .descriptors
        .iter()
        .zip(&identities)
        .map(|(one, identity)| find_caller(gateway, &one.facts, identity, now))
        .collect();
    run(&identities, &callers)
}

/// Finds the account and the tier: those that the entries state come first.
fn identify<'d>(gateway: &Gateway, facts: &'d DescriptorFacts<'d>) -> Result<Identity<'d>, Rejection> {
    let sources = SourceInput { headers: &facts.headers, query: facts.query, token: None, body: None };
    let account = match facts.account {
        Some(account) => Some(Cow::Borrowed(account)),
        None => account::find_account(gateway.config.account.from.as_ref(), &sources)
            .map_err(|_| Fault::RepeatedKey)?,
    };
    let tier = match (&facts.tier, &gateway.callers.tiers) {
        (Some(tier), _) => Some(tier.clone()),
        (None, Some(tiers)) => {
            Some(tiers.find_tier(None, account.as_deref(), &sources).map_err(|_| Fault::RepeatedKey)?)
        }
        (None, None) => None,
    };
    // The caller is trusted: it may state costs.
    let client = Client { ip: facts.ip.unwrap_or(UNIX_CLIENT), trusted_peer: true };
    Ok(Identity { client, account, tier })
}

fn find_caller<'a>(
    gateway: &Gateway,
    facts: &'a DescriptorFacts<'_>,
    identity: &'a Identity<'_>,
    now: Now,
) -> Caller<'a> {
    let subject = KeyInput {
        ip: gateway.clients.mask_address(identity.client.ip),
        ip_key: None,
        account: identity.account.as_deref(),
        tier: identity.tier.as_ref().map_or(TierRules::DEFAULT, Tier::as_str),
        path: &facts.path,
        query: facts.query,
        location: None,
        host: &facts.host,
        method: &facts.method,
        headers: &facts.headers,
        trusted_peer: identity.client.trusted_peer,
        token: None,
        body: None,
    };
    Caller::stated(identity.client, now, subject)
}

/// The demand on each limit of the chain. `counts`: the units count among the heaviest keys of the limits.
fn collect_demands(
    worker: &Worker,
    terms: &DescriptorTerms<'_>,
    callers: &[Caller<'_>],
    now: Now,
    counts: bool,
) -> Result<SmallVec<[LimitDemand; 4]>, Fault> {
    let LimitChain { chain, places, .. } = &*terms.chain;
    let mut demands = SmallVec::with_capacity(places.len());
    for (descriptor, caller) in terms.descriptors.iter().zip(callers) {
        let own = descriptor.places.clone();
        for (limit, place) in chain.limits()[own.clone()].iter().zip(&places[own]) {
            let demand = caller.build_demand(&worker.gateway.keys, limit, place);
            let hits = descriptor.hits.filter(|_| !limit.is_concurrency());
            let demand = demand.map(|demand| hits.map_or(demand, |cost| demand.with_cost(cost)));
            if let Ok(demand) = &demand
                && counts
            {
                worker.heavy_keys.count_asked(limit.id, demand, &caller.subject, now);
                quotas::observe_demand(worker, demands.len(), limit, demand, &caller.subject);
            }
            demands.push(demand.map_err(|fault: ChargeFault| Fault::from(fault))?);
        }
    }
    Ok(demands)
}

/// Adds up the demands on one limit under one key, at the first place of them: the store judges each key of a limit
/// once in a call.
fn merge_demands(limits: &[ChainedLimit], demands: &mut [LimitDemand]) -> MergedPlaces {
    let mut merged: MergedPlaces = SmallVec::new();
    for later in 1..demands.len() {
        let is_same = |earlier: &usize| limits[*earlier].id == limits[later].id;
        for earlier in (0..later).filter(is_same) {
            let Some(sum) = add_demands(demands[earlier], demands[later]) else { continue };
            (demands[earlier], demands[later]) = (sum, LimitDemand::Skip);
            merged.resize(demands.len(), None);
            merged[later] = Some(earlier as u16);
            break;
        }
    }
    merged
}

/// The sum of two demands on one limit, by the numbers of the first; `None` if their keys differ.
fn add_demands(one: LimitDemand, other: LimitDemand) -> Option<LimitDemand> {
    let sum = |one: Units, other: Units| {
        let cost = one.cost.max(1).saturating_add(other.cost.max(1));
        Units { cost, ..one }
    };
    match (one, other) {
        (LimitDemand::Units(one), LimitDemand::Units(other)) if one.key == other.key => {
            Some(LimitDemand::Units(sum(one, other)))
        }
        (LimitDemand::Shared(one, key), LimitDemand::Shared(other, other_key)) if key == other_key => {
            Some(LimitDemand::Shared(sum(one, other), key))
        }
        _ => None,
    }
}
