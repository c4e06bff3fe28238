//! The fields of `service`.

use crate::schema::field::{Shape, section};
use crate::schema::kinds::{OneOrMoreOrWord, OrWord, SWITCH, Scalar, Special, Text, text};
use sluicegate_model::value::names;
use sluicegate_model::{Parsed, Secret, codes};

use super::limits::chain;
use super::listen::listen_shape;
use super::operation::parse_token;

section! {
    /// The rate-limit service: applications ask for limits, and nothing is forwarded. It needs `listen` or `resp`.
    mod service = "service";
    /// The addresses of the service, as in the section `listen`, or the name of one of the listeners there, which then
    /// takes calls alone.
    LISTEN: Special = Special(listen_or_none), "listen", "none", "127.0.0.1:9902";
    /// The addresses for Redis clients, which ask by `CL.THROTTLE`; written as `listen`, without HTTP/2.
    RESP: Special = Special(listen_or_none), "resp", "none", "127.0.0.1:6380";
    /// The token that calls must carry as `Authorization: Bearer TOKEN`, `/auth` as `Sluicegate-Token: TOKEN`, and
    /// Redis clients as `AUTH TOKEN`; or several, any of which is accepted. An address that is neither a loopback
    /// address nor a unix socket requires one.
    TOKEN: OneOrMoreOrWord<Text<Secret>> =
        OneOrMoreOrWord("none", Text::new("visible ASCII without spaces", parse_token)),
        "token", "none", "\"${SERVICE_TOKEN}\"";
    /// For Envoy's rate limit service: the rules of each domain, of which the most specific one gives a descriptor its
    /// limits. More entries come before fewer, then values before prefixes, longer prefixes before shorter ones and
    /// those before `*`, then the order of the file. At most 10,000 rules.
    DOMAINS: Special = Special(domains), "domains", "{}",
        "{ shop: [{ match: { remote_address: \"*\" }, limits: per-ip }] }";
}

section! {
    /// A rule for descriptors of Envoy's rate limit service.
    mod domain_rule = "service.domains.NAME[]";
    /// The entries that a descriptor must have: a value, `prefix*`, `*` for any, or a list of them for an entry that
    /// occurs several times, in their order.
    MATCH: Special = Special(entry_patterns), "match", required, "{ remote_address: \"*\", path: /api/ }";
    /// The descriptor has no other entries.
    EXACT: Scalar<bool> = SWITCH, "exact", "false", "true";
    /// A name for `replaces`.
    NAME: OrWord<Text<String>> = OrWord("none", Text::new("a name", parse_rule_name)), "name", "none", "api";
    /// Names of rules that are not applied when this one matches another descriptor of the same call.
    REPLACES: OneOrMoreOrWord<Text<String>> = OneOrMoreOrWord("none", Text::new("the name of a rule", parse_rule_name)),
        "replaces", "none", "[other]";
    /// The chain of limits, as in a location; `[]` is unlimited. Limits of requests in flight do not fit, because no
    /// call gives their slots back.
    LIMITS: Special = Special(chain), "limits", required, "[per-ip, { use: burst, burst: 5 }]";
}

fn domains() -> Shape {
    Shape::Map("names of domains", Box::new(Shape::List(Box::new(Shape::Section(&domain_rule::SECTION)))))
}

fn entry_patterns() -> Shape {
    Shape::Map("names of entries", Box::new(Shape::OneOrMore(Box::new(text("a value, `prefix*` or `*`")))))
}

/// Names of rules come from other programs, so that any text is one.
fn parse_rule_name(text: &str) -> Parsed<String> {
    let name = names::parse_filled(text, codes::NAME, "the name is empty");
    name.map_err(|error| error.with_help("write the name of a rule"))
}

fn listen_or_none() -> Shape {
    Shape::Either(vec![Shape::Words(vec!["none"]), listen_shape()])
}
