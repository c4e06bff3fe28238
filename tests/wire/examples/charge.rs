//! The examples with limits that are settled by the response, and their providers.

use crate::examples::{example, from_account, moved};
use crate::support::*;

/// An example with a provider in place of `demo`.
#[track_caller]
fn example_before(name: &str, upstream: &Upstream) -> Gateway {
    let path = format!("{}/examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Gateway::start(&moved(&text).replace("upstream: demo", &format!("upstream: \"{}\"", upstream.url())))
}

#[test]
fn login_by_answer() {
    let upstream = Upstream::new(|seen| {
        let right = seen.header("x-password").is_some_and(|password| password == "right");
        Reply::with(if right { 200 } else { 401 }, &[], "answer")
    });
    // Unchanged, its upstream says 200 to everybody.
    let gateway = example("login_by_answer", "");
    (0..20).for_each(|_| drop(gateway.get("/login").expect(200)));
    let gateway = example_before("login_by_answer", &upstream);
    let log_in = |password: &str| gateway.ask(&get("/login").header("X-Password", password));
    (0..4).for_each(|_| drop(log_in("wrong").expect(401)));
    log_in("right").expect(200);
    (0..5).for_each(|_| drop(log_in("wrong").expect(401)));
    log_in("right").expect(429);
    gateway.get("/").expect(401);
}

#[test]
fn egress_per_day() {
    let gateway = example("egress_per_day", "");
    let sent = gateway.ask(&from_account("/", "acme")).expect(200);
    let kib = sent.body.len().div_ceil(1024) as u64;
    let next = gateway.ask(&from_account("/", "acme")).expect(200);
    let left = 50 * 1024 * 1024 - kib - 1;
    let field = next.header("ratelimit").expect("numbers");
    // Clients are told bytes.
    assert!(field.contains(&format!("r={};", left * 1024)), "{field}");
    gateway.get("/").expect(403);
}

#[test]
fn llm_gateway() {
    let usage = "{\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":60}}";
    let upstream = Upstream::new(move |_| Reply::with(200, &[("Content-Type", "application/json")], usage));
    let ask = |path: &str, account: &str, model: &str, most: u32| {
        let body = format!("{{\"model\":\"{model}\",\"max_tokens\":{most},\"messages\":[]}}");
        post(path, body.as_bytes()).header("X-Account-Id", account)
    };
    example("llm_gateway", "").ask(&ask("/v1/chat/completions", "acme", "m", 10)).expect(200);
    let gateway = example_before("llm_gateway", &upstream);
    let chat = |account: &str, model: &str, most: u32| {
        gateway.ask(&ask("/v1/chat/completions", account, model, most))
    };
    assert!(chat("acme", "m", 900).expect(200).header("ratelimit").expect("numbers").contains("r=99"));
    assert_eq!(gateway.wait_log(1)[0]["charged"], 100);
    // Other models and accounts have budgets of their own.
    for (account, model) in [("acme", "other"), ("nobody", "m")] {
        let field = chat(account, model, 900).expect(200).header("ratelimit").expect("numbers");
        assert!(field.contains("r=1999"), "{field}");
    }
    gateway.ask(&post("/v1/chat/completions", b"{}").header("X-Account-Id", "acme")).expect(401);
    // A long prompt, and one with an image.
    let of = |account: &str, path: &str, body: &[u8]| {
        gateway.ask(&post(path, body).header("X-Account-Id", account))
    };
    for bytes in [100_000, 5 << 20] {
        let prompt = format!(r#"{{"model":"long","max_tokens":9,"messages":"{}"}}"#, "x".repeat(bytes));
        of("long", "/v1/chat/completions", prompt.as_bytes()).expect(200);
        of("long", "/v1/messages", prompt.as_bytes()).expect(200);
    }
    gateway.ask(&from_account("/v1/models", "acme")).expect(200);
    of("acme", "/v1/files", &vec![0xff; 200_000]).expect(200);
    of("acme", "/v1/audio/transcriptions", &vec![0xff; 200_000]).expect(200);
    let refused = (0..2_000).map(|_| gateway.ask(&ask("/v1/messages", "acme", "m", 25_000)));
    let refused = refused.into_iter().find(|answer| answer.status != 200).expect("a refusal");
    assert_eq!(refused.expect(429).json()["error"]["type"], "rate_limit_error");
}

#[test]
fn llm_budget() {
    let usage = r#"{"model":"claude-4-opus-1","usage":{"input_tokens":100000,"output_tokens":10000}}"#;
    let upstream = Upstream::new(move |_| Reply::with(200, &[("Content-Type", "application/json")], usage));
    let ask = |model: &str| {
        let body = format!("{{\"model\":\"{model}\",\"max_tokens\":1}}");
        post("/v1/messages", body.as_bytes()).header("X-Account-Id", "acme")
    };
    example("llm_budget", "").ask(&ask("gpt-5")).expect(200);
    let gateway = example_before("llm_budget", &upstream);
    assert_eq!(gateway.ask(&ask("gpt-6")).expect(400).json()["error"]["type"], "invalid_request_error");
    gateway.ask(&ask("claude-4-opus")).expect(200);
    // That cost 2.25 dollars, and this reserves 10 tokens of input and one of output.
    let field = gateway.ask(&ask("claude-4-opus")).expect(200).header("ratelimit").expect("numbers");
    assert!(field.contains("\"budget\";r=47749775;"), "{field}");
    gateway.ask(&post("/v1/messages", br#"{"model":"gpt-5"}"#)).expect(401);
}
