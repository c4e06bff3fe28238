//! The order of waiters, their ends, and the polls, without a store.

use std::sync::Arc;
use std::task::Wake;

use super::*;
use crate::SharedKey;
use sluicegate_config as config;

const NOW: Now = Now(1_000_000_000);
const KEY: SlotKey = SlotKey { rule: 1, key: SharedKey([1; 16]), class: 0 };
const TERMS: SlotTerms<'static> =
    SlotTerms { queue: 3, max_wait_ns: Some(5_000), is_fair: false, shares: None };

struct NoWake;

impl Wake for NoWake {
    fn wake(self: Arc<Self>) {}
}

fn rule() -> RateRule {
    let text = "limits: { slots: { algorithm: concurrency, max_concurrent: 5 } }\n\
                locations: [{ path: /, limits: slots, respond: { status: 200 } }]";
    RateRule::rules_of(&config::parse(text, "test").unwrap().config.limits[0]).remove(0)
}

fn join(queue: &SharedSlotQueue, fair_hash: u64, terms: &SlotTerms) -> Result<SlotTicket, u64> {
    let newcomer = SlotNewcomer { slot_key: KEY, rule: &rule(), cost: 1, fair_hash, since: NOW };
    queue.join_queue(newcomer, terms, NOW).map(|(ticket, _)| ticket)
}

fn poll_at(queue: &SharedSlotQueue, ticket: &SlotTicket, now: Now) -> AskTurn {
    queue.poll_turn(&KEY, ticket, now, &Waker::from(Arc::new(NoWake)))
}

fn asks(queue: &SharedSlotQueue, ticket: &SlotTicket) -> bool {
    poll_at(queue, ticket, NOW) == AskTurn::Ask
}

/// Classes share the places of the queue, and have floors of them; the store hears of requests that found none.
#[test]
fn a_class_below_its_places_displaces_the_newest_of_another() {
    let text = "limits: { slots: { algorithm: concurrency, max_concurrent: 5, queue: 4, \
                shares: { by: account, classes: { gold: { least: 50% } } } } }\n\
                locations: [{ path: /, limits: slots, respond: { status: 200 } }]";
    let limit = config::parse(text, "test").unwrap().config.limits.remove(0);
    let (rule, queue) = (RateRule::rules_of(&limit).remove(0), SharedSlotQueue::default());
    let terms = SlotTerms { queue: 4, shares: limit.shares.as_deref(), ..TERMS };
    let join = |class| {
        let slot_key = SlotKey { class, ..KEY };
        let newcomer = SlotNewcomer { slot_key, rule: &rule, cost: 1, fair_hash: 0, since: NOW };
        queue.join_queue(newcomer, &terms, NOW).map(|(ticket, _)| ticket)
    };
    let others: Vec<SlotTicket> = (0..4).map(|_| join(1).unwrap()).collect();
    assert!(join(1).is_err() && join(1).is_err());
    let waiting = |class| queue.describe_turn(7, &SlotKey { class, ..KEY }, NOW).unwrap().waiting;
    assert_eq!(waiting(1), 6, "two found no place");
    let gold = [join(0).unwrap(), join(0).unwrap()];
    assert!(join(0).is_err(), "it has its half of the places");
    let state = |ticket, class| {
        queue.poll_turn(&SlotKey { class, ..KEY }, ticket, NOW, &Waker::from(Arc::new(NoWake)))
    };
    let left = others.iter().filter(|ticket| matches!(state(ticket, 1), AskTurn::Reject(_))).count();
    assert_eq!((left, queue.waiting_count()), (2, 4));
    gold.iter().for_each(|ticket| queue.leave_queue(&SlotKey { class: 0, ..KEY }, ticket, NOW));
    others[..2].iter().for_each(|ticket| queue.leave_queue(&SlotKey { class: 1, ..KEY }, ticket, NOW));
    assert!(queue.lines.lock().by_key.is_empty() && queue.waiting_count() == 0);
}

#[test]
fn one_waiter_at_a_time_asks_in_the_order_of_arrival() {
    let queue = SharedSlotQueue::default();
    let [first, second, third] = [0; 3].map(|fair_hash| join(&queue, fair_hash, &TERMS).unwrap());
    assert!(join(&queue, 0, &TERMS).is_err() && queue.waiting_count() == 3);
    assert!(!asks(&queue, &first), "nothing may be free");
    queue.note_freed(&KEY);
    assert!(!asks(&queue, &second) && asks(&queue, &first) && !asks(&queue, &second));
    queue.note_freed(&KEY);
    queue.end_refused(&KEY, &first);
    assert!(asks(&queue, &first), "slots were freed while it asked");
    queue.end_refused(&KEY, &first);
    assert!(!asks(&queue, &first));
    queue.note_freed(&KEY);
    assert!(asks(&queue, &first));
    queue.end_served(&KEY, &first, true, NOW);
    assert!(!asks(&queue, &third) && asks(&queue, &second));
    queue.end_served(&KEY, &second, false, NOW);
    assert!(!asks(&queue, &third));
    queue.leave_queue(&KEY, &third, NOW);
    assert!(!queue.has_waiters(&KEY) && queue.lines.lock().by_due.is_empty());
}

