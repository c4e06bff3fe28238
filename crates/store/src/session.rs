//! The session of one worker with the store: it asks for decisions, refunds unused charges, and reports the slots
//! that the worker holds.

mod departures;
mod late_replies;
mod leasing;
mod outbox;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::mpsc;

use super::link::CallFailure;
use super::settlements::{KeysInFlight, SettlingKey, StoreUnits};
use super::shared_limit::SharedLimit;
use super::slots::SlotReport;
use super::{
    CallItem, Debts, KeyGroup, Link, LuaScript, PackedCall, RateAnswer, ScriptOp, ScriptReply, SettledKey,
    SharedKey, SlotKey, Store, StoreFault,
};
pub(super) use late_replies::LateReplies;
use leasing::LeaseWatch;
use outbox::REFUNDS_MAX;
pub use outbox::StoreOutbox;
use sluicegate_base::clock::Now;
use sluicegate_limit::Units;

/// Refunds or slot reports per call.
const BATCH: usize = 64;
/// The pause between two reports of all slots, which the store keeps for ten seconds: a store that lost its memory may
/// grant them again until the next report.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The pause between two rounds of charging debts.
const CHARGE_INTERVAL: Duration = Duration::from_millis(100);
/// The longest wait for settlements to be sent.
const SETTLED_WAIT: Duration = Duration::from_millis(20);
/// Failed charges in one round after which the rest is left to the next round.
const FAILED_CHARGES_MAX: usize = 8;

/// The session of one worker with the store.
pub struct Session {
    /// The store that the worker deals with.
    pub store: Arc<Store>,
    link: Rc<Link>,
    /// To the home of this region.
    home_link: Option<Rc<Link>>,
    /// The keys of leased limits that this worker looks after.
    watched_leases: RefCell<VecDeque<LeaseWatch>>,
    /// The messages that requests leave behind for the store.
    pub outbox: Arc<StoreOutbox>,
    /// Taken by the flusher.
    refunds: Cell<Option<mpsc::Receiver<StoreUnits>>>,
    /// The number that names the worker in the store.
    worker_node: u64,
    /// One more reference for each late reply that is waited for.
    late_waits: Rc<()>,
}

/// One rate that the store is asked about.
#[derive(Clone, Copy)]
pub struct StoreQuestion<'a> {
    /// The limit of the rate.
    pub limit: &'a Arc<SharedLimit>,
    /// The index of the rate in [`SharedLimit::rules`].
    pub rate: usize,
    /// The rate and key as an item of the call.
    pub item: CallItem<'a>,
    /// Slots that all workers of the process hold, those asked for included.
    pub in_process: u64,
}

/// The answer to one question.
#[derive(Debug, Clone, Copy)]
pub enum StoreAnswer {
    /// The store answered.
    Answered {
        /// The answer of the rate.
        answer: RateAnswer,
        /// The call that this question was part of charged everything.
        charged: bool,
    },
    /// No answer came, for this reason.
    Failed(StoreFault),
    /// The store was not asked: this process alone holds all slots.
    Full,
}

// === impl Session ===

impl Session {
    /// The session of the worker `id`; create it on that worker's runtime.
    pub fn new(store: &Arc<Store>, id: usize) -> Rc<Session> {
        let (outbox, refunds) = StoreOutbox::new(store.debts().clone());
        Rc::new(Session {
            link: Rc::new(store.open_link()),
            home_link: store.home().map(|home| Rc::new(home.open_link())),
            watched_leases: RefCell::default(),
            worker_node: store.process_node().wrapping_add(id as u64),
            store: store.clone(),
            outbox: Arc::new(outbox),
            refunds: Cell::new(Some(refunds)),
            late_waits: Rc::new(()),
        })
    }

    /// Continues `before` if it has the same store, else creates the session of the worker `id`: all slots of a
    /// worker must be reported by one session.
    pub fn adopt_from(before: Option<&Rc<Session>>, store: &Arc<Store>, id: usize) -> Rc<Session> {
        let same = before.filter(|before| Arc::ptr_eq(&before.store, store));
        same.cloned().unwrap_or_else(|| Session::new(store, id))
    }

    /// Waits shortly until this worker's settlements for `key` are on their way: a client that asks again finds room.
    pub async fn wait_settled(&self, key: &SharedKey) {
        if !self.outbox.settlements.is_empty() {
            let _ = tokio::time::timeout(SETTLED_WAIT, self.outbox.settlements.wait_sent(key)).await;
        }
    }

