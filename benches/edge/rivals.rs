//! The proxies and their configurations: each serves all kinds of load, each kind on its own port.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::bench::Bench;
use crate::child::{self, Child, Result};
use crate::kinds::Kind;
use crate::limits;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rival {
    Nginx,
    Haproxy,
    Sluicegate,
}

/// A started proxy.
pub struct Instance {
    pub name: String,
    pub child: Child,
    ports: Ports,
}

/// The listeners of a proxy: one for each kind of load, and a plain one.
pub struct Ports {
    pub kinds: Vec<(Kind, u16)>,
    pub plain: u16,
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

    /// Starts the program of the system, or the gateway that is measured.
    pub fn start(self, bench: &Bench, kinds: &[Kind]) -> Result<Instance> {
        let gateway = bench.gateway.display().to_string();
        let program = if self == Self::Sluicegate { &gateway } else { self.name() };
        self.start_as(bench, self.name(), program, kinds)
    }

    /// Starts `program` under another name.
    pub fn start_as(self, bench: &Bench, name: &str, program: &str, kinds: &[Kind]) -> Result<Instance> {
        let folder = bench.folder.join(name.replace([' ', ','], "-"));
        fs::create_dir_all(&folder)?;
        let (ports, tls) = (Ports::choose(kinds)?, Tls::make(&folder)?);
        let (text, file) = match self {
            Self::Nginx => (nginx(bench, &ports, &tls), "nginx.conf"),
            Self::Haproxy => (haproxy(bench, &ports, &tls), "haproxy.cfg"),
            Self::Sluicegate => (gateway(bench, &ports, &tls), "gateway.yaml"),
        };
        let (prefix, file) = (folder.display().to_string(), folder.join(file).display().to_string());
        fs::write(&file, text)?;
        let argv: Vec<&str> = match self {
            Self::Nginx => vec![program, "-p", &prefix, "-c", &file, "-e", "stderr"],
            Self::Haproxy => vec![program, "-db", "-f", &file],
            Self::Sluicegate => vec![program, "run", "-c", &file],
        };
        Instance::start(bench, name, &folder, &argv, ports)
    }
}

impl Ports {
    /// Free ports for a listener of each of `kinds` and a plain one.
    pub fn choose(kinds: &[Kind]) -> Result<Ports> {
        let kinds = kinds.iter().map(|kind| Ok((*kind, child::free_port()?))).collect::<Result<_>>()?;
        Ok(Ports { kinds, plain: child::free_port()? })
    }

    /// All listeners; the plain one serves no kind in particular.
    pub fn all(&self) -> impl Iterator<Item = (Option<Kind>, u16)> + '_ {
        self.kinds.iter().map(|(kind, port)| (Some(*kind), *port)).chain([(None, self.plain)])
    }

    fn of(&self, kind: Kind) -> Option<u16> {
        self.kinds.iter().find(|(known, _)| *known == kind).map(|(_, port)| *port)
    }
}

impl Instance {
    /// Starts `argv` and waits for all its listeners.
    pub fn start(bench: &Bench, name: &str, folder: &Path, argv: &[&str], ports: Ports) -> Result<Instance> {
        let mut child = child::spawn(bench.proxy_core, argv, &folder.join("stderr.log"))?;
        for (_, port) in ports.all() {
            child.wait_port(port, START)?;
        }
        Ok(Instance { name: name.to_owned(), child, ports })
    }

    pub fn serves(&self, kind: Kind) -> bool {
        self.ports.of(kind).is_some()
    }

    pub fn port(&self, kind: Kind) -> u16 {
        self.ports.of(kind).unwrap_or(self.ports.plain)
    }

    pub fn plain_port(&self) -> u16 {
        self.ports.plain
    }
}

/// Makes a P-256 certificate and its key, also in one file, as HAProxy requires.
pub struct Tls {
    pub cert: String,
    pub key: String,
    both: String,
}

impl Tls {
    pub fn make(folder: &Path) -> Result<Tls> {
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

fn nginx(bench: &Bench, ports: &Ports, tls: &Tls) -> String {
    let server = |kind: Option<Kind>, port: u16| {
        let words = match kind {
            Some(Kind::H2c) => " http2",
            Some(Kind::TlsH2) => " ssl http2",
            Some(Kind::Tls | Kind::Handshake) => " ssl",
            _ => "",
        };
        let upstream = upstream(kind);
        let extra = match kind {
            Some(Kind::Unbuffered) => {
                "proxy_buffering off; proxy_buffer_size 64k; proxy_buffers 8 64k; proxy_busy_buffers_size 128k;"
            }
            Some(Kind::Passing) => limits::NGINX_PASS,
            Some(Kind::Rejecting) => limits::NGINX_REJECT,
            _ => "",
        };
        let refusal = match kind {
            Some(Kind::Rejecting) => limits::nginx_refusal(limits::PROBLEM_TYPE, limits::PROBLEM),
            _ => String::new(),
        };
        format!(
            "    server {{
        listen 127.0.0.1:{port}{words} backlog=4096;
        location / {{ {extra} proxy_pass http://{upstream}; }}
        {refusal}
    }}\n"
        )
    };
    let servers: String = ports.all().map(|(kind, port)| server(kind, port)).collect();
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
    {}
    upstream app {{ server 127.0.0.1:{}; keepalive 64; keepalive_requests 100000000; }}
    upstream small {{ server 127.0.0.1:{}; keepalive 64; keepalive_requests 100000000; }}
    upstream large {{ server 127.0.0.1:{}; keepalive 64; keepalive_requests 100000000; }}
    proxy_http_version 1.1;
    proxy_set_header Connection \"\";
    proxy_set_header Host $host;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
{servers}}}
",
        tls.cert,
        tls.key,
        limits::NGINX_ZONES,
        bench.backend_port,
        bench.small_port,
        bench.large_port,
    )
}

