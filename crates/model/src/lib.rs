//! The content of a checked `gateway.yaml`, as types with every default filled in, with its values and its problems.
//!
//! A [`Config`] holds no `Option` that merely means "the default", so that its readers need not know the defaults.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![warn(clippy::unwrap_used)]

mod access;
mod account;
mod admin;
mod body_reading;
mod charge;
pub mod diagnostics;
mod id;
mod key;
mod limit;
mod listen;
mod location;
mod log;
mod members;
mod redis_range;
mod reject;
mod service;
mod template;
mod tls;
mod token_keys;
mod traces;
mod upstream;
pub mod value;
mod view;

use std::ops::Index;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use ipnet::IpNet;

use sluicegate_base::labelled::labelled_enum;

pub use access::*;
pub use account::*;
pub use admin::*;
pub use body_reading::{BODY_PEEK_AUTO, BodyUse};
pub use charge::*;
pub use diagnostics::codes;
pub use diagnostics::problem::*;
pub use id::*;
pub use key::*;
pub use limit::*;
pub use listen::*;
pub use location::*;
pub use log::*;
pub use members::TierMembers;
pub use redis_range::{check_redis_range, in_lowest_terms_us};
pub use reject::*;
pub use service::*;
pub use template::*;
pub use tls::*;
pub use token_keys::TokenKeys;
pub use traces::*;
pub use upstream::*;
pub use value::names::is_tier_name;
pub use value::path_regex::PathRegex;
pub use value::scalars::{Parsed, Rate, Secret, read_duration};

/// One checked `gateway.yaml`.
#[derive(Debug, Clone)]
pub struct Config {
    /// The listeners of the server alone; see [`Config::all_listeners`].
    pub listen: Vec<ListenConfig>,
    pub server: ServerConfig,
    /// The order is that of the file, followed by the URLs written inline in locations, named by their text.
    pub upstreams: Vec<UpstreamConfig>,
    /// The order is that of the file, followed by inline limits, named `LOCATION#POSITION` (counted from 1) unless they
    /// have a name, and by the shadows of all of them.
    pub limits: Vec<LimitConfig>,
    pub locations: Vec<LocationConfig>,
    pub ip_sets: Vec<IpSetConfig>,
    /// Rules for requests without a location, and the default of [`LocationConfig::access`].
    pub access: Arc<AccessConfig>,
    /// `None` = off.
    pub bans: Option<BansConfig>,
    pub account: AccountConfig,
    /// The top-level section alone; [`OnReject::merge_patch`] lays those of limits and locations over it.
    pub on_reject: OnReject,
    pub state: StateConfig,
    pub reload: ReloadConfig,
    pub admin: Option<AdminConfig>,
    /// `None` = there is no rate-limit service.
    pub service: Option<ServiceConfig>,
    pub log: LogConfig,
    pub access_log: AccessLogConfig,
    pub tracing: TracingConfig,
}

#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Worker threads; `auto` becomes the number of cores that the process may use.
    pub workers: usize,
    pub trusted_proxies: Vec<IpNet>,
    pub client_ip: ClientIpConfig,
    pub ipv6_prefix: u8,
    pub ipv4_prefix: u8,
    /// Indices into [`Config::limits`]; these limits come before those of the location.
    pub limits: Vec<LimitId>,
    /// The limits of this chain that are used with other numbers.
    pub views: Vec<(LimitId, ViewId)>,
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
    /// Bytes.
    pub body_memory: u64,
    pub timeouts: ServerTimeouts,
    pub request_id: HeaderName,
    pub underscore_headers: UnderscoreHeaders,
    /// Edits of every response, before those of its location.
    pub headers: HeaderEdits,
}

#[derive(Debug, Clone)]
pub struct ServerTimeouts {
    pub header: Duration,
    pub idle: Duration,
    pub body: Duration,
    pub write: Duration,
    pub handshake: Duration,
    /// The pause between the signal to stop and the end of accepting.
    pub drain: Duration,
    pub shutdown: Duration,
}

/// The treatment of request headers with an underscore in their names, except names that the file mentions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderscoreHeaders {
    Drop,
    /// Other spellings of protected names are dropped all the same.
    Pass,
}

