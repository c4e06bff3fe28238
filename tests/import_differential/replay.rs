//! The same steps on nginx or on the gateway, and what became of each request.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;

use crate::backend::Backend;
use crate::support::Headers;
use crate::traffic::{Request, Step};

/// What a proxy did with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The backend's own answer came, from the location of this number.
    Served(u8),
    /// Neither answer nor end: it waits for its turn.
    Waits,
    Limited,
    Denied,
    NotFound,
    BadRequest,
    /// Another status; 444 also for a connection that was closed without an answer.
    Answered(u16),
}

impl Decision {
    fn of(status: u16, place: Option<u8>) -> Decision {
        match (status, place) {
            (200, Some(place)) => Decision::Served(place),
            (420 | 429 | 503 | 509, _) => Decision::Limited,
            (401 | 403, _) => Decision::Denied,
            (404 | 405 | 501, _) => Decision::NotFound,
            (400, _) => Decision::BadRequest,
            (0, _) => Decision::Answered(444),
            (status, _) => Decision::Answered(status),
        }
    }
}

/// How long to wait for what should come at once.
#[derive(Clone, Copy)]
pub struct Patience {
    pub answer: Duration,
    /// After each request: the proxy may learn of its end a moment after the client.
    pub settle: Duration,
}

/// The decision on each request; a release has none.
pub async fn replay(
    ports: [u16; 2],
    side: &str,
    steps: &[Step],
    backend: &Backend,
    patience: Patience,
) -> Vec<Option<Decision>> {
    let mut found = vec![None; steps.len()];
    let mut open: Vec<(usize, JoinHandle<Decision>)> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let Step::Ask(request) = step else {
            backend.release();
            collect(&mut open, &mut found, patience.answer).await;
            continue;
        };
        let id = format!("{side}-{number}");
        let arrival = backend.expect(&id);
        let mut task = tokio::spawn(ask(ports[request.port], request.clone(), id));
        tokio::select! {
            decision = &mut task => found[number] = Some(decision.expect("a task that ends")),
            _ = arrival => open.push((number, task)),
            () = tokio::time::sleep(patience.answer) => open.push((number, task)),
        }
        tokio::time::sleep(patience.settle).await;
    }
    backend.release();
    collect(&mut open, &mut found, patience.answer).await;
    for (number, task) in open {
        task.abort();
        found[number] = Some(Decision::Waits);
    }
    found
}

/// Takes the decisions that come within the time; the other requests stay open.
async fn collect(
    open: &mut Vec<(usize, JoinHandle<Decision>)>,
    found: &mut [Option<Decision>],
    time: Duration,
) {
    let deadline = tokio::time::Instant::now() + time;
    let mut left = Vec::new();
    for (number, mut task) in open.drain(..) {
        match tokio::time::timeout_at(deadline, &mut task).await {
            Ok(decision) => found[number] = Some(decision.expect("a task that ends")),
            Err(_) => left.push((number, task)),
        }
    }
    *open = left;
}

async fn ask(port: u16, request: Request, id: String) -> Decision {
    let Request { client, host, method, target, headers, body, holds, .. } = request;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option of sockets");
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, client), 0))).expect("a loopback address");
    let mut stream =
        socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await.expect("a connection");
    let mut head =
        format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nX-Id: {id}\r\nConnection: close\r\n");
    if holds {
        head += "X-Hold: 1\r\n";
    }
    if matches!(method, "POST" | "PUT") {
        head += &format!("Content-Length: {body}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    if matches!(method, "POST" | "PUT") {
        head += &"x".repeat(body);
    }
    let mut answer = Vec::new();
    // An answer that comes with the end of the connection counts, too.
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.read_to_end(&mut answer).await;
    let status = crate::support::http::status_of(&answer).unwrap_or(0);
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or(answer.len());
    let place = Headers::parse(&answer[..end]).all("x-place").first().and_then(|text| text.parse().ok());
    Decision::of(status, place)
}
