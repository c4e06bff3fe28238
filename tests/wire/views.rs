//! `{ use: NAME, burst: … }` in chains: one state for each key, judged at each place by numbers of its own.

use serde_json::Value;

use crate::support::*;

const ADMIN: &str = "admin: { listen: 127.0.0.1:0, token: s3cret }\n";

/// A limit of twenty an hour, of which `/narrow/` lets three pass at once, and `/wide/` thirty.
fn file(more: &str) -> String {
    format!(
        "limits:\n  per-ip: {{ key: header:x-user, rate: 20/h{more} }}\nlocations:\n  \
           - {{ path: /narrow/, respond: {{ body: ok }}, limits: [{{ use: per-ip, burst: 3 }}] }}\n  \
           - {{ path: /wide/, respond: {{ body: ok }}, limits: [{{ use: per-ip, burst: 30 }}] }}\n  \
           - {{ path: /, respond: {{ body: ok }}, limits: per-ip }}\n"
    )
}

fn user(path: &str, name: &str) -> Ask {
    get(path).header("x-user", name)
}

/// How many of so many requests pass.
fn passed(gateway: &Gateway, path: &str, name: &str, times: usize) -> usize {
    let mut client = gateway.client();
    (0..times).filter(|_| client.ask(&user(path, name)).status == 200).count()
}

#[test]
fn three_places_share_one_counter_and_tell_their_own_numbers() {
    let gateway = Gateway::start(&file(""));
    assert_eq!(passed(&gateway, "/narrow/", "ann", 5), 3);
    assert_eq!(passed(&gateway, "/", "ann", 30), 17);
    assert_eq!(passed(&gateway, "/wide/", "ann", 30), 10);
    // Another user has a counter of its own.
    let first = gateway.ask(&user("/narrow/", "bob")).expect(200);
    let field = |response: &Response, name: &str| response.header(name).expect(name);
    assert_eq!(field(&first, "ratelimit-policy"), "\"per-ip\";q=3;w=540");
    assert_eq!(field(&first, "ratelimit"), "\"per-ip\";r=2;t=180");
    let wide = gateway.ask(&user("/wide/", "bob")).expect(200);
    assert_eq!(field(&wide, "ratelimit-policy"), "\"per-ip\";q=30;w=5400");
    assert_eq!(field(&wide, "ratelimit"), "\"per-ip\";r=28;t=360");
    let own = gateway.ask(&user("/", "bob")).expect(200);
    assert_eq!(field(&own, "ratelimit-policy"), "\"per-ip\";q=20;w=3600");
    assert_eq!(field(&own, "ratelimit"), "\"per-ip\";r=17;t=540");
    let rejected = gateway.ask(&user("/narrow/", "bob")).expect(429);
    assert_eq!(rejected.json()["limit"], "per-ip");
    assert_eq!(rejected.json()["detail"], "limit per-ip: 20 requests per hour, burst 3");
    // One of three used units has to leave, at three minutes each.
    assert!((175_000..=180_000).contains(&rejected.retry_after_ms()), "{}", rejected.text());
    // Thirty were used by ann: 28 have to leave before the narrow place takes one.
    let late = gateway.ask(&user("/narrow/", "ann")).expect(429).retry_after_ms();
    assert!((28 * 180_000 - 20_000..=28 * 180_000).contains(&late), "{late}");
}

