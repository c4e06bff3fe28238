//! Listeners follow a reload: new ones are there before anything else changes, old ones let their queues in, and those
//! that stay are not touched.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use crate::support::tls::{shake_hands, shown};
use crate::support::*;

const HELLO: &str = "locations:\n  - { path: /, respond: { body: hello } }\n";

fn listening(listen: &str) -> String {
    format!("listen: {listen}\n{HELLO}")
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port")
}

fn is_open(addr: SocketAddr) -> bool {
    TcpStream::connect(addr).is_ok()
}

/// One comes, one goes, one stays: who is connected anywhere is served on.
#[test]
fn one_comes_and_one_goes() {
    let [stays, goes, comes] = [(); 3].map(|()| free_port());
    let gateway = Gateway::start(&listening(&format!("[\"{stays}\", \"{goes}\"]")));
    let mut clients: Vec<Client> = [stays, goes].map(Client::connect).into();
    clients.iter_mut().for_each(|client| drop(client.ask(&get("/")).expect(200)));
    let told = gateway.change(&listening(&format!("[\"{stays}\", \"{comes}\"]")));
    assert_eq!(told, format!("reloaded: listen: added {comes}, removed {goes}\n"));
    eventually("the old listener to close", || !is_open(goes));
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

/// One that goes lets its queue in and closes, however many are connected.
#[test]
fn one_goes_while_every_place_is_taken() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/slow", &gate);
    let [stays, goes] = [(); 2].map(|()| free_port());
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

/// A port that somebody else has is known before anything changes: the rest of the file is not taken over either.
#[test]
fn a_taken_port_refuses_the_reload() {
    let gateway = Gateway::start(HELLO);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let [addr, free] = [taken.local_addr().expect("an address"), free_port()];
    let new = listening(&format!("[127.0.0.1:0, \"{free}\", \"{addr}\"]")).replace("hello", "new");
    gateway.write(&new);
    let told = gateway.reload().expect(422).text();
    assert!(told.contains(&format!("cannot listen on {addr}")), "{told}");
    assert_eq!(gateway.get("/").expect(200).text(), "hello");
    assert!(!is_open(free), "what was opened for a reload that failed is open");
    drop(taken);
    gateway.reload().expect(200);
    for addr in [addr, free, gateway.addr()] {
        assert_eq!(Client::connect(addr).ask(&get("/")).expect(200).text(), "new");
    }
}

/// A unix socket comes with its file and goes with it.
#[test]
fn a_unix_socket_comes_and_goes() {
    let dir = Scratch::new();
    let path = dir.path().join("gate.sock");
    let gateway = Gateway::start(HELLO);
    gateway.change(&listening(&format!("[127.0.0.1:0, \"unix:{}\"]", path.display())));
    let mut client = Client::connect_unix(&path);
    client.ask(&get("/")).expect(200);
    gateway.change(HELLO);
    assert!(!path.exists());
    client.ask(&get("/")).expect(200);
    gateway.change(&listening(&format!("[127.0.0.1:0, \"unix:{}\"]", path.display())));
    Client::connect_unix(&path).ask(&get("/")).expect(200);
}

/// Nobody who connects to a listener that stays is refused or dropped by reloads that move others.
#[test]
fn the_listener_that_stays_is_not_touched() {
    let gateway = Gateway::start(HELLO);
    let (addr, other) = (gateway.addr(), free_port());
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

/// A certificate that was renewed is shown to new connections; those that stand go on. A bad one changes nothing.
#[test]
fn certificates_are_read_again() {
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    let tls = listening(&format!("[{{ address: \"127.0.0.1:0\", tls: {{ {} }} }}]", authority.entry("a")));
    let gateway = Gateway::start(&tls);
    let config = Arc::new(authority.client(None));
    let before = authority.certificate("a");
    let mut standing = Client::over_tls(shake_hands(gateway.addr(), &config, "a.test").expect("a handshake"));
    authority.issue("a", &["a.test"]);
    let told = gateway.change(&tls);
    assert_eq!(told, "reloaded: listen: changed 127.0.0.1:0\n");
    let fresh = shake_hands(gateway.addr(), &config, "a.test").expect("a handshake");
    assert!(shown(&fresh) == authority.certificate("a") && shown(&fresh) != before);
    standing.ask(&get("/").host("a.test")).expect(200);
    authority.scratch.file("a.key.pem", "no key at all");
    assert!(gateway.reload().expect(422).text().contains("a.key.pem"));
    let again = shake_hands(gateway.addr(), &config, "a.test").expect("a handshake");
    assert!(shown(&again) == authority.certificate("a"));
    // TLS goes from an address, and the socket stays.
    authority.issue("a", &["a.test"]);
    gateway.change(HELLO);
    gateway.get("/").expect(200);
}

/// With `watch` a renewed certificate is taken over by itself.
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
