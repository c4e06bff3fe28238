//! `upstreams`: the groups of servers that requests are forwarded to.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::path::Path;
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::failures;
use super::server::{count, count_u32};
use super::upstream_tls::Grounds;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Complaint, did_you_mean};
use crate::config::model::tls::Protocol;
use crate::config::model::upstream::{Eject, Retries, ServerAddress};
use crate::config::model::{Balance, Upstream, UpstreamKind, UpstreamServer, UpstreamTimeouts};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::value::scalars::Read;
use crate::config::yaml::fields::{Fields, Value, or_none, word};
use crate::config::yaml::tree::Content;

/// The name of the built-in echo backend.
const DEMO: &str = "demo";

/// What the address of a server on a unix socket begins with.
const UNIX: &str = "unix:";

/// The upstreams read so far; locations and `degrade` add the ones they name by URL, and `demo`.
pub(crate) struct Upstreams<'a> {
    list: Vec<Upstream>,
    by_name: HashMap<String, usize>,
    /// Defined ones, to tell which of them nobody uses.
    defined: Vec<(usize, Value<'a>)>,
    used: Vec<usize>,
    grounds: Grounds,
}

impl<'a> Upstreams<'a> {
    /// Relative paths of certificates and keys start at `folder`.
    pub fn read(root: &mut Fields<'a>, folder: &Path) -> Upstreams<'a> {
        let mut upstreams = Upstreams {
            list: Vec::new(),
            by_name: HashMap::new(),
            defined: Vec::new(),
            used: Vec::new(),
            grounds: Grounds::new(folder.to_path_buf()),
        };
        for (key, value) in root.get("upstreams").map(|value| value.entries()).unwrap_or_default() {
            if key.name == DEMO {
                value.complain_at_name(
                    Complaint::new(codes::NAME, "the name `demo` belongs to the built-in echo backend")
                        .help("use another name; upstream: demo works without a definition"),
                );
                continue;
            }
            if let Err(complaint) = names::given_name(&key.name) {
                value.complain_at_name(complaint);
            }
            let upstream = read_one(&key.name, &value, &upstreams.grounds);
            let index = upstreams.add(upstream);
            upstreams.defined.push((index, value));
        }
        upstreams
    }

    fn add(&mut self, upstream: Upstream) -> usize {
        let index = self.list.len();
        self.by_name.entry(upstream.name.clone()).or_insert(index);
        self.list.push(upstream);
        index
    }

    /// The upstream that a value names, by its name, by a URL or by a unix socket.
    pub fn resolve(&mut self, value: &Value<'_>) -> Option<usize> {
        let text = value.read(|text| Ok(text.to_owned()))?;
        let index = match self.by_name.get(&text) {
            Some(index) => *index,
            None if text == DEMO => self.add(Upstream { kind: UpstreamKind::Demo, ..bare(DEMO) }),
            None if text.contains("://") || text.starts_with(UNIX) => {
                let kind = UpstreamKind::Servers(vec![value.read(server_address)?]);
                let tls = self.grounds.read(&kind, None, value);
                self.add(Upstream { kind, tls, ..bare(&text) })
            }
            None => {
                let shown = value.shown();
                let known = self.by_name.keys().map(String::as_str).chain([DEMO]);
                let help = if text.contains(':') {
                    Some(format!("a server written here needs its scheme: http://{shown}"))
                } else {
                    did_you_mean(&text, known)
                        .or_else(|| Some(format!("define it under upstreams: {shown}: [127.0.0.1:9000]")))
                };
                value.complain(
                    Complaint::new(codes::UNDEFINED, format!("the upstream `{shown}` is not defined"))
                        .maybe_help(help),
                );
                return None;
            }
        };
        self.used.push(index);
        Some(index)
    }

    /// All upstreams; those that nobody names are warned of.
    pub fn finish(self) -> Vec<Upstream> {
        for (index, value) in &self.defined {
            if !self.used.contains(index) {
                let message = format!("the upstream `{}` is defined and never used", self.list[*index].name);
                value.found.warn(value.named_at, &value.path, Complaint::new(codes::UNUSED, message));
            }
        }
        self.list
    }
}

/// An upstream with every default and no server.
fn bare(name: &str) -> Upstream {
    let seconds = Duration::from_secs;
    Upstream {
        name: name.to_owned(),
        kind: UpstreamKind::Servers(Vec::new()),
        balance: Balance::P2c,
        protocol: Protocol::Auto,
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
        retries: Retries::default(),
        slow_start: None,
        health: None,
        eject: Some(Eject::default()),
    }
}

fn read_one(name: &str, value: &Value<'_>, grounds: &Grounds) -> Upstream {
    let upstream = bare(name);
    match value.node.content {
        Content::Map(_) => read_fields(upstream, value.fields(), grounds),
        _ => {
            let kind = UpstreamKind::Servers(read_servers(value));
            let tls = grounds.read(&kind, None, value);
            Upstream { kind, tls, ..upstream }
        }
    }
}

fn read_fields(mut upstream: Upstream, mut fields: Fields<'_>, grounds: &Grounds) -> Upstream {
    match fields.get("servers") {
        Some(value) => {
            upstream.kind = UpstreamKind::Servers(read_servers(&value));
            upstream.tls = grounds.read(&upstream.kind, fields.get("tls").as_ref(), &value);
        }
        None => {
            fields.get("tls");
            fields.missing("servers", "write e.g. servers: [10.0.0.1:9000]");
        }
    }
    upstream.balance = fields.read("balance", Balance::P2c, balance);
    upstream.protocol = fields.read("protocol", upstream.protocol, protocol);
    upstream.keepalive = fields.read("keepalive", upstream.keepalive, |text| count(text, 0, 1_000_000));
    upstream.max_connections = fields.read("max_connections", None, or_none(count_u32));
    upstream.dns_refresh = fields.read("dns_refresh", upstream.dns_refresh, scalars::span);
    if let Some(mut timeouts) = fields.section("timeouts") {
        let defaults = upstream.timeouts.clone();
        upstream.timeouts = UpstreamTimeouts {
            connect: timeouts.read("connect", defaults.connect, scalars::span),
            response: timeouts.read("response", defaults.response, scalars::span),
            body: timeouts.read("body", defaults.body, scalars::span),
            idle: timeouts.read("idle", defaults.idle, scalars::span),
        };
        timeouts.close();
    }
    failures::read(&mut fields, &mut upstream);
    fields.close();
    upstream
}

fn read_servers(value: &Value<'_>) -> Vec<UpstreamServer> {
    let items = value.one_or_more();
    let servers: Vec<UpstreamServer> = items.iter().filter_map(read_server).collect();
    if value.is_empty() {
        value.complain_of_nothing("write e.g. [10.0.0.1:9000, 10.0.0.2:9000]");
    }
    if servers.len() == items.len() && !servers.is_empty() && servers.iter().all(|server| server.backup) {
        value.complain_at_name(
            Complaint::new(codes::MISSING, "every server is a backup")
                .help("leave at least one without backup: true"),
        );
    }
    servers
}

fn read_server(item: &Value<'_>) -> Option<UpstreamServer> {
    if !matches!(item.node.content, Content::Map(_)) {
        return item.read(server_address);
    }
    let mut fields = item.fields();
    let url = fields.get("url");
    if url.is_none() {
        fields.missing("url", "write { url: \"http://10.0.0.1:9000\", weight: 2 }");
    }
    let weight = fields.read("weight", 1, |text| scalars::number(text, 1, 65_535));
    let backup = fields.read("backup", false, scalars::boolean);
    fields.close();
    let server = url?.read(server_address)?;
    Some(UpstreamServer { weight: weight as u32, backup, ..server })
}

/// `unix:/path`, and the forms of [`tcp_server`].
fn server_address(text: &str) -> Read<UpstreamServer> {
    if let Some(path) = text.strip_prefix(UNIX) {
        return unix_server(path);
    }
    let after_scheme = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    if let Some(path) = after_scheme.and_then(|rest| rest.strip_prefix(UNIX)) {
        let message = "a unix socket has no scheme";
        return Err(Complaint::new(codes::ADDRESS, message).help(format!("write unix:{path}")));
    }
    tcp_server(text)
}

fn unix_server(path: &str) -> Read<UpstreamServer> {
    if path.contains(char::is_control) {
        return Err(Complaint::new(codes::ADDRESS, "the path of a server's socket has control characters"));
    }
    let address = ServerAddress::Unix(names::unix_path(path)?);
    Ok(UpstreamServer { address, tls: false, weight: 1, backup: false })
}

/// `host:port`, `http://host[:port]` or `https://host[:port]`.
fn tcp_server(text: &str) -> Read<UpstreamServer> {
    let wrong = |message: String| Complaint::new(codes::ADDRESS, message);
    let tls = text.starts_with("https://");
    let (authority, default_port) = match text.split_once("://") {
        Some(("http", rest)) => (rest.strip_suffix('/').unwrap_or(rest), Some(80)),
        Some(("https", rest)) => (rest.strip_suffix('/').unwrap_or(rest), Some(443)),
        Some((scheme, _)) => {
            return Err(wrong(format!("`{scheme}://` is not a scheme of a server"))
                .help("write http://host:port or https://host:port"));
        }
        None => (text, None),
    };
    if authority.contains(['/', '?', '#']) {
        return Err(wrong(format!("the server `{text}` has a path"))
            .help("a server is a scheme, a host and a port; use strip to change paths"));
    }
    if authority.contains('@') {
        return Err(wrong("a server's address has no user name or password".to_owned()));
    }
    let (host, port) = match (names::split_port(authority), default_port) {
        (Some((host, digits)), _) => (host, names::port(digits)?),
        (None, Some(port)) => (authority.trim_start_matches('[').trim_end_matches(']'), port),
        (None, None) => {
            return Err(wrong(format!("the server `{text}` has no port"))
                .help(format!("write {text}:80 or http://{text}")));
        }
    };
    if port == 0 {
        return Err(wrong(format!("the server `{text}` has port 0")));
    }
    let bracketed = authority.starts_with('[');
    let host = if bracketed {
        host.parse::<Ipv6Addr>().map(|address| address.to_string()).map_err(|_| ())
    } else {
        names::host_name(host).map_err(|_| ())
    };
    let host = host.map_err(|()| {
        wrong(format!("`{text}` does not name a host")).help("write host:port or [IPv6]:port")
    })?;
    if tls && ServerName::try_from(host.as_str()).is_err() {
        return Err(wrong(format!("`{text}` does not name a host that a certificate can have")));
    }
    Ok(UpstreamServer { address: ServerAddress::Tcp { host, port }, tls, weight: 1, backup: false })
}

fn protocol(text: &str) -> Read<Protocol> {
    word(&[("auto", Protocol::Auto), ("http1", Protocol::Http1), ("http2", Protocol::Http2)])(text)
}

fn balance(text: &str) -> Read<Balance> {
    if let Some(name) = text.strip_prefix("hash:header:") {
        return names::header_name(name).map(Balance::HashHeader);
    }
    let kinds = [
        ("p2c", Balance::P2c),
        ("round_robin", Balance::RoundRobin),
        ("least_conn", Balance::LeastConn),
        ("random", Balance::Random),
        ("hash:ip", Balance::HashIp),
        ("hash:uri", Balance::HashUri),
        ("hash:header:NAME", Balance::P2c),
    ];
    word(&kinds)(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_server() {
        let read = |text: &str| server_address(text).map(|server| server.address.to_string()).unwrap();
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
            assert_eq!(server_address(wrong).unwrap_err().code, codes::ADDRESS, "{wrong}");
        }
        let secure = server_address("https://[::1]").unwrap();
        assert_eq!((secure.address.to_string().as_str(), secure.tls), ("[::1]:443", true));
        assert!(!server_address("http://https:1").unwrap().tls);
    }

    #[test]
    fn kinds_of_balance() {
        assert_eq!(balance("least_conn").unwrap(), Balance::LeastConn);
        assert!(matches!(balance("hash:header:X-A").unwrap(), Balance::HashHeader(name) if name == "x-a"));
        assert_eq!(balance("least-conn").unwrap_err().suggestion.unwrap(), "did you mean `least_conn`?");
    }
}
