//! Parsers of names from HTTP and networking: headers, hosts, methods, networks, addresses, status codes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use http::{HeaderName, HeaderValue, StatusCode};
use ipnet::IpNet;

use super::network_hint::suggest_network;
use super::scalars::{self, Parsed};
use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;
use crate::key::ValueSource;
use sluicegate_base::json_pointer::JsonPointer;

/// The kernel's structure holds 108 bytes of a unix socket's path, terminator included.
const UNIX_PATH_MAX: usize = 107;

/// A header name, in any case.
pub fn parse_header_name(text: &str) -> Parsed<HeaderName> {
    if text.is_empty() {
        return Err(ValueError::new(codes::HEADER, "the name of the header is missing")
            .with_help("write e.g. X-Api-Key"));
    }
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
        ValueError::new(codes::HEADER, format!("`{text}` is not a header name")).with_help(
            match text.trim() {
                name if name != text => format!("write {name} without spaces around it"),
                _ => "a header name has letters, digits and hyphens".to_owned(),
            },
        )
    })
}

/// A header value: visible text without control characters.
pub fn parse_header_value(text: &str) -> Parsed<HeaderValue> {
    HeaderValue::from_str(text).map_err(|_| {
        ValueError::new(codes::HEADER, "a header value may not have line breaks or other control characters")
    })
}

/// Headers about the connection or the message length, which the gateway writes itself.
const FRAMING: [&str; 9] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// A header that the file may set or remove.
pub fn parse_editable_header(text: &str) -> Parsed<HeaderName> {
    let name = parse_header_name(text)?;
    if name == http::header::HOST {
        return Err(ValueError::new(codes::PROTECTED_HEADER, "the header `host` is not edited here")
            .with_help("use host_header: client, upstream or a name"));
    }
    if FRAMING.contains(&name.as_str()) {
        return Err(ValueError::new(
            codes::PROTECTED_HEADER,
            format!("the header `{name}` belongs to the connection and cannot be edited"),
        ));
    }
    Ok(name)
}

/// A network, or an address as a network of one; bits after the prefix are cleared.
pub fn parse_network(text: &str) -> Parsed<IpNet> {
    if let Ok(net) = text.parse::<IpNet>() {
        return Ok(net.trunc());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address));
    }
    Err(ValueError::new(codes::NETWORK, format!("`{text}` is not an address or network"))
        .with_optional_help(suggest_network(text))
        .with_default_help("write e.g. 10.0.0.0/8, 192.0.2.7 or 2001:db8::/32"))
}

/// True if `text` is more likely the name of a set than a mistyped network.
pub fn looks_like_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.contains(|c: char| !c.is_ascii_hexdigit() && c != '.')
        && !text.contains([':', '/'])
}

