//! Requests that wait here for concurrency slots that the store counts.
//!
//! Nobody hands a slot over: the store tells no gateway of the slots that others free. So the next waiter in turn of
//! each key asks, alone, and only when a slot may be free: the store has noted slots that this gateway freed, the
//! answer to the waiter before it says that more are free, or a poll found some. Until it has them it keeps its place.
//!
//! Gateways take turns: each question and poll tells the store how long the next waiter here has waited, and the
//! store refuses slots to those that have waited for less in other gateways. A slot that is kept for a gateway rests
//! until that gateway polls, which it does the more often the sooner slots are likely to come. The note of a gateway
//! that polls no more lapses after a second or so.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use parking_lot::Mutex;

use super::{GatewayTurn, RateRule, SlotKey};
use sluicegate_base::clock::Now;
use sluicegate_limit::algorithm::concurrency::freed_rate::FreedRate;
use sluicegate_limit::algorithm::queue::{
    FoundPosition, NO_NODE, NewWaiter, ShardQueues, WaiterState, Wakers, waking,
};
use sluicegate_model::Shares;

/// The waiters of one concurrency limit.
#[derive(Default)]
pub struct SharedSlotQueue {
    /// Bounded by the cap on waiting requests of the process.
    lines: Mutex<SlotLines>,
    waiting: AtomicUsize,
    /// An operator has paused the limit: each waiter asks at once, and goes with any answer.
    pub(crate) is_paused: AtomicBool,
}

#[derive(Default)]
struct SlotLines {
    by_key: HashMap<SlotKey, SlotLine>,
    /// The keys by the moments of their next polls.
    by_due: BTreeMap<PollDue, SlotKey>,
    /// The number of polls so far.
    polls: u64,
    /// Keys for which nobody waits any more; the store may still keep slots for this gateway.
    left: Vec<(SlotKey, RateRule)>,
    queues: ShardQueues,
    is_polled: bool,
}

/// The moment of a poll, and a number that distinguishes it.
type PollDue = (Now, u64);

/// The waiters of one key; kept as long as a request waits.
struct SlotLine {
    queue: u32,
    /// The newest numbers.
    rule: RateRule,
    due: PollDue,
    /// The time between the last poll and the next one.
    poll_ns: u64,
    /// The moment at which a waiter had slots; before the first, that at which it began to wait.
    served_at: Now,
    /// The waiter that asks the store now; [`NO_NODE`] = none.
    asking: u32,
    may_be_free: bool,
    /// Slots of requests that found no place, until the store is told.
    refused: u64,
    freed: FreedRate,
}

/// The terms of waiting for the slots of a rate.
#[derive(Debug, Clone, Copy)]
pub struct SlotTerms<'a> {
    /// Units that may wait.
    pub queue: u64,
    /// The longest wait in nanoseconds; `None` = any wait.
    pub max_wait_ns: Option<u64>,
    /// The values of `fair_by` take turns.
    pub is_fair: bool,
    /// The classes that share the queue.
    pub shares: Option<&'a Shares>,
}

/// A request that is about to wait.
pub struct SlotNewcomer<'a> {
    /// The rate and key of the slots.
    pub slot_key: SlotKey,
    /// The numbers of the rate.
    pub rule: &'a RateRule,
    /// The number of slots that the request needs.
    pub cost: u64,
    /// Hash of its `fair_by` value.
    pub fair_hash: u64,
    /// The moment at which the request began to wait for slots of any limit.
    pub since: Now,
}

/// The place of a request in the queue of its key.
#[derive(Debug, Clone, Copy)]
pub struct SlotTicket {
    node: u32,
    cost: u64,
    until: Option<Now>,
}

/// The state of a waiter's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskTurn {
    /// The waiter has to ask the store now, and then to report the outcome.
    Ask,
    /// The waiter is woken when its state changes; at this moment its wait ends.
    Wait(Option<Now>),
    /// The waiter has left the queue: another displaced it, or its wait is over. Another wait would last about so many
    /// nanoseconds.
    Reject(u64),
}

