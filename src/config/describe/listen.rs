//! Listeners in one line each, if they offer more than plain HTTP.

use crate::config::model::Config;
use crate::config::model::listen::{ListenConfig, ProxyProtocolMode, TlsVersion};

/// More names would hide the rest of the line.
const NAMES_MAX: usize = 8;

/// "port 443: TLS 1.2 or newer for a.test, *.a.test; PROXY header required", for each entry with more than an address.
pub fn describe_listen(config: &Config) -> Vec<String> {
    config.listen.iter().filter_map(describe_entry).collect()
}

fn describe_entry(listen: &ListenConfig) -> Option<String> {
    let mut words = Vec::new();
    if let Some(tls) = &listen.tls {
        let version = match tls.min_version {
            TlsVersion::Tls12 => "TLS 1.2 or newer",
            TlsVersion::Tls13 => "TLS 1.3",
        };
        let mut names: Vec<&str> = Vec::new();
        for name in tls.certificates.iter().flat_map(|certificate| &certificate.names) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let more = names.len().saturating_sub(NAMES_MAX);
        names.truncate(NAMES_MAX);
        let mut described = match names.as_slice() {
            [] => version.to_owned(),
            names => format!("{version} for {}", names.join(", ")),
        };
        if more > 0 {
            described += &format!(" and {more} more");
        }
        words.push(described);
        words.extend(tls.client_ca.as_ref().map(|_| "clients need a certificate".to_owned()));
    }
    words.extend((!listen.http2).then(|| "no HTTP/2".to_owned()));
    words.extend(listen.proxy_protocol.map(|wanted| match wanted {
        ProxyProtocolMode::Optional => "PROXY header optional".to_owned(),
        ProxyProtocolMode::Required => "PROXY header required".to_owned(),
    }));
    words.extend(listen.name.as_ref().map(|name| format!("named {name}")));
    words.extend(listen.mode.map(|mode| format!("mode {mode:04o}")));
    (!words.is_empty()).then(|| format!("{}: {}", listen.address, words.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_with_more_than_plain_http_are_described() {
        let text = concat!(
            "listen:\n  - 8080\n",
            "  - address: \":443\"\n    http2: false\n    tls:\n",
            "      - { cert: tls/a.pem, key: tls/a.key.pem, client_ca: tls/ca.pem }\n",
            "      - { cert: tls/b.pem, key: tls/b.key.pem, client_ca: tls/ca.pem }\n",
            "  - { address: systemd:web, proxy_protocol: required, name: web }\n",
            "  - { address: \"unix:/run/sg.sock\", mode: \"0660\" }\n",
            "  - { address: 127.0.0.1:8443, tls: { cert: tls/nameless.pem, key: tls/a.key.pem, min_version: 1.3 } }\n",
            "locations: []\n",
        );
        let loaded =
            crate::config::parse(text, "tests/keys/x.yaml").unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(
            describe_listen(&loaded.config),
            [
                "port 443: TLS 1.2 or newer for *.a.test, a.test, b.test; clients need a certificate; no HTTP/2",
                "systemd:web: PROXY header required; named web",
                "unix:/run/sg.sock: mode 0660",
                "127.0.0.1:8443: TLS 1.3",
            ]
        );
    }
}
