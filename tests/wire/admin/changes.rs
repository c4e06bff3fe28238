//! Tokens with rights, and the record of every change.

use serde_json::Value;

use crate::support::*;

const TOKENS: &str = "admin: { listen: 127.0.0.1:0, tokens: [{ name: eye, token: \"${SG_EYE}\", allow: read },\
                       { name: ops, token: s3cret-ops, allow: all }] }\n";
const SERVERS: &str =
    "upstreams: { app: [127.0.0.1:1, 127.0.0.1:2] }\nlocations: [{ path: /, upstream: app }]\n";

fn change(target: &str, body: &str) -> Ask {
    post(target, body.as_bytes()).header("Content-Type", "application/json")
}

/// The audit lines so far.
fn audits(gateway: &Gateway) -> Vec<Value> {
    let lines = gateway.stderr();
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == "audit").collect()
}

/// Waits for the audit line number `count`, and returns it.
#[track_caller]
fn wait_audit(gateway: &Gateway, count: usize) -> Value {
    eventually("an audit line", || audits(gateway).len() >= count);
    let found = audits(gateway);
    assert_eq!(found.len(), count, "{found:#?}");
    found[count - 1].clone()
}

#[test]
fn a_token_that_may_read_changes_nothing() {
    let gateway = Run::default().env("SG_EYE", "s3cret-eye").start(&format!("{TOKENS}{SERVERS}"));
    let as_caller =
        |token: &str, ask: Ask| gateway.ask_admin(&ask.header("Authorization", format!("Bearer {token}")));
    let drain = "/upstreams/app/servers/127.0.0.1:1/drain";
    for target in ["/status", "/limits", "/metrics", "/upstreams", "/openapi.json"] {
        as_caller("s3cret-eye", get(target)).expect(200);
        as_caller("s3cret-ops", get(target)).expect(200);
        as_caller("s3cret", get(target)).expect(401);
    }
    as_caller("s3cret-eye", post("/explain", br#"{"method": "GET", "url": "/"}"#)).expect(200);
    for target in ["/reload", drain] {
        let refused = as_caller("s3cret-eye", change(target, "").header("Accept", "text/plain")).expect(403);
        assert_eq!(refused.text(), "the token `eye` may only read, and this call changes something\n");
    }
    as_caller("s3cret-ops", change(drain, "")).expect(200);
    as_caller("s3cret-ops", change("/reload", "")).expect(200);
    let line = wait_audit(&gateway, 4);
    assert_eq!(
        (&line["who"], &line["call"], &line["result"]),
        (&"ops".into(), &"reload".into(), &"ok".into())
    );
    let count = |call: &str, result: &str| {
        let labels = [format!("call=\"{call}\""), format!("result=\"{result}\"")];
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        gateway.metric_with("s3cret-ops", "sluicegate_admin_changes_total", &labels)
    };
    assert_eq!([count("reload", "ok"), count("reload", "refused")], [1.0, 1.0]);
    assert_eq!([count("drain_server", "ok"), count("drain_server", "refused")], [1.0, 1.0]);
    assert_eq!([count("undrain_server", "ok"), count("undrain_server", "refused")], [0.0, 0.0]);
    assert!(!gateway.stderr().contains("s3cret"), "{}", gateway.stderr());
}

/// The line says who changed what, from where, and why; also at a level that hides other lines.
#[test]
fn changes_leave_an_audit_line() {
    let gateway = Gateway::start(&format!("log: {{ level: error, format: json }}\n{SERVERS}"));
    let drain = "/upstreams/app/servers/127.0.0.1:1/drain";
    let ask = change(drain, "{\"reason\": \"disk\\n\\u001b[31m full\"}").header("Accept", "application/json");
    gateway.ask_admin(&ask).expect(200);
    let line = wait_audit(&gateway, 1);
    for (field, value) in [
        ("who", "loopback"),
        ("call", "drain_server"),
        ("target", "upstream app, server 127.0.0.1:1"),
        ("before", "\"up\""),
        ("after", "\"draining\""),
        ("reason", "disk\\u{a}\\u{1b}[31m full"),
        ("result", "ok"),
    ] {
        assert_eq!(line[field], value, "{field} in {line:#}");
    }
    assert!(line["from"].as_str().expect("an address").starts_with("127.0.0.1:"), "{line}");
    gateway.ask_admin(&change("/upstreams/app/servers/127.0.0.1:9/drain", "")).expect(404);
    let line = wait_audit(&gateway, 2);
    assert_eq!((&line["result"], &line["status"]), (&"refused".into(), &404.into()));
    assert_eq!(line["target"], "upstream app, server 127.0.0.1:9");
    // What a stranger's page sends is not a change of anybody.
    gateway.ask_admin(&change(drain, "").header("Origin", "http://evil.test")).expect(403);
    gateway.ask_admin(&change("/reload", "{\"reason\": null}")).expect(200);
    let line = wait_audit(&gateway, 3);
    assert_eq!(line["call"], "reload");
    assert!(line["after"].as_str().expect("text").contains("changes"), "{line}");
}

/// The command line uses a token that may change, wherever it stands.
#[test]
fn the_command_line_finds_the_token_that_may_change() {
    let gateway = Run::default().env("SG_EYE", "s3cret-eye").start(&format!("{TOKENS}{SERVERS}"));
    let port = gateway.admin().port();
    let dir = Scratch::new();
    let run = |tokens: &str, command: &str| {
        let head = tokens.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
        let file = dir.file("gateway.yaml", &format!("{head}{SERVERS}")).display().to_string();
        Run::default().env("SG_EYE", "s3cret-eye").args(&[command, "-c", &file]).finish(dir.path())
    };
    for command in ["status", "reload"] {
        let finished = run(TOKENS, command);
        assert_eq!(finished.code, Some(0), "{command}: {finished:?}");
    }
    let reader = "admin: { listen: 127.0.0.1:0, tokens: [{ name: eye, token: s3cret-eye, allow: read }] }\n";
    assert_eq!(run(reader, "status").code, Some(0));
    let refused = run(reader, "reload");
    assert!(refused.code == Some(1) && refused.stderr.contains("may only read"), "{refused:?}");
}

/// A body that does not arrive does not hold the connection for ever, and one too large is refused.
#[test]
fn bodies_are_bounded() {
    let gateway = Gateway::start(SERVERS);
    let mut slow = Client::connect(gateway.admin());
    slow.send(b"POST /reload HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{");
    gateway.ask_admin(&change("/reload", &" ".repeat(64 * 1024 + 1))).expect(413);
    slow.response().expect(408);
    slow.assert_closed();
}