/// A host name as in a URL, without a port: letters, digits, dots, hyphens, underscores.
pub fn parse_host_name(text: &str) -> Parsed<String> {
    let wrong = || ValueError::new(codes::HOST, format!("`{text}` is not a host name"));
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return inner.parse::<Ipv6Addr>().map(|address| format!("[{address}]")).map_err(|_| wrong());
    }
    if text.contains("://") || text.contains('/') {
        return Err(wrong().with_help("write the name alone, without scheme and path"));
    }
    if text.contains(':') {
        return Err(wrong().with_help("write the name alone, without a port"));
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let label = |part: &str| {
        (1..=63).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if name.len() > 253 || !name.split('.').all(label) {
        let error = wrong();
        return Err(if name.is_ascii() { error } else { error.with_help("write it in its xn-- form") });
    }
    Ok(name)
}

/// The path of a unix socket.
pub fn parse_unix_path(path: &str) -> Parsed<PathBuf> {
    let wrong = |message: &str| ValueError::new(codes::ADDRESS, message);
    if !path.starts_with('/') {
        return Err(wrong("the path of a unix socket starts with /").with_help(format!("write unix:/{path}")));
    }
    if path.len() > UNIX_PATH_MAX || path.contains('\0') {
        return Err(wrong("the path of a unix socket has at most 107 bytes"));
    }
    Ok(PathBuf::from(path))
}

/// A text that is not empty.
///
/// # Errors
/// The empty one, with this code and message.
pub fn parse_filled(text: &str, code: &'static str, empty: impl Into<String>) -> Parsed<String> {
    if text.is_empty() { Err(ValueError::new(code, empty)) } else { Ok(text.to_owned()) }
}

/// The name of a file, which is not its content.
pub fn parse_file_name(text: &str) -> Parsed<PathBuf> {
    let wrong = |message: &str| Err(ValueError::new(codes::UNREADABLE, message));
    if text.is_empty() || text.contains('\0') {
        return wrong("the name of the file is empty or has a NUL");
    }
    if text.contains("-----BEGIN") {
        return wrong("this is the content of a file; write the file's name");
    }
    Ok(PathBuf::from(text))
}

/// The status code of a response, from `min` to 599.
pub fn parse_status(text: &str, min: u64) -> Parsed<StatusCode> {
    let number = scalars::parse_number(text, min, 599).ok();
    number.and_then(|number| StatusCode::from_u16(number as u16).ok()).ok_or_else(|| {
        ValueError::new(codes::STATUS, format!("`{text}` is not a status code that can be sent here"))
            .with_help(format!("write a number from {min} to 599"))
    })
}

/// A port; 0 stands for any free one.
pub fn parse_port(text: &str) -> Parsed<u16> {
    let number = scalars::parse_number(text, 0, 65_535).map_err(|_| {
        ValueError::new(codes::ADDRESS, format!("`{text}` is not a port"))
            .with_help("write a number from 1 to 65535, e.g. 8080")
    })?;
    Ok(u16::try_from(number).unwrap_or(u16::MAX))
}

/// Splits `host:port`; an IPv6 host loses its brackets. `None` if there is no port.
pub fn split_host_port(text: &str) -> Option<(&str, &str)> {
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once("]:");
    }
    let (host, port) = text.rsplit_once(':')?;
    (!host.contains(':')).then_some((host, port))
}

/// `address:port` to listen on. `localhost` is 127.0.0.1; other names are not resolved.
pub fn parse_socket_address(text: &str) -> Parsed<SocketAddr> {
    let wrong = || ValueError::new(codes::ADDRESS, format!("`{text}` is not an address to listen on"));
    let Some((host, digits)) = split_host_port(text) else {
        let error = wrong();
        return Err(match text.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => error.with_help(format!("add a port: [{address}]:8080")),
            Ok(address) => error.with_help(format!("add a port: {address}:8080")),
            Err(_) => error.with_help(suggest_listen(text)),
        });
    };
    if text.contains(['/', ' ']) {
        return Err(wrong().with_help(suggest_listen(text)));
    }
    let port = parse_port(digits)?;
    if host == "localhost" {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let address = host.parse::<IpAddr>();
    address
        .map(|address| SocketAddr::new(address, port))
        .map_err(|_| wrong().with_help(format!("write an address, e.g. 127.0.0.1:{port}")))
}

/// The right spelling of an address to listen on, for `http://0.0.0.0:80`, `localhost` or `443 ssl`.
fn suggest_listen(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let rest = rest.trim_end_matches('/');
    let mut words = rest.split_whitespace();
    let (first, options) = (words.next().unwrap_or_default(), words.collect::<Vec<_>>());
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let port = if scheme == "https" { 443 } else { 80 };
    let address = match first {
        "localhost" => Some(format!("127.0.0.1:{}", if scheme.is_empty() { 8080 } else { port })),
        first if is_port(first) => Some(format!(":{first}")),
        first if first.parse::<SocketAddr>().is_ok() => Some(first.to_owned()),
        first => match split_host_port(first) {
            Some(("localhost", port)) if is_port(port) => Some(format!("127.0.0.1:{port}")),
            Some(("" | "*", port)) if is_port(port) => Some(format!(":{port}")),
            None if first.parse::<Ipv4Addr>().is_ok() => Some(format!("{first}:{port}")),
            _ => None,
        },
    };
    let Some(address) = address else { return "write e.g. 127.0.0.1:8080 or [::1]:8080".to_owned() };
    if scheme == "https" || options.contains(&"ssl") {
        return format!("write {{ address: \"{address}\", tls: {{ cert: chain.pem, key: key.pem }} }}");
    }
    if options.contains(&"proxy_protocol") {
        return format!("write {{ address: \"{address}\", proxy_protocol: required }}");
    }
    format!("write {}", address.trim_start_matches(':'))
}

