//! The waiters of a leaky bucket: per key a ring of lines that take turns, first in, first out in each line, and
//! each waiter able to leave from anywhere. Without `fair_by` all stand in one line.

use std::task::Waker;

use smallvec::SmallVec;

use super::rate::ChargeMark;
use super::slab::Slab;
use crate::base::clock::Now;
use crate::limit::Epoch;

/// Wakers collected under a lock, to be woken (or dropped) once it is free again.
pub(crate) type Wakers = SmallVec<[Waker; 2]>;

/// Lines of one queue, so that walking them stalls nobody. Values beyond them share the lines that are there.
const FAIR_QUEUES_MAX: u32 = 1024;

/// "No such place" in the lists below.
pub(crate) const NO_NODE: u32 = u32::MAX;

/// All queues of one shard of a table, under its lock.
#[derive(Default)]
pub(crate) struct ShardQueues {
    queues: Slab<WaitQueue>,
    lines: Slab<FairQueue>,
    waiters: Slab<QueuedWaiter>,
}

/// What stands in front of one key; it goes when the last waiter does.
struct WaitQueue {
    /// The line whose turn is next.
    front: u32,
    lines: u32,
    /// Sum of the waiters' costs.
    units: u64,
    /// Sum of what those take, in ticks.
    span: u128,
}

/// The waiters of one value; it goes when the last of them does.
struct FairQueue {
    fair: u64,
    /// Its neighbours in the ring.
    prev: u32,
    next: u32,
    head: u32,
    tail: u32,
    waiters: u64,
    span: u128,
}

/// Who comes to stand in a queue.
pub(crate) struct NewWaiter {
    /// Whose turn it takes.
    pub fair: u64,
    pub cost: u64,
    /// What its cost takes, in ticks.
    pub span: u128,
    /// It does not want to wait longer.
    pub until: Option<Now>,
}

struct QueuedWaiter {
    own: NewWaiter,
    line: u32,
    before: u32,
    behind: u32,
    waker: Option<Waker>,
    state: WaiterState,
}

/// Where a waiter is; it stays in its place until it notices.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WaiterState {
    Waiting,
    /// With what a refund must know.
    Departed(ChargeMark, Epoch),
    /// It had to make room, and was given back.
    Displaced,
}

/// What one more waiter of a value would find.
#[derive(Debug)]
pub(crate) struct QueueForecast {
    /// Waiters of its own value.
    pub own: u64,
    /// Ticks that those take who go before it.
    pub before: u128,
    /// Waiters of the other value that has most.
    pub fullest: u64,
    pub newest: NewestWaiter,
}

/// The newest waiter of that value; at [`NO_NODE`] if there is no other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewestWaiter {
    pub place: u32,
    pub cost: u64,
    pub span: u128,
    /// It would go before the newcomer.
    pub before: bool,
}

// === impl Queues ===

impl ShardQueues {
    /// Sum of the costs that wait in `queue`.
    pub(crate) fn queued_units(&self, queue: u32) -> u64 {
        self.queues.get(queue).map_or(0, |queue| queue.units)
    }

    /// Ticks that those who wait in `queue` take together.
    pub(crate) fn queued_ticks(&self, queue: u32) -> u128 {
        self.queues.get(queue).map_or(0, |queue| queue.span)
    }

    /// The cost of the one that departs next.
    pub(crate) fn head_cost(&self, queue: u32) -> u64 {
        self.waiters.get(self.head_node(queue)).map_or(0, |waiter| waiter.own.cost)
    }

