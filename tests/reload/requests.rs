//! The effect of a reload on requests: those in flight end under the old file, later ones see the new file.

use rustix::process::Signal;

use crate::support::*;

fn saying(word: &str) -> String {
    format!("locations:\n  - {{ path: /, respond: {{ body: {word} }} }}\n")
}

/// HUP: the next request on an open connection is answered by the new file.
#[test]
fn hup_takes_the_file_over_on_open_connections() {
    let gateway = Gateway::start(&saying("one"));
    let mut client = gateway.client();
    assert_eq!(client.ask(&get("/")).expect(200).text(), "one");
    gateway.write(&saying("two"));
    gateway.signal(Signal::HUP);
    eventually("the new answer", || client.ask(&get("/")).expect(200).text() == "two");
    gateway.wait_stderr("reloaded: locations: changed /");
    assert_eq!(gateway.metric("sluicegate_reloads_total", &["result=\"ok\""]), 1.0);
    assert_eq!(gateway.metric("sluicegate_config_generation", &[]), 2.0);
}

/// Many signals at once end with the last file, after few reloads.
#[test]
fn many_hups_collapse() {
    let gateway = Gateway::start(&saying("n0"));
    for n in 1..=40 {
        gateway.write(&saying(&format!("n{n}")));
        gateway.signal(Signal::HUP);
    }
    eventually("the last answer", || gateway.get("/").expect(200).text() == "n40");
    // The new file answers requests a moment before the reload is counted.
    eventually("a reload", || gateway.metric("sluicegate_reloads_total", &[]) >= 1.0);
    let reloads = gateway.metric("sluicegate_reloads_total", &[]);
    assert!((1.0..=41.0).contains(&reloads), "{reloads}");
}

/// A request in flight ends under its own gateway: it gets its answer, though its location is gone.
#[test]
fn a_request_in_flight_keeps_its_gateway() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = forwarding(&upstream, "");
    let mut busy = gateway.client();
    busy.send(get("/slow").bytes());
    upstream.wait_for(1);
    gateway.change(&saying("new"));
    assert_eq!(gateway.get("/slow").expect(200).text(), "new");
    assert_eq!(gateway.metric("sluicegate_config_live", &[]), 2.0);
    gate.open();
    busy.response().expect(200);
    assert_eq!(busy.ask(&get("/slow")).expect(200).text(), "new");
    eventually("one gateway", || gateway.metric("sluicegate_config_live", &[]) == 1.0);
}

/// Twenty reloads with open connections leave one gateway, and all connections use the last one.
#[test]
fn idle_connections_hold_no_gateway() {
    let upstream = Upstream::ok();
    let file = |n: usize| {
        format!(
            "limits: {{ per-ip: {{ rate: {}/s, burst: 500 }} }}\nlocations:\n  - {{ path: /up, upstream: \"{}\", limits: per-ip }}\n  \
               - {{ path: /, respond: {{ body: n{n} }} }}\n",
            n + 1000,
            upstream.url()
        )
    };
    let gateway = Gateway::start(&file(0));
    let mut clients: Vec<Client> = (0..10).map(|_| gateway.client()).collect();
    for n in 1..=20 {
        clients[n % 10].ask(&get("/up")).expect(200);
        clients[n % 10].ask(&get("/")).expect(200);
        gateway.change(&file(n));
    }
    for client in &mut clients {
        assert_eq!(client.ask(&get("/")).expect(200).text(), "n20");
    }
    eventually("one gateway", || gateway.metric("sluicegate_config_live", &[]) == 1.0);
    assert_eq!(gateway.metric("sluicegate_connections", &[]), 10.0);
}

/// Counters belong to the name of the limit: tokens spent before a reload stay spent.
#[test]
fn counters_survive() {
    let file = |more: &str| {
        format!(
            "limits: {{ two: {{ key: header:x-user, rate: 2/h, burst: 2 }} }}\nlocations:\n  \
               - {{ path: /, respond: {{ body: ok }}, limits: two }}\n{more}"
        )
    };
    let gateway = Gateway::start(&file(""));
    let ask = |user: &str| gateway.ask(&get("/").header("x-user", user)).status;
    assert_eq!([ask("ann"), ask("ann"), ask("ann"), ask("bob")], [200, 200, 429, 200]);
    let answer = gateway.change(&file("  - { path: /more, respond: { body: more } }\n"));
    assert_eq!(answer, "reloaded: locations: added /more\n  locations /more: new\n");
    assert_eq!([ask("ann"), ask("bob"), ask("bob"), ask("eve")], [429, 200, 429, 200]);
    let admitted = gateway.metric("sluicegate_decisions_total", &["limit=\"two\"", "admit"]);
    assert_eq!(admitted, 5.0);
}

/// A limit changes from two to one to three, is renamed, and is removed and restored.
#[test]
fn a_limit_changes_its_numbers() {
    let file = |name: &str, burst: u32| {
        format!(
            "limits: {{ {name}: {{ key: global, algorithm: fixed_window, rate: {burst}/1h }} }}\nlocations:\n  \
               - {{ path: /, respond: {{ body: ok }}, limits: {name} }}\n"
        )
    };
    let gateway = Gateway::start(&file("a", 2));
    let ask = || gateway.get("/").status;
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    gateway.change(&file("a", 1));
    assert_eq!(ask(), 429);
    // Two were admitted in this window: one of three is left.
    gateway.change(&file("a", 3));
    assert_eq!([ask(), ask()], [200, 429]);
    gateway.change(&file("b", 3));
    assert_eq!([ask(), ask(), ask(), ask()], [200, 200, 200, 429]);
    gateway.change(&file("a", 3));
    assert_eq!([ask(), ask(), ask(), ask()], [200, 200, 200, 429]);
}

/// A queued request keeps its place: a reload lets no other request pass and adds no gap.
#[test]
fn waiters_keep_their_places() {
    let upstream = Upstream::ok();
    let file = |n: usize| {
        format!(
            "limits: {{ q: {{ key: global, algorithm: leaky_bucket, rate: 10/s, queue: 20 }} }}\nlocations:\n  \
               - {{ path: /, upstream: \"{}\", limits: q }}\n  - {{ path: /n{n}, upstream: demo }}\n",
            upstream.url()
        )
    };
    let gateway = Gateway::start(&file(0));
    let addr = gateway.addr();
    let noise = Noise::listen();
    let volley = std::thread::spawn(move || volley(addr, (0..12).map(|_| get("/"))));
    gateway.wait_queued(11);
    for n in 1..=3 {
        gateway.change(&file(n));
        std::thread::sleep(ms(150));
    }
    let shots = volley.join().expect("a volley");
    let due: Vec<u64> = (0..12).map(|n| n * 100).collect();
    noise.assert_schedule(&crate::support::volley::answered(&shots, 200), &due);
}
