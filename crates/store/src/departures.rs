//! Requests that wait here for departures that the store handed out.
//!
//! The store gives each request of the fleet a departure of its own. A waiter that leaves frees the last departure of
//! its cost that this gateway holds for the key, and the waiters of its cost behind it move up: departures stay as
//! far apart as the store handed them out, so they keep the rate. With `fair_by` the waiters take turns, and so do the
//! classes of a limit with shares; the pace of `most` is not held here, as a departure cannot be used later.
//!
//! A freed departure that the store cannot take back becomes a spare one for the next request: see `spares`.

mod ahead;
mod spares;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::SharedKey;
use sluicegate_base::clock::Now;
use sluicegate_limit::Turn;
use sluicegate_limit::algorithm::queue::{
    ClassQueue, NO_NODE, NewWaiter, ShardQueues, WaiterState, Wakers, waking,
};
use sluicegate_model::Shares;
use spares::Spares;

/// The waiters of one rate.
#[derive(Default)]
pub struct Departures {
    /// Bounded by the cap on waiting requests of the process.
    waiters: Mutex<DepartureQueues>,
    waiting: AtomicUsize,
    /// Locked after `waiters`.
    spares: Mutex<Spares>,
    spare_count: AtomicUsize,
}

#[derive(Default)]
struct DepartureQueues {
    /// All go at once.
    is_paused: bool,
    by_key: HashMap<SharedKey, DepartureQueue>,
    queues: ShardQueues,
}

#[derive(Default)]
struct DepartureQueue {
    /// One of each class; without shares a single one.
    classes: SmallVec<[ClassQueue; 1]>,
    shares: Option<Arc<Shares>>,
    /// Departures in order of time; as many of each cost as there are waiters of that cost.
    departures: VecDeque<Departure>,
}

/// A moment at which one request may go, handed out by the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// The moment at which the request may go.
    pub due: Now,
    /// The units of the request that it was handed out for.
    pub cost: u64,
    /// The mark that a refund must name.
    pub mark: u64,
}

