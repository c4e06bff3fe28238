//! Describes clients, accounts and keys.

use std::net::IpAddr;

use super::query::ParsedQuery;
use super::{AccountExplanation, BanExplanation, ClientExplanation, StopExplanation};
use sluicegate_base::clock::Now;
use sluicegate_config::describe::describe_key_part;
use sluicegate_http::request::access::AccessDecision;
use sluicegate_http::request::client::Client;
use sluicegate_http::request::key::KeyInput;
use sluicegate_http::request::source::{self, SourceValue};
use sluicegate_http::upstream::{ServerStatus, Upstream};
use sluicegate_model::{self as model, KeyPart, LocationId, MissingKey, ValueSource};
use sluicegate_proxy::gateway::auth::RouteAuth;
use sluicegate_proxy::gateway::{Action, Gateway};
use sluicegate_proxy::judge::RequestFacts;
use sluicegate_proxy::reject::Rejection;

/// Client bytes for a terminal: invalid UTF-8 and control characters are escaped.
pub(super) fn escape_bytes(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .map(|letter| match letter.is_control() {
            true => letter.escape_debug().to_string(),
            false => letter.to_string(),
        })
        .collect()
}

pub(super) fn explain_client(gateway: &Gateway, query: &ParsedQuery, client: Client) -> ClientExplanation {
    let peer = query.peer.to_canonical();
    let header = gateway.clients.header();
    let names_one = query.headers.contains_key(header);
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

pub(super) fn describe_access_decision(
    decision: AccessDecision,
    rejection: Option<&Rejection>,
) -> &'static str {
    match decision {
        AccessDecision::Rejected => "denied, or not among those allowed",
        AccessDecision::Bypassed if is_banned_by_operator(rejection) => {
            "bypassed, but the ban of an operator holds all the same"
        }
        AccessDecision::Bypassed => "bypassed: no limits and no bans",
        AccessDecision::Ordinary => "allowed",
    }
}

/// "upstream login would be asked for /verify".
pub(super) fn describe_question(auth: &RouteAuth) -> String {
    format!("upstream {} would be asked for {}", auth.upstream.name, auth.config.target)
}

pub(super) fn explain_account(gateway: &Gateway, facts: &RequestFacts<'_>) -> Option<AccountExplanation> {
    let account = &gateway.config.account;
    let key = account.keys.as_ref().map(|_| "valid API key".to_owned());
    let source = account.from.clone().filter(|_| facts.key.is_none());
    let token_not_accepted = matches!(source, Some(ValueSource::Jwt(_)))
        && facts.token.is_some_and(|token| token.fault().is_some());
    let from = source.map(|source| describe_key_part(&KeyPart::Source(source))).or(key)?;
    let name = facts.account().map(escape_bytes);
    Some(AccountExplanation { name, from, token_not_accepted })
}

pub(super) fn ban_left_ms(rejection: Option<&Rejection>) -> Option<u64> {
    match rejection {
        Some(Rejection::Banned { left_ns, .. }) => Some(left_ns.div_ceil(1_000_000)),
        _ => None,
    }
}

/// The ban of an operator that rejects the request.
pub(super) fn explain_ban(
    gateway: &Gateway,
    facts: &RequestFacts<'_>,
    rejection: Option<&Rejection>,
) -> Option<BanExplanation> {
    if !is_banned_by_operator(rejection) {
        return None;
    }
    let head = &facts.head;
    let ban = gateway.operator_bans.find_ban(head.client.ip, facts.account(), head.received)?;
    let (by, reason) = (escape_bytes(ban.by.as_bytes()), escape_bytes(ban.reason.as_bytes()));
    Some(BanExplanation { target: escape_bytes(ban.target.to_string().as_bytes()), by, reason })
}

/// The stop by the upstream of the request's location.
pub(super) fn explain_stop(gateway: &Gateway, facts: &RequestFacts<'_>) -> Option<StopExplanation> {
    let pause = facts.pause.as_ref()?.paused?;
    let Action::Upstream(upstream) = &gateway.routes[facts.route()?.0].action else { return None };
    Some(StopExplanation {
        upstream: upstream.name.to_string(),
        status: (pause.status != 0).then_some(pause.status),
        left_ms: pause.until.ns_since(facts.head.received).div_ceil(1_000_000),
        until_ms: pause.until.to_unix_ns() / 1_000_000,
        wait_ms: pause.wait_ns.div_ceil(1_000_000),
    })
}

/// The upstream with servers that would get a request that the limits admit.
pub(super) fn find_upstream<'g>(gateway: &'g Gateway, facts: &RequestFacts<'_>) -> Option<&'g Upstream> {
    match &gateway.routes[facts.route()?.0].action {
        Action::Upstream(upstream) if !facts.is_preflight() && !upstream.is_demo() => Some(upstream),
        _ => None,
    }
}

