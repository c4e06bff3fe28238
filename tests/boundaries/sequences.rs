//! The sequence by which the body of a request was once read as a request, in all its forms.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use crate::parser::{Tail, read_answers};
use crate::support::tls::shake_hands;
use crate::support::wire::Socket;
use crate::support::*;
use crate::{start, upstream};

/// A request that is the body of another one.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n";

/// One form of the sequence.
struct Sequence {
    version: &'static str,
    chunked: bool,
    trailer: bool,
    more: &'static str,
    /// Requests that are sent in one piece with the rest of the first body.
    pipelined: usize,
}

const PLAIN: Sequence = Sequence { version: "1.1", chunked: false, trailer: false, more: "", pipelined: 0 };

fn sequences() -> Vec<Sequence> {
    let (old, wait) = ("Connection: keep-alive\r\n", "Expect: 100-continue\r\n");
    vec![
        PLAIN,
        Sequence { chunked: true, ..PLAIN },
        Sequence { chunked: true, trailer: true, ..PLAIN },
        Sequence { more: wait, ..PLAIN },
        Sequence { more: wait, chunked: true, ..PLAIN },
        Sequence { version: "1.0", more: old, ..PLAIN },
        Sequence { pipelined: 1, ..PLAIN },
        Sequence { pipelined: 2, chunked: true, ..PLAIN },
    ]
}

impl Sequence {
    fn head(&self, target: &str, length: usize) -> String {
        let framing = match self.chunked {
            true => "Transfer-Encoding: chunked\r\n".to_owned(),
            false => format!("Content-Length: {length}\r\n"),
        };
        format!("POST {target} HTTP/{}\r\nHost: a\r\n{}{framing}\r\n", self.version, self.more)
    }

    /// The two parts of a body, of which the first has `begin`.
    fn body(&self, begin: &str, rest: &str) -> [String; 2] {
        if !self.chunked {
            return [begin.to_owned(), rest.to_owned()];
        }
        let mut last = String::new();
        let _ = write!(last, "{}\r\n0\r\n{}\r\n", rest, if self.trailer { "X-T: v\r\n" } else { "" });
        [format!("{:x}\r\n{begin}", begin.len() + rest.len()), last]
    }

    /// What the client writes, and the number of its requests.
    fn writes(&self, target: &str) -> ([String; 3], usize) {
        let [first, rest] = self.body("aaaaa", "bbbbb");
        let [begin, hidden] = self.body("xxxx", HIDDEN);
        let between = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(self.pipelined);
        let writes = [
            self.head(target, 10) + &first,
            rest + &between + &self.head(target, 4 + HIDDEN.len()) + &begin,
            hidden,
        ];
        (writes, 2 + self.pipelined)
    }

    /// Plays the sequence; returns the number of answers and the bytes that are none.
    fn play(&self, socket: Socket, target: &str, gap: Duration) -> (usize, usize) {
        let mut client = Client::over(socket);
        let (writes, requests) = self.writes(target);
        for (at, bytes) in writes.iter().enumerate() {
            // The gateway may have ended the connection behind an early answer.
            if client.try_send(bytes).is_err() {
                break;
            }
            std::thread::sleep(if at == 0 { ms(60) } else { gap });
        }
        let (bytes, _) = client.rest(ms(700));
        let (answers, tail) = read_answers(&bytes, &[], true);
        assert_eq!(tail, Tail::BetweenMessages, "{}", bytes.escape_ascii());
        assert!(!answers.is_empty(), "no answer to {target}");
        (answers.len(), requests)
    }
}

fn tcp(addr: SocketAddr) -> Socket {
    Socket::Tcp(std::net::TcpStream::connect(addr).expect("the gateway accepts"))
}

/// Every way to answer before the body has come, over every listener.
#[test]
fn the_rest_of_a_body_is_no_request() {
    let (upstream, authority) = (upstream(), Authority::new());
    authority.issue("a", &["a.test"]);
    let gateway = start(&upstream, &authority);
    let tls = std::sync::Arc::new(authority.client(None));
    let [plain, secure, proxied, calls] = gateway.addrs()[..] else { panic!("four listeners") };
    let places = [
        "/respond/",
        "/redirect/",
        "/limited/",
        "/get/",
        "/degraded/",
        "/peeked/",
        "/early/",
        "/large/",
        "/slow/",
        "/none/",
    ];
    let connect = |kind: usize| match kind {
        1 => Socket::Tls(Box::new(shake_hands(secure, &tls, "a.test").expect("a handshake"))),
        2 => {
            let mut socket = tcp(proxied);
            socket.write_all(b"PROXY TCP4 192.0.2.1 198.51.100.7 1 80\r\n").expect("the gateway reads");
            socket
        }
        3 => tcp(calls),
        _ => tcp(plain),
    };
    let of_kind = |kind: usize| match kind {
        3 => &["/auth", "/check", "/other"][..],
        _ => &places[..],
    };
    std::thread::scope(|scope| {
        for kind in 0..4 {
            for target in of_kind(kind) {
                scope.spawn(move || {
                    for (sequence, gap) in sequences().iter().zip([330, 330, 330, 330, 330, 330, 330, 30]) {
                        let (answers, requests) = sequence.play(connect(kind), target, ms(gap));
                        assert!(answers <= requests, "{answers} answers to {requests} requests for {target}");
                    }
                });
            }
        }
    });
    let lines = gateway.log_lines();
    assert!(lines.len() > 500, "{} lines", lines.len());
    assert!(lines.iter().all(|line| line["path"] != "/hidden"), "a body was logged as a request");
    assert!(!upstream.targets().contains(&"/hidden".to_owned()), "a body was forwarded as a request");
}

