//! Reads `upstreams`: the groups of servers that requests are forwarded to.

use std::collections::{HashMap, HashSet};
use std::net::Ipv6Addr;
use std::path::Path;
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::resilience;
use super::upstream_tls::UpstreamTlsReader;
use crate::config::UpstreamId;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{ValueError, did_you_mean};
use crate::config::model::tls::UpstreamProtocol;
use crate::config::model::upstream::{EjectConfig, RetryConfig, ServerAddress};
use crate::config::model::{
    BalancePolicy, UpstreamConfig, UpstreamKind, UpstreamServerConfig, UpstreamTimeouts,
};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::value::scalars::Parsed;
use crate::config::value::words::{parse_or_none, parse_word};
use crate::config::yaml::field_reader::FieldReader;
use crate::config::yaml::field_value::FieldValue;
use crate::config::yaml::tree::NodeContent;

/// The name of the built-in echo backend.
const DEMO: &str = "demo";

/// The prefix of a server's address on a unix socket.
const UNIX: &str = "unix:";

/// The upstreams read so far; locations and `degrade` add `demo` and those that they name by URL.
pub(crate) struct UpstreamReader<'a> {
    list: Vec<UpstreamConfig>,
    by_name: HashMap<String, UpstreamId>,
    /// The defined ones, for warnings about unused ones.
    defined: Vec<(UpstreamId, FieldValue<'a>)>,
    used: HashSet<UpstreamId>,
    tls_reader: UpstreamTlsReader,
}

