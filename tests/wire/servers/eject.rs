//! Ejection of servers with failing responses.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::support::h2_raw::*;
use crate::support::nginx::Nginx;
use crate::support::*;

fn ejecting_gateway(servers: &[String], eject: &str) -> Gateway {
    Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [{}], balance: round_robin, eject: {eject} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        servers.join(", ")
    ))
}

fn ejections(gateway: &Gateway) -> f64 {
    gateway.metric("sluicegate_upstream_ejections_total", &[])
}

/// Consecutive errors eject a server; after its time it gets requests again.
#[test]
fn errors_in_a_row_eject() {
    let ill = Arc::new(AtomicBool::new(true));
    let script = ill.clone();
    let flaky = Upstream::new(move |_| match script.load(Relaxed) {
        true => Reply::with(503, &[], "no"),
        false => Reply::text("flaky"),
    });
    let well = Upstream::named("well");
    let servers = [flaky.addr().to_string(), well.addr().to_string()];
    let gateway = ejecting_gateway(&servers, "{ errors: 3, for: 2s, status: 503 }");
    let statuses: Vec<u16> = (0..12).map(|_| gateway.get("/").status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 3, "{statuses:?}");
    assert_eq!((flaky.count(), ejections(&gateway)), (3, 1.0));
    assert_eq!(gateway.metric("sluicegate_upstream_ejected", &[]), 1.0);
    gateway.wait_stderr("a server is ejected: 3 errors in a row");
    ill.store(false, Relaxed);
    eventually("its return", || gateway.get("/").expect(200).text() == "flaky");
    assert_eq!(gateway.metric("sluicegate_upstream_ejected", &[]), 0.0);
}

/// By default five refused connections are enough, and no client notices any.
#[test]
fn refused_connections_eject() {
    let (refusing, alive) = (Refusing::new(), Upstream::ok());
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [{}, {}], balance: round_robin }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        refusing.addr(),
        alive.addr()
    ));
    for _ in 0..30 {
        gateway.get("/").expect(200);
    }
    let tried = gateway.metric("sluicegate_upstream_requests_total", &["outcome=\"unreachable\""]);
    assert_eq!((tried, ejections(&gateway)), (5.0, 1.0));
    assert_eq!(gateway.metric("sluicegate_upstream_retries_total", &["reason=\"connect\""]), 5.0);
}

/// The last server is never ejected, and `none` switches ejection off.
#[test]
fn the_last_server_stays() {
    let ill = Upstream::new(|_| Reply::with(502, &[], "no"));
    for (servers, eject) in [
        (vec![ill.addr().to_string()], "{ errors: 1, status: 5xx }"),
        (vec![ill.addr().to_string(), ill.addr().to_string()], "none"),
    ] {
        let gateway = ejecting_gateway(&servers, eject);
        let before = ill.count();
        for _ in 0..10 {
            assert_eq!(gateway.get("/").expect(502).text(), "no");
        }
        assert_eq!((ill.count() - before, ejections(&gateway)), (10, 0.0));
    }
}

/// An application's response is no error of its server, unless the file says so; by default it never is.
#[test]
fn application_responses_eject_no_server() {
    let busy = || {
        Upstream::new(|seen| match seen.target.as_str() {
            "/busy" => Reply::with(503, &[], "no"),
            _ => Reply::text("ok"),
        })
    };
    let (one, two) = (busy(), busy());
    let servers = [one.addr().to_string(), two.addr().to_string()];
    for (eject, ejected) in [
        ("{}", 0.0),
        ("{ status: [] }", 0.0),
        ("{ status: [502, 504] }", 0.0),
        ("{ status: [502, \"503\"] }", 1.0),
        ("{ status: 5xx }", 1.0),
        ("{ status: 500-504 }", 1.0),
    ] {
        let gateway = ejecting_gateway(&servers, eject);
        for _ in 0..14 {
            gateway.get("/busy").expect(503);
        }
        assert_eq!(ejections(&gateway), ejected, "{eject}");
        gateway.get("/").expect(200);
    }
}

