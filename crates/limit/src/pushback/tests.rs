//! Pauses and the pace after them, on a clock of plain numbers and on tokio's.

use std::time::Duration;

use super::pace::Pace;
use super::*;
use crate::table::persistent::PersistentEntry;
use sluicegate_base::clock::ClockShift;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const KEY: CounterKey = CounterKey::new(7, 7);
/// A moment at the beginning of a second.
const T0: u64 = 1_000 * SECOND;
/// The interval of a limit of 400/s.
const FRONT: u64 = SECOND / 400;

fn pauses() -> Arc<Pauses> {
    Arc::new(Pauses::new(1_000, "test".into()))
}

fn passes(pauses: &Arc<Pauses>, at: u64) -> bool {
    matches!(pauses.enter(KEY, Now(at), None), PauseDecision::Pass)
}

/// Milliseconds until a request that does not wait may pass; it is refused.
fn refusal_ms(pauses: &Arc<Pauses>, at: u64) -> u64 {
    match pauses.enter(KEY, Now(at), None) {
        PauseDecision::Refuse(paused) => paused.wait_ns / MS,
        _ => panic!("not refused"),
    }
}

/// Lets `count` requests pass evenly within the second before T0.
fn load(pauses: &Arc<Pauses>, count: u64) {
    (0..count).for_each(|index| assert!(passes(pauses, T0 - SECOND + index * SECOND / count)));
}

fn pause(pauses: &Pauses, at: u64, span: u64) -> bool {
    pauses.record_pause(&KEY, Now(at), Now(at), span, 429).began
}

/// Requests that pass within each of the next hundred-millisecond spans, when one comes each millisecond.
fn passed_per_span<const N: usize>(pauses: &Arc<Pauses>, from: u64) -> [u64; N] {
    std::array::from_fn(|span| {
        let start = from + span as u64 * 100 * MS;
        (0..100).filter(|ms| passes(pauses, start + ms * MS)).count() as u64
    })
}

#[test]
fn without_a_pause_every_request_passes() {
    let pauses = pauses();
    assert!((0..5_000).all(|index| passes(&pauses, T0 + index)));
    assert_eq!(pauses.counts(), PushbackCounts { pauses: 0, waits: 0, refused: 0 });
    assert_eq!(pauses.find_pause(&KEY, Now(T0 + 5_000)), None);
}

#[test]
fn a_pause_refuses_with_the_exact_time() {
    let pauses = pauses();
    load(&pauses, 300);
    assert!(pause(&pauses, T0, 2 * SECOND));
    for ms in [0, 1, 1_500, 1_999] {
        assert_eq!(refusal_ms(&pauses, T0 + ms * MS), 2_000 - ms);
    }
    assert_eq!(pauses.pause_left_ns(Now(T0 + SECOND)), SECOND);
    let other = CounterKey::new(8, 7);
    assert!(matches!(pauses.enter(other, Now(T0), None), PauseDecision::Pass), "another key");
    let found = pauses.find_pause(&KEY, Now(T0)).unwrap();
    assert_eq!(found, Pause { until: Now(T0 + 2 * SECOND), wait_ns: 2 * SECOND, status: 429 });
    assert!(passes(&pauses, T0 + 2 * SECOND));
}

#[test]
fn the_pace_climbs_from_a_third_to_the_whole_within_a_second() {
    let pauses = pauses();
    load(&pauses, 300);
    pause(&pauses, T0, SECOND);
    let passed: [u64; 12] = passed_per_span(&pauses, T0 + SECOND);
    // 300/s · (1/3 + 2/3·t): 11, 13, 15 … in each tenth of a second.
    for (index, count) in passed[..10].iter().enumerate() {
        assert!(count.abs_diff(11 + 2 * index as u64) <= 1, "{passed:?}");
    }
    assert!(passed[..10].iter().sum::<u64>().abs_diff(200) <= 2, "{passed:?}");
    assert_eq!(passed[11], 100, "then every request passes");
}

#[test]
fn a_longer_pause_extends_and_a_shorter_one_does_not() {
    let pauses = pauses();
    load(&pauses, 100);
    assert!(pause(&pauses, T0, SECOND));
    assert!(!pause(&pauses, T0 + 10 * MS, 5 * SECOND) && !pause(&pauses, T0 + 20 * MS, SECOND));
    assert_eq!((refusal_ms(&pauses, T0 + 20 * MS), pauses.counts().pauses), (4_990, 1));
    assert!(!pause(&pauses, T0 + 30 * MS, u64::MAX));
    assert!(pauses.find_pause(&KEY, Now(T0 + 40 * MS)).unwrap().wait_ns > u64::MAX / 2, "saturated");
}

