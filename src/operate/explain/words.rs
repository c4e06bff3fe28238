//! Clients, accounts and keys in words.

use std::net::IpAddr;

use super::request::Asked;
use super::{AccountTold, ClientTold};
use crate::config::describe::describe_key_part;
use crate::config::{self, KeyPart, MissingKey, Source};
use crate::proxy::gateway::Gateway;
use crate::request::access::Standing;
use crate::request::client::Client;
use crate::request::key::Subject;
use crate::request::source;
use crate::request::source::{Token, Value};

/// Foreign bytes for a terminal: what is no text, and what a terminal would act upon, is escaped.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .map(|letter| match letter.is_control() {
            true => letter.escape_debug().to_string(),
            false => letter.to_string(),
        })
        .collect()
}

pub(super) fn client(gateway: &Gateway, asked: &Asked, client: Client) -> ClientTold {
    let peer = asked.peer.to_canonical();
    let header = gateway.clients.header();
    let names_one = asked.headers.contains_key(header);
    let why = match (client.trusted_peer, names_one) {
        (false, false) => "the peer".to_owned(),
        (false, true) => {
            format!("the peer, which is not in server.trusted_proxies: its {header} is not believed")
        }
        (true, false) => format!("the peer, a trusted proxy that sent no {header}"),
        (true, true) if client.ip == peer => {
            format!("the peer, a trusted proxy: the last hop of its {header} is no address")
        }
        (true, true) if gateway.clients.trusts(client.ip) => {
            format!("the last valid hop of {header} from the right; all of them are trusted proxies")
        }
        (true, true) => {
            format!("the right-most hop of {header} that is not a trusted proxy; the peer {peer} is one")
        }
    };
    ClientTold { ip: client.ip.to_string(), peer: peer.to_string(), trusted_peer: client.trusted_peer, why }
}

pub(super) fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Denied => "denied, or not among those allowed",
        Standing::Bypassed => "bypassed: no limits and no bans",
        Standing::Ordinary => "allowed",
    }
}

pub(super) fn account(
    gateway: &Gateway,
    name: Option<&[u8]>,
    token: Option<&Token<'_>>,
) -> Option<AccountTold> {
    let source = gateway.account.clone()?;
    let unread = matches!(source, Source::Jwt(_)) && token.is_some_and(|token| token.fault().is_some());
    let from = describe_key_part(&KeyPart::Source(source));
    Some(AccountTold { name: name.map(shown), from, unread })
}

/// What a limit counts a request by.
pub(super) struct Keyed {
    /// "client IP 203.0.113.7", "account acme + host a.example".
    pub words: String,
    /// The parts that the request lacks.
    pub missing: Vec<String>,
}

pub(super) fn key(
    gateway: &Gateway,
    limit: &config::Limit,
    subject: &Subject<'_>,
    route: Option<usize>,
) -> Keyed {
    let mut keyed = Keyed { words: String::new(), missing: Vec::new() };
    let mut words = Vec::new();
    for part in &limit.key {
        let name = describe_key_part(part);
        match value(gateway, part, subject, route) {
            Some(value) if value.is_empty() => words.push(name),
            Some(value) => words.push(format!("{name} {value}")),
            None => {
                words.push(match limit.missing_key {
                    MissingKey::Ip => format!("client IP {} for want of {name}", ip(gateway, subject.ip)),
                    _ => format!("all without {name}"),
                });
                keyed.missing.push(name);
            }
        }
    }
    keyed.words = words.join(" + ");
    keyed
}

/// The value of one part; `None` = the request lacks it. Empty where the name says it all.
fn value(gateway: &Gateway, part: &KeyPart, subject: &Subject<'_>, route: Option<usize>) -> Option<String> {
    let unless_empty = |bytes: &[u8]| (!bytes.is_empty()).then(|| shown(bytes));
    match part {
        KeyPart::Ip => Some(ip(gateway, subject.ip)),
        KeyPart::Account => unless_empty(subject.account.unwrap_or_default()),
        KeyPart::Uri => Some(shown(subject.path)),
        KeyPart::Location => Some(route.map_or("none", |route| &gateway.routes[route].name).to_owned()),
        KeyPart::Host => unless_empty(subject.host.as_bytes()),
        KeyPart::Method => Some(subject.method.to_string()),
        KeyPart::Global => Some(String::new()),
        KeyPart::Tier => Some(subject.tier.to_owned()),
        KeyPart::Source(source) => from_source(source, subject),
    }
}

fn from_source(source: &config::Source, subject: &Subject<'_>) -> Option<String> {
    match source::value(source, subject.headers, subject.query, subject.token) {
        Value::One(value) => Some(shown(&value)),
        Value::Absent => None,
        Value::Twice => Some("(there twice)".to_owned()),
    }
}

/// A masked address, with the length of its network unless that is the whole address.
fn ip(gateway: &Gateway, masked: IpAddr) -> String {
    let (prefix, whole) = match masked {
        IpAddr::V4(_) => (gateway.server.ipv4_prefix, 32),
        IpAddr::V6(_) => (gateway.server.ipv6_prefix, 128),
    };
    if prefix == whole { masked.to_string() } else { format!("{masked}/{prefix}") }
}

/// Nanoseconds as whole milliseconds, rounded up; from ten seconds on as seconds.
pub(super) fn span(ns: u64) -> String {
    let ms = ns.div_ceil(1_000_000);
    if ms < 10_000 { format!("{ms} ms") } else { format!("{} s", ms.div_ceil(1000)) }
}
