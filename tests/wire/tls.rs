//! TLS towards clients: certificates, client certificates, sessions, and the forwarded scheme.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::version::{TLS12, TLS13};

use crate::support::tls::{AnyCertificate, is_resumed, shake_hands, shown};
use crate::support::*;

const DEMO: &str = "locations: [{ path: /, upstream: demo }]\n";

/// A gateway with this TLS and further YAML.
fn tls_gateway(tls: &str, beside: &str) -> Gateway {
    Gateway::start(&format!("listen: [{{ address: \"127.0.0.1:0\", tls: {tls} {beside} }}]\n{DEMO}"))
}

fn one_host() -> (Authority, Gateway) {
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    let gateway = tls_gateway(&format!("{{ {} }}", authority.entry("a")), "");
    (authority, gateway)
}

/// curl verifies the certificate, chooses HTTP/2 by ALPN or stays with HTTP/1.1; the upstream sees https.
#[test]
fn curl_speaks_http_1_and_http_2() {
    let (authority, gateway) = one_host();
    gateway.wait_stderr(&format!("listening https://{}", gateway.addr()));
    for (version, expected) in [("--http1.1", "200 1.1"), ("--http2", "200 2"), ("--tls-max=1.2", "200 2")] {
        let version: Vec<&str> = version.split('=').collect();
        let arguments = [&version[..], &["https://a.test/x", "-H", "X-Forwarded-Proto: gopher"]].concat();
        let curled = authority.curl(gateway.addr(), &arguments).expect(expected);
        assert_eq!(curled.received("x-forwarded-proto").as_deref(), Some("https"), "{version:?}");
        assert_eq!(curled.received("x-forwarded-host").as_deref(), Some("a.test"));
    }
    let wrong = authority.curl(gateway.addr(), &["https://b.test/"]);
    assert_eq!(wrong.exit, 60, "the certificate is for another host: {wrong:?}");
    gateway.wait_log(3);
}

/// Many requests and a body of a megabyte each way on one connection.
#[test]
fn bodies_pass_whole() {
    let (authority, gateway) = one_host();
    let config = Arc::new(authority.client(None));
    let mut client = Client::over_tls(shake_hands(gateway.addr(), &config, "a.test").unwrap());
    for size in [0, 1, 16_000, 1_000_000] {
        let answer = client.ask(&post("/", &vec![b'x'; size]).host("a.test")).expect(200);
        assert_eq!(answer.json()["body_bytes"], size);
    }
    let large = vec![b'y'; 3_000_000];
    let upstream = Upstream::new({
        let body = String::from_utf8(large.clone()).unwrap();
        move |_| Reply::text(&body)
    });
    let gateway = Gateway::start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: {{ {} }} }}]\nlocations: [{{ path: /, upstream: \"{}\" }}]\n",
        authority.entry("a"),
        upstream.url()
    ));
    let mut client = Client::over_tls(shake_hands(gateway.addr(), &config, "a.test").unwrap());
    for _ in 0..3 {
        assert!(client.ask(&get("/").host("a.test")).expect(200).body == large);
    }
    let curled = authority.curl(gateway.addr(), &["--http2", "https://a.test/"]).expect("200 2");
    assert_eq!(curled.body.len(), large.len());
}

/// A connection that is idle between two requests keeps its session.
#[test]
fn a_connection_may_be_idle() {
    let (authority, gateway) = one_host();
    let config = Arc::new(authority.client(None));
    let mut client = Client::over_tls(shake_hands(gateway.addr(), &config, "a.test").unwrap());
    for _ in 0..3 {
        client.ask(&get("/").host("a.test")).expect(200);
        std::thread::sleep(ms(500));
    }
    assert_eq!(gateway.metric("sluicegate_tls_handshakes_total", &["full"]), 1.0);
}

/// The host's own certificate, one with a wildcard for it, or the first.
#[test]
fn the_certificate_is_chosen_by_the_name_asked_for() {
    let authority = Authority::new();
    for (name, hosts) in [
        ("first", &["first.test"][..]),
        ("wild", &["*.example.test"]),
        ("own", &["www.example.test", "other.test"]),
    ] {
        authority.issue(name, hosts);
    }
    let entries = ["first", "wild", "own"].map(|name| format!("{{ {} }}", authority.entry(name)));
    let gateway = tls_gateway(&format!("[{}]", entries.join(", ")), "");
    let config = Arc::new(authority.client(None));
    for (host, name) in [
        ("first.test", "first"),
        ("www.example.test", "own"),
        ("WWW.Example.test", "own"),
        ("other.test", "own"),
        ("api.example.test", "wild"),
    ] {
        let stream = shake_hands(gateway.addr(), &config, host).unwrap();
        assert!(shown(&stream) == authority.certificate(name), "{host}");
        Client::over_tls(stream).ask(&get("/").host(host)).expect(200);
    }
    for host in ["a.b.example.test", "nobody.test", "127.0.0.1"] {
        let mut trusting = authority.client(None);
        trusting.dangerous().set_certificate_verifier(Arc::new(AnyCertificate));
        let stream = shake_hands(gateway.addr(), &Arc::new(trusting), host).unwrap();
        assert!(shown(&stream) == authority.certificate("first"), "{host}");
    }
}

#[test]
fn old_versions_are_rejected() {
    let (authority, gateway) = one_host();
    let strict = tls_gateway(&format!("{{ {}, min_version: \"1.3\" }}", authority.entry("a")), "");
    for (gateway, version, exit) in [
        (&gateway, "1.1", 35),
        (&gateway, "1.2", 0),
        (&gateway, "1.3", 0),
        (&strict, "1.2", 35),
        (&strict, "1.3", 0),
    ] {
        let old = ["--tls-max", version, "--ciphers", "DEFAULT@SECLEVEL=0", "https://a.test/"];
        let curled = authority.curl(gateway.addr(), &old);
        assert_eq!(curled.exit, exit, "{version}: {curled:?}");
    }
    assert_eq!(strict.metric("sluicegate_tls_handshakes_total", &["failed"]), 1.0);
}

