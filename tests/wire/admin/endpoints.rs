//! The admin API answers as its OpenAPI document says.

use serde_json::{Value, json};

use crate::support::json_schema::find_misfits;
use crate::support::*;

const FILE: &str = "admin: { listen: 127.0.0.1:0, tokens: [{ name: ops, token: one },\
                     { name: eye, token: two, allow: read }] }\n\
                    bans: { after: 100/1m }\n\
                    account: { from: header:x-account }\n\
                    limits:\n  per-ip: { rate: 3/h }\n  \
                    slots: { algorithm: concurrency, max_concurrent: 5 }\n  \
                    slow: { algorithm: leaky_bucket, rate: 100/s, queue: 5, key: account, \
                    tiers: { gold: { rate: 200/s }, free: none } }\n\
                    \u{20} plan: { key: account, rate: 99/year }\n\
                    upstreams: { app: [127.0.0.1:1, 127.0.0.1:2] }\n\
                    locations:\n  - { path: /, respond: { body: ok }, limits: [per-ip, slots, slow, plan] }\n  \
                    - { path: /app, upstream: app }\n";

/// A request and the status of its answer.
struct Sample {
    operation: &'static str,
    ask: Ask,
    status: u16,
}

fn sample(operation: &'static str, status: u16, ask: Ask) -> Sample {
    let has_token = status != 401;
    let ask = ask.header("Accept", "application/json");
    let ask = if has_token { ask.header("Authorization", "Bearer one") } else { ask };
    Sample { operation, ask, status }
}

fn change(target: &str, body: &str) -> Ask {
    post(target, body.as_bytes()).header("Content-Type", "application/json")
}

fn put(body: &str) -> Ask {
    Ask::new("PUT", "/limits/slow/numbers").header("Content-Type", "application/json").body(body.as_bytes())
}

fn delete(target: &str) -> Ask {
    Ask::new("DELETE", target).header("Content-Length", 0).header("Content-Type", "application/json")
}

const DRAIN: &str = "/upstreams/app/servers/127.0.0.1:1/drain";
const KEY: &str = "/limits/per-ip/keys/ip=127.0.0.1";