#[test]
fn a_late_refusal_of_an_early_request_is_no_repeated_pause() {
    let pauses = pauses();
    load(&pauses, 400);
    pause(&pauses, T0, 20 * MS);
    let resumed = T0 + 1_030 * MS;
    let before: [u64; 10] = passed_per_span(&pauses, T0 + 20 * MS);
    assert!(before.iter().sum::<u64>() > 250, "{before:?}");
    // Its request was sent before the first pause.
    assert!(!pauses.record_pause(&KEY, Now(T0 - MS), Now(resumed), 20 * MS, 429).began);
    assert_eq!((pauses.counts().pauses, refusal_ms(&pauses, resumed)), (1, 20));
}

/// The pace after a pause, in requests a second, when nothing is in front.
fn rate_at(pace: &Pace, since: u64) -> u64 {
    SECOND / (pace.moment_after(since, 1, NO_FRONT) - since)
}

#[test]
fn a_repeated_pause_lowers_the_whole_and_it_grows_back() {
    let repeated = |passed| {
        let pace = Pace::after_pause(400);
        pace.after_repeated_pause(passed, 3 * SECOND, 2 * SECOND)
    };
    // 720 in three seconds are 240/s, and in the two without the pause 360/s: 288/s have the middle interval.
    let pace = repeated(720);
    assert_eq!((rate_at(&pace, SECOND), pace.is_whole(SECOND)), (300, false));
    assert_eq!(rate_at(&repeated(0), SECOND), 200, "at most half as fast as before");
    assert_eq!(rate_at(&repeated(9_000), SECOND), 400, "never faster than before");
    let slow = repeated(0);
    assert_eq!((rate_at(&slow, 6 * SECOND), rate_at(&slow, 11 * SECOND)), (207, 259));
    assert!(!slow.is_whole(15 * SECOND) && slow.is_whole(16 * SECOND));
    assert_eq!(rate_at(&slow, 20 * SECOND), 412, "then the peak grows, where requests still wait");
}

#[test]
fn the_pace_follows_the_limit_in_front_if_that_is_faster() {
    let pace = Pace::after_pause(50);
    let rate = |front| SECOND / (pace.moment_after(2 * SECOND, 1, front) - 2 * SECOND);
    assert_eq!((rate(FRONT), rate(NO_FRONT), rate(SECOND)), (400, 50, 50));
}

/// As another gateway tells it, also again and again.
fn adopt(pauses: &Pauses, began: u64, now: u64, until: u64) -> PauseChange {
    pauses.adopt_pause(&KEY, Now(began), Now(now), Now(until), 503)
}

#[test]
fn a_pause_of_another_gateway_holds_here_and_is_adopted_once() {
    let pauses = pauses();
    load(&pauses, 300);
    let [later, end] = [T0 + 300 * MS, T0 + 2 * SECOND];
    let change = adopt(&pauses, T0, later, end);
    assert_eq!(change, PauseChange { began: true, gained_ns: 1_700 * MS });
    assert_eq!(
        pauses.find_pause(&KEY, Now(later)).map(|pause| (pause.until.0, pause.status)),
        Some((end, 503))
    );
    for now in [later, later + SECOND, end - 1] {
        assert_eq!(adopt(&pauses, T0, now, end), PauseChange { began: false, gained_ns: 0 });
    }
    assert_eq!(pauses.counts().pauses, 1);
    // A third of its own 210/s of the second before, which is the share of this gateway.
    let passed: [u64; 1] = passed_per_span(&pauses, end);
    assert!((7..=9).contains(&passed[0]), "{passed:?}");
}

#[test]
fn a_pause_of_another_gateway_that_began_before_is_no_repeated_one() {
    let pauses = pauses();
    load(&pauses, 400);
    pause(&pauses, T0, 20 * MS);
    let change = adopt(&pauses, T0 - 10 * MS, T0 + 200 * MS, T0 + 300 * MS);
    assert_eq!((change, pauses.counts().pauses), (PauseChange { began: false, gained_ns: 100 * MS }, 1));
}