/// With `http2: false` HTTP/2 is neither offered nor understood, with TLS and without.
#[test]
fn http_2_can_be_switched_off() {
    let (authority, _) = one_host();
    let gateway = tls_gateway(&format!("{{ {} }}", authority.entry("a")), ", http2: false");
    authority.curl(gateway.addr(), &["--http2", "https://a.test/"]).expect("200 1.1");
    let plain = Gateway::start(&format!("listen: [{{ address: \"127.0.0.1:0\", http2: false }}]\n{DEMO}"));
    let curled = authority.curl(plain.addr(), &["--http2-prior-knowledge", "http://a.test/"]);
    assert_ne!(curled.exit, 0, "{curled:?}");
    authority.curl(plain.addr(), &["http://a.test/"]).expect("200 1.1");
    let both = Gateway::start(DEMO);
    authority.curl(both.addr(), &["--http2-prior-knowledge", "http://a.test/"]).expect("200 2");
}

/// A client must present a certificate of the authority, and gets the reason for a rejection.
#[test]
fn clients_must_present_certificates() {
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    authority.issue("caller", &["caller.test"]);
    let stranger = Authority::new();
    stranger.issue("caller", &["caller.test"]);
    let ca = authority.path("ca.pem").display().to_string();
    let gateway = tls_gateway(&format!("{{ {}, client_ca: {ca} }}", authority.entry("a")), "");
    let url = "https://a.test/";
    let own = |of: &Authority| ["pem", "key.pem"].map(|end| of.path(&format!("caller.{end}")));
    let [cert, key] = own(&authority).map(|path| path.display().to_string());
    for max in ["1.2", "1.3"] {
        let show = ["--tls-max", max, "--cert", &cert, "--key", &key, url];
        authority.curl(gateway.addr(), &show).expect("200 2");
        let none = authority.curl(gateway.addr(), &["--tls-max", max, url]);
        assert!(none.exit != 0 && none.errors.contains("alert"), "{none:?}");
        let [cert, key] = own(&stranger).map(|path| path.display().to_string());
        let show = ["--tls-max", max, "--cert", &cert, "--key", &key, url];
        let wrong = authority.curl(gateway.addr(), &show);
        assert!(wrong.exit != 0 && wrong.errors.contains("alert"), "{wrong:?}");
    }
    gateway.wait_log(2);
    assert_eq!(gateway.metric("sluicegate_tls_handshakes_total", &["failed"]), 4.0);
}

/// The second handshake of a client is resumed on any worker, and a session resumed from a resumed one as
/// well.
#[test]
fn sessions_are_resumed() {
    for version in [&TLS12, &TLS13] {
        let (authority, gateway) = one_host();
        let mut config = authority.client(None);
        let provider = config.crypto_provider().clone();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.certificate("ca")).unwrap();
        config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let config = Arc::new(config);
        for round in 0..6 {
            let stream = shake_hands(gateway.addr(), &config, "a.test").unwrap();
            assert_eq!(is_resumed(&stream), round > 0, "{version:?}");
            // The tickets come with the response.
            Client::over_tls(stream).ask(&get("/").host("a.test")).expect(200);
        }
        let count = |result: &str| gateway.metric("sluicegate_tls_handshakes_total", &[result]);
        assert_eq!((count("full"), count("resumed")), (1.0, 5.0));
    }
}

/// h2load finishes every request, over HTTP/2 and HTTP/1.1.
#[test]
fn many_clients_at_once() {
    let (_authority, gateway) = one_host();
    for protocol in ["h2", "http/1.1"] {
        let output = std::process::Command::new("h2load")
            .args(["-n2000", "-c20", "-m10", "-t2", "--npn-list", protocol])
            .arg(format!("https://{}/", gateway.addr()))
            .output()
            .expect("h2load runs");
        let output_text = String::from_utf8_lossy(&output.stdout);
        assert!(output_text.contains("2000 succeeded, 0 failed"), "{output_text}");
    }
    gateway.wait_log(4000);
}

/// A fully qualified name ends with a dot: rustls omits it, other clients send it.
#[test]
fn a_name_with_its_final_dot_finds_its_certificate() {
    let authority = Authority::new();
    authority.issue("first", &["first.test"]);
    authority.issue("second", &["second.test"]);
    let gateway = tls_gateway(
        &format!("[{{ {} }}, {{ {} }}]", authority.entry("first"), authority.entry("second")),
        "",
    );
    let provider = authority.client(None).crypto_provider().clone();
    // TLS 1.2 sends certificates in the clear.
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let host = "second.testx".try_into().unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), host).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let name = hello.windows(12).position(|bytes| bytes == b"second.testx").unwrap();
    hello[name + 11] = b'.';
    let mut socket = std::net::TcpStream::connect(gateway.addr()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(&hello).unwrap();
    let [first, second] = ["first", "second"].map(|name| authority.certificate(name));
    let mut shown = Vec::new();
    let has = |shown: &[u8], der: &[u8]| shown.windows(der.len()).any(|bytes| bytes == der);
    while !has(&shown, &first) && !has(&shown, &second) {
        let mut piece = [0; 4096];
        let length = socket.read(&mut piece).expect("a certificate in time");
        assert!(length > 0, "no certificate was shown");
        shown.extend_from_slice(&piece[..length]);
    }
    assert!(has(&shown, &second), "the first certificate was shown");
}
