//! Bodies of one key and of several keys, on a paused clock.

use std::future::poll_fn;
use std::num::NonZeroU64;
use std::rc::Rc;

use tokio::time::Instant;

use super::*;
use sluicegate_model::{KeyPart, Rate};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn bandwidth(rate: u64, period: Duration, burst: u64) -> Arc<Bandwidth> {
    let rate = Rate::new(NonZeroU64::new(rate).unwrap(), period);
    Arc::new(Bandwidth::new(&model::BandwidthConfig { rate, burst, key: vec![KeyPart::Ip] }, 1000))
}

fn key(id: u128) -> CounterKey {
    CounterKey::new(id, 0)
}

fn share(bandwidth: &Arc<Bandwidth>, id: u128) -> BandwidthShare {
    BandwidthShare::new(bandwidth.clone(), key(id))
}

/// Sends `bytes` and returns the time it took.
async fn send(mut share: BandwidthShare, bytes: u64) -> Duration {
    let began = Instant::now();
    let mut left = bytes as usize;
    while left > 0 {
        let allowed = poll_fn(|cx| share.poll_allowance(left, cx)).await;
        assert!((1..=left).contains(&allowed));
        left -= allowed;
    }
    began.elapsed()
}

fn assert_about(took: Duration, ms: u64) {
    let near = ms.saturating_sub(1)..=ms + 3;
    assert!(near.contains(&(took.as_millis() as u64)), "{took:?} instead of {ms} ms");
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn bytes_above_the_burst_leave_at_the_rate() {
    let limit = bandwidth(MIB, SECOND, 4 * MIB);
    assert_eq!(send(share(&limit, 1), 4 * MIB).await, Duration::ZERO);
    assert_about(send(share(&limit, 1), 2 * MIB).await, 2_000);
    tokio::time::sleep(SECOND).await;
    assert_about(send(share(&limit, 1), 2 * MIB).await, 1_000);
    assert_eq!(send(share(&limit, 2), 4 * MIB).await, Duration::ZERO, "another key has a bucket of its own");
}

#[tokio::test(start_paused = true)]
async fn no_rate_is_lost_to_timers_that_count_milliseconds() {
    for (rate, period) in
        [(KIB, SECOND), (3, Duration::from_millis(1)), (100 * MIB, SECOND), (4 << 30, SECOND)]
    {
        let limit = bandwidth(rate, period, (rate / 50).max(KIB));
        send(share(&limit, 1), (rate / 50).max(KIB)).await;
        let bytes = rate * 20 * 1_000 / period.as_millis() as u64;
        let took = send(share(&limit, 1), bytes).await.as_millis() as i64;
        assert!((took - 20_000).abs() <= 20, "{rate} in {period:?}: {took} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn connections_of_one_key_take_turns_and_share_its_rate() {
    let limit = bandwidth(MIB, SECOND, 64 * KIB);
    let local = tokio::task::LocalSet::new();
    let sent = Rc::new(std::cell::RefCell::new([0u64; 5]));
    for one in 0..5 {
        let (mut share, sent) = (share(&limit, 1), sent.clone());
        local.spawn_local(async move {
            loop {
                // The last one wants little at a time.
                let wanted = if one == 4 { 10 * KIB as usize } else { 1 << 20 };
                let allowed = poll_fn(|cx| share.poll_allowance(wanted, cx)).await;
                sent.borrow_mut()[one] += allowed as u64;
            }
        });
    }
    local.run_until(tokio::time::sleep(10 * SECOND)).await;
    let sent = *sent.borrow();
    let all: u64 = sent.iter().sum();
    assert!((10 * MIB..10 * MIB + 80 * KIB).contains(&all), "{all}");
    assert!(sent.iter().all(|one| one.abs_diff(all / 5) < 100 * KIB), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_given_up_cancels_its_reservation() {
    let limit = bandwidth(100 * KIB, SECOND, 16 * KIB);
    send(share(&limit, 1), 16 * KIB).await;
    let before = limit.table.peek_entry(&key(1), |bucket, (), _| bucket.0);
    let mut shares: Vec<BandwidthShare> = (0..100).map(|_| share(&limit, 1)).collect();
    poll_fn(|cx| {
        assert!(shares.iter_mut().all(|share| share.poll_allowance(MIB as usize, cx).is_pending()));
        Poll::Ready(())
    })
    .await;
    assert!(limit.table.peek_entry(&key(1), |bucket, (), _| bucket.0) > before);
    drop(shares);
    assert_eq!(limit.table.peek_entry(&key(1), |bucket, (), _| bucket.0), before);
    assert_about(send(share(&limit, 1), 10 * KIB).await, 100);
}

#[tokio::test(start_paused = true)]
async fn a_full_table_shares_buckets_and_drops_none() {
    let rate = Rate::new(NonZeroU64::new(KIB).unwrap(), SECOND);
    let config = model::BandwidthConfig { rate, burst: 10 * KIB, key: vec![KeyPart::Ip] };
    let limit = Arc::new(Bandwidth::new(&config, 4));
    for id in 1..=4 {
        assert_eq!(send(share(&limit, id), 10 * KIB).await, Duration::ZERO);
    }
    assert_eq!(send(share(&limit, 5), 10 * KIB).await, Duration::ZERO);
    assert_about(send(share(&limit, 6), KIB).await, 1_000);
}
