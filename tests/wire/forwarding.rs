//! To the upstream and back: headers, load balancing, broken connections.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::h2_raw::{self, *};
use crate::support::*;

/// The number of responses from each of `names`.
fn tally(gateway: &Gateway, names: &[&str], asks: impl Iterator<Item = Ask>) -> Vec<usize> {
    let mut client = gateway.client();
    let mut counts = vec![0; names.len()];
    for ask in asks {
        let text = client.ask(&ask).expect(200).text();
        let index = names.iter().position(|&n| n == text).expect("a known upstream");
        counts[index] += 1;
    }
    counts
}

/// Header edits apply in both directions: set replaces, add appends, remove removes.
#[test]
fn headers_are_edited() {
    let upstream =
        Upstream::new(|_| Reply::with(200, &[("Server", "u"), ("X-Old", "1"), ("X-Keep", "k")], ""));
    let gateway = Gateway::start(&format!(
        "locations:\n  - path: /\n    upstream: \"{}\"\n    \
           request_headers: {{ set: {{ X-Set: new }}, add: {{ X-Add: more }}, remove: [X-Secret] }}\n    \
           response_headers: {{ set: {{ X-Old: new }}, add: {{ X-Keep: more }}, remove: Server }}\n",
        upstream.url()
    ));
    let ask = get("/")
        .header("X-Set", "old")
        .header("X-Set", "older")
        .header("X-Add", "some")
        .header("X-Secret", 1);
    let response = gateway.ask(&ask).expect(200);
    let seen = &upstream.requests()[0];
    assert_eq!(seen.headers.all("x-set"), ["new"]);
    assert_eq!(seen.headers.all("x-add"), ["some", "more"]);
    assert!(!seen.headers.has("x-secret"));
    assert_eq!(response.headers.all("x-old"), ["new"]);
    assert_eq!(response.headers.all("x-keep"), ["k", "more"]);
    assert!(!response.headers.has("server"));
}

/// A client cannot name a header in Connection to undo request_headers.
#[test]
fn set_headers_cannot_be_dropped_by_the_client() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "locations:\n  - path: /\n    upstream: \"{}\"\n    request_headers: {{ set: {{ X-Token: t }} }}\n",
        upstream.url()
    ));
    gateway.ask(&get("/").header("Connection", "x-token")).expect(200);
    assert_eq!(upstream.requests()[0].headers.all("x-token"), ["t"]);
}

/// The upstream gets the client's Host, its own name, or a fixed one.
#[test]
fn the_host_header_is_as_configured() {
    let upstream = Upstream::ok();
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /client, upstream: \"{url}\" }}\n  \
           - {{ path: /upstream, upstream: \"{url}\", host_header: upstream }}\n  \
           - {{ path: /fixed, upstream: \"{url}\", host_header: app.internal }}\n"
    ));
    for target in ["/client", "/upstream", "/fixed"] {
        gateway.ask(&get(target).host("shop.test:8080")).expect(200);
    }
    let hosts: Vec<_> = upstream.requests().iter().map(|s| s.header("host").expect("a Host")).collect();
    assert_eq!(hosts, ["shop.test:8080".to_owned(), upstream.addr().to_string(), "app.internal".to_owned()]);
}

/// round_robin serves by weight, evenly spread.
#[test]
fn round_robin_follows_the_weights() {
    let (a, b) = (Upstream::named("a"), Upstream::named("b"));
    let gateway = Gateway::start(&format!(
        "server: {{ workers: 1 }}\n\
         upstreams:\n  app: {{ balance: round_robin, servers: [{{ url: \"{}\", weight: 3 }}, {}] }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        a.url(),
        b.addr()
    ));
    assert_eq!(tally(&gateway, &["a", "b"], (0..40).map(|_| get("/"))), [30, 10]);
}

/// Hashed balances keep one value on one server, and use all servers over many values.
#[test]
fn hashes_stick() {
    let (a, b, c) = (Upstream::named("a"), Upstream::named("b"), Upstream::named("c"));
    for balance in ["hash:header:x-user", "hash:uri"] {
        let gateway = Gateway::start(&format!(
            "upstreams:\n  app: {{ balance: \"{balance}\", servers: [{}, {}, {}] }}\n\
             locations:\n  - {{ path: /, upstream: app }}\n",
            a.addr(),
            b.addr(),
            c.addr()
        ));
        let by_uri = balance == "hash:uri";
        let ask = |n: usize| if by_uri { get(&format!("/{n}")) } else { get("/").header("X-User", n) };
        let stuck = tally(&gateway, &["a", "b", "c"], (0..20).map(|_| ask(7)));
        assert!(stuck.contains(&20), "{balance}: {stuck:?}");
        let spread = tally(&gateway, &["a", "b", "c"], (0..300).map(ask));
        assert!(spread.iter().all(|&n| n > 30), "{balance}: {spread:?}");
    }
}

