//! The one server behind all locations: the loopback address at which a request arrives tells its location.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use crate::support::Headers;

/// The address of the location with this number.
pub fn address_of(place: u8) -> String {
    format!("127.9.0.{place}:@BACKEND@")
}

/// The location that judges for `auth_request`, by the field `X-Auth`.
pub const JUDGE: u8 = 250;

/// Shared by the test and the tasks that answer.
#[derive(Clone)]
pub struct Backend {
    pub port: u16,
    arrivals: Arc<Mutex<HashMap<String, oneshot::Sender<()>>>>,
    /// How often held requests have been released.
    released: watch::Sender<u64>,
}

impl Backend {
    pub async fn listen() -> Backend {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let backend = Backend { port, arrivals: Arc::default(), released: watch::channel(0).0 };
        let own = backend.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let backend = own.clone();
                tokio::spawn(async move { backend.serve(stream).await });
            }
        });
        backend
    }

    /// Tells when the request with this `X-Id` arrives.
    pub fn expect(&self, id: &str) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.arrivals.lock().unwrap().insert(id.to_owned(), sender);
        receiver
    }

    /// Answers every held request.
    pub fn release(&self) {
        self.released.send_modify(|count| *count += 1);
    }

    async fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let SocketAddr::V4(own) = stream.local_addr().ok()? else { return None };
        let place = own.ip().octets()[3];
        let mut read = Vec::new();
        loop {
            let end = loop {
                if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                    break end + 4;
                }
                if stream.read_buf(&mut read).await.ok()? == 0 {
                    return None;
                }
            };
            let head = Headers::parse(&read[..end]);
            let is_head = read.starts_with(b"HEAD ");
            let first = |name: &str| head.all(name).into_iter().next();
            let length = first("content-length").and_then(|length| length.parse::<usize>().ok());
            let end = end + length.unwrap_or(0);
            while read.len() < end {
                if stream.read_buf(&mut read).await.ok()? == 0 {
                    return None;
                }
            }
            read.drain(..end);
            let line = match first("x-auth").as_deref() {
                _ if place != JUDGE => "200 OK",
                Some("yes") => "204 No Content",
                Some("no") => "403 Forbidden",
                _ => "401 Unauthorized",
            };
            if place != JUDGE && head.has("x-hold") {
                self.hold(&first("x-id").unwrap_or_default()).await;
            }
            let (length, body) = match line {
                "200 OK" if is_head => ("Content-Length: 2\r\n", ""),
                "200 OK" => ("Content-Length: 2\r\n", "ok"),
                "204 No Content" => ("", ""),
                _ => ("Content-Length: 0\r\n", ""),
            };
            let answer = format!("HTTP/1.1 {line}\r\nX-Place: {place}\r\n{length}\r\n{body}");
            stream.write_all(answer.as_bytes()).await.ok()?;
            if first("connection").is_some_and(|text| text.eq_ignore_ascii_case("close")) {
                return None;
            }
        }
    }

    async fn hold(&self, id: &str) {
        let mut released = self.released.subscribe();
        if let Some(arrived) = self.arrivals.lock().unwrap().remove(id) {
            let _ = arrived.send(());
        }
        let _ = released.changed().await;
    }
}
