//! Saying yes allocates nothing: one request through the chain, for a key that is known.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::chain::{Ask, Chain, Verdict, Waiting};
use sluicegate::clock::Now;
use sluicegate::config::{
    self, Algorithm, Align, Cost, KeyPart, LeakyBucketRate, MissingKey, OnRejectPatch, Rate, TokenBucketRate,
};
use sluicegate::limit::{Limit, Units};
use sluicegate::table::Key;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting per thread.
struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn limit(algorithm: Algorithm) -> Arc<Limit> {
    let config = config::Limit {
        name: "test".into(),
        key: vec![KeyPart::Ip],
        missing_key: MissingKey::Ip,
        algorithm,
        tiers: vec![],
        fair_by: vec![],
        warm_up: None,
        cost: Cost::Units(1),
        methods: vec![],
        bypass: Default::default(),
        dry_run: false,
        on_reject: OnRejectPatch::default(),
    };
    Arc::new(Limit::new(0, &config, 1_000_000))
}

#[test]
fn the_admitting_path_allocates_nothing() {
    let rate = Rate { units: NonZeroU64::new(3).unwrap(), period: Duration::from_secs(1) };
    let chain = Chain::new(vec![
        limit(Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate, burst: 100 }; 2] }),
        limit(Algorithm::LeakyBucket {
            rates: vec![LeakyBucketRate { rate, burst: 100, queue: 10 }],
            max_wait: None,
        }),
        limit(Algorithm::Concurrency { max: 10 }),
    ]);
    allocates_nothing(&chain, 1);
}

#[test]
fn windows_admit_without_allocating() {
    let rates = vec![Rate { units: NonZeroU64::new(100).unwrap(), period: Duration::from_nanos(50) }];
    let chain = Chain::new(vec![
        limit(Algorithm::FixedWindow { rates: rates.clone(), align: Align::Clock }),
        limit(Algorithm::SlidingWindow { rates: rates.clone(), buckets: 10 }),
        limit(Algorithm::SlidingWindow { rates: rates.clone(), buckets: 60 }),
        limit(Algorithm::SlidingLog { rates }),
    ]);
    // Before it is watched, a log has grown as long as it gets.
    allocates_nothing(&chain, 100);
}

/// Fifty requests, a nanosecond apart, after `first` others.
fn allocates_nothing(chain: &Chain, first: u64) {
    let waiting = Arc::new(Waiting::new(10));
    let key = Key { id: 7, prefix: 7 };
    let request = |at: u64| {
        let ask = |_: &Limit| Ask::Units(Units { key, cost: 1, variant: 0, fair: 0 });
        let Verdict::Admit(mut passage) = chain.judge(Now(at), &waiting, ask).verdict else {
            return false;
        };
        let entered = passage.enter(Now(at)).is_ok();
        passage.forwarded();
        entered
    };
    assert!((0..first).all(|turn| request((1 << 40) - first + turn)));
    let before = ALLOCATIONS.with(Cell::get);
    assert!(before > 0, "the counter counts");
    let admitted = (0..50).filter(|turn| request((1 << 40) + turn)).count();
    let during = ALLOCATIONS.with(Cell::get) - before;
    assert_eq!((admitted, during), (50, 0));
}
