//! The proxies and their configurations: each serves all kinds of load, each kind on its own port.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Bench;
use crate::child::{self, Child, Result};
use crate::kinds::Kind;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rival {
    Nginx,
    Haproxy,
    Sluicegate,
}

/// A started proxy.
pub struct Instance {
    pub rival: Rival,
    pub child: Child,
    ports: Vec<(Kind, u16)>,
    pub plain_port: u16,
}

const START: Duration = Duration::from_secs(10);

impl Rival {
    pub const ALL: [Self; 3] = [Self::Nginx, Self::Haproxy, Self::Sluicegate];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Sluicegate => "sluicegate",
        }
    }
}

impl Instance {
    pub fn port(&self, kind: Kind) -> u16 {
        self.ports.iter().find(|(known, _)| *known == kind).map_or(self.plain_port, |(_, port)| *port)
    }

    /// Starts the proxy with a listener for each of `kinds` and a plain one.
    pub fn start(bench: &Bench, rival: Rival, kinds: &[Kind]) -> Result<Instance> {
        let folder = bench.folder.join(rival.name());
        fs::create_dir_all(&folder)?;
        let ports = kinds.iter().map(|kind| Ok((*kind, child::free_port()?))).collect::<Result<Vec<_>>>()?;
        let plain_port = child::free_port()?;
        let tls = Tls::make(&folder)?;
        let (text, name): (String, &str) = match rival {
            Rival::Nginx => (nginx(bench, &ports, plain_port, &tls), "nginx.conf"),
            Rival::Haproxy => (haproxy(bench, &ports, plain_port, &tls), "haproxy.cfg"),
            Rival::Sluicegate => (gateway(bench, &ports, plain_port, &tls), "gateway.yaml"),
        };
        let file = folder.join(name);
        fs::write(&file, text)?;
        let (prefix, file) = (folder.display().to_string(), file.display().to_string());
        let program = bench.gateway.display().to_string();
        let argv: Vec<&str> = match rival {
            Rival::Nginx => vec!["nginx", "-p", &prefix, "-c", &file, "-e", "stderr"],
            Rival::Haproxy => vec!["haproxy", "-db", "-f", &file],
            Rival::Sluicegate => vec![&program, "run", "-c", &file],
        };
        let mut child = child::spawn(bench.proxy_core, &argv, &folder.join("stderr.log"))?;
        for port in ports.iter().map(|(_, port)| *port).chain([plain_port]) {
            child.wait_port(port, START)?;
        }
        Ok(Instance { rival, child, ports, plain_port })
    }
}

/// Makes a P-256 certificate and its key, also in one file, as HAProxy requires.
struct Tls {
    cert: String,
    key: String,
    both: String,
}

impl Tls {
    fn make(folder: &Path) -> Result<Tls> {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let file = |name: &str, text: &str| -> Result<String> {
            let path = folder.join(name);
            fs::write(&path, text)?;
            Ok(path.display().to_string())
        };
        Ok(Tls {
            cert: file("cert.pem", &cert)?,
            key: file("key.pem", &key)?,
            both: file("both.pem", &format!("{cert}{key}"))?,
        })
    }
}

fn nginx(bench: &Bench, ports: &[(Kind, u16)], plain_port: u16, tls: &Tls) -> String {
    let server = |kind: Option<Kind>, port: u16| {
        let words = match kind {
            Some(Kind::H2c) => " http2",
            Some(Kind::TlsH2) => " ssl http2",
            Some(Kind::Tls | Kind::Handshake) => " ssl",
            _ => "",
        };
        let upstream = if matches!(kind, Some(Kind::Body | Kind::Unbuffered)) { "large" } else { "app" };
        let extra = if kind == Some(Kind::Unbuffered) {
            "proxy_buffering off; proxy_buffer_size 64k; proxy_buffers 8 64k; proxy_busy_buffers_size 128k;"
        } else {
            ""
        };
        format!(
            "    server {{
        listen 127.0.0.1:{port}{words} backlog=4096;
        location / {{ {extra} proxy_pass http://{upstream}; }}
    }}\n"
        )
    };
    let servers: String = ports.iter().map(|(kind, port)| server(Some(*kind), *port)).collect();
    format!(
        "daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr crit;
events {{ worker_connections 16384; multi_accept on; }}
http {{
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    access_log off;
    keepalive_requests 100000000;
    keepalive_timeout 75s;
    tcp_nodelay on;
    server_tokens off;
    ssl_certificate {};
    ssl_certificate_key {};
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_cache shared:SSL:1m;
    upstream app {{ server 127.0.0.1:{}; keepalive 64; keepalive_requests 100000000; }}
    upstream large {{ server 127.0.0.1:{}; keepalive 64; keepalive_requests 100000000; }}
    proxy_http_version 1.1;
    proxy_set_header Connection \"\";
    proxy_set_header Host $host;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
{servers}{}}}
",
        tls.cert,
        tls.key,
        bench.backend_port,
        bench.large_port,
        server(None, plain_port)
    )
}

fn haproxy(bench: &Bench, ports: &[(Kind, u16)], plain_port: u16, tls: &Tls) -> String {
    let front = |kind: Option<Kind>, port: u16| {
        let cert = &tls.both;
        let words = match kind {
            Some(Kind::H2c) => " proto h2".to_owned(),
            Some(Kind::TlsH2) => format!(" ssl crt {cert} alpn h2"),
            Some(Kind::Tls | Kind::Handshake) => format!(" ssl crt {cert}"),
            _ => String::new(),
        };
        let name = if matches!(kind, Some(Kind::Body | Kind::Unbuffered)) { "large" } else { "app" };
        format!(
            "frontend f{port}\n    bind 127.0.0.1:{port}{words} backlog 4096\n    default_backend {name}\n"
        )
    };
    let fronts: String = ports.iter().map(|(kind, port)| front(Some(*kind), *port)).collect();
    format!(
        "global
    nbthread 1
    maxconn 9500
    tune.ssl.default-dh-param 2048
defaults
    mode http
    timeout connect 5s
    timeout client 75s
    timeout server 60s
    timeout http-request 10s
    timeout http-keep-alive 75s
    option forwardfor
    option http-keep-alive
    http-reuse always
backend app
    server s1 127.0.0.1:{} pool-max-conn 64
backend large
    server s1 127.0.0.1:{} pool-max-conn 64
{fronts}{}",
        bench.backend_port,
        bench.large_port,
        front(None, plain_port)
    )
}

fn gateway(bench: &Bench, ports: &[(Kind, u16)], plain_port: u16, tls: &Tls) -> String {
    let listen = |kind: Kind, port: u16| {
        if kind.is_tls() {
            let http2 = kind == Kind::TlsH2;
            format!(
                "  - {{ address: \"127.0.0.1:{port}\", http2: {http2}, tls: {{ cert: {:?}, key: {:?} }} }}\n",
                tls.cert, tls.key
            )
        } else {
            format!("  - \"127.0.0.1:{port}\"\n")
        }
    };
    let listens: String = ports.iter().map(|(kind, port)| listen(*kind, *port)).collect();
    format!(
        "listen:
{listens}  - \"127.0.0.1:{plain_port}\"
admin: none
log: {{ level: warn }}
access_log: none
server:
  workers: 1
  keepalive: {{ requests: 100000000 }}
upstreams:
  app: {{ servers: [\"127.0.0.1:{}\"], keepalive: 64 }}
  large: {{ servers: [\"127.0.0.1:{}\"], keepalive: 64 }}
locations:
  - {{ path: /, upstream: app }}
  - {{ path: /, host: large.test, upstream: large }}
",
        bench.backend_port, bench.large_port
    )
}
