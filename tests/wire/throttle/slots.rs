//! concurrency with a queue: requests wait for a slot, in order, and who leaves costs nobody anything.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

/// A location in front of `upstream` with one concurrency limit of all clients.
fn gateway_file(upstream: &Upstream, limit: &str) -> String {
    format!(
        "account: {{ from: header:x-account }}\n\
         limits:\n  slots: {{ key: global, algorithm: concurrency, {limit} }}\n\
         locations:\n  - {{ path: /patient, upstream: \"{0}\", limits: slots }}\n  \
           - {{ path: /, upstream: \"{0}\", limits: slots, timeout: 5s }}\n",
        upstream.url()
    )
}

fn slot_gateway(upstream: &Upstream, limit: &str) -> Gateway {
    Gateway::start(&gateway_file(upstream, limit))
}

/// Sends requests on a connection each, after the previous one is counted as waiting.
fn enqueue<'t>(gateway: &Gateway, targets: impl IntoIterator<Item = &'t str>) -> Vec<Client> {
    let before = gateway.metric("sluicegate_queue_depth", &[]) as u32;
    let clients = targets.into_iter().enumerate().map(|(n, target)| {
        let mut client = gateway.client();
        client.send(get(target).bytes());
        gateway.wait_queued(before + n as u32 + 1);
        client
    });
    clients.collect()
}

/// Thirty requests against two slots: all are served, two at a time, in the order of arrival.
#[test]
fn a_queue_serves_all_in_order() {
    let gate = Gate::default();
    let script = gate.clone();
    let upstream = Upstream::new(move |seen| match seen.target.as_str() {
        "/patient/0" | "/patient/1" => Reply::text("ok").held_by(&script),
        _ => Reply::text("ok").after(ms(30)),
    });
    let gateway = slot_gateway(&upstream, "max_concurrent: 2, queue: 40");
    let targets: Vec<String> = (0..30).map(|n| format!("/patient/{n}")).collect();
    let mut clients: Vec<Client> = (0..2).map(|_| gateway.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(get(&targets[n]).bytes());
        upstream.wait_for(n + 1);
    }
    clients.extend(enqueue(&gateway, targets[2..].iter().map(String::as_str)));
    let started = Instant::now();
    gate.open();
    clients.iter_mut().for_each(|client| drop(client.response().expect(200)));
    assert!(started.elapsed() >= ms(14 * 30), "{:?}: more than two at a time", started.elapsed());
    let order = upstream.targets();
    // Two are under way together, so neighbours may reach the upstream in either order.
    let place = |target: &String| order.iter().position(|other| other == target).unwrap();
    let in_order = targets.iter().enumerate().all(|(number, target)| place(target).abs_diff(number) <= 2);
    assert!(in_order && order.len() == 30, "{order:?}");
    eventually("no waiter", || gateway.metric("sluicegate_queue_depth", &[]) == 0.0);
    assert!(gateway.metric("sluicegate_decisions_total", &["verdict=\"wait\""]) == 28.0);
    let lines = gateway.wait_log(30);
    let waited = lines.iter().filter(|line| line["verdict"] == "wait");
    assert_eq!(waited.clone().count(), 28);
    assert!(waited.clone().all(|line| line["limit"] == "slots" && line["wait_ms"].as_f64() > Some(0.0)));
}

#[test]
fn a_full_queue_rejects_at_once() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = slot_gateway(&upstream, "max_concurrent: 1, queue: 2");
    let mut holder = gateway.client();
    holder.send(get("/patient").bytes());
    upstream.wait_for(1);
    let mut waiters = enqueue(&gateway, ["/patient/a", "/patient/b"]);
    let noise = Noise::listen();
    let asked = Instant::now();
    let rejected = gateway.get("/patient").expect(503);
    assert!(asked.elapsed() < ms(20) + noise.late(), "it took {:?}", asked.elapsed());
    assert_eq!(rejected.json()["limit"], "slots");
    assert!(rejected.json().get("retry_after_ms").is_none(), "{}", rejected.text());
    let seconds: u64 = rejected.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    gate.open();
    holder.response().expect(200);
    waiters.iter_mut().for_each(|waiter| drop(waiter.response().expect(200)));
    assert_eq!(upstream.targets(), ["/patient", "/patient/a", "/patient/b"]);
    let lines = gateway.wait_log(4);
    let line = lines.iter().find(|line| line["verdict"] == "reject").unwrap();
    assert!(line["limit"] == "slots" && line.get("retry_after_ms").is_none(), "{line}");
}

