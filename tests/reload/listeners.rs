//! Listeners follow a reload: new ones are open before anything else changes, removed ones accept their queues first,
//! and unchanged ones are not touched.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use crate::support::h2_raw::request;
use crate::support::tls::{shake_hands, shown};
use crate::support::*;

const HELLO: &str = "locations:\n  - { path: /, respond: { body: hello } }\n";

fn listening(listen: &str) -> String {
    format!("listen: {listen}\n{HELLO}")
}

fn is_open(addr: SocketAddr) -> bool {
    TcpStream::connect(addr).is_ok()
}

/// One listener is added, one removed, one kept: connections of the removed one end, all others continue.
#[test]
fn a_listener_is_added_and_one_removed() {
    let [stays, goes, comes] = [(); 3].map(|()| free_addr());
    let gateway = Gateway::start(&listening(&format!("[\"{stays}\", \"{goes}\"]")));
    let mut clients: Vec<Client> = [stays, goes].map(Client::connect).into();
    clients.iter_mut().for_each(|client| drop(client.ask(&get("/")).expect(200)));
    let answer = gateway.change(&listening(&format!("[\"{stays}\", \"{comes}\"]")));
    let told = format!(
        "reloaded: listen: added {comes}, removed {goes}\n  listen: [{stays}, {goes}] → [{stays}, {comes}]\n"
    );
    assert_eq!(answer, told);
    eventually("the old listener to close", || !is_open(goes));
    clients.remove(1).assert_closed();
    clients.push(Client::connect(comes));
    clients.push(Client::connect(stays));
    clients.iter_mut().for_each(|client| drop(client.ask(&get("/")).expect(200)));
    let status = gateway.admin_get("/status").expect(200).text();
    assert!(status.contains(&format!("listening   http://{stays} http://{comes}\n")), "{status}");
    // And back.
    gateway.change(&listening(&format!("[\"{goes}\"]")));
    Client::connect(goes).ask(&get("/")).expect(200);
    eventually("the others to close", || !is_open(stays) && !is_open(comes));
}

/// A removed listener accepts its queue and closes, at any number of connections.
#[test]
fn a_listener_is_removed_while_every_permit_is_taken() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/slow", &gate);
    let [stays, goes] = [(); 2].map(|()| free_addr());
    let yaml = |listen: &str| {
        format!(
            "listen: {listen}\nserver: {{ max_connections: 1 }}\nlocations:\n  - {{ path: /, upstream: \"{}\" }}\n",
            upstream.url()
        )
    };
    let gateway = Gateway::start(&yaml(&format!("[\"{stays}\", \"{goes}\"]")));
    let mut busy = Client::connect(stays);
    busy.send(get("/slow").bytes());
    upstream.wait_for(1);
    let mut waiting: Vec<_> = (0..8).map(|_| Client::connect(goes)).collect();
    waiting.iter_mut().for_each(|client| client.send(get("/").bytes()));
    gateway.change(&yaml(&format!("\"{stays}\"")));
    assert!(!is_open(goes), "it takes connections still");
    for client in &mut waiting {
        client.response().expect(200);
    }
    gateway.change(&yaml(&format!("[\"{stays}\", \"{goes}\"]")));
    gate.open();
    busy.response().expect(200);
}

/// A port in use by another process is found before anything changes: the rest of the file is not applied either.
#[test]
fn a_taken_port_refuses_the_reload() {
    let gateway = Gateway::start(HELLO);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let [addr, free] = [taken.local_addr().expect("an address"), free_addr()];
    let new = listening(&format!("[127.0.0.1:0, \"{free}\", \"{addr}\"]")).replace("hello", "new");
    gateway.write(&new);
    let answer = gateway.reload().expect(422).text();
    assert!(answer.contains(&format!("cannot listen on {addr}")), "{answer}");
    assert_eq!(gateway.get("/").expect(200).text(), "hello");
    assert!(!is_open(free), "what was opened for a reload that failed is open");
    drop(taken);
    gateway.reload().expect(200);
    for addr in [addr, free, gateway.addr()] {
        assert_eq!(Client::connect(addr).ask(&get("/")).expect(200).text(), "new");
    }
}

/// The file of a unix socket appears and disappears with its listener.
#[test]
fn a_unix_socket_is_added_and_removed() {
    let dir = Scratch::new();
    let path = dir.path().join("gate.sock");
    let gateway = Gateway::start(HELLO);
    gateway.change(&listening(&format!("[127.0.0.1:0, \"unix:{}\"]", path.display())));
    let mut client = Client::connect_unix(&path);
    client.ask(&get("/")).expect(200);
    gateway.change(HELLO);
    assert!(!path.exists());
    client.assert_closed();
    gateway.change(&listening(&format!("[127.0.0.1:0, \"unix:{}\"]", path.display())));
    Client::connect_unix(&path).ask(&get("/")).expect(200);
}

