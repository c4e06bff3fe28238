//! Servers on unix sockets: used, pooled, checked, ejected, drained and listed like all others.

use std::thread;
use std::time::Instant;

use crate::support::nginx::Nginx;
use crate::support::unix::{FullSocket, UnixServer};
use crate::support::*;

/// Each form of the name is accepted, and the server is named by its path everywhere.
#[test]
fn a_server_on_a_unix_socket_is_used() {
    let upstream = Upstream::ok();
    let unix = UnixServer::before(upstream.addr());
    let name = unix.name();
    for (upstreams, named) in [
        (format!("upstreams: {{ app: {{ servers: [\"{name}\"] }} }}"), "app"),
        (format!("upstreams: {{ app: {{ servers: [{{ url: \"{name}\", weight: 2 }}] }} }}"), "app"),
        (format!("upstreams: {{ app: \"{name}\" }}"), "app"),
        (String::new(), name.as_str()),
    ] {
        let before = upstream.connections();
        let gateway = Gateway::start(&format!(
            "server: {{ workers: 1 }}\n{upstreams}\n\
             locations:\n  - {{ path: /own, upstream: \"{named}\", host_header: upstream }}\n  \
               - {{ path: /, upstream: \"{named}\" }}\n"
        ));
        let mut client = gateway.client();
        for _ in 0..3 {
            assert_eq!(client.ask(&post("/", b"body").host("app.test")).expect(200).text(), "ok");
        }
        client.ask(&get("/own").host("app.test")).expect(200);
        let seen = upstream.requests();
        let hosts: Vec<_> = seen[seen.len() - 4..].iter().map(|one| one.header("host").unwrap()).collect();
        assert_eq!(hosts, ["app.test", "app.test", "app.test", "localhost"]);
        assert_eq!(upstream.connections() - before, 1, "the connection is kept");
        assert!(gateway.wait_log(4).iter().all(|line| line["upstream"] == name), "{upstreams}");
        let label = format!("server=\"{name}\"");
        assert_eq!(gateway.metric("sluicegate_upstream_requests_total", &[&label, "outcome=\"2xx\""]), 4.0);
        let listed = &gateway.admin_get("/upstreams").expect(200).json()["upstreams"][0]["servers"][0];
        assert_eq!((&listed["server"], &listed["state"]), (&name.as_str().into(), &"up".into()));
    }
}

/// Long bodies pass in both directions.
#[test]
fn long_bodies_pass_through_a_unix_socket() {
    let upstream = Upstream::with_large(3_000_000);
    let unix = UnixServer::before(upstream.addr());
    let gateway = Gateway::start(&format!("locations:\n  - {{ path: /, upstream: \"{}\" }}\n", unix.name()));
    assert_eq!(gateway.get("/large").expect(200).body.len(), 3_000_000);
    gateway.ask(&post("/", &vec![b'x'; 2_000_000])).expect(200);
    assert_eq!(upstream.wait_for(2)[1].body.len(), 2_000_000);
}

/// HTTP/2 by prior knowledge, on one connection.
#[test]
fn http2_is_spoken_on_a_unix_socket() {
    let upstream = Upstream2::new(|_| Act::Text("two"));
    let unix = UnixServer::before(upstream.addr());
    let gateway = Gateway::start(&format!(
        "server: {{ workers: 1 }}\n\
         upstreams:\n  app: {{ servers: [\"{}\"], protocol: http2, health: {{ interval: 50ms }} }}\n\
         locations:\n  - {{ path: /, upstream: app, host_header: upstream }}\n",
        unix.name()
    ));
    for _ in 0..3 {
        assert_eq!(gateway.get("/").expect(200).text(), "two");
    }
    let asked = |own: bool| {
        let is_check =
            |one: &Seen2| one.headers.get("user-agent").is_some_and(|name| name == "sluicegate-health");
        upstream.requests().into_iter().filter(|one| is_check(one) != own).collect::<Vec<_>>()
    };
    assert!(asked(true).iter().all(|one| one.uri == "http://localhost/"), "{:?}", asked(true));
    let connections: Vec<_> = asked(true).iter().map(|one| one.connection).collect();
    assert_eq!(connections, [connections[0]; 3]);
    eventually("checks", || asked(false).len() >= 3);
    assert_eq!(gateway.metric("sluicegate_upstream_up", &[]), 1.0);
}

/// A real server.
#[test]
fn nginx_is_used_on_its_unix_socket() {
    let scratch = Scratch::new();
    let path = scratch.path().join("nginx.sock");
    let _nginx = Nginx::start(
        &format!(
            "server {{ listen unix:{}; location / {{ return 200 \"$http_host $request_uri\"; }} }}",
            path.display()
        ),
        0,
    );
    eventually("its socket", || path.exists());
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"unix:{}\", host_header: upstream }}\n",
        path.display()
    ));
    assert_eq!(gateway.get("/a?b").expect(200).text(), "localhost /a?b");
}