impl<'a> UpstreamReader<'a> {
    /// Relative paths of certificates and keys start at `folder`.
    pub fn read_upstreams(root: &mut FieldReader<'a>, folder: &Path) -> UpstreamReader<'a> {
        let mut upstreams = UpstreamReader {
            list: Vec::new(),
            by_name: HashMap::new(),
            defined: Vec::new(),
            used: HashSet::new(),
            tls_reader: UpstreamTlsReader::new(folder.to_path_buf()),
        };
        for (key, value) in root.get_field("upstreams").map(|value| value.entries()).unwrap_or_default() {
            if key.name == DEMO {
                value.report_at_name(
                    ValueError::new(codes::NAME, "the name `demo` belongs to the built-in echo backend")
                        .with_help("use another name; upstream: demo works without a definition"),
                );
                continue;
            }
            if let Err(error) = names::check_name(&key.name) {
                value.report_at_name(error);
            }
            let upstream = read_upstream(&key.name, &value, &upstreams.tls_reader);
            let index = upstreams.add_upstream(upstream);
            upstreams.defined.push((index, value));
        }
        upstreams
    }

    fn add_upstream(&mut self, upstream: UpstreamConfig) -> UpstreamId {
        let index = UpstreamId(self.list.len());
        self.by_name.entry(upstream.name.clone()).or_insert(index);
        self.list.push(upstream);
        index
    }

    /// The upstream that a value names by its name, a URL or a unix socket.
    pub fn resolve_name(&mut self, value: &FieldValue<'_>) -> Option<UpstreamId> {
        let text = value.parse_with(|text| Ok(text.to_owned()))?;
        let index = match self.by_name.get(&text) {
            Some(index) => *index,
            None if text == DEMO => {
                self.add_upstream(UpstreamConfig { kind: UpstreamKind::Demo, ..default_upstream(DEMO) })
            }
            None if text.contains("://") || text.starts_with(UNIX) => {
                let kind = UpstreamKind::Servers(vec![value.parse_with(parse_server)?]);
                let tls = self.tls_reader.read_tls(&kind, None, value);
                self.add_upstream(UpstreamConfig { kind, tls, ..default_upstream(&text) })
            }
            None => {
                let shown = value.written_text();
                let known = self.by_name.keys().map(String::as_str).chain([DEMO]);
                let help = if text.contains(':') {
                    Some(format!("a server written here needs its scheme: http://{shown}"))
                } else {
                    did_you_mean(&text, known)
                        .or_else(|| Some(format!("define it under upstreams: {shown}: [127.0.0.1:9000]")))
                };
                value.report_at_value(
                    ValueError::new(codes::UNDEFINED, format!("the upstream `{shown}` is not defined"))
                        .with_optional_help(help),
                );
                return None;
            }
        };
        self.used.insert(index);
        Some(index)
    }

    /// All upstreams; unused ones get a warning.
    pub fn into_upstreams(self) -> Vec<UpstreamConfig> {
        for (index, value) in &self.defined {
            if !self.used.contains(index) {
                let message = format!("the upstream `{}` is defined and never used", self.list[*index].name);
                value.sink.add_warning(value.named_at, &value.path, ValueError::new(codes::UNUSED, message));
            }
        }
        self.list
    }
}

/// An upstream with every default and no servers.
fn default_upstream(name: &str) -> UpstreamConfig {
    let seconds = Duration::from_secs;
    UpstreamConfig {
        name: name.to_owned(),
        kind: UpstreamKind::Servers(Vec::new()),
        balance: BalancePolicy::P2c,
        protocol: UpstreamProtocol::Auto,
        tls: None,
        keepalive: 128,
        max_connections: None,
        dns_refresh: seconds(30),
        timeouts: UpstreamTimeouts {
            connect: seconds(2),
            response: seconds(60),
            body: seconds(60),
            idle: seconds(60),
        },
        retries: RetryConfig::default(),
        slow_start: None,
        health: None,
        eject: Some(EjectConfig::default()),
    }
}

fn read_upstream(name: &str, value: &FieldValue<'_>, tls_reader: &UpstreamTlsReader) -> UpstreamConfig {
    let upstream = default_upstream(name);
    match value.node.content {
        NodeContent::Map(_) => read_fields(upstream, value.field_reader(), tls_reader),
        _ => {
            let kind = UpstreamKind::Servers(read_servers(value));
            let tls = tls_reader.read_tls(&kind, None, value);
            UpstreamConfig { kind, tls, ..upstream }
        }
    }
}

fn read_fields(
    mut upstream: UpstreamConfig,
    mut fields: FieldReader<'_>,
    tls_reader: &UpstreamTlsReader,
) -> UpstreamConfig {
    match fields.get_field("servers") {
        Some(value) => {
            upstream.kind = UpstreamKind::Servers(read_servers(&value));
            upstream.tls = tls_reader.read_tls(&upstream.kind, fields.get_field("tls").as_ref(), &value);
        }
        None => {
            fields.get_field("tls");
            fields.report_missing("servers", "write e.g. servers: [10.0.0.1:9000]");
        }
    }
    upstream.balance = fields.read_scalar("balance", BalancePolicy::P2c, parse_balance);
    upstream.protocol = fields.read_scalar("protocol", upstream.protocol, parse_protocol);
    upstream.keepalive =
        fields.read_scalar("keepalive", upstream.keepalive, |text| scalars::parse_count(text, 0, 1_000_000));
    upstream.max_connections =
        fields.read_scalar("max_connections", None, parse_or_none(scalars::parse_count_u32));
    upstream.dns_refresh =
        fields.read_scalar("dns_refresh", upstream.dns_refresh, scalars::parse_nonzero_duration);
    if let Some(mut timeouts) = fields.open_section("timeouts") {
        let defaults = upstream.timeouts.clone();
        upstream.timeouts = UpstreamTimeouts {
            connect: timeouts.read_scalar("connect", defaults.connect, scalars::parse_nonzero_duration),
            response: timeouts.read_scalar("response", defaults.response, scalars::parse_nonzero_duration),
            body: timeouts.read_scalar("body", defaults.body, scalars::parse_nonzero_duration),
            idle: timeouts.read_scalar("idle", defaults.idle, scalars::parse_nonzero_duration),
        };
        timeouts.report_unknown();
    }
    resilience::read_resilience(&mut fields, &mut upstream);
    fields.report_unknown();
    upstream
}

fn read_servers(value: &FieldValue<'_>) -> Vec<UpstreamServerConfig> {
    let items = value.one_or_more();
    let servers: Vec<UpstreamServerConfig> = items.iter().filter_map(read_server).collect();
    if value.is_empty() {
        value.report_empty("write e.g. [10.0.0.1:9000, 10.0.0.2:9000]");
    }
    if servers.len() == items.len() && !servers.is_empty() && servers.iter().all(|server| server.backup) {
        value.report_at_name(
            ValueError::new(codes::MISSING, "every server is a backup")
                .with_help("leave at least one without backup: true"),
        );
    }
    servers
}

fn read_server(item: &FieldValue<'_>) -> Option<UpstreamServerConfig> {
    if !matches!(item.node.content, NodeContent::Map(_)) {
        return item.parse_with(parse_server);
    }
    let mut fields = item.field_reader();
    let url = fields.get_field("url");
    if url.is_none() {
        fields.report_missing("url", "write { url: \"http://10.0.0.1:9000\", weight: 2 }");
    }
    let weight = fields.read_scalar("weight", 1, |text| scalars::parse_number(text, 1, 65_535));
    let backup = fields.read_scalar("backup", false, scalars::parse_bool);
    fields.report_unknown();
    let server = url?.parse_with(parse_server)?;
    Some(UpstreamServerConfig { weight: weight as u32, backup, ..server })
}

/// `unix:/path`, or a form of [`parse_tcp_server`].
fn parse_server(text: &str) -> Parsed<UpstreamServerConfig> {
    if let Some(path) = text.strip_prefix(UNIX) {
        return parse_unix_server(path);
    }
    let after_scheme = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    if let Some(path) = after_scheme.and_then(|rest| rest.strip_prefix(UNIX)) {
        let message = "a unix socket has no scheme";
        return Err(ValueError::new(codes::ADDRESS, message).with_help(format!("write unix:{path}")));
    }
    parse_tcp_server(text)
}

fn parse_unix_server(path: &str) -> Parsed<UpstreamServerConfig> {
    if path.contains(char::is_control) {
        return Err(ValueError::new(codes::ADDRESS, "the path of a server's socket has control characters"));
    }
    let address = ServerAddress::Unix(names::parse_unix_path(path)?);
    Ok(UpstreamServerConfig { address, tls: false, weight: 1, backup: false })
}

/// `host:port`, `http://host[:port]` or `https://host[:port]`.
fn parse_tcp_server(text: &str) -> Parsed<UpstreamServerConfig> {
    let wrong = |message: String| ValueError::new(codes::ADDRESS, message);
    let tls = text.starts_with("https://");
    let (authority, default_port) = match text.split_once("://") {
        Some(("http", rest)) => (rest.strip_suffix('/').unwrap_or(rest), Some(80)),
        Some(("https", rest)) => (rest.strip_suffix('/').unwrap_or(rest), Some(443)),
        Some((scheme, _)) => {
            return Err(wrong(format!("`{scheme}://` is not a scheme of a server"))
                .with_help("write http://host:port or https://host:port"));
        }
        None => (text, None),
    };
    if authority.contains(['/', '?', '#']) {
        return Err(wrong(format!("the server `{text}` has a path"))
            .with_help("a server is a scheme, a host and a port; use strip to change paths"));
    }
    if authority.contains('@') {
        return Err(wrong("a server's address has no user name or password".to_owned()));
    }
    let (host, port) = match (names::split_host_port(authority), default_port) {
        (Some((host, digits)), _) => (host, names::parse_port(digits)?),
        (None, Some(port)) => (authority.trim_start_matches('[').trim_end_matches(']'), port),
        (None, None) => {
            return Err(wrong(format!("the server `{text}` has no port"))
                .with_help(format!("write {text}:80 or http://{text}")));
        }
    };
    if port == 0 {
        return Err(wrong(format!("the server `{text}` has port 0")));
    }
    let bracketed = authority.starts_with('[');
    let host = if bracketed {
        host.parse::<Ipv6Addr>().map(|address| address.to_string()).map_err(|_| ())
    } else {
        names::parse_host_name(host).map_err(|_| ())
    };
    let host = host.map_err(|()| {
        wrong(format!("`{text}` does not name a host")).with_help("write host:port or [IPv6]:port")
    })?;
    if tls && ServerName::try_from(host.as_str()).is_err() {
        return Err(wrong(format!("`{text}` does not name a host that a certificate can have")));
    }
    Ok(UpstreamServerConfig { address: ServerAddress::Tcp { host, port }, tls, weight: 1, backup: false })
}

fn parse_protocol(text: &str) -> Parsed<UpstreamProtocol> {
    parse_word(&[
        ("auto", UpstreamProtocol::Auto),
        ("http1", UpstreamProtocol::Http1),
        ("http2", UpstreamProtocol::Http2),
    ])(text)
}

fn parse_balance(text: &str) -> Parsed<BalancePolicy> {
    if let Some(name) = text.strip_prefix("hash:header:") {
        return names::parse_header_name(name).map(BalancePolicy::HashHeader);
    }
    let kinds = [
        ("p2c", BalancePolicy::P2c),
        ("round_robin", BalancePolicy::RoundRobin),
        ("least_conn", BalancePolicy::LeastConn),
        ("random", BalancePolicy::Random),
        ("hash:ip", BalancePolicy::HashIp),
        ("hash:uri", BalancePolicy::HashUri),
        ("hash:header:NAME", BalancePolicy::P2c),
    ];
    parse_word(&kinds)(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_server() {
        let read = |text: &str| parse_server(text).map(|server| server.address.to_string()).unwrap();
        assert_eq!(read("10.0.0.1:9000"), "10.0.0.1:9000");
        assert_eq!(read("http://App.internal"), "app.internal:80");
        assert_eq!(read("http://app:8080/"), "app:8080");
        assert_eq!(read("[::1]:9000"), "[::1]:9000");
        assert_eq!(read("http://[::1]"), "[::1]:80");
        assert_eq!(read("unix:/run/App.sock"), "unix:/run/App.sock");
        let too_long = format!("unix:/{}", "x".repeat(107));
        for wrong in [
            "10.0.0.1",
            "http://a/b",
            "http://u:p@a",
            "ftp://a",
            "a:0",
            "a:99999",
            "a b:80",
            "::1:80",
            "http://",
            "[x]:80",
            "unix:",
            "unix:app.sock",
            "unix:@app",
            "unix:/run/a\nb",
            &too_long,
            "http://unix:/run/app.sock",
            "https://unix:/run/app.sock",
        ] {
            assert_eq!(parse_server(wrong).unwrap_err().code, codes::ADDRESS, "{wrong}");
        }
        let secure = parse_server("https://[::1]").unwrap();
        assert_eq!((secure.address.to_string().as_str(), secure.tls), ("[::1]:443", true));
        assert!(!parse_server("http://https:1").unwrap().tls);
    }

    #[test]
    fn kinds_of_balance() {
        assert_eq!(parse_balance("least_conn").unwrap(), BalancePolicy::LeastConn);
        assert!(
            matches!(parse_balance("hash:header:X-A").unwrap(), BalancePolicy::HashHeader(name) if name == "x-a")
        );
        assert_eq!(
            parse_balance("least-conn").unwrap_err().suggestion.unwrap(),
            "did you mean `least_conn`?"
        );
    }
}
