//! The backend of the queue benchmark: each request takes a fixed time, and requests of clients that leave are counted.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::child::Result;

/// The target of clients that hang up soon.
pub const LEAVING: &str = "/leaving";
const BODY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// What reached the backend.
#[derive(Default)]
pub struct Counts {
    now: AtomicU64,
    /// The most requests at once.
    pub most: AtomicU64,
    /// Requests of clients that hang up soon.
    pub leaving: AtomicU64,
}

pub struct Backend {
    pub port: u16,
    pub counts: Arc<Counts>,
}

impl Backend {
    /// Serves each connection on a thread of its own; a proxy opens as many as it may have requests in flight.
    pub fn start(service: Duration) -> Result<Backend> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let backend = Backend { port: listener.local_addr()?.port(), counts: Arc::default() };
        let counts = backend.counts.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::result::Result::ok) {
                let counts = counts.clone();
                // A connection that breaks is the end of its thread alone.
                std::thread::spawn(move || serve(&stream, &counts, service).ok());
            }
        });
        Ok(backend)
    }

    /// Forgets the counts of the run before.
    pub fn reset(&self) {
        self.counts.most.store(0, Relaxed);
        self.counts.leaving.store(0, Relaxed);
    }
}

fn serve(stream: &TcpStream, counts: &Counts, service: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len());
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let is_leaving = line.split(' ').nth(1) == Some(LEAVING);
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
        }
        counts.most.fetch_max(counts.now.fetch_add(1, Relaxed) + 1, Relaxed);
        counts.leaving.fetch_add(is_leaving.into(), Relaxed);
        std::thread::sleep(service);
        counts.now.fetch_sub(1, Relaxed);
        (&*stream).write_all(answer.as_bytes())?;
    }
}