#[test]
fn metrics_logs_and_operators_know_one_limit() {
    let gateway = Gateway::start(&file(""));
    assert_eq!((passed(&gateway, "/wide/", "ann", 30), passed(&gateway, "/narrow/", "ann", 5)), (30, 0));
    let count = |verdict| {
        gateway.metric("sluicegate_decisions_total", &["limit=\"per-ip\"", &format!("verdict=\"{verdict}\"")])
    };
    eventually("30 admitted", || count("admit") == 30.0);
    eventually("5 rejected", || count("reject") == 5.0);
    assert_eq!(gateway.metric("sluicegate_keys", &["limit=\"per-ip\""]), 1.0);
    // The two connections may be on different workers, whose lines come in any order.
    let lines = gateway.wait_log(35);
    let rejected: Vec<&Value> = lines.iter().filter(|line| line["status"] == 429).collect();
    let is_as_told = |line: &&Value| line["limit"] == "per-ip" && line["path"] == "/narrow/";
    assert!(rejected.len() == 5 && rejected.iter().all(is_as_told), "{lines:?}");
    let json = |target: &str| -> Value {
        gateway.ask_admin(&get(target).header("Accept", "application/json")).expect(200).json()
    };
    let keys = json("/limits/per-ip/keys");
    assert_eq!(keys["keys"].as_array().map(Vec::len), Some(1), "{keys:#}");
    let name = keys["keys"][0]["key"].as_str().expect("a name").to_owned();
    let target = format!("/limits/per-ip/keys/{}", name.replace('#', "%23"));
    assert_eq!(json(&target)["remaining"], 0, "thirty are used, and the limit's own burst is twenty");
    let reset = Ask::new("POST", &format!("{target}/reset"))
        .header("Content-Type", "application/json")
        .body(b"{ \"reason\": \"test\" }");
    gateway.ask_admin(&reset).expect(200);
    assert_eq!((passed(&gateway, "/narrow/", "ann", 5), passed(&gateway, "/wide/", "ann", 40)), (3, 27));
}