/// A waiter that hangs up is never forwarded, and those behind it move up.
#[test]
fn a_waiter_that_hangs_up_never_reaches_the_upstream() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/hold", &gate);
    let gateway = slot_gateway(&upstream, "max_concurrent: 1, queue: 9");
    let mut holder = gateway.client();
    holder.send(get("/hold").bytes());
    upstream.wait_for(1);
    let mut waiters = enqueue(&gateway, ["/0", "/1", "/2", "/3"]);
    drop(waiters.remove(2));
    waiters.remove(0).reset();
    gateway.wait_queued(2);
    gate.open();
    holder.response().expect(200);
    waiters.iter_mut().for_each(|waiter| drop(waiter.response().expect(200)));
    assert_eq!(upstream.targets(), ["/hold", "/1", "/3"]);
    let gone = gateway.wait_log(5).into_iter().filter(|line| line["status"] == 499);
    assert!(gone.clone().count() == 2 && gone.clone().all(|line| line["wait_ms"].as_f64() > Some(0.0)));
}

#[test]
fn max_wait_and_the_timeout_of_the_location_end_a_wait() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/patient/hold", &gate);
    for (max_wait, target, expected) in [("300ms", "/patient", 300), ("none", "/", 5_000)] {
        let gateway = slot_gateway(&upstream, &format!("max_concurrent: 1, queue: 9, max_wait: {max_wait}"));
        let mut holder = gateway.client();
        let before = upstream.count();
        holder.send(get("/patient/hold").bytes());
        upstream.wait_for(before + 1);
        let (noise, asked) = (Noise::listen(), Instant::now());
        let rejected = gateway.get(target).expect(503);
        assert_between("the wait", asked.elapsed(), expected, &noise);
        assert_eq!(rejected.json()["limit"], "slots");
        gateway.wait_queued(0);
        assert_eq!(upstream.count(), before + 1);
        let lines = gateway.wait_log(1);
        let wait_ms = lines[0]["wait_ms"].as_f64().unwrap();
        assert!(wait_ms >= expected as f64 - 1.0, "{}", lines[0]);
    }
}

/// Waiters stay over a reload: more slots take them at once, a shorter max_wait ends their waits.
#[test]
fn a_reload_reaches_those_who_wait() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = slot_gateway(&upstream, "max_concurrent: 1, queue: 9");
    let mut holder = gateway.client();
    holder.send(get("/patient/0").bytes());
    upstream.wait_for(1);
    let mut waiters = enqueue(&gateway, ["/patient/1", "/patient/2", "/patient/3"]);
    gateway.change(&gateway_file(&upstream, "max_concurrent: 3, queue: 1, max_wait: 1h"));
    upstream.wait_for(3);
    gateway.wait_queued(1);
    let mut passed = upstream.targets();
    passed.sort();
    assert_eq!(passed, ["/patient/0", "/patient/1", "/patient/2"]);
    gateway.get("/patient").expect(503);
    gateway.change(&gateway_file(&upstream, "max_concurrent: 3, queue: 1, max_wait: 100ms"));
    waiters.pop().unwrap().response().expect(503);
    gate.open();
    holder.response().expect(200);
    waiters.iter_mut().for_each(|waiter| drop(waiter.response().expect(200)));
    gateway.get("/patient").expect(200);
}

