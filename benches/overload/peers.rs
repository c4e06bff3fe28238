//! The gateway and its rivals, each with its own means against overload. Envoy's and ours find their numbers; those of
//! HAProxy and nginx are right for the backend as it is at first.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Bench;
use crate::child::{self, Child, Result};
use crate::scenario::{DEADLINE, WORKERS};

/// The longest wait in a queue.
const MAX_WAIT: Duration = Duration::from_millis(DEADLINE.as_millis() as u64 / 2);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Sluicegate,
    /// With a queue as HAProxy has it.
    Queueing,
    Envoy,
    Haproxy,
    Nginx,
}

impl Peer {
    pub const ALL: [Peer; 5] = [Peer::Sluicegate, Peer::Queueing, Peer::Envoy, Peer::Haproxy, Peer::Nginx];

    pub fn name(self) -> &'static str {
        match self {
            Peer::Sluicegate => "Sluicegate",
            Peer::Queueing => "with a queue",
            Peer::Envoy => "Envoy",
            Peer::Haproxy => "HAProxy",
            Peer::Nginx => "nginx",
        }
    }

    /// Starts the proxy; returns it with its port.
    pub fn start(self, bench: &Bench) -> Result<(Child, u16)> {
        let folder = bench.folder.join(self.name());
        fs::create_dir_all(&folder)?;
        let port = child::free_port()?;
        let (text, name) = match self {
            Peer::Sluicegate => (gateway(bench, port, ""), "gateway.yaml"),
            Peer::Queueing => {
                let queue = format!(", queue: 9000, max_wait: {}ms", MAX_WAIT.as_millis());
                (gateway(bench, port, &queue), "gateway.yaml")
            }
            Peer::Envoy => (envoy(bench, port), "envoy.yaml"),
            Peer::Haproxy => (haproxy(bench, port), "haproxy.cfg"),
            Peer::Nginx => (nginx(bench, port), "nginx.conf"),
        };
        let file = folder.join(name);
        fs::write(&file, text)?;
        let (program, file) = (bench.gateway.display().to_string(), file.display().to_string());
        let folder_name = folder.display().to_string();
        let argv: Vec<&str> = match self {
            Peer::Sluicegate | Peer::Queueing => vec![&program, "run", "-c", &file],
            Peer::Envoy => {
                let words = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"];
                [&[bench.envoy.as_str()], &words[..], &["--config-path", &file]].concat()
            }
            Peer::Haproxy => vec!["haproxy", "-db", "-f", &file],
            Peer::Nginx => vec!["nginx", "-p", &folder_name, "-c", &file, "-e", "stderr"],
        };
        let mut child = child::spawn(bench.proxy_core, &argv, &folder.join("stderr.log"))?;
        child.wait_port(port, Duration::from_secs(10))?;
        Ok((child, port))
    }
}

/// Envoy's program in the environment with the packages of the peers, and its version.
pub fn find_envoy(packages: &Path) -> Result<(String, String)> {
    let missing = || format!("{}: no Envoy: see `make bench-overload`", packages.display());
    for entry in fs::read_dir(packages.join("lib")).map_err(|_| missing())? {
        let program = entry?.path().join("site-packages/envoy/_bin/envoy");
        if program.is_file() {
            let output = Command::new(&program).arg("--version").output()?.stdout;
            let version = String::from_utf8_lossy(&output).rsplit('/').nth(3).unwrap_or("?").to_owned();
            return Ok((program.display().to_string(), version));
        }
    }
    Err(missing().into())
}

fn gateway(bench: &Bench, port: u16, queue: &str) -> String {
    format!(
        "listen: 127.0.0.1:{port}
admin: none
log: {{ level: warn }}
access_log: none
server: {{ workers: 1, max_waiting: 9000, keepalive: {{ requests: 100000000 }} }}
upstreams:
  app: {{ servers: [\"127.0.0.1:{}\"] }}
limits:
  backend: {{ key: global, algorithm: concurrency, max_concurrent: auto{queue} }}
locations:
  - {{ path: /, upstream: app, limits: [backend] }}
",
        bench.backend_port
    )
}

/// The numbers are those of the example in Envoy's documentation, but for the interval.
fn envoy(bench: &Bench, port: u16) -> String {
    const TYPES: &str = "type.googleapis.com/envoy.extensions.filters";
    format!(
        "static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    tcp_backlog_size: 4096
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": {TYPES}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - {{ name: all, domains: [\"*\"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: app }} }}] }}
          http_filters:
          - name: envoy.filters.http.adaptive_concurrency
            typed_config:
              \"@type\": {TYPES}.http.adaptive_concurrency.v3.AdaptiveConcurrency
              gradient_controller_config:
                sample_aggregate_percentile: {{ value: 90 }}
                concurrency_limit_params: {{ concurrency_update_interval: 0.1s }}
                min_rtt_calc_params: {{ jitter: {{ value: 10 }}, interval: {:.1}s, request_count: 50 }}
              enabled: {{ default_value: true, runtime_key: adaptive_concurrency.enabled }}
          - name: envoy.filters.http.router
            typed_config: {{ \"@type\": {TYPES}.http.router.v3.Router }}
  clusters:
  - name: app
    type: STATIC
    connect_timeout: 5s
    circuit_breakers:
      thresholds: [{{ max_connections: 9000, max_pending_requests: 9000, max_requests: 9000 }}]
    load_assignment:
      cluster_name: app
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}
",
        bench.measure_every.as_secs_f64(),
        bench.backend_port
    )
}

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
    option http-keep-alive
    option abortonclose
    http-reuse always
backend app
    server s1 127.0.0.1:{} maxconn {WORKERS}
frontend f
    bind 127.0.0.1:{port} backlog 4096
    default_backend app
",
        MAX_WAIT.as_millis(),
        bench.backend_port
    )
}

fn nginx(bench: &Bench, port: u16) -> String {
    format!(
        "daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr crit;
events {{ worker_connections 16384; multi_accept on; }}
http {{
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    access_log off;
    keepalive_requests 100000000;
    limit_conn_zone $server_name zone=all:1m;
    upstream app {{ server 127.0.0.1:{}; keepalive 1024; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        server_name bench.test;
        location / {{
            limit_conn all {WORKERS};
            proxy_pass http://app;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
        }}
    }}
}}
",
        bench.backend_port
    )
}
