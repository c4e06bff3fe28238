//! The fields of `listen`.

use std::path::PathBuf;

use crate::schema::field::{Shape, section};
use crate::schema::kinds::{FILE, OrWord, SWITCH, Scalar, Special, Text, Words, text};
use sluicegate_model::{Parsed, ProxyProtocolMode, TlsVersion, ValueError, codes};

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
    /// One certificate. `client_ca` and `min_version` are the same for all certificates of a listener.
    mod tls = "listen[].tls";
    /// A PEM file with the certificate and those that lead to its authority.
    CERT: Text<PathBuf> = FILE, "cert", required, "chain.pem";
    /// A PEM file with the certificate's private key.
    KEY: Text<PathBuf> = FILE, "key", required, "key.pem";
    /// A PEM file with authorities. Each client must then present a certificate of one of them.
    CLIENT_CA: OrWord<Text<PathBuf>> = OrWord("none", FILE), "client_ca", "none", "clients.pem";
    /// The oldest version of TLS that clients may speak.
    MIN_VERSION: Words<TlsVersion> = Words(&[("1.2", TlsVersion::Tls12), ("1.3", TlsVersion::Tls13)]),
        "min_version", "1.2", "\"1.3\"";
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

#[cfg(test)]
mod tests {
    use super::*;

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
