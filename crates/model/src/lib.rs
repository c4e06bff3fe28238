//! The content of a checked `gateway.yaml`, as types with every default filled in, with its values and its problems.
//!
//! A [`Config`] holds no `Option` that merely means "the default", so that its readers need not know the defaults.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

mod access;
mod account;
mod acme;
mod admin;
pub mod api_keys;
mod auth;
mod body_reading;
mod changed_limit;
mod charge;
pub mod diagnostics;
mod echoed_values;
mod id;
mod key;
mod limit;
mod limit_change;
mod listen;
mod location;
mod log;
mod members;
mod notify;
mod prices;
mod quota_step;
mod redis_range;
mod reject;
mod service;
mod shares;
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
pub use acme::*;
pub use admin::*;
pub use auth::*;
pub use body_reading::{BODY_PEEK_AUTO, BodyUse};
pub use charge::*;
pub use diagnostics::codes;
pub use diagnostics::problem::*;
pub use echoed_values::EchoedValue;
pub use id::*;
pub use key::*;
pub use limit::*;
pub use limit_change::*;
pub use listen::*;
pub use location::*;
pub use log::*;
pub use members::TierMembers;
pub use notify::*;
pub use prices::*;
pub use quota_step::*;
pub use redis_range::{check_leases, check_redis_range, in_lowest_terms_us};
pub use reject::*;
pub use service::*;
pub use shares::*;
pub use template::*;
pub use tls::*;
pub use token_keys::TokenKeys;
pub use traces::*;
pub use upstream::*;
pub use value::https_url::HttpsUrl;
pub use value::money::{Amount, Currency, format_millionths};
pub use value::names::is_tier_name;
pub use value::path_regex::PathRegex;
pub use value::scalars::{Parsed, Rate, Secret, read_duration};

/// One checked `gateway.yaml`.
#[derive(Debug, Clone)]
pub struct Config {
    /// The listeners of the server alone; see [`Config::all_listeners`].
    pub listen: Vec<ListenConfig>,
    /// The settings for all clients and locations.
    pub server: ServerConfig,
    /// The order is that of the file, followed by the URLs written inline in locations, named by their text.
    pub upstreams: Vec<UpstreamConfig>,
    /// The order is that of the file, followed by inline limits, named `LOCATION#POSITION` (counted from 1) unless they
    /// have a name, and by the shadows of all of them.
    pub limits: Vec<LimitConfig>,
    /// The locations, in the order of the file.
    pub locations: Vec<LocationConfig>,
    /// The named lists of networks, in the order of the file; [`NetworkList::sets`] has indices into them.
    pub ip_sets: Vec<IpSetConfig>,
    /// Rules for requests without a location, and the default of [`LocationConfig::access`].
    pub access: Arc<AccessConfig>,
    /// `None` = off.
    pub bans: Option<BansConfig>,
    /// The sources of the account and the tier of a request.
    pub account: AccountConfig,
    /// The top-level section alone; [`OnReject::merge_patch`] lays those of limits and locations over it.
    pub on_reject: OnReject,
    /// The place where limits and bans count.
    pub state: StateConfig,
    /// The settings for reloads without a signal.
    pub reload: ReloadConfig,
    /// The admin API; `None` = off.
    pub admin: Option<AdminConfig>,
    /// `None` = there is no rate-limit service.
    pub service: Option<ServiceConfig>,
    /// The log of the program itself.
    pub log: LogConfig,
    /// The log of requests.
    pub access_log: AccessLogConfig,
    /// The traces of requests.
    pub tracing: TracingConfig,
    /// The receiver of events; `None` = they are not sent.
    pub notify: Option<NotifyConfig>,
}

