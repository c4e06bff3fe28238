//! `https://` servers: verification, client certificates, the negotiated HTTP version. The other side is a
//! real nginx.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Instant;

use rustls::{ServerConnection, StreamOwned};

use crate::support::nginx::Nginx;
use crate::support::*;

/// Echoes the requested name, `r` for a resumed session, the result of the client certificate, the protocol,
/// and the number of requests on the connection.
const TOLD: &str = "location / { return 200 \"$ssl_server_name $ssl_session_reused $ssl_client_verify \
                    $server_protocol $connection_requests $http_host\"; }";

fn nginx(certified: &Certified, listen: &str, more: &str) -> Nginx {
    Nginx::start(&format!("server {{ listen @0@ {listen}; {} {more} {TOLD} }}", certified.nginx()), 1)
}

/// One worker in front of `https://HOST:PORT` of this nginx.
fn gateway(nginx: &Nginx, host: &str, upstream: &str) -> Gateway {
    run(Run::default(), nginx, host, upstream)
}

fn run(run: Run, nginx: &Nginx, host: &str, upstream: &str) -> Gateway {
    let port = nginx.addr(0).port();
    run.start(&format!(
        "server: {{ workers: 1 }}\n\
         upstreams:\n  app: {{ servers: [\"https://{host}:{port}\"], timeouts: {{ connect: 10s }}, {upstream} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n"
    ))
}

fn trusting(ca: &Path, more: &str) -> String {
    format!("tls: {{ ca: \"{}\"{more} }}", ca.display())
}

#[test]
fn a_server_is_verified_by_authority_and_name() {
    let (ours, others) = (Authority::new(), Authority::new());
    let nginx = nginx(&ours.certify(&["localhost", "app.test"]), "ssl", "");
    let ask = |host: &str, tls: &str| gateway(&nginx, host, tls).get("/");
    let echoed = ask("localhost", &trusting(&ours.file(), "")).expect(200).text();
    assert!(echoed.starts_with("localhost . NONE HTTP/1.1 1 gateway.test"), "{echoed}");
    ask("localhost", &trusting(&others.file(), "")).expect(502);
    // The certificate does not name this address.
    ask("127.0.0.1", &trusting(&ours.file(), "")).expect(502);
    let echoed = ask("127.0.0.1", &trusting(&ours.file(), ", server_name: app.test")).expect(200).text();
    assert!(echoed.starts_with("app.test "), "{echoed}");
    ask("localhost", &trusting(&ours.file(), ", server_name: elsewhere.test")).expect(502);
    ask("127.0.0.1", "tls: { verify: false }").expect(200);
    // The system trusts another authority.
    let system = Run::default().env("SSL_CERT_FILE", &others.file().display().to_string());
    run(system, &nginx, "localhost", "").get("/").expect(502);
}

#[test]
fn the_system_is_trusted_by_default() {
    let ours = Authority::new();
    let nginx = nginx(&ours.certify(&["localhost"]), "ssl", "");
    let gateway = Run::default().env("SSL_CERT_FILE", &ours.file().display().to_string()).start(&format!(
        "locations:\n  - {{ path: /, upstream: \"https://localhost:{}\", host_header: upstream }}\n",
        nginx.addr(0).port()
    ));
    let echoed = gateway.get("/").expect(200).text();
    assert!(echoed.ends_with(&format!(" localhost:{}", nginx.addr(0).port())), "{echoed}");
}

#[test]
fn a_system_without_authorities_is_a_problem_of_the_file() {
    let scratch = Scratch::new();
    let empty = scratch.file("nobody.pem", "").display().to_string();
    let redis = "state: { store: redis, redis: { url: \"rediss://redis.test\" } }\n\
                 locations: [{ path: /, upstream: demo, limits: 1/s }]\n";
    for yaml in ["locations: [{ path: /, upstream: \"https://a.test\" }]\n", redis] {
        let file = scratch.file("gateway.yaml", yaml).display().to_string();
        for command in ["check", "run"] {
            let nobody = Run::default().env("SSL_CERT_FILE", &empty).env("SSL_CERT_DIR", &empty);
            let finished = nobody.args(&[command, "-c", &file]).finish(scratch.path());
            assert_eq!(finished.code, Some(3), "{finished:?}");
            let stderr = &finished.stderr;
            assert!(stderr.contains("E038") && stderr.contains("trusts no authority"), "{finished:?}");
        }
    }
    let file = scratch.file("gateway.yaml", &redis.replace("rediss:", "redis:")).display().to_string();
    let nobody = Run::default().env("SSL_CERT_FILE", &empty).env("SSL_CERT_DIR", &empty);
    assert_eq!(nobody.args(&["check", "-c", &file]).finish(scratch.path()).code, Some(0));
}

