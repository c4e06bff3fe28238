//! The messages that requests leave behind for the store: their queue, and the wait until all are sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc};

use crate::SharedKey;
use crate::debts::Debts;
use crate::settlements::{SettlementQueue, StoreSettlement, StoreUnits};
use crate::shared_limit::SharedLimit;
use crate::slots::WorkerSlots;
use sluicegate_limit::Units;

/// Maximum number of queued refunds; further ones are lost.
pub(super) const REFUNDS_MAX: usize = 4096;

/// Slots, debts, refunds and settlements that requests leave behind for the store.
pub struct StoreOutbox {
    /// The slots of this worker, to report to the store.
    pub slots: WorkerSlots,
    /// Units that were admitted without the store, to charge later.
    pub debts: Arc<Debts>,
    /// Charges to correct after their responses.
    pub settlements: SettlementQueue,
    refunds: mpsc::Sender<StoreUnits>,
    /// The flusher has refunds that are not sent or not answered yet.
    pub(super) is_sending: AtomicBool,
    /// Notified each time the flusher has finished its work in hand.
    pub(super) idle: Notify,
}

// === impl StoreOutbox ===

impl StoreOutbox {
    /// An empty outbox, and the receiver of its refunds.
    pub(super) fn new(debts: Arc<Debts>) -> (StoreOutbox, mpsc::Receiver<StoreUnits>) {
        let (refunds, receiver) = mpsc::channel(REFUNDS_MAX);
        let outbox = StoreOutbox {
            slots: WorkerSlots::default(),
            debts,
            settlements: SettlementQueue::default(),
            refunds,
            is_sending: AtomicBool::new(false),
            idle: Notify::new(),
        };
        (outbox, receiver)
    }

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
            let (reserved, used, forgets) = (0, excess, false);
            let (anchor, class) = (units.anchor, units.key.class);
            let settlement = StoreSettlement { limit, key, marks, reserved, used, forgets, anchor, class };
            self.settlements.queue_settlement(settlement);
        }
    }

    /// Queues a refund; if the queue is full, it is lost. Units of leases go back at once.
    pub fn queue_refund(&self, refund: StoreUnits) {
        if refund.limit.settle_leased(refund.rate, refund.key, refund.mark, (refund.cost, 0)) {
            return;
        }
        if let Err(error) = self.refunds.try_send(refund) {
            let (mpsc::error::TrySendError::Full(refund) | mpsc::error::TrySendError::Closed(refund)) = error;
            refund.limit.count_lost();
        }
    }
}
