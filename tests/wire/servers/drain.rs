//! Draining a server through the admin address, and the names of servers there.

use std::thread;

use serde_json::Value;

use crate::support::*;

fn two_servers(gate: &Gate) -> (Upstream, Upstream, Gateway) {
    let held = gate.clone();
    let one = Upstream::new(move |seen| match seen.target.as_str() {
        "/held" => Reply::text("one").held_by(&held),
        _ => Reply::text("one"),
    });
    let other = Upstream::named("two");
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [{}, {{ url: \"{}\", backup: true }}], max_connections: 7 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        one.addr(),
        other.url()
    ));
    (one, other, gateway)
}

fn change(method: &str, path: &str) -> Ask {
    Ask::new(method, path).header("Content-Length", 0).header("Content-Type", "application/json")
}

fn ask(gateway: &Gateway, method: &str, path: &str) -> Response {
    gateway.ask_admin(&change(method, path))
}

fn path(server: &Upstream, verb: &str) -> String {
    format!("/upstreams/app/servers/{}/{verb}", server.addr())
}

fn server_states(gateway: &Gateway) -> Vec<Value> {
    let json = gateway.admin_get("/upstreams").expect(200).json();
    assert_eq!(
        (&json["upstreams"][0]["upstream"], &json["upstreams"][0]["balance"]),
        (&"app".into(), &"p2c".into())
    );
    json["upstreams"][0]["servers"].as_array().expect("servers").clone()
}

/// A drained server gets no new requests, those in flight finish, and it returns when it is undrained.
#[test]
fn a_server_is_drained_and_comes_back() {
    let gate = Gate::default();
    let (one, other, gateway) = two_servers(&gate);
    assert_eq!(gateway.get("/").expect(200).text(), "one");
    let mut slow = gateway.client();
    slow.send(get("/held").bytes());
    one.wait_for(2);
    let answer = ask(&gateway, "POST", &path(&one, "drain")).expect(200).json();
    assert_eq!((&answer[0]["state"], &answer[0]["in_flight"]), (&"draining".into(), &1.into()));
    for _ in 0..5 {
        assert_eq!(gateway.get("/").expect(200).text(), "two");
    }
    assert_eq!(gateway.metric("sluicegate_upstream_draining", &[]), 1.0);
    gate.open();
    assert_eq!(slow.response().expect(200).text(), "one");
    eventually("nothing in flight", || server_states(&gateway)[0]["in_flight"] == 0);
    ask(&gateway, "POST", &path(&one, "undrain")).expect(200);
    assert_eq!(gateway.get("/").expect(200).text(), "one");
    assert_eq!((one.count(), other.count()), (3, 5));
    gateway.wait_stderr("a server is no longer draining");
}

/// The last server that is up is drained only by force; then no server gets requests.
#[test]
fn the_last_server_is_drained_only_by_force() {
    let gate = Gate::default();
    let (one, other, gateway) = two_servers(&gate);
    ask(&gateway, "POST", &path(&one, "drain")).expect(200);
    assert!(ask(&gateway, "POST", &path(&other, "drain")).expect(409).text().contains("force=true"));
    ask(&gateway, "POST", &(path(&other, "drain") + "?force=true")).expect(200);
    gateway.get("/").expect(503);
    ask(&gateway, "POST", &path(&other, "undrain")).expect(200);
    assert_eq!(gateway.get("/").expect(200).text(), "two");
}

/// The state of servers, and invalid requests.
#[test]
fn servers_are_listed() {
    let ill = Upstream::new(|_| Reply::with(503, &[], "no"));
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [{{ url: \"{}\", weight: 3 }}], max_connections: 9, eject: {{ status: 503 }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n  - {{ path: /x, upstream: \"http://localhost:1\" }}\n",
        ill.url()
    ));
    gateway.get("/").expect(503);
    let server = &server_states(&gateway)[0];
    assert_eq!(server["server"], ill.addr().to_string());
    assert_eq!(
        (&server["state"], &server["weight"], &server["share"]),
        (&"up".into(), &3.into(), &100.into())
    );
    assert_eq!((&server["max_connections"], &server["backup"]), (&9.into(), &false.into()));
    assert_eq!(server["last_error"]["error"], "status 503");
    assert!(server["last_error"]["seconds_ago"].as_f64().expect("a number") < 10.0);
    // The URL of a location is an upstream too, and its name was looked up in advance.
    let by_url = || gateway.admin_get("/upstreams").json()["upstreams"][1].clone();
    assert_eq!(by_url()["upstream"], "http://localhost:1");
    eventually("its addresses", || by_url()["servers"][0]["addresses"].as_array().is_some());
    let encoded = "/upstreams/http%3A%2F%2Flocalhost%3A1/servers/localhost:1/drain?force=true";
    ask(&gateway, "POST", encoded).expect(200);
    ask(&gateway, "POST", "/upstreams/nobody/servers/a:1/drain").expect(404);
    ask(&gateway, "POST", "/upstreams/app/servers/a:1/drain").expect(404);
    ask(&gateway, "GET", &path(&ill, "drain")).expect(405);
    ask(&gateway, "POST", "/upstreams").expect(405);
    let foreign = change("POST", &path(&ill, "undrain")).header("Origin", "http://evil.test");
    gateway.ask_admin(&foreign).expect(403);
    gateway.ask_admin(&Ask::new("POST", &path(&ill, "undrain")).header("Content-Length", 0)).expect(415);
}

/// Requests that wait for a connection while others leave are not lost when a server is drained under load.
#[test]
fn draining_under_load_loses_nothing() {
    let (one, other) = (Upstream::ok(), Upstream::ok());
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [{}, {}] }}\nlocations:\n  - {{ path: /, upstream: app }}\n",
        one.addr(),
        other.addr()
    ));
    let addr = gateway.addr();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let mut client = Client::connect(addr);
                (0..200).for_each(|_| drop(client.ask(&get("/")).expect(200)));
            });
        }
        for round in 0..20 {
            let server = if round % 2 == 0 { &one } else { &other };
            ask(&gateway, "POST", &path(server, "drain")).expect(200);
            ask(&gateway, "POST", &path(server, "undrain")).expect(200);
        }
    });
    assert_eq!(one.count() + other.count(), 800);
}
