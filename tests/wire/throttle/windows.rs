//! Windows over the wire: admissions, and true retry times.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::*;

fn limited_gateway(limit: &str) -> Gateway {
    Gateway::start(&format!(
        "locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: {{ {limit} }} }}\n"
    ))
}

/// Uses up ten units; returns the moments before the first was sent and after it was answered.
#[track_caller]
fn use_up(client: &mut Client) -> (Instant, Instant) {
    let before = Instant::now();
    client.ask(&get("/")).expect(200);
    let after = Instant::now();
    (1..10).for_each(|_| drop(client.ask(&get("/")).expect(200)));
    (before, after)
}

/// The `Retry-After` of a rejection, after a check that it agrees with `retry_after_ms` and that with the
/// period's end.
#[track_caller]
fn retry_after(client: &mut Client, (before, after): (Instant, Instant), period: Duration) -> Duration {
    let sent = Instant::now();
    let rejection = client.ask(&get("/")).expect(429);
    let retry_after = ms(rejection.retry_after_ms());
    // The period began between `before` and `after`, and was read between `sent` and now.
    assert!(retry_after + before.elapsed() >= period, "{retry_after:?} end too early");
    assert!(retry_after <= ms(1) + period.saturating_sub(sent - after), "{retry_after:?} end too late");
    let seconds: u64 = rejection.header("retry-after").expect("Retry-After").parse().expect("seconds");
    assert_eq!(seconds, retry_after.as_millis().div_ceil(1000) as u64);
    Duration::from_secs(seconds)
}

/// The remaining time is true, and a client that sleeps exactly that long is admitted.
#[test]
fn a_client_that_sleeps_as_told_is_admitted() {
    for algorithm in ["fixed_window", "sliding_log"] {
        let gateway = limited_gateway(&format!("algorithm: {algorithm}, rate: 10/3s"));
        let mut client = gateway.client();
        let used = use_up(&mut client);
        let first = retry_after(&mut client, used, ms(3000));
        assert_eq!(first.as_secs(), 3, "this machine is too slow for the test");
        thread::sleep(ms(1500));
        let half = retry_after(&mut client, used, ms(3000));
        assert!(half < first);
        thread::sleep(half);
        client.ask(&get("/")).expect(200);
    }
}

#[test]
fn a_sliding_window_is_late_by_a_bucket_at_most() {
    let gateway = limited_gateway("algorithm: sliding_window, rate: 10/2s, buckets: 4");
    let mut client = gateway.client();
    let (before, _) = use_up(&mut client);
    let rejection = client.ask(&get("/")).expect(429).retry_after_ms();
    assert!(ms(rejection) + before.elapsed() >= ms(2000) && rejection <= 2500, "retry_after_ms {rejection}");
    thread::sleep(ms(rejection / 2));
    let rest = client.ask(&get("/")).expect(429).retry_after_ms();
    assert!(rest <= rejection - rejection / 2);
    thread::sleep(ms(rest));
    client.ask(&get("/")).expect(200);
}

/// Windows by the clock end at UTC multiples of the period, whenever the gateway was started.
#[test]
fn windows_by_the_clock_follow_utc() {
    let gateway = limited_gateway("algorithm: fixed_window, rate: 1/3s, align: clock");
    let mut client = gateway.client();
    let unix_ms = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    let ends = |client: &mut Client| loop {
        let sent = unix_ms();
        let response = client.ask(&get("/"));
        let answered = unix_ms();
        if response.status == 429 {
            let left = response.retry_after_ms();
            return (sent + left, answered + left);
        }
    };
    let (earliest, latest) = ends(&mut client);
    // The gateway reads its two clocks one after the other, so they may differ a little on a busy machine.
    let edge = (latest + 1500) / 3000 * 3000;
    assert!(earliest <= edge + 100 && latest + 100 >= edge, "{edge} is not within {earliest}..{latest}");
    thread::sleep(ms(latest.saturating_sub(unix_ms())));
    client.ask(&get("/")).expect(200);
}

/// Ten for each method and path.
#[test]
fn each_method_and_path_has_a_window_of_its_own() {
    let gateway = limited_gateway("key: [method, uri], algorithm: fixed_window, rate: 10/1h");
    let mut client = gateway.client();
    for (method, path) in [("GET", "/path1"), ("GET", "/path2"), ("DELETE", "/path1"), ("DELETE", "/path2")] {
        for left in (0..10).rev() {
            let response = client.ask(&Ask::new(method, path)).expect(200);
            let field = response.header("ratelimit").expect("a RateLimit field").to_owned();
            assert!(field.contains(&format!(";r={left};")), "{field}");
        }
        client.ask(&Ask::new(method, path)).expect(429);
    }
}

/// Two rates in one limit: the policy names each by its period, and the tighter one rejects.
#[test]
fn several_windows_are_distinguished() {
    for algorithm in ["fixed_window", "sliding_window", "sliding_log"] {
        let gateway = limited_gateway(&format!("algorithm: {algorithm}, rate: [300/60s, 2/5s]"));
        let mut client = gateway.client();
        let response = client.ask(&get("/")).expect(200);
        let policy = response.header("ratelimit-policy").expect("a policy").to_owned();
        assert_eq!(policy, "\"/#1;300/60s\";q=300;w=60, \"/#1;2/5s\";q=2;w=5");
        client.ask(&get("/")).expect(200);
        let rejection = client.ask(&get("/")).expect(429);
        assert!(rejection.retry_after_ms() <= 5500);
        let field = rejection.header("ratelimit").expect("a RateLimit field").to_owned();
        let (wide, tight) = field.split_once(", ").expect("two rates");
        assert!(wide.starts_with("\"/#1;300/60s\";r=298;t=") && !wide.ends_with("t=0"), "{field}");
        assert!(tight.starts_with("\"/#1;2/5s\";r=0;t="), "{field}");
    }
}