    /// Asks about all of `questions`, one call per group, all calls at once.
    pub async fn ask_store(
        &self,
        op: ScriptOp,
        questions: &[StoreQuestion<'_>],
    ) -> SmallVec<[StoreAnswer; 4]> {
        if let ([question], ScriptOp::Take) = (questions, op)
            && question.asks_for_departure()
        {
            return self.ask_for_departure(question).await;
        }
        if questions.iter().any(|question| question.item.rule.leases.is_some()) {
            return Box::pin(self.ask_with_leases(op, questions)).await;
        }
        self.ask_exactly(op, questions).await
    }

    /// Asks about limits that are not leased.
    async fn ask_exactly(&self, op: ScriptOp, questions: &[StoreQuestion<'_>]) -> SmallVec<[StoreAnswer; 4]> {
        let items: SmallVec<[CallItem<'_>; 4]> = questions.iter().map(|question| question.item).collect();
        let late = LateReplies::default();
        let answers = self.ask_items(op, &items, &late).await;
        if op == ScriptOp::Take && !late.0.borrow().is_empty() {
            self.refund_late(late, questions);
        }
        answers
    }

    /// Asks like [`Session::ask_store`], but leaves late replies to the caller.
    pub(super) async fn ask_items(
        &self,
        op: ScriptOp,
        items: &[CallItem<'_>],
        late: &LateReplies,
    ) -> SmallVec<[StoreAnswer; 4]> {
        let groups: SmallVec<[KeyGroup; 4]> =
            items.iter().map(|item| self.store.group_of(&item.key)).collect();
        let Some(&first) = groups.first() else { return SmallVec::new() };
        if groups.iter().all(|group| *group == first) {
            return answers_of(self.call_items(op, first, items, late).await, items.len());
        }
        let mut distinct = groups.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let indices_of = |group: &KeyGroup| -> Vec<usize> {
            (0..items.len()).filter(|index| groups[*index] == *group).collect()
        };
        let calls = distinct.iter().map(|group| async move {
            let own: Vec<CallItem<'_>> = indices_of(group).into_iter().map(|index| items[index]).collect();
            answers_of(self.call_items(op, *group, &own, late).await, own.len())
        });
        let answers = join_all(calls).await;
        let mut answered: SmallVec<[StoreAnswer; 4]> =
            items.iter().map(|_| StoreAnswer::Failed(StoreFault::Garbled)).collect();
        for (group, answers) in distinct.iter().zip(answers) {
            for (index, answer) in indices_of(group).into_iter().zip(answers) {
                answered[index] = answer;
            }
        }
        answered
    }

    async fn call_items(
        &self,
        op: ScriptOp,
        group: KeyGroup,
        items: &[CallItem<'_>],
        late: &LateReplies,
    ) -> Result<ScriptReply, StoreFault> {
        let call = async || {
            let (prefix, at) = (self.store.prefix(), self.store.unix_seconds());
            let packed = PackedCall::new(op, prefix, self.worker_node, at, items);
            let result = self.link.call_with_late_reply(group, LuaScript::counter_script(), &packed).await;
            result.map_err(|CallFailure { fault, late: reply }| {
                late.0.borrow_mut().extend(reply.map(|reply| (group, reply)));
                fault
            })
        };
        let mut bytes = call().await?;
        if self.store.heed_clock(&bytes) {
            bytes = call().await?;
        }
        ScriptReply::parse_reply(op, items, &bytes).ok_or(StoreFault::Garbled)
    }

    /// Sends the contents of the outbox to the store; never returns while the outbox exists.
    pub async fn run_flusher(self: Rc<Session>) {
        let Some(mut refunds) = self.refunds.take() else { return };
        let every = |span| {
            let mut interval = tokio::time::interval(span);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            interval
        };
        let (mut heartbeat, mut charging) = (every(HEARTBEAT), every(CHARGE_INTERVAL));
        let mut unsent: Vec<StoreUnits> = Vec::new();
        loop {
            tokio::select! {
                refund = refunds.recv() => {
                    let Some(refund) = refund else { return };
                    self.outbox.is_sending.store(true, Relaxed);
                    let mut batch = vec![refund];
                    while batch.len() < BATCH && let Ok(refund) = refunds.try_recv() {
                        batch.push(refund);
                    }
                    self.send_refunds(batch, &mut unsent).await;
                }
                () = self.outbox.settlements.changed.notified() => self.send_settlements().await,
                () = self.outbox.slots.changed.notified() => self.report_slots(false).await,
                _ = heartbeat.tick() => self.report_slots(true).await,
                _ = charging.tick() => {
                    self.send_refunds(std::mem::take(&mut unsent), &mut unsent).await;
                    self.send_settlements().await;
                    self.charge_debts().await;
                    self.poll_leases();
                }
            }
            self.outbox.idle.notify_waiters();
        }
    }

    /// Sends refunds once: a refund that ran twice would admit more than the limit. Those that were certainly not sent
    /// go to `unsent`. A call reads before it writes, so it may name an entry of a key only once.
    async fn send_refunds(&self, mut refunds: Vec<StoreUnits>, unsent: &mut Vec<StoreUnits>) {
        while let Some(first) = refunds.first() {
            let group = self.store.group_of(&first.key);
            let (mut now, mut later): (Vec<StoreUnits>, Vec<StoreUnits>) = (Vec::new(), Vec::new());
            for refund in refunds {
                let is_known = now.iter().any(|other| other.entry_key() == refund.entry_key());
                let fits = !is_known && self.store.group_of(&refund.key) == group;
                if fits { now.push(refund) } else { later.push(refund) }
            }
            let items: Vec<CallItem<'_>> = now.iter().map(StoreUnits::to_item).collect();
            match self.call_items(ScriptOp::Refund, group, &items, &LateReplies::default()).await {
                Err(StoreFault::Down | StoreFault::Busy) if unsent.len() < REFUNDS_MAX => unsent.extend(now),
                Err(_) => now.iter().for_each(|refund| refund.limit.count_lost()),
                Ok(reply) => {
                    let received = Now::read_clock();
                    let levels = reply.levels.into_iter();
                    levels.for_each(|(index, level)| now[index].keep_spare((reply.now_us, level), received));
                }
            }
            refunds = later;
        }
        self.outbox.is_sending.store(!unsent.is_empty(), Relaxed);
    }

    /// Settles charges in the store, as long as it answers.
    async fn send_settlements(&self) {
        let settlements = &self.outbox.settlements;
        let mut answers = true;
        while answers && !settlements.is_empty() {
            let mut due = settlements.take_due(BATCH);
            if due.is_empty() {
                break;
            }
            let group = |settling: &SettlingKey| self.store.group_of(&settling.key);
            due.sort_by_key(group);
            let mut in_flight = KeysInFlight::new(settlements, due.iter().map(|settling| settling.key));
            for run in due.chunk_by(|one, next| group(one) == group(next)) {
                let keys: Vec<SettledKey<'_>> = run.iter().map(SettlingKey::to_call).collect();
                let at = self.store.unix_seconds();
                let packed = PackedCall::settle(self.store.prefix(), self.worker_node, at, &keys);
                let reply = self.link.call_script(group(&run[0]), LuaScript::counter_script(), &packed).await;
                let reply = reply.ok().filter(|bytes| !self.store.heed_clock(bytes));
                answers &= reply.is_some();
                let parse = |bytes: &Vec<u8>| SettledKey::parse_reply(&keys, bytes);
                let forgiven = reply.as_ref().and_then(parse).unwrap_or_default();
                run.iter().zip(&forgiven).for_each(|(settling, forgiven)| settling.count_forgiven(forgiven));
                run.iter().for_each(|settling| in_flight.finish_key(&settling.key, reply.is_some()));
            }
            drop(in_flight);
            settlements.finish_round(answers);
        }
    }

    /// Charges debts to the store, as long as it answers.
    async fn charge_debts(&self) {
        let debts = self.store.debts();
        let mut failed = 0;
        while debts.key_count() > 0 && self.store.is_current() && failed < FAILED_CHARGES_MAX {
            if !self.store.is_reachable() {
                // A charge on its way cannot be corrected by its response, nor be kept by this process in an upgrade.
                return debts.forget_units(FAILED_CHARGES_MAX * BATCH, Now::read_clock());
            }
            let mut charges = debts.take_due(BATCH, Now::read_clock());
            if charges.is_empty() {
                return;
            }
            let group = |charge: &StoreUnits| self.store.group_of(&charge.key);
            charges.sort_by_key(group);
            let mut in_flight = KeysInFlight::new(&**debts, charges.iter().map(|charge| charge.key));
            for run in charges.chunk_by(|one, next| group(one) == group(next)) {
                let is_exact = |charge: &&StoreUnits| charge.limit.rules[charge.rate].leases.is_none();
                let items: Vec<CallItem<'_>> = run.iter().filter(is_exact).map(StoreUnits::to_item).collect();
                let (prefix, at) = (self.store.prefix(), self.store.unix_seconds());
                let packed = PackedCall::new(ScriptOp::ChargeDebt, prefix, debts.node(), at, &items);
                let reply = match items.is_empty() {
                    true => Ok(Vec::new()),
                    false => {
                        self.link.call_script(group(&run[0]), LuaScript::counter_script(), &packed).await
                    }
                };
                let is_beyond = reply.as_ref().is_ok_and(|bytes| self.store.heed_clock(bytes));
                if reply.is_ok() && !is_beyond {
                    self.owe_leases(run.iter());
                }
                failed += usize::from(reply.is_err());
                run.iter().for_each(|charge| match reply {
                    Err(StoreFault::Down | StoreFault::Busy) => in_flight.cancel_key(&charge.key),
                    _ => in_flight.finish_key(&charge.key, reply.is_ok() && !is_beyond),
                });
            }
        }
    }

    /// Reports slots: all that are held if `all`, else only changes.
    async fn report_slots(&self, all: bool) {
        let slots = &self.outbox.slots;
        let mut reports = if all { slots.report_all() } else { slots.take_changes(BATCH) };
        let group = |report: &SlotReport| self.store.group_of(&report.slot_key.key);
        reports.sort_by_key(group);
        for run in reports.chunk_by(|one, next| group(one) == group(next)).flat_map(|run| run.chunks(BATCH)) {
            let items: Vec<CallItem<'_>> = run.iter().map(SlotReport::to_item).collect();
            // A lost report is repeated with the next heartbeat: numbers are absolute.
            let acknowledged = self
                .call_items(ScriptOp::ReportSlots, group(&run[0]), &items, &LateReplies::default())
                .await
                .is_ok();
            run.iter().for_each(|report| slots.finish_report(report, acknowledged));
        }
        if !all && reports.len() == BATCH {
            slots.changed.notify_one();
        }
    }
}

fn answers_of(reply: Result<ScriptReply, StoreFault>, items: usize) -> SmallVec<[StoreAnswer; 4]> {
    match reply {
        Ok(reply) => {
            let charged = reply.admitted;
            reply.answers.into_iter().map(|answer| StoreAnswer::Answered { answer, charged }).collect()
        }
        Err(fault) => std::iter::repeat_n(StoreAnswer::Failed(fault), items).collect(),
    }
}

// === impl StoreQuestion ===

impl<'a> StoreQuestion<'a> {
    /// A question about units of a rate, without slots and debts. It names their class where the limit has classes.
    pub fn new(limit: &'a Arc<SharedLimit>, rate: usize, key: SharedKey, units: &Units) -> StoreQuestion<'a> {
        let (class, anchor) = (limit.shares().map_or(SlotKey::NO_CLASS, |_| units.key.class), units.anchor);
        let item = CallItem { class, anchor, ..CallItem::new(&limit.rules[rate], key, units.cost) };
        StoreQuestion { limit, rate, item, in_process: 0 }
    }

    /// True if this process alone holds all slots, so that the store need not be asked.
    pub fn is_full(&self) -> bool {
        !self.item.dry_run && self.in_process > self.item.rule.capacity()
    }

    /// Names the units that are owed to the store.
    pub fn note_debts(&mut self, debts: &Debts, now: Now) {
        let item = &mut self.item;
        (item.owed, item.owed_by_others) =
            debts.owed_units(self.limit, self.rate, &item.key, item.class, now);
    }

    /// The refund of its charge, which has this mark.
    pub fn to_refund(&self, mark: u64) -> StoreUnits {
        let CallItem { key, cost, anchor, class, .. } = self.item;
        StoreUnits { limit: self.limit.clone(), rate: self.rate, key, cost, mark, anchor, class }
    }
}
