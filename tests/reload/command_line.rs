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
fn reload_tells_what_changed_or_what_is_wrong() {
    let (mut gateway, head) = start(ONE);
    gateway.write(&format!("{head}{}", ONE.replace("one", "two")));
    let told = run(&gateway, &["reload"]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(0), "reloaded: locations: changed /\n"), "{told:?}");
    assert_eq!(gateway.get("/").expect(200).text(), "two");
    gateway.write(&format!("{head}{ONE}limts: 1\n"));
    let told = run(&gateway, &["reload"]);
    assert_eq!(told.code, Some(3), "{told:?}");
    assert!(told.stderr.contains("limts") && told.stderr.contains("gateway.yaml:5:1"), "{told:?}");
    assert_eq!(gateway.metric_with("s3cret", "sluicegate_reloads_total", &["failed"]), 1.0);
    gateway.write(&format!("{head}server: {{ workers: 9 }}\n{ONE}"));
    let told = run(&gateway, &["reload"]);
    assert_eq!(told.code, Some(3), "{told:?}");
    assert!(told.stderr.contains("server.workers"), "{told:?}");
    assert_eq!(told.stderr.matches("server.workers").count(), 1, "said twice: {told:?}");
    // So broken that it does not even name the admin listener.
    gateway.write("locations: [\n");
    let told = run(&gateway, &["reload"]);
    assert_eq!(told.code, Some(3), "{told:?}");
    assert!(told.stderr.contains("gateway.yaml:") && told.stderr.contains("where to ask"), "{told:?}");
    gateway.write(&format!("{}{ONE}", head.replace("s3cret", "wrong")));
    assert_eq!(run(&gateway, &["reload"]).code, Some(5));
    gateway.write(&format!("{head}{ONE}"));
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    let told = run(&gateway, &["reload"]);
    assert_eq!(told.code, Some(5), "{told:?}");
    assert!(told.stderr.contains("is the gateway running?"), "{told:?}");
    // The gateway does not answer, and the file is invalid: both are reported.
    gateway.write(&format!("{head}{ONE}limts: 1\n"));
    let told = run(&gateway, &["reload"]);
    assert_eq!(told.code, Some(3), "{told:?}");
    assert!(told.stderr.contains("is the gateway running?") && told.stderr.contains("limts"), "{told:?}");
}

#[test]
fn status_tells_how_it_is() {
    let (gateway, head) = start(ONE);
    let told = run(&gateway, &["status"]);
    assert_eq!(told.code, Some(0), "{told:?}");
    for line in ["generation  1\n", "connections 0\n", "in flight   0\n", "last reload none\n"] {
        assert!(told.stdout.contains(line), "{told:?}");
    }
    assert!(told.stdout.contains(&format!("process {}", gateway.pid())), "{told:?}");
    gateway.write(&format!("{head}{}", ONE.replace("one", "two")));
    assert_eq!(run(&gateway, &["reload"]).code, Some(0));
    let _client = gateway.client();
    eventually("a connection", || {
        let told = run(&gateway, &["status", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&told.stdout).expect("JSON");
        assert_eq!((&json["generation"], &json["last_reload"]["result"]), (&2.into(), &"ok".into()));
        json["connections"] == 1
    });
}

/// A token missing from the environment is not a wrong token.
#[test]
fn a_variable_that_is_not_set_is_told() {
    let (gateway, head) = start(ONE);
    gateway.write(&format!("{}{ONE}", head.replace("s3cret", "\"${SG_TEST_ADMIN_TOKEN}\"")));
    for command in ["status", "reload"] {
        let told = run(&gateway, &[command]);
        assert_eq!(told.code, Some(3), "{told:?}");
        assert!(told.stderr.contains("`SG_TEST_ADMIN_TOKEN` is not set"), "{told:?}");
        assert!(!told.stderr.contains("another token"), "{told:?}");
    }
    // Other unset variables do not matter for the request.
    let other = ONE.replace("body: one", "body: \"${SG_TEST_BODY}\"");
    gateway.write(&format!("{head}{other}"));
    assert_eq!(run(&gateway, &["status"]).code, Some(0));
    assert_eq!(gateway.metric_with("s3cret", "sluicegate_reloads_total", &[]), 0.0);
}