/// A POST whose body stops after its first bytes.
fn stalled_post(gateway: &Gateway) -> Client {
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
    client
}

/// A server that closes because a client sends no more of its body made no error; the client gets a status of
/// its own.
#[test]
fn stalled_bodies_eject_no_server() {
    let close_on_head = |_: &Seen| Reply::default().early().pause(ms(1500)).close();
    let (one, two) = (Upstream::new(close_on_head), Upstream::new(close_on_head));
    let gateway = ejecting_gateway(&[one.addr().to_string(), two.addr().to_string()], "{ for: 60s }");
    let clients: Vec<_> = (0..16).map(|_| stalled_post(&gateway)).collect();
    for mut client in clients {
        client.response().expect(408);
        client.assert_closed();
    }
    assert_eq!((one.count() + two.count(), ejections(&gateway)), (16, 0.0));
    let abandoned = gateway.metric("sluicegate_upstream_requests_total", &["outcome=\"abandoned\""]);
    assert_eq!(abandoned, 16.0);
    assert!(gateway.wait_log(16).iter().all(|line| line["verdict"] == "slow_body"));
}

/// The same with real servers that have a shorter body timeout than the gateway.
#[test]
fn stalled_bodies_do_not_eject_nginx() {
    let behind = Upstream::ok();
    let server = format!(
        "server {{ listen @N@; client_body_timeout 2s; location / {{ proxy_pass {}; }} }}",
        behind.url()
    );
    let both = format!("{} {}", server.replace("@N@", "@0@"), server.replace("@N@", "@1@"));
    let nginx = Nginx::start(&both, 2);
    let gateway = ejecting_gateway(&[nginx.addr(0).to_string(), nginx.addr(1).to_string()], "{ for: 60s }");
    let clients: Vec<_> = (0..16).map(|_| stalled_post(&gateway)).collect();
    for mut client in clients {
        client.response().expect(408);
    }
    assert_eq!(ejections(&gateway), 0.0);
    for _ in 0..4 {
        gateway.ask(&post("/", b"whole")).expect(200);
    }
}

/// The same over HTTP/2 on both sides, where bodies end by streams.
#[test]
fn stalled_streams_eject_no_server() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let _ = stream.write_all(&frame(SETTINGS, 0, 0, b""));
                let _ = stream.set_read_timeout(Some(ms(1500)));
                // Until no more data comes; then it closes without a response.
                while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
            });
        }
    });
    let well = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app:\n    servers: [{addr}, {{ url: \"{}\", backup: true }}]\n    \
           protocol: http2\n    eject: {{ errors: 1 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        well.url()
    ));
    let clients: Vec<_> = (0..4).map(|_| stalled_post(&gateway)).collect();
    for mut client in clients {
        client.response().expect(408);
    }
    assert_eq!(ejections(&gateway), 0.0);
}

/// If a server closes while a client is sending, that is not the client's fault, and proves no fault of the
/// server.
#[test]
fn unfinished_bodies_eject_no_server() {
    let close_on_head = |_: &Seen| Reply::default().early().pause(ms(300)).close();
    let (one, two) = (Upstream::new(close_on_head), Upstream::new(close_on_head));
    let gateway =
        ejecting_gateway(&[one.addr().to_string(), two.addr().to_string()], "{ errors: 1, for: 60s }");
    for _ in 0..6 {
        stalled_post(&gateway).response().expect(502);
    }
    assert_eq!(ejections(&gateway), 0.0);
    // With the whole body the server is at fault.
    let statuses: Vec<u16> = (0..2).map(|_| gateway.ask(&post("/", b"whole")).status).collect();
    assert_eq!((statuses, ejections(&gateway)), (vec![502, 502], 1.0));
}

