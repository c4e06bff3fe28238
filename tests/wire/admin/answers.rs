//! The makers of answers: operators see whether servers, limits, clients or the gateway itself are the cause.

use serde_json::{Value, json};

use super::events::EventReader;
use crate::support::*;

fn counts(of: [u64; 4]) -> Value {
    let [ok, redirect, client, server] = of;
    json!({ "2xx": ok, "3xx": redirect, "4xx": client, "5xx": server })
}

fn json_of(gateway: &Gateway, target: &str) -> Value {
    gateway.ask_admin(&get(target).header("Accept", "application/json")).expect(200).json()
}

/// The upstream is up for health checks and connections, so its responses alone tell.
#[test]
fn an_upstream_that_fails_each_request_is_seen() {
    let failing = Upstream::new(|_| Reply::with(500, &[], "no"));
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ servers: [{}] }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n  - {{ path: /idle, respond: {{ body: ok }} }}\n",
        failing.addr()
    ));
    let mut reader = EventReader::open(&gateway);
    (0..7).for_each(|_| drop(gateway.get("/").expect(500)));
    eventually("the responses in an event", || {
        let event = reader.next_event();
        let (upstream, location) = (&event["upstreams"][0], &event["locations"][0]);
        let seen = upstream["responses"]["5xx"].as_f64() > Some(0.0);
        assert_eq!(location["own"]["server"], 0.0, "{event:#}");
        assert_eq!(event["locations"].as_array().map(Vec::len), Some(3), "{event:#}");
        seen && location["location"] == "/" && location["responses"]["5xx"] == upstream["responses"]["5xx"]
    });
    let listed = json_of(&gateway, "/upstreams");
    let status = json_of(&gateway, "/status");
    for upstream in [&listed["upstreams"][0], &status["upstreams"][0], &json_of(&gateway, "/upstreams/app")] {
        assert_eq!(upstream["responses"], counts([0, 0, 0, 7]), "{upstream:#}");
        assert_eq!(upstream["servers"][0]["responses"], counts([0, 0, 0, 7]), "{upstream:#}");
        assert_eq!(upstream["servers"][0]["state"], "up");
    }
    let text = gateway.admin_get("/status").expect(200).text();
    let row = text.lines().find(|line| line.contains(&failing.addr().to_string())).expect("a row");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>()[2..], ["up", "0", "7"], "{text}");
    assert!(text.contains("in flight  5xx"), "{text}");
    let labels = ["location=\"/\"", "by=\"server\"", "status=\"5xx\""];
    assert_eq!(gateway.metric("sluicegate_requests_total", &labels), 7.0);
    let labels = ["upstream=\"app\"", "outcome=\"5xx\""];
    assert_eq!(gateway.metric("sluicegate_upstream_requests_total", &labels), 7.0);
    assert_eq!(gateway.metric("sluicegate_own_answers_total", &["location=\"/\""]), 0.0);
}

/// A server counts its tries, and its upstream the responses that were passed on.
#[test]
fn a_response_that_is_tried_again_counts_for_its_server_alone() {
    let (failing, well) = (Upstream::new(|_| Reply::with(503, &[], "no")), Upstream::named("well"));
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [{}, {}], balance: round_robin, retries: {{ when: [503], attempts: 2 }}, eject: none }}\n\
         locations: [{{ path: /, upstream: app }}]\n",
        failing.addr(),
        well.addr()
    ));
    (0..4).for_each(|_| drop(gateway.get("/").expect(200)));
    let upstream = json_of(&gateway, "/upstreams/app");
    assert_eq!(upstream["responses"], counts([4, 0, 0, 0]), "{upstream:#}");
    let tries = failing.count() as u64;
    assert!(tries > 0);
    assert_eq!(upstream["servers"][0]["responses"], counts([0, 0, 0, tries]), "{upstream:#}");
    assert_eq!(upstream["servers"][1]["responses"], counts([4, 0, 0, 0]), "{upstream:#}");
    let labels = ["location=\"/\"", "by=\"server\""];
    assert_eq!(gateway.metric("sluicegate_requests_total", &labels), 4.0);
}

const FILE: &str = "limits:
  once: { rate: 1/h, key: global }
  text: { rate: 1/h, key: global, on_reject: { degrade: { status: 503, body: busy } } }
  other: { rate: 1/h, key: global, on_reject: { degrade: app } }
  tried: { rate: 1/h, key: global, dry_run: true }
  slots: { algorithm: concurrency, max_concurrent: 1, queue: 5, key: global }
  keyed: { rate: 1/s, key: 'header:X-Key', missing_key: reject }
upstreams:
  app: { servers: [APP] }
  full: { servers: [APP], max_connections: 1, queue: { size: 5, max_wait: 100ms } }
  refusing: { servers: [REFUSING] }
