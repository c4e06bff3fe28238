//! A real Redis server of a test's own.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::run::Scratch;
use super::timing::eventually;

/// A running server with its own directory; dropping it kills it.
pub struct Redis {
    child: Child,
    addr: SocketAddr,
    _scratch: Scratch,
}

impl Redis {
    #[track_caller]
    pub fn start() -> Redis {
        Redis::start_with(&[])
    }

    /// `options` are words of the server's command line.
    #[track_caller]
    pub fn start_with(options: &[&str]) -> Redis {
        let scratch = Scratch::new();
        let addr = free_addr();
        let child = Command::new("redis-server")
            .args(["--port", &addr.port().to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(scratch.path())
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server starts: the Debian package redis-server has it");
        let redis = Redis { child, addr, _scratch: scratch };
        eventually(&format!("redis-server on {addr}"), || {
            TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_ok()
        });
        redis
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that the kernel picked and that was let go a moment ago.
#[track_caller]
fn free_addr() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address")
}
