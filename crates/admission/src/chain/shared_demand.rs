//! The demand of a request on one shared limit.

use std::sync::Arc;

use sluicegate_limit::Units;
use sluicegate_store::{SharedKey, SharedLimit};

#[derive(Clone)]
pub(super) struct SharedDemand {
    pub limit: Arc<SharedLimit>,
    pub limit_index: u16,
    pub units: Units,
    pub key: SharedKey,
}