/// A key to poll.
pub struct PolledLine {
    pub slot_key: SlotKey,
    pub rule: RateRule,
    /// The cost of the waiter that is next in turn.
    pub cost: u64,
    pub turn: GatewayTurn,
}

/// The longest time between two polls of a key, and how often it may be halved.
const POLL_MAX_NS: u64 = 50_000_000;
const POLL_HALVINGS: u32 = 5;
/// The part of the time since the last slot after which a key is polled again.
const POLL_PART: u64 = 32;
/// The time per key between polls of many keys, which are at most two seconds apart.
const KEY_POLL_NS: u64 = 500_000;
const KEY_POLL_MAX_NS: u64 = 2_000_000_000;
/// Maximum number of keys without waiters; the slots that the store keeps for further ones lapse.
const LEFT_MAX: usize = 1024;

// === impl SharedSlotQueue ===

impl SharedSlotQueue {
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Wakes all waiters, because a pause has begun.
    pub(crate) fn wake_all(&self) {
        waking(|wakers| {
            let lines = self.lines.lock();
            lines.by_key.values().for_each(|line| lines.queues.wake_all_waiters(line.queue, wakers));
        });
    }

    /// True if a request waits here for slots of this key.
    pub fn has_waiters(&self, slot_key: &SlotKey) -> bool {
        self.waiting_count() > 0 && self.lines.lock().by_key.contains_key(slot_key)
    }

    /// The position of one more request, from 1.
    ///
    /// # Errors
    /// The queue is full; the wait would be about so many nanoseconds.
    pub fn find_position(
        &self,
        slot_key: &SlotKey,
        terms: &SlotTerms<'_>,
        fair_hash: u64,
        now: Now,
    ) -> Result<u64, u64> {
        let lines = self.lines.lock();
        let found = lines.find_place(slot_key, terms, fair_hash);
        found.map(|(found, _)| found.before + 1).ok_or_else(|| lines.estimate_wait(slot_key, now))
    }

    /// [`SharedSlotQueue::find_position`] for a request that is rejected without a place.
    pub fn find_place(
        &self,
        slot_key: &SlotKey,
        terms: &SlotTerms<'_>,
        (fair_hash, cost): (u64, u64),
        now: Now,
    ) -> Result<u64, u64> {
        let found = self.find_position(slot_key, terms, fair_hash, now);
        found.inspect_err(|_| self.lines.lock().note_full(slot_key, cost))
    }

    /// Joins the queue of a key. True: nobody polls the store for this limit yet, and the caller has to see to it.
    ///
    /// # Errors
    /// The queue is full; the wait would be about so many nanoseconds.
    pub fn join_queue(
        &self,
        newcomer: SlotNewcomer<'_>,
        terms: &SlotTerms<'_>,
        now: Now,
    ) -> Result<(SlotTicket, bool), u64> {
        let SlotNewcomer { slot_key, rule, cost, fair_hash, since } = newcomer;
        let fair_hash = if terms.is_fair { fair_hash } else { 0 };
        waking(|wakers| {
            let lines = &mut *self.lines.lock();
            let Some((found, from)) = lines.find_place(&slot_key, terms, fair_hash) else {
                lines.note_full(&slot_key, cost);
                return Err(lines.estimate_wait(&slot_key, now));
            };
            let SlotLines { by_key, queues, .. } = &mut *lines;
            if let Some(line) = by_key.get_mut(&from).filter(|_| found.displaced != NO_NODE) {
                queues.displace_waiter(&mut line.queue, found.displaced, wakers);
                self.waiting.fetch_sub(1, Relaxed);
                if from != slot_key {
                    lines.forget_empty(&from);
                }
            }
            let SlotLines { by_key, by_due, polls, queues, is_polled, .. } = &mut *lines;
            let line = by_key.entry(slot_key).or_insert_with(|| {
                *polls += 1;
                let due = (Now(now.0.saturating_add(POLL_MAX_NS >> POLL_HALVINGS)), *polls);
                by_due.insert(due, slot_key);
                SlotLine::new(rule, due, now)
            });
            line.rule = rule.clone();
            let until = terms.max_wait_ns.map(|ns| Now(now.0.saturating_add(ns)));
            let waiter = NewWaiter { fair_hash, cost, span: cost.into(), until: None, since };
            let node = queues.push_waiter(&mut line.queue, waiter);
            self.waiting.fetch_add(1, Relaxed);
            let starts_polls = !std::mem::replace(is_polled, true);
            Ok((SlotTicket { node, cost, until }, starts_polls))
        })
    }