#[test]
fn a_server_that_asks_gets_our_certificate() {
    let ours = Authority::new();
    let demand = format!("ssl_client_certificate {}; ssl_verify_client on;", ours.file().display());
    let nginx = nginx(&ours.certify(&["localhost"]), "ssl", &demand);
    let ours_alone = trusting(&ours.file(), "");
    gateway(&nginx, "localhost", &ours_alone).get("/").expect(400);
    let client = ours.certify(&["gateway.test"]);
    let identity = format!(", cert: \"{}\", key: \"{}\"", client.cert.display(), client.key.display());
    let echoed = gateway(&nginx, "localhost", &trusting(&ours.file(), &identity)).get("/").expect(200).text();
    assert!(echoed.contains(" SUCCESS "), "{echoed}");
}

#[test]
fn a_session_is_resumed() {
    let ours = Authority::new();
    for versions in ["TLSv1.3", "TLSv1.2"] {
        let more = format!("ssl_protocols {versions}; ssl_session_cache shared:a:1m;");
        let nginx = nginx(&ours.certify(&["localhost"]), "ssl", &more);
        let gateway = gateway(&nginx, "localhost", &format!("keepalive: 0, {}", trusting(&ours.file(), "")));
        let echoed: Vec<String> = (0..4).map(|_| gateway.get("/").expect(200).text()).collect();
        assert!(echoed[0].starts_with("localhost . "), "{versions}: {echoed:?}");
        assert!(
            echoed[1..].iter().all(|echoed| echoed.starts_with("localhost r ")),
            "{versions}: {echoed:?}"
        );
    }
}

#[test]
fn a_connection_serves_many_requests() {
    let ours = Authority::new();
    let nginx = nginx(&ours.certify(&["localhost"]), "ssl", "");
    let gateway = gateway(&nginx, "localhost", &trusting(&ours.file(), ""));
    let echoed: Vec<String> = (0..3).map(|_| gateway.get("/").expect(200).text()).collect();
    assert!(echoed[2].contains(" HTTP/1.1 3 "), "{echoed:?}");
}

#[test]
fn the_protocol_is_agreed_upon() {
    let ours = Authority::new();
    let certified = ours.certify(&["localhost"]);
    let (both, old) = (nginx(&certified, "ssl http2", ""), nginx(&certified, "ssl", ""));
    let ask = |nginx: &Nginx, protocol: &str| {
        gateway(nginx, "localhost", &format!("protocol: {protocol}, {}", trusting(&ours.file(), ""))).get("/")
    };
    for (nginx, protocol, version) in [
        (&both, "auto", "HTTP/2.0"),
        (&both, "http1", "HTTP/1.1"),
        (&both, "http2", "HTTP/2.0"),
        (&old, "auto", "HTTP/1.1"),
        (&old, "http1", "HTTP/1.1"),
    ] {
        let echoed = ask(nginx, protocol).expect(200).text();
        assert!(echoed.contains(&format!(" {version} 1 gateway.test")), "{protocol}: {echoed}");
    }
    ask(&old, "http2").expect(502);
}

/// Servers that choose HTTP/1 get one request at a time on each connection, also when all come at once.
#[test]
fn many_requests_find_out_the_protocol_together() {
    let ours = Authority::new();
    let certified = ours.certify(&["localhost"]);
    for listen in ["ssl", "ssl http2"] {
        let nginx = nginx(&certified, listen, "");
        let gateway = gateway(&nginx, "localhost", &trusting(&ours.file(), ""));
        let shots = volley(gateway.addr(), (0..50).map(|_| get("/")));
        assert!(statuses(&shots).iter().all(|&status| status == 200), "{listen}: {:?}", statuses(&shots));
    }
}

#[test]
fn a_handshake_that_does_not_end_is_a_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"https://127.0.0.1:{port}\"], tls: {{ verify: false }}, \
           timeouts: {{ connect: 300ms }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n"
    ));
    let start = Instant::now();
    gateway.get("/").expect(504);
    assert!(start.elapsed() >= ms(300) && start.elapsed() < ms(3000), "{:?}", start.elapsed());
}

/// A server that answers an upload at once and closes is read to the end, as without TLS.
#[test]
fn an_early_response_survives_the_reset_of_its_upload() {
    let ours = Authority::new();
    let config = ours.certify(&["localhost"]).server(&["http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // The reset discards data that waits to be sent.
            stream.set_nodelay(true).expect("nodelay can be set");
            let connection = ServerConnection::new(config.clone()).expect("a connection");
            let mut stream = StreamOwned::new(connection, stream);
            let mut head = [0; 1024];
            if stream.read(&mut head).is_ok() {
                let _ =
                    stream.write_all(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
                stream.conn.send_close_notify();
                // Closed with unread data: a reset follows at once.
                let _ = stream.flush();
            }
        }
    });
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"https://localhost:{port}\"], {} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        trusting(&ours.file(), "")
    ));
    for _ in 0..5 {
        let mut client = gateway.client();
        let mut writer = client.writer();
        let upload = thread::spawn(move || {
            let _ = writer.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n");
            let _ = writer.write_all(&vec![b'x'; 8_000_000]);
        });
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (413, "no"));
        drop(client);
        upload.join().expect("the upload ends");
    }
}
