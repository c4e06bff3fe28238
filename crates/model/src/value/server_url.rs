//! Parses the address of a server of an upstream.

use std::net::Ipv6Addr;

use rustls::pki_types::ServerName;

use super::names;
use super::scalars::Parsed;
use crate::UpstreamServerConfig;
use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;
use crate::diagnostics::redact::redact_credentials;
use crate::upstream::ServerAddress;

/// The prefix of a server's address on a unix socket.
const UNIX: &str = "unix:";

/// True if `text` names a server wherever an upstream can be named.
pub fn is_server_url(text: &str) -> bool {
    text.contains("://") || text.starts_with(UNIX)
}

/// `unix:/path`, or a form of [`parse_tcp_server`].
pub fn parse_server(text: &str) -> Parsed<UpstreamServerConfig> {
    parse_address(text).map_err(|error| match suggest_options(text) {
        Some(help) => error.with_help(help),
        None => error,
    })
}

/// The right spelling of nginx's `server 10.0.0.1:80 weight=2 backup;`.
fn suggest_options(text: &str) -> Option<String> {
    let mut words = text.trim_end_matches(';').split_whitespace().skip_while(|word| *word == "server");
    let server = words.next().filter(|server| parse_address(server).is_ok())?;
    let url = if is_server_url(server) { server.to_owned() } else { format!("http://{server}") };
    let mut fields = vec![format!("url: \"{url}\"")];
    for word in words {
        match word.split_once('=') {
            Some(("weight", weight)) => fields.push(format!("weight: {weight}")),
            None if word == "backup" => fields.push("backup: true".to_owned()),
            _ => {}
        }
    }
    Some(if fields.len() == 1 {
        format!("write {server}")
    } else {
        format!("write {{ {} }}", fields.join(", "))
    })
}

fn parse_address(text: &str) -> Parsed<UpstreamServerConfig> {
    if let Some(path) = text.strip_prefix(UNIX) {
        return parse_unix_server(path);
    }
    let after_scheme = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    if let Some(path) = after_scheme.and_then(|rest| rest.strip_prefix(UNIX)) {
        let message = "a unix socket has no scheme";
        return Err(ValueError::new(codes::ADDRESS, message).with_help(format!("write unix:{path}")));
    }
    parse_tcp_server(text)
}

fn parse_unix_server(path: &str) -> Parsed<UpstreamServerConfig> {
    if path.contains(char::is_control) {
        return Err(ValueError::new(codes::ADDRESS, "the path of a server's socket has control characters"));
    }
    let address = ServerAddress::Unix(names::parse_unix_path(path)?);
    Ok(UpstreamServerConfig { address, tls: false, weight: 1, backup: false })
}

/// `host:port`, `http://host[:port]` or `https://host[:port]`.
fn parse_tcp_server(text: &str) -> Parsed<UpstreamServerConfig> {
    let wrong = |message: String| ValueError::new(codes::ADDRESS, message);
    let tls = text.starts_with("https://");
    let (authority, default_port) = match text.split_once("://") {
        Some(("http", rest)) => (rest.strip_suffix('/').unwrap_or(rest), Some(80)),
        Some(("https", rest)) => (rest.strip_suffix('/').unwrap_or(rest), Some(443)),
        Some((scheme, _)) => {
            let help = match scheme {
                "grpc" | "h2c" => "write http://host:port, and protocol: http2 in the upstream",
                "grpcs" | "h2" => "write https://host:port, and protocol: http2 in the upstream",
                _ => "write http://host:port or https://host:port",
            };
            return Err(wrong(format!("`{scheme}://` is not a scheme of a server")).with_help(help));
        }
        None => (text, None),
    };
    if authority.contains(['/', '?', '#']) {
        return Err(wrong(format!("the server `{text}` has a path")).with_help(suggest_server(text)));
    }
    if authority.contains('@') {
        return Err(wrong("a server's address has no user name or password".to_owned()));
    }
    let (host, port) = match (names::split_host_port(authority), default_port) {
        (Some((host, digits)), _) => (host, names::parse_port(digits)?),
        (None, Some(port)) => (authority.trim_start_matches('[').trim_end_matches(']'), port),
        (None, None) => {
            return Err(wrong(format!("the server `{text}` has no port")).with_help(
                match text.parse::<u16>() {
                    Ok(port) => format!("write 127.0.0.1:{port}"),
                    Err(_) => format!("write {text}:80 or http://{text}"),
                },
            ));
        }
    };
    if port == 0 {
        return Err(wrong(format!("the server `{text}` has port 0")));
    }
    let bracketed = authority.starts_with('[');
    let host = if bracketed {
        host.parse::<Ipv6Addr>().map(|address| address.to_string()).map_err(|_| ())
    } else {
        names::parse_host_name(host).map_err(|_| ())
    };
    let host = host.map_err(|()| {
        wrong(format!("`{text}` does not name a host")).with_help("write host:port or [IPv6]:port")
    })?;
    if tls && ServerName::try_from(host.as_str()).is_err() {
        return Err(wrong(format!("`{text}` does not name a host that a certificate can have")));
    }
    Ok(UpstreamServerConfig { address: ServerAddress::Tcp { host, port }, tls, weight: 1, backup: false })
}

/// A server without its path, which cannot be added to those of requests.
fn suggest_server(text: &str) -> String {
    let start = text.find("://").map_or(0, |at| at + 3);
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |at| start + at);
    format!(
        "write {}; the path of a request is forwarded as it is, and strip in the location removes its beginning",
        redact_credentials(&text[..end])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_server() {
        let read = |text: &str| parse_server(text).map(|server| server.address.to_string()).unwrap();
        assert_eq!(read("10.0.0.1:9000"), "10.0.0.1:9000");
        assert_eq!(read("http://App.internal"), "app.internal:80");
        assert_eq!(read("http://app:8080/"), "app:8080");
        assert_eq!(read("[::1]:9000"), "[::1]:9000");
        assert_eq!(read("http://[::1]"), "[::1]:80");
        assert_eq!(read("unix:/run/App.sock"), "unix:/run/App.sock");
        let too_long = format!("unix:/{}", "x".repeat(107));
        for wrong in [
            "10.0.0.1",
            "http://a/b",
            "http://u:p@a",
            "ftp://a",
            "a:0",
            "a:99999",
            "a b:80",
            "::1:80",
            "http://",
            "[x]:80",
            "unix:",
            "unix:app.sock",
            "unix:@app",
            "unix:/run/a\nb",
            &too_long,
            "http://unix:/run/app.sock",
            "https://unix:/run/app.sock",
        ] {
            assert_eq!(parse_server(wrong).unwrap_err().code, codes::ADDRESS, "{wrong}");
        }
        let secure = parse_server("https://[::1]").unwrap();
        assert_eq!((secure.address.to_string().as_str(), secure.tls), ("[::1]:443", true));
        assert!(!parse_server("http://https:1").unwrap().tls);
    }
}
