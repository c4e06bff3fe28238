//! The fields of `auth` of a location.

use std::time::Duration;

use http::HeaderName;
use http::uri::PathAndQuery;

use super::limits::chain;
use super::upstreams::parse_check_path;
use crate::schema::field::{OneOrMore, section};
use crate::schema::kinds::{NONZERO_TIME, NestedOrNone, Number, OneOrMoreOrWord, Special, Text, Words, text};
use sluicegate_model::value::names;
use sluicegate_model::{Parsed, ValueError, codes};

section! {
    /// A service that decides on each request, as `auth_request` of nginx and `forward_auth` of Caddy. It gets a GET
    /// with X-Forwarded-Method, -Uri, -Host, -Proto and -For, with X-Original-Method, -URI and -URL and X-Real-IP, and
    /// no body. On 2xx the request goes on; 401, 403 and redirects go to the client.
    mod auth = "locations[].auth";
    /// The URL of the service, or `unix:/path`. Exactly one of `url` and `upstream` is needed.
    URL: Special = Special(|| text("a URL")), "url", "none", "http://127.0.0.1:9091/verify";
    /// The upstream of the service; its timeouts, retries and health checks hold for questions as well.
    UPSTREAM: Special = Special(|| text("the name of an upstream")), "upstream", "none", "login";
    /// The path of a question, with or without a query, unless `url` has one.
    PATH: Text<PathAndQuery> = Text::new("a path", parse_check_path), "path", "/", "/verify";
    /// A chain that is judged before the question, as a transaction of its own; an answer from the cache takes none.
    /// Its limits have a rate, and neither `account` nor `tier`. One that is in the chain of the location as well
    /// counts once.
    LIMITS: Special = Special(chain), "limits", "[]", "[per-ip]";
    /// Request headers that go along with the question.
    SEND: OneOrMore<Text<HeaderName>> = OneOrMore(Text::new("a header name", parse_sent)),
        "send", "[cookie, authorization]", "[cookie]";
    /// Headers of the answer that the upstream gets. Requests at all locations lose theirs, in every spelling that
    /// CGI servers read as the same name.
    COPY: OneOrMore<Text<HeaderName>> = OneOrMore(Text::new("a header name", parse_copied)),
        "copy", "[]", "[X-User, X-Groups]";
    /// Answers that are kept.
    CACHE: NestedOrNone = NestedOrNone(&auth_cache::SECTION), "cache", "none", "{ by: [cookie, authorization] }";
    /// The time of a whole question.
    TIMEOUT: Text<Duration> = NONZERO_TIME, "timeout", "2s", "500ms";
    /// The status without a decision: any other answer, none in time, or a body of more than 64KiB.
    ON_FAILURE: Text<bool> = Text::new("503 or 403", parse_failure), "on_failure", "503", "403";
}

section! {
    /// Answers that admit, and set no cookie, hold for equal requests: of the same location, method, scheme, host,
    /// target and client address, with the same headers of `by`. Each worker keeps its own, and a reload forgets
    /// them.
    mod auth_cache = "locations[].auth.cache";
    /// Request headers that tell answers apart, all of `send` among them.
    BY: OneOrMore<Text<HeaderName>> = OneOrMore(Text::new("a header name", names::parse_header_name)),
        "by", required, "[cookie, authorization]";
    /// The longest time for which an answer holds; its own `max-age` may be shorter.
    FOR: Text<Duration> = NONZERO_TIME, "for", "30s", "1m";
    /// The answers that all workers keep together.
    AT_MOST: Number<usize> = Number(1, 10_000_000), "at_most", "100000", "10000";
    /// Facts that the service does not look at, so that answers hold whatever they are.
    IGNORE: OneOrMoreOrWord<Words<&'static str>> = OneOrMoreOrWord("none", Words(&[
        ("target", "target"), ("method", "method"), ("address", "address"),
    ])), "ignore", "none", "[target, method]";
}

/// A header that may go along with a question: neither one of the connection nor about the origin of the request.
fn parse_sent(text: &str) -> Parsed<HeaderName> {
    let name = names::parse_editable_header(text)?;
    let folded = name.as_str().replace(|byte: char| !byte.is_ascii_alphanumeric(), "-");
    let is_family = ["x-forwarded-", "x-original-"].iter().any(|start| folded.starts_with(start));
    if is_family || ["forwarded", "x-real-ip"].contains(&folded.as_str()) {
        let message = format!("the header `{name}` says where a request comes from, which is written here");
        return Err(ValueError::new(codes::PROTECTED_HEADER, message).with_help("leave it out"));
    }
    Ok(name)
}

fn parse_copied(text: &str) -> Parsed<HeaderName> {
    let name = parse_sent(text)?;
    if name == http::header::COOKIE {
        let message = "an answer cannot replace the cookies of requests";
        return Err(ValueError::new(codes::PROTECTED_HEADER, message).with_help("copy another header"));
    }
    Ok(name)
}

fn parse_failure(text: &str) -> Parsed<bool> {
    match text {
        "503" => Ok(false),
        "403" => Ok(true),
        _ => Err(ValueError::new(codes::STATUS, format!("`{text}` is no status of a failure"))
            .with_help("write 503 or 403; without a decision nothing is opened")),
    }
}