    /// Stands at the end of its line, the last in the ring if it is new; makes the queue if it is `NO_NODE`. Answers
    /// the waiter's place.
    pub(crate) fn push_waiter(&mut self, queue: &mut u32, own: NewWaiter) -> u32 {
        if *queue == NO_NODE {
            *queue = self.queues.insert(WaitQueue { front: NO_NODE, lines: 0, units: 0, span: 0 });
        }
        let line = match self.find_fair_queue(*queue, own.fair) {
            NO_NODE => self.open_fair_queue(*queue, own.fair),
            line => line,
        };
        let (cost, span) = (own.cost, own.span);
        let before = self.lines.get(line).map_or(NO_NODE, |line| line.tail);
        let place = self.waiters.insert(QueuedWaiter {
            own,
            line,
            before,
            behind: NO_NODE,
            waker: None,
            state: WaiterState::Waiting,
        });
        if let Some(waiter) = self.waiters.get_mut(before) {
            waiter.behind = place;
        }
        if let Some(line) = self.lines.get_mut(line) {
            line.tail = place;
            line.waiters += 1;
            line.span = line.span.saturating_add(span);
            if line.head == NO_NODE {
                line.head = place;
            }
        }
        if let Some(queue) = self.queues.get_mut(*queue) {
            queue.units = queue.units.saturating_add(cost);
            queue.span = queue.span.saturating_add(span);
        }
        place
    }

    /// The head of `queue` departs, and the next line has its turn.
    pub(crate) fn depart_head(&mut self, queue: &mut u32, since: (ChargeMark, Epoch), wakers: &mut Wakers) {
        let front = self.queues.get(*queue).map_or(NO_NODE, |queue| queue.front);
        let next = self.lines.get(front).map_or(NO_NODE, |line| line.next);
        let head = self.head_node(*queue);
        if let Some(queue) = self.queues.get_mut(*queue) {
            queue.front = next;
        }
        self.unlink_waiter(queue, head, WaiterState::Departed(since.0, since.1), wakers);
        self.wake_head(*queue, wakers);
    }

    /// The first in turn of those with this cost departs: usually the head.
    pub(crate) fn depart_with_cost(&mut self, queue: &mut u32, cost: u64, wakers: &mut Wakers) {
        let waiters = |line| {
            let head = self.lines.get(line).map(|line| line.head);
            std::iter::successors(head, |place| self.waiters.get(*place).map(|waiter| waiter.behind))
        };
        let is_own = |place: &u32| self.waiters.get(*place).is_some_and(|waiter| waiter.own.cost == cost);
        let own = self
            .fair_queues(*queue)
            .flat_map(waiters)
            .find(is_own)
            .filter(|own| *own != self.head_node(*queue));
        match own {
            Some(place) => {
                self.detach_waiter(queue, place, WaiterState::Departed(ChargeMark::default(), 0), wakers)
            }
            None => self.depart_head(queue, Default::default(), wakers),
        }
    }

    /// A waiter makes room for another: it is no longer in the queue, and is told so.
    pub(crate) fn displace_waiter(&mut self, queue: &mut u32, place: u32, wakers: &mut Wakers) {
        self.detach_waiter(queue, place, WaiterState::Displaced, wakers);
    }

    /// A waiter goes for good; if it still stands there, those behind move up. Answers where and who it was.
    pub(crate) fn remove_waiter(
        &mut self,
        queue: &mut u32,
        place: u32,
        wakers: &mut Wakers,
    ) -> Option<(WaiterState, NewWaiter)> {
        let state = self.waiter_state(place)?;
        if matches!(state, WaiterState::Waiting) {
            self.detach_waiter(queue, place, state, wakers);
        }
        let waiter = self.waiters.remove(place)?;
        // Its waker may own the last handle on a task, which must not be dropped under the lock.
        wakers.extend(waiter.waker);
        Some((state, waiter.own))
    }

    pub(crate) fn waiter_state(&self, place: u32) -> Option<WaiterState> {
        self.waiters.get(place).map(|waiter| waiter.state)
    }

    /// The waiter at `place` and its line, if it stands there.
    pub(crate) fn find_waiting(&self, place: u32) -> Option<(&NewWaiter, u32)> {
        let waiter = self.waiters.get(place)?;
        matches!(waiter.state, WaiterState::Waiting).then_some((&waiter.own, waiter.line))
    }

