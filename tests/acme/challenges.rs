//! How a gateway answers challenges: which it tries, and what else sees them.

use std::io::Read as _;
use std::net::SocketAddr;

use crate::directory::{Deed, Step};
use crate::pebble::Options;
use crate::site::{HELLO, Site, any};
use crate::support::*;

const ACME_TLS: &[u8] = b"acme-tls/1";
/// id-pe-acmeIdentifier (RFC 8737), as a certificate holds it.
const ACME_IDENTIFIER: &[u8] = &[0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x1f];

/// The path of a challenge.
fn path(token: &str) -> String {
    format!("/.well-known/acme-challenge/{token}")
}

fn hide_tls_alpn(authorization: &mut serde_json::Value) {
    if let Some(challenges) = authorization["challenges"].as_array_mut() {
        challenges.retain(|one| one["type"] != "tls-alpn-01");
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Plain HTTP is not needed.
#[test]
fn tls_alpn_01_is_tried_first() {
    let site = Site::new();
    let secure = site.secure;
    let acme = site.acme("a.test, b.test");
    let gateway = Gateway::start(&format!(
        "listen: {{ address: \"{secure}\", tls: {{ acme: {{ {acme} }} }} }}\n{HELLO}"
    ));
    let certificate = site.wait_real("a.test");
    assert!(site.wait_real("b.test") == certificate, "one certificate for both");
    assert_eq!(site.directory.tried(), ["tls-alpn-01"; 2]);
    assert_eq!(gateway.metric("sluicegate_acme_orders_total", &["result=\"issued\""]), 1.0);
}

#[test]
fn http_01_serves_a_directory_that_has_nothing_else() {
    let site = Site::new();
    site.directory.at(Step::Authorization, |_| Deed::Edit(hide_tls_alpn));
    let _gateway = site.start("a.test");
    site.wait_real("a.test");
    assert_eq!(site.directory.tried(), ["http-01"]);
}

/// A load balancer that ends TLS itself passes no tls-alpn-01.
#[test]
fn http_01_is_tried_after_a_failed_tls_alpn_01() {
    let options = Options::default();
    let [plain, _] = options.challenges;
    let site = Site::behind(options, plain, free_addr());
    let gateway = site.start("a.test");
    site.wait_real("a.test");
    assert_eq!(site.directory.tried(), ["tls-alpn-01", "http-01"]);
    assert_eq!(gateway.metric("sluicegate_acme_orders_total", &["result=\"issued\""]), 1.0);
}

/// A site whose order waits for the answer to its first challenge of this type, and the gate that lets it go on.
fn open_order(kind: &str, rest: &str) -> (Site, Gateway, Gate) {
    let site = Site::new();
    let (gate, held) = (Gate::default(), kind == "http-01");
    let opened = gate.clone();
    site.directory.script(move |asked| match asked.step {
        Step::Authorization if held => Deed::Edit(hide_tls_alpn),
        Step::Challenge => Deed::Hold(opened.clone()),
        _ => Deed::Forward,
    });
    let tls = format!("{{ acme: {{ {} }} }}", site.acme("a.test"));
    let gateway = Gateway::start(&site.listening(&tls, rest));
    site.directory.wait(Step::Challenge, 1);
    (site, gateway, gate)
}

fn ask_at(addr: SocketAddr, target: &str) -> Response {
    Client::connect(addr).ask(&get(target).host("a.test"))
}

/// Neither redirects nor limits, bans, access lists and missing locations are in the way; other tokens meet them.
#[test]
fn http_01_is_answered_before_everything_else() {
    let cases = [
        (
            "a redirect",
            "locations: [{ path: /, redirect: { to: \"https://${host}/\", status: 308 } }]\n",
            308,
        ),
        (
            "a limit",
            "locations: [{ path: /, respond: { body: x }, limits: { key: global, rate: 1/1h } }]\n",
            429,
        ),
        (
            "a ban",
            "bans: { after: 1/1h }\nlocations: [{ path: /, respond: { body: x }, limits: { key: ip, rate: 1/1h } }]\n",
            429,
        ),
        (
            "an access list",
            "access: { deny: 127.0.0.0/8 }\nlocations: [{ path: /, respond: { body: x } }]\n",
            403,
        ),
        ("no location", "locations: []\n", 404),
    ];
    at_once(cases, |(name, rest, usual)| {
        let (site, gateway, gate) = open_order("http-01", rest);
        let token = site.directory.tokens("http-01").pop().expect("a token");
        let strange = path("AAAAAAAAAAAAAAAAAAAAAA");
        // What the limit admits, and the strike that bans.
        for _ in 0..3 {
            ask_at(site.plain, &strange);
        }
        let counted = gateway.metric("sluicegate_requests_total", &[]);
        assert_eq!(counted, 3.0, "{name}");
        let logged = gateway.wait_log(3).len();
        for _ in 0..3 {
            let answer = ask_at(site.plain, &path(&token)).expect(200);
            assert!(answer.text().starts_with(&format!("{token}.")), "{name}: {}", answer.text());
        }
        let lines = gateway.wait_log(logged + 3);
        for line in &lines[logged..] {
            assert!(line.to_string().contains("\"acme\""), "{name}: {line}");
        }
        assert_eq!(gateway.metric("sluicegate_requests_total", &[]), counted, "{name}: it is not counted");
        assert_eq!(ask_at(site.plain, &strange).status, usual, "{name}");
        assert_eq!(ask_at(site.plain, &path("")).status, usual, "{name}");
        assert_eq!(ask_at(site.plain, &path(&token[1..])).status, usual, "{name}");
        gate.open();
        site.wait_real_certificate("a.test");
        eventually("the end of the answers", || ask_at(site.plain, &path(&token)).status == usual);
    });
}

/// Over cleartext HTTP/2 as well, and not over TLS.
#[test]
fn http_01_is_answered_on_plain_listeners_alone() {
    let (site, _gateway, gate) = open_order("http-01", HELLO);
    let token = site.directory.tokens("http-01").pop().expect("a token");
    let answer = ask_h2(site.plain, &path(&token));
    assert!(answer.starts_with(&format!("{token}.")), "{answer}");
    let stream = any(site.secure, "a.test", &[b"http/1.1"]).expect("a handshake");
    let answer = Client::over_tls(stream).ask(&get(&path(&token)).host("a.test")).expect(200);
    assert_eq!(answer.text(), "hello");
    gate.open();
}

/// The connection ends after the handshake, so no request passes on it.
#[test]
fn tls_alpn_01_is_a_handshake_and_nothing_else() {
    let (site, gateway, gate) = open_order("tls-alpn-01", HELLO);
    for host in ["a.test", "A.Test"] {
        let mut stream = any(site.secure, host, &[ACME_TLS]).expect("a handshake");
        assert_eq!(stream.conn.alpn_protocol(), Some(ACME_TLS));
        let certificate = stream.conn.peer_certificates().expect("a certificate")[0].clone();
        assert!(contains(&certificate, ACME_IDENTIFIER), "it has the extension");
        stream.sock.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{end:?}: {rest:?}");
    }
    // A client that speaks something else beside it is an ordinary client.
    let stream = any(site.secure, "a.test", &[b"http/1.1", ACME_TLS]).expect("a handshake");
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let shown = stream.conn.peer_certificates().expect("a certificate")[0].clone();
    assert!(!contains(&shown, ACME_IDENTIFIER));
    Client::over_tls(stream).ask(&get("/").host("a.test")).expect(200);
    assert_no_challenge(&site, "b.test");
    gate.open();
    site.wait_real_certificate("a.test");
    eventually("the end of the answers", || !shows_challenge(&site, "a.test"));
    assert_no_challenge(&site, "a.test");
    let lines = gateway.log_lines();
    assert!(lines.iter().all(|line| line["path"] == "/" && line["status"] == 200), "{lines:#?}");
}

fn shows_challenge(site: &Site, host: &str) -> bool {
    let stream = any(site.secure, host, &[ACME_TLS]);
    stream.is_ok_and(|stream| {
        let certificate = &stream.conn.peer_certificates().expect("a certificate")[0];
        contains(certificate, ACME_IDENTIFIER)
    })
}

#[track_caller]
fn assert_no_challenge(site: &Site, host: &str) {
    assert!(!shows_challenge(site, host), "{host} has no open order");
}

/// The body of an answer by prior knowledge of HTTP/2.
fn ask_h2(addr: SocketAddr, target: &str) -> String {
    let request = ::http::Request::get(format!("http://a.test{target}")).body(()).expect("a request");
    let answer = Client2::connect(addr).ask(request, b"", None).expect("an answer");
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// Many connections that ask for challenges do not hinder an order.
#[test]
fn a_flood_of_questions_changes_nothing() {
    let (site, gateway, gate) = open_order("tls-alpn-01", HELLO);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let site = &site;
            scope.spawn(move || {
                let mut client = Client::connect(site.plain);
                for number in 0..500 {
                    let target = path(&format!("{worker}-{number}"));
                    client.ask(&get(&target).host("a.test")).expect(200);
                }
                for _ in 0..50 {
                    let _ = any(site.secure, "b.test", &[ACME_TLS]);
                    let _ = any(site.secure, "a.test", &[ACME_TLS]);
                }
            });
        }
        gate.open();
    });
    site.wait_real_certificate("a.test");
    assert_eq!(gateway.metric("sluicegate_acme_orders_total", &["result=\"issued\""]), 1.0);
}
