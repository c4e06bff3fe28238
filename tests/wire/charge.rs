//! Limits that are settled by the response: what a request reserves, what its response costs, and ways to hang up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

use crate::support::*;

/// Answers by the password that the request names in its query.
fn login_upstream() -> Upstream {
    Upstream::new(|seen| {
        let status = if seen.target.ends_with("right") { 200 } else { 401 };
        Reply::with(status, &[], "answer")
    })
}

fn guarded(upstream: &Upstream, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "limits: {{ login: {{ key: ip, {limit} }} }}\n\
         locations: [{{ path: /, upstream: \"{}\", limits: login }}]\n",
        upstream.url()
    ))
}

const FAILURES: &str = "rate: 5/1h, charge: { when: [401, 403], clear: 2xx }";

fn remaining(response: &Response) -> u64 {
    let field = response.header("ratelimit").expect("a field");
    let rest = field.split(";r=").nth(1).expect("a number").split(';').next().map(str::parse);
    rest.expect("a number").expect("a number")
}

/// The line of a request that is over.
fn line_of(gateway: &Gateway, count: usize) -> Value {
    gateway.wait_log(count).pop().expect("a line")
}

#[test]
fn only_wrong_passwords_count() {
    let upstream = login_upstream();
    for algorithm in ["token_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        let before = upstream.count();
        let gateway = guarded(
            &upstream,
            &format!("algorithm: {algorithm}, rate: 5/1h, charge: {{ when: [401, 403] }}"),
        );
        for _ in 0..20 {
            gateway.get("/?right").expect(200);
        }
        for _ in 0..5 {
            gateway.get("/?wrong").expect(401);
        }
        let refused = gateway.get("/?right").expect(429);
        assert_eq!(refused.json()["limit"], "login", "{algorithm}");
        assert_eq!(upstream.count() - before, 25, "{algorithm}");
    }
}

#[test]
fn a_right_password_forgets_the_wrong_ones() {
    let upstream = login_upstream();
    for algorithm in ["token_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        let gateway = guarded(&upstream, &format!("algorithm: {algorithm}, {FAILURES}"));
        for _ in 0..3 {
            (0..4).for_each(|_| drop(gateway.get("/?wrong").expect(401)));
            gateway.get("/?right").expect(200);
        }
        (0..5).for_each(|_| drop(gateway.get("/?wrong").expect(401)));
        gateway.get("/?right").expect(429);
    }
}

/// A burst of guesses must not pass before the first answer is known.
#[test]
fn of_200_parallel_guesses_exactly_five_reach_the_upstream() {
    let gate = Gate::default();
    let slow = gate.clone();
    let upstream = Upstream::new(move |_| Reply::with(401, &[], "no").held_by(&slow));
    let gateway = guarded(&upstream, FAILURES);
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| {
                if gateway.get("/").status == 429 && refused.fetch_add(1, Ordering::Relaxed) == 194 {
                    gate.open();
                }
            });
        }
    });
    assert_eq!((upstream.count(), refused.into_inner()), (5, 195));
}

/// What is reserved never exceeds the limit, however many ask at once.
#[test]
fn a_thousand_parallel_calls_reserve_no_more_than_there_is() {
    raise_descriptors();
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = guarded(&upstream, "rate: 1000/1h, charge: { units: \"header:X-Cost\", reserve: 10 }");
    let mut clients: Vec<_> = (0..1_000).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get("/").bytes()));
    upstream.wait_for(100);
    eventually("900 refusals", || {
        gateway.metric("sluicegate_decisions_total", &["limit=\"login\"", "reject"]) == 900.0
    });
    assert_eq!(gateway.metric("sluicegate_reserved_units", &["limit=\"login\""]), 1_000.0);
    assert_eq!(upstream.count(), 100);
    gate.open();
    let answers: Vec<_> = clients.iter_mut().map(|client| client.response().status).collect();
    assert_eq!(answers.iter().filter(|status| **status == 200).count(), 100);
    eventually("all settled", || gateway.metric("sluicegate_reserved_units", &["limit=\"login\""]) == 0.0);
}

#[test]
fn right_passwords_within_the_limit_in_flight_are_never_refused() {
    let upstream = login_upstream();
    for algorithm in ["token_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        for charge in ["when: [401, 403]", "when: [401, 403], clear: 2xx"] {
            let limit = format!("algorithm: {algorithm}, rate: 5/1h, charge: {{ {charge} }}");
            let gateway = guarded(&upstream, &limit);
            thread::scope(|scope| {
                for _ in 0..5 {
                    scope.spawn(|| (0..60).for_each(|_| drop(gateway.get("/?right").expect(200))));
                }
            });
        }
    }
}

