//! Limits in money: models without a price, files of prices that change, responses that are cut, and how amounts are
//! shown. `tests/ledger` compares the sums.

use serde_json::{Value, json};

use crate::support::*;

const PRICES: &str = "small*: { input: 1000, output: 2000 }\nlarge: { input: 1000000, output: 1000000 }\n";

/// A gateway with a limit in money, another limit before it, and its file of prices.
fn priced(upstream: &Upstream, limit: &str) -> (Gateway, Scratch) {
    let folder = Scratch::new();
    let prices = folder.file("prices.yaml", PRICES);
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:X-A }}\n\
         limits:\n  calls: 100/1h\n  budget: {{ key: account, {} }}\n\
         locations: [{{ path: /, upstream: \"{}\", limits: [calls, budget], body_peek: 1KiB }}]\n",
        limit.replace("PRICES", &prices.display().to_string()),
        upstream.url()
    ));
    (gateway, folder)
}

fn ask(body: &str) -> Ask {
    post("/", body.as_bytes()).header("Content-Type", "application/json").header("X-A", "acme")
}

/// An answer that used a token of input and three of output.
fn used() -> Reply {
    let usage = r#"{"usage":{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4}}"#;
    Reply::with(200, &[("Content-Type", "application/json")], usage)
}

fn key(gateway: &Gateway) -> Value {
    let shown = get("/limits/budget/keys/account=acme").header("Accept", "application/json");
    gateway.ask_admin(&shown).expect(200).json()
}

const BUDGET: &str = "rate: 5 USD/1h, charge: { units: money, prices: PRICES }";

