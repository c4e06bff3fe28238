//! Reads the `cors` of a location.

use http::HeaderName;

use super::limits;
use crate::schema::tables::locations::{cors, location};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::value::names;
use sluicegate_model::{CorsConfig, CorsOrigins, OriginRule, Parsed, ValueError, codes};

/// `None` = none.
pub(crate) fn read_cors(fields: &FieldReader<'_>) -> Option<CorsConfig> {
    fields.read_section_or_none(&location::CORS, |fields| {
        let origins = fields.find_required(&cors::ORIGINS);
        let (credentials, max_age) = (fields.read(&cors::CREDENTIALS), fields.read(&cors::MAX_AGE));
        let (methods, headers) = (limits::read_methods(fields, &cors::METHODS), read_headers(fields));
        let origins = read_origins(&origins?)?;
        if let (true, CorsOrigins::Any, Some(value)) =
            (credentials, &origins, fields.find(&cors::CREDENTIALS))
        {
            let message =
                "with the origin `*`, every page on the web could use the cookies of its visitors here";
            let help = "list the origins that may, or write credentials: false";
            value.refuse(codes::WORD, message, help);
        }
        Some(CorsConfig { origins, methods, headers, credentials, max_age })
    })?
}

/// `any`, `none`, or one or more names.
fn read_headers(fields: &FieldReader<'_>) -> Option<Vec<HeaderName>> {
    let value = fields.find(&cors::HEADERS).filter(|value| !value.is_word("any"))?;
    if value.is_word("none") {
        return Some(Vec::new());
    }
    value.check_filled("write any, none, or names such as [Authorization, Content-Type]");
    Some(value.parse_list(names::parse_header_name))
}

fn read_origins(value: &FieldValue<'_>) -> Option<CorsOrigins> {
    if value.is_empty() {
        value.report_empty("write e.g. origins: https://app.example.com");
        return None;
    }
    let items = value.one_or_more();
    if let Some(any) = items.iter().find(|item| item.is_word("*")) {
        if items.len() > 1 {
            let message = "`*` allows every origin, so the others have no meaning";
            let help = "write origins: \"*\" alone, or leave it out";
            any.refuse(codes::WORD, message, help);
        }
        return Some(CorsOrigins::Any);
    }
    let rules: Vec<OriginRule> = items.iter().filter_map(|item| item.parse_with(parse_origin)).collect();
    (rules.len() == items.len()).then_some(CorsOrigins::Listed(rules))
}

/// `https://app.example.com`, `http://localhost:3000`, `https://*.example.com`.
fn parse_origin(text: &str) -> Parsed<OriginRule> {
    let wrong = || ValueError::new(codes::HOST, format!("`{text}` is not an origin"));
    if text == "null" {
        return Err(ValueError::new(
            codes::HOST,
            "the origin `null` belongs to every sandboxed page and local file",
        )
        .with_help("serve the page from a host, and write its origin"));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(wrong().with_help(match names::parse_host_name(text.trim_start_matches("*.")) {
            Ok(_) => format!("write https://{text}"),
            Err(_) => "write a scheme and a host, e.g. https://app.example.com".to_owned(),
        }));
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if !path.is_empty() {
        return Err(ValueError::new(
            codes::HOST,
            format!("the origin `{text}` has a path; browsers send none"),
        )
        .with_help(format!("write {scheme}://{authority}")));
    }
    let is_scheme_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.bytes().all(is_scheme_byte) {
        return Err(wrong().with_help("write a scheme and a host, e.g. https://app.example.com"));
    }
    let scheme = format!("{}://", scheme.to_ascii_lowercase());
    let (host, port) = split_port(authority)?;
    let port = match (scheme.as_str(), port) {
        (_, None) | ("https://", Some(443)) | ("http://", Some(80)) => String::new(),
        (_, Some(port)) => format!(":{port}"),
    };
    if host == "*" {
        return Err(wrong().with_help("write \"*\" alone for every origin, or https://*.example.com"));
    }
    Ok(match host.strip_prefix("*.") {
        Some(domain) => {
            let suffix = format!(".{}{port}", names::parse_host_name(domain)?);
            OriginRule::Subdomains { scheme, suffix }
        }
        None => OriginRule::Exact(format!("{scheme}{}{port}", names::parse_host_name(host)?)),
    })
}

/// The host, with the brackets of an IPv6 address, and the port.
fn split_port(authority: &str) -> Parsed<(&str, Option<u16>)> {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => names::parse_port(port).map(|port| (host, Some(port))),
        _ => Ok((authority, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_become_what_browsers_send() {
        for (written, sent) in [
            ("https://app.example.com", "https://app.example.com"),
            ("HTTPS://App.Example.COM", "https://app.example.com"),
            ("https://app.example.com:443", "https://app.example.com"),
            ("http://app.example.com:80", "http://app.example.com"),
            ("http://app.example.com:443", "http://app.example.com:443"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("http://[0:0::1]", "http://[::1]"),
            ("capacitor://localhost", "capacitor://localhost"),
        ] {
            assert_eq!(parse_origin(written).unwrap(), OriginRule::Exact(sent.to_owned()), "{written}");
        }
        let subdomains = |scheme: &str, suffix: &str| OriginRule::Subdomains {
            scheme: scheme.to_owned(),
            suffix: suffix.to_owned(),
        };
        for (written, rule) in [
            ("https://*.Example.com", subdomains("https://", ".example.com")),
            ("https://*.example.com:443", subdomains("https://", ".example.com")),
            ("http://*.localhost:3000", subdomains("http://", ".localhost:3000")),
        ] {
            assert_eq!(parse_origin(written).unwrap(), rule, "{written}");
        }
    }

    #[test]
    fn wrong_origins_are_told_how_to_be_right() {
        for (written, help) in [
            ("example.com", "write https://example.com"),
            ("*.example.com", "write https://*.example.com"),
            ("https://example.com/", "write https://example.com"),
            ("https://example.com/app?x", "write https://example.com"),
            ("https://*", "write \"*\" alone for every origin, or https://*.example.com"),
            ("https://", ""),
            ("https://a b", ""),
            ("https://a.*.example.com", ""),
            ("https://user@example.com", ""),
            ("https://example.com:http", "write a number from 1 to 65535, e.g. 8080"),
            ("://example.com", "write a scheme and a host, e.g. https://app.example.com"),
            ("", "write a scheme and a host, e.g. https://app.example.com"),
            ("null", "serve the page from a host, and write its origin"),
        ] {
            let error = parse_origin(written).unwrap_err();
            assert_eq!(error.suggestion.unwrap_or_default(), help, "{written}");
        }
    }
}
