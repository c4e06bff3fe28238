//! What one worker has to do with the store: it asks for decisions, gives back what was not used, and tells which
//! slots it holds.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc};

use super::debts::DebtCharge;
use super::shared_limit::SharedLimit;
use super::slots::{SlotReport, WorkerSlots};
use super::{
    CallItem, Debts, KeyGroup, Link, LuaScript, PackedCall, RateAnswer, ScriptOp, ScriptReply, SharedKey,
    SlotCount, Store, StoreFault,
};
use crate::base::clock::Now;

/// What is to be given back, at most; more is lost.
const REFUNDS_MAX: usize = 4096;
/// Gives and words in one call.
const BATCH: usize = 64;
/// Between two rounds of telling all slots, which the store keeps for ten seconds: for so long one that lost its memory
/// may grant them again.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Between two rounds of charging what is owed to the store.
const CHARGE_INTERVAL: Duration = Duration::from_millis(100);
/// Charges that fail in one round before the rest is left to the next.
const FAILED_CHARGES_MAX: usize = 8;

/// One worker's dealings with the store.
pub struct Session {
    pub store: Arc<Store>,
    link: Link,
    pub outbox: Arc<StoreOutbox>,
    /// Taken by the clerk.
    refunds: Cell<Option<mpsc::Receiver<StoreRefund>>>,
    /// Names the worker to the store.
    node: u64,
}

/// Where requests leave what the store is to be told after they are gone.
pub struct StoreOutbox {
    pub slots: WorkerSlots,
    pub debts: Arc<Debts>,
    refunds: mpsc::Sender<StoreRefund>,
    /// What the clerk took is not yet sent, or not yet answered.
    is_sending: AtomicBool,
    /// The clerk has nothing in hand.
    idle: Notify,
}

/// What a request took and did not use.
pub struct StoreRefund {
    pub limit: Arc<SharedLimit>,
    pub rate: usize,
    pub key: SharedKey,
    pub cost: u64,
    pub mark: u64,
}

/// One rate that the store is asked about.
pub struct StoreQuestion<'a> {
    pub limit: &'a Arc<SharedLimit>,
    pub rate: usize,
    pub key: SharedKey,
    pub cost: u64,
    pub limit_index: u16,
    pub dry_run: bool,
    /// Of a concurrency limit.
    pub slot_count: SlotCount,
    /// Slots that all workers of the process hold, those asked for included.
    pub in_process: u64,
    /// Units admitted without the store that it does not count yet.
    pub owed: u64,
}

/// What came back for one question.
#[derive(Debug, Clone, Copy)]
pub enum StoreAnswer {
    /// `took`: the call that this question was part of charged everything.
    Answered {
        answer: RateAnswer,
        charged: bool,
    },
    Failed(StoreFault),
    /// The store was not asked: this process alone holds all slots.
    Full,
}

// === impl Session ===

impl Session {
    /// The session of the worker `id`, on whose runtime it is made.
    pub fn new(store: &Arc<Store>, id: usize) -> Rc<Session> {
        let (gives, given) = mpsc::channel(REFUNDS_MAX);
        let (in_hand, idle) = (AtomicBool::new(false), Notify::new());
        let (slots, debts) = (WorkerSlots::default(), store.debts().clone());
        let desk = Arc::new(StoreOutbox { slots, debts, refunds: gives, is_sending: in_hand, idle });
        Rc::new(Session {
            link: store.open_link(),
            node: store.node().wrapping_add(id as u64),
            store: store.clone(),
            outbox: desk,
            refunds: Cell::new(Some(given)),
        })
    }

    /// The session of the worker `id` that goes on with `before`, if that is one with the same store: the store must
    /// hear of everything a worker holds from one mouth.
    pub fn adopt_from(before: Option<&Rc<Session>>, store: &Arc<Store>, id: usize) -> Rc<Session> {
        let same = before.filter(|before| Arc::ptr_eq(&before.store, store));
        same.cloned().unwrap_or_else(|| Session::new(store, id))
    }