/// Who hangs up before the answer has still guessed.
#[test]
fn hanging_up_before_the_status_is_charged() {
    let upstream = Upstream::held_by(&Gate::default());
    let gateway = guarded(&upstream, FAILURES);
    for sent in 1..=5 {
        let mut client = gateway.client();
        client.send(get("/").bytes());
        upstream.wait_for(sent);
        drop(client);
        let line = line_of(&gateway, sent);
        assert_eq!(
            (&line["status"], &line["charged"], &line["charged_by"]),
            (&499.into(), &1.into(), &"request".into())
        );
    }
    gateway.get("/").expect(429);
}

#[test]
fn a_request_that_reached_no_server_costs_nothing() {
    let gateway = Gateway::start(
        "limits: { login: { rate: 2/1h, charge: { when: 401 } } }\n\
         locations: [{ path: /, upstream: \"http://127.0.0.1:1\", limits: login }]\n",
    );
    for asked in 1..=6 {
        gateway.get("/").expect(502);
        let line = line_of(&gateway, asked);
        assert_eq!((&line["charged"], &line["charged_by"]), (&0.into(), &"nothing".into()));
    }
}

/// The upstream says what a request costs; more than was reserved becomes a debt.
#[test]
fn a_cost_header_of_the_response_is_charged() {
    let upstream = Upstream::new(|seen| Reply::with(200, &[("X-Cost", &seen.target[2..])], "done"));
    let gateway =
        guarded(&upstream, "algorithm: fixed_window, rate: 100/1h, charge: { units: \"header:X-Cost\" }");
    assert_eq!(remaining(&gateway.get("/?30").expect(200)), 99, "reserved 1");
    assert_eq!(remaining(&gateway.get("/?0").expect(200)), 69, "30 were charged");
    assert_eq!(remaining(&gateway.get("/?12.2").expect(200)), 69, "0 were charged");
    assert_eq!(remaining(&gateway.get("/?400").expect(200)), 56, "13 were charged");
    let refused = gateway.get("/?0").expect(429);
    let wait = refused.retry_after_ms();
    assert!(wait > 3_600_000, "a debt of a whole window is paid back in the next one: {wait}");
    let lines = gateway.wait_log(5);
    let mut charges: Vec<_> = lines.iter().filter_map(|line| line["charged"].as_u64()).collect();
    charges.sort_unstable();
    assert_eq!(charges, [0, 13, 30, 400]);
    let charged = |line: &&Value| line["charged"].is_u64();
    assert!(
        lines.iter().filter(charged).all(|line| line["reserved"] == 1 && line["charged_by"] == "usage"),
        "{lines:?}"
    );
    assert_eq!(
        gateway.metric("sluicegate_charged_units_total", &["limit=\"login\"", "source=\"usage\""]),
        443.0
    );
    assert_eq!(gateway.metric("sluicegate_overrun_units_total", &["limit=\"login\""]), 243.0);
    assert_eq!(gateway.metric("sluicegate_reserved_units", &["limit=\"login\""]), 0.0);
}

#[test]
fn an_answer_without_its_header_costs_as_missing_says() {
    let upstream = Upstream::ok();
    for (missing, charged, by) in
        [("estimate", 7, "reserve"), ("reserved", 7, "reserve"), ("nothing", 0, "nothing")]
    {
        let charge = format!("charge: {{ units: \"header:X-Cost\", reserve: 7, missing: {missing} }}");
        let gateway = guarded(&upstream, &format!("rate: 100/1h, {charge}"));
        gateway.get("/").expect(200);
        let line = line_of(&gateway, 1);
        assert_eq!((&line["charged"], &line["charged_by"]), (&charged.into(), &by.into()));
    }
}

