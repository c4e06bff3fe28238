//! Servers that are told the client by the PROXY protocol, in front of each connection.

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;

use ::http::Request;

use crate::support::nginx::Nginx;
use crate::support::unix::UnixServer;
use crate::support::wire::Socket;
use crate::support::*;

const START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

/// Takes the header off each connection, keeps it, and passes the rest on to a server.
struct Announced {
    addr: SocketAddr,
    headers: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Announced {
    fn before(server: SocketAddr) -> Announced {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let headers: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let kept = headers.clone();
        thread::spawn(move || {
            for mut near in listener.incoming().map_while(Result::ok) {
                let mut header = vec![0; 16];
                near.read_exact(&mut header).expect("a header");
                let mut rest = vec![0; usize::from(u16::from_be_bytes([header[14], header[15]]))];
                near.read_exact(&mut rest).expect("the addresses");
                kept.lock().unwrap().push([header, rest].concat());
                let far = TcpStream::connect(server).expect("the server");
                let ends = (near.try_clone().unwrap(), far.try_clone().unwrap());
                thread::spawn(move || relay(near, far));
                thread::spawn(move || relay(ends.1, ends.0));
            }
        });
        Announced { addr, headers }
    }

    fn headers(&self) -> Vec<Vec<u8>> {
        self.headers.lock().unwrap().clone()
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

fn gateway(server: &str, more: &str, head: &str) -> Gateway {
    Gateway::start(&file(server, more, head))
}

fn file(server: &str, more: &str, head: &str) -> String {
    format!(
        "{head}upstreams:\n  app: {{ servers: [\"{server}\"], proxy_protocol: v2, {more} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n"
    )
}

/// A client, and its own address.
fn client(gateway: &Gateway) -> (Client, SocketAddr) {
    let stream = TcpStream::connect(gateway.addr()).expect("the gateway accepts");
    let addr = stream.local_addr().expect("an address");
    (Client::over(Socket::Tcp(stream)), addr)
}

/// The header of a client over IPv4, byte by byte.
fn announcement(ip: [u8; 4], port: u16, listener: SocketAddr) -> Vec<u8> {
    let ports = [port.to_be_bytes(), listener.port().to_be_bytes()].concat();
    [START, &[0x21, 0x11, 0, 12], &ip, &[127, 0, 0, 1], &ports].concat()
}

const ONE_WORKER: &str = "server: { workers: 1 }\n";
const TRUSTING: &str = "server: { workers: 1, trusted_proxies: 127.0.0.0/8 }\n";

#[test]
fn each_connection_begins_with_its_client() {
    let upstream = Upstream::ok();
    let announced = Announced::before(upstream.addr());
    let gateway = gateway(&announced.addr.to_string(), "", ONE_WORKER);
    let (mut one, one_addr) = client(&gateway);
    let (mut two, two_addr) = client(&gateway);
    for _ in 0..3 {
        one.ask(&get("/one")).expect(200);
        two.ask(&get("/two")).expect(200);
    }
    let expected = [one_addr, two_addr].map(|addr| announcement([127, 0, 0, 1], addr.port(), gateway.addr()));
    assert_eq!(announced.headers(), expected);
    // Two client connections never share one.
    let seen = upstream.requests();
    assert!(seen.iter().all(|seen| (seen.connection == 0) == (seen.target == "/one")), "{seen:?}");
    drop(one);
    upstream.wait_ended(1);
    two.ask(&get("/two")).expect(200);
    drop(two);
    upstream.wait_ended(2);
    assert_eq!(announced.headers().len(), 2);
}

/// Over HTTP/2 the streams of one client share a connection, and two clients do not.
#[test]
fn clients_share_no_connection_of_http2() {
    let upstream = Upstream2::new(|_| Act::Text("ok"));
    let announced = Announced::before(upstream.addr());
    let gateway = gateway(&announced.addr.to_string(), "protocol: http2", ONE_WORKER);
    let mut clients = [Client2::connect(gateway.addr()), Client2::connect(gateway.addr())];
    for turn in 0..6 {
        let request = Request::get(format!("http://a.test/{}", turn % 2)).body(()).unwrap();
        assert_eq!(clients[turn % 2].ask(request, b"", None).unwrap().body, b"ok");
    }
    let seen = upstream.requests();
    assert!(seen.iter().all(|seen| seen.uri.ends_with(&format!("/{}", seen.connection))), "{seen:?}");
    assert_eq!((upstream.connections(), announced.headers().len()), (2, 2));
    drop(clients);
    eventually("the end of their connections", || upstream.open() == 0);
}

/// Requests of several clients over the connection of a trusted proxy: each header names one of them, without a port.
#[test]
fn a_client_that_a_header_told_has_no_port() {
    let upstream = Upstream::ok();
    let announced = Announced::before(upstream.addr());
    let gateway = gateway(&announced.addr.to_string(), "", TRUSTING);
    let mut client = gateway.client();
    for ip in ["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.1", "2001:db8::9"] {
        client.ask(&get(&format!("/{ip}")).header("X-Forwarded-For", ip)).expect(200);
    }
    let first = announcement([192, 0, 2, 1], 0, gateway.addr());
    let headers = announced.headers();
    assert_eq!(headers[..3], [first.clone(), announcement([192, 0, 2, 2], 0, gateway.addr()), first]);
    assert_eq!((headers.len(), &headers[3][..16]), (4, &[START, &[0x21, 0x21, 0, 36]].concat()[..]));
    let connections: Vec<usize> = upstream.requests().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0, 1, 2, 3]);
}

/// A client without an internet address is UNSPEC, and one that a header told there is announced; servers may listen on
/// unix sockets.
#[test]
fn unix_sockets_on_both_sides() {
    let upstream = Upstream::ok();
    let announced = Announced::before(upstream.addr());
    let server = UnixServer::before(announced.addr);
    let scratch = Scratch::new();
    let path = scratch.path().join("gateway.sock");
    let head = format!("listen: [\"127.0.0.1:0\", \"unix:{}\"]\n{ONE_WORKER}", path.display());
    let _gateway = gateway(&server.name(), "", &head);
    let connect = || Client::over(Socket::Unix(UnixStream::connect(&path).expect("the gateway accepts")));
    connect().ask(&get("/")).expect(200);
    connect().ask(&get("/").header("X-Forwarded-For", "192.0.2.1")).expect(200);
    let unspecified = [START, &[0x21, 0, 0, 0]].concat();
    let without_listener = [START, &[0x21, 0x11, 0, 12, 192, 0, 2, 1], &[0; 8]].concat();
    assert_eq!(announced.headers(), [unspecified, without_listener]);
}

#[test]
fn health_checks_are_local() {
    for protocol in ["http1", "http2"] {
        let (one, two) = (Upstream::ok(), Upstream2::new(|_| Act::Text("ok")));
        let announced = Announced::before(if protocol == "http1" { one.addr() } else { two.addr() });
        let more = format!("protocol: {protocol}, health: {{ interval: 100ms }}");
        let gateway = gateway(&announced.addr.to_string(), &more, "");
        eventually("checks", || announced.headers().len() > 2);
        assert!(announced.headers().iter().all(|header| header == LOCAL), "{protocol}");
        gateway.get("/").expect(200);
    }
}

/// The header comes before TLS.
#[test]
fn the_header_comes_before_tls() {
    let ours = Authority::new();
    let tls = Some(ours.certify(&["localhost"]).server(&["h2"]));
    let upstream = Upstream2::start(Start { tls, ..Start::default() }, |_| Act::Text("ok"));
    let announced = Announced::before(upstream.addr());
    let server = format!("https://localhost:{}", announced.addr.port());
    let gateway = gateway(&server, &format!("tls: {{ ca: \"{}\" }}", ours.file().display()), ONE_WORKER);
    let (mut one, addr) = client(&gateway);
    one.ask(&get("/")).expect(200);
    one.ask(&get("/")).expect(200);
    assert_eq!(announced.headers(), [announcement([127, 0, 0, 1], addr.port(), gateway.addr())]);
}

/// `keepalive` holds for the clients of a worker together.
#[test]
fn keepalive_counts_the_connections_of_all_clients() {
    let upstream = Upstream::ok();
    let announced = Announced::before(upstream.addr());
    let gateway = gateway(&announced.addr.to_string(), "keepalive: 2", ONE_WORKER);
    let mut clients: Vec<Client> = (0..4).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| drop(client.ask(&get("/")).expect(200)));
    upstream.wait_ended(2);
    // A kept connection makes room when it is used, and takes it again.
    clients[0].ask(&get("/")).expect(200);
    clients[1].ask(&get("/")).expect(200);
    assert_eq!(upstream.connections(), 4);
    clients.remove(0);
    upstream.wait_ended(3);
    clients[2].ask(&get("/")).expect(200);
    clients[2].ask(&get("/")).expect(200);
    assert_eq!(upstream.connections(), 5, "the room of the client that left");
}

