//! The typed model: what a checked `gateway.yaml` says, every default filled in.

pub(crate) mod access;
pub(crate) mod account;
pub(crate) mod id;
pub(crate) mod limit;
pub(crate) mod listen;
pub(crate) mod reject;
pub(crate) mod tls;
pub(crate) mod upstream;

use id::{LimitId, UpstreamId};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use ipnet::IpNet;

use super::value::scalars::{Rate, Secret};
use access::{AccessConfig, BansConfig, IpSetConfig};
use account::AccountConfig;
use limit::{KeyPart, LimitConfig};
use listen::ListenConfig;
use reject::{OnReject, OnRejectPatch, TemplateConfig};
use tls::{UpstreamProtocol, UpstreamTlsConfig};
use upstream::{EjectConfig, HealthConfig, RetryConfig, ServerAddress};

/// One checked `gateway.yaml`.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: Vec<ListenConfig>,
    pub server: ServerConfig,
    /// In file order; URLs written straight into a location follow, named by their text.
    pub upstreams: Vec<UpstreamConfig>,
    /// In file order; inline limits follow, named `PATH#PLACE` (place counted from 1).
    pub limits: Vec<LimitConfig>,
    pub locations: Vec<LocationConfig>,
    pub ip_sets: Vec<IpSetConfig>,
    /// For requests that no location serves; [`LocationConfig::access`] has it where a location says nothing else.
    pub access: AccessConfig,
    /// `None` = off.
    pub bans: Option<BansConfig>,
    pub account: AccountConfig,
    /// The top-level section alone; see [`OnReject::over`] for the layers.
    pub on_reject: OnReject,
    pub state: StateConfig,
    pub reload: ReloadConfig,
    pub admin: Option<AdminConfig>,
    pub log: LogConfig,
    pub access_log: AccessLogConfig,
}

#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Worker threads; `auto` is resolved to the cores the process may use.
    pub workers: usize,
    pub trusted_proxies: Vec<IpNet>,
    pub client_ip: ClientIpConfig,
    pub ipv6_prefix: u8,
    pub ipv4_prefix: u8,
    /// Indices into [`Config::limits`], judged before every location's own.
    pub limits: Vec<LimitId>,
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
    pub underscore_headers: UnderscoreHeaders,
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

/// What becomes of request fields with an underscore in their names, unless the file writes the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderscoreHeaders {
    Drop,
    /// Other spellings of protected names are dropped all the same.
    Pass,
}

/// Where a trusted proxy tells the client's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientIpConfig {
    XForwardedFor,
    Forwarded,
    Header(HeaderName),
}

#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    pub name: String,
    pub kind: UpstreamKind,
    pub balance: BalancePolicy,
    pub protocol: UpstreamProtocol,
    /// For `https://` servers, which then all of them are.
    pub tls: Option<UpstreamTlsConfig>,
    /// Idle connections kept per server and worker.
    pub keepalive: usize,
    /// Per server, over all workers.
    pub max_connections: Option<u32>,
    pub dns_refresh: Duration,
    pub timeouts: UpstreamTimeouts,
    pub retries: RetryConfig,
    /// How long a server that comes, or comes back, takes to get its full share.
    pub slow_start: Option<Duration>,
    /// `None` = every server counts as up.
    pub health: Option<HealthConfig>,
    pub eject: Option<EjectConfig>,
}

#[derive(Debug, Clone)]
pub enum UpstreamKind {
    /// The built-in echo backend.
    Demo,
    Servers(Vec<UpstreamServerConfig>),
}

#[derive(Debug, Clone)]
pub struct UpstreamServerConfig {
    pub address: ServerAddress,
    pub tls: bool,
    /// At least 1.
    pub weight: u32,
    pub backup: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BalancePolicy {
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

#[derive(Debug, Clone)]
pub struct LocationConfig {
    /// As written, e.g. `= /x` or `~* \.gif$`: the name of the location in logs and metrics.
    pub name: String,
    pub path: PathRule,
    /// Empty = any.
    pub hosts: Vec<HostRule>,
    /// Empty = any.
    pub methods: Vec<Method>,
    pub action: ActionConfig,
    /// Indices into [`Config::limits`], in the order they are judged.
    pub limits: Vec<LimitId>,
    pub strip: Option<String>,
    pub host_header: HostHeader,
    pub request_headers: HeaderEdits,
    pub response_headers: HeaderEdits,
    /// Its own section over the top-level one.
    pub access: AccessConfig,
    pub on_reject: OnRejectPatch,
    pub timeout: Option<Duration>,
    pub bandwidth: Option<BandwidthConfig>,
}

/// How fast the bodies of answers leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BandwidthConfig {
    /// In bytes.
    pub rate: Rate,
    /// Bytes that leave at once from idle: at least what leaves within 10 ms.
    pub burst: u64,
    /// A missing part falls back to the ip.
    pub key: Vec<KeyPart>,
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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostRule {
    /// Lower case, no trailing dot, no port.
    Exact(String),
    /// `*.example.com` is kept as `.example.com`.
    Suffix(String),
}

#[derive(Debug, Clone)]
pub enum ActionConfig {
    /// Index into [`Config::upstreams`].
    Upstream(UpstreamId),
    Respond {
        status: StatusCode,
        body: TemplateConfig,
        content_type: HeaderValue,
    },
    Redirect {
        to: TemplateConfig,
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

#[derive(Debug, Clone)]
pub struct StateConfig {
    /// Where limits without a `state` of their own count, and bans.
    pub store: StoreConfig,
    /// Present when something counts there.
    pub redis: Option<RedisConfig>,
    /// Keys per limit and rate.
    pub max_keys: usize,
    /// Where local counters survive a restart.
    pub snapshot: Option<PathBuf>,
}

/// Where counters live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreConfig {
    Local,
    Redis,
}

/// What the names of all keys in Redis begin with where nothing else is written.
pub const DEFAULT_PREFIX: &str = "sg";

/// The Redis or Valkey that many gateways share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisConfig {
    pub servers: RedisServers,
    pub tls: bool,
    pub user: Option<Secret>,
    pub password: Option<Secret>,
    pub database: u32,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// For a whole decision.
    pub timeout: Duration,
    /// How many gateways a local share assumes at least, however few are known to live.
    pub nodes_at_least: u64,
}

/// Hosts without brackets, and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisServers {
    Single(String, u16),
    /// Those who know which server is the primary called `name`.
    Sentinel {
        sentinels: Vec<(String, u16)>,
        name: String,
    },
    /// Some nodes of a Cluster.
    Cluster(Vec<(String, u16)>),
}

#[derive(Debug, Clone)]
pub struct ReloadConfig {
    /// How often the files are looked at for changes; `None` = never.
    pub watch: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    pub listen: SocketAddr,
    pub token: Option<Secret>,
    /// Names that it may be called by, beside addresses and `localhost`, without a token.
    pub hosts: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct LogConfig {
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
pub struct AccessLogConfig {
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
