//! The last refusals of one worker, in a ring of fixed size.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use http::StatusCode;

use super::CountedLimit;
use crate::reject::LimitCause;
use sluicegate_http::request::client::UNIX_CLIENT;
use sluicegate_http::request::key::KeyName;

/// Refusals that a worker remembers.
pub const REFUSALS_MAX: usize = 100;

pub struct RefusalFacts<'a> {
    pub unix_ms: u64,
    pub ip: IpAddr,
    /// The name of the location; `None` = none was found.
    pub location: Option<&'a Arc<str>>,
    /// `None` = an upstream answers instead.
    pub status: Option<StatusCode>,
    pub retry_after_ns: Option<u64>,
    pub cause: LimitCause,
}

/// One refusal by a limit.
#[derive(Debug, Clone)]
pub struct RefusalRecord {
    pub unix_ms: u64,
    pub limit: Arc<CountedLimit>,
    /// `None` = the key is missing, or names are not kept.
    pub key: Option<KeyName>,
    ip: IpAddr,
    pub location: Option<Arc<str>>,
    pub status: Option<StatusCode>,
    pub retry_after_ns: Option<u64>,
    pub cause: LimitCause,
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
    #[inline]
    pub(super) fn push(&self, limit: &Arc<CountedLimit>, key: Option<&KeyName>, facts: &RefusalFacts<'_>) {
        let ring = &mut *self.0.borrow_mut();
        if ring.records.len() < REFUSALS_MAX {
            ring.records.push(RefusalRecord::empty(limit.clone()));
        }
        let Some(record) = ring.records.get_mut(ring.next) else { return };
        ring.next = if ring.next + 1 == REFUSALS_MAX { 0 } else { ring.next + 1 };
        record.unix_ms = facts.unix_ms;
        if !Arc::ptr_eq(&record.limit, limit) {
            record.limit = limit.clone();
        }
        record.key = key.copied();
        record.ip = facts.ip;
        match (&record.location, facts.location) {
            (Some(known), Some(location)) if Arc::ptr_eq(known, location) => {}
            (_, location) => record.location = location.cloned(),
        }
        record.status = facts.status;
        record.retry_after_ns = facts.retry_after_ns;
        record.cause = facts.cause;
    }

    /// All of them, in no order.
    pub(super) fn copy_records(&self) -> Vec<RefusalRecord> {
        self.0.borrow().records.clone()
    }
}

impl RefusalRecord {
    fn empty(limit: Arc<CountedLimit>) -> RefusalRecord {
        RefusalRecord {
            unix_ms: 0,
            limit,
            key: None,
            ip: UNIX_CLIENT,
            location: None,
            status: None,
            retry_after_ns: None,
            cause: LimitCause::Rate,
        }
    }

    /// The address of the client; `None` on a unix socket without a forwarded address.
    pub fn ip(&self) -> Option<IpAddr> {
        (self.ip != UNIX_CLIENT).then_some(self.ip)
    }
}
