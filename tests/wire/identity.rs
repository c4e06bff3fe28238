//! Client identity: addresses behind proxies, keys, request ids.

use crate::support::*;

/// Responds with the client's address as the gateway understands it.
fn mirror_gateway(trusted: &str, extra: &str) -> Gateway {
    Gateway::start(&format!(
        "server: {{ trusted_proxies: [{trusted}]{extra} }}\n\
         locations:\n  - {{ path: /, respond: {{ body: \"${{client_ip}}\" }} }}\n"
    ))
}

fn client_ip(gateway: &Gateway, lines: &[(&str, &str)]) -> String {
    let ask = lines.iter().fold(get("/"), |ask, (name, value)| ask.header(name, value));
    gateway.ask(&ask).expect(200).text()
}

/// An untrusted peer is one client, whatever address it claims.
#[test]
fn untrusted_peers_cannot_choose_their_address() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /, respond: { body: ok }, limits: { key: ip, rate: 5/h } }\n",
    );
    let mut client = gateway.client();
    let mut passed = 0;
    for n in 0..1000 {
        let ip = format!("10.{}.{}.1", n / 256, n % 256);
        let name = ["X-Forwarded-For", "Forwarded", "X-Real-IP", "True-Client-IP"][n % 4];
        let value = if name == "Forwarded" { format!("for={ip}") } else { ip };
        passed += usize::from(client.ask(&get("/").header(name, value)).status == 200);
    }
    assert_eq!(passed, 5);
}

/// The right-most untrusted hop is the client.
#[test]
fn the_right_most_untrusted_hop_is_the_client() {
    let gateway = mirror_gateway("127.0.0.1/32, 10.0.1.0/24", "");
    for (hops, expected) in [
        ("10.0.0.1, 192.0.2.1", "192.0.2.1"),
        ("10.0.1.1, 192.0.2.1, 127.0.0.1", "192.0.2.1"),
        ("192.0.2.1, 10.0.1.1, 127.0.0.1", "192.0.2.1"),
        ("192.0.2.9, 192.0.2.1, 10.0.1.7", "192.0.2.1"),
        ("192.0.2.1", "192.0.2.1"),
        // Every hop is trusted: the left-most counts.
        ("10.0.1.1, 127.0.0.1", "10.0.1.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
    ] {
        assert_eq!(client_ip(&gateway, &[("X-Forwarded-For", hops)]), expected, "{hops}");
    }
    assert_eq!(client_ip(&gateway, &[]), "127.0.0.1");
    let mut stranger = Client::connect_from("127.0.0.2", gateway.addr());
    let answer = stranger.ask(&get("/").header("X-Forwarded-For", "192.0.2.1"));
    assert_eq!(answer.text(), "127.0.0.2");
}

/// Several header lines are one list; the walk stops at an element that is no address.
#[test]
fn header_lines_are_joined_before_the_walk() {
    let gateway = mirror_gateway("127.0.0.1/32, 10.0.1.0/24", "");
    let xff = |lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|&line| ("X-Forwarded-For", line)).collect();
        client_ip(&gateway, &lines)
    };
    assert_eq!(xff(&["10.0.1.1", "192.0.2.1", "127.0.0.1"]), "192.0.2.1");
    assert_eq!(xff(&["192.0.2.1", "127.0.0.1, 10.0.1.1"]), "192.0.2.1");
    assert_eq!(xff(&["192.0.2.1", "unknown, 10.0.1.1"]), "10.0.1.1");
    assert_eq!(xff(&["192.0.2.1, junk"]), "127.0.0.1");
    assert_eq!(xff(&[""]), "127.0.0.1");
}

