//! The days that certificates have left, in `/status` and as a metric.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::tls::Authority;
use crate::support::*;

const DAY: u64 = 86_400;

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// Issues a certificate that expires at this second.
fn issue(authority: &Authority, name: &str, expires_at: u64) {
    authority.issue_with(name, &["localhost"], |params| {
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(expires_at);
    });
}

#[test]
fn certificates_tell_the_days_they_have_left() {
    let (authority, now) = (Authority::new(), unix_seconds());
    let (soon, late, past) = (now + 20 * DAY + DAY / 2, now + 90 * DAY, now - 3 * DAY);
    issue(&authority, "soon", soon);
    issue(&authority, "late", late);
    issue(&authority, "past", past);
    // The earliest of a chain counts.
    let chain = ["late", "soon"]
        .map(|name| std::fs::read_to_string(authority.path(&format!("{name}.pem"))).expect("a certificate"));
    authority.scratch.file("late.pem", &chain.concat());
    let gateway = Gateway::start(&format!(
        "listen: {{ address: 127.0.0.1:0, tls: {{ {}, client_ca: {} }} }}\n\
         upstreams: {{ app: {{ servers: \"https://127.0.0.1:1\", tls: {{ ca: {}, {} }} }}, \
         plain: {{ servers: \"https://127.0.0.1:1\", tls: {{ verify: false }} }} }}\n\
         locations: [{{ path: /, upstream: app }}, {{ path: /x, upstream: plain }}]\n",
        authority.entry("late"),
        authority.path("ca.pem").display(),
        authority.path("soon.pem").display(),
        authority.entry("past"),
    ));
    let status = gateway.ask_admin(&get("/status").header("Accept", "application/json")).expect(200).json();
    let found: Vec<&Value> = status["certificates"].as_array().expect("certificates").iter().collect();
    let of = |file: &Value| {
        let path = file["file"].as_str().expect("a path").rsplit('/').next().expect("a name").to_owned();
        json!([file["use"], path, file["expires_at"], file["days_left"], file["expired"]])
    };
    let shown: Vec<Value> = found.iter().map(|file| of(file)).collect();
    assert_eq!(
        shown[..3],
        [
            json!(["upstream", "past.pem", past, 0, true]),
            json!(["listener", "late.pem", soon, 20, false]),
            json!(["upstream_ca", "soon.pem", soon, 20, false]),
        ]
    );
    assert_eq!((&shown[3][0], &shown[3][1], shown.len()), (&json!("client_ca"), &json!("ca.pem"), 4));
    assert_eq!((&found[0]["name"], &found[1]["name"]), (&json!("app"), &json!("127.0.0.1:0")));
    let text = gateway.admin_get("/status").expect(200).text();
    for line in ["past.pem (upstream app): expired", "late.pem (listener 127.0.0.1:0): 20 days left"] {
        assert!(text.contains(line), "{text}");
    }
    let metric =
        |labels: &[&str]| gateway.metric("sluicegate_certificate_expires_timestamp_seconds", labels) as u64;
    let file = format!("file=\"{}\"", authority.path("past.pem").display());
    assert_eq!(metric(&["use=\"upstream\"", "name=\"app\"", &file]), past);
    assert_eq!(metric(&["use=\"listener\""]), soon);
    // A renewed one counts after a reload.
    issue(&authority, "past", late);
    gateway.reload();
    assert_eq!(metric(&["use=\"upstream\"", "name=\"app\"", &file]), late);
}
