//! The two modes of judging: a request is charged, an explanation only looks.

use std::borrow::Cow;
use std::rc::Rc;

use super::demand::{Caller, ChargeFault};
use super::facts::{RequestFacts, RequestHead};
use super::{question, quotas};
use crate::gateway::auth::{AuthAnswer, RouteAuth};
use crate::gateway::worker::{ClientConnection, RequestInFlight, Worker};
use crate::gateway::{Gateway, LimitChain};
use sluicegate_admission::chain::{self, ChainMode, LimitDemand};
use sluicegate_http::request::location::{self, HostError};
use sluicegate_limit::Limit;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::LocationId;
use sluicegate_observe::metrics::AuthResult;

/// All that differs between a request and its explanation.
pub trait JudgeMode<'r> {
    /// The mode of the chain: charging or looking.
    type Chain: ChainMode;
    /// A pause of the location's upstream holds or rejects the request.
    const HEEDS_PAUSES: bool = true;
    /// `cors` of the location answers a preflight; otherwise it is judged as any request.
    const ANSWERS_PREFLIGHTS: bool = true;

    /// The auth service of the location is asked.
    const ASKS_SERVICE: bool = true;

    /// The answer of the auth service to an equal request before.
    fn find_answer(
        &self,
        _route: LocationId,
        _auth: &RouteAuth,
        _facts: &RequestFacts<'r>,
    ) -> Option<Rc<AuthAnswer>> {
        None
    }

    /// The canonical host of the request.
    ///
    /// # Errors
    /// As [`location::request_host`].
    fn read_host(&self, head: &RequestHead<'r>) -> Result<Cow<'r, str>, HostError> {
        location::request_host(head.version, head.headers, head.authority)
    }

    /// The key of limits by the peer's address, if it is cached.
    fn peer_key(&self) -> Option<CounterKey> {
        None
    }

    /// Counts the request as in flight; false above the configured maximum.
    fn try_count_in_flight(&mut self, gateway: &Gateway) -> bool;

    /// The limits that judge it.
    #[inline]
    fn find_chain<'g>(&self, gateway: &'g Gateway, route: Option<LocationId>) -> &'g LimitChain {
        gateway.chain_for(route)
    }

    /// True if it takes slots of concurrency limits: a request that no location serves takes none.
    #[inline]
    fn takes_slots(&self, route: Option<LocationId>) -> bool {
        route.is_some()
    }

    /// The indices of the limits of the chain that judge it, in chain order; `None` = all of them.
    #[inline]
    fn selection(&self) -> Option<&'r [u16]> {
        None
    }

    /// True if it states the units that it takes.
    #[inline]
    fn states_units(&self) -> bool {
        false
    }

    /// The demand on a limit that judges it.
    #[inline]
    fn adjust_demand(&self, _limit: &Limit, demand: LimitDemand) -> LimitDemand {
        demand
    }

    /// The longest wait that it accepts, ns.
    #[inline]
    fn max_wait_ns(&self) -> u64 {
        u64::MAX
    }

    /// Takes note of the demand on one limit of the chain, by its index there.
    fn observe_demand(
        &mut self,
        _gateway: &Gateway,
        _facts: &RequestFacts<'r>,
        _caller: &Caller<'_>,
        _limit: (usize, &Limit),
        _demand: &Result<LimitDemand, ChargeFault>,
    ) {
    }
}

/// Charges the limits for a request.
pub(super) struct ChargeRequest<'s> {
    pub worker: &'s Worker,
    pub connection: &'s ClientConnection,
    pub in_flight: &'s mut Option<RequestInFlight>,
}

impl<'r> JudgeMode<'r> for ChargeRequest<'_> {
    type Chain = chain::Charge;

    #[inline]
    fn read_host(&self, head: &RequestHead<'r>) -> Result<Cow<'r, str>, HostError> {
        self.connection.canonical_host(head.version, head.headers, head.authority)
    }

    #[inline]
    fn peer_key(&self) -> Option<CounterKey> {
        self.connection.peer_key(self.worker)
    }

    fn find_answer(
        &self,
        route: LocationId,
        auth: &RouteAuth,
        facts: &RequestFacts<'r>,
    ) -> Option<Rc<AuthAnswer>> {
        let Worker { id, gateway, auth: answers, .. } = self.worker;
        let key = question::hash_request(&gateway.keys, (route, auth), &facts.head, facts.scheme)?;
        let answer = answers.find_kept(route, key, facts.head.received)?;
        gateway.metrics.count_auth(*id, AuthResult::Cached);
        Some(answer)
    }

    #[inline]
    fn try_count_in_flight(&mut self, gateway: &Gateway) -> bool {
        let Some(max) = gateway.config.server.max_in_flight else { return true };
        // It is judged again once its body is read.
        if self.in_flight.is_some() {
            return true;
        }
        *self.in_flight = RequestInFlight::try_count(&gateway.load.in_flight, max);
        self.in_flight.is_some()
    }

    #[inline]
    fn observe_demand(
        &mut self,
        gateway: &Gateway,
        facts: &RequestFacts<'r>,
        caller: &Caller<'_>,
        (index, limit): (usize, &Limit),
        demand: &Result<LimitDemand, ChargeFault>,
    ) {
        if let Ok(demand) = demand {
            self.worker.heavy_keys.count_asked(limit.id, demand, &caller.subject, facts.head.received);
            quotas::observe_demand(self.worker, index, limit, demand, &caller.subject);
        }
        if caller.has_invalid_cost(limit) && !matches!(demand, Ok(LimitDemand::Skip)) {
            gateway.metrics.count_invalid_cost(self.worker.id, limit.id);
        }
    }
}