fn haproxy(bench: &Bench, ports: &Ports, tls: &Tls) -> String {
    let front = |kind: Option<Kind>, port: u16| {
        let cert = &tls.both;
        let words = match kind {
            Some(Kind::H2c) => " proto h2".to_owned(),
            Some(Kind::TlsH2) => format!(" ssl crt {cert} alpn h2"),
            Some(Kind::Tls | Kind::Handshake) => format!(" ssl crt {cert}"),
            _ => String::new(),
        };
        let name = upstream(kind);
        let limit = haproxy_limit(kind);
        format!(
            "frontend f{port}\n    bind 127.0.0.1:{port}{words} backlog 4096\n{limit}    default_backend {name}\n"
        )
    };
    let fronts: String = ports.all().map(|(kind, port)| front(kind, port)).collect();
    // Each connection counts twice.
    let maxconn = (bench.open_files / 2).saturating_sub(100).min(12_000);
    format!(
        "global
    nbthread 1
    maxconn {maxconn}
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
backend small
    server s1 127.0.0.1:{} pool-max-conn 64
backend large
    server s1 127.0.0.1:{} pool-max-conn 64
backend passing
    stick-table type ip size 1m expire 10s store http_req_rate(1s)
backend rejecting
    stick-table type ip size 1m expire 10s store http_req_rate(1s)
{fronts}",
        bench.backend_port, bench.small_port, bench.large_port,
    )
}

/// A limit by a stick table; a rejection has the body of nginx's.
fn haproxy_limit(kind: Option<Kind>) -> String {
    let (table, most) = match kind {
        Some(Kind::Passing) => ("passing", 1_000_000),
        Some(Kind::Rejecting) => ("rejecting", 1),
        _ => return String::new(),
    };
    let body = limits::PROBLEM.replace("$request_id", "00000000000000000000000000000000");
    format!(
        "    http-request track-sc0 src table {table}
    acl over sc_http_req_rate(0) gt {most}
    http-request return status 429 content-type {} hdr Retry-After 1 string '{body}' if over
",
        limits::PROBLEM_TYPE
    )
}

/// The backend of a kind of load.
pub fn upstream(kind: Option<Kind>) -> &'static str {
    match kind {
        Some(Kind::Body | Kind::Unbuffered) => "large",
        Some(Kind::Small) => "small",
        _ => "app",
    }
}

fn gateway(bench: &Bench, ports: &Ports, tls: &Tls) -> String {
    let listen = |kind: Option<Kind>, port: u16| match kind {
        Some(kind) if kind.is_tls() => {
            let http2 = kind == Kind::TlsH2;
            format!(
                "  - {{ address: \"127.0.0.1:{port}\", http2: {http2}, tls: {{ cert: {:?}, key: {:?} }} }}\n",
                tls.cert, tls.key
            )
        }
        _ => format!("  - \"127.0.0.1:{port}\"\n"),
    };
    let listens: String = ports.all().map(|(kind, port)| listen(kind, port)).collect();
    format!(
        "listen:
{listens}admin: none
log: {{ level: warn }}
access_log: none
server:
  workers: 1
  keepalive: {{ requests: 100000000 }}
upstreams:
  app: {{ servers: [\"127.0.0.1:{}\"], keepalive: 64 }}
  small: {{ servers: [\"127.0.0.1:{}\"], keepalive: 64 }}
  large: {{ servers: [\"127.0.0.1:{}\"], keepalive: 64 }}
limits:
  pass: {}
  reject: {}
locations:
  - {{ path: /, upstream: app }}
  - {{ path: /, host: small.test, upstream: small }}
  - {{ path: /, host: large.test, upstream: large }}
  - {{ path: /, host: pass.test, upstream: app, limits: [pass] }}
  - {{ path: /, host: reject.test, upstream: app, limits: [reject] }}
",
        bench.backend_port,
        bench.small_port,
        bench.large_port,
        limits::GATEWAY_PASS,
        limits::GATEWAY_REJECT,
    )
}