#[test]
fn a_pause_of_another_gateway_reaches_no_key_without_an_entry_of_its_own() {
    let pauses = Arc::new(Pauses::new(1, "test".into()));
    load(&pauses, 1);
    pause(&pauses, T0, SECOND);
    let enter =
        |id, prefix| matches!(pauses.enter(CounterKey::new(id, prefix), Now(T0), None), PauseDecision::Pass);
    assert!((100..200).all(|id| enter(id, 1)));
    let told = CounterKey::new(100, 1);
    assert!(!pauses.adopt_pause(&told, Now(T0), Now(T0), Now(T0 + SECOND), 429).began);
    assert!(enter(100, 1) && enter(101, 1));
}

#[test]
fn another_process_takes_over_pauses_and_their_pace() {
    let [before, after] = [pauses(), pauses()];
    load(&before, 300);
    pause(&before, T0, 2 * SECOND);
    let encoded = |pauses: &Pauses| {
        pauses.table.peek_entry(&KEY, |entry, queues, ()| {
            let mut bytes = Vec::new();
            entry.encode_entry(queues, &mut bytes);
            bytes
        })
    };
    let bytes = encoded(&before);
    // Its clock is ten seconds behind, and the hand-over took half a second.
    let shift = ClockShift::new(Now(T0 + SECOND), SECOND / 2, Now(T0 - 9 * SECOND + SECOND / 2));
    let restore = |mut bytes: &[u8]| {
        let entry = PushbackEntry::decode_entry(&mut bytes, shift, &mut Default::default());
        entry.filter(|_| bytes.is_empty())
    };
    let entry = restore(&bytes).unwrap();
    after.table.update_entry(&KEY, Now(T0 - 9 * SECOND), |own, _, (), _| *own = entry);
    after.count_restored();
    assert_eq!(after.pause_left_ns(Now(T0 - 9 * SECOND)), SECOND);
    assert_eq!(refusal_ms(&after, T0 - 9 * SECOND), 1_000);
    let passed: [u64; 2] = passed_per_span(&after, T0 - 8 * SECOND);
    assert!(passed[0].abs_diff(11) <= 1 && passed[1].abs_diff(13) <= 1, "{passed:?}");
    assert!(encoded(&pauses()).is_empty(), "a key without a stop");
    assert!(!restore(&[]).unwrap().is_paused(Now(0)));
    for cut in 1..bytes.len() {
        assert!(restore(&bytes[..cut]).is_none(), "{cut} bytes");
    }
    for pace in [[0, 0], [0, 1], [1, 0], [1, 2], [u64::MAX, 1]] {
        let pace = pace.map(u64::to_le_bytes).concat();
        assert!(restore(&[&bytes[..30], &pace, &[0]].concat()).is_none());
    }
}

#[test]
fn moments_add_up() {
    for passed in [400, 3, 1] {
        let (pace, front) = (Pace::after_pause(passed), SECOND / passed);
        let mut at = 0;
        for count in 1..500 {
            let next = pace.moment_after(at, 1, front);
            assert!(next > at);
            at = next;
            // Each step rounds up by a few nanoseconds.
            let at_once = pace.moment_after(0, count, front);
            assert!(at.abs_diff(at_once) <= 4 * count, "{pace:?} {count}: {at_once} and {at}");
        }
    }
    let slowest = Pace::after_pause(0);
    assert_eq!(slowest.moment_after(u64::MAX, u64::MAX, NO_FRONT), u64::MAX);
    assert_eq!(slowest.moment_after(0, u64::MAX, NO_FRONT), u64::MAX);
}

#[test]
fn a_pause_is_forgotten_after_a_minute() {
    let pauses = pauses();
    load(&pauses, 2);
    pause(&pauses, T0, SECOND);
    let later = T0 + 62 * SECOND;
    (0..400).for_each(|index| assert!(passes(&pauses, later + index * SECOND / 400)));
    pause(&pauses, later + SECOND, SECOND);
    let passed: [u64; 10] = passed_per_span(&pauses, later + 2 * SECOND);
    assert!(passed.iter().sum::<u64>().abs_diff(267) <= 2, "{passed:?}");
}

#[test]
fn keys_beyond_the_table_share_pauses_by_prefix() {
    let pauses = Arc::new(Pauses::new(1, "test".into()));
    load(&pauses, 1);
    pause(&pauses, T0, SECOND);
    let enter = |id, prefix, at| {
        matches!(pauses.enter(CounterKey::new(id, prefix), Now(at), None), PauseDecision::Pass)
    };
    for id in 100..200 {
        assert!(enter(id, 1, T0));
    }
    assert!(pauses.record_pause(&CounterKey::new(100, 1), Now(T0), Now(T0), SECOND, 429).began);
    assert!(!enter(101, 1, T0), "the same prefix");
    assert!(enter(300, 2, T0) && refusal_ms(&pauses, T0) == 1_000, "others and the key in the table");
}

