//! The reporting task on virtual time, with a scripted store.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU64;

use super::*;
use crate::ban::ClientIdentity;
use crate::ban::outbox::CLIENTS_MAX;
use sluicegate_model::{self as model, BanKey, Rate};
use sluicegate_observe::metrics::MetricLabels;

const MINUTE_US: u64 = 60_000_000;
const BAN: Ban = Ban { left_us: 5 * MINUTE_US, lasts_us: 10 * MINUTE_US, repeats: 1 };

/// Bans after three strikes in a minute: ten minutes at first, an hour at most.
fn bans() -> Bans {
    let config = model::BansConfig {
        after: Rate::new(NonZeroU64::new(3).unwrap(), Duration::from_secs(60)),
        first: Duration::from_secs(600),
        longest: Duration::from_secs(3600),
        key: BanKey::Ip,
        strikes: model::StrikeRules::default(),
    };
    Bans::adopt_from(None, &config, 100_000, true)
}

fn metrics() -> Arc<Metrics> {
    Metrics::new(MetricLabels { workers: 1, ..MetricLabels::default() })
}

fn client() -> ClientIdentity {
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    ClientIdentity { ip, network: ip.into(), account: None }
}

fn key(id: u64) -> CounterKey {
    local_key(u128::from(id))
}

fn queue(bans: &Bans, id: u64) -> Option<StrikeOutcome> {
    bans.queue_strike(&key(id), Now::read_clock(), client)
}

fn left_s(bans: &Bans, id: u64) -> Option<u64> {
    bans.ban_left_ns(&key(id), Now::read_clock()).map(|left| left / 1_000_000_000)
}

/// The clients and strikes that one call reports.
type ReportedStrikes = Vec<(u64, u32)>;

fn reported_strikes(packed: &PackedCall) -> ReportedStrikes {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let strikes = |bytes: &[u8]| u32::from_le_bytes(bytes[24..28].try_into().unwrap());
    let unreported = reported_bans(packed).len();
    let reports = &packed.body[48..packed.body.len() - 36 * unreported];
    let mut reported: ReportedStrikes = reports.chunks(28).map(|one| (number(one), strikes(one))).collect();
    reported.sort_unstable();
    reported
}

/// The clients with a ban that one call reports.
fn reported_bans(packed: &PackedCall) -> Vec<u64> {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let count = u32::from_le_bytes(packed.body[44..48].try_into().unwrap()) as usize;
    packed.body[packed.body.len() - 36 * count..].chunks(36).map(number).collect()
}

/// An answer of the store named 1.
fn answer(known: u64, is_more: bool, judgements: &[Option<Ban>], announced: &[(u64, Ban)]) -> Vec<u8> {
    answer_of(1, known, is_more, judgements, announced)
}

fn answer_of(
    store: u64,
    known: u64,
    is_more: bool,
    judgements: &[Option<Ban>],
    announced: &[(u64, Ban)],
) -> Vec<u8> {
    let double = |us: u64| (us as f64).to_le_bytes();
    let ban =
        |ban: &Ban| [&double(ban.left_us)[..], &double(ban.lasts_us), &ban.repeats.to_le_bytes()].concat();
    let mut bytes = [&double(known)[..], &double(store), &[u8::from(is_more)]].concat();
    for judgement in judgements {
        match judgement {
            None => bytes.push(0),
            Some(started) => bytes.extend([&[2], &ban(started)[..]].concat()),
        }
    }
    for (id, announced) in announced {
        bytes.extend([&u128::from(*id).to_le_bytes()[..], &ban(announced)].concat());
    }
    bytes
}

fn nothing(packed: &PackedCall) -> Vec<u8> {
    answer(0, false, &vec![None; reported_strikes(packed).len()], &[])
}

/// Runs the task for `seconds` and returns the strikes that each call reported.
async fn run(
    bans: &Bans,
    metrics: &Metrics,
    seconds: f64,
    say: impl Fn(&PackedCall) -> Result<Vec<u8>, StoreFault>,
) -> Vec<ReportedStrikes> {
    let calls = RefCell::new(Vec::new());
    let call = async |packed: &PackedCall| {
        calls.borrow_mut().push(reported_strikes(packed));
        say(packed)
    };
    let task = share_bans_by(bans, metrics, "sg", call);
    tokio::time::timeout(Duration::from_secs_f64(seconds), task).await.unwrap_err();
    calls.into_inner()
}

