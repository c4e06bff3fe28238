//! The fields of `listen`.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::schema::field::{OneOrMore, Shape, section};
use crate::schema::kinds::{FILE, NestedOrNone, OrWord, SWITCH, Scalar, Special, Text, Words, text};
use sluicegate_model::value::https_url::parse_https_url;
use sluicegate_model::value::names::{parse_file_name, parse_filled, parse_host_name};
use sluicegate_model::{HttpsUrl, Parsed, ProxyProtocolMode, Secret, TlsVersion, ValueError, codes};

use super::limits::parse_name;

section! {
    /// One listener. An address alone can be written without a mapping.
    mod listen = "listen[]";
    /// A port, `HOST:PORT`, `unix:/PATH`, or `systemd:NAME` for sockets that systemd passes.
    ADDRESS: Special = Special(|| text("an address")), "address", required, "\":8443\"";
    /// Certificates, of which a client gets the one that names its host, else the first one.
    TLS: Special = Special(tls_shape), "tls", "none", "{ cert: chain.pem, key: key.pem }";
    /// Whether HTTP/2 is spoken, with TLS by ALPN and without by prior knowledge.
    HTTP2: Scalar<bool> = SWITCH, "http2", "true", "false";
    /// Whether connections begin with a PROXY header; only trusted proxies and unix sockets may send one.
    PROXY_PROTOCOL: OrWord<Words<ProxyProtocolMode>> = OrWord("none", Words(&ProxyProtocolMode::WORDS)),
        "proxy_protocol", "none", "required";
    /// The permissions of a unix socket's file, as octal digits, quoted or not; `none` leaves them to the umask.
    MODE: OrWord<Text<u32>> = OrWord("none", Text::new("octal digits", parse_mode)), "mode", "none", "\"0660\"";
    /// The name by which locations select the listener; `auto` is none.
    NAME: OrWord<Text<String>> = OrWord("auto", Text::new("a name", parse_name)), "name", "auto", "plain";
}

section! {
    /// One certificate, from files or by `acme`. `client_ca` and `min_version` are the same for all certificates of a
    /// listener.
    mod tls = "listen[].tls";
    /// A PEM file with the certificate and those that lead to its authority. Required without `acme`.
    CERT: OrWord<Text<PathBuf>> = OrWord("none", FILE), "cert", "none", "chain.pem";
    /// A PEM file with the certificate's private key. Required with `cert`.
    KEY: OrWord<Text<PathBuf>> = OrWord("none", FILE), "key", "none", "key.pem";
    /// A certificate that the gateway orders and renews itself, in place of `cert` and `key`.
    ACME: NestedOrNone = NestedOrNone(&acme::SECTION), "acme", "none",
        "{ domains: example.com, storage: /var/lib/sluicegate/acme }";
    /// A PEM file with authorities. Each client must then present a certificate of one of them.
    CLIENT_CA: OrWord<Text<PathBuf>> = OrWord("none", FILE), "client_ca", "none", "clients.pem";
    /// The oldest version of TLS that clients may speak.
    MIN_VERSION: Words<TlsVersion> = Words(&[("1.2", TlsVersion::Tls12), ("1.3", TlsVersion::Tls13)]),
        "min_version", "1.2", "\"1.3\"";
}

section! {
    /// A certificate that is ordered from an authority (ACME, RFC 8555) and renewed when a third of its life is left,
    /// or when the authority wants it (RFC 9773). Challenges are answered by every TLS listener (tls-alpn-01), then by
    /// every plain one (http-01), so port 443 or 80 of the domains has to lead here.
    mod acme = "listen[].tls.acme";
    /// The 1 to 100 host names of the certificate, without `*.`.
    DOMAINS: OneOrMore<Text<String>> = OneOrMore(Text::new("a host name", parse_domain)),
        "domains", required, "[example.com, www.example.com]";
    /// The contact of the account.
    EMAIL: OrWord<Text<String>> = OrWord("none", Text::new("an e-mail address", parse_email)),
        "email", "none", "ops@example.com";
    /// The directory of the authority. Its terms of service count as accepted.
    DIRECTORY: Text<HttpsUrl> = Text::new("a URL", parse_directory), "directory",
        "https://acme-v02.api.letsencrypt.org/directory",
        "https://acme-staging-v02.api.letsencrypt.org/directory";
    /// A PEM file with the authorities that verify the directory, or those of the system.
    CA: OrWord<Text<PathBuf>> = OrWord("system", FILE), "ca", "system", "ca.pem";
    /// A folder for the account, the certificates and the waits, which is made if it is absent. Gateways that share it
    /// make one order.
    STORAGE: Text<PathBuf> = Text::new("the path of a folder", parse_file_name),
        "storage", required, "/var/lib/sluicegate/acme";
    /// An account at the authority that a new account is bound to.
    EAB: NestedOrNone = NestedOrNone(&eab::SECTION), "eab", "none", "{ kid: k1, hmac: \"${EAB_HMAC}\" }";
}

section! {
    /// The external account binding (RFC 8555, section 7.3.4), as the authority gives it.
    mod eab = "listen[].tls.acme.eab";
    /// The identifier of the key.
    KID: Text<String> = Text::new("a text that is not empty", parse_kid), "kid", required, "k1";
    /// The key in base64url.
    HMAC: Text<Secret> = Text::new("a key in base64url", parse_hmac), "hmac", required, "\"${EAB_HMAC}\"";
}

