//! `sluicegate reload` and `sluicegate status`: their output and exit codes.

use std::net::TcpListener;

use crate::support::*;

/// A gateway with its admin port in the file.
fn start(body: &str) -> (Gateway, String) {
    let admin = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port");
    let head = format!("admin: {{ listen: {admin}, token: s3cret }}\n");
    let gateway = Gateway::start(&format!("{head}{body}"));
    (gateway, head)
}

fn run(gateway: &Gateway, words: &[&str]) -> Finished {
    let file = gateway.file().display().to_string();
    let args: Vec<&str> = words.iter().copied().chain(["-c", &file]).collect();
    Run::default().args(&args).finish(gateway.dir())
}

const ONE: &str = "locations:\n  - { path: /, respond: { body: one } }\n";

#[test]
fn reload_reports_changes_and_problems() {
    let (mut gateway, head) = start(ONE);
    gateway.write(&format!("{head}{}", ONE.replace("one", "two")));
    let output = run(&gateway, &["reload"]);
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (Some(0), "reloaded: locations: changed /\n"),
        "{output:?}"
    );
    assert_eq!(gateway.get("/").expect(200).text(), "two");
    gateway.write(&format!("{head}{ONE}limts: 1\n"));
    let output = run(&gateway, &["reload"]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.stderr.contains("limts") && output.stderr.contains("gateway.yaml:5:1"), "{output:?}");
    assert_eq!(gateway.metric_with("s3cret", "sluicegate_reloads_total", &["failed"]), 1.0);
    gateway.write(&format!("{head}server: {{ workers: 9 }}\n{ONE}"));
    let output = run(&gateway, &["reload"]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.stderr.contains("server.workers"), "{output:?}");
    assert_eq!(output.stderr.matches("server.workers").count(), 1, "reported twice: {output:?}");
    // So broken that it does not even name the admin listener.
    gateway.write("locations: [\n");
    let output = run(&gateway, &["reload"]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(
        output.stderr.contains("gateway.yaml:") && output.stderr.contains("does not name the admin listener"),
        "{output:?}"
    );
    gateway.write(&format!("{}{ONE}", head.replace("s3cret", "wrong")));
    assert_eq!(run(&gateway, &["reload"]).code, Some(5));
    gateway.write(&format!("{head}{ONE}"));
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    let output = run(&gateway, &["reload"]);
    assert_eq!(output.code, Some(5), "{output:?}");
    assert!(output.stderr.contains("is the gateway running?"), "{output:?}");
    // The gateway does not answer, and the file is invalid: both are reported.
    gateway.write(&format!("{head}{ONE}limts: 1\n"));
    let output = run(&gateway, &["reload"]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(
        output.stderr.contains("is the gateway running?") && output.stderr.contains("limts"),
        "{output:?}"
    );
}

#[test]
fn status_shows_the_state() {
    let (gateway, head) = start(ONE);
    let output = run(&gateway, &["status"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    for line in ["generation  1\n", "connections 0\n", "in flight   0\n", "last reload none\n"] {
        assert!(output.stdout.contains(line), "{output:?}");
    }
    assert!(output.stdout.contains(&format!("process {}", gateway.pid())), "{output:?}");
    gateway.write(&format!("{head}{}", ONE.replace("one", "two")));
    assert_eq!(run(&gateway, &["reload"]).code, Some(0));
    let _client = gateway.client();
    eventually("a connection", || {
        let output = run(&gateway, &["status", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&output.stdout).expect("JSON");
        assert_eq!((&json["generation"], &json["last_reload"]["result"]), (&2.into(), &"ok".into()));
        json["connections"] == 1
    });
}

/// A token missing from the environment is not a wrong token.
#[test]
fn an_unset_variable_is_reported() {
    let (gateway, head) = start(ONE);
    gateway.write(&format!("{}{ONE}", head.replace("s3cret", "\"${SG_TEST_ADMIN_TOKEN}\"")));
    for command in ["status", "reload"] {
        let output = run(&gateway, &[command]);
        assert_eq!(output.code, Some(3), "{output:?}");
        assert!(output.stderr.contains("`SG_TEST_ADMIN_TOKEN` is not set"), "{output:?}");
        assert!(!output.stderr.contains("the file's token"), "{output:?}");
    }
    // Other unset variables do not matter for the request.
    let other = ONE.replace("body: one", "body: \"${SG_TEST_BODY}\"");
    gateway.write(&format!("{head}{other}"));
    assert_eq!(run(&gateway, &["status"]).code, Some(0));
    assert_eq!(gateway.metric_with("s3cret", "sluicegate_reloads_total", &[]), 0.0);
}