/// Some proxies, Azure's among them, append the client's port to its address; the port is ignored.
#[test]
fn ports_of_forwarded_addresses_are_ignored() {
    let gateway = mirror_gateway("127.0.0.1/32, 10.0.1.0/24, fd00::/8", "");
    for (hops, expected) in [
        ("192.0.2.1:80", "192.0.2.1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("192.0.2.1:80, 10.0.1.1:81, [fd00::1]:1", "192.0.2.1"),
        ("[::ffff:192.0.2.1]:65535", "192.0.2.1"),
        ("192.0.2.1:0", "127.0.0.1"),
        ("192.0.2.1:65536", "127.0.0.1"),
        ("192.0.2.1:", "127.0.0.1"),
        ("192.0.2.1:x", "127.0.0.1"),
        ("[192.0.2.1]:80", "127.0.0.1"),
    ] {
        assert_eq!(client_ip(&gateway, &[("X-Forwarded-For", hops)]), expected, "{hops}");
    }
    let own = mirror_gateway("127.0.0.1/32", ", client_ip: header:x-client");
    assert_eq!(client_ip(&own, &[("X-Client", "192.0.2.5:4711")]), "192.0.2.5");
    let limited = Gateway::start(
        "server: { trusted_proxies: 127.0.0.1 }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: { key: ip, rate: 1/h } }\n",
    );
    let status = |ip: &str| limited.ask(&get("/").header("X-Forwarded-For", ip)).status;
    assert_eq!(status("192.0.2.1:5001"), 200);
    assert_eq!(status("192.0.2.2:5001"), 200);
    assert_eq!(status("192.0.2.1:5002"), 429);
}

/// `client_ip` may name RFC 7239's header or a custom one.
#[test]
fn the_address_can_come_from_other_headers() {
    let forwarded = mirror_gateway("127.0.0.1/32", ", client_ip: forwarded");
    let line = "for=192.0.2.9, For=\"[2001:db8::7]:4711\";proto=http;by=203.0.113.43";
    assert_eq!(client_ip(&forwarded, &[("Forwarded", line)]), "2001:db8::7");
    assert_eq!(client_ip(&forwarded, &[("Forwarded", "for=192.0.2.60;proto=http")]), "192.0.2.60");
    assert_eq!(client_ip(&forwarded, &[("X-Forwarded-For", "192.0.2.60")]), "127.0.0.1");
    let own = mirror_gateway("127.0.0.1/32", ", client_ip: header:x-client");
    assert_eq!(client_ip(&own, &[("X-Client", "192.0.2.5"), ("X-Forwarded-For", "1.2.3.4")]), "192.0.2.5");
}

/// IPv6 clients count per /64, IPv4 clients per address, mapped addresses as IPv4.
#[test]
fn neighbours_in_one_prefix_are_one_client() {
    let gateway = Gateway::start(
        "server: { trusted_proxies: 127.0.0.1 }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: { key: ip, rate: 1/h } }\n",
    );
    let status = |ip: &str| gateway.ask(&get("/").header("X-Forwarded-For", ip)).status;
    assert_eq!(status("2001:db8:0:1::1"), 200);
    assert_eq!(status("2001:db8:0:1:ffff::2"), 429);
    assert_eq!(status("2001:db8:0:2::1"), 200);
    assert_eq!(status("192.0.2.1"), 200);
    assert_eq!(status("192.0.2.2"), 200);
    assert_eq!(status("::ffff:192.0.2.1"), 429);
}

/// A thousand addresses of one /64 share a bucket, and the next /64 has its own; the prefixes are
/// configurable.
#[test]
fn addresses_of_one_prefix_are_one_client() {
    let under = |prefixes: &str| {
        Gateway::start(&format!(
            "server: {{ trusted_proxies: 127.0.0.1{prefixes} }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: {{ rate: 1/h, burst: 3 }} }}\n"
        ))
    };
    let passing = |gateway: &Gateway, clients: &[String]| {
        let mut proxy = gateway.client();
        let asks = clients.iter().map(|ip| get("/").header("X-Forwarded-For", ip));
        asks.filter(|ask| proxy.ask(ask).status == 200).count()
    };
    let of = |network: &str, hosts: u32| (1..=hosts).map(|n| format!("{network}{n:x}")).collect::<Vec<_>>();
    let (one, next, far) = ("2001:db8:7:1::", "2001:db8:7:2::", "2001:db8:8:1::");
    let gateway = under("");
    assert_eq!(passing(&gateway, &of(one, 1000)), 3);
    assert_eq!([next, far].map(|network| passing(&gateway, &of(network, 9))), [3, 3]);
    assert_eq!(gateway.metric("sluicegate_keys", &[]), 3.0);
    let gateway = under(", ipv6_prefix: 48");
    assert_eq!([one, next, far].map(|network| passing(&gateway, &of(network, 9))), [3, 0, 3]);
    let gateway = under(", ipv6_prefix: 128");
    assert_eq!([one, one].map(|network| passing(&gateway, &of(network, 9))), [9, 9]);
    let gateway = under(", ipv4_prefix: 24");
    assert_eq!(
        ["192.0.2.", "192.0.2.", "192.0.3."].map(|network| passing(&gateway, &of(network, 9))),
        [3, 0, 3]
    );
}

/// X-Forwarded-For is extended for trusted proxies and replaced for other peers; so are the related fields.
#[test]
fn the_upstream_gets_true_forwarded_fields() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.1/32 }}\nlocations:\n  - {{ path: /, upstream: \"{}\" }}\n",
        upstream.url()
    ));
    let ask = get("/")
        .header("X-Forwarded-For", "192.0.2.1")
        .header("X-Forwarded-Proto", "https")
        .header("X-Forwarded-Host", "outer.test")
        .header("Forwarded", "for=192.0.2.1")
        .header("X-Real-IP", "192.0.2.1");
    gateway.ask(&ask).expect(200);
    Client::connect_from("127.0.0.2", gateway.addr()).ask(&ask).expect(200);
    gateway.get("/").expect(200);
    let seen = upstream.requests();
    assert_eq!(seen[0].header("x-forwarded-for").as_deref(), Some("192.0.2.1, 127.0.0.1"));
    assert_eq!(seen[0].header("x-forwarded-proto").as_deref(), Some("https"));
    assert_eq!(seen[0].header("x-forwarded-host").as_deref(), Some("outer.test"));
    assert_eq!(seen[1].header("x-forwarded-for").as_deref(), Some("127.0.0.2"));
    assert_eq!(seen[1].header("x-forwarded-proto").as_deref(), Some("http"));
    assert_eq!(seen[1].header("x-forwarded-host").as_deref(), Some("gateway.test"));
    assert!(!seen[1].headers.has("forwarded") && !seen[1].headers.has("x-real-ip"), "{:?}", seen[1].headers);
    assert_eq!(seen[2].header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
}

