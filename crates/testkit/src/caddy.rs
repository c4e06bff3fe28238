//! A real Caddy on a port of its own.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::ports::free_addr;
use super::run::Scratch;
use super::timing::eventually;

const BINARY: &str = "/usr/bin/caddy";

pub struct Caddy {
    child: Child,
    addr: SocketAddr,
    scratch: Scratch,
}

impl Caddy {
    /// `sites` are those of its Caddyfile; `@port@` becomes the port it listens on.
    #[track_caller]
    pub fn start(sites: &str) -> Caddy {
        assert!(std::path::Path::new(BINARY).exists(), "{BINARY} is missing: install the package caddy");
        let scratch = Scratch::new();
        let addr = free_addr();
        let sites = sites.replace("@port@", &addr.port().to_string());
        let file = scratch.file(
            "Caddyfile",
            &format!("{{\n\tadmin off\n\tauto_https off\n\tdefault_bind 127.0.0.1\n}}\n{sites}"),
        );
        let errors = std::fs::File::create(scratch.path().join("errors")).expect("a file for its errors");
        let mut command = Command::new(BINARY);
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
        for name in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
            command.env(name, scratch.path());
        }
        let child = command.stdin(Stdio::null()).stderr(errors).spawn().expect("caddy starts");
        let caddy = Caddy { child, addr, scratch };
        eventually(&format!("caddy on {addr}: {}", caddy.errors()), || {
            TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_ok()
        });
        caddy
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("errors")).unwrap_or_default()
    }
}

impl Drop for Caddy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- stderr of caddy\n{}---", self.errors());
        }
    }
}
