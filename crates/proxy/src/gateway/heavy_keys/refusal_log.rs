//! The last refusals of one worker, in a ring of fixed size.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use http::StatusCode;

use super::CountedLimit;
use crate::reject::LimitCause;
use sluicegate_http::request::key::KeyName;

/// Refusals that a worker remembers.
pub const REFUSALS_MAX: usize = 100;

/// The facts of a refusal beside its limit, key and location.
#[derive(Debug, Clone, Copy)]
pub struct RefusalFacts {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// The client's address, unmasked.
    pub ip: IpAddr,
    /// `None` = an upstream answers instead.
    pub status: Option<StatusCode>,
    /// The time until a retry fits, ns; `None` = no such time is known.
    pub retry_after_ns: Option<u64>,
    /// The cause in the words of the access log.
    pub cause: LimitCause,
}

/// One refusal by a limit.
#[derive(Debug, Clone)]
pub struct RefusalRecord {
    /// The limit that refused the request.
    pub limit: Arc<CountedLimit>,
    /// `None` = the key is missing, or names are not kept.
    pub key: Option<KeyName>,
    /// The name of the location; `None` = none was found.
    pub location: Option<Arc<str>>,
    /// The facts of the refused request.
    pub facts: RefusalFacts,
}

/// The last [`REFUSALS_MAX`] refusals; a new one takes the place of the oldest.
pub struct RefusalLog(RefCell<RefusalRing>);

struct RefusalRing {
    records: Vec<RefusalRecord>,
    /// The place of the next record.
    next: usize,
}

impl Default for RefusalLog {
    fn default() -> RefusalLog {
        RefusalLog(RefCell::new(RefusalRing { records: Vec::with_capacity(REFUSALS_MAX), next: 0 }))
    }
}

impl RefusalLog {
    /// Overwrites the oldest record in place, once there are enough: most rejections come in floods, so that its limit
    /// and its location are usually the same.
    pub(super) fn push(
        &self,
        limit: &Arc<CountedLimit>,
        key: Option<&KeyName>,
        location: Option<&Arc<str>>,
        facts: RefusalFacts,
    ) {
        let ring = &mut *self.0.borrow_mut();
        if ring.records.len() < REFUSALS_MAX {
            ring.records.push(RefusalRecord { limit: limit.clone(), key: None, location: None, facts });
        }
        let Some(record) = ring.records.get_mut(ring.next) else { return };
        ring.next = if ring.next + 1 == REFUSALS_MAX { 0 } else { ring.next + 1 };
        record.facts = facts;
        if !Arc::ptr_eq(&record.limit, limit) {
            record.limit = limit.clone();
        }
        record.key = key.copied();
        match (&record.location, location) {
            (Some(known), Some(location)) if Arc::ptr_eq(known, location) => {}
            (_, location) => record.location = location.cloned(),
        }
    }

    /// All of them, in no order.
    pub(super) fn copy_records(&self) -> Vec<RefusalRecord> {
        self.0.borrow().records.clone()
    }
}
