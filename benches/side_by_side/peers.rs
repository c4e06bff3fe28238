//! The proxies that are compared and their configurations, as equal as their languages allow.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::child::{self, Child, Result};
use crate::{backend, client, limits};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Proxying alone.
    None,
    /// A limit per client address that always admits.
    Pass,
    /// A limit per client address that rejects nearly all, with a JSON body.
    Reject,
    /// `Pass` without the RateLimit fields, which nginx does not send either.
    PassBare,
    /// `Reject` with the same short body on both and no RateLimit fields.
    RejectBare,
    /// `Pass` for a client with an API key; not of nginx.
    #[allow(dead_code, reason = "its instructions alone are counted")]
    Key,
    /// The same request with no file of keys.
    #[allow(dead_code, reason = "its instructions alone are counted")]
    KeyUnread,
    /// `Pass` behind the kept answer of an auth service; not of nginx.
    #[allow(dead_code, reason = "its instructions alone are counted")]
    Auth,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proxy {
    Nginx,
    Sluicegate,
}

/// The access log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Log {
    Off,
    File,
    /// nginx only: `buffer=64k flush=1s`.
    Buffered,
}

/// A started proxy, ready for requests.
pub struct Instance {
    pub proxy: Proxy,
    pub mode: Mode,
    pub log: Log,
    pub port: u16,
    pub log_file: PathBuf,
    pub child: Child,
}

/// The resources shared by all instances.
pub struct Bench {
    pub gateway: PathBuf,
    /// The folder for configurations and logs.
    pub folder: PathBuf,
    pub backend_port: u16,
    pub proxy_core: usize,
    pub load_core: usize,
    /// A command prefix for each proxy: an instrument that runs it.
    pub under: Vec<String>,
}

/// Long enough for a slow instrument.
const START: Duration = Duration::from_secs(60);
pub const GET: &str = "GET / HTTP/1.1\r\nHost: bench.test\r\n\r\n";
/// The file of API keys with the SHA-256 of `bench-key`.
const KEYS: &str = "sha256,account\nb0962662e937d44c699c8305d90cbf190b3150c59b13863d1380b5cc3c711bb7,bench\n";
const SHORT_BODY: &str = r#"{"error":"too_many_requests","message":"rate limit exceeded"}"#;

impl Mode {
    pub const ALL: [Self; 5] = [Self::None, Self::Pass, Self::Reject, Self::PassBare, Self::RejectBare];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pass => "pass",
            Self::Reject => "reject",
            Self::PassBare => "pass-bare",
            Self::RejectBare => "reject-bare",
            Self::Key => "key",
            Self::KeyUnread => "key-unread",
            Self::Auth => "auth",
        }
    }

    /// The request that its clients send.
    pub fn request(self) -> &'static str {
        match self {
            Self::Key | Self::KeyUnread => {
                "GET / HTTP/1.1\r\nHost: bench.test\r\nX-Api-Key: bench-key\r\n\r\n"
            }
            _ => GET,
        }
    }

    pub fn rejects(self) -> bool {
        matches!(self, Self::Reject | Self::RejectBare)
    }
}

impl Proxy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Sluicegate => "sluicegate",
        }
    }
}

impl Log {
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::File => "file",
            Self::Buffered => "file, 64k buffer",
        }
    }
}

impl Bench {
    /// Starts a proxy and checks that its responses are the expected ones.
    pub fn start(&self, proxy: Proxy, mode: Mode, log: Log) -> Result<Instance> {
        let folder = self.folder.join(format!("{}-{}-{log:?}", proxy.name(), mode.name()));
        fs::create_dir_all(&folder)?;
        let log_file = folder.join("access.log");
        let port = child::free_port()?;
        let child = match proxy {
            Proxy::Nginx => self.nginx(&folder, "", &nginx_servers(port, mode, log, &log_file))?,
            Proxy::Sluicegate => {
                let output = if log == Log::Off { "none".to_owned() } else { log_file.display().to_string() };
                fs::write(folder.join("keys.csv"), KEYS)?;
                let rest = format!("{}access_log: {{ output: {output:?} }}\n", gateway_mode(mode));
                self.gateway(&folder, port, 50_000, &rest)?
            }
        };
        let mut instance = Instance { proxy, mode, log, port, log_file, child };
        instance.child.wait_port(port, START)?;
        instance.check().map_err(|error| format!("{} {}: {error}", proxy.name(), mode.name()))?;
        Ok(instance)
    }

    /// Starts nginx with `modules` before the lines of all configurations and `servers` among them.
    pub fn nginx(&self, folder: &Path, modules: &str, servers: &str) -> Result<Child> {
        let file = folder.join("nginx.conf");
        fs::create_dir_all(folder)?;
        fs::write(
            &file,
            modules.to_owned()
                + &NGINX
                    .replace("BACKEND", &self.backend_port.to_string())
                    .replace("ZONES", limits::NGINX_ZONES)
                    .replace("SERVERS", servers),
        )?;
        let (prefix, file) = (folder.display().to_string(), file.display().to_string());
        self.spawn(folder, &["nginx", "-p", &prefix, "-c", &file, "-e", "stderr"])
    }

