//! The reason for a missing response: in the access log, in `GET /upstreams`, and once in the process log.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::Value;

use crate::support::nginx::Nginx;
use crate::support::upstream::Blackhole;
use crate::support::*;

/// A gateway in front of one server, which is never ejected.
fn gateway_before(server: &str, more: &str) -> Gateway {
    Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{server}\"], eject: none, retries: none{more} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n"
    ))
}

/// The number of log lines about a failed exchange.
fn warnings(gateway: &Gateway, reason: &str) -> usize {
    let message = format!("an exchange with a server failed: {reason}");
    gateway.stderr().lines().filter(|line| line.contains("WARN") && line.contains(&message)).count()
}

/// Three requests fail for this reason.
#[track_caller]
fn assert_reason(gateway: &Gateway, server: &str, status: u16, reason: &str) {
    for _ in 0..3 {
        gateway.get("/secret-path?token=secret").expect(status);
    }
    for line in gateway.wait_log(3) {
        assert_eq!((&line["error"], &line["upstream"]), (&reason.into(), &server.into()), "{line}");
    }
    let listed = gateway.admin_get("/upstreams").expect(200).json();
    let last = &listed["upstreams"][0]["servers"][0]["last_error"];
    assert_eq!(last["error"], reason);
    assert!(last["seconds_ago"].as_f64().is_some_and(|ago| ago < 30.0), "{last}");
    eventually("the log", || warnings(gateway, reason) > 0);
    assert_eq!(warnings(gateway, reason), 1, "{}", gateway.stderr());
    assert!(!gateway.stderr().contains("secret"), "{}", gateway.stderr());
}

#[test]
fn failed_connects_are_distinguished() {
    let refusing = Refusing::new();
    assert_reason(
        &gateway_before(&refusing.url(), ""),
        &refusing.addr().to_string(),
        502,
        "connection refused",
    );
    let nobody = "no-such-host.invalid:80";
    assert_reason(&gateway_before(nobody, ""), nobody, 502, "name not found");
    let silent = Blackhole::new();
    let gateway = gateway_before(&silent.url(), ", timeouts: { connect: 200ms }");
    assert_reason(&gateway, silent.url().trim_start_matches("http://"), 504, "connect timeout");
}

#[test]
fn bad_certificates_are_distinguished() {
    let (ours, others) = (Authority::new(), Authority::new());
    // With another name: an authority that only has another key signs badly.
    let stranger = others.certify(&["stranger"]).cert;
    let nginx = Nginx::start(
        &format!(
            "server {{ listen @0@ ssl; {} location / {{ return 200 ok; }} }}
             server {{ listen @1@; location / {{ return 200 ok; }} }}",
            ours.certify(&["localhost"]).nginx()
        ),
        2,
    );
    let port = nginx.addr(0).port();
    let plain_port = nginx.addr(1).port();
    let expired = Nginx::start(
        &format!(
            "server {{ listen @0@ ssl; {} location / {{ return 200 ok; }} }}",
            ours.expired(&["localhost"]).nginx()
        ),
        1,
    );
    for (host, ca, reason) in [
        (format!("localhost:{port}"), &stranger, "certificate of an unknown authority"),
        (format!("localhost:{port}"), &others.file(), "bad certificate"),
        (format!("127.0.0.1:{port}"), &ours.file(), "certificate not valid for this name"),
        (format!("localhost:{}", expired.addr(0).port()), &ours.file(), "certificate expired"),
        (format!("localhost:{plain_port}"), &ours.file(), "TLS not spoken"),
    ] {
        let tls = format!(", tls: {{ ca: \"{}\" }}", ca.display());
        assert_reason(&gateway_before(&format!("https://{host}"), &tls), &host, 502, reason);
    }
}

/// A server that ends a handshake because the client has no certificate, which TLS 1.3 does after the client's part.
#[test]
fn a_missing_certificate_is_named_so() {
    let authority = Authority::new();
    let own = authority.certify(&["localhost"]);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file()).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the default versions")
        .with_client_cert_verifier(verifier.expect("authorities"))
        .with_single_cert(
            vec![CertificateDer::from_pem_file(&own.cert).expect("a certificate")],
            PrivateKeyDer::from_pem_file(&own.key).expect("a key"),
        );
    let config = Arc::new(config.expect("a certificate with its key"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = format!("localhost:{}", listener.local_addr().expect("an address").port());
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut session = rustls::ServerConnection::new(config.clone()).expect("a session");
            while session.complete_io(&mut stream).is_ok_and(|(read, _)| read > 0) {}
            let _ = session.write_tls(&mut stream);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            // What the client has sent is read, or closing would reset the connection.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    let tls = format!(", tls: {{ ca: \"{}\" }}", authority.file().display());
    let reason = "the server requires a certificate";
    assert_reason(&gateway_before(&format!("https://{host}"), &tls), &host, 502, reason);
}

/// `openssl req -x509` makes the certificate of an authority, which no server may present, also when `ca` names it.
#[test]
fn a_self_signed_certificate_is_named_so() {
    let authority = Authority::new();
    for (is_ca, reason) in [
        (rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained), Some("the certificate is for CA use only")),
        (rcgen::IsCa::ExplicitNoCa, None),
    ] {
        let own = authority.self_signed(&["localhost"], is_ca);
        let block = format!("server {{ listen @0@ ssl; {} location / {{ return 200 ok; }} }}", own.nginx());
        let nginx = Nginx::start(&block, 1);
        let host = format!("localhost:{}", nginx.addr(0).port());
        let gateway = gateway_before(
            &format!("https://{host}"),
            &format!(", tls: {{ ca: \"{}\" }}", own.cert.display()),
        );
        match reason {
            Some(reason) => assert_reason(&gateway, &host, 502, reason),
            None => drop(gateway.get("/").expect(200)),
        }
    }
}