/// The position of a waiter in a queue.
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

    /// Begins or ends a pause, in which all waiters go at once, those of before too.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.update_queues(|DepartureQueues { is_paused, by_key, queues }, wakers| {
            *is_paused = paused;
            for entry in by_key.values_mut().filter(|_| paused) {
                entry.departures.iter_mut().for_each(|departure| departure.due = Now::default());
                ClassQueue::wake_next(&entry.classes, queues, wakers);
            }
        });
    }

    /// Joins the queue for `departure` or an earlier one of its cost; the waiter gives up at `until`.
    pub fn join_queue(
        &self,
        key: SharedKey,
        mut departure: Departure,
        (fair_hash, class): (u64, u8),
        shares: Option<&Arc<Shares>>,
        until: Option<Now>,
    ) -> DepartureTicket {
        let cost = departure.cost;
        let node = self.update_queues(|DepartureQueues { is_paused, by_key, queues }, wakers| {
            if *is_paused {
                departure.due = Now::default();
            }
            let entry = by_key.entry(key).or_default();
            entry.shares = shares.cloned();
            let class = usize::from(class);
            let classes = entry.classes.len().max(class + 1);
            entry.classes.resize_with(classes, ClassQueue::default);
            if entry.insert_departure(departure) {
                // The head's timer is set for a later departure.
                ClassQueue::wake_next(&entry.classes, queues, wakers);
            }
            let waiter = NewWaiter { fair_hash, cost, span: cost.into(), until, since: Now::read_clock() };
            self.waiting.fetch_add(1, Relaxed);
            queues.push_waiter(&mut entry.classes[class].queue, waiter)
        });
        DepartureTicket { node, cost }
    }

    /// Checks whether a waiter's turn has come; if not, its waker is kept. Once it goes or is rejected, its ticket is
    /// void. A rejection comes with the departure that is no longer needed.
    pub fn poll_turn(
        &self,
        key: &SharedKey,
        ticket: DepartureTicket,
        now: Now,
        waker: &Waker,
    ) -> (Turn, Option<Departure>) {
        self.update_queues(|waiters, wakers| {
            if let Some(entry) = waiters.by_key.get_mut(key) {
                let queues = &mut waiters.queues;
                self.depart_due(entry, queues, now, wakers);
                let until = queues.wait_deadline(ticket.node);
                let stays = until.is_none_or(|until| now < until);
                if let Some(class) = ClassQueue::find_class(&entry.classes, queues, ticket.node)
                    && stays
                {
                    let is_head = queues.set_waker(entry.classes[class].queue, ticket.node, waker, wakers)
                        && ClassQueue::find_next(&entry.classes, |_| true) == Some(class);
                    let due = entry.departures.front().filter(|_| is_head).map(|departure| departure.due);
                    return (Turn::wait_until(due, until), None);
                }
            }
            match self.remove_waiter(waiters, key, ticket, wakers) {
                // Its maximum wait has passed.
                Some((last, freed)) => {
                    (Turn::Reject(last.map_or(1, |last| last.due.ns_since(now).max(1))), freed)
                }
                None => (Turn::Go, None),
            }
        })
    }

    /// Removes a waiter before its turn. Returns the departure that is no longer needed.
    pub fn leave_queue(&self, key: &SharedKey, ticket: DepartureTicket) -> Option<Departure> {
        self.update_queues(|waiters, wakers| self.remove_waiter(waiters, key, ticket, wakers)?.1)
    }

    /// Runs `update` on the queues, and wakes the waiters that it names.
    fn update_queues<R>(&self, update: impl FnOnce(&mut DepartureQueues, &mut Wakers) -> R) -> R {
        waking(|wakers| update(&mut self.waiters.lock(), wakers))
    }

    /// Removes a waiter. Returns the last departure of its key, and the one that is no longer needed; `None` if the
    /// waiter has departed and only not noticed yet.
    fn remove_waiter(
        &self,
        waiters: &mut DepartureQueues,
        key: &SharedKey,
        ticket: DepartureTicket,
        wakers: &mut Wakers,
    ) -> Option<(Option<Departure>, Option<Departure>)> {
        let DepartureQueues { by_key, queues, .. } = waiters;
        let Some(entry) = by_key.get_mut(key) else {
            queues.remove_waiter(&mut { NO_NODE }, ticket.node, wakers);
            return None;
        };
        let left = match ClassQueue::find_class(&entry.classes, queues, ticket.node) {
            Some(class) => queues.remove_waiter(&mut entry.classes[class].queue, ticket.node, wakers),
            None => queues.remove_waiter(&mut { NO_NODE }, ticket.node, wakers),
        };
        let removed = matches!(left, Some((WaiterState::Waiting, _))).then(|| {
            self.waiting.fetch_sub(1, Relaxed);
            if entry.classes.len() > 1 {
                ClassQueue::wake_next(&entry.classes, queues, wakers);
            }
            (entry.departures.back().copied(), entry.remove_last(|own| own.cost == ticket.cost))
        });
        if entry.departures.is_empty() && entry.classes.iter().all(ClassQueue::is_empty) {
            by_key.remove(key);
        }
        removed
    }

    /// Lets all waiters with a due departure go, because timers may be late.
    fn depart_due(
        &self,
        entry: &mut DepartureQueue,
        queues: &mut ShardQueues,
        now: Now,
        wakers: &mut Wakers,
    ) {
        while let Some(first) = entry.departures.front()
            && first.due <= now
        {
            let cost = first.cost;
            let DepartureQueue { classes, shares, .. } = entry;
            // The first class in turn that has a waiter with this cost.
            let fits = |class: usize| queues.has_cost(classes[class].queue, cost);
            let class = shares.as_ref().and_then(|_| ClassQueue::find_next(classes, fits));
            let Some(class) = class.or_else(|| ClassQueue::find_next(classes, |_| true)) else { return };
            if let Some(shares) = shares {
                ClassQueue::count_departure(classes, class, cost, shares);
            }
            queues.depart_with_cost(&mut classes[class].queue, cost, wakers);
            if classes.len() > 1 {
                ClassQueue::wake_next(classes, queues, wakers);
            }
            entry.departures.pop_front();
            self.waiting.fetch_sub(1, Relaxed);
        }
    }
}