#[test]
fn a_request_without_a_priced_model_is_refused_and_charged_nowhere() {
    let upstream = Upstream::new(|_| used());
    let (gateway, _folder) = priced(&upstream, BUDGET);
    let cases = [
        (r#"{"model":"tiny"}"#, 400, "unknown_model"),
        (r#"{"model":"Small"}"#, 400, "unknown_model"),
        (r#"{"model":7}"#, 400, "unknown_model"),
        ("{}", 400, "unknown_model"),
        ("model=small", 400, "unknown_model"),
        ("", 400, "unknown_model"),
        (r#"{"model":"small","model":"small"}"#, 400, "repeated_key"),
        (r#"{"model":"small","Model":"large"}"#, 400, "repeated_key"),
        (&format!(r#"{{"model":"small","x":"{}"}}"#, "x".repeat(1024)), 413, "body_beyond_peek"),
    ];
    for (at, (body, status, verdict)) in cases.into_iter().enumerate() {
        assert_eq!(gateway.ask(&ask(body)).status, status, "{body}");
        assert_eq!(gateway.wait_log(at + 1)[at]["verdict"], verdict, "{body}");
    }
    assert_eq!(upstream.count(), 0);
    let fields = gateway.ask(&ask(r#"{"model":"small","max_tokens":1}"#)).expect(200).headers;
    let field = fields.get("ratelimit").expect("a field");
    assert!(field.starts_with("\"calls\";r=99;"), "{field}");
    // It reserved 8 tokens of input and one of output.
    assert!(field.contains("\"budget\";r=4990000;"), "{field}");
    let policy = fields.get("ratelimit-policy").expect("a field");
    assert!(policy.contains(r#""budget";q=5000000;sluicegate-unit="millionths of USD";w=3600"#), "{policy}");
}

#[test]
fn amounts_are_decimals() {
    let upstream = Upstream::new(|_| used());
    let (gateway, _folder) =
        priced(&upstream, "rate: 0.02 USD/30d, burst: 0.025 USD, charge: { units: money, prices: PRICES }");
    gateway.ask(&ask(r#"{"model":"small","max_tokens":1}"#)).expect(200);
    let line = gateway.wait_log(1).remove(0);
    let found = ["reserved", "charged", "charged_by"].map(|field| line[field].to_string());
    assert_eq!(found, ["0.01", "0.007", "\"usage\""], "{line}");
    assert_eq!(key(&gateway)["remaining"], 0.018);
    let refused = gateway.ask(&ask(r#"{"model":"small-2","max_tokens":1000}"#)).expect(429);
    assert_eq!(refused.json()["detail"], "limit budget: 0.02 USD per 30 days, burst 0.025 USD");
    let limits = gateway.ask_admin(&get("/limits").header("Accept", "application/json")).expect(200).json();
    let rate = |limit: &Value| (limit["rates"][0]["units"].clone(), limit["rates"][0]["burst"].clone());
    let budget = limits["limits"].as_array().expect("a list").iter().find(|limit| limit["limit"] == "budget");
    assert_eq!(budget.map(rate), Some((json!(0.02), json!(0.025))));
    let text = gateway.admin_get("/limits/budget/keys/account=acme").expect(200).text();
    assert!(text.contains("0.018 USD"), "{text}");
    let grant = |rate: &str| {
        let body = json!({ "for": "1h", "rate": rate, "burst": "0.5 USD" }).to_string();
        let ask = post("/limits/budget/keys/account=acme/grant", body.as_bytes());
        gateway.ask_admin(&ask.header("Content-Type", "application/json"))
    };
    assert!(grant("7 EUR/1h").expect(400).text().contains("`7 EUR` is in EUR, and this limit counts in USD"));
    let granted = grant("7.25 USD/1h").expect(200).json();
    assert_eq!(granted["grant"]["numbers"], "7.25 USD per hour, burst 0.5 USD");
    assert_eq!(granted["remaining"], 0.5);
}

#[test]
fn prices_are_read_again_and_settle_what_they_reserved() {
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::new(move |seen| match &*seen.target {
        "/held" => used().held_by(&held),
        _ => used(),
    });
    let (gateway, folder) = priced(&upstream, BUDGET);
    let mut client = gateway.client();
    let body = r#"{"model":"small","max_tokens":1}"#;
    client.send(post("/held", body.as_bytes()).header("X-A", "acme").bytes());
    upstream.wait_for(1);
    folder.file("prices.yaml", "small: { input: 5000, output: 5000 }\n");
    gateway.wait_stderr("was read again");
    gateway.ask(&ask(body)).expect(200);
    gate.open();
    client.response().expect(200);
    let charged = |lines, path: &str| {
        let lines = gateway.wait_log(lines);
        let own = lines.iter().filter(|line| line["path"] == path);
        own.map(|line| line["charged"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!((charged(2, "/held"), charged(2, "/")), (vec!["0.007".into()], vec!["0.02".into()]));
    folder.file("prices.yaml", "small: { input: 5 }\nlarge: { output: -1 }\n");
    gateway.wait_stderr("stays in force");
    let told = "is wrong in line 2, `large`: `input` is missing (write e.g. input: 0.25); in line 2, `large.output`: \
                `-1` is negative";
    assert!(gateway.stderr().contains(told), "{}", gateway.stderr());
    let status = gateway.ask_admin(&get("/status").header("Accept", "application/json")).expect(200).json();
    assert!(status["files"][0]["trouble"].to_string().contains("`input` is missing"), "{}", status["files"]);
    gateway.ask(&ask(body)).expect(200);
    assert_eq!(charged(3, "/"), ["0.02", "0.02"]);
    folder.file("prices.yaml", PRICES);
    eventually("no trouble", || {
        let status =
            gateway.ask_admin(&get("/status").header("Accept", "application/json")).expect(200).json();
        status["files"] == json!([])
    });
}

/// The words of a model do not change its price: where no usage is believed, no model is.
#[test]
fn a_model_in_plain_text_is_not_believed() {
    let text = "data: {\"model\":\"small\",\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\ndata: hello\n\n";
    let upstream = Upstream::in_turn([Reply::with(200, &[("Content-Type", "text/event-stream")], text)]);
    let (gateway, _folder) = priced(&upstream, &BUDGET.replace("5 USD", "500 USD"));
    gateway.ask(&ask(r#"{"model":"large","max_tokens":1}"#)).expect(200);
    let line = gateway.wait_log(1).remove(0);
    assert!(line["charged"].as_f64() > Some(8.0), "{line}");
}

#[test]
fn a_response_is_cut_when_the_money_is_used_up() {
    let event = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    let reply = (0..200).fold(Reply::raw(head), |reply, _| reply.then(event(&"x".repeat(400))).pause(ms(2)));
    let upstream = Upstream::in_turn([reply.close()]);
    let limit =
        "algorithm: fixed_window, rate: 5 USD/1h, charge: { units: money, prices: PRICES, over: cut }";
    let (gateway, _folder) = priced(&upstream, limit);
    let mut client = gateway.client();
    client.send(ask(r#"{"model":"small","max_tokens":10}"#).bytes());
    client.raw_head(PATIENCE).expect("a head");
    client.until_close();
    let line = gateway.wait_log(1).remove(0);
    assert_eq!((&line["verdict"], &line["error"]), (&"reject".into(), &"limit used up".into()), "{line}");
    // An event has 100 tokens of output, and 25 events fit.
    let charged = line["charged"].as_f64().expect("a number");
    assert!((5.0..8.0).contains(&charged), "{line}");
    gateway.ask(&ask(r#"{"model":"small","max_tokens":1}"#)).expect(429);
}
