//! Each line is one JSON object, whatever a client sends.

use serde_json::Value;

use super::*;

fn record<'a>() -> AccessRecord<'a> {
    AccessRecord {
        unix_us: 1_763_670_131_045_007,
        id: "01JD3Z0V7Q",
        ip: Some(IpAddr::from([192, 0, 2, 17])),
        method: "GET",
        protocol: None,
        host: "example.com",
        path: "/a/b?token=secret",
        status: 429,
        bytes: 285,
        received: None,
        duration_ns: 1_234_567,
        wait_ns: 0,
        upstream: None,
        error: None,
        location: Some("/a/"),
        owner: Some("payments"),
        account: Some("alice"),
        tier: Some("gold"),
        verdict: "reject",
        limit: Some("per-ip"),
        class: None,
        key: Some("account=#00ff,uri=/a"),
        retry_after_ns: Some(100_000_001),
        charge: None,
        dry_run: None,
        step: None,
        user_agent: None,
        referer: None,
        tries: None,
        upstream_ns: None,
        scheme: None,
        proto: None,
        headers: &[],
    }
}

fn line(record: &AccessRecord<'_>) -> String {
    let mut out = Vec::new();
    LineFormat::new(None, LineForm::Json).write_line(record, &mut out);
    String::from_utf8(out).unwrap()
}