/// A reload that adds the header uses no older connection, and idle ones end with `timeouts.idle`.
#[test]
fn a_reload_begins_new_connections() {
    let (plain, upstream) = (Upstream::ok(), Upstream::ok());
    let announced = Announced::before(upstream.addr());
    let idle = "timeouts: { idle: 1s }";
    let with_header = file(&announced.addr.to_string(), idle, ONE_WORKER);
    let without = with_header.replace(&announced.addr.to_string(), &plain.addr().to_string());
    let gateway = Gateway::start(&without.replace("proxy_protocol: v2", "proxy_protocol: none"));
    let mut client = gateway.client();
    client.ask(&get("/")).expect(200);
    assert_eq!(plain.raw(0)[..5], b"GET /"[..]);
    gateway.change(&without);
    client.ask(&get("/")).expect(200);
    eventually("a second connection", || plain.connections() == 2);
    assert_eq!(plain.raw(1)[..12], START[..]);
    gateway.change(&with_header);
    client.ask(&get("/")).expect(200);
    upstream.wait_ended(1);
    client.ask(&get("/")).expect(200);
    assert_eq!(announced.headers().len(), 2);
}

/// A WebSocket has a connection with a header of its own.
#[test]
fn a_tunnel_is_announced() {
    let upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let upstream = Upstream::new(move |_| Reply::raw(upgraded));
    let announced = Announced::before(upstream.addr());
    let gateway = gateway(&announced.addr.to_string(), "", ONE_WORKER);
    let (mut one, addr) = client(&gateway);
    one.send(get("/").header("Connection", "upgrade").header("Upgrade", "websocket").bytes());
    one.raw_head(PATIENCE).expect("a head");
    assert_eq!(announced.headers(), [announcement([127, 0, 0, 1], addr.port(), gateway.addr())]);
}