#[test]
fn failed_responses_are_distinguished() {
    for (reply, status, reason) in [
        (Reply::default().close(), 502, "closed without an answer"),
        (Reply::raw("HTTP/1.1 200 OK\r\nContent-Le").close(), 502, "closed within the answer"),
        (Reply::raw("hello\r\n\r\n"), 502, "broken answer"),
        (Reply::silence(), 504, "response timeout"),
    ] {
        let upstream = Upstream::new(move |_| reply.clone());
        let gateway = gateway_before(&upstream.url(), ", timeouts: { response: 200ms }");
        assert_reason(&gateway, &upstream.addr().to_string(), status, reason);
    }
    let name = resetting().to_string();
    assert_reason(&gateway_before(&name, ""), &name, 502, "reset");
}

/// A server that resets each connection once a request came.
fn resetting() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
    });
    addr
}

/// The same over HTTP/2, and with a server that does not speak it.
#[test]
fn http2_failures_are_distinguished() {
    let resetting = Upstream2::new(|_| Act::Reset(h2::Reason::INTERNAL_ERROR));
    let name = resetting.addr().to_string();
    assert_reason(&gateway_before(&name, ", protocol: http2"), &name, 502, "reset");
    let old = Upstream::ok();
    let name = old.addr().to_string();
    assert_reason(&gateway_before(&name, ", protocol: http2"), &name, 502, "HTTP/2 not spoken");
}

/// A failure that is not the server's has a reason of its own, and a forwarded response has none.
#[test]
fn other_endings_have_their_own_reason_or_none() {
    let upstream = Upstream::new(|seen| match seen.target.as_str() {
        "/502" => Reply::with(502, &[], "no"),
        "/cut" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc").close(),
        "/late" => Reply::silence(),
        _ => Reply::text("ok"),
    });
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /late, upstream: \"{0}\", timeout: 300ms }}\n  - {{ path: /, upstream: \"{0}\" }}\n",
        upstream.url()
    ));
    gateway.get("/").expect(200);
    gateway.get("/502").expect(502);
    assert_eq!((gateway.get("/cut").status, gateway.get("/late").status), (200, 504));
    // Workers write their lines with a delay.
    let lines = gateway.wait_log(4);
    let word = |line: &Value, field: &str| line[field].as_str().unwrap_or_default().to_owned();
    let mut errors: Vec<_> = lines.iter().map(|line| (word(line, "path"), word(line, "error"))).collect();
    errors.sort();
    let expected =
        [("/", ""), ("/502", ""), ("/cut", "closed within the answer"), ("/late", "location timeout")];
    assert_eq!(errors, expected.map(|(path, error)| (path.to_owned(), error.to_owned())));
    let listed = gateway.admin_get("/upstreams").expect(200).json();
    assert!(listed["upstreams"][0]["servers"][0].get("last_error").is_none(), "{listed}");
    assert_eq!(warnings(&gateway, ""), 0);
}

/// An unresolvable name delays neither the start nor other requests; it is logged at the start, and `check`
/// asks no resolver.
#[test]
fn a_name_that_cannot_be_resolved_is_logged_at_the_start() {
    let well = Upstream::ok();
    let begun = Instant::now();
    let gateway = Gateway::start(&format!(
        "upstreams:\n  lost: [\"no-such-host.invalid:80\", \"nor-this.invalid:81\"]\n\
         locations:\n  - {{ path: /lost, upstream: lost }}\n  - {{ path: /, upstream: \"{}\" }}\n",
        well.url()
    ));
    gateway.get("/").expect(200);
    assert!(begun.elapsed() < PATIENCE);
    let warnings_about = |name: &str| {
        let is_it =
            |line: &&str| line.contains("WARN") && line.contains("a server's name cannot be resolved");
        gateway.stderr().lines().filter(is_it).filter(|line| line.contains(name)).count()
    };
    eventually("both", || {
        warnings_about("no-such-host.invalid:80") == 1 && warnings_about("nor-this.invalid:81") == 1
    });
    let checked = Run::default().args(&["check", "-c", &gateway.file().display().to_string()]);
    let finished = checked.finish(gateway.dir());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(!finished.stderr.contains("resolved"), "{finished:?}");
}
