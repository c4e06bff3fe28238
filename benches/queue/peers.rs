//! Sluicegate and HAProxy with a queue in front of one server.

use std::fs;
use std::time::Duration;

use crate::Bench;
use crate::child::{self, Child, Result};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Haproxy,
    Sluicegate,
}

impl Peer {
    pub const ALL: [Peer; 2] = [Peer::Sluicegate, Peer::Haproxy];

    pub fn name(self) -> &'static str {
        match self {
            Peer::Haproxy => "haproxy",
            Peer::Sluicegate => "sluicegate",
        }
    }

    /// Starts the proxy; returns it with its port.
    pub fn start(self, bench: &Bench) -> Result<(Child, u16)> {
        let folder = bench.folder.join(self.name());
        fs::create_dir_all(&folder)?;
        let port = child::free_port()?;
        let (text, name) = match self {
            Peer::Haproxy => (haproxy(bench, port), "haproxy.cfg"),
            Peer::Sluicegate => (gateway(bench, port), "gateway.yaml"),
        };
        let file = folder.join(name);
        fs::write(&file, text)?;
        let (program, file) = (bench.gateway.display().to_string(), file.display().to_string());
        let argv: Vec<&str> = match self {
            Peer::Haproxy => vec!["haproxy", "-db", "-f", &file],
            Peer::Sluicegate => vec![&program, "run", "-c", &file],
        };
        let mut child = child::spawn(bench.proxy_core, &argv, &folder.join("stderr.log"))?;
        child.wait_port(port, Duration::from_secs(10))?;
        Ok((child, port))
    }
}

/// More than ever wait: the queue of an HAProxy backend has no bound of its own.
const QUEUE: usize = 20_000;

/// `abortonclose` takes clients that left out of the queue; without it HAProxy sends their requests.
fn haproxy(bench: &Bench, port: u16) -> String {
    format!(
        "global
    nbthread 1
    maxconn 9500
defaults
    mode http
    timeout connect 5s
    timeout client 75s
    timeout server 60s
    timeout queue {}ms
    timeout http-keep-alive 75s
    option forwardfor
    option http-keep-alive
    option abortonclose
    http-reuse always
backend app
    server s1 127.0.0.1:{} maxconn {}
frontend f
    bind 127.0.0.1:{port} backlog 4096
    default_backend app
",
        bench.max_wait.as_millis(),
        bench.backend_port,
        bench.places
    )
}

fn gateway(bench: &Bench, port: u16) -> String {
    format!(
        "listen: 127.0.0.1:{port}
admin: none
log: {{ level: warn }}
access_log: none
server: {{ workers: 1, max_waiting: {QUEUE}, keepalive: {{ requests: 100000000 }} }}
upstreams:
  app:
    servers: [\"127.0.0.1:{}\"]
    max_connections: {}
    queue: {{ size: {QUEUE}, max_wait: {}ms }}
locations:
  - {{ path: /, upstream: app }}
",
        bench.backend_port,
        bench.places,
        bench.max_wait.as_millis()
    )
}