    /// Checks whether a waiter has to ask the store. While it has to wait, its waker stays in the queue.
    pub fn poll_turn(&self, slot_key: &SlotKey, ticket: &SlotTicket, now: Now, waker: &Waker) -> AskTurn {
        self.update_line(slot_key, |line, queues, wakers| {
            let is_waiting = matches!(queues.waiter_state(ticket.node), Some(WaiterState::Waiting));
            let line = line.filter(|_| is_waiting && ticket.until.is_none_or(|until| now < until))?;
            if self.is_paused.load(Relaxed) {
                return Some(AskTurn::Ask);
            }
            let is_next = queues.set_waker(line.queue, ticket.node, waker, wakers);
            if !is_next || !line.may_be_free || line.asking != NO_NODE {
                return Some(AskTurn::Wait(ticket.until));
            }
            (line.may_be_free, line.asking) = (false, ticket.node);
            Some(AskTurn::Ask)
        })
        .unwrap_or_else(|| AskTurn::Reject(self.remove_waiter(slot_key, ticket, now)))
    }

    /// The store has given the waiter its slots. `more_free`: others may be free as well.
    pub fn end_served(&self, slot_key: &SlotKey, ticket: &SlotTicket, more_free: bool, now: Now) {
        self.update_line(slot_key, |line, queues, wakers| {
            let Some(line) = line else { return };
            line.end_asking(ticket);
            line.may_be_free |= more_free;
            line.freed.count_slots(ticket.cost, now);
            line.served_at = now;
            // The next value has its turn then.
            if queues.head_node(line.queue) == ticket.node {
                queues.release_head(&mut line.queue, wakers);
                self.waiting.fetch_sub(1, Relaxed);
            }
        });
        self.remove_waiter(slot_key, ticket, now);
    }

    /// The store has too few slots; the waiter keeps its place.
    pub fn end_refused(&self, slot_key: &SlotKey, ticket: &SlotTicket) {
        self.update_line(slot_key, |line, queues, wakers| {
            if let Some(line) = line {
                line.end_asking(ticket);
                line.wake_next(queues, wakers);
            }
        });
    }

    /// A waiter leaves. If it was asking, the number of free slots is unknown.
    pub fn leave_queue(&self, slot_key: &SlotKey, ticket: &SlotTicket, now: Now) {
        self.update_line(slot_key, |line, _, _| {
            if let Some(line) = line {
                line.may_be_free |= line.end_asking(ticket);
            }
        });
        self.remove_waiter(slot_key, ticket, now);
    }

    /// Slots of a key may be free.
    pub fn note_freed(&self, slot_key: &SlotKey) {
        if self.waiting_count() == 0 {
            return;
        }
        self.update_line(slot_key, |line, queues, wakers| {
            if let Some(line) = line {
                line.may_be_free = true;
                line.wake_next(queues, wakers);
            }
        });
    }

    /// The turn of the waiter that asks for slots of a key.
    pub fn describe_turn(&self, gateway: u64, slot_key: &SlotKey, now: Now) -> Option<GatewayTurn> {
        let lines = self.lines.lock();
        lines.by_key.get(slot_key).map(|line| line.describe_turn(&lines.queues, gateway, now))
    }