/// The number of servers in each state, and of waiting requests, e.g. `1 down, 2 full, 3 of 1000 wait`.
pub(super) fn describe_servers(upstream: &Upstream, now: Now) -> String {
    let servers = upstream.status_at(now).servers;
    let state = |one: &ServerStatus| match one.max_connections {
        Some(most) if one.state == "up" && one.in_flight >= most => "full",
        _ => one.state,
    };
    let count = |wanted: &str| servers.iter().filter(|one| state(one) == wanted).count();
    let counts = ["up", "full", "down", "ejected", "draining"].map(|state| (count(state), state));
    let present = counts.iter().filter(|(count, _)| *count > 0);
    let queue = upstream.queue().map(|queue| format!("{} of {} wait", upstream.waiting_count(), queue.size));
    present.map(|(count, state)| format!("{count} {state}")).chain(queue).collect::<Vec<_>>().join(", ")
}

fn is_banned_by_operator(rejection: Option<&Rejection>) -> bool {
    matches!(rejection, Some(Rejection::Banned { by_operator: true, .. }))
}

/// The key by which a limit counts a request, e.g. `account acme + host a.example`, and the parts that it lacks.
pub(super) fn describe_key(
    gateway: &Gateway,
    limit: &model::LimitConfig,
    input: &KeyInput<'_>,
    route: Option<LocationId>,
) -> (String, String) {
    let (mut words, mut missing) = (Vec::new(), Vec::new());
    for part in &limit.key {
        let name = describe_key_part(part);
        match describe_value(gateway, part, input, route) {
            Some(value) if value.is_empty() => words.push(name),
            Some(value) => words.push(format!("{name} {value}")),
            None => {
                words.push(match limit.missing_key {
                    MissingKey::Ip => {
                        format!("client IP {} without {name}", describe_ip(gateway, input.ip))
                    }
                    _ => format!("all without {name}"),
                });
                missing.push(name);
            }
        }
    }
    (words.join(" + "), missing.join(" or "))
}

/// The value of one part; `None` = the request lacks it. Empty where the name says everything.
fn describe_value(
    gateway: &Gateway,
    part: &KeyPart,
    input: &KeyInput<'_>,
    route: Option<LocationId>,
) -> Option<String> {
    let unless_empty = |bytes: &[u8]| (!bytes.is_empty()).then(|| escape_bytes(bytes));
    match part {
        KeyPart::Ip => Some(describe_ip(gateway, input.ip)),
        KeyPart::Account => unless_empty(input.account.unwrap_or_default()),
        KeyPart::Uri => Some(escape_bytes(input.path)),
        KeyPart::Location => Some(route.map_or("none", |route| &gateway.routes[route.0].name).to_owned()),
        KeyPart::Host => unless_empty(input.host.as_bytes()),
        KeyPart::Method => Some(input.method.to_string()),
        KeyPart::Global => Some(String::new()),
        KeyPart::Tier => Some(input.tier.to_owned()),
        KeyPart::Priority => Some(input.urgency().to_string()),
        KeyPart::Source(source) => describe_value_of(source::read_source(source, &input.sources())),
        KeyPart::Mcp(part) => describe_value_of(source::read_mcp(*part, input.body)),
        KeyPart::BodyHash => {
            let first = input.body?.hash()?.first_chunk().copied().map_or(0, u64::from_be_bytes);
            Some(format!("#{first:016x}"))
        }
    }
}

fn describe_value_of(value: SourceValue<'_>) -> Option<String> {
    match value {
        SourceValue::One(value) => Some(escape_bytes(&value)),
        SourceValue::Absent => None,
        SourceValue::Repeated => Some("(given more than once)".to_owned()),
    }
}

/// A masked address, with the length of its network unless that is the whole address.
fn describe_ip(gateway: &Gateway, masked: IpAddr) -> String {
    let (prefix, whole) = match masked {
        IpAddr::V4(_) => (gateway.config.server.ipv4_prefix, 32),
        IpAddr::V6(_) => (gateway.config.server.ipv6_prefix, 128),
    };
    if prefix == whole { masked.to_string() } else { format!("{masked}/{prefix}") }
}

/// Nanoseconds as whole milliseconds, rounded up; from ten seconds on as seconds.
pub(super) fn format_ns(ns: u64) -> String {
    let ms = ns.div_ceil(1_000_000);
    if ms < 10_000 { format!("{ms} ms") } else { format!("{} s", ms.div_ceil(1000)) }
}
