//! The lists for operators.

use serde_json::{Value, json};
use sluicegate_testkit::{Gateway, Run, Scratch, get, post};

use crate::{admin_json, as_account, numbers};

const FILE: &str = "account: { from: header:x-account, tier: { members: { acme: gold } } }
limits:
  plan: { key: account, rate: [1000/1h, 5/year], zone: Europe/Berlin,
      tiers: { gold: { rate: [1000/1h, 8/year] } } }
  per-ip: { key: ip, rate: 100/s, burst: 200 }
locations: [{ path: /, respond: { body: ok }, limits: [plan, per-ip] }]
";

fn call(gateway: &Gateway, accounts: &[&str]) {
    accounts.iter().for_each(|account| drop(gateway.ask(&as_account("/", account)).expect(200)));
}

#[test]
fn a_key_is_shown_with_its_use() {
    let gateway = Gateway::start(FILE);
    call(&gateway, &["acme", "acme", "acme"]);
    let shown = admin_json(&gateway, "/limits/plan/keys/account=acme?tier=gold");
    let usage = shown["usage"].as_array().expect("entries");
    assert_eq!((usage.len(), numbers(&usage[0]), numbers(&usage[1])), (2, (3, 997, 1000), (3, 5, 8)));
    // It is called as in the rest of the answer, where accounts are hashes.
    assert_eq!((&usage[1]["key"], &usage[1]["rate"]), (&shown["key"], &"8/year".into()));
    let bucket = admin_json(&gateway, "/limits/per-ip/keys/ip=127.0.0.1");
    assert_eq!(bucket["usage"][0]["quota"], 200);
    assert!(admin_json(&gateway, "/limits/per-ip/keys?by=asked")["keys"][0].get("usage").is_none());
}

fn listed(gateway: &Gateway, target: &str) -> Vec<Value> {
    let list = admin_json(gateway, target);
    let mut keys = list["keys"].as_array().expect("keys").clone();
    keys.sort_by_key(|entry| entry["key"].to_string());
    keys
}

#[test]
fn all_keys_of_a_window_are_listed() {
    let gateway = Gateway::start(&format!("access_log: {{ hash_keys: false }}\n{FILE}"));
    call(&gateway, &["acme", "other, \"corp\"", "acme"]);
    let list = admin_json(&gateway, "/limits/plan/usage");
    assert_eq!((&list["limit"], &list["window"]), (&"plan".into(), &"current".into()));
    let keys = listed(&gateway, "/limits/plan/usage");
    assert_eq!(keys.len(), 2, "{list:#}");
    assert_eq!((&keys[0]["key"], &keys[0]["rate"]), (&"account=acme".into(), &"8/year".into()));
    assert_eq!((numbers(&keys[0]), numbers(&keys[1])), ((2, 6, 8), (1, 4, 5)));
    assert_eq!(listed(&gateway, "/limits/plan/usage?window=last"), [json!(null); 0]);
    let csv = gateway.admin_get("/limits/plan/usage?format=csv").expect(200);
    assert_eq!(csv.header("content-type").as_deref(), Some("text/csv; charset=utf-8"));
    let year = keys[0]["begins"].as_str().expect("a time").to_owned();
    let text = csv.text();
    let mut lines: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(lines.remove(0), "limit,key,rate,unit,quota,used,reserved,left,begins,ends,step");
    lines.sort();
    assert!(lines[0].starts_with(&format!("plan,account=acme,8/year,request,8,2,0,6,{year},")), "{text}");
    assert!(lines[1].starts_with("plan,account=other%2C%20%22corp%22,5/year,request,5,1,0,4,"), "{text}");
    for (target, status) in [
        ("/limits/per-ip/usage", 409),
        ("/limits/nowhere/usage", 404),
        ("/limits/plan/usage?window=next", 400),
        ("/limits/plan/usage?format=xml", 400),
    ] {
        gateway.admin_get(target).expect(status);
    }
    gateway.ask_admin(&post("/limits/plan/usage", b"")).expect(405);
}

#[test]
fn names_are_for_tokens_that_may_see_them() {
    let gateway = Gateway::start(&format!(
        "admin: {{ listen: 127.0.0.1:0, tokens: [{{ name: ops, token: one }}, \
         {{ name: eye, token: two, allow: read }}] }}\n{FILE}"
    ));
    call(&gateway, &["acme"]);
    let ask = |target: &str, token: &str| {
        let ask = get(target).header("Authorization", format!("Bearer {token}"));
        gateway.ask_admin(&ask.header("Accept", "application/json")).expect(200).json()
    };
    let key = |token| ask("/limits/plan/usage", token)["keys"][0]["key"].as_str().expect("a name").to_owned();
    assert_eq!(key("one"), "account=acme");
    let hidden = key("two");
    assert_eq!(ask("/limits/plan/keys/account=acme", "two")["key"], Value::from(hidden.clone()));
    assert!(hidden.starts_with("account=#"), "{hidden}");
}

#[test]
fn many_keys_are_streamed_and_the_command_copies_them() {
    let file = format!("access_log: {{ hash_keys: false }}\n{}", FILE.replace("100/s, burst: 200", "9999/s"));
    let gateway = Gateway::start(&file);
    let folder = Scratch::new();
    folder.file("gateway.yaml", &format!("admin: {}\n{file}", gateway.admin()));
    let mut client = gateway.client();
    for number in 0..600 {
        client.ask(&as_account("/", &format!("account-{number}"))).expect(200);
    }
    let run = |words: &[&str]| Run::default().args(words).finish(folder.path());
    let csv = run(&["usage", "plan", "--csv"]);
    assert_eq!((csv.code, csv.stdout.lines().count()), (Some(0), 601), "{}", csv.stderr);
    let list: Value = serde_json::from_str(&run(&["usage", "plan"]).stdout).expect("JSON");
    assert_eq!(list["keys"].as_array().map(Vec::len), Some(600));
    let refused = run(&["usage", "per-ip"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("no rate of the limit"), "{refused:?}");
    assert_eq!(run(&["usage", "plan", "--window", "next"]).code, Some(2));
}

#[test]
fn the_last_step_is_told() {
    let steps = "steps: [{ at: 12.5%, then: warn }, { at: 100%, then: slow, rate: 1/1h }, { at: 200%, then: reject }]";
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:x-account }}
limits: {{ plan: {{ key: account, rate: 4/year, {steps} }} }}
locations: [{{ path: = /usage, usage: {{}} }}, {{ path: /, respond: {{ body: ok }}, limits: plan }}]
"
    ));
    let told = || crate::ask(&gateway, "/usage", "acme")["limits"][0].clone();
    assert_eq!(told()["step"], Value::Null);
    call(&gateway, &["acme"]);
    assert_eq!(told()["step"], json!({ "at": 12.5, "then": "warn" }));
    call(&gateway, &["acme"; 4]);
    assert_eq!((&told()["step"], &told()["left"]), (&json!({ "at": 100, "then": "slow" }), &(-1).into()));
    let csv = gateway.admin_get("/limits/plan/usage?format=csv").expect(200).text();
    assert!(csv.contains(",request,4,5,0,-1,") && csv.ends_with(",slow\r\n"), "{csv}");
    let query = json!({ "method": "GET", "url": "/", "headers": ["X-Account: acme"] });
    let query = post("/explain", query.to_string().as_bytes()).header("Accept", "application/json");
    let explained = gateway.ask_admin(&query).expect(200).json();
    assert_eq!(explained["limits"][0]["counters"][0]["step"], told()["step"], "{explained:#}");
}