/// A key of 32 KiB is an ordinary key; two that differ in their last byte are two.
#[test]
fn long_keys_stay_distinct() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /, respond: { body: ok }, limits: { key: header:x-key, rate: 1/h } }\n",
    );
    let long = "k".repeat(32 * 1024);
    let status = |key: String| gateway.ask(&get("/").header("X-Key", key)).status;
    assert_eq!(status(format!("{long}a")), 200);
    assert_eq!(status(format!("{long}b")), 200);
    assert_eq!(status(format!("{long}a")), 429);
}

/// Spellings of one host are one key.
#[test]
fn spellings_of_a_host_share_a_key() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /, respond: { body: ok }, limits: { key: host, rate: 1/h } }\n",
    );
    let status = |host: &str| gateway.ask(&get("/").host(host)).status;
    assert_eq!(status("EXAMPLE.com"), 200);
    for same in ["example.com", "example.com:80", "example.com.", "Example.COM.:8080"] {
        assert_eq!(status(same), 429, "{same}");
    }
    assert_eq!(status("www.example.com"), 200);
    assert_eq!(status("[2001:db8::1]:80"), 200);
    assert_eq!(status("[2001:db8::1]"), 429);
}

/// Queries and spellings of one path are one `uri` key.
#[test]
fn spellings_of_a_path_share_a_key() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /, respond: { body: ok }, limits: { key: uri, rate: 1/h } }\n",
    );
    gateway.get("/a%2fb/c").expect(200);
    for same in ["/a%2Fb/c", "/a%2fb/c?x=1", "/a%2fb//c", "/x/../a%2fb/./c", "/%61%2fb/%63"] {
        assert_eq!(gateway.get(same).status, 429, "{same}");
    }
    gateway.get("/a%2fb/d").expect(200);
}

