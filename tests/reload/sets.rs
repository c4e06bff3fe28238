//! Included files: their changes are noticed, taken over as a whole, and told with owners and numbers.

use std::fs;

use serde_json::json;

use crate::support::*;

const MAIN: &str = "reload: { watch: 100ms }\nlog: { format: json }\ninclude: [\"teams/*.yaml\"]\n\
                    owner: platform\nlocations:\n  - { path: /, respond: { body: main } }\n";

fn team(name: &str, rate: &str) -> String {
    format!(
        "owner: {name}\nupstreams: {{ {name}-app: [127.0.0.1:1] }}\nlimits: {{ {name}: {{ rate: {rate}, key: uri }} }}\n\
         locations:\n  - {{ path: /{name}/, respond: {{ body: {name} }}, limits: {name} }}\n  \
         - {{ path: /{name}/app/, upstream: {name}-app }}\n"
    )
}

fn write(gateway: &Gateway, name: &str, text: &str) {
    let path = gateway.dir().join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("created");
    let beside = path.with_extension("new");
    fs::write(&beside, text).expect("written");
    fs::rename(beside, path).expect("renamed");
}

fn said(gateway: &Gateway, path: &str) -> String {
    gateway.get(path).text()
}

/// New, changed and vanished files, and ConfigMaps, which are swapped by one link.
#[test]
fn changes_of_the_set_are_noticed() {
    let gateway = Gateway::start(MAIN);
    assert_eq!(said(&gateway, "/pay/"), "main");
    write(&gateway, "teams/pay.yaml", &team("pay", "9/s"));
    eventually("the new file", || said(&gateway, "/pay/") == "pay");
    write(&gateway, "teams/pay.yaml", &team("pay", "9/s").replace("body: pay", "body: paid"));
    eventually("the change", || said(&gateway, "/pay/") == "paid");
    for version in ["..1", "..2"] {
        write(
            &gateway,
            &format!("teams/{version}/map.yaml"),
            &team("map", "9/s").replace("body: map", &format!("body: {version}")),
        );
    }
    let swap = |to: &str| {
        let beside = gateway.dir().join("teams/..beside");
        std::os::unix::fs::symlink(to, &beside).expect("linked");
        fs::rename(beside, gateway.dir().join("teams/..data")).expect("renamed");
    };
    swap("..1");
    std::os::unix::fs::symlink("..data/map.yaml", gateway.dir().join("teams/map.yaml")).expect("linked");
    eventually("the ConfigMap", || said(&gateway, "/map/") == "..1");
    swap("..2");
    eventually("the other ConfigMap", || said(&gateway, "/map/") == "..2");
    fs::remove_file(gateway.dir().join("teams/pay.yaml")).expect("removed");
    eventually("the file to be forgotten", || said(&gateway, "/pay/") == "main");
    assert_eq!(gateway.metric("sluicegate_reloads_total", &["failed"]), 0.0);
}

/// One wrong file keeps all others as they were, and the log names it.
#[test]
fn a_reload_takes_all_or_nothing() {
    let gateway = Gateway::start(&MAIN.replace("watch: 100ms", "watch: none"));
    write(&gateway, "teams/a.yaml", &team("a", "9/s"));
    write(&gateway, "teams/b.yaml", &team("b", "9/s"));
    gateway.reload().expect(200);
    write(&gateway, "teams/a.yaml", &team("a", "9/s").replace("body: a", "body: new"));
    write(&gateway, "teams/b.yaml", &team("b", "9x"));
    let told = gateway.reload().expect(422).text();
    assert!(told.contains("teams/b.yaml:3:"), "{told}");
    gateway.wait_stderr("teams/b.yaml:3:");
    assert_eq!([said(&gateway, "/a/"), said(&gateway, "/b/")], ["a", "b"]);
    let status = gateway.ask_admin(&get("/status").header("Accept", "application/json")).json();
    let file = status["last_reload"]["problems"][0]["file"].as_str().expect("a file").to_owned();
    assert!(file.ends_with("teams/b.yaml"), "{status}");
    write(&gateway, "teams/b.yaml", &team("a", "9/s"));
    assert!(
        gateway.reload().expect(422).text().contains("`a` is defined twice in limits, first in line 3 of ")
    );
    write(&gateway, "teams/b.yaml", &team("b", "8/s"));
    gateway.reload().expect(200);
    assert_eq!([said(&gateway, "/a/"), said(&gateway, "/b/")], ["new", "b"]);
}

