//! The messages that requests leave behind for the store: their queue, and the wait until all are sent.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;
use tokio::sync::mpsc;

use super::{StoreOutbox, StoreRefund};
use crate::SharedKey;
use crate::settlements::StoreSettlement;
use crate::shared_limit::SharedLimit;
use sluicegate_limit::Units;

// === impl StoreOutbox ===

impl StoreOutbox {
    /// Waits until no refund or settlement is pending and the slots are reported; debts have a flusher of their own.
    pub async fn wait_flushed(&self) {
        loop {
            let idle = self.idle.notified();
            let has_nothing =
                self.refunds.capacity() == self.refunds.max_capacity() && !self.is_sending.load(Relaxed);
            if has_nothing && self.settlements.is_empty() && self.slots.are_reported() {
                return;
            }
            idle.await;
        }
    }

    /// Waits until no settlement is pending.
    pub async fn wait_all_settled(&self) {
        while !self.settlements.is_empty() {
            let idle = self.idle.notified();
            if self.settlements.is_empty() {
                return;
            }
            idle.await;
        }
    }

    /// Adds a debt, see [`Debts::open_debt`].
    pub fn open_debt(&self, limit: &Arc<SharedLimit>, rate: usize, key: SharedKey, units: &Units) {
        self.debts.open_debt(limit, rate, key, units);
    }

    /// Corrects a debt of `reserved` units to `used` ones, when the response to its request is over.
    pub fn settle_debt(
        &self,
        limit: &Arc<SharedLimit>,
        rate: usize,
        key: SharedKey,
        units: &Units,
        corrected: (u64, u64),
    ) {
        let excess = self.debts.settle_debt(limit, rate, key, units, corrected);
        if excess > 0 {
            // No charge has this mark.
            let (limit, marks) = (limit.clone(), SmallVec::from_iter([(rate, 0)]));
            let settlement = StoreSettlement { limit, key, marks, reserved: 0, used: excess, forgets: false };
            self.settlements.queue_settlement(settlement);
        }
    }

    /// Queues a refund; if the queue is full, it is lost.
    pub fn queue_refund(&self, refund: StoreRefund) {
        if let Err(error) = self.refunds.try_send(refund) {
            let (mpsc::error::TrySendError::Full(refund) | mpsc::error::TrySendError::Closed(refund)) = error;
            refund.limit.count_lost();
        }
    }
}
