//! The fields of a location, and of header edits.

use std::time::Duration;

use http::{Method, StatusCode};

use super::access::access;
use super::auth::auth;
use super::limits::{KEY_PART, METHODS_OR_ANY, chain, parse_name};
use super::reject::{edits, on_reject, response};
use crate::schema::field::{OneOrMore, Shape, section};
use crate::schema::kinds::{
    NONZERO_TIME, Nested, NestedOrNone, OneOrMoreOrWord, OrWord, SWITCH, Scalar, Size, Span, Special, Text,
    Words, text,
};
use sluicegate_model::value::names;
use sluicegate_model::{HostHeader, HostRule, KeyPart, Parsed, Scheme, ValueError, codes};

/// The most that `body_peek` may hold of each request.
const BODY_PEEK_MAX: u64 = 64 << 20;

section! {
    /// A location: which requests it takes, and what happens to them. The rules are those of nginx: an exact path, then
    /// the longest prefix (`^~` ends the search), then the first regular expression in the order of the file.
    mod location = "locations[]";
    /// The paths: `/p/` a prefix, `= /p` exact, `^~ /p/` a prefix before regular expressions, `~ regex`, `~* regex`
    /// (without case).
    PATH: Special = Special(|| text("a path")), "path", required, "/api/";
    /// The label in metrics, logs and names of inline limits; `auto` is the path.
    NAME: OrWord<Text<String>> = OrWord("auto", Text::new("a name", parse_name)), "name", "auto", "api";
    /// Host names; `*.example.com` is every name below it.
    HOST: OneOrMoreOrWord<Text<HostRule>> = OneOrMoreOrWord("any", Text::new("a host name", parse_host_rule)),
        "host", "any", "[example.com, \"*.example.com\"]";
    /// Methods; other locations are tried for the rest, and 405 is the answer if none takes them.
    METHODS: OneOrMoreOrWord<Text<Method>> = METHODS_OR_ANY, "methods", "any", "[GET, HEAD]";
    /// The scheme of the request: X-Forwarded-Proto of a trusted proxy, else that of the connection.
    SCHEME: OrWord<Words<Scheme>> = OrWord("any", Words(&Scheme::WORDS)), "scheme", "any", "http";
    /// Names of listeners.
    LISTENER: OneOrMoreOrWord<Text<String>> = OneOrMoreOrWord("any", Text::new("the name of a listener", parse_name)),
        "listener", "any", "plain";
    /// Conditions that all must hold, 1 to 16: `header:NAME`, `cookie:NAME` or `query:NAME` with its exact value, `"*"`
    /// for any, `"!"` for none, or `"~ regex"`, which matches anywhere in it. A value that is given twice, or a cookie
    /// with two values, fulfils nothing, `"!"` neither. Locations with one path are tried in the order of the file,
    /// those without `when` last.
    WHEN: Special = Special(|| Shape::Either(vec![
        Shape::Words(vec!["none"]),
        Shape::Map("headers, cookies and query parameters", Box::new(text("a value, `*`, `!` or `~ regex`"))),
    ])), "when", "none", "{ \"header:X-Env\": canary }";
    /// Forwards to an upstream. A location has exactly one of `upstream`, `respond`, `redirect` and `usage`.
    UPSTREAM: Special = Special(|| text("the name or the URL of an upstream")), "upstream", "none", "app";
    /// Responds without an upstream.
    RESPOND: Special = Special(|| Shape::Section(&response::SECTION)),
        "respond", "none", "{ status: 200, body: \"ok\" }";
    /// Redirects.
    REDIRECT: Special = Special(|| Shape::Section(&redirect::SECTION)),
        "redirect", "none", "{ to: \"https://${host}${request_uri}\" }";
    /// Tells callers what they have used of their limits, and what is left. Only GET and HEAD, and limits with windows
    /// of the calendar count no such request.
    USAGE: Special = Special(|| Shape::Section(&usage::SECTION)), "usage", "none", "{}";
    /// The chain of limits, judged in this order as one transaction: names of limits, rates, limits written here, and
    /// `{ use: NAME, burst: 5 }`: a limit of the top with other numbers at this place.
    LIMITS: Special = Special(chain), "limits", "[]", "[per-ip, 100/s]";
    /// A prefix of the path that is removed before forwarding.
    STRIP: OrWord<Text<String>> = OrWord("none", Text::new("a path", parse_plain_path)), "strip", "none", "/api";
    /// Another path for the upstream in place of one that matches, after `strip`.
    REWRITE: NestedOrNone = NestedOrNone(&rewrite::SECTION),
        "rewrite", "none", "{ from: \"^/old/(.*)$\", to: \"/new/$1\" }";
    /// A beginning that the path gets for the upstream, after `strip` and `rewrite`.
    ADD_PREFIX: OrWord<Text<String>> = OrWord("none", Text::new("a path", parse_sent_path)),
        "add_prefix", "none", "/v1";
    /// The Host of forwarded requests: the client's, the server's own name, or a fixed one.
    HOST_HEADER: Text<HostHeader> = Text::new("client, upstream or a host name", parse_host_header),
        "host_header", "client", "upstream";
    /// Changes to the headers of forwarded requests. Values may have variables.
    REQUEST_HEADERS: Nested = Nested(&edits::SECTION),
        "request_headers", "{}", "{ set: { X-Client: \"${client_ip}\" } }";
    /// Changes to the headers of responses, after those of `server.headers`. Values may have variables.
    RESPONSE_HEADERS: Nested = Nested(&edits::SECTION), "response_headers", "{}", "{ remove: [Server] }";
    /// `none` reads no account here: neither a key nor a token, and none is removed. For public pages, and for
    /// upstreams with `Bearer` tokens of their own.
    ACCOUNT: Words<bool> = Words(&[("read", true), ("none", false)]), "account", "read", "none";
    /// Replaces fields of the section `access` here.
    ACCESS: NestedOrNone = NestedOrNone(&access::SECTION), "access", "{}", "{ allow: [10.0.0.0/8] }";
    /// Replaces fields of the section `on_reject` here.
    ON_REJECT: Nested = Nested(&on_reject::SECTION), "on_reject", "{}", "{ body: envelope }";
    /// The pace of response bodies.
    BANDWIDTH: NestedOrNone = NestedOrNone(&bandwidth::SECTION), "bandwidth", "none", "{ rate: 1MiB/s }";
    /// The time of a whole request, queues included: then 504, or 503 while it still waits.
    TIMEOUT: OrWord<Text<Duration>> = OrWord("none", NONZERO_TIME), "timeout", "none", "30s";
    /// The bytes of a request body that are read before the limits are judged, where a key, a cost, the account or the
    /// tier is a value in the body (`json:/POINTER`); a longer body then gets 413. `auto` is 64KiB, and a
    /// quarter of `server.body_memory` is the most. The body goes on to
    /// the upstream as it is, and nothing is read where nothing asks for it.
    BODY_PEEK: OrWord<Size> = OrWord("auto", Size(1, BODY_PEEK_MAX)), "body_peek", "auto", "1MiB";
    /// The size of a request's body, in place of `server.max_body`, which is `auto`; a larger one gets 413.
    MAX_BODY: OrWord<OrWord<Size>> = OrWord("auto", OrWord("none", Size(0, u64::MAX))),
        "max_body", "auto", "50MiB";
    /// Lets scripts of other origins use this location (the CORS protocol of the Fetch standard). Preflights are
    /// answered here and never limited, and rejections carry what a script needs to read them.
    CORS: NestedOrNone = NestedOrNone(&cors::SECTION), "cors", "none", "{ origins: https://app.example.com }";
    /// A service that decides on each request before its chain does.
    AUTH: NestedOrNone = NestedOrNone(&auth::SECTION), "auth", "none", "{ url: http://127.0.0.1:9091/verify }";
}

