//! Leased windows: gateways take units of a window in advance, and together never more than it has.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::support::fleet::{by_name, counting_on};
use crate::support::*;

const MAX: usize = 400;
const SPAN: Duration = ms(3_000);

/// Three gateways that lease a limit of these numbers, and what their clients got in a flood.
fn flood(redis: &Redis, numbers: &str) -> (Fleet, Vec<Fired>) {
    let head = counting_on(&redis.url(), "200ms");
    let limit = format!("key: global, rate: {MAX}/1s, {numbers}, state: leased, on_failure: reject");
    let fleet = Fleet::start(3, |_, upstream| format!("{head}{}", by_name(upstream, &[("all", &limit)])));
    fleet.wait_enforcing();
    let fired = fleet.fire(4, Until::Span(SPAN), |_, _, _| {
        thread::sleep(ms(2));
        get("/all")
    });
    (fleet, fired)
}

/// The admissions that lie in this second for certain: from their request to their answer.
fn admitted_within(fired: &[Fired], from: Instant) -> usize {
    let until = from + ms(1_000);
    let within = |one: &&Fired| one.status == 200 && one.sent >= from && one.answered < until;
    fired.iter().filter(within).count()
}

#[test]
fn a_fixed_window_admits_its_number_with_few_calls() {
    undisturbed(|| {
        let redis = Redis::start();
        let before = redis.calls("evalsha");
        let (_fleet, fired) = flood(&redis, "algorithm: fixed_window, align: clock");
        let calls = redis.calls("evalsha") - before;
        let since_second = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
        let border = Instant::now() - Duration::from_nanos(since_second.into());
        let windows: Vec<usize> =
            (1..=3).map(|ago| admitted_within(&fired, border - ago * ms(1_000))).collect();
        assert!(windows.iter().all(|passed| *passed <= MAX), "{windows:?}");
        assert!(calls * 10 < fired.len() as u64, "{calls} calls for {} requests", fired.len());
        (windows[1] >= MAX * 95 / 100).then_some(())
    });
}

#[test]
fn a_sliding_window_admits_its_number_in_any_window() {
    undisturbed(|| {
        let redis = Redis::start();
        let (_fleet, fired) = flood(&redis, "algorithm: sliding_window, buckets: 5");
        let most = fired.iter().map(|one| admitted_within(&fired, one.sent)).max().unwrap();
        assert!(most <= MAX, "{most}");
        let passed = fired.iter().filter(|one| one.status == 200).count();
        (passed >= 3 * MAX * 9 / 10).then_some(())
    });
}

/// A rejection tells the time until the window ends, and a new window has all its units.
#[test]
fn clients_learn_when_the_window_ends() {
    let redis = Redis::start();
    let head = counting_on(&redis.url(), "200ms");
    let limit = "key: global, rate: 10/2s, algorithm: fixed_window, state: leased";
    let fleet = Fleet::start(2, |_, upstream| format!("{head}{}", by_name(upstream, &[("few", limit)])));
    fleet.wait_enforcing();
    let mut clients = fleet.gateways.iter().map(Gateway::client).collect::<Vec<_>>();
    let mut ask = |turn: usize| clients[turn % 2].ask(&get("/few"));
    let begun = Instant::now();
    let answers: Vec<_> = (0..12).map(&mut ask).collect();
    let passed = answers.iter().filter(|answer| answer.status == 200).count();
    let ms_left: u64 = answers[11].json()["retry_after_ms"].as_u64().expect("a rejection");
    assert_eq!((passed, answers[11].status), (10, 429));
    let ends = begun.elapsed() + ms(ms_left);
    assert!(ends >= ms(2_000) && ends < ms(2_600), "{ends:?}");
    thread::sleep(ms(ms_left + 50));
    assert_eq!((0..10).map(&mut ask).filter(|answer| answer.status == 200).count(), 10);
}

/// Responses that cost 10 units, of which requests reserve fewer or more: the admitted ones have used what the window
/// has, and at most what gateways may hold beyond it.
#[test]
fn responses_settle_what_they_reserved() {
    for (reserved, most) in [(5, 240 + 20), (20, 200)] {
        let redis = Redis::start();
        let head = counting_on(&redis.url(), "200ms");
        let charge = format!("charge: {{ units: \"header:X-Cost\", reserve: {reserved} }}");
        let limit = format!("key: global, rate: 2000/1h, algorithm: fixed_window, state: leased, {charge}");
        let upstream = Upstream::new(|_| Reply::with(200, &[("X-Cost", "10")], "ok"));
        let fleet = Fleet::before(upstream, 2, |_, upstream| {
            format!("{head}{}", by_name(upstream, &[("all", &limit)]))
        });
        fleet.wait_enforcing();
        let fired = fleet.fire(2, Until::Count(150), |_, _, _| {
            thread::sleep(ms(4));
            get("/all")
        });
        let passed = fired.iter().filter(|one| one.status == 200).count();
        assert!(passed <= most && passed >= 170, "{reserved} reserved: {passed} passed");
        eventually("all is settled", || fleet.metric("sluicegate_reserved_units", &[]) == 0.0);
        assert_eq!(fleet.metric("sluicegate_redis_gives_lost_total", &[]), 0.0);
    }
}