/// An estimate counts the request too, also if its body was read before it was judged.
#[test]
fn an_estimate_counts_the_whole_request() {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"12345678\"}}]}\n\n";
    let upstream = Upstream::new(move |_| Reply::with(200, &[("Content-Type", "text/event-stream")], event));
    let body = format!("{{\"max_tokens\": 50, \"input\": \"{}\"}}", "x".repeat(400));
    let tokens = (body.len() as u64).div_ceil(4) + 2;
    for reserve in ["1", "{ from: \"json:/max_tokens\", default: 1 }"] {
        let limit = format!("rate: 1000/1h, charge: {{ units: llm, reserve: {reserve} }}");
        let gateway = guarded(&upstream, &limit);
        gateway.ask(&post("/", body.as_bytes())).expect(200);
        let line = line_of(&gateway, 1);
        assert_eq!(
            (&line["charged"], &line["charged_by"]),
            (&tokens.into(), &"estimate".into()),
            "{reserve}"
        );
    }
}

/// Delivered bytes count, however the response ends.
#[test]
fn egress_is_charged_by_what_was_delivered() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n";
    let gate = Gate::default();
    let half = Reply::raw(head).then("x".repeat(5_000)).until(&gate);
    let upstream = Upstream::in_turn([half, Reply::text(&"y".repeat(3_000))]);
    let gateway = guarded(&upstream, "rate: 50000/1h, charge: { units: bytes }");
    let mut client = gateway.client();
    client.send(get("/").bytes());
    client.raw_head(PATIENCE).expect("a head");
    assert_eq!(client.take(5_000).len(), 5_000);
    drop(client);
    assert_eq!(line_of(&gateway, 1)["charged"], 5_000);
    gateway.get("/").expect(200);
    let line = line_of(&gateway, 2);
    assert_eq!((&line["charged"], &line["charged_by"]), (&3_000.into(), &"usage".into()));
    gate.open();
}

#[test]
fn egress_in_sizes_counts_kib() {
    let upstream = Upstream::with_large(2_500);
    let gateway = guarded(&upstream, "rate: 1MiB/1d, charge: { units: bytes }");
    gateway.get("/large").expect(200);
    assert_eq!(remaining(&gateway.get("/large").expect(200)), (1_024 - 3 - 1) * 1_024);
}

/// What is left is delivered, then the response is cut, visibly.
#[test]
fn a_response_is_cut_when_nothing_is_left() {
    let pieces = (0..50).fold(Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n"), |reply, _| {
        reply.then("x".repeat(10_000)).pause(ms(5))
    });
    let upstream = Upstream::in_turn([pieces]);
    let gateway = guarded(&upstream, "rate: 100000/1h, charge: { units: bytes, over: cut }");
    let mut client = gateway.client();
    client.send(get("/").bytes());
    client.raw_head(PATIENCE).expect("a head");
    let delivered = client.until_close().0.len();
    assert!((100_000..200_000).contains(&delivered), "{delivered}");
    let line = line_of(&gateway, 1);
    assert_eq!((&line["verdict"], &line["error"]), (&"reject".into(), &"limit used up".into()));
    assert_eq!(line["charged"], line["bytes"]);
    gateway.get("/").expect(429);
}

