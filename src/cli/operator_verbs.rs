//! `keys`, `show`, `usage`, `reset`, `grant`, `revoke`, `pause`, `resume`, `set`, `unset`, `bans`, `ban`, `unban`:
//! requests to the admin API of a running gateway.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use percent_encoding::utf8_percent_encode;
use serde::Serialize;
use serde_json::{Value, json};

use super::admin_client::{AdminFault, OperatorRequest, escape_controls, escape_lines};
use super::operator_args::{KeyArgs, LimitArgs, OperatorVerb};
use super::remote::find_admin;
use super::{CommandResult, print_result, usage};
use sluicegate_admission::ban_target::BanTarget;
use sluicegate_base::escape::RESERVED;
use sluicegate_model::AdminConfig;

pub(super) fn run_operator_verb(file: &Path, verb: &OperatorVerb) -> CommandResult {
    let admin = find_admin(file)?;
    if let OperatorVerb::Ban { whom, .. } | OperatorVerb::Unban { whom, .. } = verb
        && !whom.starts_with("account=")
        && whom.parse::<BanTarget>().is_err()
    {
        let whom = escape_controls(whom);
        let why = format!("`{whom}` is neither an address nor a network");
        return Err(usage(format!("{why}; for an account, write account={whom}")));
    }
    if let OperatorVerb::Set { numbers, .. } = verb
        && let Some(why) = find_wrong_number(numbers)
    {
        return Err(usage(escape_controls(&why)));
    }
    if let OperatorVerb::Usage { .. } = verb {
        build_request(verb).copy_answer(&admin, &mut std::io::stdout().lock())?;
        return Ok(ExitCode::SUCCESS);
    }
    print_result(&send_verb(&admin, verb)?)
}

/// Sends the request of a verb, and tells its outcome.
pub(super) fn send_verb(admin: &AdminConfig, verb: &OperatorVerb) -> Result<String, AdminFault> {
    let request = build_request(verb);
    let text_wanted = !verb.wants_json() && describe_change(verb, &Value::Null).is_none();
    let accept = if text_wanted { "text/plain" } else { "application/json" };
    request.send_for_text(admin, accept).map(|answer| render_answer(verb, &answer))
}

fn build_request(verb: &OperatorVerb) -> OperatorRequest {
    match verb {
        OperatorVerb::Keys { limit, by, top, .. } => {
            OperatorRequest::get(format!("/limits/{}/keys?by={by}&top={top}", encode_segment(limit)))
        }
        OperatorVerb::Show { key, tier } => {
            let tier = tier.as_ref().map(|tier| format!("?tier={}", encode_segment(tier)));
            OperatorRequest::get(key_path(key) + &*tier.unwrap_or_default())
        }
        OperatorVerb::Usage { limit, window, csv } => {
            let format = if *csv { "csv" } else { "json" };
            let limit = encode_segment(limit);
            OperatorRequest::get(format!("/limits/{limit}/usage?window={window}&format={format}"))
        }
        OperatorVerb::Reset { key, tier, reason } => {
            let body = render_body([("tier", json!(tier)), ("reason", json!(reason))]);
            OperatorRequest::with_body("POST", key_path(key) + "/reset", body)
        }
        OperatorVerb::Grant { key, rate, burst, queue, max_wait, max_concurrent, length, reason } => {
            let body = render_body([
                ("rate", one_or_list(rate)),
                ("burst", one_or_list(burst)),
                ("queue", one_or_list(queue)),
                ("max_wait", json!(max_wait)),
                ("max_concurrent", json!(max_concurrent)),
                ("for", json!(length)),
                ("reason", json!(reason)),
            ]);
            OperatorRequest::with_body("POST", key_path(key) + "/grant", body)
        }
        OperatorVerb::Revoke { key, reason } => OperatorRequest::with_body(
            "DELETE",
            key_path(key) + "/grant",
            render_body([("reason", json!(reason))]),
        ),
        OperatorVerb::Pause { limits, length } => pause_request("pause", limits, json!(length)),
        OperatorVerb::Resume { limits } => pause_request("resume", limits, Value::Null),
        OperatorVerb::Set { limit, numbers, length, change } => {
            let mut body = read_numbers(numbers);
            body.insert("for".to_owned(), json!(length));
            body.insert("reason".to_owned(), json!(change.reason));
            let path = format!("/limits/{}/numbers", encode_segment(limit));
            OperatorRequest::with_body("PUT", path, Value::Object(body).to_string())
        }
        OperatorVerb::Unset { limit, change } => {
            let path = format!("/limits/{}/numbers", encode_segment(limit));
            OperatorRequest::with_body("DELETE", path, render_body([("reason", json!(change.reason))]))
        }
        OperatorVerb::Bans(_) => OperatorRequest::get("/bans"),
        OperatorVerb::Ban { whom, length, change } => {
            let account = whom.strip_prefix("account=");
            let (field, whom) = account.map_or(("ip", whom.as_str()), |name| ("account", name));
            let body = [(field, json!(whom)), ("for", json!(length)), ("reason", json!(change.reason))];
            OperatorRequest::with_body("POST", "/bans", render_body(body))
        }
        OperatorVerb::Unban { whom, change } => {
            let path = format!("/bans/{}", encode_segment(whom));
            OperatorRequest::with_body("DELETE", path, render_body([("reason", json!(change.reason))]))
        }
    }
}