    /// Starts the gateway with `rest` after the lines of all configurations.
    pub fn gateway(&self, folder: &Path, port: u16, max_waiting: usize, rest: &str) -> Result<Child> {
        let file = folder.join("gateway.yaml");
        fs::create_dir_all(folder)?;
        fs::write(&file, gateway_file(port, self.backend_port, max_waiting, rest))?;
        let (program, file) = (self.gateway.display().to_string(), file.display().to_string());
        self.spawn(folder, &[&program, "run", "-c", &file])
    }

    fn spawn(&self, folder: &Path, argv: &[&str]) -> Result<Child> {
        let argv: Vec<&str> = self.under.iter().map(String::as_str).chain(argv.iter().copied()).collect();
        child::spawn(self.proxy_core, &argv, &folder.join("stderr.log"))
    }
}

impl Instance {
    fn check(&self) -> Result<()> {
        let (first, text) = client::probe(self.port, self.mode.request())?;
        // A limit of one per second may count the probe of an earlier start: only the second response is certain.
        let forwarded = first == 200 && text.ends_with(&"x".repeat(backend::BODY));
        if !self.mode.rejects() && !forwarded {
            return Err(format!("expected the backend's answer, got\n{text}").into());
        }
        let (second, text) = client::probe(self.port, self.mode.request())?;
        let lower = text.to_ascii_lowercase();
        let refused =
            second == 429 && lower.contains("json") && lower.contains("retry-after") && text.ends_with('}');
        if self.mode.rejects() && !refused {
            return Err(format!("expected 429 with a JSON body and Retry-After, got\n{text}").into());
        }
        Ok(())
    }
}

const NGINX: &str = r#"daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr crit;
events { worker_connections 8192; multi_accept on; }
http {
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    log_format line escape=json '{"time":"$time_iso8601","client":"$remote_addr","method":"$request_method","uri":"$request_uri",'
        '"host":"$host","status":$status,"bytes":$body_bytes_sent,"seconds":$request_time,"upstream":"$upstream_addr",'
        '"upstream_seconds":"$upstream_response_time","limit":"$limit_req_status","agent":"$http_user_agent","request_id":"$request_id"}';
    keepalive_requests 100000000;
    keepalive_timeout 75s;
    tcp_nodelay on;
    server_tokens off;
    ZONES
    upstream app { server 127.0.0.1:BACKEND; keepalive 64; keepalive_requests 100000000; }
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $host;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    SERVERS
}
"#;

fn nginx_servers(port: u16, mode: Mode, log: Log, log_file: &Path) -> String {
    let log = match log {
        Log::Off => "access_log off;".to_owned(),
        Log::File => format!("access_log {} line;", log_file.display()),
        Log::Buffered => format!("access_log {} line buffer=64k flush=1s;", log_file.display()),
    };
    let limit = match mode {
        Mode::None => "",
        Mode::Pass | Mode::PassBare | Mode::Key | Mode::KeyUnread | Mode::Auth => limits::NGINX_PASS,
        Mode::Reject | Mode::RejectBare => limits::NGINX_REJECT,
    };
    let (kind, body) = if mode == Mode::RejectBare {
        ("application/json", SHORT_BODY)
    } else {
        (limits::PROBLEM_TYPE, limits::PROBLEM)
    };
    let refusal = limits::nginx_refusal(kind, body);
    format!(
        "{log}\n    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{ {limit} proxy_pass http://app; }}
        {refusal}
    }}"
    )
}

/// A complete gateway.yaml; `rest` begins with the fields of the single location.
pub fn gateway_file(port: u16, backend_port: u16, max_waiting: usize, rest: &str) -> String {
    format!(
        "listen: \"127.0.0.1:{port}\"
admin: none
log: {{ level: warn }}
server:
  workers: 1
  keepalive: {{ requests: 100000000 }}
  max_waiting: {max_waiting}
upstreams:
  app: {{ servers: [\"127.0.0.1:{backend_port}\"], keepalive: 64 }}
locations:
  - path: /
    upstream: app
{rest}"
    )
}

fn gateway_mode(mode: Mode) -> String {
    let limited = |limit| format!("    limits: [per-ip]\nlimits: {{ per-ip: {limit} }}\n");
    let limit = match mode {
        Mode::None => String::new(),
        Mode::Pass | Mode::PassBare | Mode::Key | Mode::KeyUnread | Mode::Auth => {
            limited(limits::GATEWAY_PASS)
        }
        Mode::Reject | Mode::RejectBare => limited(limits::GATEWAY_REJECT),
    };
    let answer = match mode {
        Mode::PassBare => "on_reject: { ratelimit_headers: none }\n".to_owned(),
        Mode::RejectBare => format!(
            "on_reject:\n  ratelimit_headers: none\n  body: {{ template: '{SHORT_BODY}', content_type: application/json }}\n"
        ),
        Mode::Key => "account: { keys: { file: keys.csv } }\n".to_owned(),
        // The backend answers the question as well.
        Mode::Auth => {
            return "    auth: { upstream: app, cache: { by: [cookie, authorization], for: 1h } }\n"
                .to_owned()
                + &limit;
        }
        _ => String::new(),
    };
    format!("{limit}{answer}")
}