fn count(metrics: &Arc<Metrics>, what: &str) -> u64 {
    let name = format!("sluicegate_{what}_total ");
    let page = metrics.render();
    let line = page.lines().find_map(|line| line.strip_prefix(&name)).expect("the series");
    line.parse().expect("a number")
}

#[tokio::test(start_paused = true)]
async fn strikes_are_reported_together_and_soon() {
    let bans = bans();
    for id in [1, 2, 1, 1, 2] {
        assert_eq!(queue(&bans, id), Some(StrikeOutcome::Counted));
    }
    let calls = run(&bans, &metrics(), 0.15, |packed| Ok(nothing(packed))).await;
    let reported: Vec<_> = calls.into_iter().filter(|reported| !reported.is_empty()).collect();
    assert_eq!(reported, [[(1, 3), (2, 2)]]);
    assert_eq!(
        (left_s(&bans, 1), bans.active_count(Now::read_clock())),
        (None, 0),
        "only the store starts bans"
    );
}

#[tokio::test(start_paused = true)]
async fn the_store_is_asked_again_and_again_and_not_too_often() {
    let calls = run(&bans(), &metrics(), 30.0, |packed| Ok(nothing(packed))).await;
    assert!((95..=155).contains(&calls.len()), "{} calls in 30 s", calls.len());
    let failing = run(&bans(), &metrics(), 30.0, |_| Err(StoreFault::Down)).await;
    assert!((95..=155).contains(&failing.len()), "{} calls in 30 s", failing.len());
}

#[tokio::test(start_paused = true)]
async fn a_call_is_about_a_hundred_clients_at_most() {
    let bans = bans();
    (0..250).for_each(|id| assert_eq!(queue(&bans, id), Some(StrikeOutcome::Counted)));
    let calls = run(&bans, &metrics(), 0.05, |packed| Ok(nothing(packed))).await;
    let sizes: Vec<_> = calls.iter().map(Vec::len).filter(|size| *size > 0).collect();
    assert_eq!(sizes, [100, 100, 50], "at once: there is enough for a call");
}

#[tokio::test(start_paused = true)]
async fn a_ban_that_starts_is_installed_once_and_counted_once() {
    let (bans, metrics) = (bans(), metrics());
    queue(&bans, 1);
    run(&bans, &metrics, 0.5, |packed| {
        let judgements = vec![Some(BAN); reported_strikes(packed).len()];
        Ok(answer(7, false, &judgements, &[(1, BAN), (2, BAN)]))
    })
    .await;
    assert_eq!((left_s(&bans, 1), left_s(&bans, 2)), (Some(299), Some(299)));
    assert_eq!(bans.active_count(Now::read_clock()), 2);
    assert_eq!((count(&metrics, "bans"), count(&metrics, "bans_learned")), (1, 1));
    assert_eq!(queue(&bans, 1), Some(StrikeOutcome::Banned), "not reported while it is banned");
    tokio::time::advance(Duration::from_secs(300)).await;
    assert_eq!((left_s(&bans, 1), bans.active_count(Now::read_clock())), (None, 0));
}

/// A call may be under way while an operator lifts the ban.
#[tokio::test(start_paused = true)]
async fn a_ban_that_is_lifted_here_is_not_learned_again() {
    let (bans, calls) = (bans(), RefCell::new(0));
    let client = SharedKey(1_u128.to_le_bytes());
    run(&bans, &metrics(), 0.35, |packed| {
        *calls.borrow_mut() += 1;
        match *calls.borrow() {
            1 => {
                assert!(bans.share_lift(client, Now(Now::read_clock().0 + 300_000_000_000)));
                Ok(answer(7, false, &[], &[(1, BAN), (2, BAN)]))
            }
            _ => Ok(nothing(packed)),
        }
    })
    .await;
    assert!(*calls.borrow() > 1, "the store was told");
    assert_eq!((left_s(&bans, 1), left_s(&bans, 2)), (None, Some(299)));
}

#[tokio::test(start_paused = true)]
async fn more_is_asked_for_at_once() {
    let (bans, page) = (bans(), RefCell::new(0));
    let calls = run(&bans, &metrics(), 0.01, |_| {
        let mut page = page.borrow_mut();
        *page += 1;
        let announced: Vec<_> = (0..1000).map(|id| (*page * 1000 + id, BAN)).collect();
        Ok(answer(*page, *page < 5, &[], &announced))
    })
    .await;
    assert_eq!((calls.len(), bans.active_count(Now::read_clock())), (5, 5000));
}

