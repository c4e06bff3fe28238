//! A real nginx on ports of its own, as the oracle.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::ports::free_addr;
use super::run::Scratch;
use super::timing::eventually;

const BINARY: &str = "/usr/sbin/nginx";

pub struct Nginx {
    child: Child,
    addrs: Vec<SocketAddr>,
    scratch: Scratch,
}

impl Nginx {
    /// `http` is the inside of its http block; `@0@`, `@1@` … become the addresses it listens on.
    #[track_caller]
    pub fn start(http: &str, servers: usize) -> Nginx {
        Nginx::start_program(Path::new(BINARY), http, servers)
    }

    /// Does the same with another program than that of the system.
    #[track_caller]
    pub fn start_program(program: &Path, http: &str, servers: usize) -> Nginx {
        assert!(
            program.exists(),
            "{} is missing: install the package nginx, the oracle of this test",
            program.display()
        );
        let scratch = Scratch::new();
        let dir = scratch.path().display().to_string();
        let addrs: Vec<_> = (0..servers).map(|_| free_addr()).collect();
        let mut http = http.to_owned();
        for (place, addr) in addrs.iter().enumerate() {
            http = http.replace(&format!("@{place}@"), &addr.to_string());
        }
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|word| format!("{word}_temp_path {dir}/{word};\n"))
            .concat();
        let file = scratch.file(
            "nginx.conf",
            &format!(
                "daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log error;\n\
                 worker_rlimit_nofile 8192; events {{ worker_connections 4096; }}\n\
                 http {{ access_log off; {paths} {http} }}\n"
            ),
        );
        let mut command = Command::new(program);
        command.arg("-p").arg(scratch.path()).arg("-c").arg(file).arg("-e").arg("stderr");
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("nginx starts");
        let nginx = Nginx { child, addrs, scratch };
        for addr in &nginx.addrs {
            eventually(&format!("nginx on {addr}: {}", nginx.errors()), || {
                TcpStream::connect_timeout(addr, Duration::from_secs(1)).is_ok()
            });
        }
        nginx
    }

    /// Serves the nginx.conf of a folder, which listens on `addr`. `None`: nginx does not take the file.
    pub fn serve_folder(scratch: Scratch, addr: SocketAddr) -> Option<Nginx> {
        let mut command = Command::new(BINARY);
        command.arg("-p").arg(scratch.path()).arg("-c").arg(scratch.path().join("nginx.conf"));
        command.args(["-e", "stderr", "-g", "daemon off; master_process off;"]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("nginx starts");
        let mut nginx = Nginx { child, addrs: vec![addr], scratch };
        let mut is_refused = false;
        eventually(&format!("nginx on {addr}"), || {
            is_refused = nginx.child.try_wait().is_ok_and(|status| status.is_some());
            is_refused || TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_ok()
        });
        (!is_refused).then_some(nginx)
    }

    pub fn addr(&self, server: usize) -> SocketAddr {
        self.addrs[server]
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("error.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
