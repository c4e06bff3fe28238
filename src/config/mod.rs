//! `gateway.yaml`: the words a user writes, typed, cross-checked and with every default filled in.
//!
//! [`load`] reads a file into a [`Config`] or into all of its [`Problem`]s at once. A `Config` holds no
//! `Option` that merely means "the default": whoever reads it need not know the contract's defaults.

pub mod describe;
mod words;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use ipnet::IpNet;

pub use words::{Rate, Secret};

/// One checked `gateway.yaml`.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: Vec<Listen>,
    pub server: Server,
    /// In file order; URLs written straight into a location follow, named by their text.
    pub upstreams: Vec<Upstream>,
    /// In file order; inline limits follow, named `PATH#PLACE` (place counted from 1).
    pub limits: Vec<Limit>,
    pub locations: Vec<Location>,
    pub account: Option<Source>,
    /// The top-level section alone; see [`OnReject::over`] for the layers.
    pub on_reject: OnReject,
    pub state: State,
    pub admin: Option<Admin>,
    pub log: Log,
    pub access_log: AccessLog,
}

/// One `listen` entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A bare port: `[::]` and `0.0.0.0`.
    Port(u16),
    Address(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, Clone)]
pub struct Server {
    /// Worker threads; `auto` is resolved to the cores the process may use.
    pub workers: usize,
    pub trusted_proxies: Vec<IpNet>,
    pub client_ip: ClientIp,
    pub ipv6_prefix: u8,
    pub ipv4_prefix: u8,
    /// Indices into [`Config::limits`], judged before every location's own.
    pub limits: Vec<usize>,
    pub max_connections: usize,
    pub connections_per_ip: Option<u32>,
    pub keepalive_requests: u64,
    pub keepalive_age: Option<Duration>,
    pub max_waiting: usize,
    pub max_in_flight: Option<usize>,
    /// Bytes.
    pub max_header_size: usize,
    pub max_headers: usize,
    /// Bytes; `None` = no limit.
    pub max_body: Option<u64>,
    pub timeouts: ServerTimeouts,
    pub request_id: HeaderName,
}

#[derive(Debug, Clone)]
pub struct ServerTimeouts {
    pub header: Duration,
    pub idle: Duration,
    pub body: Duration,
    pub write: Duration,
    pub handshake: Duration,
    pub shutdown: Duration,
}

/// Where a trusted proxy tells the client's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientIp {
    XForwardedFor,
    Forwarded,
    Header(HeaderName),
}

#[derive(Debug, Clone)]
pub struct Upstream {
    pub name: String,
    pub kind: UpstreamKind,
    pub balance: Balance,
    /// Idle connections kept per server and worker.
    pub keepalive: usize,
    /// Per server, over all workers.
    pub max_connections: Option<u32>,
    pub dns_refresh: Duration,
    pub timeouts: UpstreamTimeouts,
}

#[derive(Debug, Clone)]
pub enum UpstreamKind {
    /// The built-in echo backend.
    Demo,
    Servers(Vec<UpstreamServer>),
}

