//! The waiters of a leaky bucket or for concurrency slots: per key a ring of fair queues that take turns, each first
//! in, first out; a waiter can leave from any position. Without `fair_by` there is one fair queue.

mod classes;
mod forecast;

use std::task::Waker;

use smallvec::SmallVec;

use super::open_charges::ShardCharges;
use super::rate::ChargeMark;
use super::slab::Slab;
use crate::Epoch;
pub use classes::ClassQueue;
pub use forecast::FoundPosition;
pub(crate) use forecast::NewestWaiter;
use sluicegate_base::clock::Now;

/// Wakers collected under a lock, to be woken (or dropped) once it is released.
pub type Wakers = SmallVec<[Waker; 2]>;

/// The most fair queues of one key, so that walking them is quick. Further values share the existing ones.
const FAIR_QUEUES_MAX: u32 = 1024;

/// "No such node" in the lists below.
pub const NO_NODE: u32 = u32::MAX;

/// All queues of one shard of a table, under its lock.
#[derive(Default)]
pub struct ShardQueues {
    queues: Slab<WaitQueue>,
    fair_queues: Slab<FairQueue>,
    waiters: Slab<QueuedWaiter>,
    pub(crate) charges: ShardCharges,
}

/// All waiters of one key; removed with the last of them.
struct WaitQueue {
    /// The fair queue with the next turn.
    front: u32,
    fair_queues: u32,
    /// Sum of the waiters' costs.
    units: u64,
    /// Sum of the waiters' spans, in ticks.
    span: u128,
}

/// The waiters of one `fair_by` value; removed with the last of them.
struct FairQueue {
    fair_hash: u64,
    queue: u32,
    /// The neighbours in the ring.
    prev: u32,
    next: u32,
    head: u32,
    tail: u32,
    waiters: u64,
    span: u128,
}

/// A request that joins a queue.
pub struct NewWaiter {
    /// Hash of its `fair_by` value.
    pub fair_hash: u64,
    /// The units that it takes, or the slots.
    pub cost: u64,
    /// Ticks that its cost takes.
    pub span: u128,
    /// The end of its wait.
    pub until: Option<Now>,
    /// The moment at which it began to wait.
    pub since: Now,
}

struct QueuedWaiter {
    own: NewWaiter,
    fair_queue: u32,
    before: u32,
    behind: u32,
    waker: Option<Waker>,
    state: WaiterState,
}

/// The state of a waiter; its node stays until the request notices a change.
#[derive(Debug, Clone, Copy)]
pub enum WaiterState {
    /// The waiter is in the queue.
    Waiting,
    /// Departed, with the data a refund needs.
    Departed(ChargeMark, Epoch),
    /// Displaced by another, and refunded.
    Displaced,
}

// === impl ShardQueues ===

impl AsMut<ShardCharges> for ShardQueues {
    fn as_mut(&mut self) -> &mut ShardCharges {
        &mut self.charges
    }
}

impl ShardQueues {
    /// Sum of the costs that wait in `queue`.
    pub fn queued_units(&self, queue: u32) -> u64 {
        self.queues.get(queue).map_or(0, |queue| queue.units)
    }

    /// Sum of the ticks of all waiters in `queue`.
    pub(crate) fn queued_ticks(&self, queue: u32) -> u128 {
        self.queues.get(queue).map_or(0, |queue| queue.span)
    }

    /// The waiter that departs next.
    pub fn head(&self, queue: u32) -> Option<&NewWaiter> {
        self.waiters.get(self.head_node(queue)).map(|waiter| &waiter.own)
    }

    /// The cost of the waiter that departs next.
    pub fn head_cost(&self, queue: u32) -> u64 {
        self.head(queue).map_or(0, |waiter| waiter.cost)
    }