#[test]
fn a_reload_tells_changed_values_and_no_secrets() {
    let gateway = Gateway::start(&MAIN.replace("watch: 100ms", "watch: none"));
    write(&gateway, "teams/a.yaml", &team("a", "10/s"));
    gateway.reload().expect(200);
    let secret = "access_log: { hash_secret: hunter2 }\n";
    gateway.write(&format!("{}{secret}", MAIN.replace("watch: 100ms", "watch: none")));
    write(&gateway, "teams/a.yaml", &(team("a", "20/s") + "  - { path: /more/, upstream: a-app }\n"));
    let json = gateway.ask_admin(
        &post("/reload", b"{}")
            .header("Content-Type", "application/json")
            .header("Accept", "application/json"),
    );
    let json = json.expect(200).json();
    let values = json!([
        { "path": "locations /more/", "from": null, "to": "{…}" },
        { "path": "access_log.hash_secret", "from": null, "to": "***" },
        { "path": "limits.a.rate", "from": "10/s", "to": "20/s" },
    ]);
    assert_eq!((&json["values"], &json["more"]), (&values, &json!(0)), "{json}");
    gateway.wait_stderr(r#"\"generation\":3"#);
    let audits = gateway.stderr();
    let line = audits.lines().rfind(|line| line.contains("audit")).expect("a line");
    assert!(
        line.contains(r#"\"limits.a.rate\":\"10/s\""#) && line.contains(r#"\"limits.a.rate\":\"20/s\""#),
        "{line}"
    );
    assert!(!gateway.stderr().contains("hunter") && !json.to_string().contains("hunter"), "{json}");
    // More than a hundred are counted.
    let many: String = (0..150).map(|n| format!("  - {{ path: /n{n}/, upstream: a-app }}\n")).collect();
    write(&gateway, "teams/a.yaml", &(team("a", "20/s") + &many));
    let told = gateway.reload().expect(200).text();
    assert!(told.contains("\n  locations /n0/: new\n") && told.ends_with("\n  and 51 more\n"), "{told}");
}

#[test]
fn owners_are_told_everywhere() {
    let gateway = Gateway::start(&MAIN.replace("watch: 100ms", "watch: none"));
    write(&gateway, "teams/pay.yaml", &team("pay", "10/s"));
    gateway.reload().expect(200);
    [said(&gateway, "/"), said(&gateway, "/pay/")].into_iter().for_each(drop);
    let log = gateway.wait_log(2);
    let owner = |path: &str| log.iter().find(|line| line["path"] == path).expect("a line")["owner"].clone();
    assert_eq!([owner("/"), owner("/pay/")], ["platform", "pay"]);
    for (kind, name, owner) in [
        ("limit", "pay", "pay"),
        ("location", "/", "platform"),
        ("location", "/pay/", "pay"),
        ("upstream", "pay-app", "pay"),
    ] {
        let labels = [format!("kind=\"{kind}\",name=\"{name}\",owner=\"{owner}\"")];
        assert_eq!(gateway.metric("sluicegate_owner_info", &[&labels[0]]), 1.0, "{name}");
    }
    let json =
        |path: &str| gateway.ask_admin(&get(path).header("Accept", "application/json")).expect(200).json();
    assert_eq!(json("/limits")["limits"][0]["owner"], "pay");
    assert_eq!(json("/upstreams")["upstreams"][0]["owner"], "pay");
    // Without an owner nothing is told.
    gateway.change("log: { format: json }\nlocations: [{ path: /, upstream: demo }]\n");
    assert!(!gateway.metrics().contains("sluicegate_owner_info"));
}

/// `check --against` says what a reload would, and exits with 0 whatever changes.
#[test]
fn check_tells_what_changes_from_another_file() {
    let dir = Scratch::new();
    let main = MAIN.replace("owner: platform\n", "");
    for (folder, rate) in [("old", "10/s"), ("new", "20/s")] {
        fs::create_dir_all(dir.path().join(folder).join("teams")).expect("created");
        dir.file(&format!("{folder}/gateway.yaml"), &main);
        dir.file(&format!("{folder}/teams/pay.yaml"), &team("pay", rate));
    }
    let run = |args: &[&str]| {
        Run::default().args(&[&["check", "new/gateway.yaml"], args].concat()).finish(dir.path())
    };
    let told = run(&["--against", "old/gateway.yaml"]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(0), "limits.pay.rate: 10/s → 20/s\n"), "{told:?}");
    let told = run(&["--against", "new/gateway.yaml"]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(0), ""), "{told:?}");
    let told = run(&["--against", "old/gateway.yaml", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&told.stdout).expect("JSON");
    assert_eq!(found["changes"], json!([{ "path": "limits.pay.rate", "from": "10/s", "to": "20/s" }]));
    let owners =
        [&found["limits"][0], &found["upstreams"][0], &found["locations"][1]].map(|one| one["owner"].clone());
    assert_eq!(owners, ["pay", "pay", "pay"]);
    assert_eq!(found["locations"][0].get("owner"), None);
    dir.file("old/teams/pay.yaml", "limits: 5\n");
    let told = run(&["--against", "old/gateway.yaml"]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(3), ""), "{told:?}");
    assert!(told.stderr.contains("old/teams/pay.yaml:1:1"), "{told:?}");
}
