//! The live chain of a location.

use std::sync::Arc;
use std::time::Duration;

use crate::admission::chain::{Chain, longest_wait_ns};
use crate::admission::settlement::ReadingPlan;
use crate::config::LimitId;
use crate::limit::Limit;
use crate::request::key::LimitKeys;
use crate::shared::SharedLimit;

/// The limits of a location, in the order they are judged.
pub struct LimitChain {
    pub chain: Chain,
    /// How each limit of the chain makes its keys.
    pub keys: Vec<LimitKeys>,
    /// What its limits read from responses; `None`: none of them charges by the response.
    pub reading_plan: Option<Arc<ReadingPlan>>,
    /// The longest time for which its queues can hold a request that its upstream stops, ns.
    pub max_hold_ns: u64,
}

impl LimitChain {
    pub(super) fn new(
        ids: &[LimitId],
        limits: &[Arc<Limit>],
        shared: &[Option<Arc<SharedLimit>>],
        timeout: Option<Duration>,
    ) -> LimitChain {
        let max_wait = timeout.map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let chain = Chain::new(ids.iter().map(|id| limits[id.0].clone()).collect());
        let chain = chain.with_max_wait(max_wait).with_shared(shared);
        let keys = chain.limits().iter().map(|limit| LimitKeys::from_limit(&limit.config)).collect();
        let reading_plan = ReadingPlan::for_limits(chain.limits().iter().map(|limit| &limit.config));
        let waits = chain.limits().iter().map(|limit| longest_wait_ns(&limit.config));
        let max_hold_ns = waits.max().unwrap_or(0).min(max_wait);
        LimitChain { chain, keys, reading_plan, max_hold_ns }
    }
}