/// Questions to an auth service are the gateway's own.
#[test]
fn questions_of_the_gateway_are_local() {
    let (upstream, plain) = (Upstream::ok(), Upstream::ok());
    let announced = Announced::before(upstream.addr());
    let file = |server: SocketAddr, header: &str| {
        format!(
            "server: {{ workers: 1 }}\nupstreams:\n  login: {{ servers: [\"{server}\"], proxy_protocol: {header} }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, auth: {{ upstream: login, path: /auth }} }}\n"
        )
    };
    let gateway = Gateway::start(&file(announced.addr, "v2"));
    gateway.get("/").expect(200);
    gateway.get("/").expect(200);
    assert_eq!(announced.headers(), [LOCAL]);
    // Connections from before a reload have no header.
    gateway.change(&file(plain.addr(), "none"));
    gateway.get("/").expect(200);
    gateway.change(&file(plain.addr(), "v2"));
    gateway.get("/");
    eventually("another connection", || plain.connections() == 2 && plain.raw(1).starts_with(LOCAL));
}

/// Real servers read the client's address and port, and the address of the listener.
#[test]
fn haproxy_and_nginx_see_the_client() {
    let echo = "%[src]:%[src_port] %[dst]:%[dst_port]";
    let haproxy = Haproxy::start(&format!(
        "defaults\n  mode http\n  timeout client 10s\nfrontend f\n  bind @0@ accept-proxy\n  \
         http-request return status 200 content-type text/plain lf-string \"{echo}\"\n"
    ));
    let nginx = Nginx::start(
        "server { listen @0@ proxy_protocol; location / { return 200 \
         \"$proxy_protocol_addr:$proxy_protocol_port $proxy_protocol_server_addr:$proxy_protocol_server_port\"; } }",
        1,
    );
    for server in [haproxy.addr(), nginx.addr(0)] {
        let gateway = gateway(&server.to_string(), "", TRUSTING);
        let (mut client, addr) = client(&gateway);
        assert_eq!(client.ask(&get("/")).expect(200).text(), format!("{addr} {}", gateway.addr()));
        let told = client.ask(&get("/").header("X-Forwarded-For", "192.0.2.1")).expect(200).text();
        // nginx shows no port in place of 0.
        assert_eq!(told.replace(": ", ":0 "), format!("192.0.2.1:0 {}", gateway.addr()));
    }
}