    /// Until when a waiter wants to wait.
    pub(crate) fn wait_deadline(&self, place: u32) -> Option<Now> {
        self.waiters.get(place).and_then(|waiter| waiter.own.until)
    }

    /// Leaves `waker` to be woken when its state changes, or on becoming the head; answers whether it is the head.
    pub(crate) fn set_waker(&mut self, queue: u32, place: u32, waker: &Waker, wakers: &mut Wakers) -> bool {
        let is_head = self.head_node(queue) == place;
        let Some(waiter) = self.waiters.get_mut(place) else { return false };
        if !waiter.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            wakers.extend(waiter.waker.replace(waker.clone()));
        }
        is_head
    }

    /// What one more waiter of a line, `NO_NODE` for a new one, would find if nobody came after it.
    pub(crate) fn forecast_waiter(&self, queue: u32, own_line: u32) -> QueueForecast {
        let own = self.lines.get(own_line).map_or(0, |line| line.waiters);
        let newest = NewestWaiter { place: NO_NODE, cost: 0, span: 0, before: false };
        let mut prospect = QueueForecast { own, before: 0, fullest: 0, newest };
        let mut passed_own = false;
        for place in self.fair_queues(queue) {
            let Some(line) = self.lines.get(place) else { break };
            // A line that has its turn earlier goes once more before the newcomer's.
            let turns = own + u64::from(!passed_own);
            passed_own |= place == own_line;
            let before = turns >= line.waiters;
            prospect.before += if before { line.span } else { self.first_ticks(line, turns) };
            if place != own_line && line.waiters > prospect.fullest {
                prospect.fullest = line.waiters;
                let newest = self.waiters.get(line.tail);
                let (cost, span) = newest.map_or((0, 0), |waiter| (waiter.own.cost, waiter.own.span));
                prospect.newest = NewestWaiter { place: line.tail, cost, span, before };
            }
        }
        prospect
    }

    /// The one that departs next.
    fn head_node(&self, queue: u32) -> u32 {
        let front = self.queues.get(queue).and_then(|queue| self.lines.get(queue.front));
        front.map_or(NO_NODE, |line| line.head)
    }

    fn detach_waiter(&mut self, queue: &mut u32, place: u32, state: WaiterState, wakers: &mut Wakers) {
        let was_head = self.head_node(*queue) == place;
        self.unlink_waiter(queue, place, state, wakers);
        if was_head {
            self.wake_head(*queue, wakers);
        }
    }

    /// Has all that wait in `queue` take as long as `span` makes of what they took.
    pub(crate) fn convert_spans(&mut self, queue: u32, span: impl Fn(u128) -> u128) {
        let lines: Vec<u32> = self.fair_queues(queue).collect();
        let mut all: u128 = 0;
        for place in lines {
            let Some(line) = self.lines.get_mut(place) else { continue };
            let (mut at, mut sum) = (line.head, 0_u128);
            while let Some(waiter) = self.waiters.get_mut(at) {
                waiter.own.span = span(waiter.own.span);
                (at, sum) = (waiter.behind, sum.saturating_add(waiter.own.span));
            }
            line.span = sum;
            all = all.saturating_add(sum);
        }
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.span = all;
        }
    }

    /// The head must know that it is, to take over the timer.
    pub(crate) fn wake_head(&self, queue: u32, wakers: &mut Wakers) {
        wakers.extend(self.waiters.get(self.head_node(queue)).and_then(|waiter| waiter.waker.clone()));
    }

    /// The lines of `queue` in the order of their turns.
    fn fair_queues(&self, queue: u32) -> impl Iterator<Item = u32> {
        let front = self.queues.get(queue).map(|queue| queue.front).filter(|&front| front != NO_NODE);
        std::iter::successors(front, move |&line| {
            self.lines.get(line).map(|line| line.next).filter(|&next| Some(next) != front)
        })
    }

    /// The line where a value stands: its own, of too many the one most like it; `NO_NODE` if it would open one.
    pub(crate) fn find_fair_queue(&self, queue: u32, fair: u64) -> u32 {
        let lines =
            self.fair_queues(queue).filter_map(|place| Some((self.lines.get(place)?.fair ^ fair, place)));
        let full = self.queues.get(queue).is_some_and(|queue| queue.lines >= FAIR_QUEUES_MAX);
        lines.min().filter(|(unlike, _)| *unlike == 0 || full).map_or(NO_NODE, |(_, place)| place)
    }

    /// Ticks of the first `count` waiters of a line that has more; reached from the nearer end.
    fn first_ticks(&self, line: &FairQueue, count: u64) -> u128 {
        let ticks = |place: u32, next: fn(&QueuedWaiter) -> u32, count: u64| -> u128 {
            let waiters =
                std::iter::successors(self.waiters.get(place), |waiter| self.waiters.get(next(waiter)));
            waiters.take(count as usize).map(|waiter| waiter.own.span).sum()
        };
        let rest = line.waiters.saturating_sub(count);
        match count <= rest {
            true => ticks(line.head, |waiter| waiter.behind, count),
            false => line.span.saturating_sub(ticks(line.tail, |waiter| waiter.before, rest)),
        }
    }

    /// A new line, the last in the ring.
    fn open_fair_queue(&mut self, queue: u32, fair: u64) -> u32 {
        let front = self.queues.get(queue).map_or(NO_NODE, |queue| queue.front);
        let prev = self.lines.get(front).map_or(NO_NODE, |line| line.prev);
        let line = FairQueue { fair, prev, next: front, head: NO_NODE, tail: NO_NODE, waiters: 0, span: 0 };
        let place = self.lines.insert(line);
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.lines += 1;
            if front == NO_NODE {
                queue.front = place;
            }
        }
        if front == NO_NODE {
            self.link_neighbours(place, place);
        } else {
            self.link_neighbours(prev, place);
            self.link_neighbours(place, front);
        }
        place
    }

    /// Makes two lines neighbours.
    fn link_neighbours(&mut self, prev: u32, next: u32) {
        if let Some(line) = self.lines.get_mut(prev) {
            line.next = next;
        }
        if let Some(line) = self.lines.get_mut(next) {
            line.prev = prev;
        }
    }

    /// Removes a waiter from its line, and the line or the queue when nobody is left in it.
    fn unlink_waiter(&mut self, queue: &mut u32, place: u32, state: WaiterState, wakers: &mut Wakers) {
        let Some(waiter) = self.waiters.get_mut(place) else { return };
        waiter.state = state;
        let (at, before, behind) = (waiter.line, waiter.before, waiter.behind);
        let (cost, span) = (waiter.own.cost, waiter.own.span);
        wakers.extend(waiter.waker.take());
        if let Some(waiter) = self.waiters.get_mut(before) {
            waiter.behind = behind;
        }
        if let Some(waiter) = self.waiters.get_mut(behind) {
            waiter.before = before;
        }
        let Some(line) = self.lines.get_mut(at) else { return };
        line.waiters = line.waiters.saturating_sub(1);
        line.span = line.span.saturating_sub(span);
        if before == NO_NODE {
            line.head = behind;
        }
        if behind == NO_NODE {
            line.tail = before;
        }
        let (emptied, prev, next) = (line.head == NO_NODE, line.prev, line.next);
        let Some(whole) = self.queues.get_mut(*queue) else { return };
        whole.units = whole.units.saturating_sub(cost);
        whole.span = whole.span.saturating_sub(span);
        if !emptied {
            return;
        }
        if whole.front == at {
            whole.front = next;
        }
        whole.lines = whole.lines.saturating_sub(1);
        self.lines.remove(at);
        if next == at {
            self.queues.remove(*queue);
            *queue = NO_NODE;
        } else {
            self.link_neighbours(prev, next);
        }
    }
}

#[cfg(test)]
mod tests;
