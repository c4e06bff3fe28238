//! No text of an imported file is read as YAML.

use sluicegate_config as config;
use sluicegate_import::{FindingKind, import_file};

use crate::support::Scratch;

/// Directives with each of their words; every word is replaced by text that would add fields.
const WORDY: &str = r#"
limit_req_zone $http_x_tier zone=z:1m rate=1r/s; limit_conn_zone $host zone=c:1m;
geo $g { default 0; 10.0.0.1 1; } map $http_x_tier $m { default $host; gold ""; } limit_req_zone $m zone=y:1m rate=1r/s;
set_real_ip_from 10.0.0.1; real_ip_header X-Forwarded-For; keepalive_timeout 5s; client_max_body_size 1m;
ssl_certificate c.pem; ssl_certificate_key k.pem; ssl_client_certificate a.pem; ssl_verify_client on; ssl_protocols TLSv1.3;
upstream b { hash $http_x; server 127.0.0.1:9000 weight=2 max_conns=3 fail_timeout=5s; server 127.0.0.1:9001; keepalive 8;
 keepalive_timeout 5s; queue 5 timeout=5s; }
upstream d { hash $http_x_y consistent; server 127.0.0.1; }
server { listen 127.0.0.1:8443 ssl; server_name a.test .b.test; location / { limit_req zone=z burst=3 nodelay;
 limit_conn c 2; limit_req_status 429; error_page 429 /busy; proxy_pass https://b; proxy_set_header X-A v$host;
 proxy_set_header Host h.test; proxy_ssl_name n.test; proxy_read_timeout 5s; proxy_next_upstream error; add_header X-B w;
 proxy_hide_header X-C; limit_rate 5k; allow 10.0.0.0/8; deny all; }
 location = /busy { default_type text/x; return 200 busy; } location /d { proxy_pass http://d/; }
 location ~ ^/r { return 301 https://$host/r; } location /y { limit_req zone=y; proxy_pass http://10.0.0.9:80; } }
"#;

const HOSTILE: &[&str] = &[
    "x\\n    evil: 1 #",
    "x\\n  evil: { a: 1 }\\n#",
    "1, evil: 2",
    "\\\" }, evil: { a: 1",
    "x }\\n    evil: 1 #",
    "1 }, { evil: 2",
    "$http_x\\n    evil: 1 #",
    "${evil: 1}",
    "x\\n---\\nevil: 1",
    "&a evil: *a",
    "~ x\\nevil: 1",
    "unix:/x, evil: 1",
];

fn has_key(value: &serde_yaml::Value, name: &str) -> bool {
    match value {
        serde_yaml::Value::Mapping(map) => {
            map.iter().any(|(key, value)| key.as_str() == Some(name) || has_key(value, name))
        }
        serde_yaml::Value::Sequence(items) => items.iter().any(|item| has_key(item, name)),
        _ => false,
    }
}

#[test]
fn no_text_of_a_file_becomes_a_field() {
    let mut words = Vec::new();
    for (place, _) in WORDY.match_indices(|c: char| !c.is_whitespace()) {
        if place == 0 || WORDY[..place].ends_with(char::is_whitespace) {
            let word = WORDY[place..].split_whitespace().next().unwrap_or_default();
            words.push((place, word.trim_end_matches([';', '}', '{'])));
        }
    }
    words.retain(|(_, word)| !word.is_empty());
    let (mut written, mut lines) = (0, 0);
    for (place, word) in words {
        for hostile in HOSTILE {
            // A word with a name keeps it: `zone=`.
            let named = word.split_once('=').map_or(String::new(), |(name, _)| format!("{name}="));
            let (before, after) = (&WORDY[..place], &WORDY[place + word.len()..]);
            let conf = format!("events {{}} http {{ {before}\"{named}{hostile}\"{after} }}");
            let scratch = Scratch::new();
            let Ok(imported) = import_file(&scratch.file("nginx.conf", &conf)) else { continue };
            let shown = || format!("`{word}` as {hostile}\n{}", imported.yaml);
            let yaml: serde_yaml::Value =
                serde_yaml::from_str(&imported.yaml).unwrap_or_else(|error| panic!("{error}: {}", shown()));
            assert!(!has_key(&yaml, "evil"), "{}", shown());
            if let Err(report) = config::parse(&imported.yaml, "gateway.yaml") {
                let is_missing = |problem: &_| format!("{problem:?}").contains("does not exist");
                assert!(report.problems.iter().all(is_missing), "{report}{}", shown());
            }
            let says = imported.report.of_kind(FindingKind::Difference).map(|finding| &finding.says);
            lines += says.filter(|says| says.contains(char::is_control)).count();
            written += 1;
        }
    }
    assert_eq!(lines, 0, "a finding is one line");
    assert!(written > 300, "{written} files");
}
