//! The listeners of Redis clients: TLS, the PROXY protocol, unix sockets, names, reloads.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;

use super::*;

fn pong() -> Reply {
    Reply::Simple("PONG".to_owned())
}

#[test]
fn redis_clients_come_over_tls() {
    let authority = Authority::new();
    authority.issue("calls", &["calls.test"]);
    let gateway = Gateway::start(&format!(
        "service: {{ resp: {{ address: 127.0.0.1:0, tls: {{ {} }} }} }}\nlocations: []\n",
        authority.entry("calls")
    ));
    let mut roots = rustls::RootCertStore::empty();
    let certificate =
        rustls::pki_types::CertificateDer::from_pem_file(authority.path("ca.pem")).expect("a certificate");
    roots.add(certificate).expect("a root");
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("calls.test").expect("a name");
    let session = rustls::ClientConnection::new(Arc::new(config), name).expect("a session");
    let socket = TcpStream::connect(service(&gateway)).expect("a connection");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut peer = Peer(BufReader::new(rustls::StreamOwned::new(session, socket)));
    assert_eq!(peer.throttle("a 1 1 1000"), [0, 2, 1, -1, 1_000]);
    let long = "x".repeat(60_000);
    peer.send([array(&["ECHO", &long]), array(&["PING"])].concat());
    assert_eq!((peer.reply(), peer.reply()), (Reply::Bulk(long), pong()));
}

#[test]
fn redis_clients_come_over_a_unix_socket_and_behind_a_proxy_header() {
    let scratch = Scratch::new();
    let path = scratch.path().join("resp.sock");
    let gateway = Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.1 }}\n\
         service: {{ resp: [{{ address: \"unix:{}\", mode: \"0600\" }}, {{ address: 127.0.0.1:0, proxy_protocol: required }}] }}\n\
         locations: []\n",
        path.display()
    ));
    let socket = UnixStream::connect(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut local = Peer(BufReader::new(socket));
    assert_eq!(local.throttle("a 1 1 1000")[2], 1);
    let mut proxied = Peer::connect(service(&gateway));
    proxied.send("PROXY TCP4 192.0.2.9 192.0.2.1 4000 80\r\n");
    assert_eq!(proxied.throttle("a 1 1 1000")[2], 0);
    let lines = gateway.wait_log(2);
    assert!(lines.iter().any(|line| line["ip"] == "192.0.2.9"), "{lines:?}");
    assert!(lines.iter().any(|line| line.get("ip").is_none()), "{lines:?}");
}

/// Both kinds of listeners side by side, one of them by its name; neither speaks the other's protocol.
#[test]
fn each_listener_speaks_its_own_protocol() {
    let gateway = Gateway::start(
        "listen: [{ address: 127.0.0.1:0, name: redis }]\n\
         service: { listen: 127.0.0.1:0, resp: redis }\n\
         limits: { sms: { key: global, rate: 9/1h, burst: 9 } }\nlocations: []\n",
    );
    let [calls, resp] = gateway.addrs()[..] else { panic!("two listeners: {:?}", gateway.addrs()) };
    Client::connect(calls).ask(&post("/check", b"{\"limits\":\"sms\"}")).expect(200);
    assert_eq!(Peer::connect(resp).ask(&["PING"]), pong());
    let mut http = Peer::connect(resp);
    http.send("POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert!(matches!(http.try_reply(), Some(Reply::Error(text)) if text.contains("HTTP")));
    http.assert_closed();
}

#[test]
fn a_reload_opens_and_closes_the_listener() {
    let address = free_addr();
    let gateway = Gateway::start("locations: []\n");
    let changes = gateway.change(&format!("service: {{ resp: \"{address}\" }}\nlocations: []\n"));
    assert!(changes.contains(&address.to_string()), "{changes}");
    let mut kept = Peer::connect(address);
    assert_eq!(kept.ask(&["PING"]), pong());
    // The same socket with another purpose: no connection of before goes on.
    gateway.change(&format!("service: {{ listen: \"{address}\" }}\nlocations: []\n"));
    kept.assert_closed();
    gateway.change("locations: []\n");
    eventually("a closed listener", || TcpStream::connect(address).is_err());
}