    /// Appends a waiter to the fair queue of its value, which comes last in the ring if it is new; makes the queue if
    /// it is `NO_NODE`. Returns the waiter's node.
    pub fn push_waiter(&mut self, queue: &mut u32, own: NewWaiter) -> u32 {
        if *queue == NO_NODE {
            *queue = self.queues.insert(WaitQueue { front: NO_NODE, fair_queues: 0, units: 0, span: 0 });
        }
        let fair_queue = match self.find_fair_queue(*queue, own.fair_hash) {
            NO_NODE => self.open_fair_queue(*queue, own.fair_hash),
            existing => existing,
        };
        let (cost, span) = (own.cost, own.span);
        let before = self.fair_queues.get(fair_queue).map_or(NO_NODE, |fair_queue| fair_queue.tail);
        let node = self.waiters.insert(QueuedWaiter {
            own,
            fair_queue,
            before,
            behind: NO_NODE,
            waker: None,
            state: WaiterState::Waiting,
        });
        if let Some(waiter) = self.waiters.get_mut(before) {
            waiter.behind = node;
        }
        if let Some(fair_queue) = self.fair_queues.get_mut(fair_queue) {
            fair_queue.tail = node;
            fair_queue.waiters += 1;
            fair_queue.span = fair_queue.span.saturating_add(span);
            if fair_queue.head == NO_NODE {
                fair_queue.head = node;
            }
        }
        if let Some(queue) = self.queues.get_mut(*queue) {
            queue.units = queue.units.saturating_add(cost);
            queue.span = queue.span.saturating_add(span);
        }
        node
    }

    /// The head of `queue` departs, and the next fair queue has its turn. The new head takes over the timer.
    pub(crate) fn depart_head(&mut self, queue: &mut u32, since: (ChargeMark, Epoch), wakers: &mut Wakers) {
        self.unlink_head(queue, WaiterState::Departed(since.0, since.1), wakers);
        self.wake_head(*queue, wakers);
    }

    /// The head of `queue` departs with nothing to refund, where no head has a timer.
    pub fn release_head(&mut self, queue: &mut u32, wakers: &mut Wakers) {
        self.unlink_head(queue, WaiterState::Departed(ChargeMark::default(), 0), wakers);
    }

    /// The head of `queue` departs; the next one is not woken.
    pub(crate) fn unlink_head(&mut self, queue: &mut u32, state: WaiterState, wakers: &mut Wakers) {
        let front = self.queues.get(*queue).map_or(NO_NODE, |queue| queue.front);
        let next = self.fair_queues.get(front).map_or(NO_NODE, |fair_queue| fair_queue.next);
        let head = self.head_node(*queue);
        if let Some(queue) = self.queues.get_mut(*queue) {
            queue.front = next;
        }
        self.unlink_waiter(queue, head, state, wakers);
    }

    /// Frees the node of a request that stands in no queue any more; returns its last state.
    pub(crate) fn forget_waiter(&mut self, node: u32) -> Option<WaiterState> {
        self.remove_waiter(&mut { NO_NODE }, node, &mut Wakers::default()).map(|(state, _)| state)
    }

    /// True if a waiter has this cost.
    pub fn has_cost(&self, queue: u32, cost: u64) -> bool {
        self.find_cost(queue, cost).is_some()
    }

    fn find_cost(&self, queue: u32, cost: u64) -> Option<u32> {
        let waiters = |fair_queue| {
            let head = self.fair_queues.get(fair_queue).map(|fair_queue| fair_queue.head);
            std::iter::successors(head, |node| self.waiters.get(*node).map(|waiter| waiter.behind))
        };
        let has_cost = |node: &u32| self.waiters.get(*node).is_some_and(|waiter| waiter.own.cost == cost);
        self.fair_queues(queue).flat_map(waiters).find(has_cost)
    }

    /// The first waiter in turn with this cost departs: usually the head.
    pub fn depart_with_cost(&mut self, queue: &mut u32, cost: u64, wakers: &mut Wakers) {
        match self.find_cost(*queue, cost) {
            Some(node) if node != self.head_node(*queue) => {
                self.detach_waiter(queue, node, WaiterState::Departed(ChargeMark::default(), 0), wakers)
            }
            _ => self.depart_head(queue, Default::default(), wakers),
        }
    }

    /// Takes a waiter out of the queue to make room for another, and wakes it.
    pub fn displace_waiter(&mut self, queue: &mut u32, node: u32, wakers: &mut Wakers) {
        self.detach_waiter(queue, node, WaiterState::Displaced, wakers);
    }

