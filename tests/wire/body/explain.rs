//! `sluicegate explain --data`: the same decision as on a request with that body.

use crate::support::*;

const LIMITS: &str = "limits:
  tool: { key: json:/params/name, missing_key: reject, rate: 1/h }
  images: { key: global, rate: 10/h, cost: json:/n, invalid_cost: reject }
  tools: { key: json:/tool, rate: 5/h }
";

fn file(admin: &str) -> String {
    format!(
        "admin: {admin}\naccess_log: {{ output: none }}\n{LIMITS}locations:\n  \
         - {{ path: /, upstream: demo, limits: [tool, images], body_peek: 40B }}\n  \
         - {{ path: /any/, upstream: demo, limits: tools }}\n"
    )
}

fn explain(yaml: &str, more: &[&str]) -> Finished {
    let dir = Scratch::new();
    let path = dir.file("gateway.yaml", &format!("listen: 127.0.0.1:0\n{yaml}")).display().to_string();
    dir.file("body.json", "{\"params\":{\"name\":\"of-file\"}}\n");
    let args: Vec<_> = ["explain", "POST", "-c", &path].iter().chain(more).copied().collect();
    Run::default().args(&args).finish(dir.path())
}

#[track_caller]
fn explain_text(more: &[&str]) -> String {
    let explained = explain(&file("none"), more);
    assert_eq!(explained.code, Some(0), "{explained:?}");
    explained.stdout
}

#[test]
fn the_body_decides_as_it_would() {
    let text = explain_text(&["/", "--data", r#"{"params":{"name":"x"},"n":3}"#]);
    assert!(text.contains("    counts by JSON value /params/name x\n    1 of 1 left: admit\n"), "{text}");
    assert!(text.contains("    counts by all clients together, cost 3\n"), "{text}");
    assert!(text.contains("one of more than 40 B gets 413"), "{text}");
    for (data, verdict) in [
        (r#"{"params":{"name":"x"},"n":11}"#, "reject with 413 by limit images: too_costly"),
        (r#"{"params":{"name":"x"},"n":"1"}"#, "reject with 400: invalid_cost"),
        (r#"{"params":{"name":"x","name":"y"}}"#, "reject with 400: repeated_key"),
        (r#"{"params":{"name":"x"},"n":1,"n":2}"#, "reject with 400: repeated_key"),
        (r#"{"params":{"name":"x"},"n":1,"m":"abcdef"}"#, "reject with 413: body_beyond_peek"),
        ("[1]", "reject with 403 by limit tool: missing_key"),
        ("", "reject with 403 by limit tool: missing_key"),
    ] {
        let text = explain_text(&["/", "-d", data]);
        assert!(text.contains(&format!("\nverdict   {verdict}\n")), "{data}: {text}");
        assert!(!text.contains("no body was given"), "{text}");
    }
    let zipped = ["/", "-d", r#"{"params":{"name":"x"}}"#, "-H", "Content-Encoding: gzip"];
    assert!(explain_text(&zipped).contains("\nverdict   reject with 415: body_unreadable\n"));
}

#[test]
fn a_limit_without_its_body_says_so() {
    let text = explain_text(&["/any/"]);
    assert!(
        text.contains("    no body was given, so its values are missing; give it with --data BODY\n"),
        "{text}"
    );
    assert!(text.contains("    counts by client IP 127.0.0.1 without JSON value /tool\n"), "{text}");
    let json = explain_text(&["/any/", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["limits"][0]["body"], "no body was given, so its values are missing");
}

#[test]
fn a_file_holds_the_body() {
    let text = explain_text(&["/", "--data", "@body.json"]);
    assert!(text.contains("    counts by JSON value /params/name of-file\n"), "{text}");
    let none = explain(&file("none"), &["/", "--data", "@none.json"]);
    assert_eq!(none.code, Some(2), "{none:?}");
    assert!(none.stderr.contains("cannot read the body from `none.json`: "), "{}", none.stderr);
}

/// The running gateway explains what then happens.
#[test]
fn the_running_gateway_judges_by_the_body() {
    let gateway = Gateway::start(&file("{ listen: 127.0.0.1:0, token: s3cret }"));
    let file = file(&format!("{{ listen: \"{}\", token: s3cret }}", gateway.admin()));
    let body = r#"{"params":{"name":"live"}}"#;
    let live = || explain(&file, &["/", "--data", body, "--live"]).stdout;
    assert!(live().contains("    1 of 1 left: admit\n"), "{}", live());
    gateway.ask(&post("/", body.as_bytes())).expect(200);
    assert!(live().contains("\nverdict   reject with 429 by limit tool: rate"), "{}", live());
    gateway.ask(&post("/", body.as_bytes())).expect(429);
    let posted = post("/explain", br#"{"method":"POST","url":"/","data":"{\"params\":{\"name\":\"new\"}}"}"#);
    let answer = gateway.ask_admin(&posted.header("Authorization", "Bearer s3cret")).expect(200);
    assert!(answer.text().contains("counts by JSON value /params/name new"), "{}", answer.text());
}
