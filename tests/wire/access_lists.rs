//! Access lists: deny beats allow beats bypass, at every location and for unknown paths.

use crate::support::*;

fn from(gateway: &Gateway, ip: &str, target: &str) -> Response {
    Client::connect_from(ip, gateway.addr()).ask(&get(target))
}

/// A denied client gets 403 with the usual body, at locations and for unknown paths, and is charged nothing.
#[test]
fn a_denied_client_gets_403_and_charges_nothing() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "ip_sets: {{ bad: [127.0.0.66, 127.6.0.0/16] }}\naccess: {{ deny: bad }}\n\
         limits: {{ all: {{ key: global, rate: 2/h }} }}\nserver: {{ limits: all }}\n\
         locations:\n  - {{ path: /a, methods: GET, upstream: \"{}\" }}\n",
        upstream.url()
    ));
    for ip in ["127.0.0.66", "127.6.1.2"] {
        let rejected = from(&gateway, ip, "/a").expect(403);
        assert_eq!(rejected.json()["detail"], "this client may not use this resource");
        assert!(!rejected.headers.has("retry-after") && !rejected.headers.has("ratelimit"));
        from(&gateway, ip, "/nowhere").expect(403);
        Client::connect_from(ip, gateway.addr()).ask(&post("/a", b"x")).expect(403);
    }
    from(&gateway, "127.0.0.67", "/a").expect(200);
    from(&gateway, "127.0.0.67", "/nowhere").expect(404);
    from(&gateway, "127.0.0.67", "/a").expect(429);
    assert_eq!(upstream.count(), 1);
    assert_eq!(gateway.metric("sluicegate_faults_total", &["access_denied"]), 6.0);
    let lines = gateway.wait_log(9);
    let denied = |line: &&serde_json::Value| line["verdict"] == "access_denied" && line["status"] == 403;
    assert_eq!(lines.iter().filter(denied).count(), 6);
}

/// An allow list admits only its members, and not those that are also denied.
#[test]
fn an_allow_list_admits_its_members_only() {
    let gateway = Gateway::start(
        "access: { allow: 127.0.1.0/24, deny: 127.0.1.66, bypass: 127.0.0.0/8 }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: 1/h }\n",
    );
    from(&gateway, "127.0.1.66", "/").expect(403);
    from(&gateway, "127.0.2.1", "/").expect(403);
    for _ in 0..3 {
        let answer = from(&gateway, "127.0.1.1", "/").expect(200);
        assert!(!answer.headers.has("ratelimit"), "an unlimited response has no limit fields");
    }
}

/// A location overrides the top-level section field by field; the other fields stay in force.
#[test]
fn a_location_overrides_field_by_field() {
    let gateway = Gateway::start(
        "access: { allow: 127.0.1.0/24, deny: 127.0.1.66 }\n\
         locations:\n  - { path: /, respond: { body: ok } }\n  \
           - { path: /open, respond: { body: ok }, access: { allow: any } }\n  \
           - { path: /all, respond: { body: ok }, access: { allow: any, deny: [] } }\n  \
           - { path: /office, respond: { body: ok }, access: { allow: 127.0.1.9 } }\n",
    );
    let statuses = |ip: &str| {
        ["/", "/open", "/all", "/office", "/open/nowhere"].map(|target| from(&gateway, ip, target).status)
    };
    assert_eq!(statuses("127.0.1.1"), [200, 200, 200, 403, 200]);
    assert_eq!(statuses("127.0.1.9"), [200, 200, 200, 200, 200]);
    assert_eq!(statuses("127.0.1.66"), [403, 403, 200, 403, 403]);
    assert_eq!(statuses("127.0.2.1"), [403, 200, 200, 403, 200]);
}

/// Behind a trusted proxy the client's whole address counts, in every spelling; a client cannot claim another
/// one.
#[test]
fn the_forwarded_client_is_judged_by_its_whole_address() {
    let gateway = Gateway::start(
        "server: { trusted_proxies: 127.0.0.1, ipv4_prefix: 8 }\n\
         access: { deny: [192.0.2.66, \"2001:db8::66\", \"::ffff:192.0.2.128/121\"] }\n\
         locations:\n  - { path: /, respond: { body: ok } }\n",
    );
    let status = |ip: &str| gateway.ask(&get("/").header("X-Forwarded-For", ip)).status;
    for denied in ["192.0.2.66", "::ffff:192.0.2.66", "2001:db8::66", "192.0.2.200", "10.0.0.1, 192.0.2.66"] {
        assert_eq!(status(denied), 403, "{denied}");
    }
    for fine in ["192.0.2.67", "2001:db8::67", "192.0.2.66, 192.0.2.67"] {
        assert_eq!(status(fine), 200, "{fine}");
    }
    let mut stranger = Client::connect_from("127.0.0.2", gateway.addr());
    stranger.ask(&get("/").header("X-Forwarded-For", "192.0.2.66")).expect(200);
}

/// A set may be a file beside the configuration; the `bypass` of a limit applies to that limit alone.
#[test]
fn a_limit_is_bypassed_by_a_set_from_a_file() {
    let scratch = Scratch::new();
    let mut list = String::from("# 40 hosts: enough for the trie\n127.0.3.7 # office\n");
    (0..40).for_each(|n| list += &format!("127.1.{n}.0/24\n"));
    let list = scratch.file("office.txt", &list);
    let gateway = Gateway::start(&format!(
        "ip_sets: {{ office: {{ file: {} }} }}\n\
         limits: {{ all: {{ key: global, rate: 2/h, bypass: office }}, own: 3/h }}\n\
         locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: [all, own] }}\n",
        list.display()
    ));
    for ip in ["127.0.3.7", "127.1.39.200"] {
        (0..3).for_each(|_| drop(from(&gateway, ip, "/").expect(200)));
        assert_eq!(from(&gateway, ip, "/").expect(429).json()["limit"], "own");
    }
    from(&gateway, "127.1.40.1", "/").expect(200);
    from(&gateway, "127.1.40.2", "/").expect(200);
    assert_eq!(from(&gateway, "127.1.40.3", "/").expect(429).json()["limit"], "all");
}
