//! Lock-free code of the product under loom, which runs every order of the threads' steps and every value that a
//! relaxed load may return.
//!
//! The files are compiled here a second time, with the atomic types of loom.

use loom::sync::{Arc, Mutex};
use loom::thread;
use sluicegate_base::clock::Now;

#[path = "../../crates/store/src/link/breaker.rs"]
#[expect(dead_code, reason = "the product uses more of it")]
mod breaker;
#[path = "../../crates/http/src/upstream/lock_free.rs"]
mod lock_free;

/// The atomic types of the compiled files.
///
/// Loom weakens sequentially consistent accesses to acquire and release; only its fences are in one order with each
/// other. A fence behind an update tells later fences of it, as the standard demands (C++20, atomics.order). The load
/// returns the last store, as all stores to its type are in that one order.
mod atomics {
    use loom::sync::atomic;
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};

    #[derive(Debug, Default)]
    pub struct AtomicU8(atomic::AtomicU8);

    #[derive(Debug, Default)]
    pub struct AtomicU32(atomic::AtomicU32);

    #[derive(Default)]
    pub struct AtomicUsize(atomic::AtomicUsize);

    fn updated<V>(before: V, order: Ordering) -> V {
        if order == Ordering::SeqCst {
            fence(Ordering::SeqCst);
        }
        before
    }

    impl AtomicU8 {
        pub fn load(&self, order: Ordering) -> u8 {
            self.0.load(order)
        }

        pub fn fetch_or(&self, bits: u8, order: Ordering) -> u8 {
            updated(self.0.fetch_or(bits, order), order)
        }

        pub fn fetch_and(&self, bits: u8, order: Ordering) -> u8 {
            updated(self.0.fetch_and(bits, order), order)
        }
    }

    impl AtomicU32 {
        pub fn load(&self, order: Ordering) -> u32 {
            self.0.load(order)
        }

        pub fn store(&self, value: u32, order: Ordering) {
            self.0.store(value, order);
        }

        pub fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            updated(self.0.fetch_add(value, order), order)
        }

        pub fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
            updated(self.0.fetch_sub(value, order), order)
        }

        pub fn fetch_update(
            &self,
            set: Ordering,
            get: Ordering,
            next: impl FnMut(u32) -> Option<u32>,
        ) -> Result<u32, u32> {
            self.0.fetch_update(set, get, next).map(|before| updated(before, set))
        }
    }

    impl AtomicUsize {
        pub fn load(&self, order: Ordering) -> usize {
            assert_eq!(order, Ordering::SeqCst);
            self.0.fetch_add(0, order)
        }

        pub fn store(&self, value: usize, order: Ordering) {
            assert_eq!(order, Ordering::SeqCst);
            self.0.store(value, order);
        }
    }
}

use breaker::Breaker;
use lock_free::{InFlightCount, ServerFlags, WaiterCount};

const DOWN: u8 = 1;

/// A queue before one server with one place, as `server_queue` has it: each step is one of its functions.
struct Queue {
    in_flight: InFlightCount,
    flags: ServerFlags,
    waiting: WaiterCount,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    waiters: usize,
    /// Waiters that were given a place.
    turns: u32,
}

impl Queue {
    /// With one request in flight.
    fn busy() -> Arc<Queue> {
        let queue = Queue {
            in_flight: InFlightCount::default(),
            flags: ServerFlags::default(),
            waiting: WaiterCount::default(),
            line: Mutex::default(),
        };
        queue.in_flight.add();
        Arc::new(queue)
    }

    fn find_place(&self) -> bool {
        self.flags.get() & DOWN == 0 && self.in_flight.get() < 1 && self.in_flight.try_add(1)
    }

    /// True if the newcomer has a place, false if it waits.
    fn join(&self) -> bool {
        let mut line = self.line.lock().unwrap();
        self.waiting.announce(line.waiters);
        self.hand_out(&mut line);
        let has_place = self.find_place();
        line.waiters += usize::from(!has_place);
        self.waiting.set(line.waiters);
        has_place
    }

