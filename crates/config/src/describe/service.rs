//! Listeners and the rate-limit service in one line each, and its domains, one line for each rule.

use super::{join_names, shorten};
use sluicegate_model::{
    Config, DescriptorRuleConfig, DomainConfig, LEASE_TIME, LEASE_TIME_MAX, ListenConfig, ListenerPurpose,
    ProxyProtocolMode, TlsVersion,
};

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
        let is_ordered = tls.certificates.iter().any(|certificate| certificate.acme.is_some());
        words.extend(is_ordered.then(|| "certificates ordered by ACME".to_owned()));
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

/// "calls at 127.0.0.1:9902 need no token; a lease ends after 10 seconds, …"; `None` without a service.
pub fn describe_service(config: &Config) -> Option<String> {
    let service = config.service.as_ref()?;
    let listeners = service.listen.iter().chain(&service.resp);
    let addresses: Vec<String> = listeners.map(|listen| listen.address.to_string()).collect();
    let token = match service.tokens.len() {
        0 => "no token".to_owned(),
        1 => "the token".to_owned(),
        count => format!("one of {count} tokens"),
    };
    Some(format!(
        "calls at {} need {token}; a lease ends after {} seconds, or the time that its call names, at most {} hour",
        addresses.join(", "),
        LEASE_TIME.as_secs(),
        LEASE_TIME_MAX.as_secs() / 3_600,
    ))
}

/// Rules listed per domain; of further ones only the number.
const RULES_MAX: usize = 20;

/// "shop: path=/login, remote_address=* -> per-ip, logins", "shop: vip=yes (nothing else) -> unlimited".
pub fn describe_domains(config: &Config) -> Vec<String> {
    let domains = config.service.iter().flat_map(|service| &service.domains);
    domains.flat_map(|domain| describe_domain(config, domain)).collect()
}

fn describe_domain(config: &Config, domain: &DomainConfig) -> Vec<String> {
    let shown = domain.rules.iter().take(RULES_MAX).map(|rule| describe_rule(config, rule));
    let more = domain.rules.len().saturating_sub(RULES_MAX);
    let more = (more > 0).then(|| format!("{more} more rules"));
    shown.chain(more).map(|text| format!("{}: {text}", shorten(&domain.name))).collect()
}

fn describe_rule(config: &Config, rule: &DescriptorRuleConfig) -> String {
    let patterns = rule
        .entries
        .iter()
        .flat_map(|entry| entry.values.iter().map(|value| shorten(&format!("{}={value}", entry.name))));
    let patterns: Vec<String> = patterns.collect();
    let entries = match patterns.is_empty() {
        true => "every descriptor".to_owned(),
        false => join_names(&patterns, NAMES_MAX),
    };
    let alone = if rule.exact { " (nothing else)" } else { "" };
    let names = rule.limits.iter().filter_map(|limit| Some(config.limits.get(limit.0)?.name.as_str()));
    let limits = match rule.limits.is_empty() {
        true => "unlimited".to_owned(),
        false => join_names(&names.collect::<Vec<_>>(), NAMES_MAX),
    };
    let replaced = match rule.replaces.is_empty() {
        true => String::new(),
        false => format!(", in place of {}", join_names(&rule.replaces, NAMES_MAX)),
    };
    format!("{entries}{alone} -> {limits}{replaced}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as config;

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

    #[test]
    fn the_service_is_one_sentence() {
        let describe = |section: &str| {
            let text = format!("{section}\nlimits: {{ sms: 9/h }}\nlocations: []\n");
            let loaded = config::parse(&text, "x.yaml").unwrap_or_else(|report| panic!("{report}"));
            assert!(loaded.warnings.is_empty(), "a file for calls alone is fine: {:?}", loaded.warnings);
            describe_service(&loaded.config).unwrap()
        };
        let leases = "a lease ends after 10 seconds, or the time that its call names, at most 1 hour";
        assert_eq!(
            describe("service: { listen: 127.0.0.1:9902 }"),
            format!("calls at 127.0.0.1:9902 need no token; {leases}")
        );
        assert_eq!(
            describe(
                "service: { listen: [127.0.0.1:9902, \"unix:/run/calls.sock\"], token: [abcdefgh, ijklmnop] }"
            ),
            format!("calls at 127.0.0.1:9902, unix:/run/calls.sock need one of 2 tokens; {leases}")
        );
        let plain = config::parse("locations: [{ path: /, upstream: demo }]", "x.yaml");
        assert_eq!(describe_service(&plain.unwrap_or_else(|report| panic!("{report}")).config), None);
    }

    #[test]
    fn each_rule_is_a_line() {
        let text = "service: { listen: 127.0.0.1:1, domains: { d: [{ match: { b: \"x*\", a: [1, \"*\"] }, \
                    limits: [l, 2/s], replaces: other }, { match: {}, exact: true, name: other, limits: [] }] } }\n\
                    limits: { l: 1/s }\nlocations: []\n";
        let loaded = config::parse(text, "x").unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(
            describe_domains(&loaded.config),
            [
                "d: a=1, a=*, b=x* -> l, d[0]#2, in place of other",
                "d: every descriptor (nothing else) -> unlimited"
            ]
        );
    }
}