/// `hash:ip` keeps a client on its server, over any connection.
#[test]
fn a_client_stays_on_its_server() {
    let (a, b) = (Upstream::named("a"), Upstream::named("b"));
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ balance: \"hash:ip\", servers: [{}, {}] }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        a.addr(),
        b.addr()
    ));
    for n in 1..30 {
        let ask = || {
            Client::connect_from(&format!("127.0.0.{n}"), gateway.addr()).ask(&get("/")).expect(200).text()
        };
        assert_eq!(ask(), ask());
    }
    assert!(a.count() >= 4 && b.count() >= 4, "{} and {}", a.count(), b.count());
}

/// `hash:ip` counts clients as limits do: an IPv6 client keeps its server under all its temporary addresses.
#[test]
fn an_ipv6_client_stays_on_its_server() {
    let (a, b) = (Upstream::named("a"), Upstream::named("b"));
    let gateway = Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.0/8 }}\n\
         upstreams:\n  app: {{ balance: \"hash:ip\", servers: [{}, {}] }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        a.addr(),
        b.addr()
    ));
    for net in 1..20 {
        let ask = |host| {
            let ip = format!("2001:db8:0:{net}::{host}");
            gateway.ask(&get("/").header("X-Forwarded-For", ip)).expect(200).text()
        };
        let first = ask(1);
        assert!((2..8).all(|host| ask(host) == first), "{net}");
    }
    assert!(a.count() >= 7 && b.count() >= 7, "{} and {}", a.count(), b.count());
}

/// Every balance uses every server.
#[test]
fn balances_spread() {
    let (a, b) = (Upstream::named("a"), Upstream::named("b"));
    for balance in ["p2c", "random", "least_conn", "round_robin"] {
        let gateway = Gateway::start(&format!(
            "upstreams:\n  app: {{ balance: {balance}, servers: [{}, {}] }}\n\
             locations:\n  - {{ path: /, upstream: app }}\n",
            a.addr(),
            b.addr()
        ));
        let spread = tally(&gateway, &["a", "b"], (0..60).map(|_| get("/")));
        assert!(spread.iter().all(|&n| n >= 5), "{balance}: {spread:?}");
    }
}

/// least_conn sends new requests where fewer are in flight.
#[test]
fn least_conn_avoids_the_busy_server() {
    let gate = Gate::default();
    let upstreams = [Upstream::held_by(&gate), Upstream::held_by(&gate)];
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ balance: least_conn, servers: [{}, {}] }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstreams[0].addr(),
        upstreams[1].addr()
    ));
    let mut clients: Vec<_> = (0..6).map(|_| gateway.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(get("/").bytes());
        eventually("the request to arrive", || upstreams.iter().map(Upstream::count).sum::<usize>() == n + 1);
    }
    assert_eq!(upstreams.each_ref().map(Upstream::count), [3, 3]);
    gate.open();
}

/// A backup serves only while the others refuse connections.
#[test]
fn a_backup_waits_for_its_turn() {
    let (main, backup) = (Upstream::named("main"), Upstream::named("backup"));
    let gateway = |main: String| {
        Gateway::start(&format!(
            "upstreams:\n  app: {{ servers: [\"{main}\", {{ url: \"{}\", backup: true }}] }}\n\
             locations:\n  - {{ path: /, upstream: app }}\n",
            backup.url()
        ))
    };
    let healthy = gateway(main.url());
    for _ in 0..10 {
        assert_eq!(healthy.get("/").expect(200).text(), "main");
    }
    let refusing = Refusing::new();
    let broken = gateway(refusing.url());
    for _ in 0..10 {
        assert_eq!(broken.get("/").expect(200).text(), "backup");
    }
}

/// One of two servers refuses connections: its share goes to the other, also for requests that must not be
/// repeated.
#[test]
fn a_refused_connection_is_retried_on_another_server() {
    let (refusing, alive) = (Refusing::new(), Upstream::named("alive"));
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ balance: round_robin, servers: [{}, {}] }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        refusing.addr(),
        alive.addr()
    ));
    for _ in 0..6 {
        assert_eq!(gateway.ask(&post("/", b"body")).expect(200).text(), "alive");
    }
    assert!(alive.requests().iter().all(|s| s.body == b"body"));
}

/// Without any server the response is 502.
#[test]
fn a_refusing_upstream_is_502() {
    let refusing = Refusing::new();
    let gateway =
        Gateway::start(&format!("locations:\n  - {{ path: /, upstream: \"{}\" }}\n", refusing.url()));
    let mut client = gateway.client();
    client.ask(&get("/")).expect(502);
    client.ask(&post("/", b"body")).expect(502);
}

/// Upstream connections are kept and reused.
#[test]
fn upstream_connections_are_reused() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "server: { workers: 1 }");
    let mut client = gateway.client();
    for _ in 0..20 {
        client.ask(&get("/")).expect(200);
    }
    assert_eq!(upstream.connections(), 1);
}