/// Several limits are changed together or not at all.
fn pause_request(word: &str, LimitArgs { limits, change, .. }: &LimitArgs, length: Value) -> OperatorRequest {
    let (path, names) = match limits.as_slice() {
        [limit] => (format!("/limits/{}/{word}", encode_segment(limit)), Value::Null),
        [] => (format!("/{word}"), Value::Null),
        names => (format!("/{word}"), json!(names)),
    };
    let body = render_body([("limits", names), ("for", length), ("reason", json!(change.reason))]);
    OperatorRequest::with_body("POST", path, body)
}

/// What is wrong with `rate=20/s burst=40` as words of a command.
fn find_wrong_number(numbers: &[String]) -> Option<String> {
    let names: Vec<&str> = numbers.iter().filter_map(|number| number.split('=').next()).collect();
    names.iter().enumerate().find_map(|(index, name)| match *name {
        "for" | "reason" => Some(format!("`{name}` is no number: write --{name}")),
        _ => names[..index].contains(name).then(|| format!("`{name}` is given twice: write {name}=1,2")),
    })
}

/// The members of `rate=20/s,600/m burst=40`.
fn read_numbers(numbers: &[String]) -> serde_json::Map<String, Value> {
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    let fields = numbers.iter().map(|number| number.split_once('=').unwrap_or((number, "")));
    let field = |(name, text): (&str, &str)| {
        let parts = || one_or_list(&text.split(',').map(value).collect::<Vec<Value>>());
        (name.to_owned(), serde_json::from_str(text).unwrap_or_else(|_| parts()))
    };
    fields.map(field).collect()
}

/// One value, or a list of them, as in the file; null without any.
fn one_or_list<T: Serialize>(values: &[T]) -> Value {
    match values {
        [] => Value::Null,
        [one] => json!(one),
        all => json!(all),
    }
}

/// The object of these fields without those that are null; nothing without any.
fn render_body<const N: usize>(fields: [(&str, Value); N]) -> String {
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    let object: serde_json::Map<String, Value> =
        given.map(|(name, value)| (name.to_owned(), value)).collect();
    if object.is_empty() { String::new() } else { Value::Object(object).to_string() }
}

fn key_path(args: &KeyArgs) -> String {
    format!("/limits/{}/keys/{}", encode_segment(&args.limit), encode_segment(&args.key))
}

/// A name as one segment of a path. A key that is percent-encoded already is encoded once more.
pub(super) fn encode_segment(name: &str) -> String {
    utf8_percent_encode(name, RESERVED).to_string()
}

fn render_answer(verb: &OperatorVerb, answer: &str) -> String {
    if verb.wants_json() {
        return format!("{}\n", answer.trim_end());
    }
    match describe_change(verb, &serde_json::from_str(answer).unwrap_or_default()) {
        Some(sentence) => escape_controls(&sentence) + "\n",
        None => escape_lines(answer.trim_end()) + "\n",
    }
}

