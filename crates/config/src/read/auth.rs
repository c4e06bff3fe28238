//! Reads `auth` of a location: the service that decides on its requests.

use http::HeaderName;
use http::uri::PathAndQuery;

use super::limits::LimitReader;
use super::upstreams::UpstreamReader;
use crate::schema::tables::auth::{auth, auth_cache};
use crate::schema::tables::locations::location;
use crate::yaml::field_reader::FieldReader;
use sluicegate_model::value::names;
use sluicegate_model::value::server_url::is_server_url;
use sluicegate_model::{AuthCacheConfig, AuthConfig, Parsed, UpstreamId, ValueError, codes};

/// `None` = none. `owner` is the name of the location in those of inline limits.
pub(crate) fn read_auth(
    fields: &FieldReader<'_>,
    limits: &mut LimitReader<'_>,
    upstreams: &UpstreamReader<'_>,
    owner: &str,
) -> Option<AuthConfig> {
    fields.read_section_or_none(&location::AUTH, |fields| {
        let service = read_service(fields, upstreams);
        let chain = fields.find(&auth::LIMITS).map(|value| {
            let chain = limits.read_chain(&value, &format!("{owner} auth"));
            limits.refuse_unfit(&chain, &value);
            chain
        });
        let chain = chain.unwrap_or_default();
        let (send, copy) = (fields.read(&auth::SEND), fields.read(&auth::COPY));
        if let (Some(value), Some(name)) =
            (fields.find(&auth::COPY), send.iter().find(|name| is_copied(&copy, name)))
        {
            let message = format!("`{name}` is in `send`, and every request loses the headers of `copy`");
            value.refuse(codes::PROTECTED_HEADER, message, "leave it out of `send` or of `copy`");
        }
        let cache = fields.read_section_or_none(&auth::CACHE, |fields| read_cache(fields, &send, &copy));
        let cache = cache.flatten();
        let (timeout, denies_on_failure) = (fields.read(&auth::TIMEOUT), fields.read(&auth::ON_FAILURE));
        let (limits, views) = (chain.limits, chain.views);
        let (upstream, target) = service?;
        Some(AuthConfig { upstream, target, limits, views, send, copy, cache, timeout, denies_on_failure })
    })?
}

/// True if CGI servers read the header as one of `copied`: any character but letters and digits is the same to them.
pub(crate) fn is_copied(copied: &[HeaderName], header: &HeaderName) -> bool {
    let fold = |name: &HeaderName| name.as_str().replace(|byte: char| !byte.is_ascii_alphanumeric(), "-");
    copied.iter().any(|name| fold(name) == fold(header))
}

/// The upstream of the service, and the target of questions.
fn read_service(
    fields: &FieldReader<'_>,
    upstreams: &UpstreamReader<'_>,
) -> Option<(UpstreamId, PathAndQuery)> {
    let (url, named) = (fields.find(&auth::URL), fields.find(&auth::UPSTREAM));
    match (url, named) {
        (Some(url), None) => {
            let (server, target) = url.parse_with(split_url)?;
            if let (Some(_), Some(path)) = (&target, fields.find(&auth::PATH)) {
                path.refuse(codes::PATH, "`url` has a path already", "write the path once");
            }
            let upstream = upstreams.resolve_text(&url, server)?;
            Some((upstream, target.unwrap_or_else(|| fields.read(&auth::PATH))))
        }
        (None, Some(named)) if named.is_word("demo") => {
            named.refuse(codes::UNDEFINED, "`demo` admits everybody", "name the upstream of a service");
            None
        }
        (None, Some(named)) => Some((upstreams.resolve_name(&named)?, fields.read(&auth::PATH))),
        (Some(_), Some(named)) => {
            named.refuse_name(codes::NAME, "the service is named twice", "write either `url` or `upstream`");
            None
        }
        (None, None) => {
            fields.report_missing("url", "write e.g. url: http://127.0.0.1:9091/verify, or upstream: NAME");
            None
        }
    }
}

/// The server of a URL, and its path if it has one.
fn split_url(text: &str) -> Parsed<(String, Option<PathAndQuery>)> {
    let wrong = |message: String| ValueError::new(codes::ADDRESS, message);
    if !is_server_url(text) {
        return Err(wrong(format!("`{text}` is no URL")).with_help(format!("write http://{text}")));
    }
    let start = text.find("://").map_or(text.len(), |at| at + 3);
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |at| start + at);
    let (server, path) = text.split_at(end);
    if path.is_empty() || path == "/" {
        return Ok((server.to_owned(), None));
    }
    let target = PathAndQuery::try_from(path).ok().filter(|_| path.starts_with('/') && !path.contains('#'));
    let target = target.ok_or_else(|| wrong(format!("`{path}` is no path of a URL")))?;
    Ok((server.to_owned(), Some(target)))
}

fn read_cache(fields: &FieldReader<'_>, send: &[HeaderName], copy: &[HeaderName]) -> Option<AuthCacheConfig> {
    let value = fields.find_required(&auth_cache::BY);
    let by = value.as_ref().map(|value| value.parse_list(names::parse_header_name));
    let ignored = fields.read_list_or_word(&auth_cache::IGNORE);
    let (span, at_most) = (fields.read(&auth_cache::FOR), fields.read(&auth_cache::AT_MOST));
    let (by, value) = (by?, value?);
    if let Some(lacking) = send.iter().find(|name| !by.contains(name)) {
        let message = format!("`by` lacks `{lacking}`, which the service judges by");
        value.refuse(codes::MISSING, message, "name all headers of `send` in `by`");
    }
    if let Some(name) = by.iter().find(|name| is_copied(copy, name)) {
        let message = format!("`{name}` is in `copy`, so every request loses its own");
        value.refuse(codes::PROTECTED_HEADER, message, "leave it out of `by`");
    }
    Some(AuthCacheConfig {
        by,
        span,
        at_most,
        ignores_target: ignored.contains(&"target"),
        ignores_method: ignored.contains(&"method"),
        ignores_address: ignored.contains(&"address"),
    })
}