locations:
  - { path: /app, upstream: app }
  - { path: /once, upstream: app, limits: once, on_reject: { status: 503 } }
  - { path: /text, upstream: app, limits: text }
  - { path: /other, upstream: app, limits: other }
  - { path: /tried, upstream: app, limits: tried }
  - { path: /held, upstream: app, limits: slots }
  - { path: /slots, upstream: app, limits: slots, timeout: 200ms }
  - { path: /keyed, upstream: app, limits: keyed }
  - { path: /full, upstream: full }
  - { path: /refusing, upstream: refusing }
  - { path: /slow, upstream: app, timeout: 200ms }
  - { path: /cut, upstream: app }
  - { path: /respond, respond: { status: 503, body: maintenance } }
  - { path: /denied, upstream: app, access: { deny: [127.0.0.1] } }
";

/// The answers of a location: by maker, and the causes of those in place of a server's.
#[test]
fn each_answer_has_one_maker_and_one_cause() {
    let gate = Gate::default();
    let held = gate.clone();
    let app = Upstream::new(move |seen| match &*seen.target {
        "/slow" => Reply::silence(),
        "/held" | "/full?held" => Reply::text("late").held_by(&held),
        "/cut" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab").close(),
        "/app?error" => Reply::with(502, &[], "its own"),
        _ => Reply::text("ok"),
    });
    let refusing = Refusing::new();
    let file = FILE.replace("APP", &app.addr().to_string()).replace("REFUSING", &refusing.addr().to_string());
    let gateway = Gateway::start(&file);
    let statuses =
        |path: &str, count: usize| -> Vec<u16> { (0..count).map(|_| gateway.get(path).status).collect() };
    assert_eq!(statuses("/app", 2), [200, 200]);
    assert_eq!(statuses("/app?error", 1), [502]);
    assert_eq!(statuses("/once", 3), [200, 503, 503]);
    assert_eq!(statuses("/text", 2), [200, 503]);
    assert_eq!(statuses("/other", 2), [200, 200]);
    assert_eq!(statuses("/tried", 2), [200, 200]);
    assert_eq!(statuses("/keyed", 1), [403]);
    assert_eq!(statuses("/refusing", 1), [502]);
    assert_eq!(statuses("/slow", 1), [504]);
    assert_eq!(statuses("/respond", 1), [503]);
    assert_eq!(statuses("/denied", 1), [403]);
    assert_eq!(statuses("/nowhere", 1), [404]);
    let mut client = gateway.client();
    client.send(get("/cut").bytes());
    client.raw_head(PATIENCE).expect("the head of the server");
    client.until_close();
    let ban =
        post("/bans", br#"{"ip": "127.0.0.9", "for": "1h"}"#).header("Content-Type", "application/json");
    gateway.ask_admin(&ban).expect(200);
    Client::connect_from("127.0.0.9", gateway.addr()).ask(&get("/app")).expect(429);
    let mut waiting = [gateway.client(), gateway.client()];
    for (client, path) in waiting.iter_mut().zip(["/held", "/full?held"]) {
        let before = app.count();
        client.send(get(path).bytes());
        app.wait_for(before + 1);
    }
    gateway.get("/slots").expect(503);
    gateway.get("/full").expect(503);
    gate.open();
    waiting.iter_mut().for_each(|client| drop(client.response().expect(200)));
    compare_counts(&gateway);
}

#[track_caller]
fn compare_counts(gateway: &Gateway) {
    for (location, by, own) in [
        ("/app", [2 + 1, 1, 0, 0], [0, 1, 0, 0, 0]),
        ("/once", [1, 2, 0, 0], [2, 0, 0, 0, 0]),
        ("/text", [1, 1, 0, 0], [1, 0, 0, 0, 0]),
        ("/other", [2, 0, 0, 0], [0; 5]),
        ("/tried", [2, 0, 0, 0], [0; 5]),
        ("/slots", [0, 1, 0, 0], [0, 0, 1, 0, 0]),
        ("/keyed", [0, 1, 0, 0], [1, 0, 0, 0, 0]),
        ("/full", [1, 0, 0, 1], [0, 0, 1, 0, 0]),
        ("/refusing", [0, 0, 0, 1], [0, 0, 0, 1, 0]),
        ("/slow", [0, 0, 0, 1], [0, 0, 0, 1, 0]),
        ("/cut", [1, 0, 0, 0], [0; 5]),
        ("/respond", [0, 0, 1, 0], [0; 5]),
        ("/denied", [0, 0, 0, 1], [0, 0, 0, 0, 1]),
        ("none", [0, 0, 0, 1], [0, 0, 0, 0, 1]),
    ] {
        let location = format!("location=\"{location}\"");
        let sum = |name: &str, label: &str, value: &str| {
            gateway.metric(name, &[&location, &format!("{label}=\"{value}\"")])
        };
        let makers = ["server", "limit", "location", "gateway"];
        let seen = makers.map(|by| sum("sluicegate_requests_total", "by", by) as u64);
        assert_eq!(seen, by, "{location}: {makers:?}");
        let causes = ["limit", "ban", "queue", "server", "fault"];
        let seen = causes.map(|cause| sum("sluicegate_own_answers_total", "cause", cause) as u64);
        assert_eq!(seen, own, "{location}: {causes:?}");
    }
}