/// No client of an unchanged listener is refused or dropped by reloads that change other listeners.
#[test]
fn an_unchanged_listener_is_not_touched() {
    let gateway = Gateway::start(HELLO);
    let (addr, other) = (gateway.addr(), free_addr());
    let connecting = std::thread::spawn(move || {
        for _ in 0..300 {
            Client::connect(addr).ask(&get("/")).expect(200);
        }
    });
    while !connecting.is_finished() {
        gateway.change(&listening(&format!("[127.0.0.1:0, \"{other}\"]")));
        gateway.change(HELLO);
    }
    connecting.join().expect("every request was answered");
}

/// Connections that the new terms reject end after the request in progress, and the client is notified.
#[test]
fn a_removed_listener_ends_its_connections() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/slow", &gate);
    let [stays, goes] = [(); 2].map(|()| free_addr());
    let yaml = |listen: &str| {
        format!("listen: {listen}\nlocations:\n  - {{ path: /, upstream: \"{}\" }}\n", upstream.url())
    };
    let gateway = Gateway::start(&yaml(&format!("[\"{stays}\", \"{goes}\"]")));
    let mut busy = Client::connect(goes);
    busy.send(get("/slow").bytes());
    let mut h2 = H2::open(goes);
    h2.ask(1, &request("GET", "/slow", &[]));
    upstream.wait_for(2);
    let [mut idle, mut half, mut fresh] = [(); 3].map(|()| Client::connect(goes));
    idle.ask(&get("/")).expect(200);
    half.send("GET / HT");
    let mut other = Client::connect(stays);
    other.ask(&get("/")).expect(200);
    gateway.change(&yaml(&format!("\"{stays}\"")));
    // The request in progress is answered as the last one.
    half.send("TP/1.1\r\nHost: gateway.test\r\n\r\n");
    assert_eq!(half.response().expect(200).header("connection").as_deref(), Some("close"));
    idle.assert_closed();
    fresh.assert_closed();
    assert_goaway(&mut h2);
    gate.open();
    let last = busy.response().expect(200);
    assert_eq!((last.text().as_str(), last.header("connection").as_deref()), ("held", Some("close")));
    busy.assert_closed();
    assert_eq!(h2.outcome(1), Outcome::Answered(200, b"held".to_vec()));
    other.ask(&get("/")).expect(200);
}

/// Reads the GOAWAY, after which nothing is answered.
fn assert_goaway(h2: &mut H2) {
    h2.outcome_within(3, ms(300));
    h2.ask(3, &request("GET", "/", &[]));
    let outcome = h2.outcome_within(3, ms(300));
    assert!(!matches!(outcome, Outcome::Answered(..)), "{outcome:?}");
}

/// When TLS, a client certificate or a PROXY header becomes required, no connection without it continues.
#[test]
fn a_stricter_listener_ends_its_connections() {
    let authority = Authority::new();
    ["a", "own"].iter().for_each(|name| authority.issue(name, &["a.test"]));
    let (ca, a) = (authority.path("ca.pem").display().to_string(), authority.entry("a"));
    let addr = free_addr();
    let file = |more: &str| {
        let listen = format!("[{{ address: \"{addr}\", {more} }}]");
        format!("server: {{ trusted_proxies: 127.0.0.1 }}\n{}", listening(&listen))
    };
    let (plain, secure) = (file("http2: true"), file(&format!("tls: {{ {a} }}")));
    let verified = file(&format!("tls: {{ {a}, client_ca: {ca} }}"));
    let gateway = Gateway::start(&plain);
    for tighter in [file("proxy_protocol: required"), secure.clone()] {
        gateway.change(&plain);
        let mut client = Client::connect(addr);
        client.ask(&get("/")).expect(200);
        let mut h2 = H2::open(addr);
        assert!(matches!(h2.get(1, "/"), Outcome::Answered(200, _)));
        gateway.change(&tighter);
        client.assert_closed();
        h2.ask(3, &request("GET", "/", &[]));
        assert!(!matches!(h2.outcome_within(3, ms(300)), Outcome::Answered(..)), "{tighter}");
    }
    let open = |own: Option<&str>| {
        let mut client = Client::over_tls(
            shake_hands(addr, &Arc::new(authority.client(own)), "a.test").expect("a handshake"),
        );
        client.ask(&get("/").host("a.test")).expect(200);
        client
    };
    gateway.change(&secure);
    let mut without = open(None);
    gateway.change(&verified);
    without.assert_closed();
    let mut with = open(Some("own"));
    // Reloads that do not concern the listener: the same file, and looser terms.
    gateway.change(&verified);
    with.ask(&get("/").host("a.test")).expect(200);
    gateway.change(&secure);
    with.ask(&get("/").host("a.test")).expect(200);
}

