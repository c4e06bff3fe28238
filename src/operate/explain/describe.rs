//! Clients, accounts and keys in words.

use std::net::IpAddr;

use super::query::ParsedQuery;
use super::{AccountExplanation, ClientExplanation};
use crate::config::LocationId;
use crate::config::describe::describe_key_part;
use crate::config::{self, KeyPart, MissingKey, ValueSource};
use crate::proxy::gateway::Gateway;
use crate::request::access::AccessDecision;
use crate::request::client::Client;
use crate::request::key::KeyInput;
use crate::request::source;
use crate::request::source::{SourceValue, Token};

/// Foreign bytes for a terminal: what is no text, and what a terminal would act upon, is escaped.
pub(super) fn escape_bytes(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .map(|letter| match letter.is_control() {
            true => letter.escape_debug().to_string(),
            false => letter.to_string(),
        })
        .collect()
}

pub(super) fn explain_client(gateway: &Gateway, asked: &ParsedQuery, client: Client) -> ClientExplanation {
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
        (true, true) if gateway.clients.trusts_proxy(client.ip) => {
            format!("the last valid hop of {header} from the right; all of them are trusted proxies")
        }
        (true, true) => {
            format!("the right-most hop of {header} that is not a trusted proxy; the peer {peer} is one")
        }
    };
    ClientExplanation {
        ip: client.ip.to_string(),
        peer: peer.to_string(),
        trusted_peer: client.trusted_peer,
        why,
    }
}

pub(super) fn describe_access_decision(standing: AccessDecision) -> &'static str {
    match standing {
        AccessDecision::Rejected => "denied, or not among those allowed",
        AccessDecision::Bypassed => "bypassed: no limits and no bans",
        AccessDecision::Ordinary => "allowed",
    }
}

pub(super) fn explain_account(
    gateway: &Gateway,
    name: Option<&[u8]>,
    token: Option<&Token<'_>>,
) -> Option<AccountExplanation> {
    let source = gateway.account.clone()?;
    let unread = matches!(source, ValueSource::Jwt(_)) && token.is_some_and(|token| token.fault().is_some());
    let from = describe_key_part(&KeyPart::Source(source));
    Some(AccountExplanation { name: name.map(escape_bytes), from, token_not_accepted: unread })
}

/// What a limit counts a request by.
pub(super) struct KeyDescription {
    /// "client IP 203.0.113.7", "account acme + host a.example".
    pub text: String,
    /// The parts that the request lacks.
    pub missing: Vec<String>,
}

pub(super) fn describe_key(
    gateway: &Gateway,
    limit: &config::LimitConfig,
    subject: &KeyInput<'_>,
    route: Option<LocationId>,
) -> KeyDescription {
    let mut keyed = KeyDescription { text: String::new(), missing: Vec::new() };
    let mut words = Vec::new();
    for part in &limit.key {
        let name = describe_key_part(part);
        match describe_value(gateway, part, subject, route) {
            Some(value) if value.is_empty() => words.push(name),
            Some(value) => words.push(format!("{name} {value}")),
            None => {
                words.push(match limit.missing_key {
                    MissingKey::Ip => {
                        format!("client IP {} for want of {name}", describe_ip(gateway, subject.ip))
                    }
                    _ => format!("all without {name}"),
                });
                keyed.missing.push(name);
            }
        }
    }
    keyed.text = words.join(" + ");
    keyed
}

/// The value of one part; `None` = the request lacks it. Empty where the name says it all.
fn describe_value(
    gateway: &Gateway,
    part: &KeyPart,
    subject: &KeyInput<'_>,
    route: Option<LocationId>,
) -> Option<String> {
    let unless_empty = |bytes: &[u8]| (!bytes.is_empty()).then(|| escape_bytes(bytes));
    match part {
        KeyPart::Ip => Some(describe_ip(gateway, subject.ip)),
        KeyPart::Account => unless_empty(subject.account.unwrap_or_default()),
        KeyPart::Uri => Some(escape_bytes(subject.path)),
        KeyPart::Location => Some(route.map_or("none", |route| &gateway.routes[route.0].name).to_owned()),
        KeyPart::Host => unless_empty(subject.host.as_bytes()),
        KeyPart::Method => Some(subject.method.to_string()),
        KeyPart::Global => Some(String::new()),
        KeyPart::Tier => Some(subject.tier.to_owned()),
        KeyPart::Source(source) => describe_source(source, subject),
    }
}

fn describe_source(source: &config::ValueSource, subject: &KeyInput<'_>) -> Option<String> {
    match source::read_source(source, subject.headers, subject.query, subject.token) {
        SourceValue::One(value) => Some(escape_bytes(&value)),
        SourceValue::Absent => None,
        SourceValue::Repeated => Some("(there twice)".to_owned()),
    }
}

/// A masked address, with the length of its network unless that is the whole address.
fn describe_ip(gateway: &Gateway, masked: IpAddr) -> String {
    let (prefix, whole) = match masked {
        IpAddr::V4(_) => (gateway.server.ipv4_prefix, 32),
        IpAddr::V6(_) => (gateway.server.ipv6_prefix, 128),
    };
    if prefix == whole { masked.to_string() } else { format!("{masked}/{prefix}") }
}

/// Nanoseconds as whole milliseconds, rounded up; from ten seconds on as seconds.
pub(super) fn format_ns(ns: u64) -> String {
    let ms = ns.div_ceil(1_000_000);
    if ms < 10_000 { format!("{ms} ms") } else { format!("{} s", ms.div_ceil(1000)) }
}