// === impl DepartureQueue ===

impl DepartureQueue {
    /// Adds a departure; true if it is the first one.
    fn insert_departure(&mut self, departure: Departure) -> bool {
        let index = self.departures.partition_point(|other| other.due <= departure.due);
        self.departures.insert(index, departure);
        index == 0
    }

    /// Removes the last departure that is suitable.
    fn remove_last(&mut self, is_suitable: impl Fn(&Departure) -> bool) -> Option<Departure> {
        let index = self.departures.iter().rposition(is_suitable)?;
        self.departures.remove(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_model::{KeyPart, ShareClass};

    const KEY: SharedKey = SharedKey([7; 16]);

    fn departure(due: u64, cost: u64) -> Departure {
        Departure { due: Now(due), cost, mark: due + 1000 }
    }

    fn queue_of(dues: &[(u64, u64)]) -> (Departures, Vec<DepartureTicket>) {
        let departures = Departures::default();
        let join =
            |(due, cost): &(u64, u64)| departures.join_queue(KEY, departure(*due, *cost), (0, 0), None, None);
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
        let (departures, tickets) = queue_of(&[(200, 1), (300, 1), (400, 1)]);
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
    fn in_a_pause_all_go_at_once_also_newcomers_that_were_asked_before() {
        let (departures, tickets) = queue_of(&[(200, 1), (300, 1)]);
        departures.set_paused(true);
        let newcomer = departures.join_queue(KEY, departure(400, 1), (0, 0), None, None);
        for ticket in [tickets[0], tickets[1], newcomer] {
            assert_eq!(turn(&departures, ticket, 100), Turn::Go);
        }
        departures.set_paused(false);
        let later = departures.join_queue(KEY, departure(500, 1), (0, 0), None, None);
        assert_eq!(turn(&departures, later, 100), Turn::Due(Now(500)));
    }

    #[test]
    fn a_departure_is_freed_for_its_own_cost_only() {
        let (departures, tickets) = queue_of(&[(200, 1), (300, 5), (400, 1)]);
        assert_eq!(departures.leave_queue(&KEY, tickets[1]), Some(departure(300, 5)));
        assert_eq!(departures.leave_queue(&KEY, tickets[0]), Some(departure(400, 1)));
        assert_eq!(turn(&departures, tickets[2], 200), Turn::Go);
        assert!(is_empty(&departures));
    }

    #[test]
    fn a_waiter_that_departed_unnoticed_frees_nothing_and_leaves_nothing_behind() {
        let (departures, tickets) = queue_of(&[(200, 1), (200, 1), (200, 1)]);
        assert_eq!(turn(&departures, tickets[0], 500), Turn::Go);
        assert_eq!(departures.leave_queue(&KEY, tickets[1]), None);
        assert_eq!(turn(&departures, tickets[2], 500), Turn::Go);
        assert!(is_empty(&departures));
        let fresh = departures.join_queue(KEY, departure(600, 1), (0, 0), None, None);
        assert_eq!(fresh.node, tickets[2].node, "nodes are used again");
    }

    #[test]
    fn answers_out_of_order_keep_arrival_order_and_the_earliest_departures() {
        let (departures, tickets) = queue_of(&[(300, 1), (200, 1)]);
        assert_eq!(turn(&departures, tickets[0], 200), Turn::Go);
        assert_eq!(turn(&departures, tickets[1], 200), Turn::Due(Now(300)));
    }

    #[test]
    fn waiters_take_turns_by_their_value_and_give_up_in_time() {
        let departures = Departures::default();
        let join = |due, fair_hash| {
            departures.join_queue(KEY, departure(due, 1), (fair_hash, 0), None, Some(Now(350)))
        };
        let (first, second, other) = (join(100, 1), join(200, 1), join(300, 2));
        assert_eq!(turn(&departures, first, 100), Turn::Go);
        assert_eq!(turn(&departures, other, 200), Turn::Go, "its turn comes before the second of the other");
        assert_eq!(turn(&departures, second, 299), Turn::Due(Now(300)));
        let late = departures.join_queue(KEY, departure(900, 1), (1, 0), None, Some(Now(350)));
        assert_eq!(turn(&departures, second, 300), Turn::Go);
        assert_eq!(turn(&departures, late, 349), Turn::Due(Now(350)));
        let (turn, freed) = departures.poll_turn(&KEY, late, Now(350), Waker::noop());
        assert!(matches!(turn, Turn::Reject(_)));
        assert_eq!(freed, Some(departure(900, 1)), "it can be given back");
        assert!(is_empty(&departures));
    }

    #[test]
    fn classes_take_turns_by_their_floors() {
        let class = |name: &str, least| ShareClass { name: name.to_owned(), least, most: Shares::WHOLE };
        let shares = Arc::new(Shares {
            by: KeyPart::Tier,
            classes: vec![class("gold", 750_000), class(Shares::DEFAULT, 250_000)],
            lend: Shares::WHOLE,
        });
        let departures = Departures::default();
        let join = |due, class, cost| {
            departures.join_queue(KEY, departure(due, cost), (0, class), Some(&shares), None)
        };
        let others: Vec<_> = (1..=8).map(|at| join(at * 100, 1, 1)).collect();
        let gold: Vec<_> = (9..=16).map(|at| join(at * 100, 0, 1)).collect();
        assert_eq!(turn(&departures, gold[0], 99), Turn::Due(Now(100)), "the first class in turn");
        assert_eq!(turn(&departures, others[0], 99), Turn::Wait);
        let waits = |tickets: &[DepartureTicket], now| {
            tickets.iter().filter(|ticket| turn(&departures, **ticket, now) != Turn::Go).count()
        };
        assert_eq!((waits(&gold, 800), waits(&others, 800)), (2, 6), "three of four are gold's");
        assert_eq!(departures.leave_queue(&KEY, gold[7]), Some(departure(1600, 1)));
        let costly = join(1550, 0, 5);
        assert_ne!(turn(&departures, costly, 1000), Turn::Go, "a departure of one unit is of no use to it");
        assert_eq!((waits(&gold[..7], 1500), waits(&others, 1500)), (0, 0));
        assert_eq!(turn(&departures, costly, 1550), Turn::Go);
        assert!(is_empty(&departures));
    }

    #[test]
    fn a_departure_is_used_by_its_own_cost_only() {
        let (departures, tickets) = queue_of(&[(200, 1), (300, 5), (800, 1)]);
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
    fn the_head_is_woken_for_an_earlier_departure() {
        struct WakeCount(AtomicUsize);
        impl std::task::Wake for WakeCount {
            fn wake(self: std::sync::Arc<WakeCount>) {
                self.0.fetch_add(1, Relaxed);
            }
        }
        let woken = std::sync::Arc::new(WakeCount(AtomicUsize::new(0)));
        let departures = Departures::default();
        let head = departures.join_queue(KEY, departure(300, 1), (0, 0), None, None);
        assert_eq!(departures.poll_turn(&KEY, head, Now(100), &woken.clone().into()).0, Turn::Due(Now(300)));
        departures.join_queue(KEY, departure(400, 1), (0, 0), None, None);
        assert_eq!(woken.0.load(Relaxed), 0);
        departures.join_queue(KEY, departure(200, 1), (0, 0), None, None);
        assert_eq!(woken.0.load(Relaxed), 1);
        assert_eq!(turn(&departures, head, 100), Turn::Due(Now(200)));
    }
}