/// The values of `fair_by` take turns, and a full queue makes room for one with fewer waiters.
#[test]
fn waiters_take_turns_and_a_newcomer_displaces_the_newest_of_the_busiest() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/hold", &gate);
    let gateway = slot_gateway(&upstream, "max_concurrent: 1, queue: 3, fair_by: account");
    let mut holder = gateway.client();
    holder.send(get("/hold").bytes());
    upstream.wait_for(1);
    let enqueue_as = |account: &str, target: &str| {
        let mut client = gateway.client();
        client.send(get(target).header("X-Account", account).bytes());
        client
    };
    let mut busy = Vec::new();
    for n in 0..3 {
        busy.push(enqueue_as("busy", &format!("/busy{n}")));
        gateway.wait_queued(n + 1);
    }
    let mut other = enqueue_as("other", "/other");
    busy.pop().unwrap().response().expect(503);
    gateway.wait_queued(3);
    gateway.ask(&get("/more").header("X-Account", "busy")).expect(503);
    gate.open();
    holder.response().expect(200);
    other.response().expect(200);
    busy.iter_mut().for_each(|client| drop(client.response().expect(200)));
    assert_eq!(upstream.targets(), ["/hold", "/busy0", "/other", "/busy1"]);
}

#[test]
fn an_explanation_tells_the_position() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = slot_gateway(&upstream, "max_concurrent: 1, queue: 2");
    let explain = || {
        let ask = post("/explain", br#"{ "method": "GET", "url": "/patient" }"#);
        gateway
            .ask_admin(&ask.header("Content-Type", "application/json").header("Accept", "application/json"))
    };
    let verdict = || explain().expect(200).json()["verdict"].clone();
    assert_eq!(verdict()["outcome"], "admit");
    let mut clients = vec![gateway.client()];
    clients[0].send(get("/patient").bytes());
    upstream.wait_for(1);
    clients.extend(enqueue(&gateway, ["/patient"]));
    let waits = verdict();
    assert_eq!(
        (&waits["outcome"], &waits["position"], &waits["limit"]),
        (&"wait".into(), &2.into(), &"slots".into())
    );
    assert!(waits.get("wait_ms").is_none(), "{waits}");
    clients.extend(enqueue(&gateway, ["/patient"]));
    let rejects = verdict();
    assert_eq!((&rejects["outcome"], &rejects["status"]), (&"reject".into(), &503.into()));
    assert!(rejects["retry_after"].is_string() && rejects.get("retry_after_ms").is_none(), "{rejects}");
    let json = |target: &str| {
        gateway.ask_admin(&get(target).header("Accept", "application/json")).expect(200).json()
    };
    assert_eq!(json("/limits")["limits"][0]["waiting"], 2);
    let key = json("/limits/slots/keys/global");
    assert_eq!((&key["waiting"], &key["remaining"]), (&2.into(), &0.into()), "{key}");
    gate.open();
    clients.iter_mut().for_each(|client| drop(client.response().expect(200)));
}

/// A thousand clients that leave in every phase leave nothing in flight and nobody in the queue.
#[test]
fn a_thousand_aborted_requests_leave_nothing_behind() {
    let gate = Gate::default();
    let script = gate.clone();
    let upstream = Upstream::new(move |seen| match seen.target.as_str() {
        "/slow" => Reply::text("late").after(ms(20)),
        "/cut" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc").close(),
        "/gone" => Reply::default().reset(),
        "/patient" => Reply::text("ok").held_by(&script),
        _ => Reply::text("ok"),
    });
    let gateway = slot_gateway(&upstream, "max_concurrent: 3, queue: 25");
    for round in 0..25 {
        let mut crowd: Vec<_> = (0..40).map(|_| gateway.client()).collect();
        for (n, client) in crowd.iter_mut().enumerate() {
            client.send(get(["/slow", "/cut", "/gone", "/ok"][n % 4]).bytes());
        }
        thread::sleep(Duration::from_millis(round % 4 * 7));
        for (n, client) in crowd.into_iter().enumerate() {
            if n % 2 == 0 { client.reset() } else { drop(client) }
        }
    }
    eventually("an empty queue", || gateway.metric("sluicegate_queue_depth", &[]) == 0.0);
    let held = || upstream.targets().iter().filter(|target| *target == "/patient").count();
    // All slots are free: three requests pass at once, and the next one is the first to wait.
    let mut clients: Vec<Client> = (0..3).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get("/patient").bytes()));
    eventually("three requests in flight", || held() == 3);
    clients.extend(enqueue(&gateway, ["/patient"; 25]));
    assert_eq!(held(), 3);
    gateway.get("/patient").expect(503);
    gate.open();
    clients.iter_mut().for_each(|client| drop(client.response().expect(200)));
}