#[derive(Debug, Clone)]
pub struct UpstreamServer {
    /// Host name or literal address, IPv6 without brackets.
    pub host: String,
    pub port: u16,
    /// At least 1.
    pub weight: u32,
    pub backup: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Balance {
    P2c,
    RoundRobin,
    LeastConn,
    Random,
    HashIp,
    HashUri,
    HashHeader(HeaderName),
}

#[derive(Debug, Clone)]
pub struct UpstreamTimeouts {
    pub connect: Duration,
    pub response: Duration,
    pub body: Duration,
    pub idle: Duration,
}

/// A named limit, or one written inline in a location.
#[derive(Debug, Clone)]
pub struct Limit {
    pub name: String,
    /// One or more parts; several make one compound key.
    pub key: Vec<KeyPart>,
    pub missing_key: MissingKey,
    pub algorithm: Algorithm,
    pub cost: Cost,
    /// Empty = any.
    pub methods: Vec<Method>,
    pub bypass: Vec<IpNet>,
    pub dry_run: bool,
    pub on_reject: OnRejectPatch,
}

/// The numbers of one limit. `rates` are judged together; there is at least one.
#[derive(Debug, Clone)]
pub enum Algorithm {
    TokenBucket { rates: Vec<TokenBucketRate> },
    LeakyBucket { rates: Vec<LeakyBucketRate>, max_wait: Option<Duration> },
    Concurrency { max: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucketRate {
    pub rate: Rate,
    /// Tokens the bucket holds, at least 1.
    pub burst: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeakyBucketRate {
    pub rate: Rate,
    /// Requests that leave at once from idle, at least 1.
    pub burst: u64,
    /// Requests that may wait.
    pub queue: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPart {
    Ip,
    Account,
    Uri,
    Location,
    Host,
    Method,
    Global,
    Source(Source),
}

/// A place in a request's head that carries a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Header(HeaderName),
    Cookie(String),
    Query(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingKey {
    Ip,
    Shared,
    Reject,
    Skip,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cost {
    /// At least 1.
    Units(u64),
    /// Counts only from trusted proxies, else 1.
    Header(HeaderName),
}

#[derive(Debug, Clone)]
pub struct Location {
    /// As written, e.g. `= /x` or `~* \.gif$`: the name of the location in logs and metrics.
    pub name: String,
    pub path: PathRule,
    /// Empty = any.
    pub hosts: Vec<HostRule>,
    /// Empty = any.
    pub methods: Vec<Method>,
    pub action: Action,
    /// Indices into [`Config::limits`], in the order they are judged.
    pub limits: Vec<usize>,
    pub strip: Option<String>,
    pub host_header: HostHeader,
    pub request_headers: HeaderEdits,
    pub response_headers: HeaderEdits,
    pub on_reject: OnRejectPatch,
    pub timeout: Option<Duration>,
}

#[derive(Debug, Clone)]
pub enum PathRule {
    Exact(String),
    /// `no_regex` is nginx's `^~`.
    Prefix {
        path: String,
        no_regex: bool,
    },
    /// Already compiled, so that a bad pattern is a config error.
    Regex(regex::Regex),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostRule {
    /// Lower case, no trailing dot, no port.
    Exact(String),
    /// `*.example.com` is kept as `.example.com`.
    Suffix(String),
}

#[derive(Debug, Clone)]
pub enum Action {
    /// Index into [`Config::upstreams`].
    Upstream(usize),
    Respond {
        status: StatusCode,
        body: Template,
        content_type: HeaderValue,
    },
    Redirect {
        to: Template,
        status: StatusCode,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostHeader {
    Client,
    Upstream,
    Fixed(HeaderValue),
}

#[derive(Debug, Clone, Default)]
pub struct HeaderEdits {
    pub set: Vec<(HeaderName, HeaderValue)>,
    pub add: Vec<(HeaderName, HeaderValue)>,
    pub remove: Vec<HeaderName>,
}

/// Text with `${name}` variables of the contract's list, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(pub Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Var(Var),
}

/// The template variables, as the contract lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Var {
    Status,
    Title,
    Message,
    Limit,
    Tier,
    Rate,
    RetryAfter,
    RetryAfterMs,
    RequestId,
    ClientIp,
    Account,
    Host,
    Uri,
    RequestUri,
    Location,
}

/// How a rejection is answered, all fields decided.
#[derive(Debug, Clone)]
pub struct OnReject {
    /// `None` = auto: 429 for rates and queues, 503 for concurrency and overload.
    pub status: Option<StatusCode>,
    pub body: RejectBody,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub ratelimit_headers: RateLimitHeaders,
    /// Percent of Retry-After, 0 to 100.
    pub retry_jitter: u8,
}

#[derive(Debug, Clone)]
pub enum RejectBody {
    Problem,
    Envelope,
    None,
    Template { template: Template, content_type: HeaderValue },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimitHeaders {
    pub standard: bool,
    pub legacy: bool,
}

/// An `on_reject` section that overrides only what it names.
#[derive(Debug, Clone, Default)]
pub struct OnRejectPatch {
    /// `Some(None)` sets `auto` back.
    pub status: Option<Option<StatusCode>>,
    pub body: Option<RejectBody>,
    pub headers: Option<Vec<(HeaderName, HeaderValue)>>,
    pub ratelimit_headers: Option<RateLimitHeaders>,
    pub retry_jitter: Option<u8>,
}

impl OnReject {
    /// This section with `patch` laid over it: limit over top level, location over both.
    pub fn over(&self, patch: &OnRejectPatch) -> OnReject {
        OnReject {
            status: patch.status.unwrap_or(self.status),
            body: patch.body.clone().unwrap_or_else(|| self.body.clone()),
            headers: patch.headers.clone().unwrap_or_else(|| self.headers.clone()),
            ratelimit_headers: patch.ratelimit_headers.unwrap_or(self.ratelimit_headers),
            retry_jitter: patch.retry_jitter.unwrap_or(self.retry_jitter),
        }
    }
}

#[derive(Debug, Clone)]
pub struct State {
    /// Keys per limit and rate.
    pub max_keys: usize,
}

#[derive(Debug, Clone)]
pub struct Admin {
    pub listen: SocketAddr,
    pub token: Option<Secret>,
}

#[derive(Debug, Clone)]
pub struct Log {
    pub level: LogLevel,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Auto,
    Pretty,
    Json,
}

#[derive(Debug, Clone)]
pub struct AccessLog {
    pub output: AccessLogOutput,
    /// Share of requests logged, in percent, 0 to 100.
    pub sample: f64,
    pub headers: Vec<HeaderName>,
    pub hash_keys: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLogOutput {
    Stdout,
    None,
    File(PathBuf),
}