section! {
    /// Another path for the upstream. Limits and logs know the original one, and the query stays. A new path with a `.`
    /// or `..` segment gets 400.
    mod rewrite = "locations[].rewrite";
    /// A regular expression for the decoded path without its query, which matches anywhere in it.
    FROM: Special = Special(|| text("a regular expression")), "from", required, "\"^/old/(.*)$\"";
    /// The whole path, decoded: `$1` to `$9` are groups of `from`, and `$$` is a dollar.
    TO: Special = Special(|| text("a path")), "to", required, "\"/new/$1\"";
}

section! {
    /// A redirect.
    mod redirect = "locations[].redirect";
    /// The target, with variables.
    TO: Special = Special(|| text("a URL with variables")), "to", required, "\"https://${host}${request_uri}\"";
    /// The status: 301, 302, 303, 307 or 308.
    STATUS: Text<StatusCode> = Text::new("301, 302, 303, 307 or 308", parse_redirect_status), "status", "308", "302";
}

section! {
    /// What callers are told of their limits.
    mod usage = "locations[].usage";
    /// The names of the limits; `all` is each that counts by `ip`, `account` and `tier`, and not by the tier alone.
    LIMITS: OneOrMoreOrWord<Text<String>> = OneOrMoreOrWord("all", Text::new("the name of a limit", parse_name)),
        "limits", "all", "[plan]";
}

section! {
    /// The pace of response bodies from upstreams, over all connections of a key. Responses that the gateway gives
    /// itself, those of `demo` included, are not paced.
    mod bandwidth = "locations[].bandwidth";
    /// Bytes and their period.
    RATE: Special = Special(|| text("a size, a slash and a period")), "rate", required, "1MiB/s";
    /// The bytes that leave at once; `auto` is what leaves within a second, at least 16KiB.
    BURST: Special = Special(|| text("a size, or auto")), "burst", "auto", "4MiB";
    /// What is paced apart.
    KEY: OneOrMore<Text<KeyPart>> = OneOrMore(KEY_PART), "key", "ip", "account";
}