    /// The keys that are due to be polled, `max` at most, without those of asking waiters, and the moment of the next
    /// poll. `gateway` is one of `nodes` that share the slots. `None` = no request waits; then the polls end.
    pub fn take_polled(
        &self,
        max: usize,
        (gateway, nodes): (u64, u64),
        now: Now,
    ) -> Option<(Vec<PolledLine>, Now)> {
        let mut lines = self.lines.lock();
        let SlotLines { by_key, by_due, polls, left, queues, is_polled } = &mut *lines;
        if by_key.is_empty() && left.is_empty() {
            *is_polled = false;
            return None;
        }
        let key_poll_ns = KEY_POLL_NS.saturating_mul(by_key.len() as u64).min(KEY_POLL_MAX_NS);
        let due: Vec<PollDue> = by_due.range(..=(now, u64::MAX)).take(max).map(|(due, _)| *due).collect();
        let mut polled = Vec::with_capacity(due.len());
        for due in due {
            let Some(slot_key) = by_due.remove(&due) else { continue };
            let Some(line) = by_key.get_mut(&slot_key) else { continue };
            *polls += 1;
            line.poll_ns = line.next_poll_ns(nodes, now).max(key_poll_ns);
            line.due = (Now((now.0 / line.poll_ns).saturating_add(1).saturating_mul(line.poll_ns)), *polls);
            by_due.insert(line.due, slot_key);
            if line.asking == NO_NODE && !line.may_be_free {
                let (cost, turn) = (queues.head_cost(line.queue), line.describe_turn(queues, gateway, now));
                line.refused = 0;
                polled.push(PolledLine { slot_key, rule: line.rule.clone(), cost, turn });
            }
        }
        left.retain(|(slot_key, _)| !by_key.contains_key(slot_key));
        let others = left.drain(left.len().saturating_sub(max - polled.len())..);
        let turn = GatewayTurn { gateway, waited_us: None, poll_us: 1, waiting: 0 };
        polled.extend(others.map(|(slot_key, rule)| PolledLine { slot_key, rule, cost: 1, turn }));
        let next = by_due.keys().next().filter(|_| left.is_empty()).map_or(now, |due| due.0);
        Some((polled, next))
    }

    /// The polls have ended, although requests wait.
    pub fn abandon_polls(&self) {
        self.lines.lock().is_polled = false;
    }

    /// Removes a waiter in any state. Returns the wait that another request has to expect.
    fn remove_waiter(&self, slot_key: &SlotKey, ticket: &SlotTicket, now: Now) -> u64 {
        self.update_line(slot_key, |line, queues, wakers| {
            let Some(line) = line else {
                queues.remove_waiter(&mut { NO_NODE }, ticket.node, wakers);
                return 1;
            };
            let left = queues.remove_waiter(&mut line.queue, ticket.node, wakers);
            if let Some((WaiterState::Waiting, _)) = left {
                self.waiting.fetch_sub(1, Relaxed);
            }
            line.wake_next(queues, wakers);
            line.estimate_wait(queues, now)
        })
    }

    /// Runs `update` on the line of a key, and drops the line if nobody waits any more.
    fn update_line<R>(
        &self,
        slot_key: &SlotKey,
        update: impl FnOnce(Option<&mut SlotLine>, &mut ShardQueues, &mut Wakers) -> R,
    ) -> R {
        waking(|wakers| {
            let lines = &mut *self.lines.lock();
            let result = update(lines.by_key.get_mut(slot_key), &mut lines.queues, wakers);
            lines.forget_empty(slot_key);
            result
        })
    }
}

// === impl SlotLines ===

