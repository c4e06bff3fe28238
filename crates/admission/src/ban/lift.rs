//! The end of shared bans before their time: sent to the store, and learned from it.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::Bans;
use sluicegate_base::clock::Now;
use sluicegate_store::SharedKey;
use sluicegate_store::script::bans::{CLIENTS_PER_CALL, StrikeReport};

/// Lifted bans that wait for the store.
const LIFTS_MAX: usize = 10_000;

/// Lifted bans that the store does not know yet: when each would have ended.
#[derive(Debug, Default)]
pub(super) struct LiftOutbox(Mutex<HashMap<SharedKey, Now>>);

// === impl LiftOutbox ===

impl LiftOutbox {
    /// Lifts for one call. They wait on until [`LiftOutbox::finish_batch`].
    pub(super) fn take_batch(&self, now: Now) -> Vec<StrikeReport> {
        let mut lifts = self.0.lock();
        lifts.retain(|_, until| *until > now);
        let report = |(client, until): (&SharedKey, &Now)| {
            StrikeReport::lift_ban(*client, until.ns_since(now).div_ceil(1000))
        };
        lifts.iter().take(CLIENTS_PER_CALL).map(report).collect()
    }

    pub(super) fn finish_batch(&self, sent: &[StrikeReport]) {
        let mut lifts = self.0.lock();
        sent.iter().for_each(|report| {
            lifts.remove(&report.client);
        });
    }
}

// === impl Bans ===

impl Bans {
    /// Tells all gateways that the ban of a client was lifted here, which would have lasted until `until`. During an
    /// outage of the store it waits until then. False if the bans are not shared, or too many wait.
    pub fn share_lift(&self, client: SharedKey, until: Now) -> bool {
        let Some(outbox) = &self.state.outbox else { return false };
        let mut lifts = outbox.lifts.0.lock();
        if lifts.len() >= LIFTS_MAX && !lifts.contains_key(&client) {
            return false;
        }
        lifts.insert(client, until);
        drop(lifts);
        outbox.notify_ready();
        true
    }
}