    /// Removes a waiter and its node; if it still waited, those behind it move up. Returns its state and data.
    pub fn remove_waiter(
        &mut self,
        queue: &mut u32,
        node: u32,
        wakers: &mut Wakers,
    ) -> Option<(WaiterState, NewWaiter)> {
        let state = self.waiter_state(node)?;
        if matches!(state, WaiterState::Waiting) {
            self.detach_waiter(queue, node, state, wakers);
        }
        let waiter = self.waiters.remove(node)?;
        // Its waker may own the last handle of a task, which must not be dropped under the lock.
        wakers.extend(waiter.waker);
        Some((state, waiter.own))
    }

    /// The state of the waiter at `node`; `None` = its request has removed it.
    pub fn waiter_state(&self, node: u32) -> Option<WaiterState> {
        self.waiters.get(node).map(|waiter| waiter.state)
    }

    /// The waiter at `node` and its fair queue, if it still waits.
    pub(crate) fn find_waiting(&self, node: u32) -> Option<(&NewWaiter, u32)> {
        let waiter = self.waiters.get(node)?;
        matches!(waiter.state, WaiterState::Waiting).then_some((&waiter.own, waiter.fair_queue))
    }

    /// The queue in which a node waits.
    fn find_queue(&self, node: u32) -> Option<u32> {
        let (_, fair_queue) = self.find_waiting(node)?;
        self.fair_queues.get(fair_queue).map(|fair_queue| fair_queue.queue)
    }

    /// The end of a waiter's wait.
    pub fn wait_deadline(&self, node: u32) -> Option<Now> {
        self.waiters.get(node).and_then(|waiter| waiter.own.until)
    }

