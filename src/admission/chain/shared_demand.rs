//! The demand of a request on one shared limit.

use std::sync::Arc;

use crate::shared::{SharedKey, SharedLimit};
use sluicegate_limit::Units;

#[derive(Clone)]
pub(super) struct SharedDemand {
    pub limit: Arc<SharedLimit>,
    pub limit_index: u16,
    pub units: Units,
    pub key: SharedKey,
}