#[test]
fn a_waiter_that_leaves_while_it_asks_lets_the_next_one_ask() {
    let queue = SharedSlotQueue::default();
    let [first, second] = [0; 2].map(|fair_hash| join(&queue, fair_hash, &TERMS).unwrap());
    queue.note_freed(&KEY);
    assert!(asks(&queue, &first));
    queue.leave_queue(&KEY, &first, NOW);
    assert!(asks(&queue, &second));
    queue.end_served(&KEY, &second, true, NOW);
    assert_eq!(queue.waiting_count(), 0);
}

#[test]
fn a_wait_ends_and_a_displaced_waiter_is_rejected() {
    let queue = SharedSlotQueue::default();
    let late = join(&queue, 0, &TERMS).unwrap();
    assert_eq!(poll_at(&queue, &late, NOW), AskTurn::Wait(Some(Now(NOW.0 + 5_000))));
    assert!(matches!(poll_at(&queue, &late, Now(NOW.0 + 5_000)), AskTurn::Reject(_)));
    let terms = SlotTerms { is_fair: true, ..TERMS };
    let greedy = [7; 3].map(|fair_hash| join(&queue, fair_hash, &terms).unwrap());
    let modest = join(&queue, 8, &terms).unwrap();
    assert!(matches!(poll_at(&queue, &greedy[2], NOW), AskTurn::Reject(_)));
    queue.note_freed(&KEY);
    assert!(asks(&queue, &greedy[0]));
    queue.end_served(&KEY, &greedy[0], true, NOW);
    assert!(!asks(&queue, &greedy[1]) && asks(&queue, &modest), "they take turns");
}

const MS: u64 = 1_000_000;

fn newcomer(rule: &RateRule, key: u8, since: Now) -> SlotNewcomer<'_> {
    SlotNewcomer {
        slot_key: SlotKey { rule: 1, key: SharedKey([key; 16]), class: 0 },
        rule,
        cost: 1,
        fair_hash: 0,
        since,
    }
}

/// The keys to poll so many milliseconds later.
fn polled_at(queue: &SharedSlotQueue, max: usize, later: u64) -> Option<Vec<(u8, bool)>> {
    let (lines, _) = queue.take_polled(max, (7, 1), Now(NOW.0 + later * MS))?;
    Some(lines.iter().map(|line| (line.slot_key.key.0[0], line.turn.waited_us.is_some())).collect())
}

#[test]
fn keys_are_polled_in_turns_until_the_last_waiter_is_forgotten() {
    let queue = SharedSlotQueue::default();
    let polled = |later| polled_at(&queue, 2, later);
    assert!(polled(0).is_none());
    let own = rule();
    let joined = [0, 1, 2].map(|key| queue.join_queue(newcomer(&own, key, NOW), &TERMS, NOW).unwrap());
    assert_eq!(joined.map(|(_, starts_polls)| starts_polls), [true, false, false]);
    assert_eq!(polled(1), Some(vec![]));
    assert_eq!(polled(1_000), Some(vec![(0, true), (1, true)]));
    assert_eq!(polled(1_000), Some(vec![(2, true)]));
    assert_eq!(polled(1_000), Some(vec![]));
    queue.note_freed(&newcomer(&own, 0, NOW).slot_key);
    assert_eq!(polled(2_000), Some(vec![(1, true)]), "the waiter of the other asks already");
    for (key, (ticket, _)) in [0, 1, 2].into_iter().zip(joined) {
        queue.leave_queue(&newcomer(&own, key, NOW).slot_key, &ticket, NOW);
    }
    let later = Now(NOW.0 + 2_000 * MS);
    let (ticket, starts_polls) = queue.join_queue(newcomer(&own, 1, later), &TERMS, later).unwrap();
    assert!(!starts_polls, "the store is still to forget the others");
    let mut forgotten = polled(2_000).unwrap();
    forgotten.sort();
    assert_eq!(forgotten, [(0, false), (2, false)]);
    queue.leave_queue(&newcomer(&own, 1, NOW).slot_key, &ticket, NOW);
    assert_eq!(polled(2_000), Some(vec![(1, false)]));
    assert!(polled(2_000).is_none());
    assert!(queue.join_queue(newcomer(&own, 0, NOW), &TERMS, NOW).unwrap().1, "polls begin again");
}

/// The polls of a key in the time since its waiters had their last slot.
#[test]
fn polls_grow_rare_while_no_slot_comes() {
    let (queue, own) = (SharedSlotQueue::default(), rule());
    let (first, _) = queue.join_queue(newcomer(&own, 0, NOW), &TERMS, NOW).unwrap();
    queue.join_queue(newcomer(&own, 0, NOW), &TERMS, NOW).unwrap();
    // One of five slots is its share.
    let polls = |span: std::ops::Range<u64>| {
        span.filter(|later| !queue.take_polled(2, (7, 5), Now(NOW.0 + later * MS)).unwrap().0.is_empty())
            .count()
    };
    let (early, late) = (polls(0..100), polls(2_000..4_000));
    assert!((12..=40).contains(&early), "{early} in the first tenth of a second");
    assert!((38..=42).contains(&late), "{late} in two seconds");
    queue.end_served(&newcomer(&own, 0, NOW).slot_key, &first, false, Now(NOW.0 + 4_000 * MS));
    let again = polls(4_000..4_150);
    assert!((12..=40).contains(&again), "{again} after a slot");
}
