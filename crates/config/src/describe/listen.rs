//! Listeners in one line each.

use super::join_names;
use sluicegate_model::{Config, ListenConfig, ListenerPurpose, ProxyProtocolMode, TlsVersion};

/// More names would hide the rest of the line.
const NAMES_MAX: usize = 8;

/// "port 8080: plain HTTP", "port 443: TLS 1.2 or newer for a.test, *.a.test; PROXY header required".
pub fn describe_listen(config: &Config) -> Vec<String> {
    config.all_listeners().iter().map(describe_entry).collect()
}

fn describe_entry(listen: &ListenConfig) -> String {
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
        words.push(match names.as_slice() {
            [] => version.to_owned(),
            names => format!("{version} for {}", join_names(names, NAMES_MAX)),
        });
        words.extend(tls.client_ca.as_ref().map(|_| "clients need a certificate".to_owned()));
    } else if listen.purpose != ListenerPurpose::Resp {
        words.push("plain HTTP".to_owned());
    }
    match listen.purpose {
        ListenerPurpose::Requests => {}
        ListenerPurpose::Calls => words.push("calls of the rate-limit service".to_owned()),
        ListenerPurpose::Resp => words.push("CL.THROTTLE of Redis clients".to_owned()),
    }
    let speaks_http = listen.purpose != ListenerPurpose::Resp;
    words.extend((speaks_http && !listen.http2).then(|| "no HTTP/2".to_owned()));
    words.extend(listen.proxy_protocol.map(|wanted| match wanted {
        ProxyProtocolMode::Optional => "PROXY header optional".to_owned(),
        ProxyProtocolMode::Required => "PROXY header required".to_owned(),
    }));
    words.extend(listen.name.as_ref().map(|name| format!("named {name}")));
    words.extend(listen.mode.map(|mode| format!("mode {mode:04o}")));
    format!("{}: {}", listen.address, words.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_described() {
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
            crate::parse(text, "../../tests/keys/x.yaml").unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(
            describe_listen(&loaded.config),
            [
                "port 8080: plain HTTP",
                "port 443: TLS 1.2 or newer for *.a.test, a.test, b.test; clients need a certificate; no HTTP/2",
                "systemd:web: plain HTTP; PROXY header required; named web",
                "unix:/run/sg.sock: plain HTTP; mode 0660",
                "127.0.0.1:8443: TLS 1.3",
            ]
        );
    }
}