fn parse_line(record: &AccessRecord<'_>) -> Value {
    let line = line(record);
    assert_eq!(line.matches('\n').count(), 1, "{line:?}");
    serde_json::from_str(line.trim_end()).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

#[test]
fn the_class_stands_beside_the_limit() {
    assert!(
        line(&AccessRecord { class: Some("gold"), ..record() })
            .contains(r#""limit":"per-ip","class":"gold","key":"#)
    );
}

#[test]
fn a_line_has_every_field_of_a_request() {
    let expected = concat!(
        r#"{"ts":"2025-11-20T20:22:11.045007Z","id":"01JD3Z0V7Q","ip":"192.0.2.17","method":"GET","#,
        r#""host":"example.com","path":"/a/b","status":429,"bytes":285,"dur_ms":1.234,"wait_ms":0.000,"#,
        r#""verdict":"reject","location":"/a/","owner":"payments","account":"alice","tier":"gold","#,
        r#""limit":"per-ip","key":"account=#00ff,uri=/a","retry_after":0.101}"#,
        "\n"
    );
    assert_eq!(line(&record()), expected);
}

#[test]
fn dry_run_decisions_are_written_and_cut() {
    let told = |dry_run: &str| {
        let line = parse_line(&AccessRecord { dry_run: Some(dry_run), ..record() });
        line["dry_run"].as_str().unwrap().to_owned()
    };
    assert_eq!(told("per-ip=reject,~ \"x\"#1=wait"), "per-ip=reject,~ \"x\"#1=wait");
    assert_eq!(told(&"x".repeat(10_000)).len(), VALUE_MAX);
}

#[test]
fn a_key_is_escaped_and_cut() {
    let told = |key: &str| {
        let line = parse_line(&AccessRecord { key: Some(key), ..record() });
        line["key"].as_str().unwrap().to_owned()
    };
    assert_eq!(told("a\"\n=…"), "a\"\n=…");
    assert_eq!(told(&"x".repeat(10_000)).len(), VALUE_MAX);
}

#[test]
fn unknown_fields_are_left_out() {
    let bare = AccessRecord {
        ip: None,
        location: None,
        owner: None,
        account: None,
        tier: None,
        limit: None,
        key: None,
        retry_after_ns: None,
        ..record()
    };
    let parsed = parse_line(&bare);
    for name in [
        "ip",
        "location",
        "owner",
        "account",
        "tier",
        "limit",
        "key",
        "retry_after",
        "dry_run",
        "upstream",
        "error",
        "user_agent",
        "referer",
        "tries",
        "upstream_ms",
        "scheme",
        "proto",
        "headers",
    ] {
        assert!(parsed.get(name).is_none(), "{name}");
    }
}

#[test]
fn control_characters_cannot_forge_a_line() {
    let agent = HeaderValue::from_bytes(b"x\"}\t\xff{").unwrap();
    let hostile = AccessRecord {
        host: "a\"b\r\n{\"ts\":1}",
        path: "/\u{1b}[2J\u{0}",
        account: Some("\n"),
        headers: &[(HeaderName::from_static("user-agent"), agent)],
        ..record()
    };
    let parsed = parse_line(&hostile);
    assert_eq!(parsed["host"], hostile.host);
    assert_eq!(parsed["path"], hostile.path);
    assert_eq!(parsed["account"], "\n");
    assert_eq!(parsed["headers"]["user-agent"], "x\"}\t\u{fffd}{");
}

#[test]
fn configured_fields_are_written() {
    let added = AccessRecord {
        user_agent: Some(b"curl/8.5"),
        referer: Some(b"https://example.com/a?token=secret#part"),
        tries: Some(2),
        upstream_ns: Some(41_500_000),
        scheme: Some("https"),
        proto: Some("HTTP/2.0"),
        ..record()
    };
    let told = line(&added);
    let expected = concat!(
        r#""user_agent":"curl/8.5","referer":"https://example.com/a","tries":2,"upstream_ms":41.500,"#,
        r#""scheme":"https","proto":"HTTP/2.0"}"#,
        "\n"
    );
    assert!(told.ends_with(expected), "{told}");
    let long = "x\"\u{1}".repeat(1_000);
    let hostile =
        AccessRecord { user_agent: Some(long.as_bytes()), referer: Some(b"\"}\n\xff?\""), ..record() };
    let parsed = parse_line(&hostile);
    assert_eq!(parsed["user_agent"].as_str().map(str::len), Some(VALUE_MAX));
    assert_eq!(parsed["referer"], "\"}\n\u{fffd}");
}

#[test]
fn long_values_are_cut_at_a_character() {
    let path = format!("/{}", "ü".repeat(5_000));
    let parsed = parse_line(&AccessRecord { path: &path, ..record() });
    let told = parsed["path"].as_str().unwrap();
    assert!(path.starts_with(told) && told.len() <= PATH_MAX && told.len() > PATH_MAX - 4);
}

#[test]
fn a_repeated_header_is_written_once() {
    let name = HeaderName::from_static("x-a");
    let headers = [
        (name.clone(), HeaderValue::from_static("1")),
        (name, HeaderValue::from_static("2")),
        (HeaderName::from_static("x-b"), HeaderValue::from_static("3")),
    ];
    let told = line(&AccessRecord { headers: &headers, ..record() });
    assert!(told.ends_with("\"headers\":{\"x-a\":\"1\",\"x-b\":\"3\"}}\n"), "{told}");
}

#[test]
fn accounts_are_hashed_with_one_key() {
    let hasher = ValueHasher::random();
    let formats = [
        LineFormat::new(Some(hasher.clone()), LineForm::Json),
        LineFormat::new(Some(hasher), LineForm::Json),
    ];
    let hashes = formats.map(|format| {
        let mut out = Vec::new();
        format.write_line(&record(), &mut out);
        let value: Value = serde_json::from_slice(&out).unwrap();
        value["account"].as_str().unwrap().to_owned()
    });
    assert_eq!(hashes[0], hashes[1]);
    assert!(hashes[0].len() == 16 && hashes[0].bytes().all(|b| b.is_ascii_hexdigit()));
}

#[test]
fn the_stamp_follows_the_second() {
    let format = LineFormat::new(None, LineForm::Json);
    for (us, told) in [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_999_999, "1970-01-01T00:00:01.999999Z"),
        (951_826_154_007_080, "2000-02-29T12:09:14.007080Z"),
    ] {
        let mut out = Vec::new();
        format.write_line(&AccessRecord { unix_us: us, ..record() }, &mut out);
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["ts"], told);
    }
}

