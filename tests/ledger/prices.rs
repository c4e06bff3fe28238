//! Money equals a ledger in Python, to the millionth: mocked calls of OpenAI (chat and responses), Anthropic and Gemini,
//! streamed and not, by their requests' models and by those of their answers, with a limit of tokens in the same chain.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::*;

const CALLS: u64 = 20_000;
const SHARED_CALLS: u64 = 4_000;
/// In whole units of the currency.
const QUOTA: u64 = 1_000_000;
const TOKENS: u64 = 80_000_000_000_000;

const FILE: &str = "
account: { from: header:X-A }
limits:
  money:
    key: account
    algorithm: fixed_window
    rate: QUOTA USD/1d
    charge:
      units: money
      prices: PRICES
      unknown_model: { input: 5, cached: 0.5, output: 20.000001, above: { input_tokens: 50000, output: 25 } }
  strict: { key: account, algorithm: fixed_window, rate: QUOTA USD/1d, charge: { units: money, prices: PRICES } }
  tokens: { key: account, algorithm: fixed_window, rate: TOKENS/1d, charge: { units: llm, reserve: 100 } }
locations:
  - { path: /call/, upstream: \"http://127.0.0.1:PORT\", limits: [money, tokens] }
  - { path: /strict/, upstream: \"http://127.0.0.1:PORT\", limits: [strict] }
";

/// An amount of money as JSON has it, in millionths.
fn millionths(amount: &Value) -> u64 {
    (amount.as_f64().expect("a number") * 1e6).round() as u64
}

/// What the limits of a location have left for an account.
fn left(gateway: &Gateway, path: &str, account: &str) -> Vec<Value> {
    let query = serde_json::json!({
        "method": "POST", "url": path, "headers": [format!("X-A: {account}")], "data": "{\"model\":\"gpt-5\"}"
    });
    let asked = post("/explain", query.to_string().as_bytes()).header("Accept", "application/json");
    let explained = gateway.ask_admin(&asked).expect(200).json();
    let limits = explained["limits"].as_array().expect("limits");
    limits.iter().map(|limit| limit["counters"][0]["remaining"].clone()).collect()
}

#[test]
fn money_equals_a_ledger_in_python_to_the_millionth() {
    compare_ledgers(crate::call_count(CALLS), "").expect("nothing to disturb it");
}

#[test]
fn money_in_redis_equals_the_ledger() {
    undisturbed(|| {
        let redis = Redis::start();
        let state =
            format!("state: {{ store: redis, redis: {{ url: \"{}\", timeout: 200ms }} }}", redis.url());
        compare_ledgers(crate::call_count(SHARED_CALLS), &state)
    });
}

/// Makes the calls through a gateway with this top-level line, and compares each of them and the sums. `None`: Redis did
/// not always answer in time.
fn compare_ledgers(calls: u64, state: &str) -> Option<()> {
    let folder = Scratch::new();
    let prices = folder.path().join("prices.yaml");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ledger/prices.py");
    let mut ledger = Command::new("/usr/bin/python3")
        .args([script, &calls.to_string()])
        .arg(&prices)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut lines = BufReader::new(ledger.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let port = lines.next().expect("the port of the providers");
    let file = FILE.replace("QUOTA", &QUOTA.to_string()).replace("TOKENS", &TOKENS.to_string());
    let gateway =
        Gateway::start(&file.replace("PORT", &port).replace("PRICES", &prices.display().to_string()));
    writeln!(ledger.stdin.take().expect("piped"), "{}", gateway.addr()).expect("it reads");
    let made: Vec<(String, String, u16, u64, u64)> =
        serde_json::from_str(&lines.next().expect("the calls")).expect("a list");
    assert!(ledger.wait().expect("it ends").success());

    let log: HashMap<String, Value> = gateway
        .wait_log(calls as usize)
        .into_iter()
        .map(|line| (line["path"].as_str().expect("a path").to_owned(), line))
        .collect();
    if gateway.metric("sluicegate_degraded_decisions_total", &[]) > 0.0 {
        return None;
    }
    let mut sums: HashMap<String, (u64, u64)> = HashMap::new();
    for (path, account, status, money, tokens) in made {
        let line = &log[&path];
        assert_eq!(line["status"], status, "{line}");
        if path.starts_with("/strict/") {
            assert_eq!(
                (&line["verdict"], &line["charged"]),
                (&"unknown_model".into(), &Value::Null),
                "{line}"
            );
        } else {
            assert_eq!(millionths(&line["charged"]), money, "{line}");
        }
        let sum = sums.entry(account).or_default();
        *sum = (sum.0 + money, sum.1 + tokens);
    }
    assert_eq!(sums.len(), 4);
    for (account, (money, tokens)) in &sums {
        let found = || {
            let found = left(&gateway, "/call/0", account);
            (millionths(&found[0]), found[1].as_u64())
        };
        let expected = (QUOTA * 1_000_000 - money, Some(TOKENS - tokens));
        // Redis is corrected a moment after the responses.
        if !state.is_empty() {
            eventually("all corrections", || found() == expected);
        }
        assert_eq!(found(), expected, "{account}");
        assert_eq!(left(&gateway, "/strict/0", account), [QUOTA], "{account}: a refused call costs nothing");
    }
    println!("{calls} calls; millionths and tokens by provider: {sums:?}");
    Some(())
}
