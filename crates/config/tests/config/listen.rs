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

#[test]
fn a_certificate_can_be_ordered() {
    let tls = with(
        "[{ acme: { domains: [WWW.Example.com., example.com], storage: a } }, { acme: { domains: b.example, \
                    email: ops@b.example, storage: /tmp/b, eab: { kid: k1, hmac: aGVsbG8 } } }]",
    );
    let [first, second] = &tls.certificates[..] else { panic!("{:?}", tls.certificates) };
    assert_eq!(first.names, ["www.example.com", "example.com"]);
    let acme = first.acme.as_ref().expect("acme");
    assert_eq!(acme.directory_text(), "https://acme-v02.api.letsencrypt.org/directory");
    assert_eq!(acme.storage, Path::new("tests/config/valid/a"));
    assert!(acme.email.is_none() && acme.eab.is_none() && acme.current.load().is_none());
    let acme = second.acme.as_ref().expect("acme");
    assert_eq!(acme.email.as_deref(), Some("ops@b.example"));
    assert_eq!(acme.eab.as_ref().expect("a binding").kid, "k1");
    let other = "{ acme: { domains: [example.com, www.example.com], storage: a } }";
    assert_eq!(
        with(other).certificates[0].acme.as_ref().expect("acme").certificate_path(),
        first.acme.as_ref().expect("acme").certificate_path()
    );
    assert!(!format!("{tls:?}").contains("aGVsbG8"));
}

#[test]
fn wrong_orders_are_refused() {
    let hundred: Vec<String> = (0..=100).map(|index| format!("h{index}.example")).collect();
    for (acme, message) in [
        ("{ storage: a }", "`domains` is missing"),
        ("{ domains: a.example }", "`storage` is missing"),
        ("{ domains: [], storage: a }", "`domains` is empty"),
        ("{ domains: '*.a.example', storage: a }", "no certificate for `*.a.example` can be ordered"),
        ("{ domains: 192.0.2.1, storage: a }", "is an address"),
        ("{ domains: b\u{fc}cher.example, storage: a }", "is not a host name"),
        ("{ domains: [a.example, A.Example.], storage: a }", "`a.example` is named twice"),
        (
            "{ domains: a.example, storage: a, directory: 'http://a.example/' }",
            "a directory is asked over https:// alone",
        ),
        ("{ domains: a.example, storage: a, email: ops }", "is not an e-mail address"),
        ("{ domains: a.example, storage: a, eab: { kid: x } }", "`hmac` is missing"),
        (
            "{ domains: a.example, storage: a, eab: { kid: x, hmac: 'se!cret' } }",
            "the HMAC key is not base64url",
        ),
        ("{ domains: a.example, storage: a, ca: missing.pem }", "the file `missing.pem` does not exist"),
        ("{ domains: a.example, storage: a, dns: x }", "unknown field `dns`"),
        (&format!("{{ domains: [{}], storage: a }}", hundred.join(", ")), "at most 100 host names"),
        ("{ domains: a.example, storage: a }, cert: x.pem", "ordered by `acme`"),
        ("none", "`cert` is missing"),
    ] {
        let text = format!("listen: {{ address: \":1\", tls: {{ acme: {acme} }} }}\nlocations: []\n");
        let report = config::parse(&text, "tests/config/valid/x.yaml").expect_err(&text).to_string();
        assert!(report.contains(message), "{acme}\n{report}");
        assert!(!report.contains("se!cret"), "{report}");
        let rendered = config::parse(&text, "tests/config/valid/x.yaml").expect_err(&text).render(true);
        assert!(!rendered.contains("se!cret"), "{rendered}");
    }
}

#[test]
fn listeners_with_one_order_share_its_certificate() {
    let entry = |port: u16, domain: &str| {
        format!("{{ address: \":{port}\", tls: {{ acme: {{ domains: {domain}, storage: /tmp/x }} }} }}")
    };
    let read = |entries: &[String]| {
        let text = format!("listen: [{}]\nlocations: []\n", entries.join(", "));
        config::parse(&text, "x.yaml").unwrap_or_else(|report| panic!("{report}")).config
    };
    let slot = |config: &Config, index: usize| {
        let tls = config.listen[index].tls.clone().expect("TLS");
        std::sync::Arc::as_ptr(&tls.certificates[0].key)
    };
    let mut first = read(&[entry(1, "a.example"), entry(2, "a.example"), entry(3, "b.example")]);
    first.share_certificates(None);
    assert_eq!(slot(&first, 0), slot(&first, 1));
    let described = config::describe::describe_listen(&first);
    assert_eq!(described[2], "port 3: TLS 1.2 or newer for b.example; certificates ordered by ACME");
    assert_ne!(slot(&first, 0), slot(&first, 2));
    assert_eq!(first.acme_certificates().len(), 2);
    let mut next = read(&[entry(9, "b.example"), entry(1, "a.example"), entry(4, "c.example")]);
    next.share_certificates(Some(&first));
    assert_eq!((slot(&next, 0), slot(&next, 1)), (slot(&first, 2), slot(&first, 0)));
}

#[test]
fn a_storage_that_cannot_be_written_is_a_warning() {
    let warned = |storage: &str| {
        let acme = format!("{{ domains: a.example, storage: {storage} }}");
        let text = format!("listen: {{ address: \":1\", tls: {{ acme: {acme} }} }}\nlocations: []\n");
        let loaded = config::parse(&text, "x.yaml").unwrap_or_else(|report| panic!("{report}"));
        loaded.warnings.iter().any(|warning| warning.code == codes::UNWRITABLE)
    };
    assert!(!warned("/tmp/not-there-yet/acme"));
    assert!(warned("/dev/null") && warned("/dev/null/acme"));
}