/// The value of `listen`.
pub fn listen_shape() -> Shape {
    let address = text("a port or another address");
    Shape::OneOrMore(Box::new(Shape::Either(vec![address, Shape::Section(&listen::SECTION)])))
}

fn tls_shape() -> Shape {
    let certificates = Shape::OneOrMore(Box::new(Shape::Section(&tls::SECTION)));
    Shape::Either(vec![Shape::Words(vec!["none"]), certificates])
}

/// Permissions as chmod takes them: `660` or `0660`.
fn parse_mode(text: &str) -> Parsed<u32> {
    let wrong = |message: String| {
        let help = "write octal digits for owner, group and others, e.g. mode: \"0660\"";
        Err(ValueError::new(codes::NUMBER, message).with_help(help))
    };
    let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
    if digits.len() != 3 || !digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte)) {
        return wrong(format!("`{text}` is not a mode of a socket"));
    }
    match u32::from_str_radix(digits, 8) {
        // Connecting needs write permission.
        Ok(mode) if mode & 0o222 != 0 => Ok(mode),
        _ => wrong(format!("with the mode `{text}` no user may connect")),
    }
}

/// Authorities confirm names by the challenges that are answered here, and no wildcards.
fn parse_domain(text: &str) -> Parsed<String> {
    let wrong = |message: String, help: &str| Err(ValueError::new(codes::HOST, message).with_help(help));
    if let Some(parent) = text.strip_prefix("*.") {
        let help = "name each host, or write cert and key: a wildcard needs dns-01, which is not built";
        return wrong(format!("no certificate for `*.{parent}` can be ordered"), help);
    }
    if text.parse::<IpAddr>().is_ok() || text.starts_with('[') {
        return wrong(format!("`{text}` is an address, and certificates are for names"), "write a host name");
    }
    let name = parse_host_name(text)?;
    if name.split('.').any(|label| label.starts_with('-') || label.ends_with('-') || label.contains('_')) {
        return wrong(format!("`{text}` is not a host name of a certificate"), "write e.g. www.example.com");
    }
    Ok(name)
}

fn parse_email(text: &str) -> Parsed<String> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b",?#%<>\"".contains(&byte);
    match text.split_once('@') {
        Some((user, host)) if !user.is_empty() && !host.contains('@') && text.bytes().all(is_plain) => {
            parse_host_name(host).map(|_| text.to_owned())
        }
        _ => {
            let error = ValueError::new(codes::NAME, format!("`{text}` is not an e-mail address"));
            Err(error.with_help("write one address, e.g. ops@example.com, without mailto:"))
        }
    }
}

fn parse_directory(text: &str) -> Parsed<HttpsUrl> {
    let help = "write e.g. https://acme-v02.api.letsencrypt.org/directory";
    if !text.starts_with("https://") {
        let error = ValueError::new(codes::ADDRESS, "a directory is asked over https:// alone");
        return Err(error.with_help(help));
    }
    parse_https_url(text).map_err(|error| ValueError::new(codes::ADDRESS, error.message).with_help(help))
}

fn parse_kid(text: &str) -> Parsed<String> {
    parse_filled(text, codes::NAME, "the identifier of the key is empty")
}

/// The key itself never appears in a problem.
fn parse_hmac(text: &str) -> Parsed<Secret> {
    let text = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if text.is_empty() || !text.bytes().all(is_digit) || text.len() % 4 == 1 {
        let error = ValueError::new(codes::TOKEN, "the HMAC key is not base64url");
        return Err(error.with_help("write it as the authority gives it, e.g. hmac: \"${EAB_HMAC}\""));
    }
    Ok(Secret(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_domain() {
        for (text, name) in [
            ("example.com", "example.com"),
            ("WWW.Example.COM.", "www.example.com"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(parse_domain(text).unwrap(), name);
        }
        for wrong in [
            "*.example.com",
            "192.0.2.1",
            "::1",
            "[::1]",
            "b\u{fc}cher.example",
            "a_b.example",
            "-a.example",
            "a..b",
            "",
            ".",
            "a.example:80",
            "https://a.example",
        ] {
            assert_eq!(parse_domain(wrong).unwrap_err().code, codes::HOST, "{wrong}");
        }
        assert!(parse_domain(&format!("{}.example", "a".repeat(64))).is_err());
    }

    #[test]
    fn forms_of_an_address_and_a_key() {
        assert!(parse_email("ops+x@example.com").is_ok());
        for wrong in
            ["ops", "@a.example", "a@", "a@b@c.example", "mailto:", "a b@c.example", "a@c.example,d@e.f"]
        {
            assert!(parse_email(wrong).is_err(), "{wrong}");
        }
        for (text, fits) in
            [("aGVsbG8", true), ("aGVsbG8=", true), ("a", false), ("", false), ("a+/b", false)]
        {
            assert_eq!(parse_hmac(text).is_ok(), fits, "{text}");
        }
    }

    #[test]
    fn forms_of_a_mode() {
        for (text, bits) in [("0660", 0o660), ("660", 0o660), ("0777", 0o777), ("200", 0o200)] {
            assert_eq!(parse_mode(text).unwrap(), bits);
        }
        for wrong in ["0x1b0", "0o660", "432", "1777", "00660", "66", "", "0668", "rw-rw----", "0444", "0"] {
            let is_wrong = parse_mode(wrong).is_err_and(|error| error.code == codes::NUMBER);
            assert!(is_wrong || wrong == "432", "{wrong}");
        }
    }
}