/// The `server` section: the settings for all clients and locations.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Worker threads; `auto` becomes the number of cores that the process may use.
    pub workers: usize,
    /// The peers that may tell the address, scheme and request id of a client; empty = none.
    pub trusted_proxies: Vec<IpNet>,
    /// The header with the client's address.
    pub client_ip: ClientIpConfig,
    /// The leading bits of an IPv6 address that tell clients apart, 1 to 128.
    pub ipv6_prefix: u8,
    /// The leading bits of an IPv4 address that tell clients apart, 1 to 32.
    pub ipv4_prefix: u8,
    /// Indices into [`Config::limits`]; these limits come before those of the location.
    pub limits: Vec<LimitId>,
    /// The limits of this chain that are used with other numbers.
    pub views: Vec<(LimitId, ViewId)>,
    /// Open connections; above it, new ones wait in the accept queue of the kernel.
    pub max_connections: usize,
    /// True if the file names `max_connections`.
    pub is_max_connections_written: bool,
    /// Open connections of one client; more are closed at once; `None` = no limit.
    pub connections_per_ip: Option<u32>,
    /// Requests on one connection, after which it ends; at least 1.
    pub keepalive_requests: u64,
    /// The age of a connection at which it ends; `None` = any.
    pub keepalive_age: Option<Duration>,
    /// Requests in all queues, and those with bodies that are being read; above it, a request that would have to wait
    /// gets 503.
    pub max_waiting: usize,
    /// Requests in flight, above which a request gets 503; `None` = no limit.
    pub max_in_flight: Option<usize>,
    /// Bytes.
    pub max_header_size: usize,
    /// Header fields of a request; more get 431.
    pub max_headers: usize,
    /// Bytes; `None` = no limit.
    pub max_body: Option<u64>,
    /// Bytes.
    pub body_memory: u64,
    /// The times that a client may take.
    pub timeouts: ServerTimeouts,
    /// The header of the request id, which is taken over from trusted proxies, else made here.
    pub request_id: HeaderName,
    /// The treatment of request headers with an underscore in their names.
    pub underscore_headers: UnderscoreHeaders,
    /// Edits of every response, before those of its location.
    pub headers: HeaderEdits,
}

/// The `timeouts` section of the server.
#[derive(Debug, Clone)]
pub struct ServerTimeouts {
    /// The time from the first byte of a request's head to its end; then 408, or the connection is closed.
    pub header: Duration,
    /// The time between two requests on a connection, after which it is closed.
    pub idle: Duration,
    /// The longest gap between two reads of a request's body; then 408.
    pub body: Duration,
    /// The longest time in which a write to the client makes no progress.
    pub write: Duration,
    /// The time of the PROXY protocol and the TLS handshake together.
    pub handshake: Duration,
    /// The pause between the signal to stop and the end of accepting.
    pub drain: Duration,
    /// The time that requests in flight have to end when the program stops, after `drain`.
    pub shutdown: Duration,
}

/// The treatment of request headers with an underscore in their names, except names that the file mentions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderscoreHeaders {
    /// The headers are not forwarded.
    Drop,
    /// Other spellings of protected names are dropped all the same.
    Pass,
}

/// The header in which a trusted proxy passes the client's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientIpConfig {
    /// `X-Forwarded-For`: the right-most address that is not of a trusted proxy counts.
    XForwardedFor,
    /// `Forwarded` (RFC 7239), read in the same way.
    Forwarded,
    /// A header with that name, read as `X-Forwarded-For`.
    Header(HeaderName),
}

/// A group of servers that requests are forwarded to.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// The name in the file; the text of the URL for one written inline.
    pub name: String,
    /// The team whose file defines it; `None` also of one written inline.
    pub owner: Option<Arc<str>>,
    /// The servers, or the built-in backend.
    pub kind: UpstreamKind,
    /// The choice among the servers.
    pub balance: BalancePolicy,
    /// The cookie that leads a client to the same server; `None` = `balance` chooses for each request.
    pub sticky: Option<StickyConfig>,
    /// The HTTP version for the servers.
    pub protocol: UpstreamProtocol,
    /// Each connection to a server begins with a PROXY header of version 2.
    pub proxy_protocol: bool,
    /// `Some` if the servers are `https://`, which then holds for all of them.
    pub tls: Option<UpstreamTlsConfig>,
    /// Idle connections kept per server and worker.
    pub keepalive: usize,
    /// The maximum per server, over all workers.
    pub max_connections: Option<u32>,
    /// `None` = a request that finds every server at `max_connections` does not wait.
    pub queue: Option<ServerQueueConfig>,
    /// The interval at which host names are resolved again.
    pub dns_refresh: Duration,
    /// The times that a server may take.
    pub timeouts: UpstreamTimeouts,
    /// Further tries of failed requests; [`RetryConfig::OFF`] = none.
    pub retries: RetryConfig,
    /// The time in which a new or recovered server rises to its full share.
    pub slow_start: Option<Duration>,
    /// `None` = every server counts as up.
    pub health: Option<HealthConfig>,
    /// Ejection of a server after errors in a row; `None` = off.
    pub eject: Option<EjectConfig>,
    /// Stops that responses of the upstream ask for; `None` = off.
    pub obey: Option<ObeyConfig>,
}

impl UpstreamConfig {
    /// True if its cookies are sealed with a secret that the gateway chooses.
    pub fn has_auto_secret(&self) -> bool {
        self.sticky.as_ref().is_some_and(|sticky| sticky.secret.is_none())
    }
}

