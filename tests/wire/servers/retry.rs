//! Retries: which requests, on which server, how often, and never.

use std::thread;
use std::time::Instant;

use crate::support::*;

/// Ejection is off, so that only retries choose the server.
fn retrying_gateway(servers: &[&Upstream], more: &str) -> Gateway {
    let servers: Vec<String> = servers.iter().map(|one| one.addr().to_string()).collect();
    Gateway::start(&format!(
        "server: {{ workers: 1 }}\nupstreams:\n  app: {{ servers: [{}], balance: round_robin, eject: none, {more} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        servers.join(", ")
    ))
}

fn upstream_with_status(status: u16) -> Upstream {
    Upstream::new(move |_| Reply::with(status, &[], "no"))
}

fn dropping_upstream() -> Upstream {
    Upstream::new(|_| Reply::default().close())
}

/// As many retries as `attempts` allows, each on another server.
#[test]
fn attempts_are_counted() {
    for (attempts, tried) in [(0, 1), (1, 2), (2, 3), (5, 6)] {
        let all = [upstream_with_status(503), upstream_with_status(503), upstream_with_status(503)];
        let retries = format!("retries: {{ attempts: {attempts}, when: 503, budget: none }}");
        let gateway = retrying_gateway(&[&all[0], &all[1], &all[2]], &retries);
        assert_eq!(gateway.get("/").expect(503).text(), "no");
        let counts: Vec<usize> = all.iter().map(Upstream::count).collect();
        assert_eq!(counts.iter().sum::<usize>(), tried, "{attempts}: {counts:?}");
        let most = tried.div_ceil(3);
        assert!(counts.iter().all(|count| *count <= most), "{attempts}: {counts:?}");
        let retried = gateway.metric("sluicegate_upstream_retries_total", &["reason=\"503\""]);
        assert_eq!(retried, f64::from(attempts));
        let answers = gateway.metric("sluicegate_upstream_requests_total", &["outcome=\"5xx\""]);
        assert_eq!(answers, tried as f64);
    }
}

/// `total` bounds all tries together.
#[test]
fn no_try_goes_beyond_the_total() {
    let slow = || Upstream::new(|_| Reply::with(503, &[], "no").after(ms(500)));
    let all = [slow(), slow(), slow()];
    let retries = "retries: { attempts: 5, when: 503, budget: none, total: 800ms }";
    let gateway = retrying_gateway(&[&all[0], &all[1], &all[2]], retries);
    let noise = Noise::listen();
    let start = Instant::now();
    gateway.get("/").expect(504);
    let took = start.elapsed();
    assert!(took >= ms(795) && took < ms(800) + noise.late(), "{took:?}");
    assert_eq!(all.iter().map(Upstream::count).sum::<usize>(), 2);
}

/// A request that may have run is sent again only if it may run twice; a body is never sent again.
#[test]
fn only_requests_that_may_run_twice_are_repeated() {
    for (when, failing) in [
        ("502", dropping_upstream as fn() -> Upstream),
        ("502", || upstream_with_status(502)),
        ("503", || upstream_with_status(503)),
        ("504", || upstream_with_status(504)),
    ] {
        let retries = format!("retries: {{ attempts: 1, when: [connect, refused, {when}] }}");
        for (ask, repeated) in [
            (get("/"), true),
            (Ask::new("DELETE", "/"), true),
            (Ask::new("HEAD", "/"), true),
            (post("/", b"body"), false),
            (Ask::new("POST", "/"), false),
            (Ask::new("PATCH", "/"), false),
            (Ask::new("GET", "/").header("Transfer-Encoding", "chunked"), false),
        ] {
            let (bad, good) = (failing(), Upstream::ok());
            let gateway = retrying_gateway(&[&bad, &good], &retries);
            let mut client = gateway.client();
            let mut bytes = ask.bytes();
            if ask.head().ends_with(b"chunked\r\n\r\n") {
                bytes.extend_from_slice(b"3\r\nabc\r\n0\r\n\r\n");
            }
            client.send(bytes);
            let is_head = ask.head().starts_with(b"HEAD");
            let response = if is_head { client.head_response() } else { client.response() };
            let expected = if repeated { 200 } else { when.parse().expect("a status") };
            assert_eq!(response.status, expected, "{when}: {ask:?}");
            assert_eq!((bad.count(), good.count()), (1, usize::from(repeated)), "{when}: {ask:?}");
        }
    }
}

