//! systemd: sockets that it opened before the gateway started, and notifications about the gateway's life.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};

use crate::support::*;

const DEMO: &str = "locations: [{ path: /, upstream: demo }]\n";

/// The gateway finds `socket` as the descriptor 3, as systemd would pass it.
fn activated(socket: impl Into<OwnedFd>, names: &str) -> Run {
    let passed = format!("exec 3<&0 0</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1 {names}");
    Run::default().stdin(socket.into()).under(&passed)
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Clients that connected before and after the start are served, by all workers.
#[test]
fn a_passed_socket_is_served() {
    let (socket, addr) = listener();
    let mut early = Client::connect(addr);
    early.send(get("/early").bytes());
    let yaml = format!("listen: [systemd:web]\nserver: {{ workers: 2 }}\n{DEMO}");
    let mut gateway = activated(socket, "LISTEN_FDNAMES=web").start(&yaml);
    assert_eq!(gateway.addr(), addr);
    early.response().expect(200);
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(addr)).collect();
    for client in &mut clients {
        client.ask(&get("/")).expect(200);
    }
    drop(clients);
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
}

/// A unix socket of systemd stays in place when the gateway ends.
#[test]
fn a_passed_unix_socket_is_served_and_left_in_its_place() {
    let scratch = Scratch::new();
    let path = scratch.path().join("gate.sock");
    let socket = UnixListener::bind(&path).unwrap();
    let yaml = format!("listen: [systemd:web]\n{DEMO}");
    let mut gateway = activated(socket, "LISTEN_FDNAMES=web").start(&yaml);
    Client::connect_unix(&path).ask(&get("/")).expect(200);
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    assert!(path.exists());
}

/// A passed socket that a reload removes stays open, so that it can be used again; the log reports it.
#[test]
fn a_passed_socket_that_is_no_longer_used_is_logged() {
    let (socket, addr) = listener();
    let file = |listen: &str| format!("listen: [127.0.0.1:0{listen}]\nserver: {{ workers: 2 }}\n{DEMO}");
    let gateway = activated(socket, "LISTEN_FDNAMES=web").start(&file(", systemd:web"));
    Client::connect(addr).ask(&get("/")).expect(200);
    gateway.change(&file(""));
    eventually("a warning", || {
        gateway.stderr().contains("systemd:web stays open, and nothing listens on it")
    });
    let mut early = Client::connect(addr);
    early.send(get("/early").bytes());
    gateway.change(&file(", systemd:web"));
    early.response().expect(200);
}

/// TLS and PROXY headers work on passed sockets as on others; a socket without a name is called `unknown`.
#[test]
fn a_passed_socket_may_speak_tls() {
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    let (socket, addr) = listener();
    let yaml = format!(
        "listen: [{{ address: \"systemd:unknown\", tls: {{ {} }}, proxy_protocol: optional }}]\n\
         server: {{ trusted_proxies: 127.0.0.1 }}\n{DEMO}",
        authority.entry("a")
    );
    let _gateway = activated(socket, "").start(&yaml);
    authority.curl(addr, &["--haproxy-protocol", "https://a.test/"]).expect("200 2");
    authority.curl(addr, &["https://a.test/"]).expect("200 2");
}

#[test]
fn a_socket_that_was_not_passed_is_exit_4() {
    let scratch = Scratch::new();
    let file = scratch.file("gateway.yaml", &format!("listen: [systemd:web]\nadmin: none\n{DEMO}"));
    let file = file.display().to_string();
    let arguments = ["run", "-c", &file];
    let (socket, _) = listener();
    let other = activated(socket, "LISTEN_FDNAMES=other").args(&arguments).finish(scratch.path());
    assert_eq!(other.code, Some(4), "{other:?}");
    assert!(other.stderr.contains("systemd:web") && other.stderr.contains("other"), "{other:?}");
    let none = Run::default().args(&arguments).finish(scratch.path());
    assert!(none.code == Some(4) && none.stderr.contains("no other socket was passed"), "{none:?}");
    // Sockets passed to another process are ignored.
    let (socket, _) = listener();
    let theirs = activated(socket, "LISTEN_FDNAMES=web LISTEN_PID=1").args(&arguments).finish(scratch.path());
    assert_eq!(theirs.code, Some(4), "{theirs:?}");
    // A descriptor that is no listening socket.
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let no_socket = activated(null, "LISTEN_FDNAMES=web").args(&arguments).finish(scratch.path());
    assert!(no_socket.code == Some(4) && no_socket.stderr.contains("not a"), "{no_socket:?}");
}

/// A socket that does not listen, or is a connection, accepts no client: exit 4 instead of READY.
#[test]
fn a_passed_socket_that_does_not_listen_is_exit_4() {
    let scratch = Scratch::new();
    let file = scratch.file("gateway.yaml", &format!("listen: [systemd:web]\nadmin: none\n{DEMO}"));
    let file = file.display().to_string();
    let bound = |domain, address: &socket2::SockAddr| -> OwnedFd {
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
        socket.bind(address).unwrap();
        socket.into()
    };
    let tcp = bound(socket2::Domain::IPV4, &SocketAddr::from(([127, 0, 0, 1], 0)).into());
    let path = scratch.path().join("gate.sock");
    let unix = bound(socket2::Domain::UNIX, &socket2::SockAddr::unix(&path).unwrap());
    let (_listener, addr) = listener();
    let connected = std::net::TcpStream::connect(addr).unwrap();
    for socket in [tcp, unix, connected.into()] {
        let finished =
            activated(socket, "LISTEN_FDNAMES=web").args(&["run", "-c", &file]).finish(scratch.path());
        assert_eq!(finished.code, Some(4), "{finished:?}");
        assert!(
            finished.stderr.contains("systemd:web") && finished.stderr.contains("not a listening"),
            "{finished:?}"
        );
    }
}

/// READY comes once, when requests are served; then signs of life; STOPPING when the shutdown begins.
#[test]
fn systemd_is_notified() {
    let scratch = Scratch::new();
    let path = scratch.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut bytes = [0; 256];
        let count = socket.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let mut gateway = Run::default()
        .env("NOTIFY_SOCKET", &path.display().to_string())
        .env("WATCHDOG_USEC", "200000")
        .start(DEMO);
    assert_eq!(next(), "READY=1\n");
    gateway.get("/").expect(200);
    assert_eq!([next(), next(), next()], ["WATCHDOG=1\n", "WATCHDOG=1\n", "WATCHDOG=1\n"]);
    gateway.term();
    let mut notification = next();
    while notification == "WATCHDOG=1\n" {
        notification = next();
    }
    assert_eq!(notification, "STOPPING=1\n");
    assert_eq!(gateway.wait_exit(), 0);
}
