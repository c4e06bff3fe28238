//! The limits that judge a request: those of its route, or of the descriptors of a call.

use std::sync::Arc;

use crate::gateway::LimitChain;
use crate::gateway::worker::Worker;
use crate::judge::request_state::RequestState;
use sluicegate_model::LocationId;

impl RequestState {
    /// The limits that judge it.
    #[inline]
    pub fn chain(&self) -> &LimitChain {
        chain_of(&self.worker, self.call_chain.as_ref(), self.route)
    }
}

/// The limits of a call for descriptors, or those of a route.
#[inline]
pub fn chain_of<'a>(
    worker: &'a Worker,
    call_chain: Option<&'a Arc<LimitChain>>,
    route: Option<LocationId>,
) -> &'a LimitChain {
    match call_chain {
        None => worker.gateway.chain_for(route),
        Some(chain) => chain,
    }
}