/// A pooled connection that the upstream has closed costs the client nothing.
#[test]
fn a_dead_pooled_connection_is_replaced() {
    let upstream = Upstream::new(|_| Reply::text("ok").close());
    let gateway = forwarding(&upstream, "server: { workers: 1 }");
    let mut client = gateway.client();
    for n in 0..30 {
        let ask = if n % 2 == 0 { get("/") } else { post("/", b"body") };
        client.ask(&ask).expect(200);
        // A request that cannot be sent twice is sent only after the close has been on the wire.
        if n % 2 == 0 || n % 3 == 0 {
            upstream.wait_ended(n + 1);
        }
    }
    assert_eq!(upstream.count(), 30);
}

/// A request that may have reached a pooled connection which then died is sent again once if that is
/// safe, and never otherwise.
#[test]
fn only_safe_requests_are_sent_twice() {
    // Everything but /warm is dropped without a response, on warm and on fresh connections.
    let upstream = Upstream::new(|seen| match seen.target.as_str() {
        "/warm" => Reply::text("warm"),
        _ => Reply::default().close(),
    });
    let gateway = forwarding(&upstream, "server: { workers: 1 }");
    let mut client = gateway.client();
    client.ask(&get("/warm")).expect(200);
    client.ask(&post("/once", b"body")).expect(502);
    let posts = upstream.targets().iter().filter(|t| *t == "/once").count();
    assert_eq!(posts, 1, "a POST was sent twice");
    client.ask(&get("/warm")).expect(200);
    client.ask(&get("/twice")).expect(502);
    let gets = upstream.targets().iter().filter(|t| *t == "/twice").count();
    assert!((1..=2).contains(&gets), "a GET was sent {gets} times");
}

/// A busy connection that the upstream closes without a response, as a reloaded nginx does, costs a GET
/// nothing.
#[test]
fn a_busy_connection_that_is_closed_is_replaced() {
    let asked = AtomicUsize::new(0);
    let upstream = Upstream::new(move |_| match asked.fetch_add(1, Ordering::Relaxed) % 4 {
        3 => Reply::default().close(),
        _ => Reply::text("ok"),
    });
    let gateway = forwarding(&upstream, "server: { workers: 1 }");
    let mut client = gateway.client();
    for _ in 0..30 {
        client.ask(&get("/")).expect(200);
    }
    assert_eq!(upstream.count(), 39, "each that was closed is sent once more");
}

/// Bodies stream in both directions: a response begins before the upload has ended.
#[test]
fn bodies_stream_both_ways() {
    let gate = Gate::default();
    let script = gate.clone();
    let upstream = Upstream::new(move |_| {
        Reply::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n")
            .until(&script)
            .then("4\r\nlate\r\n0\r\n\r\n")
            .early()
    });
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc");
    let head = client.raw_head(PATIENCE).expect("the head comes first");
    assert!(head.starts_with(b"HTTP/1.1 200"));
    assert_eq!(client.skip(8, PATIENCE), None);
    client.send("def");
    gate.open();
    eventually("the whole upload", || upstream.requests().first().is_some_and(|s| s.body == b"abcdef"));
}

/// `max_body` rejects a length that is too large unread, and cuts a chunked body that grows too large.
#[test]
fn bodies_are_bounded() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "server: { max_body: 1KiB }");
    gateway.ask(&post("/", &[b'x'; 1024])).expect(200);
    let rejected = gateway.ask(&post("/", &[b'x'; 1025])).expect(413);
    assert_eq!(rejected.json()["status"], 413);
    assert_eq!(upstream.count(), 1);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..5 {
        let _ = client.try_send(format!("100\r\n{}\r\n", "x".repeat(256)));
    }
    let _ = client.try_send("0\r\n\r\n");
    client.response().expect(413);
    assert!(
        upstream.requests()[1..].iter().all(|s| s.cut.is_some()),
        "a body beyond the limit arrived whole"
    );
}

/// A declared length beyond `max_body` is 413 at once: nothing is charged, continued or forwarded.
#[test]
fn a_length_that_is_too_large_is_rejected_by_the_head_alone() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ max_body: 1MiB }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: {{ rate: 1/h, key: global }} }}\n",
        upstream.url()
    ));
    for expect in ["", "Expect: 100-continue\r\n"] {
        let mut client = gateway.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\n{expect}\r\n"));
        let rejected = client.response().expect(413);
        assert_eq!((rejected.interim.len(), &rejected.json()["status"]), (0, &413.into()), "{expect}");
    }
    let mut h2 = H2::open(gateway.addr());
    let declared = [("content-length", "5000000")];
    h2.send(HEADERS, END_HEADERS, 1, &block(&h2_raw::request("POST", "/", &declared)));
    assert!(matches!(h2.outcome(1), Outcome::Answered(413, _)));
    assert!(h2.is_alive());
    assert_eq!(upstream.count(), 0);
    gateway.ask(&post("/", &[b'x'; 1 << 20])).expect(200);
}