/// `header:`, `cookie:`, `query:`, `jwt:` or `json:` with a name; `None` for any other text.
pub fn parse_source(text: &str) -> Option<Parsed<ValueSource>> {
    let (kind, name) = text.split_once(':')?;
    Some(match kind {
        "header" => parse_header_name(name).map(ValueSource::Header),
        "cookie" if is_cookie_name(name) => Ok(ValueSource::Cookie(name.to_owned())),
        "query" if !name.is_empty() => Ok(ValueSource::Query(name.to_owned())),
        "cookie" => Err(ValueError::new(codes::WORD, format!("`{name}` is not a cookie name"))),
        "query" => Err(ValueError::new(codes::WORD, "`query:` needs the name of a parameter")),
        "jwt" if !name.is_empty() => Ok(ValueSource::Jwt(name.to_owned())),
        "jwt" => {
            Err(ValueError::new(codes::WORD, "`jwt:` needs the name of a claim")
                .with_help("write e.g. jwt:sub"))
        }
        "json" => parse_pointer(name).map(ValueSource::Json),
        _ => return None,
    })
}

/// The right spelling of a source that a word probably means: for `X-Api-Key`, `header.X-Api-Key` or `$http_x_api_key`.
pub fn suggest_source(text: &str) -> Option<String> {
    const KINDS: [(&str, &str); 9] = [
        ("header.", "header:"),
        ("header_", "header:"),
        ("cookie.", "cookie:"),
        ("query.", "query:"),
        ("jwt.", "jwt:"),
        ("claim.", "jwt:"),
        ("$http_", "header:"),
        ("$cookie_", "cookie:"),
        ("$arg_", "query:"),
    ];
    let lower = text.to_ascii_lowercase();
    if let Some((start, kind)) = KINDS.iter().find(|(start, _)| lower.starts_with(start)) {
        let name = text.get(start.len()..).filter(|name| is_cookie_name(name))?;
        let name = if *start == "$http_" { name.replace('_', "-") } else { name.to_owned() };
        return Some(format!("write {kind}{name}"));
    }
    let is_header =
        lower.starts_with("x-") || matches!(lower.as_str(), "authorization" | "user-agent" | "api-key");
    (is_header && is_cookie_name(text)).then(|| format!("write header:{text}"))
}

/// The name of a cookie.
pub fn parse_cookie_name(text: &str) -> Parsed<String> {
    let wrong = || {
        ValueError::new(codes::WORD, format!("`{text}` is not a cookie name"))
            .with_help("write e.g. cookie: sg")
    };
    is_cookie_name(text).then(|| text.to_owned()).ok_or_else(wrong)
}

fn is_cookie_name(name: &str) -> bool {
    HeaderName::from_bytes(name.as_bytes()).is_ok()
}

/// Checks a name that the file gives to a limit, an upstream or a set.
pub fn check_name(text: &str) -> Parsed<()> {
    let wrong = |message: String| Err(ValueError::new(codes::NAME, message));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > 64 || !text.chars().all(plain) {
        return wrong(format!("`{text}` cannot be a name: use up to 64 letters, digits, `-`, `_` and `.`"));
    }
    if matches!(text, "none" | "any" | "auto") {
        return wrong(format!("`{text}` cannot be a name: it is a word of the file"));
    }
    Ok(())
}

