//! Parses the URLs of documents that are fetched: the keys of an issuer, and the document that names them.

use std::fmt;

use super::scalars::Parsed;
use super::server_url;
use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;
use crate::upstream::ServerAddress;

const FORM: &str = "write e.g. https://id.example.com/keys";
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
    let wrong = |message: &str| Err(ValueError::new(codes::ADDRESS, message).with_help(FORM));
    let Some(rest) = text.strip_prefix("https://") else {
        return wrong("keys are fetched over https:// alone");
    };
    let (server, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte);
    if text.len() > URL_BYTES_MAX || server.contains('@') || !target.bytes().all(is_plain) {
        return wrong("the URL has a user name, a fragment, characters that must be encoded, or is too long");
    }
    match server_url::parse_server(&format!("https://{server}")).map(|parsed| parsed.address) {
        Ok(ServerAddress::Tcp { host, port }) => {
            let slash = if target.starts_with('/') { "" } else { "/" };
            let address = ServerAddress::Tcp { host: host.clone(), port }.to_string();
            let authority = address.strip_suffix(":443").unwrap_or(&address).to_owned();
            Ok(HttpsUrl { host, port, authority, target: format!("{slash}{target}") })
        }
        _ => wrong("the URL does not name a host and a port"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