fn terms(at: Now, wait: Duration) -> Option<WaitTerms> {
    Some(WaitTerms { latest: Now(at.0 + wait.as_nanos() as u64), front_ns: FRONT })
}

fn place(pauses: &Arc<Pauses>, wait: Duration) -> PauseWaiter {
    let now = Now::read_clock();
    match pauses.enter(KEY, now, terms(now, wait)) {
        PauseDecision::Wait(place) => place,
        _ => panic!("no wait"),
    }
}

/// Waits, and returns the milliseconds since `start` with the name of the request.
async fn wait_named(place: PauseWaiter, start: Now, name: u64) -> (u64, u64) {
    place.wait_turn().await.unwrap();
    (name, Now::read_clock().ns_since(start) / MS)
}

#[tokio::test(start_paused = true)]
async fn waiters_leave_in_order_and_those_behind_a_leaver_move_up() {
    let (pauses, start) = (pauses(), Now::read_clock());
    pauses.record_pause(&KEY, start, start, SECOND, 503);
    let long = Duration::from_secs(60);
    let [first, second, third, fourth] = std::array::from_fn(|_| place(&pauses, long));
    assert_eq!(pauses.counts().waits, 4);
    drop(second);
    let ends =
        tokio::join!(wait_named(fourth, start, 4), wait_named(third, start, 3), wait_named(first, start, 1),);
    // One request a second is the least pace, and after the climb that of the limit in front: 400/s.
    let [(_, first), (_, third), (_, fourth)] = [ends.2, ends.1, ends.0];
    assert_eq!(first, 1_000);
    assert!((2_000..2_010).contains(&third) && (third..third + 6).contains(&fourth), "{third} {fourth}");
}

#[tokio::test(start_paused = true)]
async fn a_new_pause_holds_the_waiting_and_rejects_those_that_cannot_wait_so_long() {
    let (pauses, start) = (pauses(), Now::read_clock());
    pauses.record_pause(&KEY, start, start, SECOND, 429);
    let short = place(&pauses, Duration::from_secs(2));
    let long = place(&pauses, Duration::from_secs(30));
    let extend = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = Now::read_clock();
        pauses.record_pause(&KEY, now, now, 10 * SECOND, 429);
    };
    let timed_short = async {
        let paused = short.wait_turn().await.unwrap_err();
        (paused.status, paused.wait_ns / MS, Now::read_clock().ns_since(start) / MS)
    };
    let ((status, wait_ms, at), (), (_, end)) = tokio::join!(timed_short, extend, wait_named(long, start, 0));
    // Rejected at once; behind the other that waits the next one would go a little later than the pause ends.
    assert_eq!((status, at, end), (429, 500, 10_500));
    assert!((10_000..12_000).contains(&wait_ms), "{wait_ms}");
}

#[tokio::test(start_paused = true)]
async fn requests_that_may_not_wait_so_long_are_refused_on_arrival() {
    let (pauses, now) = (pauses(), Now::read_clock());
    pauses.record_pause(&KEY, now, now, 5 * SECOND, 429);
    let decision = pauses.enter(KEY, now, terms(now, Duration::from_secs(4)));
    assert!(matches!(decision, PauseDecision::Refuse(Pause { wait_ns, .. }) if wait_ns == 5 * SECOND));
    let decision = pauses.enter(KEY, now, terms(now, Duration::from_secs(5)));
    assert!(matches!(decision, PauseDecision::Wait(_)));
    drop(decision);
    assert_eq!(pauses.find_pause(&KEY, now).unwrap().wait_ns, 5 * SECOND, "the place was given back");
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_own_time() {
    let (pauses, start) = (pauses(), Now::read_clock());
    pauses.record_pause(&KEY, start, start, SECOND, 429);
    let others: Vec<PauseWaiter> = (0..3).map(|_| place(&pauses, Duration::from_secs(60))).collect();
    let own = place(&pauses, Duration::from_millis(2_100));
    tokio::time::sleep(Duration::from_millis(10)).await;
    let now = Now::read_clock();
    pauses.record_pause(&KEY, now, now, 4 * SECOND, 429);
    assert!(own.wait_turn().await.is_err());
    assert!(Now::read_clock().ns_since(start) / MS <= 2_101);
    drop(others);
}
