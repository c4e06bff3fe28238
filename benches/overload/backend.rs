//! The backend of the overload benchmark: each request takes longer the more there are, and is finished even if its
//! client has left.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::child::Result;
use crate::random::Random;
use crate::scenario::WORKERS;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// What the backend is able to do now.
pub struct Ability {
    /// Requests that it serves at once without trouble.
    pub workers: AtomicU64,
    /// Microseconds that four of five requests take without load, and the fifth.
    pub quick_us: AtomicU64,
    pub slow_us: AtomicU64,
    /// Requests in it.
    now: AtomicU64,
    /// Requests that ever came.
    count: AtomicU64,
}

pub struct Backend {
    pub port: u16,
    pub ability: Arc<Ability>,
}

impl Backend {
    /// Serves each connection on a thread of its own; a proxy opens as many as it has requests in flight.
    pub fn start() -> Result<Backend> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let ability = Ability {
            workers: AtomicU64::new(WORKERS),
            quick_us: AtomicU64::new(0),
            slow_us: AtomicU64::new(0),
            now: AtomicU64::new(0),
            count: AtomicU64::new(0),
        };
        let backend = Backend { port: listener.local_addr()?.port(), ability: Arc::new(ability) };
        let ability = backend.ability.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::result::Result::ok) {
                let ability = ability.clone();
                // A connection that breaks is the end of its thread alone.
                let serve = move || serve(&stream, &ability).ok();
                if std::thread::Builder::new().stack_size(64 << 10).spawn(serve).is_err() {
                    eprintln!("The backend has no more threads.");
                }
            }
        });
        Ok(backend)
    }

    /// Waits until the requests of a run are done: what one run left behind would slow down the next.
    pub fn drain(&self) -> Result<()> {
        for _ in 0..300 {
            if self.ability.now.load(Relaxed) == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err("the backend is still busy after 30 s".into())
    }
}

impl Ability {
    /// A quarter longer with as many requests as workers; from there on the work of all takes its time in proportion,
    /// and a quarter more for each further multiple of the workers, up to eight. Half of it varies exponentially.
    fn time(&self, in_it: u64, number: u64) -> Duration {
        let base = if number.is_multiple_of(5) { &self.slow_us } else { &self.quick_us };
        let ratio = (in_it as f64 / self.workers.load(Relaxed) as f64).min(8.0);
        let factor = if ratio <= 1.0 { 1.0 + ratio / 4.0 } else { 1.25 * ratio * (0.75 + ratio / 4.0) };
        let varied = 0.5 + Random::new(number).exponential() / 2.0;
        Duration::from_micros((base.load(Relaxed) as f64 * factor * varied) as u64)
    }
}

fn serve(stream: &TcpStream, ability: &Ability) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1024, stream);
    let mut line = String::new();
    loop {
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line == "\r\n" {
                break;
            }
        }
        let in_it = ability.now.fetch_add(1, Relaxed) + 1;
        std::thread::sleep(ability.time(in_it, ability.count.fetch_add(1, Relaxed)));
        ability.now.fetch_sub(1, Relaxed);
        (&*stream).write_all(ANSWER)?;
    }
}