    fn hand_out(&self, line: &mut Line) {
        while line.waiters > 0 && self.find_place() {
            line.waiters -= 1;
            line.turns += 1;
        }
    }

    fn notify(&self) {
        if !self.waiting.is_zero() {
            let mut line = self.line.lock().unwrap();
            self.hand_out(&mut line);
            self.waiting.set(line.waiters);
        }
    }

    fn end_request(&self) {
        self.in_flight.remove();
        self.notify();
    }

    /// No request waits beside a free place, and every request in flight has a place of its own.
    fn check(&self, taken: u32) {
        let line = self.line.lock().unwrap();
        let in_flight = self.in_flight.get();
        assert_eq!(in_flight, taken + line.turns);
        assert!(in_flight <= 1);
        assert!(line.waiters == 0 || in_flight == 1, "{} wait beside a free place", line.waiters);
        assert_eq!(self.waiting.is_zero(), line.waiters == 0);
    }
}

#[test]
fn a_newcomer_never_waits_beside_the_place_of_a_request_that_ends() {
    loom::model(|| {
        let queue = Queue::busy();
        let ending = thread::spawn({
            let queue = queue.clone();
            move || queue.end_request()
        });
        let has_place = queue.join();
        ending.join().unwrap();
        queue.check(u32::from(has_place));
    });
}

#[test]
fn a_place_goes_from_request_to_request() {
    loom::model(|| {
        let queue = Queue::busy();
        let newcomer = thread::spawn({
            let queue = queue.clone();
            move || {
                let has_place = queue.join();
                if has_place {
                    queue.end_request();
                }
            }
        });
        queue.end_request();
        let has_place = queue.join();
        newcomer.join().unwrap();
        queue.check(u32::from(has_place));
    });
}

#[test]
fn a_server_that_comes_up_is_seen_by_a_newcomer_or_sees_it() {
    loom::model(|| {
        let queue = Queue::busy();
        queue.flags.set(DOWN);
        queue.end_request();
        let health_check = thread::spawn({
            let queue = queue.clone();
            move || {
                assert!(queue.flags.clear(DOWN));
                queue.notify();
            }
        });
        let has_place = queue.join();
        health_check.join().unwrap();
        queue.check(u32::from(has_place));
    });
}

const NOW: Now = Now(1 << 60);

/// A breaker that the next failed call of the epoch opens.
fn failing_breaker() -> (Arc<Breaker>, u64) {
    let breaker = Breaker::default();
    breaker.close(NOW, false);
    let epoch = breaker.admit(NOW).expect("it is closed");
    assert!(!(0..4).any(|_| breaker.record_call(NOW, epoch, true)), "four failures are not enough");
    (Arc::new(breaker), epoch)
}

/// A call that fails beside the others.
fn fail_call(breaker: &Arc<Breaker>, epoch: u64) -> thread::JoinHandle<bool> {
    let breaker = breaker.clone();
    thread::spawn(move || breaker.record_call(NOW, epoch, true))
}

#[test]
fn one_of_two_failed_calls_opens_the_breaker() {
    loom::model(|| {
        let (breaker, epoch) = failing_breaker();
        let other_call = fail_call(&breaker, epoch);
        let opened = breaker.record_call(NOW, epoch, true);
        assert_ne!(opened, other_call.join().unwrap());
        assert_eq!((breaker.is_open(), breaker.epoch()), (true, epoch + 1));
    });
}

/// A call may fail while a probe closes the breaker again.
#[test]
fn every_opening_of_a_breaker_is_counted_and_reported_once() {
    loom::model(|| {
        let (breaker, epoch) = failing_breaker();
        let other_call = fail_call(&breaker, epoch);
        let mut openings = u64::from(breaker.record_call(NOW, epoch, true));
        breaker.close(NOW, true);
        openings += u64::from(other_call.join().unwrap());
        assert_eq!(openings, breaker.epoch() - epoch);
    });
}