#[test]
fn ipv6_addresses_are_compressed() {
    let ip = "2001:db8::1".parse().ok();
    assert_eq!(parse_line(&AccessRecord { ip, ..record() })["ip"], "2001:db8::1");
}

/// A call is no request: it has no path and no status.
#[test]
fn a_call_has_a_line_of_its_own() {
    let call = CallRecord {
        unix_us: 1_763_670_131_045_007,
        ip: None,
        protocol: "resp",
        call: "throttle",
        verdict: "reject",
        key: b"a\"\n\xff",
        retry_after_ns: Some(1_500_000_001),
    };
    let mut out = Vec::new();
    LineFormat::new(None, LineForm::Json).write_call(&call, &mut out);
    let line: Value = serde_json::from_slice(out.trim_ascii_end()).unwrap();
    assert_eq!(
        line,
        serde_json::json!({
            "ts": "2025-11-20T20:22:11.045007Z", "verdict": "reject", "protocol": "resp", "call": "throttle",
            "key": "a\"\n\u{fffd}", "retry_after": 1.501
        })
    );
}

/// The line of a record, or of a call, without the time.
fn pretty(colors: bool, write: impl FnOnce(&LineFormat, &mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&LineFormat::new(None, LineForm::Pretty { colors }), &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_pretty_line_has_its_columns() {
    let line = pretty(false, |format, out| format.write_line(&record(), out));
    let begin = "2025-11-20T20:22:11.045007Z 429 reject      per-ip         192.0.2.17      GET    ";
    assert_eq!(line, format!("{begin}{:<32} 1.234 ms\n", "/a/b"));
    let other = AccessRecord { status: 200, verdict: "admit", limit: None, path: "/", ..record() };
    let other = pretty(false, |format, out| format.write_line(&other, out));
    assert_eq!(line.find("1.234 ms"), other.find("1.234 ms"), "{other}");
    assert!(other.contains(" 200 admit       -              192.0.2.17 "), "{other}");
    let call = CallRecord {
        unix_us: 0,
        ip: None,
        protocol: "resp",
        call: "throttle",
        verdict: "reject",
        key: b"a\n\xff",
        retry_after_ns: None,
    };
    let call = pretty(false, |format, out| format.write_call(&call, out));
    assert!(
        call.contains("Z -   reject      -              -               throttle a\\n\u{fffd}\n"),
        "{call}"
    );
}

#[test]
fn colours_follow_the_status_and_the_verdict() {
    for (status, verdict, color) in
        [(200, "admit", 32), (304, "wait", 33), (404, "admit", 33), (429, "reject", 33), (502, "refused", 31)]
    {
        let record = AccessRecord { status, verdict, ..record() };
        let line = pretty(true, |format, out| format.write_line(&record, out));
        assert!(line.contains(&format!("Z\u{1b}[0m \u{1b}[{color}m{status} {verdict}")), "{line:?}");
        assert!(line.ends_with("\u{1b}[2m1.234 ms\u{1b}[0m\n"), "{line:?}");
    }
}

#[test]
fn a_client_cannot_steer_a_terminal() {
    let hostile = AccessRecord {
        method: "G\u{1b}[2J",
        path: "/\u{1b}]0;x\u{7}\r\n\u{9b}1m\u{202e}\u{2066}?token=secret",
        limit: Some("a\u{1b}"),
        ..record()
    };
    let line = pretty(false, |format, out| format.write_line(&hostile, out));
    assert!(line.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')), "{line:?}");
    assert!(!line.contains("secret") && !line.contains('\u{1b}'), "{line:?}");
    let long = "/x".repeat(10_000);
    let line = pretty(false, |format, out| format.write_line(&AccessRecord { path: &long, ..record() }, out));
    assert!(line.len() < PATH_MAX + 200, "{}", line.len());
}