#[tokio::test(start_paused = true)]
async fn strikes_that_cannot_be_reported_count_here() {
    for fault in [
        StoreFault::Down,
        StoreFault::Busy,
        StoreFault::Unready,
        StoreFault::Full,
        StoreFault::Unauthorized,
        StoreFault::Moving,
        StoreFault::CommandError,
    ] {
        let (bans, metrics) = (bans(), metrics());
        (0..2).for_each(|_| {
            queue(&bans, 1);
        });
        run(&bans, &metrics, 0.15, |_| Err(fault)).await;
        assert_eq!(left_s(&bans, 1), None);
        queue(&bans, 1);
        run(&bans, &metrics, 0.15, |_| Err(fault)).await;
        assert_eq!((left_s(&bans, 1), count(&metrics, "bans")), (Some(599), 1), "{fault:?}");
        // It stays active until its end, although the store does not know it.
        run(&bans, &metrics, 598.0, |packed| Ok(nothing(packed))).await;
        assert_eq!(left_s(&bans, 1), Some(1));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(left_s(&bans, 1), None);
    }
}

#[tokio::test(start_paused = true)]
async fn strikes_that_the_store_may_have_counted_count_nowhere_else() {
    let says = [Some(StoreFault::Timeout), Some(StoreFault::Broken), Some(StoreFault::Garbled), None];
    for say in says {
        let bans = bans();
        (0..10).for_each(|_| {
            queue(&bans, 1);
        });
        let calls = run(&bans, &metrics(), 5.0, |_| say.map_or_else(|| Ok(b"no answer".to_vec()), Err)).await;
        assert_eq!(calls.iter().filter(|reported| !reported.is_empty()).count(), 1, "reported once");
        assert_eq!(left_s(&bans, 1), None);
    }
}

#[tokio::test(start_paused = true)]
async fn queued_strikes_are_bounded() {
    let bans = bans();
    (0..CLIENTS_MAX as u64).for_each(|id| assert_eq!(queue(&bans, id), Some(StrikeOutcome::Counted)));
    assert_eq!(queue(&bans, 1 << 40), Some(StrikeOutcome::Uncounted));
    assert_eq!(
        queue(&bans, 1),
        Some(StrikeOutcome::Counted),
        "there is room for clients with queued strikes"
    );
    let calls = run(&bans, &metrics(), 0.01, |packed| Ok(nothing(packed))).await;
    assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), CLIENTS_MAX);
    assert_eq!(queue(&bans, 1 << 40), Some(StrikeOutcome::Counted));
}

#[test]
fn strikes_of_many_threads_are_all_queued() {
    let bans = bans();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..10_000).for_each(|n| {
                    queue(&bans, n % 7);
                })
            });
        }
    });
    let mut strikes = new_strike_map();
    std::mem::swap(&mut *bans.state.outbox.as_ref().unwrap().clients.lock(), &mut strikes);
    assert_eq!(strikes.values().map(|entry| entry.strikes).sum::<u32>(), 40_000);
}

/// Bans clients while the store is down.
async fn ban_here(bans: &Bans, metrics: &Metrics, ids: std::ops::Range<u64>) {
    for id in ids.clone() {
        (0..3).for_each(|_| assert_eq!(queue(bans, id), Some(StrikeOutcome::Counted)));
    }
    run(bans, metrics, 0.15, |_| Err(StoreFault::Down)).await;
    assert!(ids.into_iter().all(|id| left_s(bans, id).is_some()));
}

