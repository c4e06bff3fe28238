//! A file that cannot be applied changes nothing, and the answer, the log and the metrics give the reason.

use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use crate::support::*;

const GOOD: &str = "locations:\n  - { path: /, respond: { body: good } }\n";

/// The old configuration still serves, and a valid file is applied afterwards.
#[track_caller]
fn assert_unharmed(gateway: &Gateway, failed: f64) {
    assert_eq!(gateway.get("/").expect(200).text(), "good");
    assert_eq!(gateway.metric("sluicegate_reloads_total", &["failed"]), failed);
    assert_eq!(gateway.metric("sluicegate_config_generation", &[]), 1.0);
}

#[test]
fn whatever_is_wrong_with_the_file_the_old_one_serves() {
    let gateway = Gateway::start(GOOD);
    let whole = format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{GOOD}");
    let huge = whole.clone() + &"# more\n".repeat(15 << 20);
    assert!(huge.len() > 90 << 20);
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("broken", b"locations: [\n  { path: /,\n".to_vec(), "gateway.yaml:"),
        ("truncated", whole.as_bytes()[..whole.len() - 12].to_vec(), "gateway.yaml:4:25"),
        ("empty", Vec::new(), "the file is empty"),
        ("half-written", whole.as_bytes()[..30].to_vec(), "gateway.yaml:"),
        ("misspelt", format!("{whole}limts: {{}}\n").into_bytes(), "gateway.yaml:5:1"),
        ("not text", [whole.as_bytes(), b"# \xff\xfe\n"].concat(), "not UTF-8"),
        ("huge", huge.into_bytes(), "larger than 1 MiB"),
    ];
    for (index, (name, bytes, expected)) in cases.iter().enumerate() {
        std::fs::write(gateway.file(), bytes).expect("the file can be written");
        let answer = gateway.reload().expect(422);
        assert!(answer.text().contains(expected), "{name}: {}", answer.text());
        assert_unharmed(&gateway, (index + 1) as f64);
        eventually(name, || gateway.stderr().matches("the old configuration stays").count() == index + 1);
    }
    let json = gateway
        .ask_admin(
            &post("/reload", b"")
                .header("Content-Type", "application/json")
                .header("Accept", "application/json"),
        )
        .expect(422)
        .json();
    assert!(json["result"] == "invalid" && json["problems"][0]["line"] == 1, "{json}");
    assert_eq!(gateway.change(GOOD), "reloaded: nothing changed\n");
    assert_eq!(gateway.metric("sluicegate_config_generation", &[]), 2.0);
}

#[test]
fn a_file_that_went_away_or_became_something_else_changes_nothing() {
    let gateway = Gateway::start(GOOD);
    std::fs::remove_file(gateway.file()).expect("the file is there");
    assert!(gateway.reload().expect(422).text().contains("does not exist"));
    std::fs::create_dir(gateway.file()).expect("a folder in its place");
    assert!(gateway.reload().expect(422).text().contains("is a directory"));
    assert_unharmed(&gateway, 2.0);
    std::fs::remove_dir(gateway.file()).expect("the folder is empty");
    gateway.write(GOOD);
    std::fs::set_permissions(gateway.file(), std::fs::Permissions::from_mode(0o000))
        .expect("its mode can be set");
    // Root may read the file all the same.
    let answer = gateway.reload();
    assert!(answer.status == 200 || answer.text().contains("may not be read"), "{}", answer.text());
}

/// HUP has no answer: the log and `/status` have the result.
#[test]
fn hup_reports_to_the_log() {
    let gateway = Gateway::start(GOOD);
    gateway.write("locations:\n  - { path: /, respond: { body: 1 }\n");
    gateway.signal(Signal::HUP);
    gateway.wait_stderr("the old configuration stays");
    gateway.wait_stderr("gateway.yaml:");
    let status = gateway.admin_get("/status").expect(200).text();
    assert!(status.contains("last reload failed: "), "{status}");
    assert_unharmed(&gateway, 1.0);
}

/// A field that cannot change at run time is rejected by name, together with the rest of the file.
#[test]
fn some_fields_need_a_restart() {
    let gateway = Gateway::start(GOOD);
    let new = GOOD.replace("good", "new");
    for (more, field) in [
        ("server: { workers: 7 }\n", "server.workers"),
        ("admin: none\n", "admin"),
        ("admin: { listen: 127.0.0.1:0, token: another }\n", "admin"),
        ("log: { format: pretty }\n", "log.format"),
    ] {
        gateway.write(&format!("{more}{new}"));
        let answer = gateway.reload().expect(422).text();
        assert!(answer.contains(field) && answer.contains("needs a restart"), "{answer}");
    }
    assert_unharmed(&gateway, 4.0);
}

/// An access log that cannot be opened is found before anything changes.
#[test]
fn a_log_that_cannot_be_opened_changes_nothing() {
    let gateway = Gateway::start(GOOD);
    gateway
        .write(&format!("access_log: {{ output: /none/such/access.log }}\n{}", GOOD.replace("good", "new")));
    assert!(gateway.reload().expect(422).text().contains("/none/such/access.log"));
    assert_unharmed(&gateway, 1.0);
}

/// Without a file there is nothing to reload.
#[test]
fn a_gateway_without_a_file_says_so() {
    let args =
        ["proxy", "--to", "demo", "--limit", "5/h", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let gateway = Run::default().args(&args).serve(true);
    assert!(gateway.reload().expect(409).text().contains("without a file"));
    gateway.signal(Signal::HUP);
    eventually("a log line", || gateway.stderr().matches("without a file").count() == 2);
    gateway.get("/").expect(200);
}

/// A page in a browser cannot reload, and only POST does.
#[test]
fn browsers_do_not_reload() {
    let gateway = Gateway::start(GOOD);
    let ask = |ask: &Ask| gateway.ask_admin(ask).status;
    let post = || post("/reload", b"").header("Content-Type", "application/json");
    assert_eq!(ask(&post().header("Origin", "http://evil.test")), 403);
    assert_eq!(ask(&crate::support::post("/reload", b"").header("Content-Type", "text/plain")), 415);
    assert_eq!(ask(&get("/reload")), 405);
    assert_eq!(gateway.metric("sluicegate_reloads_total", &[]), 0.0);
    gateway.ask(&post()).expect(200);
    assert_eq!(gateway.metric("sluicegate_reloads_total", &[]), 0.0);
}