/// A whole body of small chunks, and at once the next request: the first body ends late.
#[test]
fn a_body_of_many_chunks_does_not_end_the_next_one() {
    let (upstream, authority) = (upstream(), Authority::new());
    authority.issue("a", &["a.test"]);
    let gateway = start(&upstream, &authority);
    std::thread::scope(|scope| {
        for place in ["/respond/", "/early/", "/respond/", "/early/", "/large/", "/slow/"] {
            let gateway = &gateway;
            scope.spawn(move || {
                let first = Sequence { chunked: true, ..PLAIN }.head(&format!("{place}many"), 0);
                let chunks = "1\r\na\r\n".repeat(8_000) + "0\r\n\r\n";
                let mut client = gateway.client();
                client.send(
                    first + &chunks + &PLAIN.head(&format!("{place}second"), 4 + HIDDEN.len()) + "xxxx",
                );
                client.response();
                client.response();
                std::thread::sleep(ms(400));
                // The gateway may have ended the connection behind the early answer.
                let _ = client.try_send(HIDDEN);
                assert_eq!(client.rest(ms(700)).0.escape_ascii().to_string(), "", "{place}");
            });
        }
    });
    assert!(gateway.log_lines().iter().all(|line| line["path"] != "/hidden"));
}

/// HAProxy reuses its connections to the gateway, a trusted proxy's, for other clients.
#[test]
fn a_client_behind_haproxy_forges_nothing_and_reads_no_other_answer() {
    let upstream = upstream();
    let gateway = Gateway::start(&format!(
        "server: {{ trusted_proxies: [127.0.0.1], workers: 1 }}\naccount: {{ from: header:x-account }}\n\
         locations:\n  - {{ path: /respond/, respond: {{ body: at once }} }}\n  \
           - {{ path: /, upstream: \"{}\" }}\n",
        upstream.url()
    ));
    let haproxy = Haproxy::start(&format!(
        "defaults\n mode http\n timeout connect 5s\n timeout client 20s\n timeout server 20s\n\
         frontend clients\n bind @0@\n option forwardfor\n http-request del-header x-account\n default_backend gateway\n\
         backend gateway\n http-reuse always\n server gateway {}\n",
        gateway.addr()
    ));
    for round in 0..12 {
        let place = if round % 2 == 0 { "/respond/" } else { "/early/" };
        let mut attacker = Client::connect(haproxy.addr());
        let hidden = format!("{HIDDEN}{}", "x".repeat(round));
        for (bytes, pause) in [
            (PLAIN.head(place, 10) + "aaaaa", 60),
            ("bbbbb".to_owned() + &PLAIN.head(place, 4 + hidden.len()) + "xxxx", 330),
            (hidden, 50),
        ] {
            let _ = attacker.try_send(bytes);
            std::thread::sleep(ms(pause));
        }
        for user in 0..4 {
            let target = format!("/echo/{round}-{user}");
            let answer = Client::connect(haproxy.addr()).ask(&get(&target)).expect(200);
            assert_eq!(answer.text(), target, "a user read the answer of another one");
        }
    }
    assert!(upstream.targets().iter().all(|target| target != "/hidden"), "{:?}", upstream.targets());
    for line in gateway.log_lines() {
        assert!(line["path"] != "/hidden" && line["ip"] == "127.0.0.1", "{line}");
    }
}

/// A close over bytes that nobody read would be a reset, which overtakes the answer.
#[test]
fn the_last_answer_arrives_although_more_requests_follow() {
    let upstream = Upstream::with_large(3_000_000);
    let gateway = forwarding(&upstream, "server: { keepalive: { requests: 3 } }");
    for round in 0..5 {
        let mut client = Client::connect_narrow(gateway.addr());
        let small = get("/small").bytes();
        client.send([small.clone(), small.clone(), get("/large").bytes(), small.repeat(50)].concat());
        client.response().expect(200);
        client.response().expect(200);
        std::thread::sleep(ms(20 * round));
        let last = client.response().expect(200);
        assert_eq!((last.body.len(), last.header("connection").as_deref()), (3_000_000, Some("close")));
    }
}
