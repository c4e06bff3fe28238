//! `listen` with TLS: the contents of its files, and the detection of their changes.

use std::path::Path;

use sluicegate_config as config;
use sluicegate_model::*;

/// As files in `valid` name it.
const KEYS: &str = "../../../../../tests/keys/tls";

fn read(text: &str) -> ListenConfig {
    let mut config =
        config::parse(text, "tests/config/valid/x.yaml").unwrap_or_else(|report| panic!("{report}"));
    config.config.listen.remove(0)
}

fn with(tls: &str) -> ListenTlsConfig {
    let text = format!("listen: {{ address: \":1\", tls: {tls} }}\nlocations: []\n");
    ListenTlsConfig::clone(read(&text).tls.as_ref().expect("TLS"))
}

#[test]
fn tls_is_read_with_its_files() {
    let path = Path::new("tests/config/valid/listen_tls.yaml");
    let config = config::load(path).unwrap_or_else(|report| panic!("{report}")).config;
    let [first, second, third] = &config.listen[..] else { panic!("{:?}", config.listen) };
    let tls = first.tls.as_ref().expect("TLS");
    let names: Vec<Vec<&str>> =
        tls.certificates.iter().map(|one| one.names.iter().map(String::as_str).collect()).collect();
    assert_eq!(names, [vec!["*.a.test", "a.test"], vec!["a.test"], vec!["a.test", "b.test"]]);
    assert!(tls.client_ca.is_none() && tls.min_version == TlsVersion::Tls12 && first.http2);
    assert_eq!(first.proxy_protocol, Some(ProxyProtocolMode::Optional));
    let tls = second.tls.as_ref().expect("TLS");
    assert_eq!(tls.client_ca.as_ref().expect("an authority").len(), 1);
    assert!(tls.min_version == TlsVersion::Tls13 && !second.http2);
    assert!(third.tls.is_none() && third.http2);
}

#[test]
fn every_change_is_detected() {
    let pair = |name: &str| format!("cert: {KEYS}/{name}.pem, key: {KEYS}/{name}.key.pem");
    let (a, b) = (pair("a"), pair("b"));
    let different = [
        with(&format!("{{ {a} }}")),
        with(&format!("{{ {b} }}")),
        with(&format!("[{{ {a} }}, {{ {b} }}]")),
        with(&format!("[{{ {b} }}, {{ {a} }}]")),
        with(&format!("{{ {a}, min_version: 1.3 }}")),
        with(&format!("{{ {a}, client_ca: {KEYS}/ca.pem }}")),
        with(&format!("{{ {a}, client_ca: {KEYS}/b.pem }}")),
    ];
    for (index, one) in different.iter().enumerate() {
        assert_eq!(different.iter().position(|other| other == one), Some(index));
    }
    assert_eq!(different[0], with(&format!("{{ {a}, client_ca: none, min_version: \"1.2\" }}")));
}

#[test]
fn a_unix_socket_may_have_a_mode() {
    let mode = |words: &str| {
        let text = format!("listen: {{ address: \"unix:/run/x.sock\"{words} }}\nlocations: []\n");
        let loaded = config::parse(&text, "x.yaml").unwrap_or_else(|report| panic!("{report}"));
        loaded.config.listen[0].mode
    };
    assert_eq!(mode(""), None);
    assert_eq!(mode(", mode: \"0660\""), Some(0o660));
    assert_eq!(mode(", mode: 0666"), Some(0o666));
    assert_eq!(mode(", mode: 600"), Some(0o600));
}

#[test]
fn no_report_shows_a_key() {
    let key = std::fs::read_to_string("../../tests/keys/tls/a.key.pem").expect("readable");
    let secret: String = key.lines().filter(|line| !line.contains("KEY")).collect();
    let written = key.replace('\n', "\\n");
    let block: String = key.lines().map(|line| format!("      {line}\n")).collect();
    let cert = format!("cert: {KEYS}/a.pem");
    for text in [
        format!("listen: {{ address: \":1\", tls: {{ {cert}, key: \"{written}\" }} }}\n"),
        format!("listen: {{ address: \":1\", tls: {{ {cert}, kye: \"{written}\" }} }}\n"),
        format!("listen: {{ address: \":1\", tls: {{ {cert}, key: [\"{written}\"] }} }}\n"),
        format!("listen:\n  address: \":1\"\n  tls:\n    {cert}\n    key: |\n{block}"),
        format!("listen:\n  address: \":1\"\n  tls:\n    {cert}\n    key: \"\n{block}"),
    ] {
        let report = config::parse(&text, "tests/config/valid/x.yaml").expect_err(&text);
        let shown =
            format!("{}{report:?}{}", report.render(true), serde_json::to_string(&report).expect("JSON"));
        assert!(!shown.contains(&secret[..20]) && !shown.contains(&secret[70..90]), "{shown}");
    }
}