/// Without a retry setting nothing is repeated; a reused connection follows the same rule.
#[test]
fn a_reused_connection_follows_the_same_rule() {
    let dropping_upstream = || {
        Upstream::new(|seen| match seen.target.as_str() {
            "/warm" => Reply::text("warm"),
            _ => Reply::default().close(),
        })
    };
    for (retries, gets) in [("none", 1), ("{ attempts: 1, when: 502 }", 2)] {
        let (one, two) = (dropping_upstream(), dropping_upstream());
        let gateway = retrying_gateway(&[&one, &two], &format!("retries: {retries}"));
        let mut client = gateway.client();
        // Often enough that neither connection looks as if its server were closing it.
        for _ in 0..6 {
            client.ask(&get("/warm")).expect(200);
        }
        client.ask(&post("/cold", b"body")).expect(502);
        client.ask(&get("/cold")).expect(502);
        let cold: Vec<Seen> = [one.requests(), two.requests()].concat();
        let sent =
            |method: &str| cold.iter().filter(|seen| seen.target == "/cold" && seen.method == method).count();
        assert_eq!((sent("POST"), sent("GET")), (1, gets), "{retries}");
    }
}

/// A server that does not respond in time is skipped, if configured; a POST is not sent twice.
#[test]
fn timeouts_are_retried_if_configured() {
    for timeouts in [
        "timeouts: { response: 300ms }, retries: { when: timeout }",
        "retries: { when: timeout, per_try: 300ms }",
    ] {
        let (silent, good) = (Upstream::new(|_| Reply::silence()), Upstream::ok());
        let gateway = retrying_gateway(&[&silent, &good], timeouts);
        let noise = Noise::listen();
        let start = Instant::now();
        gateway.get("/").expect(200);
        let took = start.elapsed();
        assert!(took >= ms(295) && took < ms(600) + noise.late(), "{timeouts}: {took:?}");
        assert_eq!((silent.count(), good.count()), (1, 1), "{timeouts}");
    }
    let silent = Upstream::new(|_| Reply::silence());
    let gateway = retrying_gateway(
        &[&silent],
        "timeouts: { response: 300ms }, retries: { attempts: 3, when: timeout }",
    );
    gateway.ask(&post("/", b"body")).expect(504);
    assert_eq!(silent.count(), 1);
    gateway.get("/").expect(504);
    assert_eq!(silent.count(), 5, "without another server the same one is used");
}

/// A slow upload is the client's own pace: the time of a try does not cut it.
#[test]
fn an_upload_is_not_cut_by_the_time_of_a_try() {
    let upstream = Upstream::ok();
    let gateway = retrying_gateway(&[&upstream], "retries: { when: timeout, per_try: 200ms, total: 300ms }");
    let mut client = gateway.client();
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n".as_slice();
    client.send_pieces(&[head, b"a", b"b", b"c", b"d"], ms(150));
    client.response().expect(200);
    assert_eq!(upstream.requests()[0].body, b"abcd");
}

/// Three retries in flight are always allowed; beyond that they are a share of the requests.
#[test]
fn retries_have_a_budget() {
    let slow = || Upstream::new(|_| Reply::with(503, &[], "no").after(ms(400)));
    for (budget, retried) in [("0%", 3), ("50%", 5), ("none", 10)] {
        let (one, two) = (slow(), slow());
        let gateway = retrying_gateway(&[&one, &two], &format!("retries: {{ when: 503, budget: {budget} }}"));
        let shots = volley(gateway.addr(), (0..10).map(|_| get("/")));
        assert_eq!(statuses(&shots), [503; 10]);
        assert_eq!(one.count() + two.count(), 10 + retried, "{budget}");
        let rejected = gateway.metric("sluicegate_upstream_retries_over_budget_total", &[]);
        assert_eq!(rejected, 10.0 - retried as f64, "{budget}");
    }
}

/// The connection of a discarded response stays in use.
#[test]
fn a_discarded_response_keeps_its_connection() {
    let (bad, good) = (upstream_with_status(503), Upstream::ok());
    let gateway = retrying_gateway(&[&bad, &good], "retries: { when: 503 }");
    for _ in 0..8 {
        gateway.get("/").expect(200);
        // A background task reads the rest of the discarded response.
        thread::sleep(ms(20));
    }
    assert_eq!((bad.connections(), good.connections()), (1, 1));
}

/// `none`: a failed connect is answered 502, without a retry.
#[test]
fn retries_can_be_off() {
    let (refusing, alive) = (Refusing::new(), Upstream::ok());
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [{}, {}], balance: round_robin, eject: none, retries: none }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        refusing.addr(),
        alive.addr()
    ));
    let mut statuses: Vec<u16> = (0..4).map(|_| gateway.get("/").status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 502, 502]);
}