/// The destinations of an upstream.
#[derive(Debug, Clone)]
pub enum UpstreamKind {
    /// The built-in echo backend.
    Demo,
    /// The servers in the order of the file, at least one.
    Servers(Vec<UpstreamServerConfig>),
}

/// One server of an upstream.
#[derive(Debug, Clone)]
pub struct UpstreamServerConfig {
    /// The address that connections go to.
    pub address: ServerAddress,
    /// True for `https://`.
    pub tls: bool,
    /// The minimum is 1.
    pub weight: u32,
    /// True if the server gets requests only while no other one is available.
    pub backup: bool,
}

/// The choice among the usable servers of an upstream, by their weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BalancePolicy {
    /// The less busy of two servers drawn at random.
    P2c,
    /// Smooth weighted turns, as in nginx.
    RoundRobin,
    /// The server with the fewest requests; equal ones share by weight.
    LeastConn,
    /// A draw by weight.
    Random,
    /// The same server for the same client, told apart as limits do.
    HashIp,
    /// The same server for the same path, without its query.
    HashUri,
    /// The same server for the same value of that header; requests without it go to one server.
    HashHeader(HeaderName),
}

impl BalancePolicy {
    /// True if a value of the request chooses the server.
    pub fn hashes(&self) -> bool {
        matches!(self, BalancePolicy::HashIp | BalancePolicy::HashUri | BalancePolicy::HashHeader(_))
    }
}

/// A location: the requests that it takes, and the actions on them.
#[derive(Debug, Clone)]
pub struct LocationConfig {
    /// The label in logs and metrics: the name in the file, else the path as written.
    pub name: String,
    /// The team whose file defines it.
    pub owner: Option<Arc<str>>,
    /// The path as written, e.g. `= /x` or `~* \.gif$`.
    pub written_path: String,
    /// The rule that paths of requests must match.
    pub path: PathRule,
    /// Empty = any.
    pub hosts: Vec<HostRule>,
    /// Empty = any.
    pub methods: Vec<Method>,
    /// `None` = any.
    pub scheme: Option<Scheme>,
    /// Names of listeners; empty = any.
    pub listeners: Vec<String>,
    /// All of them must hold; empty = none.
    pub when: Vec<ConditionConfig>,
    /// The action on its requests: forward, respond or redirect.
    pub action: ActionConfig,
    /// Indices into [`Config::limits`], in the order of evaluation.
    pub limits: Vec<LimitId>,
    /// The limits of this chain that are used with other numbers.
    pub views: Vec<(LimitId, ViewId)>,
    /// The beginning of the path that is removed before forwarding; `None` = nothing.
    pub strip: Option<String>,
    /// The change of the path after that; `None` = none.
    pub rewrite: Option<RewriteConfig>,
    /// The beginning that the path gets at last; `None` = none.
    pub add_prefix: Option<String>,
    /// The `Host` of forwarded requests.
    pub host_header: HostHeader,
    /// Edits of forwarded requests.
    pub request_headers: HeaderEdits,
    /// Edits of responses, after those of [`ServerConfig::headers`].
    pub response_headers: HeaderEdits,
    /// The location's own section laid over the top-level one.
    pub access: Arc<AccessConfig>,
    /// False if its requests have no account, whatever they present.
    pub reads_account: bool,
    /// The location's own section, which goes over that of the rejecting limit.
    pub on_reject: OnRejectPatch,
    /// The time of a whole request, queues included; then 504, or 503 while it still waits; `None` = no bound.
    pub timeout: Option<Duration>,
    /// The pace of response bodies from upstreams; `None` = as fast as they come.
    pub bandwidth: Option<BandwidthConfig>,
    /// The bytes of a request body that are read before its limits are judged, if they read it; `None` = auto.
    pub body_peek: Option<u64>,
    /// Bytes of a request body, by default as in [`ServerConfig::max_body`]; `None` = no limit.
    pub max_body: Option<u64>,
    /// `None` = preflights are ordinary requests, and responses have no fields for scripts of other origins.
    pub cors: Option<CorsConfig>,
    /// The service that decides on its requests; `None` = none is asked.
    pub auth: Option<AuthConfig>,
}

/// The paths that a location takes.
#[derive(Debug, Clone)]
pub enum PathRule {
    /// `= /p`: this path alone.
    Exact(String),
    /// `no_regex` is nginx's `^~`.
    Prefix {
        /// The beginning of the paths.
        path: String,
        /// True if regular expressions are not tried after this prefix.
        no_regex: bool,
    },
    /// Compiled while the file is read, so that a bad pattern is a configuration error.
    Regex(PathRegex),
}

