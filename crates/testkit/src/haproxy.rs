//! A real HAProxy on a port of its own.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::ports::free_addr;
use super::run::Scratch;
use super::timing::eventually;

const BINARY: &str = "/usr/sbin/haproxy";

pub struct Haproxy {
    child: Child,
    addr: SocketAddr,
    _scratch: Scratch,
}

impl Haproxy {
    /// Starts it with this configuration; `@0@` becomes the address that it listens on.
    #[track_caller]
    pub fn start(config: &str) -> Haproxy {
        assert!(std::path::Path::new(BINARY).exists(), "{BINARY} is missing: install the package haproxy");
        let scratch = Scratch::new();
        let addr = free_addr();
        let file = scratch.file("haproxy.cfg", &config.replace("@0@", &addr.to_string()));
        let mut command = Command::new(BINARY);
        command
            .arg("-db")
            .arg("-f")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let haproxy = Haproxy { child: command.spawn().expect("HAProxy starts"), addr, _scratch: scratch };
        eventually(&format!("HAProxy on {addr}"), || {
            TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_ok()
        });
        haproxy
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
