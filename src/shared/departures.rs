//! Those who wait here for departures that the store handed out.
//!
//! The store gives each request of the fleet a departure of its own. A waiter that leaves frees the last departure of
//! its cost that this gateway holds for the key, and those of its cost behind it move up: as far apart as the store
//! handed them out, departures keep the rate. With `fair_by` the waiters take turns.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use parking_lot::Mutex;

use super::SharedKey;
use crate::base::clock::Now;
use crate::limit::Turn;
use crate::limit::algorithm::queue::{NO_NODE, NewWaiter, ShardQueues, WaiterState, Wakers};

/// The waiters of one rate.
#[derive(Default)]
pub struct Departures {
    /// As many waiters as requests wait in the process.
    waiters: Mutex<DepartureQueues>,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct DepartureQueues {
    by_key: HashMap<SharedKey, DepartureQueue>,
    queues: ShardQueues,
}

struct DepartureQueue {
    queue: u32,
    /// In the order of their time; as many of each cost as there are waiters of it.
    departures: VecDeque<Departure>,
}

/// A moment that the store handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    pub due: Now,
    pub cost: u64,
    /// What giving it back has to name.
    pub mark: u64,
}

/// A place among the waiters.
#[derive(Debug, Clone, Copy)]
pub struct DepartureTicket {
    node: u32,
    cost: u64,
}

// === impl Departures ===

