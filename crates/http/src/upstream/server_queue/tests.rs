//! Who gets the next place, and who gives one back.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::task::Wake;
use std::time::Duration;

use super::*;
use crate::upstream::server_state::{DOWN, EJECTED};
use crate::upstream::tests::{pass, reloaded, upstream};

fn queued(fields: &str) -> Arc<Upstream> {
    Arc::new(upstream(fields))
}

fn take(upstream: &Upstream) -> Option<ServerInFlight> {
    upstream.take_place(0, &[]).ok()
}

#[track_caller]
fn join(upstream: &Arc<Upstream>) -> ServerWaiter {
    upstream.join_queue(0, &[], Now::read_clock()).unwrap_or_else(|_| panic!("no wait"))
}

fn turn(waiter: &ServerWaiter) -> Option<ServerPlace> {
    match waiter.poll_turn(&Context::from_waker(Waker::noop())) {
        Poll::Ready(turn) => Some(turn),
        Poll::Pending => None,
    }
}

/// The place that the waiter has got.
#[track_caller]
fn got(waiter: &ServerWaiter) -> ServerInFlight {
    match turn(waiter) {
        Some(Ok(place)) => place,
        Some(_) => panic!("a turn without a place"),
        None => panic!("no turn"),
    }
}

#[test]
fn places_go_to_the_waiters_in_the_order_of_their_arrival() {
    let upstream = queued("servers: [a:1], max_connections: 2, queue: {}");
    let (one, two) = (take(&upstream).unwrap(), take(&upstream).unwrap());
    assert!(matches!(upstream.take_place(0, &[]), Err(NoServer::Full)));
    let waiters = [join(&upstream), join(&upstream), join(&upstream)];
    assert!(waiters.iter().all(|waiter| turn(waiter).is_none()));
    drop(one);
    // The place is taken on the way to the waiter, too.
    assert_eq!((upstream.servers[0].in_flight(), upstream.waiting_count()), (2, 2));
    assert!(take(&upstream).is_none());
    let first = got(&waiters[0]);
    assert!(turn(&waiters[1]).is_none() && turn(&waiters[2]).is_none());
    drop((two, first));
    let last = [got(&waiters[1]), got(&waiters[2])];
    assert_eq!((upstream.waiting_count(), upstream.servers[0].in_flight()), (0, 2));
    drop(last);
    assert_eq!(upstream.servers[0].in_flight(), 0);
    assert!(take(&upstream).is_some());
}

/// Between the end of a request and the hand-over of its place, a newcomer arrives.
#[test]
fn a_newcomer_stands_behind_those_that_wait() {
    let upstream = queued("servers: [a:1], max_connections: 1, queue: {}");
    std::mem::forget(take(&upstream));
    let first = join(&upstream);
    upstream.servers[0].state.in_flight.remove();
    assert!(take(&upstream).is_none());
    let newcomer = join(&upstream);
    let place = got(&first);
    assert!(turn(&newcomer).is_none());
    drop(place);
    got(&newcomer);
}

