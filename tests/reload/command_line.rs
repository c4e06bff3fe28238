//! `sluicegate reload` and `sluicegate status`: their output and exit codes.

use crate::support::*;

/// A gateway with its admin port in the file.
fn start(body: &str) -> (Gateway, String) {
    let admin = free_addr();
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
        (Some(0), "reloaded: locations: changed /\n  locations /.respond.body: one → two\n"),
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

/// Servers, limits, bans and rejections stand on one screen, in aligned columns.
#[test]
fn status_shows_servers_limits_bans_and_rejections() {
    let upstream = Upstream::ok();
    let (gateway, _head) = start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\", \"127.0.0.1:1\"], balance: round_robin, eject: {{ errors: 1, max: 100% }} }}\n\
         limits:\n  tight: {{ key: global, rate: 1/h }}\n  idle: {{ rate: 10/s }}\n\
         bans: {{ after: 3/1m }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n  - {{ path: /tight, respond: {{ body: ok }}, limits: [tight, idle] }}\n",
        upstream.url()
    ));
    for _ in 0..4 {
        gateway.get("/");
    }
    let statuses = [(); 5].map(|()| gateway.get("/tight").status);
    assert_eq!(statuses, [200, 429, 429, 429, 429]);
    let output = run(&gateway, &["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&output.stdout).expect("JSON");
    let tight = &json["limits"][0];
    assert_eq!(
        (&tight["limit"], &tight["keys"], &tight["rejected"]),
        (&"tight".into(), &1.into(), &3.into())
    );
    assert_eq!((&json["bans"]["active"], &json["bans"]["rejected"]), (&1.into(), &1.into()));
    assert!(json["rejections"]["per_s"].as_f64() > Some(0.0), "{json}");
    let servers = json["upstreams"][0]["servers"].as_array().expect("servers");
    assert_eq!(servers.iter().filter(|server| server["state"] == "ejected").count(), 1, "{json}");
    let text = run(&gateway, &["status"]).stdout;
    assert!(text.contains("\nbans        1 active, ") && text.contains("\nrejections  "), "{text}");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let at = |first: &str| rows.iter().position(|row| row.first() == Some(&first)).expect(first);
    assert_eq!(rows[at("upstream") + 1][..3], ["app", "127.0.0.1:1", "ejected"], "{text}");
    assert_eq!(rows[at("upstream") + 2][2], "up", "{text}");
    assert!(rows[at("tight")][1] == "1" && rows[at("tight")][3] == "3" && at("tight") < at("idle"), "{text}");
    let column = |word: &str| text.lines().find_map(|line| line.find(word)).expect(word);
    assert_eq!(column("state"), column("ejected"), "{text}");
    assert!(text.lines().count() <= 24, "one screen: {text}");
}

/// A look after a long time shows the rates of now: those of one second.
#[test]
fn status_shows_recent_rates() {
    let (gateway, _head) =
        start("locations:\n  - { path: /, respond: { body: ok }, limits: { key: global, rate: 1/h } }\n");
    let look = || -> serde_json::Value {
        serde_json::from_str(&run(&gateway, &["status", "--json"]).stdout).expect("JSON")
    };
    gateway.get("/").expect(200);
    gateway.get("/").expect(429);
    assert!(look()["rejections"]["per_s"].as_f64() > Some(0.0));
    std::thread::sleep(ms(1200));
    look();
    std::thread::sleep(ms(1200));
    let quiet = look();
    assert_eq!((&quiet["rejections"]["per_s"], &quiet["limits"][0]["rejected"]), (&0.0.into(), &1.into()));
    let over = quiet["rejections"]["over_s"].as_f64().expect("seconds");
    assert!((1.0..15.0).contains(&over), "{quiet}");
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

/// After a change of `admin` the file names an address at which nothing listens yet.
#[test]
fn a_reload_without_an_answer_mentions_a_change_of_the_address() {
    let folder = std::env::temp_dir().join(format!("sluicegate-admin-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("gateway.yaml");
    std::fs::write(&file, "admin: 127.0.0.1:1\nlocations: [{ path: /, upstream: demo }]\n").expect("a file");
    let output =
        std::process::Command::new(program()).args(["reload", "-c"]).arg(&file).output().expect("it runs");
    let _ = std::fs::remove_dir_all(&folder);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("does not answer"), "{text}");
    assert!(text.contains("a change of `admin` needs a restart"), "{text}");
    assert!(text.contains("may still listen at its old address"), "{text}");
}
