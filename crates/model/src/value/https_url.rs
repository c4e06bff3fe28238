//! Parses the URLs of documents that are fetched: the keys of an issuer, and the document that names them; and that of
//! the receiver of events.

use std::fmt;
use std::net::IpAddr;

use super::scalars::Parsed;
use super::server_url;
use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;
use crate::upstream::ServerAddress;

const FORM: &str = "write e.g. https://id.example.com/keys";
const NOTIFY_FORM: &str = "write e.g. https://hooks.example.com/quota, or http://127.0.0.1:8080/quota";
const URL_BYTES_MAX: usize = 2048;

/// An `https://` URL without a user name. It is shown without its query, which may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HttpsUrl {
    /// The host, without the brackets of an IPv6 address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Host and port, as the field `Host` has them.
    pub authority: String,
    /// The path with its query; it begins with `/`.
    pub target: String,
}

impl fmt::Display for HttpsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split('?').next().unwrap_or_default();
        write!(f, "https://{}{path}", self.authority)
    }
}

/// `https://`, a host, a port unless it is 443, a path and a query. No message quotes the text, because a mistyped part
/// may be a password, and it may come from an issuer.
///
/// # Errors
/// Another scheme, a user name, a fragment, or characters that must be encoded.
pub fn parse_https_url(text: &str) -> Parsed<HttpsUrl> {
    match text.strip_prefix("https://") {
        Some(rest) => parse_after("https://", rest),
        None => Err(ValueError::new(codes::ADDRESS, "keys are fetched over https:// alone").with_help(FORM)),
    }
}

/// A URL as [`parse_https_url`] takes it, or one of this host alone with `http://`; true = `https://`.
///
/// # Errors
/// Those of [`parse_https_url`], or `http://` to another host.
pub fn parse_notify_url(text: &str) -> Parsed<(bool, HttpsUrl)> {
    let wrong = |message: &str| ValueError::new(codes::ADDRESS, message).with_help(NOTIFY_FORM);
    let scheme = ["https://", "http://"].into_iter().find(|scheme| text.starts_with(scheme));
    let scheme = scheme.ok_or_else(|| wrong("this is not the URL of a receiver of events"))?;
    let url = parse_after(scheme, &text[scheme.len()..]).map_err(|error| wrong(&error.message))?;
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    let is_here = url.host.parse().map_or(url.host == "localhost", is_loopback);
    if scheme == "http://" && !is_here {
        return Err(wrong("events are sent to other hosts over https:// alone"));
    }
    Ok((scheme == "https://", url))
}

/// The URL of this scheme, which `rest` follows.
fn parse_after(scheme: &str, rest: &str) -> Parsed<HttpsUrl> {
    let wrong = |message: &str| Err(ValueError::new(codes::ADDRESS, message).with_help(FORM));
    let (server, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte);
    if rest.len() > URL_BYTES_MAX || server.contains('@') || !target.bytes().all(is_plain) {
        return wrong("the URL has a user name, a fragment, characters that must be encoded, or is too long");
    }
    match server_url::parse_server(&format!("{scheme}{server}")).map(|parsed| parsed.address) {
        Ok(ServerAddress::Tcp { host, port }) => {
            let slash = if target.starts_with('/') { "" } else { "/" };
            let address = ServerAddress::Tcp { host: host.clone(), port }.to_string();
            let default_port = if scheme == "https://" { ":443" } else { ":80" };
            let authority = address.strip_suffix(default_port).unwrap_or(&address).to_owned();
            Ok(HttpsUrl { host, port, authority, target: format!("{slash}{target}") })
        }
        _ => wrong("the URL does not name a host and a port"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_host_alone() {
        for (text, tls, port, authority) in [
            ("https://hooks.example.com/q?k=1", true, 443, "hooks.example.com"),
            ("http://127.0.0.1:8080/q", false, 8080, "127.0.0.1:8080"),
            ("http://127.1.2.3", false, 80, "127.1.2.3"),
            ("http://[::1]:443/q", false, 443, "[::1]:443"),
            ("http://[::ffff:127.0.0.1]/q", false, 80, "[::ffff:127.0.0.1]"),
            ("http://LOCALHOST/q", false, 80, "localhost"),
        ] {
            let (is_https, url) = parse_notify_url(text).unwrap();
            assert_eq!((is_https, url.port, url.authority.as_str()), (tls, port, authority), "{text}");
        }
        for text in [
            "http://hooks.example.com/hunter2",
            "http://10.0.0.1/",
            "http://0.0.0.0/",
            "http://[::]/",
            "http://127.0.0.1.example.com/",
            "http://u:hunter2@127.0.0.1/",
            "http://127.0.0.1@hooks.example.com/",
            "http://localhost.example.com/",
            "ftp://127.0.0.1/hunter2",
            "127.0.0.1:8080",
            "unix:/run/hunter2",
            "",
        ] {
            let error = parse_notify_url(text).unwrap_err();
            assert!(!format!("{error:?}").contains("hunter2"), "{text:?}");
        }
    }

    #[test]
    fn forms_of_a_url() {
        for (text, authority, target) in [
            ("https://id.example.com", "id.example.com", "/"),
            ("https://ID.example.com:8443/a/keys?p=b2c", "id.example.com:8443", "/a/keys?p=b2c"),
            ("https://id.example.com:443?x=1", "id.example.com", "/?x=1"),
            ("https://[::1]:9/k", "[::1]:9", "/k"),
        ] {
            let url = parse_https_url(text).unwrap();
            assert_eq!((url.authority.as_str(), url.target.as_str()), (authority, target), "{text}");
        }
        let long = format!("https://a.test/{}", "x".repeat(3000));
        for text in [
            "",
            "http://a.test/",
            "HTTPS://a.test/",
            "https://",
            "https://u:hunter2@a.test/",
            "https://a.test/#x",
            "https://a.test/a b",
            "https://a.test:0/",
            "https://a.test:x/",
            "https://a.test/\r\nX: y",
            &long,
        ] {
            let error = parse_https_url(text).unwrap_err();
            assert!(!error.message.contains("hunter2"), "{text:?}");
        }
    }
}