section! {
    /// Scripts of other origins.
    mod cors = "locations[].cors";
    /// The origins: scheme, host and port as browsers write them; `https://*.example.com` is every name below it, and
    /// `*` every origin.
    ORIGINS: Special = Special(|| Shape::OneOrMore(Box::new(text("an origin")))),
        "origins", required, "https://app.example.com";
    /// Methods that scripts may use.
    METHODS: OneOrMoreOrWord<Text<Method>> = METHODS_OR_ANY, "methods", "any", "[GET, POST]";
    /// Request headers that scripts may set.
    HEADERS: Special = Special(|| Shape::Either(vec![
        Shape::Words(vec!["any", "none"]),
        Shape::OneOrMore(Box::new(text("a header name"))),
    ])), "headers", "any", "[Authorization, Content-Type]";
    /// Scripts may use cookies and other credentials; not together with the origin `*`.
    CREDENTIALS: Scalar<bool> = SWITCH, "credentials", "false", "true";
    /// The time for which a browser may remember the answer to a preflight.
    MAX_AGE: Span = Span::from(Duration::ZERO), "max_age", "10m", "1h";
}

fn parse_redirect_status(text: &str) -> Parsed<StatusCode> {
    let status = names::parse_status(text, 300).ok();
    status.filter(|status| [301, 302, 303, 307, 308].contains(&status.as_u16())).ok_or_else(|| {
        ValueError::new(codes::STATUS, format!("`{text}` is not a status of a redirect"))
            .with_help("write 301, 302, 303, 307 or 308")
    })
}

/// Checks a path without `~`, `=` or `^~`: it starts with `/`, and has no query, `.`, `..` or control characters.
pub fn parse_plain_path(path: &str) -> Parsed<String> {
    let wrong = |message: String| ValueError::new(codes::PATH, message);
    if !path.starts_with('/') {
        let help = match path {
            "" => "write e.g. /".to_owned(),
            "*" => "write / for every path".to_owned(),
            _ if path.starts_with('^') || path.ends_with('$') => format!("write ~ {path}"),
            _ => format!("write /{path}, or ~ and a regular expression"),
        };
        return Err(wrong(format!("the path `{path}` does not start with /")).with_help(help));
    }
    if path.contains(['?', '#']) {
        return Err(wrong(format!(
            "the path `{path}` can never match: paths are matched without their query"
        ))
        .with_help(format!("write {}", &path[..path.find(['?', '#']).unwrap_or(path.len())])));
    }
    if path.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(wrong(format!("the path `{path}` can never match: `.` and `..` are resolved before")));
    }
    if path.contains(char::is_control) {
        return Err(wrong("a path cannot have control characters".to_owned()));
    }
    Ok(path.to_owned())
}

/// Checks a path that is sent to an upstream.
pub fn parse_sent_path(path: &str) -> Parsed<String> {
    parse_plain_path(path).map_err(|_| {
        let error = ValueError::new(codes::PATH, format!("`{path}` is not a path to send"));
        match path.starts_with('/') {
            true => {
                error.with_help("write it without `?`, `#`, control characters and segments `.` and `..`")
            }
            false => error.with_help(format!("write /{path}")),
        }
    })
}

fn parse_host_rule(text: &str) -> Parsed<HostRule> {
    let Some(suffix) = text.strip_prefix('*') else {
        return names::parse_host_name(text).map(HostRule::Exact).map_err(|error| {
            match text.strip_prefix('.') {
                Some(name) => error.with_help(format!("write [{name}, \"*.{name}\"]")),
                None if text.starts_with('~') => {
                    error.with_help("a host is no regular expression: write each name, or \"*.example.com\"")
                }
                None => error.with_default_help("write a name such as api.example.com"),
            }
        });
    };
    match suffix.strip_prefix('.') {
        Some(name) => names::parse_host_name(name).map(|name| HostRule::Suffix(format!(".{name}"))),
        None => {
            let help = if suffix.is_empty() { "write host: any" } else { "write \"*.example.com\", or any" };
            Err(ValueError::new(codes::HOST, format!("`{text}` is not a host name")).with_help(help))
        }
    }
}

fn parse_host_header(text: &str) -> Parsed<HostHeader> {
    match text {
        "client" => Ok(HostHeader::Client),
        "upstream" => Ok(HostHeader::Upstream),
        _ => parse_fixed_host(text),
    }
}

/// A host name, with or without a port.
fn parse_fixed_host(text: &str) -> Parsed<HostHeader> {
    let name = match names::split_host_port(text) {
        Some((name, digits)) => {
            names::parse_port(digits)?;
            name
        }
        None => text,
    };
    if !text.starts_with('[') {
        names::parse_host_name(name)?;
    }
    names::parse_header_value(text).map(HostHeader::Fixed)
}