/// A response that was cut short of nothing yet has taken more than it reserved, and keeps that when another clears.
#[test]
fn an_extended_reservation_outlives_a_clear() {
    at_once(["token_bucket", "fixed_window", "sliding_window", "sliding_log"], |algorithm| {
        let gate = Gate::default();
        let event = |data: &str| format!("data: {data}\n\n");
        let text = event(&format!(r#"{{"choices":[{{"delta":{{"content":"{}"}}}}]}}"#, "x".repeat(400)));
        let usage = |tokens: u64| {
            format!(r#"{{"usage":{{"prompt_tokens":0,"completion_tokens":{tokens}}},"choices":[]}}"#)
        };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
        let streamed = Reply::raw(head).then(text).until(&gate).then(event(&usage(40))).close();
        let spent = Reply::with(200, &[("Content-Type", "application/json")], &usage(30));
        let upstream = Upstream::new(move |seen| match &*seen.target {
            "/streams" => streamed.clone(),
            "/clears" => Reply::with(204, &[], ""),
            _ => spent.clone(),
        });
        let fields = "charge: { units: llm, reserve: 10, over: cut, clear: 204 }";
        let gateway = guarded(&upstream, &format!("algorithm: {algorithm}, rate: 1000/30d, {fields}"));
        let left = || remaining(&gateway.get("/looks").expect(200));
        let mut client = gateway.client();
        client.send(get("/streams").header("Connection", "close").bytes());
        client.take(300);
        gateway.get("/clears").expect(204);
        // 10 reserved by the look itself.
        let before = left();
        assert!((860..=895).contains(&before), "{algorithm}: {before} left while 100 or more are taken");
        gate.open();
        client.until_close();
        gateway.wait_log(3);
        // Two looks of 30, of which the last is in flight, and 40 that the stream used.
        assert_eq!(left(), 1000 - 30 - 40 - 10, "{algorithm}");
    });
}

#[test]
fn a_retried_request_pays_once() {
    let unavailable = Reply::with(503, &[("X-Cost", "50")], "later");
    let upstream = Upstream::in_turn([unavailable, Reply::with(200, &[("X-Cost", "3")], "done")]);
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ servers: [\"{}\"], retries: {{ attempts: 1, when: 503 }} }} }}\n\
         limits: {{ jobs: {{ rate: 100/1h, charge: {{ units: \"header:X-Cost\" }} }} }}\n\
         locations: [{{ path: /, upstream: app, limits: jobs }}]\n",
        upstream.url()
    ));
    gateway.get("/").expect(200);
    assert_eq!(line_of(&gateway, 1)["charged"], 3);
}

/// The request goes on by the numbers of the file that was in force when it came, and is settled in the new one.
#[test]
fn a_reload_in_between_settles_once() {
    let gate = Gate::default();
    let held = Reply::with(200, &[("X-Cost", "40")], "done").held_by(&gate);
    let upstream = Upstream::in_turn([held]);
    let gateway = guarded(
        &upstream,
        "algorithm: fixed_window, rate: 100/1h, charge: { units: \"header:X-Cost\", reserve: 10 }",
    );
    let mut client = gateway.client();
    client.send(get("/").bytes());
    upstream.wait_for(1);
    assert_eq!(gateway.metric("sluicegate_reserved_units", &["limit=\"login\""]), 10.0);
    let file = std::fs::read_to_string(gateway.file()).expect("its file");
    gateway.change(&file.replace("rate: 100/1h", "rate: 200/1h"));
    assert_eq!(gateway.metric("sluicegate_reserved_units", &["limit=\"login\""]), 10.0);
    gate.open();
    client.response().expect(200);
    eventually("the settlement", || gateway.metric("sluicegate_reserved_units", &["limit=\"login\""]) == 0.0);
    assert_eq!(remaining(&gateway.get("/").expect(200)), 200 - 40 - 10);
}

/// Paths that no location serves are charged by the status that the client gets.
#[test]
fn unknown_paths_are_charged_by_their_status() {
    let gateway = Gateway::start(
        "server: { limits: scan }\n\
         limits: { scan: { rate: 3/1h, charge: { when: 404 } } }\n\
         locations: [{ path: /app/, respond: { body: ok } }]\n",
    );
    (0..9).for_each(|_| drop(gateway.get("/app/").expect(200)));
    (0..3).for_each(|_| drop(gateway.get("/nowhere").expect(404)));
    gateway.get("/app/").expect(429);
}

/// The line names the first limit of the chain, and the source that decided.
#[test]
fn the_line_of_a_chain_names_its_first_limit() {
    let upstream = Upstream::new(|_| Reply::with(200, &[("X-Cost", "50")], "done"));
    for (first, charged, by) in [
        ("\"header:X-Cost\"", 50, "usage"),
        ("[request, \"header:X-Cost\"]", 51, "usage"),
        ("[bytes, \"header:X-Cost\"]", 54, "usage"),
        ("[\"header:X-Cost\", \"json:/none\"]", 50, "usage"),
        ("[request, \"json:/none\"]", 7, "reserve"),
        ("request", 1, "request"),
    ] {
        let gateway = Gateway::start(&format!(
            "limits:\n  first: {{ rate: 100/1h, charge: {{ units: {first}, reserve: 7 }} }}\n  \
             login: {{ rate: 100/1h, cost: 3, charge: {{ when: 2xx }} }}\n\
             locations: [{{ path: /, upstream: \"{}\", limits: [first, login] }}]\n",
            upstream.url()
        ));
        gateway.get("/").expect(200);
        let line = line_of(&gateway, 1);
        assert_eq!((&line["charged"], &line["charged_by"]), (&charged.into(), &by.into()), "{first}: {line}");
        let source = format!("source=\"{by}\"");
        let units = gateway.metric("sluicegate_charged_units_total", &["limit=\"first\"", &source]);
        assert_eq!(units, f64::from(charged), "{first}");
    }
}