/// The header in which a trusted proxy passes the client's address.
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
    /// `Some` if the servers are `https://`, which then holds for all of them.
    pub tls: Option<UpstreamTlsConfig>,
    /// Idle connections kept per server and worker.
    pub keepalive: usize,
    /// The maximum per server, over all workers.
    pub max_connections: Option<u32>,
    /// `None` = a request that finds every server at `max_connections` does not wait.
    pub queue: Option<ServerQueueConfig>,
    pub dns_refresh: Duration,
    pub timeouts: UpstreamTimeouts,
    pub retries: RetryConfig,
    /// The time in which a new or recovered server rises to its full share.
    pub slow_start: Option<Duration>,
    /// `None` = every server counts as up.
    pub health: Option<HealthConfig>,
    pub eject: Option<EjectConfig>,
    pub obey: Option<ObeyConfig>,
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
    /// The minimum is 1.
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
pub struct LocationConfig {
    /// The label in logs and metrics: the name in the file, else the path as written.
    pub name: String,
    /// The path as written, e.g. `= /x` or `~* \.gif$`.
    pub written_path: String,
    pub path: PathRule,
    /// Empty = any.
    pub hosts: Vec<HostRule>,
    /// Empty = any.
    pub methods: Vec<Method>,
    /// `None` = any.
    pub scheme: Option<Scheme>,
    /// Names of listeners; empty = any.
    pub listeners: Vec<String>,
    pub action: ActionConfig,
    /// Indices into [`Config::limits`], in the order of evaluation.
    pub limits: Vec<LimitId>,
    /// The limits of this chain that are used with other numbers.
    pub views: Vec<(LimitId, ViewId)>,
    pub strip: Option<String>,
    pub host_header: HostHeader,
    pub request_headers: HeaderEdits,
    pub response_headers: HeaderEdits,
    /// The location's own section laid over the top-level one.
    pub access: Arc<AccessConfig>,
    pub on_reject: OnRejectPatch,
    pub timeout: Option<Duration>,
    pub bandwidth: Option<BandwidthConfig>,
    /// The bytes of a request body that are read before its limits are judged, if they read it; `None` = auto.
    pub body_peek: Option<u64>,
    /// `None` = preflights are ordinary requests, and responses have no fields for scripts of other origins.
    pub cors: Option<CorsConfig>,
}

#[derive(Debug, Clone)]
pub enum PathRule {
    Exact(String),
    /// `no_regex` is nginx's `^~`.
    Prefix {
        path: String,
        no_regex: bool,
    },
    /// Compiled while the file is read, so that a bad pattern is a configuration error.
    Regex(PathRegex),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostRule {
    /// The host in lower case, without trailing dot and port.
    Exact(String),
    /// `*.example.com` is stored as `.example.com`.
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

#[derive(Debug, Clone)]
pub struct StateConfig {
    /// The store of bans and of limits without their own `state`.
    pub store: StoreConfig,
    /// `Some` if a limit or the bans use it.
    pub redis: Option<RedisConfig>,
    /// Keys per limit and rate.
    pub max_keys: usize,
    /// The share of a limit's units by which the rates of its heaviest keys may be too low; `None` = no names are kept.
    pub heavy_hitters: Option<usize>,
    /// The file that keeps local counters across a restart.
    pub snapshot: Option<PathBuf>,
}

labelled_enum! {
    /// The store of counters.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum StoreConfig: as_str -> &'static str {
        Local = "local",
        Redis = "redis",
    }
}

/// The default of [`RedisConfig::prefix`].
pub const DEFAULT_PREFIX: &str = "sg";

/// The Redis or Valkey that several gateways share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisConfig {
    pub servers: RedisServers,
    pub tls: bool,
    pub tls_files: RedisTlsFiles,
    pub user: Option<Secret>,
    pub password: Option<Secret>,
    pub database: u32,
    /// The prefix of all key names.
    pub prefix: String,
    /// The deadline of one decision.
    pub timeout: Duration,
    /// A local share assumes at least this number of gateways, even if fewer are known to be alive.
    pub nodes_at_least: u64,
}

/// Hosts without brackets, and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisServers {
    Single(String, u16),
    /// Sentinels that know the server of the primary `name`.
    Sentinel {
        sentinels: Vec<(String, u16)>,
        name: String,
    },
    /// Some nodes of a Cluster.
    Cluster(Vec<(String, u16)>),
}

#[derive(Debug, Clone)]
pub struct ReloadConfig {
    /// The interval between checks of the files for changes; `None` = never.
    pub watch: Option<Duration>,
}

impl Config {
    /// The limits of the file, without the shadows that follow them.
    pub fn declared_limits(&self) -> Vec<LimitId> {
        let all = (0..self.limits.len()).map(LimitId);
        all.filter(|limit| self.limits[*limit].shadow_of.is_none()).collect()
    }

    /// The limits that judge the requests of a chain: each is followed by its shadow.
    pub fn with_shadows<'a>(
        &self,
        chain: impl IntoIterator<Item = &'a LimitId>,
    ) -> impl Iterator<Item = LimitId> {
        chain.into_iter().flat_map(|&limit| std::iter::once(limit).chain(self.limits[limit].shadow))
    }
}

impl LocationConfig {
    /// The rank among locations with the same path: they are tried by rank, then in file order. Narrower ones come
    /// before wider ones; listener and scheme outrank the method.
    pub fn match_rank(&self) -> (bool, bool, bool) {
        (self.listeners.is_empty(), self.scheme.is_none(), self.methods.is_empty())
    }
}

/// Lists of the configuration take positions of their own type.
macro_rules! index_by {
    ($($id:ident => $item:ident),*) => {$(
        impl Index<$id> for Vec<$item> {
            type Output = $item;

            fn index(&self, $id(position): $id) -> &$item {
                &self[position]
            }
        }
    )*};
}
index_by!(LimitId => LimitConfig, LocationId => LocationConfig, UpstreamId => UpstreamConfig);