/// Runs the task for `seconds` and returns the bans that each call reported.
async fn run_for_bans(
    bans: &Bans,
    seconds: f64,
    say: impl Fn(&PackedCall) -> Result<Vec<u8>, StoreFault>,
) -> Vec<Vec<u64>> {
    let calls = RefCell::new(Vec::new());
    run(bans, &metrics(), seconds, |packed| {
        calls.borrow_mut().push(reported_bans(packed));
        say(packed)
    })
    .await;
    calls.into_inner().into_iter().filter(|reported| !reported.is_empty()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_ban_begun_during_an_outage_is_reported_once_the_store_answers() {
    let (bans, metrics) = (bans(), metrics());
    ban_here(&bans, &metrics, 1..2).await;
    for fault in [StoreFault::Down, StoreFault::Timeout, StoreFault::Full] {
        let reported = run_for_bans(&bans, 1.0, |_| Err(fault)).await;
        assert!(reported.len() > 2 && reported.iter().all(|reported| *reported == [1]), "{reported:?}");
    }
    // It is not forgotten either when the task ends during a report.
    let silent = share_bans_by(&bans, &metrics, "sg", async |_: &PackedCall| std::future::pending().await);
    tokio::time::timeout(Duration::from_secs(1), silent).await.unwrap_err();
    assert_eq!(run_for_bans(&bans, 5.0, |packed| Ok(nothing(packed))).await, [[1]]);
    assert_eq!(count(&metrics, "bans_learned"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_ended_ban_is_not_reported() {
    let (bans, metrics) = (bans(), metrics());
    ban_here(&bans, &metrics, 1..2).await;
    tokio::time::advance(Duration::from_secs(600)).await;
    assert!(run_for_bans(&bans, 1.0, |packed| Ok(nothing(packed))).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_emptied_store_gets_all_bans_but_those_it_announces() {
    let bans = bans();
    let store = RefCell::new(1);
    let say = |_: &PackedCall| match *store.borrow() {
        1 => Ok(answer_of(1, 9, false, &[], &[(1, BAN), (2, BAN)])),
        store => Ok(answer_of(store, 12, false, &[], &[(2, BAN), (3, BAN)])),
    };
    assert!(run_for_bans(&bans, 1.0, say).await.is_empty());
    store.replace(0);
    assert!(run_for_bans(&bans, 1.0, say).await.is_empty(), "a store that cannot name its memory");
    store.replace(2);
    assert_eq!(run_for_bans(&bans, 2.0, say).await, [[1]], "also by the next task");
    // A store that was restored to an earlier state: its numbers are lower.
    let back = |_: &PackedCall| Ok(answer_of(2, 5, false, &[], &[]));
    let mut reported = run_for_bans(&bans, 2.0, back).await;
    reported[0].sort_unstable();
    assert_eq!(reported, [[1, 2, 3]]);
}

#[tokio::test(start_paused = true)]
async fn many_bans_are_reported_a_hundred_at_a_time_and_soon() {
    let (bans, metrics) = (bans(), metrics());
    ban_here(&bans, &metrics, 0..250).await;
    let reported = run_for_bans(&bans, 0.1, |packed| Ok(nothing(packed))).await;
    assert_eq!(reported.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 50]);
    // Without answers the task does not hurry.
    ban_here(&bans, &metrics, 1000..1250).await;
    let failing = run_for_bans(&bans, 3.0, |_| Err(StoreFault::Down)).await;
    assert!(failing.len() < 20, "{} calls", failing.len());
}

#[tokio::test(start_paused = true)]
async fn a_lifted_ban_is_named_and_not_reported_again() {
    let (bans, metrics) = (bans(), metrics());
    let ban = Ban { left_us: 600_000_000, lasts_us: 600_000_000, repeats: 3 };
    queue(&bans, 1);
    let start = |packed: &PackedCall| {
        let started: Vec<_> = reported_strikes(packed).iter().map(|_| Some(ban)).collect();
        Ok(answer(1, false, &started, &[]))
    };
    run(&bans, &metrics, 0.3, start).await;
    let now = Now::read_clock();
    let listed = bans.list_bans(now);
    assert_eq!((listed.len(), listed[0].target.to_string().as_str(), listed[0].repeats), (1, "127.0.0.1", 3));
    let lifted = bans.lift_ban(&key(1), now).expect("a ban");
    assert_eq!(lifted.in_store, Some(SharedKey(1_u128.to_le_bytes())));
    assert_eq!((left_s(&bans, 1), bans.active_count(now), bans.list_bans(now)), (None, 0, vec![]));
    assert_eq!(bans.lift_ban(&key(1), now), None);
    // Another store lost all bans: those that are left are reported to it.
    let reported = RefCell::new(Vec::new());
    run(&bans, &metrics, 1.0, |packed| {
        reported.borrow_mut().extend(reported_bans(packed));
        Ok(answer_of(2, 1, false, &[], &[]))
    })
    .await;
    assert_eq!(*reported.borrow(), Vec::<u64>::new());
}