/// The result of a change; `None` for a request that only shows.
fn describe_change(verb: &OperatorVerb, answer: &Value) -> Option<String> {
    let text = |value: &Value, typed: &str| value.as_str().unwrap_or(typed).to_owned();
    let lasts =
        |left: &Value, typed: &str| left.as_f64().and_then(format_seconds).unwrap_or(typed.to_owned());
    Some(match verb {
        OperatorVerb::Reset { key, .. } => {
            format!("{} of {} was reset", text(&answer["key"], &key.key), key.limit)
        }
        OperatorVerb::Grant { key, rate, length, .. } => {
            let (name, grant) = (text(&answer["key"], &key.key), &answer["grant"]);
            let numbers = text(&grant["numbers"], &rate.join(", "));
            let length = lasts(&grant["left_s"], length);
            format!("{name} of {} was granted {numbers} for {length}", key.limit)
        }
        OperatorVerb::Revoke { key, .. } => {
            format!("the grant for {} of {} was revoked", text(&answer["key"], &key.key), key.limit)
        }
        OperatorVerb::Ban { whom, length, .. } => {
            let banned = text(&answer["banned"], whom);
            match lasts(&answer["left_s"], length.as_deref().unwrap_or_default()).as_str() {
                "" => format!("{banned} is banned"),
                length => format!("{banned} is banned for {length}"),
            }
        }
        OperatorVerb::Unban { whom, .. } => {
            let left = answer["left"].as_array().into_iter().flatten().map(|one| {
                let (limit, next) = (text(&one["limit"], ""), lasts(&one["reset_s"], "0s"));
                match &one["remaining"] {
                    Value::Number(left) if left.as_u64() == Some(0) => {
                        format!("; {limit} has 0 left, one more in {next}")
                    }
                    Value::Number(left) => format!("; {limit} has {left} left"),
                    _ => String::new(),
                }
            });
            format!("{whom} is no longer banned{}", left.collect::<String>())
        }
        _ => return None,
    })
}