/// Health checks use the socket, and notice when it vanishes and when it is back.
#[test]
fn a_socket_that_goes_is_down_until_it_is_back() {
    let upstream = Upstream::named("unix");
    let unix = UnixServer::before(upstream.addr());
    let backup = Upstream::named("backup");
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app:\n    servers: [\"{}\", {{ url: \"{}\", backup: true }}]\n    \
           health: {{ interval: 50ms, rise: 1, fall: 2 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        unix.name(),
        backup.url()
    ));
    assert_eq!(gateway.get("/").expect(200).text(), "unix");
    unix.remove();
    eventually("down", || gateway.get("/").text() == "backup");
    eventually("a failed check", || {
        let listed = gateway.admin_get("/upstreams").expect(200).json();
        listed["upstreams"][0]["servers"][0]["last_error"]["error"] == "health check: no such socket"
    });
    unix.listen(upstream.addr());
    eventually("up", || gateway.get("/").text() == "unix");
}

/// A missing socket, and one without a listener, take their server out and are distinguished.
#[test]
fn sockets_without_a_server_are_ejected() {
    let well = Upstream::ok();
    let scratch = Scratch::new();
    let (nowhere, deaf) = (scratch.path().join("nowhere.sock"), scratch.path().join("deaf.sock"));
    drop(std::os::unix::net::UnixListener::bind(&deaf).expect("a socket"));
    for (path, reason) in [(nowhere, "no such socket"), (deaf, "connection refused")] {
        let name = format!("unix:{}", path.display());
        let gateway = Gateway::start(&format!(
            "upstreams:\n  app:\n    servers: [\"{name}\", {}]\n    balance: round_robin\n    retries: none\n    \
               eject: {{ errors: 2, for: 60s }}\n\
             locations:\n  - {{ path: /, upstream: app }}\n",
            well.addr()
        ));
        let statuses: Vec<u16> = (0..8).map(|_| gateway.get("/").status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 502).count(), 2, "{statuses:?}");
        assert_eq!(gateway.metric("sluicegate_upstream_ejections_total", &[]), 1.0);
        let lines = gateway.wait_log(8);
        let failed: Vec<_> = lines.iter().filter(|line| line["status"] == 502).collect();
        assert!(failed.iter().all(|line| line["error"] == reason && line["upstream"] == name), "{failed:?}");
    }
}

/// It is drained by its name, with plain or encoded slashes.
#[test]
fn a_server_on_a_unix_socket_is_drained_by_its_name() {
    let (one, other) = (Upstream::named("unix"), Upstream::named("tcp"));
    let unix = UnixServer::before(one.addr());
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\", {}], balance: round_robin }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        unix.name(),
        other.addr()
    ));
    for name in [unix.name(), unix.name().replace('/', "%2F")] {
        let ask = |verb: &str| {
            let target = format!("/upstreams/app/servers/{name}/{verb}");
            let ask = post(&target, b"").header("Content-Type", "application/json");
            gateway.ask_admin(&ask).expect(200).json()
        };
        assert_eq!(ask("drain")[0]["state"], "draining");
        assert!((0..4).all(|_| gateway.get("/").expect(200).text() == "tcp"));
        assert_eq!(ask("undrain")[0]["state"], "up");
        eventually("both", || gateway.get("/").expect(200).text() == "unix");
    }
}

/// A tunnel passes, too.
#[test]
fn a_tunnel_leads_to_a_unix_socket() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\nhello";
    let upstream = Upstream::new(move |_| Reply::raw(switch).close());
    let unix = UnixServer::before(upstream.addr());
    let gateway = Gateway::start(&format!("locations:\n  - {{ path: /, upstream: \"{}\" }}\n", unix.name()));
    let mut client = gateway.client();
    client.send(get("/").header("Connection", "Upgrade").header("Upgrade", "test").bytes());
    let (bytes, _) = client.until_close();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.starts_with("HTTP/1.1 101 ") && text.ends_with("\r\n\r\nhello"), "{text}");
}

/// If the socket's queue is full, requests wait for the connect timeout as with TCP: a burst of clients is no
/// error.
#[test]
fn a_full_queue_is_waited_for() {
    let full = FullSocket::new();
    let start = |connect: &str| {
        Gateway::start(&format!(
            "upstreams:\n  app: {{ servers: [\"{}\"], timeouts: {{ connect: {connect} }} }}\n\
             locations:\n  - {{ path: /, upstream: app }}\n",
            full.name()
        ))
    };
    let gateway = start("500ms");
    let noise = Noise::listen();
    let begun = Instant::now();
    gateway.get("/").expect(504);
    assert_between("the connect", begun.elapsed(), 500, &noise);
    assert_eq!(gateway.wait_log(1)[0]["error"], "connect timeout");
    let patient = start("8s");
    let addr = patient.addr();
    let waiting = thread::spawn(move || Client::connect(addr).ask(&get("/")).expect(200).text());
    thread::sleep(ms(300));
    full.accept();
    assert_eq!(waiting.join().expect("an answer"), "late");
}