impl Departures {
    pub fn waiting_count(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Stands in line for `departure` or an earlier one of its cost; `until` is when it gives up.
    pub fn join_queue(
        &self,
        key: SharedKey,
        departure: Departure,
        fair: u64,
        until: Option<Now>,
    ) -> DepartureTicket {
        let cost = departure.cost;
        let mut wakers = Wakers::new();
        let mut lines = self.waiters.lock();
        let DepartureQueues { by_key: of, queues } = &mut *lines;
        let line =
            of.entry(key).or_insert_with(|| DepartureQueue { queue: NO_NODE, departures: VecDeque::new() });
        let place = line.departures.partition_point(|other| other.due <= departure.due);
        line.departures.insert(place, departure);
        if place == 0 {
            // The head has its timer set for a later one.
            queues.wake_head(line.queue, &mut wakers);
        }
        let node = queues.push_waiter(&mut line.queue, NewWaiter { fair, cost, span: cost.into(), until });
        self.waiting.fetch_add(1, Relaxed);
        drop(lines);
        wakers.into_iter().for_each(Waker::wake);
        DepartureTicket { node, cost }
    }

    /// A waiter looks whether its turn has come; unless it may go, its waker is kept. Once it went or was refused,
    /// its ticket is void. With a refusal comes the departure that nobody needs any more.
    pub(crate) fn poll_turn(
        &self,
        key: &SharedKey,
        ticket: DepartureTicket,
        now: Now,
        waker: &Waker,
    ) -> (Turn, Option<Departure>) {
        let mut wakers = Wakers::new();
        let mut lines = self.waiters.lock();
        let turn = self.check_turn(&mut lines, key, ticket, now, waker, &mut wakers);
        drop(lines);
        wakers.into_iter().for_each(Waker::wake);
        turn
    }

    fn check_turn(
        &self,
        lines: &mut DepartureQueues,
        key: &SharedKey,
        ticket: DepartureTicket,
        now: Now,
        waker: &Waker,
        wakers: &mut Wakers,
    ) -> (Turn, Option<Departure>) {
        let DepartureQueues { by_key: of, queues } = lines;
        let Some(line) = of.get_mut(key) else {
            // All have departed; only this one had not noticed yet.
            queues.remove_waiter(&mut NO_NODE.clone(), ticket.node, wakers);
            return (Turn::Go, None);
        };
        self.depart_due(line, queues, now, wakers);
        let until = queues.wait_deadline(ticket.node);
        let stays = until.is_none_or(|until| now < until);
        if let Some(WaiterState::Waiting) = queues.waiter_state(ticket.node)
            && stays
        {
            let is_head = queues.set_waker(line.queue, ticket.node, waker, wakers);
            let due = line.departures.front().filter(|_| is_head).map(|departure| departure.due);
            let due = due.map(|due| until.map_or(due, |until| due.min(until)));
            return (due.or(until).map_or(Turn::Wait, Turn::Due), None);
        }
        let left = queues.remove_waiter(&mut line.queue, ticket.node, wakers);
        let retry_ns = line.departures.back().map_or(1, |last| last.due.ns_since(now).max(1));
        let stood = matches!(left, Some((WaiterState::Waiting, _)));
        let mut freed = None;
        if stood {
            // It waited as long as it may.
            self.waiting.fetch_sub(1, Relaxed);
            freed = take_last_departure(line, ticket.cost);
        }
        if line.departures.is_empty() && line.queue == NO_NODE {
            of.remove(key);
        }
        (if stood { Turn::Reject(retry_ns) } else { Turn::Go }, freed)
    }

    /// A waiter leaves before its turn. Answers the departure that nobody needs any more.
    pub fn leave_queue(&self, key: &SharedKey, ticket: DepartureTicket) -> Option<Departure> {
        let mut wakers = Wakers::new();
        let mut lines = self.waiters.lock();
        let DepartureQueues { by_key: of, queues } = &mut *lines;
        let Some(line) = of.get_mut(key) else {
            queues.remove_waiter(&mut NO_NODE.clone(), ticket.node, &mut wakers);
            return None;
        };
        let stood = matches!(
            queues.remove_waiter(&mut line.queue, ticket.node, &mut wakers),
            Some((WaiterState::Waiting, _))
        );
        let freed = if stood { take_last_departure(line, ticket.cost) } else { None };
        if stood {
            self.waiting.fetch_sub(1, Relaxed);
        }
        if line.departures.is_empty() && line.queue == NO_NODE {
            of.remove(key);
        }
        drop(lines);
        wakers.into_iter().for_each(Waker::wake);
        freed
    }

    /// Lets everyone go whose departure is due, for timers may be late.
    fn depart_due(&self, line: &mut DepartureQueue, queues: &mut ShardQueues, now: Now, wakers: &mut Wakers) {
        while line.queue != NO_NODE
            && let Some(first) = line.departures.front()
            && first.due <= now
        {
            let cost = first.cost;
            line.departures.pop_front();
            queues.depart_with_cost(&mut line.queue, cost, wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
    }
}

fn take_last_departure(line: &mut DepartureQueue, cost: u64) -> Option<Departure> {
    let place = line.departures.iter().rposition(|departure| departure.cost == cost)?;
    line.departures.remove(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SharedKey = SharedKey([7; 16]);

    fn departure(due: u64, cost: u64) -> Departure {
        Departure { due: Now(due), cost, mark: due + 1000 }
    }

    fn line(dues: &[(u64, u64)]) -> (Departures, Vec<DepartureTicket>) {
        let departures = Departures::default();
        let join = |(due, cost): &(u64, u64)| departures.join_queue(KEY, departure(*due, *cost), 0, None);
        let tickets = dues.iter().map(join).collect();
        (departures, tickets)
    }

    fn turn(departures: &Departures, ticket: DepartureTicket, now: u64) -> Turn {
        departures.poll_turn(&KEY, ticket, Now(now), Waker::noop()).0
    }

    fn is_empty(departures: &Departures) -> bool {
        departures.waiters.lock().by_key.is_empty() && departures.waiting_count() == 0
    }

    #[test]
    fn a_leavers_departure_goes_to_the_next_and_the_last_one_is_free() {
        let (departures, tickets) = line(&[(200, 1), (300, 1), (400, 1)]);
        assert_eq!(turn(&departures, tickets[0], 100), Turn::Due(Now(200)));
        assert_eq!(turn(&departures, tickets[1], 100), Turn::Wait);
        assert_eq!(departures.leave_queue(&KEY, tickets[0]), Some(departure(400, 1)));
        assert_eq!(departures.waiting_count(), 2);
        assert_eq!(turn(&departures, tickets[1], 199), Turn::Due(Now(200)));
        assert_eq!(turn(&departures, tickets[1], 200), Turn::Go);
        assert_eq!(turn(&departures, tickets[2], 200), Turn::Due(Now(300)));
        assert_eq!(turn(&departures, tickets[2], 300), Turn::Go);
        assert!(is_empty(&departures));
    }

    #[test]
    fn a_departure_is_freed_for_its_own_cost_only() {
        let (departures, tickets) = line(&[(200, 1), (300, 5), (400, 1)]);
        assert_eq!(departures.leave_queue(&KEY, tickets[1]), Some(departure(300, 5)));
        assert_eq!(departures.leave_queue(&KEY, tickets[0]), Some(departure(400, 1)));
        assert_eq!(turn(&departures, tickets[2], 200), Turn::Go);
        assert!(is_empty(&departures));
    }

    #[test]
    fn who_has_departed_unnoticed_frees_nothing_and_leaves_nothing_behind() {
        let (departures, tickets) = line(&[(200, 1), (200, 1), (200, 1)]);
        assert_eq!(turn(&departures, tickets[0], 500), Turn::Go);
        assert_eq!(departures.leave_queue(&KEY, tickets[1]), None);
        assert_eq!(turn(&departures, tickets[2], 500), Turn::Go);
        assert!(is_empty(&departures));
        let fresh = departures.join_queue(KEY, departure(600, 1), 0, None);
        assert_eq!(fresh.node, tickets[2].node, "places are used again");
    }

    #[test]
    fn answers_out_of_order_keep_arrival_order_and_the_earliest_departures() {
        let (departures, tickets) = line(&[(300, 1), (200, 1)]);
        assert_eq!(turn(&departures, tickets[0], 200), Turn::Go);
        assert_eq!(turn(&departures, tickets[1], 200), Turn::Due(Now(300)));
    }

    #[test]
    fn waiters_take_turns_by_their_value_and_give_up_in_time() {
        let departures = Departures::default();
        let join = |due, fair| departures.join_queue(KEY, departure(due, 1), fair, Some(Now(350)));
        let (first, second, other) = (join(100, 1), join(200, 1), join(300, 2));
        assert_eq!(turn(&departures, first, 100), Turn::Go);
        assert_eq!(turn(&departures, other, 200), Turn::Go, "its turn comes before the second of the other");
        assert_eq!(turn(&departures, second, 299), Turn::Due(Now(300)));
        let late = departures.join_queue(KEY, departure(900, 1), 1, Some(Now(350)));
        assert_eq!(turn(&departures, second, 300), Turn::Go);
        assert_eq!(turn(&departures, late, 349), Turn::Due(Now(350)));
        let (turn, freed) = departures.poll_turn(&KEY, late, Now(350), Waker::noop());
        assert!(matches!(turn, Turn::Reject(_)));
        assert_eq!(freed, Some(departure(900, 1)), "it can be given back");
        assert!(is_empty(&departures));
    }

    #[test]
    fn a_departure_is_used_by_its_own_cost_only() {
        let (departures, tickets) = line(&[(200, 1), (300, 5), (800, 1)]);
        assert_eq!(departures.leave_queue(&KEY, tickets[0]), Some(departure(800, 1)));
        assert_eq!(
            turn(&departures, tickets[2], 200),
            Turn::Go,
            "five units would take until the next departure"
        );
        assert_eq!(turn(&departures, tickets[1], 299), Turn::Due(Now(300)));
        assert_eq!(turn(&departures, tickets[1], 300), Turn::Go);
        assert!(is_empty(&departures));
    }

    #[test]
    fn the_head_hears_of_an_earlier_departure() {
        struct Called(AtomicUsize);
        impl std::task::Wake for Called {
            fn wake(self: std::sync::Arc<Called>) {
                self.0.fetch_add(1, Relaxed);
            }
        }
        let called = std::sync::Arc::new(Called(AtomicUsize::new(0)));
        let departures = Departures::default();
        let head = departures.join_queue(KEY, departure(300, 1), 0, None);
        assert_eq!(departures.poll_turn(&KEY, head, Now(100), &called.clone().into()).0, Turn::Due(Now(300)));
        departures.join_queue(KEY, departure(400, 1), 0, None);
        assert_eq!(called.0.load(Relaxed), 0);
        departures.join_queue(KEY, departure(200, 1), 0, None);
        assert_eq!(called.0.load(Relaxed), 1);
        assert_eq!(turn(&departures, head, 100), Turn::Due(Now(200)));
    }
}