/// True if `text` can be the name of a tier, in the file or in a request.
pub fn is_tier_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Parses a JSON pointer, as `json:/a/b` names a value.
pub fn parse_pointer(text: &str) -> Parsed<JsonPointer> {
    JsonPointer::parse(text).map_err(|reason| {
        ValueError::new(codes::WORD, format!("`{text}` is not a JSON pointer: {reason}"))
            .with_help("write e.g. json:/model or json:/params/name")
    })
}

/// Checks the name of a tier: up to 64 visible ASCII characters.
pub fn check_tier_name(text: &str) -> Parsed<()> {
    check_label(text, "tier")
}

/// # Errors
/// The text cannot be the name of a class of callers.
pub fn check_class_name(text: &str) -> Parsed<()> {
    check_label(text, "class")
}

fn check_label(text: &str, what: &str) -> Parsed<()> {
    let fits = is_tier_name(text) && text != "none";
    fits.then_some(()).ok_or_else(|| {
        ValueError::new(codes::NAME, format!("`{text}` cannot be the name of a {what}"))
            .with_help("use up to 64 letters, digits and marks, without spaces")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        assert_eq!(parse_header_name("X-Api-Key").unwrap(), "x-api-key");
        assert_eq!(parse_header_name("x y").unwrap_err().code, codes::HEADER);
        assert_eq!(parse_header_value("a\nb").unwrap_err().code, codes::HEADER);
        assert!(parse_editable_header("Host").unwrap_err().suggestion.unwrap().contains("host_header"));
        for name in ["Content-Length", "transfer-encoding", "Connection", "upgrade"] {
            assert_eq!(parse_editable_header(name).unwrap_err().code, codes::PROTECTED_HEADER);
        }
    }

    #[test]
    fn networks_and_names_of_sets() {
        assert_eq!(parse_network("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(parse_network("::1").unwrap().to_string(), "::1/128");
        assert!(parse_network("10.0.0.0/33").is_err() && parse_network("10.0.0/8").is_err());
        assert!(looks_like_name("office") && !looks_like_name("10.0.0.0/33") && !looks_like_name("fe80::x"));
    }

    #[test]
    fn hosts() {
        assert_eq!(parse_host_name("API.Example.com.").unwrap(), "api.example.com");
        assert_eq!(parse_host_name("[::1]").unwrap(), "[::1]");
        for wrong in ["", "a b", "a:80", "http://a", "a..b", "münchen.de", "*.a"] {
            assert_eq!(parse_host_name(wrong).unwrap_err().code, codes::HOST, "{wrong}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(parse_socket_address("127.0.0.1:80").unwrap().to_string(), "127.0.0.1:80");
        assert_eq!(parse_socket_address("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert_eq!(parse_socket_address("localhost:80").unwrap().to_string(), "127.0.0.1:80");
        for wrong in ["127.0.0.1", "::1", "127.0.0.1:99999", "example.com:80", "::1:80", ""] {
            assert_eq!(parse_socket_address(wrong).unwrap_err().code, codes::ADDRESS, "{wrong}");
        }
    }

    #[test]
    fn sources() {
        assert_eq!(
            parse_source("header:X-A").unwrap().unwrap(),
            ValueSource::Header(HeaderName::from_static("x-a"))
        );
        assert_eq!(parse_source("query:k").unwrap().unwrap(), ValueSource::Query("k".to_owned()));
        assert_eq!(parse_source("jwt:sub").unwrap().unwrap(), ValueSource::Jwt("sub".to_owned()));
        assert_eq!(parse_source("jwt:").unwrap().unwrap_err().code, codes::WORD);
        assert!(
            parse_source("cookie:a b").unwrap().is_err()
                && parse_source("ip").is_none()
                && parse_source("peer:x").is_none()
        );
    }
}
