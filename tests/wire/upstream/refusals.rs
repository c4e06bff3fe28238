//! HTTP/2 servers that do not take a request, frame by frame: requests that they have not begun are sent
//! again.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::nginx::Nginx;
use crate::support::*;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

/// The outcome of one request.
#[derive(Debug, Clone, Copy)]
enum RequestOutcome {
    Served,
    Reset(u32),
    /// GOAWAY that names the stream before it as the last.
    LeftBehind,
    /// The connection just ends.
    Cut,
}

/// An HTTP/2 server with every frame written here.
struct Framed {
    addr: SocketAddr,
    /// Connection and stream of each request.
    seen: Arc<Mutex<Vec<(usize, u32)>>>,
}

impl Framed {
    /// The outcome of each request, by its number.
    fn start(fate: impl Fn(usize) -> RequestOutcome + Send + Sync + 'static) -> Framed {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (book, fate) = (seen.clone(), Arc::new(fate));
        thread::spawn(move || {
            for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                let (book, fate) = (book.clone(), fate.clone());
                thread::spawn(move || converse(stream, number, &book, &*fate));
            }
        });
        Framed { addr, seen }
    }

    fn gateway(&self) -> Gateway {
        Gateway::start(&format!(
            "server: {{ workers: 1 }}\n\
             upstreams:\n  app: {{ servers: [\"{}\"], protocol: http2 }}\n\
             locations:\n  - {{ path: /, upstream: app }}\n",
            self.addr
        ))
    }

    fn seen(&self) -> Vec<(usize, u32)> {
        self.seen.lock().unwrap().clone()
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn converse(
    mut stream: TcpStream,
    number: usize,
    book: &Mutex<Vec<(usize, u32)>>,
    fate: &dyn Fn(usize) -> RequestOutcome,
) -> Option<()> {
    stream.read_exact(&mut [0; 24]).ok()?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).ok()?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        stream.read_exact(&mut vec![0; length]).ok()?;
        if head[3] != HEADERS {
            continue;
        }
        let turn = {
            let mut book = book.lock().unwrap();
            book.push((number, id));
            book.len() - 1
        };
        match fate(turn) {
            // END_STREAM and END_HEADERS; the one byte is `:status: 200`.
            RequestOutcome::Served => stream.write_all(&frame(HEADERS, 5, id, &[0x88])).ok()?,
            RequestOutcome::Reset(code) => {
                stream.write_all(&frame(RST_STREAM, 0, id, &code.to_be_bytes())).ok()?
            }
            RequestOutcome::LeftBehind => {
                let last = (id - 1).saturating_sub(1).to_be_bytes();
                stream.write_all(&frame(GOAWAY, 0, 0, &[last, [0; 4]].concat())).ok()?;
            }
            RequestOutcome::Cut => return None,
        }
    }
}

#[test]
fn a_refused_request_is_sent_once_more_on_another_connection() {
    let server =
        Framed::start(
            |turn| if turn == 1 { RequestOutcome::Reset(REFUSED_STREAM) } else { RequestOutcome::Served },
        );
    let gateway = server.gateway();
    for _ in 0..3 {
        gateway.get("/").expect(200);
    }
    assert_eq!(server.seen()[..3], [(0, 1), (0, 3), (1, 1)]);
    assert_eq!(server.seen().len(), 4);
}

/// A request that was not begun had no effect, whatever its method is.
#[test]
fn a_post_without_a_body_is_sent_again_too() {
    for fate in [RequestOutcome::Reset(REFUSED_STREAM), RequestOutcome::LeftBehind] {
        let server = Framed::start(move |turn| if turn == 1 { fate } else { RequestOutcome::Served });
        let gateway = server.gateway();
        gateway.get("/").expect(200);
        gateway.ask(&Ask::new("DELETE", "/")).expect(200);
        assert_eq!(server.seen(), [(0, 1), (0, 3), (1, 1)], "{fate:?}");
    }
}

#[test]
fn a_request_is_refused_for_good_the_second_time() {
    let server = Framed::start(|_| RequestOutcome::Reset(REFUSED_STREAM));
    server.gateway().get("/").expect(502);
    assert_eq!(server.seen().len(), 2);
}

#[test]
fn a_request_left_behind_is_sent_on_a_new_connection() {
    let server =
        Framed::start(|turn| if turn % 3 == 1 { RequestOutcome::LeftBehind } else { RequestOutcome::Served });
    let gateway = server.gateway();
    for _ in 0..6 {
        gateway.get("/").expect(200);
    }
    let connections: Vec<usize> = server.seen().iter().map(|(connection, _)| *connection).collect();
    assert_eq!(connections, [0, 0, 1, 1, 1, 2, 2, 2, 3]);
}

/// A request that may have run is not sent again.
#[test]
fn a_request_that_may_have_run_is_not_sent_again() {
    for fate in [RequestOutcome::Reset(INTERNAL_ERROR), RequestOutcome::Cut] {
        let server = Framed::start(move |turn| if turn == 1 { fate } else { RequestOutcome::Served });
        let gateway = server.gateway();
        let mut client = gateway.client();
        client.ask(&get("/")).expect(200);
        client.ask(&Ask::new("DELETE", "/")).expect(502);
        assert_eq!(server.seen().len(), 2, "{fate:?}");
        gateway.get("/").expect(200);
    }
}

#[test]
fn an_http1_server_is_recognised_by_its_first_bytes() {
    let upstream = Upstream::new(|_| Reply::raw("HTTP/1.1 400 What\r\nContent-Length: 0\r\n\r\n").close());
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\"], protocol: http2 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.addr()
    ));
    gateway.get("/").expect(502);
}

/// nginx sends GOAWAY after each tenth request, in the middle of the load.
#[test]
fn no_request_is_lost_to_closing_connections() {
    let nginx =
        Nginx::start("server { listen @0@ http2; keepalive_requests 10; location / { return 200 ok; } }", 1);
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\"], protocol: http2 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        nginx.addr(0)
    ));
    let addr = gateway.addr();
    let clients: Vec<_> = (0..16)
        .map(|_| {
            thread::spawn(move || {
                let mut client = Client::connect(addr);
                (0..100).filter(|_| client.ask(&get("/")).status != 200).count()
            })
        })
        .collect();
    let failed: usize = clients.into_iter().map(|client| client.join().expect("a client")).sum();
    assert_eq!(failed, 0, "of 1600");
}