#[test]
fn explain_and_check_show_the_numbers_of_the_place() {
    let dir = Scratch::new();
    let yaml = format!("listen: 127.0.0.1:0\n{ADMIN}{}", file(""));
    let path = dir.file("gateway.yaml", &yaml).display().to_string();
    let run = |args: &[&str]| Run::default().args(args).finish(dir.path());
    let explained = run(&["explain", "GET", "/narrow/x", "-H", "x-user: ann", "-c", &path]);
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let here = "per-ip: 20 requests per hour per header x-user, 3 at once; the 4th is rejected with 429 and told when to \
                return; it counts together with its other places";
    assert!(explained.stdout.contains(here), "{}", explained.stdout);
    assert!(explained.stdout.contains("3 of 3 left: admit"), "{}", explained.stdout);
    let own = run(&["explain", "GET", "/", "-H", "x-user: ann", "-c", &path]);
    assert!(
        own.stdout.contains("20 of 20 left: admit") && !own.stdout.contains("other places"),
        "{}",
        own.stdout
    );
    let checked = run(&["check", "-c", &path]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    for text in
        ["20 at once", "\n    per-ip: 20 requests per hour per header x-user, 3 at once;", ", 30 at once;"]
    {
        assert!(checked.stdout.contains(text), "{text:?} in {}", checked.stdout);
    }
}

#[test]
fn a_live_explanation_agrees_with_the_next_answer() {
    let gateway = Gateway::start(&format!("{ADMIN}{}", file("")));
    assert_eq!(passed(&gateway, "/narrow/", "ann", 2), 2);
    let left = |path: &str| {
        let body = format!("{{ \"method\": \"GET\", \"url\": \"{path}\", \"headers\": [\"x-user: ann\"] }}");
        let ask = Ask::new("POST", "/explain")
            .header("Authorization", "Bearer s3cret")
            .header("Accept", "application/json")
            .header("Content-Type", "application/json")
            .body(body.as_bytes());
        let explained = gateway.ask_admin(&ask).expect(200).json();
        let counter = &explained["limits"][0]["counters"][0];
        (counter["remaining"].as_u64().expect("a number"), counter["of"].as_u64().expect("a number"))
    };
    assert_eq!([left("/narrow/"), left("/"), left("/wide/")], [(1, 3), (18, 20), (28, 30)]);
    assert_eq!(passed(&gateway, "/narrow/", "ann", 2), 1);
}

#[test]
fn the_entry_of_a_location_comes_before_that_of_the_server() {
    let gateway = Gateway::start(
        "server: { limits: [{ use: all, burst: 4 }] }\nlimits: { all: { key: global, rate: 10/h } }\nlocations:\n  \
           - { path: /wide/, respond: { body: ok }, limits: { use: all, burst: 12 } }\n  \
           - { path: /own/, respond: { body: ok }, limits: all }\n  \
           - { path: /plain/, respond: { body: ok } }\n",
    );
    let mut client = gateway.client();
    let mut passes = |path: &str| (0..20).take_while(|_| client.ask(&get(path)).status != 429).count();
    // The first chain is that of requests without a location.
    assert_eq!([passes("/nowhere"), passes("/plain/"), passes("/own/"), passes("/wide/")], [4, 0, 6, 2]);
}

#[test]
fn a_dry_run_tells_the_verdict_of_the_place() {
    let gateway = Gateway::start(&file(", dry_run: true"));
    let told = |path: &str| gateway.ask(&user(path, "ann")).expect(200).header("sluicegate-dry-run");
    for _ in 0..3 {
        assert_eq!(told("/narrow/").as_deref(), Some("\"per-ip\";would=admit"));
    }
    assert!(told("/narrow/").is_some_and(|told| told.starts_with("\"per-ip\";would=reject")));
    assert_eq!(told("/wide/").as_deref(), Some("\"per-ip\";would=admit"));
}

/// Requests of both places leave one queue in the order of their arrival, and one that hangs up leaves it.
#[test]
fn places_with_other_queues_share_one_line() {
    let upstream = Upstream::ok();
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "limits: {{ line: {{ key: global, algorithm: leaky_bucket, rate: 4/s, queue: 1 }} }}\nlocations:\n  \
           - {{ path: /long/, upstream: \"{url}\", limits: {{ use: line, queue: 5 }} }}\n  \
           - {{ path: /, upstream: \"{url}\", limits: line }}\n"
    ));
    let mut clients: Vec<_> = (0..4).map(|_| gateway.client()).collect();
    for (place, client) in clients.iter_mut().enumerate() {
        client.send(get(&format!("/long/{place}")).bytes());
        eventually("its place", || upstream.count() + gateway_waiting(&gateway) > place);
    }
    assert_eq!(
        gateway.get("/").expect(429).json()["detail"],
        "limit line: 4 requests per second, burst 1, queue 1"
    );
    drop(clients.remove(1));
    let _ = clients.iter_mut().map(Client::response).collect::<Vec<_>>();
    let targets = upstream.targets();
    assert_eq!(targets.first().map(String::as_str), Some("/long/0"), "{targets:?}");
    assert!(targets.iter().filter(|target| *target != "/long/1").is_sorted(), "{targets:?}");
}

fn gateway_waiting(gateway: &Gateway) -> usize {
    gateway.metric("sluicegate_queue_depth", &["limit=\"line\""]) as usize
}

/// A charge that the response settles is one of the limit, whichever place made it.
#[test]
fn charges_are_settled_for_every_place() {
    let gateway = Gateway::start(
        "limits: { failures: { key: global, rate: 10/h, burst: 3, charge: { when: [401] } } }\nlocations:\n  \
           - { path: /ok/, respond: { body: ok }, limits: { use: failures, burst: 6 } }\n  \
           - { path: /bad/, respond: { status: 401 }, limits: { use: failures, burst: 6 } }\n  \
           - { path: /, respond: { status: 401 }, limits: failures }\n",
    );
    let mut client = gateway.client();
    let mut statuses =
        |path: &str, times: usize| (0..times).map(|_| client.ask(&get(path)).status).collect::<Vec<_>>();
    assert_eq!(statuses("/ok/", 20), [200; 20], "they cost nothing");
    assert_eq!(statuses("/", 4), [401, 401, 401, 429]);
    assert_eq!(statuses("/bad/", 4), [401, 401, 401, 429]);
    assert_eq!(statuses("/ok/", 1), [429]);
}