/// At least one request for each call that succeeds, and one for each way to fail.
fn samples() -> Vec<Sample> {
    vec![
        sample("show_page", 200, get("/")),
        sample("show_page_file", 200, get("/page/main.js")),
        sample("show_page_file", 200, get("/page/page.css")),
        sample("show_page_file", 404, get("/page/page.rs")),
        sample("show_health", 200, get("/healthz")),
        sample("show_readiness", 200, get("/readyz")),
        sample("show_metrics", 200, get("/metrics")),
        sample("show_metrics", 401, get("/metrics")),
        sample("show_status", 200, get("/status")),
        sample("show_status", 401, get("/status")),
        sample("show_status", 403, get("/status").header("Origin", "http://evil.test")),
        sample("list_limits", 200, get("/limits")),
        sample("list_limits", 200, get("/limits?by=rejected&top=1")),
        sample("list_limits", 400, get("/limits?top=0")),
        sample("list_limits", 400, get("/limits?by=name")),
        sample("list_keys", 200, get("/limits/per-ip/keys")),
        sample("list_keys", 200, get("/limits/slow/keys?by=asked&top=3")),
        sample("list_keys", 404, get("/limits/other/keys")),
        sample("list_keys", 400, get("/limits/per-ip/keys?top=101")),
        sample("show_key", 200, get("/limits/slow/keys/missing:account=127.0.0.1?tier=gold")),
        sample("show_key", 404, get("/limits/other/keys/ip=127.0.0.1")),
        sample("show_key", 400, get("/limits/per-ip/keys/127.0.0.1")),
        sample("reset_key", 200, change(&format!("{KEY}/reset"), r#"{"reason": "a false alarm"}"#)),
        sample("reset_key", 400, change(&format!("{KEY}/reset"), r#"{"tier": "gold"}"#)),
        sample("reset_key", 409, change("/limits/slots/keys/ip=127.0.0.1/reset", "")),
        sample("grant_key", 200, change(&format!("{KEY}/grant"), r#"{"rate": "9/s", "for": "1h"}"#)),
        sample("grant_key", 400, change(&format!("{KEY}/grant"), "")),
        sample("show_key", 200, get(KEY)),
        sample("revoke_grant", 200, delete(&format!("{KEY}/grant"))),
        sample("revoke_grant", 404, delete(&format!("{KEY}/grant"))),
        sample("ban_client", 200, change("/bans", r#"{"ip": "203.0.113.0/24", "reason": "scraping"}"#)),
        sample("ban_client", 400, change("/bans", r#"{"ip": "0.0.0.0/0"}"#)),
        sample("list_bans", 200, get("/bans")),
        sample("unban_client", 409, delete("/bans/203.0.113.7")),
        sample("unban_client", 200, delete("/bans/203.0.113.0%2F24")),
        sample("unban_client", 404, delete("/bans/203.0.113.0/24")),
        sample("list_upstreams", 200, get("/upstreams")),
        sample("show_upstream", 200, get("/upstreams/app")),
        sample("show_upstream", 404, get("/upstreams/web")),
        sample("drain_server", 200, change(DRAIN, "")),
        sample("drain_server", 409, change("/upstreams/app/servers/127.0.0.1:2/drain", "")),
        sample("drain_server", 404, change("/upstreams/app/servers/127.0.0.1:3/drain", "{}")),
        sample("drain_server", 400, change(DRAIN, r#"{"why": "typo"}"#)),
        sample("drain_server", 400, change(DRAIN, r#"["reason"]"#)),
        sample("drain_server", 400, change(DRAIN, r#"{"reason": 1}"#)),
        sample("drain_server", 400, change(&format!("{DRAIN}?force=yes"), "")),
        sample("drain_server", 413, change(DRAIN, &format!("{{\"reason\": \"{}\"}}", "x".repeat(70_000)))),
        sample("drain_server", 415, post(DRAIN, b"")),
        sample("drain_server", 401, change(DRAIN, "")),
        sample(
            "undrain_server",
            200,
            change("/upstreams/app/servers/127.0.0.1:1/undrain", r#"{"reason": "mended"}"#),
        ),
        sample("explain", 200, post("/explain", br#"{"method": "GET", "url": "/"}"#)),
        sample("explain", 200, post("/explain", br#"{"method": "GET", "url": "/app", "ip": "::1"}"#)),
        sample("explain", 400, post("/explain", b"{}")),
        sample("explain", 400, post("/explain", br#"{"method": "get", "url": "/"}"#)),
        sample("reload", 200, change("/reload", r#"{"reason": "new numbers"}"#)),
        sample("reload", 400, change("/reload", &format!("{{\"reason\": \"{}\"}}", "\u{e4}".repeat(201)))),
        sample("show_history", 200, get("/history")),
        sample("show_history", 200, get("/history?span=1d&of=limits&name=slow")),
        sample("show_history", 400, get("/history?span=2d")),
        sample("show_history", 404, get("/history?of=upstreams&name=slow")),
        sample("show_history", 401, get("/history")),
        sample("describe_calls", 200, get("/openapi.json")),
    ]
}

fn limit_samples() -> Vec<Sample> {
    vec![
        sample("pause_limit", 200, change("/limits/slow/pause", r#"{"for": "1m", "reason": "a test"}"#)),
        sample("list_limits", 200, get("/limits")),
        sample("show_status", 200, get("/status")),
        sample("resume_limit", 200, change("/limits/slow/resume", "")),
        sample("resume_limit", 404, change("/limits/slow/resume", "")),
        sample("pause_limit", 404, change("/limits/other/pause", "")),
        sample("pause_limit", 400, change("/limits/slow/pause", r#"{"for": "31d"}"#)),
        sample("pause_limits", 200, change("/pause", "")),
        sample("resume_limits", 200, change("/resume", "")),
        sample("set_numbers", 200, put(r#"{"rate": "50/s", "queue": 7, "for": "1h"}"#)),
        sample("set_numbers", 400, put(r#"{"burst": 0}"#)),
        sample("show_numbers", 200, get("/limits/slow/numbers")),
        sample("show_numbers", 404, get("/limits/other/numbers")),
        sample("unset_numbers", 200, delete("/limits/slow/numbers")),
        sample("unset_numbers", 404, delete("/limits/slow/numbers")),
    ]
}

fn usage_samples() -> Vec<Sample> {
    vec![
        sample("list_usage", 200, get("/limits/plan/usage")),
        sample("list_usage", 200, get("/limits/plan/usage?window=last&format=csv")),
        sample("list_usage", 404, get("/limits/other/usage")),
        sample("list_usage", 400, get("/limits/plan/usage?window=next")),
        sample("list_usage", 409, get("/limits/per-ip/usage")),
    ]
}

fn document(gateway: &Gateway) -> Value {
    let ask = get("/openapi.json").header("Authorization", "Bearer one");
    gateway.ask_admin(&ask).expect(200).json()
}

/// Every call by its name, with its method and path.
fn operations(document: &Value) -> Vec<(String, Value)> {
    let paths = document["paths"].as_object().expect("paths").values();
    let methods = paths.flat_map(|path| path.as_object().expect("methods").values());
    methods.map(|one| (one["operationId"].as_str().expect("a name").to_owned(), one.clone())).collect()
}

/// The document with no field allowed beside those that it names.
fn closed(document: &Value) -> Value {
    let mut document = document.clone();
    for schema in document["components"]["schemas"].as_object_mut().expect("schemas").values_mut() {
        schema["additionalProperties"] = json!(false);
    }
    document
}

#[test]
fn every_call_answers_as_documented() {
    let gateway = Gateway::start(FILE);
    let document = closed(&document(&gateway));
    let operations = operations(&document);
    for _ in 0..5 {
        gateway.get("/");
    }
    let mut answered = Vec::new();
    for Sample { operation, ask, status } in
        samples().into_iter().chain(usage_samples()).chain(limit_samples())
    {
        let response = gateway.ask_admin(&ask).expect(status);
        let (_, described) = operations.iter().find(|(name, _)| name == operation).expect(operation);
        let media = &described["responses"][status.to_string()]["content"];
        let kind = response.header("content-type").expect("a content type");
        let kind = kind.split(';').next().unwrap();
        assert!(media[kind].is_object(), "{operation} {status} {kind} is not documented: {media}");
        if kind == "application/json" {
            let misfits = find_misfits(&document, &media[kind]["schema"], &response.json());
            assert!(misfits.is_empty(), "{operation} {status}: {misfits:?} in {}", response.text());
            if status >= 400 {
                assert!(response.json()["error"].is_string(), "{}", response.text());
            }
        }
        if status == 200 {
            answered.push(operation.to_owned());
        }
    }
    let unanswered: Vec<&String> =
        operations.iter().map(|(name, _)| name).filter(|name| !answered.contains(name)).collect();
    assert_eq!(unanswered, ["stream_events"], "each call needs a sample that succeeds");
    // An invalid file is a documented answer of a reload.
    gateway.write(&FILE.replace("rate: 3/h", "rate: fast"));
    let ask =
        change("/reload", "").header("Authorization", "Bearer one").header("Accept", "application/json");
    let response = gateway.ask_admin(&ask).expect(422);
    let schema = json!({ "$ref": "#/components/schemas/NotReloaded" });
    assert_eq!(find_misfits(&document, &schema, &response.json()), [""; 0], "{}", response.text());
}

#[test]
fn the_examples_of_the_document_fit() {
    let gateway = Gateway::start(FILE);
    let document = closed(&document(&gateway));
    let mut count = 0;
    for (name, operation) in operations(&document) {
        let answers = operation["responses"].as_object().expect("responses").values();
        let bodies = answers.chain(operation.get("requestBody"));
        for media in bodies.map(|body| &body["content"]["application/json"]).filter(|media| media.is_object())
        {
            if let Some(example) = media.get("example") {
                let misfits = find_misfits(&document, &media["schema"], example);
                assert!(misfits.is_empty(), "{name}: {misfits:?} in {example}");
                count += 1;
            }
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            for value in
                [Some(&parameter["example"]), parameter["schema"].get("default")].into_iter().flatten()
            {
                let mut schema = parameter["schema"].clone();
                schema.as_object_mut().expect("a schema").remove("default");
                assert_eq!(find_misfits(&document, &schema, value), [""; 0], "{name}: {parameter}");
            }
        }
    }
    assert!(count > 15, "{count}");
}

/// The operations and the schemas of a document by their names, and its rest without the version.
fn parts(mut document: Value) -> serde_json::Map<String, Value> {
    let mut parts = serde_json::Map::new();
    for (path, methods) in document["paths"].take().as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            parts.insert(format!("{} {path}", method.to_uppercase()), operation.clone());
        }
    }
    for (name, schema) in document["components"]["schemas"].take().as_object().expect("schemas") {
        parts.insert(format!("schema {name}"), schema.clone());
    }
    document.as_object_mut().expect("an object").remove("paths");
    document["components"].as_object_mut().expect("components").remove("schemas");
    document["info"].as_object_mut().expect("info").remove("version");
    parts.insert("rest".to_owned(), document);
    parts.values_mut().for_each(sort_members);
    parts
}

/// Puts the members of each object that it requires into one order, which says nothing.
fn sort_members(part: &mut Value) {
    match part {
        Value::Object(members) => {
            if let Some(Value::Array(required)) = members.get_mut("required") {
                required.sort_by_key(Value::to_string);
            }
            members.values_mut().for_each(sort_members);
        }
        Value::Array(items) => items.iter_mut().for_each(sort_members),
        _ => {}
    }
}

/// Programs are written by the document, so a change of it is made on purpose: in `openapi.json` as well.
#[test]
fn the_document_is_as_recorded() {
    let described = parts(document(&Gateway::start(FILE)));
    let recorded: Value = serde_json::from_str(include_str!("openapi.json")).expect("JSON");
    for (name, part) in &described {
        assert_eq!(recorded.get(name), Some(part), "openapi.json lacks the line {name:?}: {part}");
    }
    assert_eq!(recorded.as_object().map(serde_json::Map::len), Some(described.len()));
}

/// The page runs modules and a style of this listener alone, and everybody may load them, because they hold no data.
#[test]
fn the_page_runs_only_its_own_files() {
    let gateway = Gateway::start(FILE);
    let page = gateway.admin_get("/").expect(200);
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; ") && policy.ends_with("frame-ancestors 'none'"));
    for part in
        ["script-src 'self'", "style-src 'self'", "connect-src 'self'", "require-trusted-types-for 'script'"]
    {
        assert!(policy.contains(&format!("; {part};")), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    for (file, kind) in [("main.js", "text/javascript"), ("page.css", "text/css"), ("no.js", "text/plain")] {
        let file = gateway.admin_get(&format!("/page/{file}"));
        assert_eq!(file.header("content-type"), Some(format!("{kind}; charset=utf-8")));
        assert_eq!(file.header("x-content-type-options").as_deref(), Some("nosniff"));
    }
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(page.header(name).as_deref(), Some(value));
    }
}

/// A path that no call has, and a method that a path does not have.
#[test]
fn wrong_paths_and_methods_are_told() {
    let gateway = Gateway::start("locations: [{ path: /, respond: { body: ok } }]\n");
    let response = gateway.admin_get("/no/such/call").expect(404);
    assert!(response.text().contains("POST   /reload"), "{}", response.text());
    let ask = get("/no/such/call").header("Accept", "application/json");
    let json = gateway.ask_admin(&ask).expect(404).json();
    assert!(json["calls"].as_array().expect("calls").contains(&"GET /limits".into()), "{json}");
    for (method, path, allow) in [
        ("OPTIONS", "/status", "GET, HEAD"),
        ("POST", "/limits", "GET, HEAD"),
        ("GET", "/reload", "POST"),
        ("DELETE", "/upstreams/a/servers/b/drain", "POST"),
    ] {
        let ask =
            Ask::new(method, path).header("Content-Length", 0).header("Content-Type", "application/json");
        let response = gateway.ask_admin(&ask).expect(405);
        assert_eq!(response.header("allow").as_deref(), Some(allow), "{method} {path}");
        // The caller sends JSON, so the error is JSON.
        assert!(response.json()["error"].as_str().expect("an error").contains(allow));
    }
    // One who wants text gets text.
    let ask =
        Ask::new("POST", "/status").header("Content-Type", "application/json").header("Accept", "text/plain");
    assert_eq!(
        gateway.ask_admin(&ask.header("Content-Length", 0)).expect(405).text(),
        "this call accepts only GET, HEAD\n"
    );
}

/// The manual lists every call.
#[test]
fn the_manual_lists_every_call() {
    let gateway = Gateway::start("locations: [{ path: /, respond: { body: ok } }]\n");
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/admin-api.md")).expect("the page");
    let document = gateway.admin_get("/openapi.json").expect(200).json();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            let call = format!("[`{} {path}`]", method.to_uppercase());
            assert!(page.contains(&call), "docs/admin-api.md lacks {call}");
        }
    }
}