/// Whole seconds in words, e.g. `1h 30m`.
pub(super) fn format_seconds(seconds: f64) -> Option<String> {
    let length = Duration::try_from_secs_f64(seconds.round()).ok()?;
    Some(humantime::format_duration(length).to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{CommandLine, Verb};

    fn parse_verb(words: &[&str]) -> OperatorVerb {
        let line = CommandLine::try_parse_from(["sluicegate"].iter().chain(words)).unwrap();
        match line.verb {
            Some(Verb::Operator(verb)) => verb,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn assert_request(words: &[&str], line: &str, body: &str) {
        let request = build_request(&parse_verb(words));
        let json = |text: &str| serde_json::from_str::<Value>(text).ok();
        assert_eq!(
            (format!("{} {}", request.method, request.path).as_str(), json(&request.body)),
            (line, json(body)),
        );
    }

    #[test]
    fn each_verb_is_a_request() {
        assert_request(&["keys", "per-ip"], "GET /limits/per-ip/keys?by=refused&top=20", "");
        let all = ["keys", "/a b#1", "--by", "asked", "--top", "3"];
        assert_request(&all, "GET /limits/%2Fa%20b%231/keys?by=asked&top=3", "");
        assert_request(
            &["show", "l", "uri=%2Fa,ip=::1"],
            "GET /limits/l/keys/uri%3D%252Fa%2Cip%3D%3A%3A1",
            "",
        );
        assert_request(&["show", "l", "global", "--tier", "a&b"], "GET /limits/l/keys/global?tier=a%26b", "");
        assert_request(&["usage", "a b"], "GET /limits/a%20b/usage?window=current&format=json", "");
        let last = ["usage", "l", "--window", "last", "--csv"];
        assert_request(&last, "GET /limits/l/usage?window=last&format=csv", "");
        assert_request(&["reset", "l", "global"], "POST /limits/l/keys/global/reset", "");
        assert_request(&["revoke", "a/b", "ip=::1"], "DELETE /limits/a%2Fb/keys/ip%3D%3A%3A1/grant", "");
        assert_request(&["bans"], "GET /bans", "");
        assert_request(&["unban", "192.0.2.0/24"], "DELETE /bans/192.0.2.0%2F24", "");
        assert_request(&["unban", "account=a#b"], "DELETE /bans/account%3Da%23b", "");
    }

    #[test]
    fn changes_have_a_body() {
        assert_request(
            &["reset", "l", "account=#0a", "--tier", "gold", "--reason", "\"x\""],
            "POST /limits/l/keys/account%3D%230a/reset",
            r#"{"reason":"\"x\"","tier":"gold"}"#,
        );
        assert_request(
            &["grant", "l", "k", "--rate", "100/s", "--burst", "200", "--for", "1h", "--reason", "a demo"],
            "POST /limits/l/keys/k/grant",
            r#"{"burst":200,"for":"1h","rate":"100/s","reason":"a demo"}"#,
        );
        assert_request(
            &[
                "grant", "l", "k", "--rate", "9/s", "--rate", "99/m", "--queue", "1", "--queue", "2",
                "--for=1d",
            ],
            "POST /limits/l/keys/k/grant",
            r#"{"for":"1d","queue":[1,2],"rate":["9/s","99/m"]}"#,
        );
        assert_request(
            &["grant", "l", "k", "--max-concurrent", "5", "--max-wait", "2s", "--for", "1d"],
            "POST /limits/l/keys/k/grant",
            r#"{"for":"1d","max_concurrent":5,"max_wait":"2s"}"#,
        );
        assert_request(
            &["revoke", "l", "k", "--reason", "the demo is over"],
            "DELETE /limits/l/keys/k/grant",
            r#"{"reason":"the demo is over"}"#,
        );
        assert_request(&["ban", "192.0.2.7"], "POST /bans", r#"{"ip":"192.0.2.7"}"#);
        assert_request(
            &["ban", "account=a=b", "--for", "1h", "--reason", "x"],
            "POST /bans",
            r#"{"account":"a=b","for":"1h","reason":"x"}"#,
        );
        assert_request(&["unban", "::1", "--reason", "x"], "DELETE /bans/%3A%3A1", r#"{"reason":"x"}"#);
    }

    #[test]
    fn numbers_are_words_lists_and_json() {
        let set = ["set", "l", "rate=20/s,600/m", "burst=40", "--for", "2h", "--reason", "x"];
        let body = r#"{"rate":["20/s","600/m"],"burst":40,"for":"2h","reason":"x"}"#;
        assert_request(&set, "PUT /limits/l/numbers", body);
        let json = ["set", "l", r#"max_concurrent={"min": 2, "max": 9}"#, r#"rate=["1/s","9/m"]"#];
        let body = r#"{"max_concurrent":{"min":2,"max":9},"rate":["1/s","9/m"],"for":null,"reason":null}"#;
        assert_request(&json, "PUT /limits/l/numbers", body);
        let wrong = |words: &[&str]| {
            find_wrong_number(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(wrong(&["rate=1/s", "burst=4"]), None);
        for (words, why) in [
            (["rate=1/s", "for=2h"], "write --for"),
            (["rate=1/s", "reason=x"], "write --reason"),
            (["rate=1/s", "rate=2/s"], "given twice"),
        ] {
            assert!(wrong(&words).is_some_and(|found| found.contains(why)), "{words:?}");
        }
    }

    #[test]
    fn changes_are_told_in_a_sentence() {
        let told = |words: &[&str], answer: Value| render_answer(&parse_verb(words), &answer.to_string());
        let key = json!({ "key": "ip=192.0.2.7", "grant": { "numbers": "9 requests per second", "left_s": 5400.2 } });
        assert_eq!(
            told(&["reset", "per-ip", "ip=192.0.2.7"], key.clone()),
            "ip=192.0.2.7 of per-ip was reset\n"
        );
        assert_eq!(
            told(&["grant", "per-ip", "ip=192.0.2.7", "--rate", "9/s", "--for", "90m"], key.clone()),
            "ip=192.0.2.7 of per-ip was granted 9 requests per second for 1h 30m\n"
        );
        assert_eq!(
            told(&["revoke", "per-ip", "ip=192.0.2.7"], key),
            "the grant for ip=192.0.2.7 of per-ip was revoked\n"
        );
        let ban = json!({ "banned": "192.0.2.7", "left_s": 600.0 });
        assert_eq!(told(&["ban", "192.0.2.7"], ban), "192.0.2.7 is banned for 10m\n");
        assert_eq!(told(&["unban", "::1"], Value::Null), "::1 is no longer banned\n");
        let left = |limit: &str, left: u64| json!({ "limit": limit, "remaining": left, "reset_s": 24.1 });
        assert_eq!(
            told(&["unban", "::1"], json!({ "left": [left("per-ip", 0), left("daily", 7)] })),
            "::1 is no longer banned; per-ip has 0 left, one more in 24s; daily has 7 left\n"
        );
        // Texts of the gateway and of the command line reach the terminal escaped.
        assert_eq!(
            told(&["unban", "account=\u{1b}[2J"], Value::Null),
            "account=\\u{1b}[2J is no longer banned\n"
        );
        let listed = render_answer(&parse_verb(&["keys", "l"]), "key\nuri=\u{1b}c\n");
        assert_eq!(listed, "key\nuri=\\u{1b}c\n");
        assert_eq!(told(&["unban", "::1", "--json"], json!({ "bans": [] })), "{\"bans\":[]}\n");
    }
}
