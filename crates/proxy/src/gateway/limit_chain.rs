//! The live chain of a location.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_admission::chain::{Chain, ChainedLimit, longest_wait_ns};
use sluicegate_admission::settlement::ReadingPlan;
use sluicegate_base::clock::duration_ns;
use sluicegate_http::request::key::LimitKeys;
use sluicegate_http::request::source::{BodyPlan, BodyValue, BodyValues};
use sluicegate_limit::Limit;
use sluicegate_model::{
    ActionConfig, AuthConfig, BODY_PEEK_AUTO, BandwidthConfig, BodyUse, Config, DescriptorRuleConfig,
    EchoedValue, KeyPart, LimitConfig, LimitId, LocationConfig, OnRejectPatch, Pricing, RequestPrice,
    ValueSource, ViewId, model_pointer,
};
use sluicegate_store::SharedLimit;

/// The limits of a location, in the order they are judged.
pub struct LimitChain {
    /// The limits with their shadows, to be judged as one transaction.
    pub chain: Chain,
    /// One for each limit of the chain.
    pub places: Vec<ChainPlace>,
    /// The parts of responses that its limits read; `None`: none of them charges by the response.
    pub reading_plan: Option<Arc<ReadingPlan>>,
    /// The prices of its limits that count money.
    pub pricings: Vec<Arc<Pricing>>,
    /// The longest time for which its queues can hold a request that has to pause, ns.
    pub max_pause_ns: u64,
    /// A limit has shares.
    pub has_shares: bool,
    /// A limit counts by a claim of tokens.
    pub reads_token: bool,
}

/// A limit at its place in a chain.
pub struct ChainPlace {
    /// The form of its keys.
    pub keys: LimitKeys,
    /// The variant that judges here in place of the limit's own numbers: 0, or that of a view.
    pub own_variant: usize,
}

/// The limits that chains are made of.
#[derive(Clone, Copy)]
pub(super) struct BuiltLimits<'a> {
    pub config: &'a Config,
    pub limits: &'a [Arc<Limit>],
    pub shared: &'a [Option<Arc<SharedLimit>>],
}

impl LimitChain {
    /// `location`: that of the chain; `None` = it is for requests that no location serves.
    pub(super) fn new(built: BuiltLimits<'_>, location: Option<&LocationConfig>) -> LimitChain {
        let config = built.config;
        let max_wait = longest_wait(location.and_then(|location| location.timeout));
        let own = location.map_or(&[][..], |location| &location.limits);
        // Who asks what is left of a quota must not use it up.
        let asks_usage = location.is_some_and(|own| matches!(own.action, ActionConfig::Usage { .. }));
        let counts = |limit: &&LimitId| !(asks_usage && config.limits[**limit].calendar.is_some());
        let judging = config.server.limits.iter().chain(own).filter(counts);
        let ids: Vec<LimitId> = config.with_shadows(judging).collect();
        let view_of = |limit| config.view_at(location, limit);
        LimitChain::of_limits(built, &ids, view_of, (max_wait, location.map(|own| &own.on_reject)))
    }

    /// The limits before the question to an auth service.
    pub(super) fn before_question(
        built: BuiltLimits<'_>,
        auth: &AuthConfig,
        location: &LocationConfig,
    ) -> LimitChain {
        let ids: Vec<LimitId> = built.config.with_shadows(&auth.limits).collect();
        let view_of = |limit| auth.views.iter().find(|(viewed, _)| *viewed == limit).map(|(_, view)| *view);
        let max_wait = longest_wait(location.timeout);
        LimitChain::of_limits(built, &ids, view_of, (max_wait, Some(&location.on_reject)))
    }

    /// All limits, for calls that select some of them by name.
    pub(super) fn for_calls(built: BuiltLimits<'_>) -> LimitChain {
        let ids: Vec<LimitId> = built.config.with_shadows(&built.config.declared_limits()).collect();
        LimitChain::of_limits(built, &ids, |_| None, (u64::MAX, None))
    }