#[test]
fn leavers_give_up_their_position_and_their_place() {
    let upstream = queued("servers: [a:1], max_connections: 1, queue: { size: 3 }");
    let held = take(&upstream).unwrap();
    let [left, vanished, stays] = [join(&upstream), join(&upstream), join(&upstream)];
    assert!(matches!(upstream.join_queue(0, &[], Now::read_clock()), Err(Err(NoServer::Full))));
    drop(left);
    assert_eq!(upstream.waiting_count(), 2);
    let late = join(&upstream);
    drop(held);
    assert!(turn(&stays).is_none());
    // Its turn has come, and it does not take it.
    drop(vanished);
    drop(got(&stays));
    drop(got(&late));
    assert_eq!((upstream.waiting_count(), upstream.servers[0].in_flight()), (0, 0));
    drop((stays, late));
    let reading = upstream.state.queue.status(0);
    assert_eq!((reading.waits, reading.timeouts), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn waits_are_counted_with_their_time() {
    pass(1).await;
    let upstream = queued("servers: [a:1], max_connections: 1, queue: {}");
    let held = take(&upstream).unwrap();
    let (served, late) = (join(&upstream), join(&upstream));
    pass(2).await;
    drop(held);
    let place = got(&served);
    drop(served);
    pass(3).await;
    late.time_out();
    drop(place);
    let status = upstream.status_at(Now::read_clock()).queue.unwrap();
    assert_eq!((status.size, status.waiting, status.waits, status.timeouts), (1_000, 0, 2, 1));
    assert!((status.wait_seconds - 7.0).abs() < 0.001, "{status:?}");
}

#[test]
fn the_balancer_chooses_among_free_servers() {
    let upstream = queued(
        "servers: [a:1, b:1, { url: \"http://c:1\", backup: true }], max_connections: 1, queue: {}, \
         balance: round_robin",
    );
    let mut held: Vec<ServerInFlight> = (0..3).map(|_| take(&upstream).expect("a place")).collect();
    assert_eq!(held.iter().map(|place| place.server().position.0).collect::<Vec<_>>(), [0, 1, 2]);
    let waiter = join(&upstream);
    held.remove(1);
    assert_eq!(got(&waiter).server().position.0, 1);
}

#[test]
fn servers_that_go_down_and_come_up_tell_the_waiters() {
    let upstream = queued("servers: [a:1, b:1], max_connections: 1, queue: {}");
    upstream.servers[1].state.set_flag(DOWN);
    let held = take(&upstream).unwrap();
    let (first, second) = (join(&upstream), join(&upstream));
    upstream.servers[1].state.clear_flag(DOWN);
    upstream.servers[1].state.signal_queue();
    let taken = got(&first);
    assert_eq!(taken.server().position.0, 1);
    // The last usable server drains: the waiter gets the answer of any request.
    upstream.drain_servers("b:1", true, true);
    assert!(turn(&second).is_none(), "a is full, not down");
    upstream.drain_servers("a:1", true, true);
    assert!(matches!(turn(&second), Some(Err(NoServer::Down))));
    assert!(matches!(upstream.join_queue(0, &[], Now::read_clock()), Err(Err(NoServer::Down))));
    drop((held, taken));
    upstream.drain_servers("a:1", false, false);
    assert!(take(&upstream).is_some());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_ejection_is_seen_at_the_next_look() {
    pass(1).await;
    let upstream = queued("servers: [a:1, b:1], max_connections: 1, queue: {}");
    upstream.servers[1].state.mark_ejected(Now(Now::read_clock().0 + 5_000_000_000));
    let held = take(&upstream).unwrap();
    let waiter = join(&upstream);
    upstream.recheck_queue();
    assert!(turn(&waiter).is_none());
    pass(5).await;
    upstream.recheck_queue();
    assert_eq!(got(&waiter).server().position.0, 1);
    assert_eq!(upstream.servers[1].state.flags() & EJECTED, 0);
    drop(held);
}

/// A full server that is ejected, alone or with others, is full and not free.
#[test]
fn ejected_servers_have_no_more_places_than_others() {
    for servers in ["[a:1]", "[a:1, b:1]"] {
        let upstream = queued(&format!("servers: {servers}, max_connections: 1, queue: {{}}"));
        for server in &upstream.servers {
            server.state.mark_ejected(Now(u64::MAX));
        }
        let held: Vec<_> =
            upstream.servers.iter().map(|_| take(&upstream).expect("better than none")).collect();
        let waiter = join(&upstream);
        assert!(turn(&waiter).is_none());
        drop(held);
        got(&waiter);
    }
}

#[test]
fn a_place_that_the_first_waiter_cannot_use_goes_to_the_next() {
    let upstream = queued("servers: [a:1, b:1], max_connections: 1, queue: { size: 3 }");
    let mut held = [take(&upstream), take(&upstream)];
    held.sort_by_key(|place| place.as_ref().map(|place| place.server().position));
    let [a, b] = held;
    let retried =
        upstream.join_queue(0, &[ServerId(0)], Now::read_clock()).unwrap_or_else(|_| panic!("no wait"));
    let (first, second) = (join(&upstream), join(&upstream));
    drop(a);
    let a = got(&first);
    assert!(turn(&retried).is_none() && turn(&second).is_none());
    drop(b);
    assert_eq!(got(&retried).server().position.0, 1);
    assert_eq!(got(&second).server().position.0, 1);
    // While a retry waits for b, a newcomer may have a, even if no more may wait.
    let b = take(&upstream).unwrap();
    let retries: Vec<_> =
        (0..3).map(|_| upstream.join_queue(0, &[ServerId(0)], Now::read_clock()).ok().unwrap()).collect();
    drop(a);
    let Err(Ok(a)) = upstream.join_queue(0, &[], Now::read_clock()) else { panic!("no place") };
    drop((retries, a, b));
    assert_eq!(upstream.waiting_count(), 0);
}

#[test]
fn a_reload_raises_the_number_for_those_that_wait_already() {
    let old = queued("servers: [a:1], max_connections: 1, queue: {}");
    let held = take(&old).unwrap();
    let (first, second, third) = (join(&old), join(&old), join(&old));
    let new = Arc::new(reloaded(&old, "servers: [a:1, b:1], max_connections: 2, queue: {}"));
    let place = got(&first);
    assert!(turn(&second).is_none() && turn(&third).is_none());
    // Its gateway does not know the new server; a request of the next one does, and passes nobody by.
    let Err(Ok(elsewhere)) = new.join_queue(0, &[], Now::read_clock()) else { panic!("no place") };
    assert_eq!(elsewhere.server().position.0, 1);
    let Err(Ok(second_there)) = new.join_queue(0, &[], Now::read_clock()) else { panic!("no place") };
    let newcomer = join(&new);
    drop(held);
    drop(got(&second));
    drop(got(&third));
    assert!(turn(&newcomer).is_some());
    drop((place, elsewhere, second_there));
}

/// Requests of a gateway without a queue hold places that those of the next one wait for.
#[test]
fn a_reload_may_begin_and_end_the_queue() {
    let old = upstream("servers: [a:1], max_connections: 1");
    let held = old.servers[0].begin_request().unwrap();
    assert!(old.status_at(Now::read_clock()).queue.is_none());
    let new = Arc::new(reloaded(&old, "servers: [a:1], max_connections: 1, queue: {}"));
    let waiter = join(&new);
    let without = Arc::new(reloaded(&new, "servers: [a:1], max_connections: 1"));
    assert!(without.queue().is_none());
    assert!(turn(&waiter).is_none());
    drop(held);
    got(&waiter);
}

/// Wakes a thread that waits.
struct ThreadWaker(std::thread::Thread, AtomicBool);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// Waits as a task would; `None` after `longest`.
fn block(waiter: &ServerWaiter, longest: Duration) -> Option<ServerPlace> {
    let flag = Arc::new(ThreadWaker(std::thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(flag.clone());
    let start = Now::read_clock();
    loop {
        if let Poll::Ready(turn) = waiter.poll_turn(&Context::from_waker(&waker)) {
            return Some(turn);
        }
        while !flag.1.swap(false, Ordering::SeqCst) {
            let left = longest.saturating_sub(Duration::from_nanos(Now::read_clock().ns_since(start)));
            if left.is_zero() {
                return None;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// A request ends while another one enters the queue: one of them notices the other, whatever the moment.
#[test]
fn a_place_freed_at_the_moment_of_arrival_is_not_lost() {
    const ROUNDS: u32 = 20_000;
    let upstream = queued("servers: [a:1], max_connections: 1, queue: {}");
    let round = AtomicU32::new(0);
    let wait_for = |wanted: u32| {
        while round.load(Ordering::SeqCst) < wanted {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..ROUNDS {
                let held = take(&upstream).expect("the other thread has none");
                round.store(2 * number + 1, Ordering::SeqCst);
                (0..number % 64).for_each(|_| std::hint::spin_loop());
                drop(held);
                wait_for(2 * number + 2);
            }
        });
        for number in 0..ROUNDS {
            wait_for(2 * number + 1);
            (0..number % 41).for_each(|_| std::hint::spin_loop());
            match upstream.join_queue(0, &[], Now::read_clock()) {
                Err(Ok(place)) => drop(place),
                Err(_) => panic!("no place and no wait"),
                Ok(waiter) => {
                    let turn = block(&waiter, Duration::from_secs(10));
                    assert!(matches!(turn, Some(Ok(_))), "round {number}: a lost place");
                }
            }
            round.store(2 * number + 2, Ordering::SeqCst);
        }
    });
}

/// No wake-up is lost between threads, and never are more requests in flight than may be.
#[test]
fn threads_hand_each_other_places() {
    const ROUNDS: u32 = 4_000;
    let upstream = queued("servers: [a:1, b:1], max_connections: 1, queue: {}");
    let (busy, served, left) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let (upstream, busy, served, left) = (&upstream, &busy, &served, &left);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let place = match upstream.take_place(u64::from(round), &[]) {
                        Ok(place) => place,
                        _ => match upstream.join_queue(u64::from(round), &[], Now::read_clock()) {
                            Err(Ok(place)) => place,
                            Err(_) => panic!("no place and no wait"),
                            Ok(_) if (round + thread).is_multiple_of(7) => {
                                left.fetch_add(1, Ordering::SeqCst);
                                continue;
                            }
                            Ok(waiter) => match block(&waiter, Duration::from_secs(30)) {
                                Some(Ok(place)) => place,
                                _ => panic!("a waiter was forgotten"),
                            },
                        },
                    };
                    assert!(busy.fetch_add(1, Ordering::SeqCst) < 2, "more than both servers take");
                    std::hint::spin_loop();
                    busy.fetch_sub(1, Ordering::SeqCst);
                    served.fetch_add(1, Ordering::SeqCst);
                    drop(place);
                }
            });
        }
    });
    assert_eq!(served.into_inner() + left.into_inner(), 8 * ROUNDS);
    assert_eq!(upstream.waiting_count(), 0);
    assert!(upstream.servers.iter().all(|server| server.in_flight() == 0));
}