/// A host that a location takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostRule {
    /// The host in lower case, without trailing dot and port.
    Exact(String),
    /// `*.example.com` is stored as `.example.com`.
    Suffix(String),
}

/// The treatment of a request that its limits admit.
#[derive(Debug, Clone)]
pub enum ActionConfig {
    /// Index into [`Config::upstreams`].
    Upstream(UpstreamId),
    /// The gateway answers.
    Respond {
        /// The status, from 200.
        status: StatusCode,
        /// The body, with variables.
        body: TemplateConfig,
        /// The `Content-Type`, `text/plain` unless the file has another.
        content_type: HeaderValue,
    },
    /// The gateway redirects.
    Redirect {
        /// The text of the `Location` field, with variables; never empty.
        to: TemplateConfig,
        /// The status: 301, 302, 303, 307 or 308.
        status: StatusCode,
    },
    /// The gateway tells the caller what is left.
    Usage {
        /// The limits that it tells of, in the order of the file; `None` = all that count callers.
        limits: Option<Vec<LimitId>>,
    },
}

/// The `Host` of forwarded requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostHeader {
    /// The host of the client's request.
    Client,
    /// The host of the server that the request goes to.
    Upstream,
    /// This value.
    Fixed(HeaderValue),
}

/// The `state` section: the place where limits and bans count.
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
        /// The memory of this process.
        Local = "local",
        /// Redis or Valkey, which counts for several gateways.
        Redis = "redis",
        /// The same; gateways take units of limits in advance, where that is possible.
        Leased = "leased",
    }
}

/// The default of [`RedisConfig::prefix`].
pub const DEFAULT_PREFIX: &str = "sg";

/// The Redis or Valkey that several gateways share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisConfig {
    /// The servers of the URL.
    pub servers: RedisServers,
    /// True for `rediss://`.
    pub tls: bool,
    /// The authorities and the certificate for TLS; used only if `tls` is true.
    pub tls_files: RedisTlsFiles,
    /// The user of the URL; `None` = the default user.
    pub user: Option<Secret>,
    /// The password of the URL; `None` = no authentication.
    pub password: Option<Secret>,
    /// The number of the database, 0 unless the URL has another; a Cluster has 0 alone.
    pub database: u32,
    /// The prefix of all key names.
    pub prefix: String,
    /// The deadline of one decision.
    pub timeout: Duration,
    /// A local share assumes at least this number of gateways, even if fewer are known to be alive.
    pub nodes_at_least: u64,
    /// The Redis from which this one leases units of limits; `None` = it counts for itself.
    pub home: Option<Box<RedisHome>>,
}

/// The home of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisHome {
    /// The Redis of the home.
    pub redis: RedisConfig,
    /// The part of each leased limit, in millionths, that the region has while the home does not answer.
    pub share: u32,
}

/// Hosts without brackets, and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisServers {
    /// One server.
    Single(String, u16),
    /// Sentinels that know the server of the primary `name`.
    Sentinel {
        /// The host and port of each Sentinel.
        sentinels: Vec<(String, u16)>,
        /// The name in `sentinel monitor`.
        name: String,
    },
    /// Some nodes of a Cluster.
    Cluster(Vec<(String, u16)>),
}

/// The `reload` section.
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

    /// The headers of answers of auth services, which no client may send.
    pub fn copied_headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.locations.iter().filter_map(|location| location.auth.as_ref()).flat_map(|auth| &auth.copy)
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
    /// The rank among locations with the same path: they are tried by rank, then in file order. Those with conditions
    /// come first. Of the others, narrower ones come before wider ones; listener and scheme outrank the method.
    pub fn match_rank(&self) -> [bool; 4] {
        let is_plain = self.when.is_empty();
        let rank = [true, self.listeners.is_empty(), self.scheme.is_none(), self.methods.is_empty()];
        rank.map(|is_later| is_plain && is_later)
    }

    /// The path, the same for locations that take the same paths.
    pub fn path_identity(&self) -> String {
        match &self.path {
            PathRule::Exact(path) => format!("={path}"),
            PathRule::Prefix { path, .. } => path.clone(),
            PathRule::Regex(_) => self.written_path.replace(' ', ""),
        }
    }

    /// The conditions, equal for locations whose conditions the same requests meet.
    pub fn when_identity(&self) -> Vec<String> {
        let mut conditions: Vec<String> = self.when.iter().map(ConditionConfig::identity).collect();
        conditions.sort_unstable();
        conditions
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
