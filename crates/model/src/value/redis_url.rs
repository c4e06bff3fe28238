//! Parses `state.redis.url`: the URL of a server, of Sentinels, or of some nodes of a Cluster.
//!
//! No message quotes any part of a URL, because a mistyped part may be a password.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::names;
use super::scalars::{Parsed, Secret};
use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;
use crate::tls::RedisTlsFiles;
use crate::{DEFAULT_PREFIX, RedisConfig, RedisServers};
use sluicegate_base::escape;

/// The parts of one URL.
struct UrlParts<'a> {
    tls: bool,
    sentinel: bool,
    user: Option<Secret>,
    password: Option<Secret>,
    hosts: &'a str,
    /// The path without its first slash.
    path: &'a str,
}

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const FORMS: &str = "write redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss:// for TLS, \
                     redis+sentinel://HOST,HOST/NAME, or a list of redis:// URLs for a Cluster";
const ESCAPES: &str =
    "in a user or password write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23, % as %25";

/// An error with the code of `state.redis`; the message must not quote the URL.
pub fn url_error(message: &str) -> ValueError {
    ValueError::new(codes::REDIS, message)
}

/// One server, or Sentinels. The fields that no URL has are those of a file without them.
pub fn parse_server_url(text: &str) -> Parsed<RedisConfig> {
    let url = UrlParts::split_url(text)?;
    let (servers, database) = if url.sentinel {
        let (name, database) = url.path.split_once('/').unwrap_or((url.path, ""));
        (url.parse_sentinels(name)?, database)
    } else {
        let (host, port) = parse_host_port(url.hosts, REDIS_PORT)?;
        (RedisServers::Single(host, port), url.path)
    };
    let database = parse_database(database)?;
    let (tls_files, prefix) = (RedisTlsFiles::default(), DEFAULT_PREFIX.to_owned());
    let (timeout, nodes_at_least) = (Duration::from_millis(20), 1);
    let UrlParts { tls, user, password, .. } = url;
    let home = None;
    Ok(RedisConfig {
        servers,
        tls,
        tls_files,
        user,
        password,
        database,
        prefix,
        timeout,
        nodes_at_least,
        home,
    })
}

/// A node of a Cluster: its address, and the settings that it shares with the other nodes.
pub fn parse_seed_url(text: &str) -> Parsed<((String, u16), RedisConfig)> {
    let url = UrlParts::split_url(text)?;
    if url.sentinel {
        let help = "write one redis+sentinel://HOST,HOST/NAME without a list";
        return Err(url_error("Sentinels are not nodes of a Cluster").with_help(help));
    }
    if !url.path.is_empty() {
        return Err(
            url_error("a Cluster has no numbered databases").with_help("remove everything after the port")
        );
    }
    Ok((parse_host_port(url.hosts, REDIS_PORT)?, parse_server_url(text)?))
}

impl UrlParts<'_> {
    fn split_url(text: &str) -> Parsed<UrlParts<'_>> {
        if text.starts_with("unix:") || text.starts_with("redis+unix:") || text.starts_with('/') {
            let help = "write redis://127.0.0.1:6379, and let Redis listen there";
            return Err(url_error("unix sockets of Redis are not supported").with_help(help));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| {
            url_error("this is not a URL").with_help(if text.contains(':') {
                "write redis:// before the host, or rediss:// for TLS"
            } else {
                FORMS
            })
        })?;
        let (scheme, sentinel) = match scheme.strip_suffix("+sentinel") {
            Some(scheme) => (scheme, true),
            None => (scheme, false),
        };
        let tls = match scheme {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(url_error("this is not the URL of a Redis or Valkey").with_help(FORMS)),
        };
        if rest.contains(['?', '#']) {
            return Err(url_error("a Redis URL cannot contain `?` or `#`").with_help(ESCAPES));
        }
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(url_error("a URL cannot contain spaces").with_help(FORMS));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return Err(url_error("a Redis URL cannot contain an at sign after a slash").with_help(ESCAPES));
        }
        let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        Ok(UrlParts {
            tls,
            sentinel,
            user: decode_credential(user)?,
            password: decode_credential(password)?,
            hosts,
            path,
        })
    }

    fn parse_sentinels(&self, name: &str) -> Parsed<RedisServers> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if name.is_empty() || !name.bytes().all(plain) {
            let help = "write redis+sentinel://HOST,HOST/NAME, where NAME is the one in `sentinel monitor`";
            return Err(url_error("the name of the primary is missing").with_help(help));
        }
        let sentinels = self.hosts.split(',').map(|one| parse_host_port(one, SENTINEL_PORT));
        Ok(RedisServers::Sentinel { sentinels: sentinels.collect::<Parsed<_>>()?, name: name.to_owned() })
    }
}

fn parse_host_port(text: &str, default: u16) -> Parsed<(String, u16)> {
    let no_host = || url_error("the URL does not name a host").with_help(FORMS);
    let (host, port) = match names::split_host_port(text) {
        Some((host, digits)) => (host, parse_port(digits)?),
        None => (text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text), default),
    };
    if text.starts_with('[') {
        let address: std::net::Ipv6Addr = host.parse().map_err(|_| no_host())?;
        return Ok((address.to_string(), port));
    }
    if host.parse::<std::net::Ipv6Addr>().is_ok() {
        return Err(
            url_error("an IPv6 address must be in brackets").with_help("write e.g. redis://[::1]:6379")
        );
    }
    if host.contains(',') {
        let help = "write redis+sentinel://HOST,HOST/NAME for Sentinels, a list of URLs for a Cluster";
        return Err(url_error("a URL names exactly one server").with_help(help));
    }
    let host = names::parse_host_name(host).map_err(|_| no_host())?;
    Ok((host, port))
}

fn parse_port(digits: &str) -> Parsed<u16> {
    let port = digits.parse::<u16>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
    port.filter(|port| *port > 0).ok_or_else(|| {
        url_error("the text after the host is not a port").with_help("a port is a number from 1 to 65535")
    })
}

fn parse_database(text: &str) -> Parsed<u32> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    let number = if text.is_empty() { Some(0) } else { text.parse::<u16>().ok().filter(|_| plain) };
    number.map(u32::from).ok_or_else(|| {
        url_error("the text after the `/` is not a database number")
            .with_help("write e.g. redis://HOST:6379/1")
    })
}

/// `None` for empty text.
fn decode_credential(text: &str) -> Parsed<Option<Secret>> {
    if text.is_empty() {
        return Ok(None);
    }
    if !escape::has_whole_escapes(text) {
        return Err(url_error("a `%` in the user or password does not begin an escape").with_help(ESCAPES));
    }
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| url_error("the user or password is not UTF-8 text"))?;
    Ok(Some(Secret(text.into_owned())))
}
