//! Parses `tracing.otlp`, the URL of a collector of spans.
//!
//! No message quotes any part of the URL, because a mistyped part may be a password.

use super::scalars::Parsed;
use super::server_url;
use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;
use crate::traces::CollectorConfig;
use crate::upstream::ServerAddress;

/// The path of spans, if the URL has none.
const SPANS_PATH: &str = "/v1/traces";

const FORM: &str = "write e.g. http://127.0.0.1:4318 or https://otlp.example.com/v1/traces";

/// `http://` or `https://`, a host, a port unless it is 80 or 443, and the path unless it is `/v1/traces`.
pub fn parse_otlp_url(text: &str) -> Parsed<CollectorConfig> {
    let wrong = |message: &str, help: &str| Err(ValueError::new(codes::ADDRESS, message).with_help(help));
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
        Some(("grpc" | "grpcs", _)) => {
            return wrong(
                "spans are not sent over gRPC",
                "write http:// and the port of OTLP over HTTP, often 4318",
            );
        }
        _ => return wrong("this is not the URL of a collector", FORM),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if text.contains('@') {
        let help = "write the URL without them, and headers: { authorization: \"${OTLP_AUTHORIZATION}\" }";
        return wrong("the URL of a collector has no user name or password", help);
    }
    if path.contains(['?', '#']) {
        return wrong("the URL of a collector has no query", "write what it holds into headers");
    }
    if !path.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'<' | b'>' | b'\\')) {
        return wrong("the path of the URL has characters that must be encoded", FORM);
    }
    let parsed = server_url::parse_server(&format!("{scheme}://{authority}"));
    let Ok(ServerAddress::Tcp { host, port }) = parsed.map(|server| server.address) else {
        return wrong("the URL does not name a host and a port", FORM);
    };
    let path = if matches!(path, "" | "/") { SPANS_PATH } else { path };
    let address = ServerAddress::Tcp { host: host.clone(), port };
    Ok(CollectorConfig {
        tls: scheme == "https",
        host,
        port,
        authority: address.to_string(),
        path: path.to_owned(),
        headers: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_url() {
        for (text, tls, authority, path) in [
            ("http://127.0.0.1:4318", false, "127.0.0.1:4318", "/v1/traces"),
            ("http://collector:4318/", false, "collector:4318", "/v1/traces"),
            ("https://Otlp.example.com", true, "otlp.example.com:443", "/v1/traces"),
            ("https://otlp.example.com/otlp/v1/traces", true, "otlp.example.com:443", "/otlp/v1/traces"),
            ("http://[::1]:4318", false, "[::1]:4318", "/v1/traces"),
        ] {
            let url = parse_otlp_url(text).unwrap();
            assert_eq!(
                (url.tls, url.authority.as_str(), url.path.as_str()),
                (tls, authority, path),
                "{text}"
            );
        }
        assert_eq!(parse_otlp_url("http://[::1]:4318").unwrap().host, "::1");
    }

    #[test]
    fn a_wrong_url_is_not_quoted() {
        for wrong in [
            "collector:4318",
            "grpc://collector:4317",
            "unix:/run/hunter2",
            "http://",
            "http://u:hunter2@collector:4318",
            "http://collector:4318/hunter2@x",
            "http://collector:hunter2",
            "http://collector/?key=hunter2",
            "http://collector?key=hunter2",
            "http://collector/a b hunter2",
            "http://collector:0",
        ] {
            let error = parse_otlp_url(wrong).unwrap_err();
            assert_eq!(error.code, codes::ADDRESS, "{wrong}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