    /// Asks about all of `questions`, one call per group, all calls at once.
    pub async fn ask_store(
        &self,
        op: ScriptOp,
        questions: &[StoreQuestion<'_>],
    ) -> SmallVec<[StoreAnswer; 4]> {
        let items: SmallVec<[CallItem<'_>; 4]> = questions.iter().map(StoreQuestion::to_item).collect();
        let groups: SmallVec<[KeyGroup; 4]> =
            items.iter().map(|item| self.store.group_of(&item.key)).collect();
        let Some(&first) = groups.first() else { return SmallVec::new() };
        if groups.iter().all(|group| *group == first) {
            return answers_of(self.call_script(op, first, &items).await, items.len());
        }
        self.ask_groups(op, &items, &groups).await
    }

    async fn ask_groups(
        &self,
        op: ScriptOp,
        items: &[CallItem<'_>],
        groups: &[KeyGroup],
    ) -> SmallVec<[StoreAnswer; 4]> {
        let mut distinct: SmallVec<[KeyGroup; 4]> = groups.iter().copied().collect();
        distinct.sort_unstable();
        distinct.dedup();
        let of = |group: &KeyGroup| -> Vec<usize> {
            (0..items.len()).filter(|place| groups[*place] == *group).collect()
        };
        let calls = distinct.iter().map(|group| async move {
            let own: Vec<CallItem<'_>> = of(group).into_iter().map(|place| items[place]).collect();
            answers_of(self.call_script(op, *group, &own).await, own.len())
        });
        let answers = join_all(calls).await;
        let mut answered: SmallVec<[StoreAnswer; 4]> =
            items.iter().map(|_| StoreAnswer::Failed(StoreFault::Garbled)).collect();
        for (group, said) in distinct.iter().zip(answers) {
            for (place, said) in of(group).into_iter().zip(said) {
                answered[place] = said;
            }
        }
        answered
    }

    async fn call_script(
        &self,
        op: ScriptOp,
        group: KeyGroup,
        items: &[CallItem<'_>],
    ) -> Result<ScriptReply, StoreFault> {
        let packed = PackedCall::new(op, self.store.prefix(), self.node, items);
        let bytes = self.link.call_script(group, LuaScript::take_script(), &packed).await?;
        ScriptReply::parse_reply(op, items, &bytes).ok_or(StoreFault::Garbled)
    }

    /// Tells the store what requests left at the desk; for ever.
    pub async fn run_flusher(self: Rc<Session>) {
        let Some(mut gives) = self.refunds.take() else { return };
        let every = |span| {
            let mut interval = tokio::time::interval(span);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            interval
        };
        let (mut heartbeat, mut charging) = (every(HEARTBEAT), every(CHARGE_INTERVAL));
        loop {
            tokio::select! {
                give = gives.recv() => {
                    let Some(give) = give else { return };
                    self.outbox.is_sending.store(true, Relaxed);
                    let mut batch = vec![give];
                    while batch.len() < BATCH && let Ok(give) = gives.try_recv() {
                        batch.push(give);
                    }
                    self.send_refunds(batch).await;
                    self.outbox.is_sending.store(false, Relaxed);
                }
                () = self.outbox.slots.changed.notified() => self.report_slots(false).await,
                _ = heartbeat.tick() => self.report_slots(true).await,
                _ = charging.tick() => self.charge_debts().await,
            }
            self.outbox.idle.notify_waiters();
        }
    }

    /// Sent once: a give that ran twice would let more pass than the limit. A call reads before it writes, so it may be
    /// about an entry of a key only once.
    async fn send_refunds(&self, mut gives: Vec<StoreRefund>) {
        while let Some(first) = gives.first() {
            let group = self.store.group_of(&first.key);
            let (mut now, mut later): (Vec<StoreRefund>, Vec<StoreRefund>) = (Vec::new(), Vec::new());
            for give in gives {
                let is_known = now.iter().any(|other| other.entry_key() == give.entry_key());
                let fits = !is_known && self.store.group_of(&give.key) == group;
                if fits { now.push(give) } else { later.push(give) }
            }
            let items: Vec<CallItem<'_>> = now.iter().map(StoreRefund::to_item).collect();
            if self.call_script(ScriptOp::Refund, group, &items).await.is_err() {
                now.iter().for_each(|give| give.limit.count_lost());
            }
            gives = later;
        }
    }

    /// Charges the store what was admitted without it, as far as it answers.
    async fn charge_debts(&self) {
        let debts = self.store.debts();
        let mut failed = 0;
        while debts.key_count() > 0 && self.store.is_current() && failed < FAILED_CHARGES_MAX {
            let mut charges = debts.take_due(BATCH, Now::read_clock());
            if charges.is_empty() {
                return;
            }
            let group = |charging: &DebtCharge| self.store.group_of(&charging.key);
            charges.sort_by_key(group);
            let mut under_way = debts.hold_charges(&charges);
            for run in charges.chunk_by(|one, next| group(one) == group(next)) {
                let items: Vec<CallItem<'_>> = run.iter().map(DebtCharge::to_item).collect();
                let packed = PackedCall::new(ScriptOp::Charge, self.store.prefix(), debts.node(), &items);
                let heard =
                    self.link.call_script(group(&run[0]), LuaScript::take_script(), &packed).await.is_ok();
                failed += usize::from(!heard);
                run.iter().for_each(|charging| under_way.finish_key(&charging.key, heard));
            }
        }
    }

    /// Tells slots: of everything that is held if `all`, else of what has changed.
    async fn report_slots(&self, all: bool) {
        let slots = &self.outbox.slots;
        let mut words = if all { slots.report_all() } else { slots.take_changes(BATCH) };
        let group = |word: &SlotReport| self.store.group_of(&word.slot_key.key);
        words.sort_by_key(group);
        for run in words.chunk_by(|one, next| group(one) == group(next)).flat_map(|run| run.chunks(BATCH)) {
            let items: Vec<CallItem<'_>> = run.iter().map(SlotReport::to_item).collect();
            // What does not get through is told again with the next heartbeat: numbers are absolute.
            let heard = self.call_script(ScriptOp::ReportSlots, group(&run[0]), &items).await.is_ok();
            run.iter().for_each(|word| slots.finish_report(word, heard));
        }
        if !all && words.len() == BATCH {
            slots.changed.notify_one();
        }
    }
}

fn answers_of(reply: Result<ScriptReply, StoreFault>, items: usize) -> SmallVec<[StoreAnswer; 4]> {
    match reply {
        Ok(reply) => {
            let took = reply.admitted;
            reply.answers.into_iter().map(|answer| StoreAnswer::Answered { answer, charged: took }).collect()
        }
        Err(failure) => std::iter::repeat_n(StoreAnswer::Failed(failure), items).collect(),
    }
}

// === impl Question ===

impl StoreQuestion<'_> {
    fn to_item(&self) -> CallItem<'_> {
        CallItem {
            rule: &self.limit.rules[self.rate],
            key: self.key,
            cost: self.cost,
            limit_index: self.limit_index,
            dry_run: self.dry_run,
            slot_count: self.slot_count,
            mark: 0,
            owed: self.owed,
        }
    }
}

// === impl Give ===

impl StoreRefund {
    fn entry_key(&self) -> ([u8; 16], u32) {
        (self.key.0, self.limit.rules[self.rate].id)
    }

    fn to_item(&self) -> CallItem<'_> {
        let (rule, held) = (&self.limit.rules[self.rate], SlotCount::default());
        let (cost, mark) = (self.cost, self.mark);
        CallItem {
            rule,
            key: self.key,
            cost,
            limit_index: 0,
            dry_run: false,
            slot_count: held,
            mark,
            owed: 0,
        }
    }
}

// === impl Desk ===

impl StoreOutbox {
    /// Waits until the store has heard everything.
    pub async fn wait_flushed(&self) {
        loop {
            let idle = self.idle.notified();
            let has_nothing =
                self.refunds.capacity() == self.refunds.max_capacity() && !self.is_sending.load(Relaxed);
            if has_nothing && self.slots.are_reported() {
                return;
            }
            idle.await;
        }
    }

    /// Leaves something to be given back; where too much waits for that, it is lost.
    pub fn queue_refund(&self, give: StoreRefund) {
        if let Err(error) = self.refunds.try_send(give) {
            let (mpsc::error::TrySendError::Full(give) | mpsc::error::TrySendError::Closed(give)) = error;
            give.limit.count_lost();
        }
    }
}