/// When HTTP/2 is turned off, its connections end, and those of HTTP/1 continue.
#[test]
fn http2_that_is_switched_off_ends() {
    let addr = free_addr();
    let file = |http2: bool| listening(&format!("[{{ address: \"{addr}\", http2: {http2} }}]"));
    let gateway = Gateway::start(&file(true));
    let mut client = Client::connect(addr);
    client.ask(&get("/")).expect(200);
    let mut h2 = H2::open(addr);
    assert!(matches!(h2.get(1, "/"), Outcome::Answered(200, _)));
    gateway.change(&file(false));
    assert_goaway(&mut h2);
    client.ask(&get("/")).expect(200);
    gateway.change(&file(true));
    assert!(matches!(H2::open(addr).get(1, "/"), Outcome::Answered(200, _)));
}

/// The file of a unix socket has its mode from the first moment, and keeps it through a reload and an upgrade.
#[test]
fn a_unix_socket_has_its_mode() {
    let dir = Scratch::new();
    let path = dir.path().join("gate.sock");
    let file = |mode: &str| {
        listening(&format!("[127.0.0.1:0, {{ address: \"unix:{}\", mode: \"{mode}\" }}]", path.display()))
    };
    let mode = || std::fs::metadata(&path).expect("the socket").permissions().mode() & 0o7777;
    let mut gateway = Gateway::start(&file("0660"));
    assert_eq!(mode(), 0o660);
    let mut client = Client::connect_unix(&path);
    client.ask(&get("/")).expect(200);
    gateway.change(&file("0666"));
    assert_eq!(mode(), 0o666);
    client.ask(&get("/")).expect(200);
    // Fewer clients may connect than before.
    gateway.change(&file("600"));
    assert_eq!(mode(), 0o600);
    client.assert_closed();
    let successor = gateway.upgrade();
    assert_eq!(mode(), 0o600);
    gateway.write(&file("0620"));
    let pid = rustix::process::Pid::from_raw(successor.0).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::USR2).expect("it lives");
    eventually("a third process", || gateway.process() != successor.0 as u32);
    let _third = Successor(gateway.process() as i32);
    assert_eq!(mode(), 0o620);
    Client::connect_unix(&path).ask(&get("/")).expect(200);
}

/// New connections get a renewed certificate; open ones continue. An invalid certificate changes nothing.
#[test]
fn certificates_are_read_again() {
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    let tls = listening(&format!("[{{ address: \"127.0.0.1:0\", tls: {{ {} }} }}]", authority.entry("a")));
    let gateway = Gateway::start(&tls);
    let config = Arc::new(authority.client(None));
    let before = authority.certificate("a");
    let mut open_client =
        Client::over_tls(shake_hands(gateway.addr(), &config, "a.test").expect("a handshake"));
    authority.issue("a", &["a.test"]);
    let answer = gateway.change(&tls);
    assert_eq!(answer, "reloaded: listen: changed 127.0.0.1:0\n");
    let fresh = shake_hands(gateway.addr(), &config, "a.test").expect("a handshake");
    assert!(shown(&fresh) == authority.certificate("a") && shown(&fresh) != before);
    open_client.ask(&get("/").host("a.test")).expect(200);
    authority.scratch.file("a.key.pem", "no key at all");
    assert!(gateway.reload().expect(422).text().contains("a.key.pem"));
    let again = shake_hands(gateway.addr(), &config, "a.test").expect("a handshake");
    assert!(shown(&again) == authority.certificate("a"));
    // TLS is removed from an address, and the socket stays.
    authority.issue("a", &["a.test"]);
    gateway.change(HELLO);
    gateway.get("/").expect(200);
}

/// With `watch` a renewed certificate is applied without a signal.
#[test]
fn certificates_are_watched() {
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    let gateway = Gateway::start(&format!(
        "reload: {{ watch: 100ms }}\n{}",
        listening(&format!("[{{ address: \"127.0.0.1:0\", tls: {{ {} }} }}]", authority.entry("a")))
    ));
    authority.issue("a", &["a.test"]);
    let config = Arc::new(authority.client(None));
    eventually("the new certificate", || {
        let stream = shake_hands(gateway.addr(), &config, "a.test").expect("a handshake");
        shown(&stream) == authority.certificate("a")
    });
}