    /// The limits of rules for descriptors, one rule after the other. A limit of several rules stands in the chain for
    /// each of them, because each descriptor has keys of its own.
    pub(super) fn for_rules<'r>(
        built: BuiltLimits<'_>,
        rules: impl Iterator<Item = &'r DescriptorRuleConfig>,
    ) -> LimitChain {
        let BuiltLimits { config, limits, shared } = built;
        let places_of = |rule: &'r DescriptorRuleConfig| {
            let view_of =
                |limit| rule.views.iter().find(|(viewed, _)| *viewed == limit).map(|(_, view)| *view);
            config.with_shadows(&rule.limits).map(move |limit| (limit, view_of(limit)))
        };
        let (ids, views): (Vec<LimitId>, Vec<Option<ViewId>>) = rules.flat_map(places_of).unzip();
        let chain = Chain::with_repeats(ids.iter().map(|id| limits[id.0].clone()).collect());
        let chain = chain.with_shared(shared).with_turns(|limit| turns_of(config, None, limit));
        LimitChain::with_views(chain, |index, _| views[index], u64::MAX)
    }

    /// `view_of` tells the view by which a limit judges here; `None` = its own numbers. A location has an `on_reject`.
    fn of_limits(
        built: BuiltLimits<'_>,
        ids: &[LimitId],
        view_of: impl Fn(LimitId) -> Option<ViewId>,
        (max_wait, on_reject): (u64, Option<&OnRejectPatch>),
    ) -> LimitChain {
        let chain = Chain::new(ids.iter().map(|id| built.limits[id.0].clone()).collect());
        let chain = chain.with_max_wait(max_wait).with_shared(built.shared);
        let chain = chain.with_turns(|limit| turns_of(built.config, on_reject, limit));
        LimitChain::with_views(chain, |_, limit| view_of(limit), max_wait)
    }

    /// `view_at` tells the view by which the limit at an index judges.
    fn with_views(
        chain: Chain,
        view_at: impl Fn(usize, LimitId) -> Option<ViewId>,
        max_wait: u64,
    ) -> LimitChain {
        let place = |(index, limit): (usize, &ChainedLimit)| ChainPlace {
            keys: LimitKeys::from_limit(&limit.config),
            own_variant: view_at(index, limit.id).map_or(0, |view| limit.config.view_variant(view)),
        };
        let places: Vec<ChainPlace> = chain.limits().iter().enumerate().map(place).collect();
        let reading_plan = ReadingPlan::for_limits(chain.limits().iter().map(|limit| &limit.config));
        let placed = chain.limits().iter().zip(&places);
        let waits = placed.map(|(limit, place)| longest_wait_ns(&limit.config, place.own_variant));
        let max_pause_ns = waits.max().unwrap_or(0).min(max_wait);
        let is_claim = |part: &KeyPart| matches!(part, KeyPart::Source(ValueSource::Jwt(_)));
        let reads_token = chain.limits().iter().any(|limit| limit.config.parts().any(is_claim));
        let mut pricings: Vec<Arc<Pricing>> =
            chain.limits().iter().filter_map(|limit| limit.config.pricing().cloned()).collect();
        // A shadow, which stands behind its limit, has the same prices.
        pricings.dedup_by(|later, earlier| Arc::ptr_eq(later, earlier));
        let has_shares = chain.limits().iter().any(|limit| limit.config.shares.is_some());
        LimitChain { chain, places, reading_plan, pricings, max_pause_ns, has_shares, reads_token }
    }

    /// The prices of a request with this body, by the lists that are in force.
    #[cold]
    pub fn find_prices(&self, body: Option<&BodyValues>) -> Vec<RequestPrice> {
        let model = body.map(|body| body.find(model_pointer()));
        let model = model.and_then(BodyValue::key_text).and_then(|model| str::from_utf8(model).ok());
        self.pricings.iter().filter_map(|pricing| RequestPrice::find(pricing, model)).collect()
    }
}

/// The furthest turn of requests that a limit rejects in a chain with this section, ns; 0 = none.
fn turns_of(config: &Config, on_reject: Option<&OnRejectPatch>, limit: &Limit) -> u64 {
    config.on_reject_at(&limit.config, on_reject).turns().map_or(0, duration_ns)
}

fn longest_wait(timeout: Option<Duration>) -> u64 {
    timeout.map_or(u64::MAX, duration_ns)
}

/// The plan for the requests of a location, or for those without one; `None` = nothing is read.
pub(super) fn build_body_plan(config: &Config, location: Option<&LocationConfig>) -> Option<Arc<BodyPlan>> {
    let own = location.map_or(&[][..], |location| &location.limits);
    let limits = || config.server.limits.iter().chain(own).map(|&limit| &config.limits[limit]);
    let bandwidth = location.and_then(|location| location.bandwidth.as_ref());
    let of_caller = || config.account.body_pointers();
    let of_bandwidth = || bandwidth.into_iter().flat_map(BandwidthConfig::body_pointers);
    let claims = || limits().filter_map(LimitConfig::body_reserve);
    let must_fit = of_caller().chain(of_bandwidth()).next().is_some();
    let echoed = config.echoed_values(location);
    if !must_fit && echoed.is_empty() && limits().all(|limit| limit.body_use() == BodyUse::Unused) {
        return None;
    }
    let peek_bytes = location.map_or(BODY_PEEK_AUTO, LocationConfig::body_peek_bytes);
    let mut plan = BodyPlan::new(peek_bytes, must_fit, of_caller().next().is_some());
    let of_limits = limits().flat_map(LimitConfig::body_pointers);
    let pointers = of_caller().chain(of_limits).chain(of_bandwidth());
    pointers.chain(claims().flat_map(|claim| &claim.from)).for_each(|pointer| plan.add_pointer(pointer));
    plan.hashes_body = limits().any(LimitConfig::hashes_body);
    plan.least_use = if echoed.is_empty() { BodyUse::Unused } else { BodyUse::Response };
    // A header that says otherwise than a message is answered by JSON-RPC in any case.
    let of_messages = limits().any(LimitConfig::reads_mcp).then_some(EchoedValue::RpcId);
    echoed.into_iter().chain(of_messages).for_each(|value| plan.add_echoed(value));
    Some(Arc::new(plan))
}