impl SlotLines {
    /// The position of one more waiter, and the line of the one that has to make room; `None` = the queue is full.
    fn find_place(
        &self,
        slot_key: &SlotKey,
        terms: &SlotTerms<'_>,
        fair_hash: u64,
    ) -> Option<(FoundPosition, SlotKey)> {
        let fair_hash = terms.is_fair.then_some(fair_hash);
        let queue_of =
            |class| self.by_key.get(&SlotKey { class, ..*slot_key }).map_or(NO_NODE, |line| line.queue);
        let Some(shares) = terms.shares else {
            let found = self.queues.find_position(queue_of(slot_key.class), terms.queue, fair_hash);
            return found.map(|found| (found, *slot_key));
        };
        let found =
            self.queues.find_class_position(shares, terms.queue, (slot_key.class, fair_hash), queue_of);
        found.map(|(found, class)| (found, SlotKey { class, ..*slot_key }))
    }

    /// Drops the line of a key if nobody waits any more.
    fn forget_empty(&mut self, slot_key: &SlotKey) {
        let Some(line) = self.by_key.get(slot_key).filter(|line| line.queue == NO_NODE) else { return };
        self.by_due.remove(&line.due);
        if self.left.len() < LEFT_MAX {
            self.left.push((*slot_key, line.rule.clone()));
        }
        self.by_key.remove(slot_key);
    }

    /// A request finds no place in the queue.
    fn note_full(&mut self, slot_key: &SlotKey, cost: u64) {
        if let Some(line) = self.by_key.get_mut(slot_key) {
            line.refused = line.refused.saturating_add(cost);
        }
    }

    fn estimate_wait(&self, slot_key: &SlotKey, now: Now) -> u64 {
        self.by_key.get(slot_key).map_or(1, |line| line.estimate_wait(&self.queues, now))
    }
}

// === impl SlotLine ===

impl SlotLine {
    fn new(rule: &RateRule, due: PollDue, now: Now) -> SlotLine {
        SlotLine {
            queue: NO_NODE,
            rule: rule.clone(),
            due,
            poll_ns: POLL_MAX_NS >> POLL_HALVINGS,
            served_at: now,
            asking: NO_NODE,
            may_be_free: false,
            refused: 0,
            freed: FreedRate::starting(now),
        }
    }

    /// The time until the next poll: a small part of the time for which requests hold slots, which is about the time
    /// since the last slot here for each slot of this gateway's share.
    fn next_poll_ns(&self, nodes: u64, now: Now) -> u64 {
        let share = (4 * self.rule.capacity() / nodes.max(1)).clamp(1, POLL_PART);
        let span = now.ns_since(self.served_at) / POLL_PART * share;
        // Polls of several keys coincide, and share their calls.
        let halvings = (POLL_MAX_NS / span.max(1) + 1).next_power_of_two().ilog2();
        POLL_MAX_NS >> halvings.min(POLL_HALVINGS)
    }

    fn describe_turn(&self, queues: &ShardQueues, gateway: u64, now: Now) -> GatewayTurn {
        let waited_us = queues.head(self.queue).map(|head| now.ns_since(head.since) / 1_000);
        let waiting = queues.queued_units(self.queue).saturating_add(self.refused);
        GatewayTurn { gateway, waited_us, poll_us: self.poll_ns / 1_000, waiting }
    }

    /// Returns true if this waiter was asking.
    fn end_asking(&mut self, ticket: &SlotTicket) -> bool {
        let was_asking = self.asking == ticket.node;
        if was_asking {
            self.asking = NO_NODE;
        }
        was_asking
    }

    /// Wakes the next waiter in turn if it has to ask.
    fn wake_next(&self, queues: &ShardQueues, wakers: &mut Wakers) {
        if self.may_be_free && self.asking == NO_NODE {
            queues.wake_head(self.queue, wakers);
        }
    }

    fn estimate_wait(&self, queues: &ShardQueues, now: Now) -> u64 {
        self.freed.estimate_wait(queues.queued_units(self.queue).saturating_add(1), now)
    }
}

#[cfg(test)]
mod tests;