/// A client that leaves is no error of the server; a missing response is.
#[test]
fn a_client_that_leaves_is_no_server_error() {
    let silent = Upstream::new(|_| Reply::silence());
    let well = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app:\n    servers: [{}, {{ url: \"{}\", backup: true }}]\n    \
           eject: {{ errors: 2 }}\n    timeouts: {{ response: 1s }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        silent.addr(),
        well.url()
    ));
    for n in 0..6 {
        let mut client = gateway.client();
        client.send(get("/").bytes());
        silent.wait_for(n + 1);
        client.reset();
    }
    eventually("their end", || gateway.metric("sluicegate_upstream_in_flight", &[]) == 0.0);
    assert_eq!(ejections(&gateway), 0.0);
    let both: Vec<_> = (0..2).map(|_| gateway.client()).collect();
    let waiting = both.into_iter().map(|mut client| thread::spawn(move || client.ask(&get("/")).status));
    let statuses: Vec<u16> = waiting.collect::<Vec<_>>().into_iter().map(|one| one.join().unwrap()).collect();
    assert_eq!((statuses, ejections(&gateway)), (vec![504, 504], 1.0));
    gateway.get("/").expect(200);
}

/// A response that cannot be forwarded is an error of its server, counted once and never as a success.
#[test]
fn responses_that_cannot_be_forwarded_eject() {
    let two_framings = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n\
                        5\r\nhello\r\n0\r\n\r\n";
    let unasked = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
    let garbage = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello";
    for answer in [two_framings, unasked, garbage] {
        let ill = Upstream::new(move |_| Reply::raw(answer));
        let well = Upstream::named("well");
        let servers = [ill.addr().to_string(), well.addr().to_string()];
        let gateway = ejecting_gateway(&servers, "{ errors: 3, for: 60s }");
        let rejected: Vec<_> =
            (0..12).map(|_| gateway.get("/")).filter(|response| response.status == 502).collect();
        assert_eq!((rejected.len(), ill.count(), ejections(&gateway)), (3, 3, 1.0), "{answer}");
        let detail = "the upstream sent an answer that is not valid HTTP";
        assert!(rejected.iter().all(|response| response.json()["detail"] == detail), "{answer}");
        let own = format!("server=\"{}\"", ill.addr());
        let counted = |outcome: &str| {
            gateway.metric("sluicegate_upstream_requests_total", &[&own, &format!("outcome=\"{outcome}\"")])
        };
        assert_eq!(
            (counted("bad_answer"), counted("2xx") + counted("1xx") + counted("broke")),
            (3.0, 0.0),
            "{answer}"
        );
        let server = &gateway.admin_get("/upstreams").expect(200).json()["upstreams"][0]["servers"][0];
        assert!(server.to_string().contains("broken answer"), "{server}");
    }
}

/// A server that closes before its response is distinguished from one that sends garbage; both are retried as
/// `502`.
#[test]
fn broken_connections_and_garbage_are_distinguished() {
    for (answer, outcome) in [("", "broke"), ("HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "bad_answer")] {
        let ill = Upstream::new(move |_| Reply::raw(answer).close());
        let well = Upstream::named("well");
        let gateway = Gateway::start(&format!(
            "upstreams:\n  app: {{ servers: [{}, {}], balance: round_robin, retries: {{ when: [\"502\"] }} }}\n\
             locations:\n  - {{ path: /, upstream: app }}\n",
            ill.addr(),
            well.addr()
        ));
        for _ in 0..4 {
            assert_eq!(gateway.get("/").expect(200).text(), "well");
        }
        let label = format!("outcome=\"{outcome}\"");
        assert_eq!(gateway.metric("sluicegate_upstream_requests_total", &[&label]), 2.0, "{answer:?}");
        assert_eq!(ill.count(), 2);
    }
}

/// The same over HTTP/2: heads without a status are garbage.
#[test]
fn heads_without_a_status_are_garbage() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(&frame(SETTINGS, 0, 0, b""));
            let _ = stream.set_read_timeout(Some(ms(300)));
            // Until the request is there, and nothing follows it.
            while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
            let _ = stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("x", "y")])));
            thread::spawn(move || while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {});
        }
    });
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [{addr}], protocol: http2 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n"
    ));
    let rejected = gateway.get("/").expect(502);
    assert_eq!(rejected.json()["detail"], "the upstream sent an answer that is not valid HTTP");
    assert_eq!(gateway.metric("sluicegate_upstream_requests_total", &["outcome=\"bad_answer\""]), 1.0);
}
