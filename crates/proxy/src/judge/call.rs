//! Judges calls of the rate-limit service: by their location as a request, or by the limits that they name.

use std::borrow::Cow;

use super::demand::{Caller, ChargeFault};
use super::facts::{RequestFacts, RequestHead};
use super::head::{self, JudgeProgress};
use super::mode::{ChargeRequest, JudgeMode};
use crate::gateway::{Gateway, LimitChain};
use crate::reject::{Fault, Rejection};
use sluicegate_admission::chain::{ChainVerdict, Decisions, LimitDemand, PendingStore};
use sluicegate_http::request::account::Tier;
use sluicegate_http::request::location::{self, HostError, LocationLookup};
use sluicegate_http::request::source::BodyValues;
use sluicegate_limit::Limit;
use sluicegate_model::{BanKey, LimitId, LocationId, Scheme};

/// The terms of a call, beside the request that it describes.
pub struct CallTerms {
    /// The limits that judge it; `None` = those of its location.
    pub limits: Option<Vec<LimitId>>,
    /// The units of every limit that counts no slots, in place of its own cost; at least 1.
    pub cost: Option<u64>,
    /// The longest wait that the caller accepts, ns; `u64::MAX` = as long as a request of its location waits.
    pub max_wait_ns: u64,
    /// True if it takes slots of concurrency limits; without it they do not judge it.
    pub takes_slots: bool,
    /// The scheme of the described request.
    pub scheme: Scheme,
    /// The facts beside the described request.
    pub stated: StatedFacts,
}

/// Facts that the call states, and that its request cannot hold.
#[derive(Default)]
pub struct StatedFacts {
    /// The address of the request's client is known.
    pub has_ip: bool,
    /// The account; `None` = the request tells it, if anything does.
    pub account: Option<Box<[u8]>>,
    /// The tier; `None` = the account or the request tells it.
    pub tier: Option<Tier>,
    /// The location that keys name; `None` = the call states none.
    pub location: Option<LocationId>,
    /// Claims of a token, by their names.
    pub claims: Vec<(String, String)>,
    /// The values of the body; `None` = the call has none.
    pub body: Option<BodyValues>,
}

/// Judges a call in the mode in which `M` judges requests: charges its limits, or looks at them.
pub struct CallMode<'t, M> {
    /// The mode of a request, which charges or looks.
    pub request: M,
    /// The terms of the call.
    pub terms: &'t CallTerms,
    /// The indices of the limits that the call names, in the chain of all limits; `None` = it names none.
    pub places: Option<&'t [u16]>,
}

/// Charges the limits for a call.
pub(super) type ChargeCall<'s, 't> = CallMode<'t, ChargeRequest<'s>>;

impl<'r, M: JudgeMode<'r>> JudgeMode<'r> for CallMode<'r, M> {
    type Chain = M::Chain;
    // Nothing is sent to an upstream.
    const HEEDS_PAUSES: bool = false;
    // A 200 to a preflight would let it pass unlimited.
    const ANSWERS_PREFLIGHTS: bool = false;
    // The proxy that calls asks its own service.
    const ASKS_SERVICE: bool = false;

    /// The hosts of calls are not those of their connection.
    fn read_host(&self, head: &RequestHead<'r>) -> Result<Cow<'r, str>, HostError> {
        location::request_host(head.version, head.headers, head.authority)
    }

    fn try_count_in_flight(&mut self, gateway: &Gateway) -> bool {
        self.request.try_count_in_flight(gateway)
    }

    fn find_chain<'g>(&self, gateway: &'g Gateway, route: Option<LocationId>) -> &'g LimitChain {
        gateway.chain_for(self.terms.limits.as_ref().map_or(route, |_| Some(gateway.call_route())))
    }

    fn takes_slots(&self, _route: Option<LocationId>) -> bool {
        self.terms.takes_slots
    }

    fn selection(&self) -> Option<&'r [u16]> {
        self.places
    }

    fn states_units(&self) -> bool {
        self.terms.cost.is_some()
    }

    fn adjust_demand(&self, limit: &Limit, demand: LimitDemand) -> LimitDemand {
        if limit.is_concurrency() && !self.terms.takes_slots {
            return LimitDemand::Skip;
        }
        let cost = self.terms.cost.filter(|_| !limit.is_concurrency());
        cost.map_or(demand, |cost| demand.with_cost(cost))
    }

    fn max_wait_ns(&self) -> u64 {
        self.terms.max_wait_ns
    }

    fn observe_demand(
        &mut self,
        gateway: &Gateway,
        facts: &RequestFacts<'r>,
        caller: &Caller<'_>,
        limit: (usize, &Limit),
        demand: &Result<LimitDemand, ChargeFault>,
    ) {
        self.request.observe_demand(gateway, facts, caller, limit, demand);
    }
}

/// Judges a call; `verdict` as in [`head::judge`].
///
/// # Errors
/// The rejection, unless a limit is its cause.
pub(super) fn judge_call<'r>(
    gateway: &Gateway,
    facts: &mut RequestFacts<'r>,
    mode: &mut ChargeCall<'_, 'r>,
    decisions: &mut Decisions,
    verdict: &mut Option<ChainVerdict>,
) -> Result<(), Rejection> {
    match mode.terms.limits {
        Some(_) => judge_named(gateway, facts, mode, decisions, verdict),
        None => {
            let judged = head::judge(gateway, facts, mode, decisions, verdict)?;
            debug_assert_eq!(judged, JudgeProgress::Complete, "a call does not wait");
            Ok(())
        }
    }
}

/// Judges a call by the limits that it names, with the steps that a request without access rules has; `verdict` as in
/// [`head::judge`].
///
/// # Errors
/// The rejection, unless a limit is its cause.
pub fn judge_named<'r, M: JudgeMode<'r>>(
    gateway: &Gateway,
    facts: &mut RequestFacts<'r>,
    mode: &mut CallMode<'r, M>,
    decisions: &mut Decisions,
    verdict: &mut Option<ChainVerdict<PendingStore<M::Chain>>>,
) -> Result<(), Rejection> {
    let stated = &mode.terms.stated;
    facts.host = mode.read_host(&facts.head).unwrap_or_default();
    facts.path = location::normalise_path(facts.head.uri.path()).map_err(|_| Fault::BadTarget)?;
    // The application states the headers itself.
    facts.head.client.trusted_peer = true;
    facts.location = stated.location.map_or(LocationLookup::NotFound, LocationLookup::Found);
    if !mode.try_count_in_flight(gateway) {
        return Err(Fault::TooManyInFlight.into());
    }
    head::identify_caller(gateway, facts).map_err(|_| Fault::RepeatedKey)?;
    // The application decides over callers without a key.
    facts.key_fault = None;
    if let Some(account) = &stated.account {
        facts.account = Some(Cow::Borrowed(account));
        if let Some(tiers) = &gateway.callers.tiers {
            let tier = tiers.find_tier(None, Some(account), &facts.sources());
            facts.tier = Some(tier.map_err(|_| Fault::RepeatedKey)?);
        }
    }
    if let Some(tier) = &stated.tier {
        facts.tier = Some(tier.clone());
    }
    head::check_operator_ban(gateway, facts)?;
    // Bans are checked only for a client that the call names.
    let is_known = |key: BanKey| stated.has_ip || key == BanKey::Account && facts.account().is_some();
    if gateway.config.bans.as_ref().is_some_and(|bans| is_known(bans.key)) {
        head::check_ban(gateway, facts, mode)?;
    }
    head::judge_limits(gateway, facts, mode, decisions, verdict)?;
    Ok(())
}
