//! The waiters of a leaky bucket: first in, first out per key, each able to leave from anywhere.

use std::task::Waker;

use smallvec::SmallVec;

use super::pace::Since;

/// Wakers collected under a lock, to be woken (or dropped) once it is free again.
pub(super) type Wakers = SmallVec<[Waker; 2]>;

/// "No such place" in the lists below.
pub(super) const NONE: u32 = u32::MAX;

/// All queues of one shard of a table, under its lock.
#[derive(Default)]
pub(super) struct Queues {
    queues: Slab<Queue>,
    waiters: Slab<Waiter>,
}

/// The line in front of one key.
#[derive(Debug, Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
    /// Sum of the waiters' costs.
    units: u64,
}

struct Waiter {
    /// Whose queue; `NONE` once departed.
    queue: u32,
    before: u32,
    behind: u32,
    cost: u64,
    waker: Option<Waker>,
    /// Once departed: what a refund must know.
    since: Since,
}

/// A growing list whose places are used again.
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

/// More places than this are given back to the system when a slab falls empty.
const PLACES_KEPT: usize = 64;

// === impl Queues ===

impl Queues {
    /// Sum of the costs that wait in `queue`.
    pub(super) fn units(&self, queue: u32) -> u64 {
        self.queues.get(queue).map_or(0, |queue| queue.units)
    }

    /// Stands at the end of `queue`, which is made if it is `NONE`; answers the waiter's place.
    pub(super) fn join(&mut self, queue: &mut u32, cost: u64) -> u32 {
        if *queue == NONE {
            *queue = self.queues.insert(Queue { head: NONE, tail: NONE, units: 0 });
        }
        let before = self.queues.get(*queue).map_or(NONE, |line| line.tail);
        let waiter =
            Waiter { queue: *queue, before, behind: NONE, cost, waker: None, since: Since::default() };
        let place = self.waiters.insert(waiter);
        if let Some(waiter) = self.waiters.get_mut(before) {
            waiter.behind = place;
        }
        if let Some(line) = self.queues.get_mut(*queue) {
            line.tail = place;
            line.units = line.units.saturating_add(cost);
            if line.head == NONE {
                line.head = place;
            }
        }
        place
    }

    /// The head of `queue` departs; it stays until it notices.
    pub(super) fn depart(&mut self, queue: &mut u32, since: Since, wakers: &mut Wakers) {
        let head = self.queues.get(*queue).map_or(NONE, |line| line.head);
        self.unlink(queue, head, wakers);
        if let Some(waiter) = self.waiters.get_mut(head) {
            waiter.since = since;
            wakers.extend(waiter.waker.take());
        }
    }

    /// Takes a waiter out. If it had departed, answers since when; else it is unlinked, and those behind move up.
    pub(super) fn leave(&mut self, queue: &mut u32, place: u32, wakers: &mut Wakers) -> Option<Since> {
        let departed = self.departed(place);
        if !departed {
            self.unlink(queue, place, wakers);
        }
        let waiter = self.waiters.remove(place)?;
        // Its waker may own the last handle on a task, which must not be dropped under the lock.
        wakers.extend(waiter.waker);
        departed.then_some(waiter.since)
    }

    pub(super) fn departed(&self, place: u32) -> bool {
        self.waiters.get(place).is_some_and(|waiter| waiter.queue == NONE)
    }

    /// Leaves `waker` to be woken on departure, or on becoming the head; answers whether it is the head.
    pub(super) fn watch(&mut self, place: u32, waker: &Waker, wakers: &mut Wakers) -> bool {
        let Some(waiter) = self.waiters.get_mut(place) else { return false };
        if !waiter.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            wakers.extend(waiter.waker.replace(waker.clone()));
        }
        waiter.before == NONE
    }

    /// Removes a waiter from its line; a new head is woken to take over the timer.
    fn unlink(&mut self, queue: &mut u32, place: u32, wakers: &mut Wakers) {
        let Some(waiter) = self.waiters.get_mut(place) else { return };
        waiter.queue = NONE;
        let (before, behind, cost) = (waiter.before, waiter.behind, waiter.cost);
        if let Some(waiter) = self.waiters.get_mut(before) {
            waiter.behind = behind;
        }
        if let Some(waiter) = self.waiters.get_mut(behind) {
            waiter.before = before;
            if before == NONE {
                wakers.extend(waiter.waker.clone());
            }
        }
        let Some(line) = self.queues.get_mut(*queue) else { return };
        line.units = line.units.saturating_sub(cost);
        if before == NONE {
            line.head = behind;
        }
        if behind == NONE {
            line.tail = before;
        }
        if line.head == NONE {
            self.queues.remove(*queue);
            *queue = NONE;
        }
    }
}

// === impl Slab ===

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn get(&self, place: u32) -> Option<&T> {
        self.places.get(place as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(value);
                place
            }
            None => {
                self.places.push(Some(value));
                (self.places.len() - 1) as u32
            }
        }
    }

    pub(super) fn remove(&mut self, place: u32) -> Option<T> {
        let value = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        if self.free.len() == self.places.len() && self.places.len() > PLACES_KEPT {
            *self = Slab::default();
        }
        Some(value)
    }
}