/// Keys may come from a cookie, the query, the method or several parts at once.
#[test]
fn keys_come_from_many_places() {
    let gateway = |key: &str| {
        Gateway::start(&format!(
            "locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: {{ key: {key}, rate: 1/h }} }}\n"
        ))
    };
    let cookie = gateway("cookie:sid");
    let with = |value: &str| cookie.ask(&get("/").header("Cookie", value)).status;
    assert_eq!(
        [with("a=b; sid=1; c=d"), with("sid=1"), with("sid=2"), with("xsid=1; sid=2")],
        [200, 429, 200, 429]
    );
    let query = gateway("query:k");
    let with = |target: &str| query.get(target).status;
    assert_eq!([with("/?k=1"), with("/?a=2&k=1"), with("/?k=2"), with("/?kk=3&k=2")], [200, 429, 200, 429]);
    let compound = gateway("[method, header:x-key]");
    let with = |method: &str, key: &str| compound.ask(&Ask::new(method, "/").header("X-Key", key)).status;
    assert_eq!(
        [with("GET", "a"), with("DELETE", "a"), with("GET", "b"), with("GET", "a")],
        [200, 200, 200, 429]
    );
}

/// A repeated header of a key or an account is rejected: the client must not choose which value counts.
#[test]
fn a_repeated_key_header_is_rejected() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:x-account }}\n\
         locations:\n  - {{ path: /k, upstream: \"{url}\", limits: {{ key: header:x-key, rate: 9/s }} }}\n  \
           - {{ path: /a, upstream: \"{url}\", limits: {{ key: account, rate: 9/s }} }}\n",
        url = upstream.url()
    ));
    gateway.ask(&get("/k").header("X-Key", "a").header("X-Key", "b")).expect(400);
    gateway.ask(&get("/a").header("X-Account", "a").header("X-Account", "a")).expect(400);
    assert_eq!(upstream.count(), 0);
}

/// A client cannot name the header of its limit's key in Connection.
#[test]
fn connection_cannot_drop_a_key() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /, respond: { body: ok }, limits: { key: header:x-key, rate: 1/h } }\n",
    );
    let status = |connection: &str| {
        gateway.ask(&get("/").header("X-Key", "a").header("Connection", connection)).status
    };
    assert_eq!(status("keep-alive"), 200);
    assert_eq!(status("x-key"), 429);
}

/// The gateway makes a request id and sends it to both sides; it keeps the id of a trusted proxy, not of
/// other peers.
#[test]
fn every_request_has_one_id() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.1/32 }}\nlocations:\n  - {{ path: /, upstream: \"{}\" }}\n",
        upstream.url()
    ));
    gateway.get("/").expect(200);
    gateway.ask(&get("/").header("X-Request-Id", "given-1")).expect(200);
    Client::connect_from("127.0.0.2", gateway.addr())
        .ask(&get("/").header("X-Request-Id", "forged-1"))
        .expect(200);
    let ids: Vec<_> = upstream.requests().iter().map(|s| s.header("x-request-id").expect("an id")).collect();
    assert!(ids[0].len() >= 8, "{ids:?}");
    assert_eq!(ids[1], "given-1");
    assert!(ids[2] != "forged-1" && ids[2] != ids[0] && ids[2].len() >= 8, "{ids:?}");
    let not_found =
        Gateway::start("server: { request_id: x-trace }\nlocations: [{ path: /x, respond: { body: ok } }]\n");
    assert!(not_found.get("/").expect(404).json()["request_id"].is_string());
}
