//! Calls that are malformed, too large, cut off, slow, or sent to harm others.

use std::thread;

use super::*;

const SMS: &str =
    "server: { timeouts: { body: 500ms } }\nlimits: { sms: { key: account, rate: 100/1h, burst: 100 } }";

fn remaining(gateway: &Gateway) -> u64 {
    let one = json!({ "limits": "sms", "key": { "account": "a" } });
    check(gateway, &one).expect(200).json()["remaining"].as_u64().expect("a number")
}

/// Bodies, their statuses, and the member at fault.
#[test]
fn bodies_that_are_no_call_are_refused_with_their_member() {
    let gateway = start(SMS);
    let acme = r#""limits":"sms","key":{"account":"a"}"#;
    let nested = |depth: usize| format!("{{{acme},\"cost\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
    let members: String = (0..300).map(|number| format!("\"header:x-{number}\":\"1\",")).collect();
    let cases: Vec<(Vec<u8>, u16, &str)> = [
        (format!("{{{acme},\"cost\":1,\"cost\":2}}"), 400, ""),
        (r#"{"limits":"sms","key":{"account":"a","account":"b"}}"#.to_owned(), 400, ""),
        (format!("{{\"limits\":\"sms\",\"key\":{{{members}\"account\":\"a\"}}}}"), 400, ""),
        (nested(100), 400, "cost"),
        (nested(10_000), 400, ""),
        ("[".repeat(60_000), 400, ""),
        (format!("{{{acme},\"cost\":0}}"), 400, "cost"),
        (format!("{{{acme},\"cost\":-1}}"), 400, "cost"),
        (format!("{{{acme},\"cost\":1e3}}"), 400, "cost"),
        (format!("{{{acme},\"cost\":1e999}}"), 400, ""),
        (format!("{{{acme},\"cost\":18446744073709551616}}"), 400, "cost"),
        (format!("{{{acme},\"cost\":\"3\"}}"), 400, "cost"),
        (format!("{{{acme},\"cost\":true}}"), 400, "cost"),
        (format!("{{{acme},\"wait\":\"-1s\"}}"), 400, "wait"),
        (format!("{{{acme},\"wait\":1000000000}}"), 400, "wait"),
        (format!("{{{acme},\"wait\":\"1000000000s\"}}"), 400, "wait"),
        (format!("{{{acme},\"wait\":\"99999999999999999999s\"}}"), 400, "wait"),
        (format!("{{{acme},\"lease_for\":\"0s\"}}"), 400, "lease_for"),
        (format!("{{{acme},\"lease\":\"x\"}}"), 400, "lease"),
        (format!("{{{acme},\"__proto__\":{{}}}}"), 400, "__proto__"),
        (r#"{"limits":["sms","sms"],"key":{"account":"a"}}"#.to_owned(), 400, "limits"),
        (r#"{"limits":"service","key":{"account":"a"}}"#.to_owned(), 400, "limits"),
        (r#"{"limits":"sms","key":"a"}"#.to_owned(), 400, "key"),
        (r#"{"limits":"sms","key":{"account":["a"]}}"#.to_owned(), 400, "key.account"),
        (r#"{"limits":"sms","key":{"account":"a","header:x y":"1"}}"#.to_owned(), 400, "key.header:x y"),
        (
            r#"{"limits":"sms","key":{"account":"a","header:x":"1\r\nHost: b"}}"#.to_owned(),
            400,
            "key.header:x",
        ),
        (r#"{"limits":"sms","key":{"account":"a","nothing:x":"1"}}"#.to_owned(), 400, "key.nothing:x"),
        (
            r#"{"request":{"ip":"192.0.2.1","path":"/","headers":{"a b":"c"}}}"#.to_owned(),
            400,
            "request.headers.a b",
        ),
        (r#"{"request":{"ip":"192.0.2.1","path":"/ HTTP/1.1"}}"#.to_owned(), 400, "request.path"),
        (r#"{"request":{"ip":"192.0.2.1","path":"/","host":"a b"}}"#.to_owned(), 400, "request.host"),
        (format!("{{{acme}}} {{{acme}}}"), 400, ""),
        ("null".to_owned(), 400, ""),
        ("\u{feff}{}".to_owned(), 400, ""),
    ]
    .into_iter()
    .map(|(body, status, field)| (body.into_bytes(), status, field))
    .chain([(b"{\"limits\":\"\xff\"}".to_vec(), 400, ""), (b"\0".to_vec(), 400, "")])
    .collect();
    let mut client = Client::connect(service(&gateway));
    for (body, status, field) in &cases {
        let answer = client.ask(&post("/check", body));
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        assert_eq!(answer.status, *status, "{shown}: {}", answer.text());
        let answer = answer.json();
        assert_eq!(answer["error"], "bad_call", "{shown}");
        assert_eq!(answer["field"].as_str().unwrap_or_default(), *field, "{shown}: {answer}");
    }
    // More units than any limit has are a rejection, at once and without a time to retry.
    let all =
        client.ask(&post("/check", format!("{{{acme},\"cost\":{},\"wait\":\"1s\"}}", u64::MAX).as_bytes()));
    assert_eq!(all.expect(429).json()["retry_after_ms"], Value::Null);
    let none = client.ask(&post("/check", format!("{{{acme},\"wait\":\"0s\"}}").as_bytes())).expect(200);
    assert_eq!(none.json()["remaining"], 99, "the refused calls took nothing");
}

#[test]
fn a_body_of_64_kib_is_read_and_one_byte_more_is_not() {
    let gateway = start(SMS);
    let call = r#"{"limits":"sms","key":{"account":"a"}}"#;
    let padded = |length: usize| format!("{call}{}", " ".repeat(length - call.len()));
    let mut client = Client::connect(service(&gateway));
    client.ask(&post("/check", padded(65_536).as_bytes())).expect(200);
    assert_eq!(
        client.ask(&post("/check", padded(65_537).as_bytes())).expect(413).json()["error"],
        "body_too_large"
    );
    // In chunks, the length shows only at the end.
    let chunked = |length: usize| {
        let mut client = Client::connect(service(&gateway));
        client.send("POST /check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
        for piece in padded(length).as_bytes().chunks(10_000) {
            let _ = client.try_send(format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece)));
        }
        let _ = client.try_send("0\r\n\r\n");
        client.response()
    };
    chunked(65_536).expect(200);
    chunked(65_537).expect(413);
    assert_eq!(remaining(&gateway), 97);
}

#[test]
fn calls_that_are_cut_off_or_slow_change_nothing() {
    let gateway = start(SMS);
    let call = r#"{"limits":"sms","key":{"account":"a"}}"#;
    for sent in [
        "POST /check HTTP/1.1\r\nHost: x\r\nContent-Length: 38\r\n\r\n{\"limits\"",
        "POST /check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n26\r\n{\"limits\"",
    ] {
        let mut client = Client::connect(service(&gateway));
        client.send(sent);
        client.half_close();
        let _ = client.rest(ms(5_000));
        let mut slow = Client::connect(service(&gateway));
        slow.send(sent);
        let answer = slow.response_within(ms(10_000)).expect("an answer").expect(408);
        assert_eq!(answer.json()["error"], "slow_body");
        slow.assert_closed();
    }
    // One byte after the other, as long as they come.
    let mut slow = Client::connect(service(&gateway));
    slow.send(format!("POST /check HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", call.len()));
    for byte in call.as_bytes() {
        slow.send([*byte]);
        thread::sleep(ms(2));
    }
    assert_eq!(slow.response().expect(200).json()["remaining"], 99);
}

#[test]
fn http_is_read_as_at_the_edge() {
    let gateway = start(SMS);
    let call = r#"{"limits":"sms","key":{"account":"a"}}"#;
    let head = |line: &str, more: &str| format!("{line}\r\n{more}Content-Length: {}\r\n\r\n", call.len());
    let send = |text: &str| {
        let mut client = Client::connect(service(&gateway));
        client.send(text);
        client.response()
    };
    // Two calls in one piece are answered in order.
    let mut client = Client::connect(service(&gateway));
    let one = format!("{}{call}", head("POST /check HTTP/1.1", "Host: x\r\n"));
    client.send(format!("{one}{one}"));
    assert_eq!(
        [99, 98],
        [(); 2].map(|()| client.response().expect(200).json()["remaining"].as_u64().unwrap_or(0))
    );
    // HTTP/1.0 ends with its answer.
    let mut old = Client::connect(service(&gateway));
    old.send(format!("{}{call}", head("POST /check HTTP/1.0", "")));
    old.response().expect(200);
    old.assert_closed();
    // The body is asked for.
    let mut waits = Client::connect(service(&gateway));
    waits.send(head("POST /check HTTP/1.1", "Host: x\r\nExpect: 100-continue\r\n"));
    thread::sleep(ms(50));
    waits.send(call);
    let answer = waits.response().expect(200);
    assert_eq!(answer.interim, [100]);
    // No host is served here, so none is believed; two of them, or two lengths, are no request.
    send(&format!("{}{call}", head("POST http://evil.test/check HTTP/1.1", "Host: evil.test\r\n")))
        .expect(200);
    send(&format!("{}{call}", head("POST /check HTTP/1.1", "Host: a\r\nHost: b\r\n"))).expect(400);
    send(&format!("{}{call}", head("POST /check HTTP/1.1", "Host: x\r\nContent-Length: 1\r\n"))).expect(400);
    send(&format!("{}{call}", head("POST /check HTTP/1.1", "Host: x\r\nTransfer-Encoding: chunked\r\n")))
        .expect(400);
    for path in ["/check/", "//check", "/check/../check", "/Check", "/check%2f", "/", "/metrics", "/config"] {
        send(&format!("{}{call}", head(&format!("POST {path} HTTP/1.1"), "Host: x\r\n"))).expect(404);
    }
    for method in ["GET", "PUT", "OPTIONS", "CONNECT", "post"] {
        let text = format!("{method} /check HTTP/1.1\r\nHost: x\r\n\r\n");
        let answer = send(&text);
        assert!([400, 405, 501].contains(&answer.status), "{method}: {}", answer.status);
    }
    // Pages in browsers, also sandboxed ones, and forms.
    for origin in ["null", "http://127.0.0.1", "https://evil.test"] {
        let answer = send(&format!(
            "{}{call}",
            head(
                "POST /check HTTP/1.1",
                &format!("Host: x\r\nOrigin: {origin}\r\nContent-Type: text/plain\r\n")
            )
        ));
        assert_eq!(answer.expect(403).json()["error"], "access_denied");
    }
    assert_eq!(remaining(&gateway), 94);
}

/// Streams that are reset take nothing with them, and many at once are all answered.
#[test]
fn many_streams_are_answered_and_reset_ones_hold_nothing() {
    let gateway = start("limits: { jobs: { algorithm: concurrency, key: global, max_concurrent: 500 } }");
    let body = br#"{"limits":"jobs","lease_for":"300ms"}"#;
    let length = body.len().to_string();
    let head = h2_raw::block(&h2_raw::request("POST", "/check", &[("content-length", &length)]));
    let mut h2 = H2::open(service(&gateway));
    let streams: Vec<u32> = (0..90).map(|number| number * 2 + 1).collect();
    for stream in &streams {
        h2.write(&[h2_raw::frame(1, 4, *stream, &head), h2_raw::frame(0, 1, *stream, body)].concat());
    }
    for stream in &streams {
        let Outcome::Answered(status, _) = h2.outcome(*stream) else { panic!("stream {stream}") };
        assert_eq!(status, 200);
    }
    let mut resets = H2::open(service(&gateway));
    for stream in &streams {
        let frames = [
            h2_raw::frame(1, 4, *stream, &head),
            h2_raw::frame(0, 1, *stream, body),
            h2_raw::frame(3, 0, *stream, &8_u32.to_be_bytes()),
        ];
        if resets.try_write(&frames.concat()).is_err() {
            break;
        }
    }
    eventually("no lease", || gateway.metric("sluicegate_service_leases", &[]) == 0.0);
    assert_eq!(check(&gateway, &json!({ "limits": "jobs" })).expect(200).json()["remaining"], 499);
}

/// What is not exactly an id, and an id of nothing, are answered alike, in every call.
#[test]
fn leases_cannot_be_guessed() {
    let gateway = start("limits: { jobs: { algorithm: concurrency, key: global, max_concurrent: 5 } }");
    let lease = lease_of(&check(&gateway, &json!({ "limits": "jobs" })).expect(200));
    let other = lease_of(&check(&gateway, &json!({ "limits": "jobs" })).expect(200));
    release(&gateway, &other).expect(200);
    let upper = lease.to_uppercase();
    let near = format!("{}{}", &lease[..31], if lease.ends_with('0') { '1' } else { '0' });
    let mut answers = Vec::new();
    for guess in [
        &other,
        &near,
        &lease[1..].to_owned(),
        &format!("{lease}0"),
        &format!(" {lease}"),
        &format!("{lease}\0"),
        &format!("0x{}", &lease[2..]),
        &"*".to_owned(),
    ] {
        for (path, more) in
            [("/release", json!({})), ("/renew", json!({})), ("/settle", json!({ "units": 1 }))]
        {
            let mut body = more;
            body["lease"] = json!(guess);
            answers.push(call(&gateway, path, &body).expect(404).text());
        }
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    if upper != lease {
        release(&gateway, &upper).expect(404);
    }
    release(&gateway, &lease).expect(200);
}

/// Tokens open the service, not single leases: the id is the secret of its holder.
#[test]
fn a_lease_may_be_used_with_any_token_and_with_none_of_them_not() {
    let gateway = Gateway::start(
        "service: { listen: 127.0.0.1:0, token: [first-token-of-two, second-token-of-two] }\n\
         limits: { jobs: { algorithm: concurrency, key: global, max_concurrent: 5 } }\nlocations: []\n",
    );
    let mut client = Client::connect(service(&gateway));
    let mut with = |token: &str, path: &str, body: &str| {
        client.ask(&post(path, body.as_bytes()).header("Authorization", format!("Bearer {token}")))
    };
    let lease = lease_of(&with("first-token-of-two", "/check", "{\"limits\":\"jobs\"}").expect(200));
    let body = format!("{{\"lease\":\"{lease}\"}}");
    with("wrong-token", "/release", &body).expect(401);
    with("second-token-of-two", "/release", &body).expect(200);
}
