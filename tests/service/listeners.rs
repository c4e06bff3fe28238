//! The listeners of the service: HTTP/2, TLS, the PROXY protocol, unix sockets, names, reloads.

use super::*;

const LIMIT: &str = "limits: { sms: { key: global, rate: 9/1h, burst: 9 } }\nlocations: [{ path: /, respond: { status: 204 } }]";

fn remaining(response: &Response) -> u64 {
    response.json()["remaining"].as_u64().expect("a number")
}

#[test]
fn each_listener_serves_its_own() {
    let gateway = Gateway::start(&format!(
        "listen: [127.0.0.1:0, {{ address: 127.0.0.1:0, name: calls }}]\nservice: {{ listen: calls }}\n{LIMIT}\n"
    ));
    let [requests, calls] = gateway.addrs()[..] else { panic!("two listeners: {:?}", gateway.addrs()) };
    let ask = post("/check", b"{\"limits\":\"sms\"}");
    Client::connect(requests).ask(&ask).expect(204);
    assert_eq!(remaining(&Client::connect(calls).ask(&ask).expect(200)), 8);
    Client::connect(calls).ask(&get("/")).expect(404);
}

#[test]
fn calls_come_over_http2_and_wait_there() {
    let gateway = Gateway::start(&format!("service: {{ listen: 127.0.0.1:0 }}\n{LIMIT}\n"));
    let mut client = Client2::connect(service(&gateway));
    for left in [8, 7] {
        let request = ::http::Request::post("http://gateway.test/check").body(()).expect("a request");
        let answer = client.ask(request, b"{\"limits\":\"sms\"}", None).expect("an answer");
        assert_eq!(answer.status, 200);
        let json: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(json["remaining"], left);
    }
}

#[test]
fn calls_come_over_tls() {
    let authority = Authority::new();
    authority.issue("calls", &["calls.test"]);
    let gateway = Gateway::start(&format!(
        "service: {{ listen: {{ address: 127.0.0.1:0, tls: {{ {} }} }} }}\n{LIMIT}\n",
        authority.entry("calls")
    ));
    for (version, shown) in [("--http2", "200 2"), ("--http1.1", "200 1.1")] {
        let arguments = [version, "-d", "{\"limits\":\"sms\"}", "https://calls.test/check"];
        let answer = authority.curl(service(&gateway), &arguments).expect(shown);
        assert!(answer.body.contains("\"verdict\":\"admit\""), "{}", answer.body);
    }
}

#[test]
fn calls_come_over_a_unix_socket_and_behind_a_proxy_header() {
    let scratch = Scratch::new();
    let path = scratch.path().join("calls.sock");
    let gateway = Run::default().start(&format!(
        "server: {{ trusted_proxies: 127.0.0.1 }}\n\
         service: {{ listen: [{{ address: \"unix:{}\", mode: \"0600\" }}, {{ address: 127.0.0.1:0, proxy_protocol: required }}] }}\n{LIMIT}\n",
        path.display()
    ));
    let ask = post("/check", b"{\"limits\":\"sms\"}");
    assert_eq!(remaining(&Client::connect_unix(&path).ask(&ask).expect(200)), 8);
    let mut proxied = Client::connect(service(&gateway));
    proxied.send("PROXY TCP4 192.0.2.9 192.0.2.1 4000 80\r\n");
    assert_eq!(remaining(&proxied.ask(&ask).expect(200)), 7);
}

#[test]
fn a_reload_opens_changes_and_closes_the_service() {
    let gateway = Gateway::start(&format!("{LIMIT}\n"));
    let port = free_addr();
    let changes = gateway.change(&format!("service: {{ listen: \"{port}\" }}\n{LIMIT}\n"));
    assert!(changes.contains("service"), "{changes}");
    let ask = post("/check", b"{\"limits\":\"sms\"}");
    let mut kept = Client::connect(port);
    kept.ask(&ask).expect(200);
    let changes = gateway.change(&format!("service: {{ listen: \"{port}\", token: new-secret }}\n{LIMIT}\n"));
    assert!(changes.contains("service") && !changes.contains("new-secret"), "{changes}");
    kept.ask(&ask).expect(401);
    gateway.change(&format!("{LIMIT}\n"));
    eventually("a closed listener", || std::net::TcpStream::connect(port).is_err());
}

/// The same socket first forwards, and then takes calls: a connection of before must not do both.
#[test]
fn a_connection_does_not_outlive_the_purpose_of_its_listener() {
    let (requests, calls) = (free_addr(), free_addr());
    let named = format!("listen: [\"{requests}\", {{ address: \"{calls}\", name: calls }}]\n");
    let gateway = Gateway::start(&format!("{named}{LIMIT}\n"));
    let mut before = Client::connect(calls);
    before.ask(&get("/")).expect(204);
    gateway.change(&format!("{named}service: {{ listen: calls }}\n{LIMIT}\n"));
    before.assert_closed();
    Client::connect(calls).ask(&post("/check", b"{\"limits\":\"sms\"}")).expect(200);
}

/// Calls that wait are answered although the service goes, and leases are known again when it is back.
#[test]
fn a_removed_service_answers_those_who_wait_and_keeps_leases() {
    let address = free_addr();
    let limits = "limits:\n  sms: { algorithm: leaky_bucket, key: global, rate: 1/1s, burst: 1, queue: 5 }\n\
                  \x20 jobs: { algorithm: concurrency, key: global, max_concurrent: 1 }\nlocations: []\n";
    let with = format!("service: {{ listen: \"{address}\" }}\n{limits}");
    let gateway = Gateway::start(&with);
    let ask = |path: &str, body: &str| Client::connect(address).ask(&post(path, body.as_bytes()));
    let lease = lease_of(&ask("/check", "{\"limits\":\"jobs\",\"lease_for\":\"1h\"}").expect(200));
    ask("/check", "{\"limits\":\"sms\"}").expect(200);
    let mut waits = Client::connect(address);
    waits.send(post("/check", b"{\"limits\":\"sms\",\"wait\":\"10s\"}").bytes());
    gateway.wait_queued(1);
    gateway.change(limits);
    assert_eq!(waits.response().expect(200).json()["verdict"], "wait");
    eventually("a closed listener", || std::net::TcpStream::connect(address).is_err());
    let guarded = format!("service: {{ listen: \"{address}\", token: a-new-token-of-it }}\n{limits}");
    gateway.change(&guarded);
    ask("/check", "{\"limits\":\"jobs\"}").expect(401);
    gateway.change(&with);
    ask("/check", "{\"limits\":\"jobs\"}").expect(429);
    ask("/release", &json!({ "lease": lease }).to_string()).expect(200);
    ask("/check", "{\"limits\":\"jobs\"}").expect(200);
}