    /// Sets the waker for a change of state or for becoming the head; returns whether the waiter is the head.
    pub fn set_waker(&mut self, queue: u32, node: u32, waker: &Waker, wakers: &mut Wakers) -> bool {
        let is_head = self.head_node(queue) == node;
        let Some(waiter) = self.waiters.get_mut(node) else { return false };
        if !waiter.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            wakers.extend(waiter.waker.replace(waker.clone()));
        }
        is_head
    }

    /// The node of the first waiter of the fair queue in turn; [`NO_NODE`] = nobody waits.
    pub fn head_node(&self, queue: u32) -> u32 {
        let front = self.queues.get(queue).and_then(|queue| self.fair_queues.get(queue.front));
        front.map_or(NO_NODE, |fair_queue| fair_queue.head)
    }

    fn detach_waiter(&mut self, queue: &mut u32, node: u32, state: WaiterState, wakers: &mut Wakers) {
        let was_head = self.head_node(*queue) == node;
        self.unlink_waiter(queue, node, state, wakers);
        if was_head {
            self.wake_head(*queue, wakers);
        }
    }

    /// Applies `convert` to the span of every waiter in `queue`.
    pub(crate) fn convert_spans(&mut self, queue: u32, convert: impl Fn(u128) -> u128) {
        let fair_queues: Vec<u32> = self.fair_queues(queue).collect();
        let mut all: u128 = 0;
        for index in fair_queues {
            let Some(fair_queue) = self.fair_queues.get_mut(index) else { continue };
            let (mut node, mut sum) = (fair_queue.head, 0_u128);
            while let Some(waiter) = self.waiters.get_mut(node) {
                waiter.own.span = convert(waiter.own.span);
                (node, sum) = (waiter.behind, sum.saturating_add(waiter.own.span));
            }
            fair_queue.span = sum;
            all = all.saturating_add(sum);
        }
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.span = all;
        }
    }

    /// Wakes the head, which has to take over the timer.
    pub fn wake_head(&self, queue: u32, wakers: &mut Wakers) {
        wakers.extend(self.waiters.get(self.head_node(queue)).and_then(|waiter| waiter.waker.clone()));
    }

    /// Wakes every waiter, because their waits may end at other moments now.
    pub fn wake_all_waiters(&self, queue: u32, wakers: &mut Wakers) {
        for fair_queue in self.fair_queues(queue).filter_map(|index| self.fair_queues.get(index)) {
            let waiters = std::iter::successors(self.waiters.get(fair_queue.head), |waiter| {
                self.waiters.get(waiter.behind)
            });
            wakers.extend(waiters.filter_map(|waiter| waiter.waker.clone()));
        }
    }

    /// The fair queues of `queue` in the order of their turns.
    fn fair_queues(&self, queue: u32) -> impl Iterator<Item = u32> {
        let front = self.queues.get(queue).map(|queue| queue.front).filter(|&front| front != NO_NODE);
        std::iter::successors(front, move |&index| {
            self.fair_queues.get(index).map(|own| own.next).filter(|&next| Some(next) != front)
        })
    }

    /// The fair queue of a value, or at the maximum the one of the nearest value; `NO_NODE` if it needs a new one.
    pub(crate) fn find_fair_queue(&self, queue: u32, fair_hash: u64) -> u32 {
        let distance = |index| Some((self.fair_queues.get(index)?.fair_hash ^ fair_hash, index));
        let nearest = self.fair_queues(queue).filter_map(distance).min();
        let full = self.queues.get(queue).is_some_and(|queue| queue.fair_queues >= FAIR_QUEUES_MAX);
        nearest.filter(|(distance, _)| *distance == 0 || full).map_or(NO_NODE, |(_, index)| index)
    }

    /// Opens a fair queue, the last in the ring.
    fn open_fair_queue(&mut self, queue: u32, fair_hash: u64) -> u32 {
        let front = self.queues.get(queue).map_or(NO_NODE, |queue| queue.front);
        let prev = self.fair_queues.get(front).map_or(NO_NODE, |fair_queue| fair_queue.prev);
        let index = self.fair_queues.insert(FairQueue {
            fair_hash,
            queue,
            prev,
            next: front,
            head: NO_NODE,
            tail: NO_NODE,
            waiters: 0,
            span: 0,
        });
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.fair_queues += 1;
            if front == NO_NODE {
                queue.front = index;
            }
        }
        if front == NO_NODE {
            self.link_neighbours(index, index);
        } else {
            self.link_neighbours(prev, index);
            self.link_neighbours(index, front);
        }
        index
    }

    fn link_neighbours(&mut self, prev: u32, next: u32) {
        if let Some(fair_queue) = self.fair_queues.get_mut(prev) {
            fair_queue.next = next;
        }
        if let Some(fair_queue) = self.fair_queues.get_mut(next) {
            fair_queue.prev = prev;
        }
    }

    /// Removes a waiter from its fair queue, and the fair queue and the queue when they are empty.
    fn unlink_waiter(&mut self, queue: &mut u32, node: u32, state: WaiterState, wakers: &mut Wakers) {
        let Some(waiter) = self.waiters.get_mut(node) else { return };
        waiter.state = state;
        let (index, before, behind) = (waiter.fair_queue, waiter.before, waiter.behind);
        let (cost, span) = (waiter.own.cost, waiter.own.span);
        wakers.extend(waiter.waker.take());
        if let Some(waiter) = self.waiters.get_mut(before) {
            waiter.behind = behind;
        }
        if let Some(waiter) = self.waiters.get_mut(behind) {
            waiter.before = before;
        }
        let Some(fair_queue) = self.fair_queues.get_mut(index) else { return };
        fair_queue.waiters = fair_queue.waiters.saturating_sub(1);
        fair_queue.span = fair_queue.span.saturating_sub(span);
        if before == NO_NODE {
            fair_queue.head = behind;
        }
        if behind == NO_NODE {
            fair_queue.tail = before;
        }
        let (is_empty, prev, next) = (fair_queue.head == NO_NODE, fair_queue.prev, fair_queue.next);
        let Some(wait_queue) = self.queues.get_mut(*queue) else { return };
        wait_queue.units = wait_queue.units.saturating_sub(cost);
        wait_queue.span = wait_queue.span.saturating_sub(span);
        if !is_empty {
            return;
        }
        if wait_queue.front == index {
            wait_queue.front = next;
        }
        wait_queue.fair_queues = wait_queue.fair_queues.saturating_sub(1);
        self.fair_queues.remove(index);
        if next == index {
            self.queues.remove(*queue);
            *queue = NO_NODE;
        } else {
            self.link_neighbours(prev, next);
        }
    }
}

/// Wakes outside every lock, because a waker may run a task's destructor.
#[inline]
pub fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

/// Runs a step that collects wakers under a lock, and wakes them once it has released the lock.
#[inline]
pub fn waking<W: Default + IntoIterator<Item = Waker>, R>(step: impl FnOnce(&mut W) -> R) -> R {
    let mut wakers = W::default();
    let result = step(&mut wakers);
    wake_all(wakers);
    result
}

#[cfg(test)]
mod tests;
