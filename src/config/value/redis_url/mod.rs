//! Where Redis is: the URL of a server, of the Sentinels that know one, or of some nodes of a Cluster.
//!
//! No message quotes any part of a URL: what was mistyped may be a password.

use percent_encoding::percent_decode_str;

use super::names;
use super::scalars::{Read, Secret};
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::RedisServers;
use crate::config::yaml::fields::Value;
use crate::config::yaml::tree::Content;

/// The servers, and how to be let in.
#[derive(Debug)]
pub(crate) struct Way {
    pub servers: RedisServers,
    pub tls: bool,
    pub user: Option<Secret>,
    pub password: Option<Secret>,
    pub database: u32,
}

/// One URL, taken apart.
struct Url<'a> {
    tls: bool,
    sentinel: bool,
    user: Option<Secret>,
    password: Option<Secret>,
    hosts: &'a str,
    /// Without the slash before it.
    path: &'a str,
}

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const FORMS: &str = "write redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss:// for TLS, \
                     redis+sentinel://HOST,HOST/NAME, or a list of redis:// URLs for a Cluster";
const ESCAPES: &str =
    "in a user or password write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23, % as %25";

/// Reads `url`; `None` after a complaint.
pub(crate) fn read(value: &Value<'_>) -> Option<Way> {
    match value.node.content {
        Content::List(_) => cluster(value),
        _ => value.read(single),
    }
}

fn wrong(message: &str) -> Complaint {
    Complaint::new(codes::REDIS, message)
}

fn single(text: &str) -> Read<Way> {
    let url = Url::parse(text)?;
    let (servers, database) = if url.sentinel {
        let (name, database) = url.path.split_once('/').unwrap_or((url.path, ""));
        (url.sentinels(name)?, database)
    } else {
        let (host, port) = host_and_port(url.hosts, REDIS_PORT)?;
        (RedisServers::Single(host, port), url.path)
    };
    let database = number_of_database(database)?;
    Ok(Way { servers, tls: url.tls, user: url.user, password: url.password, database })
}

/// A list: some nodes of a Cluster, which share everything but their addresses.
fn cluster(value: &Value<'_>) -> Option<Way> {
    let items = value.one_or_more();
    if items.is_empty() {
        value.complain_of_nothing("write the URLs of some nodes of the Cluster, or one URL without a list");
    }
    let mut way: Option<Way> = None;
    let mut seeds = Vec::new();
    for item in &items {
        let Some((seed, url)) = item.read(seed) else { continue };
        seeds.push(seed);
        match &way {
            None => way = Some(url),
            Some(first)
                if (first.tls, &first.user, &first.password) != (url.tls, &url.user, &url.password) =>
            {
                let message = "the nodes of a Cluster have the same scheme, user and password";
                item.complain(wrong(message).help("write them alike in each URL of the list"));
            }
            Some(_) => {}
        }
    }
    let way = way.filter(|_| seeds.len() == items.len())?;
    Some(Way { servers: RedisServers::Cluster(seeds), ..way })
}

fn seed(text: &str) -> Read<((String, u16), Way)> {
    let url = Url::parse(text)?;
    if url.sentinel {
        let help = "write one redis+sentinel://HOST,HOST/NAME without a list";
        return Err(wrong("Sentinels are no nodes of a Cluster").help(help));
    }
    if !url.path.is_empty() {
        return Err(wrong("a Cluster has no numbered databases").help("leave out what follows the port"));
    }
    Ok((host_and_port(url.hosts, REDIS_PORT)?, single(text)?))
}

// === impl Url ===

impl Url<'_> {
    fn parse(text: &str) -> Read<Url<'_>> {
        if text.starts_with("unix:") || text.starts_with("redis+unix:") || text.starts_with('/') {
            let help = "write redis://127.0.0.1:6379, and let Redis listen there";
            return Err(wrong("unix sockets of Redis are not supported").help(help));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("this is not a URL").help(FORMS))?;
        let (scheme, sentinel) = match scheme.strip_suffix("+sentinel") {
            Some(scheme) => (scheme, true),
            None => (scheme, false),
        };
        let tls = match scheme {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(wrong("this is not the URL of a Redis or Valkey").help(FORMS)),
        };
        if rest.contains(['?', '#']) {
            return Err(wrong("the URL of a Redis has no `?` and no `#`").help(ESCAPES));
        }
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(wrong("a URL has no blanks in it").help(FORMS));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return Err(wrong("the URL of a Redis has no `@` behind a `/`").help(ESCAPES));
        }
        let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        Ok(Url { tls, sentinel, user: decoded(user)?, password: decoded(password)?, hosts, path })
    }

    fn sentinels(&self, name: &str) -> Read<RedisServers> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if name.is_empty() || !name.bytes().all(plain) {
            let help =
                "write redis+sentinel://HOST,HOST/NAME, where NAME is what `sentinel monitor` calls it";
            return Err(wrong("the Sentinels are not told the name of the primary").help(help));
        }
        let sentinels = self.hosts.split(',').map(|one| host_and_port(one, SENTINEL_PORT));
        Ok(RedisServers::Sentinel { sentinels: sentinels.collect::<Read<_>>()?, name: name.to_owned() })
    }
}

fn host_and_port(text: &str, default: u16) -> Read<(String, u16)> {
    let no_host = || wrong("the URL does not name a host").help(FORMS);
    let (host, port) = match names::split_port(text) {
        Some((host, digits)) => (host, port(digits)?),
        None => (text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text), default),
    };
    if text.starts_with('[') {
        let address: std::net::Ipv6Addr = host.parse().map_err(|_| no_host())?;
        return Ok((address.to_string(), port));
    }
    if host.parse::<std::net::Ipv6Addr>().is_ok() {
        return Err(wrong("an IPv6 address stands in brackets").help("write e.g. redis://[::1]:6379"));
    }
    if host.contains(',') {
        let help = "write redis+sentinel://HOST,HOST/NAME for Sentinels, a list of URLs for a Cluster";
        return Err(wrong("one URL names one server").help(help));
    }
    let host = names::host_name(host).map_err(|_| no_host())?;
    Ok((host, port))
}

fn port(digits: &str) -> Read<u16> {
    let port = digits.parse::<u16>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
    port.filter(|port| *port > 0).ok_or_else(|| {
        wrong("what follows the host is not a port").help("a port is a number from 1 to 65535")
    })
}

fn number_of_database(text: &str) -> Read<u32> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    let number = if text.is_empty() { Some(0) } else { text.parse::<u16>().ok().filter(|_| plain) };
    number.map(u32::from).ok_or_else(|| {
        wrong("what follows the `/` is not the number of a database").help("write e.g. redis://HOST:6379/1")
    })
}

/// `None` for nothing.
fn decoded(text: &str) -> Read<Option<Secret>> {
    if text.is_empty() {
        return Ok(None);
    }
    let two_digits = |behind: &str| {
        let digits = behind.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(two_digits) {
        return Err(wrong("a `%` in a user or password that begins no escape").help(ESCAPES));
    }
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| wrong("a user or password that is not UTF-8 text"))?;
    Ok(Some(Secret(text.into_owned())))
}

#[cfg(test)]
mod tests;
