//! Limits that read the bodies of requests: what counts, and that the body goes on as it came.

use crate::support::*;

/// One request per tool and hour.
const BY_TOOL: &str = "limits: { tool: { key: json:/params/name, missing_key: shared, rate: 1/h } }";

fn start(upstream: &str, top: &str, location: &str) -> Gateway {
    Gateway::start(&format!("{top}\nlocations:\n  - {{ path: /, upstream: {upstream}, {location} }}\n"))
}

fn call_of(tool: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#
    )
}

/// A request with a body in chunks of `size` bytes.
fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for piece in body.chunks(size) {
        bytes.extend(format!("{:x}\r\n", piece.len()).into_bytes());
        bytes.extend(piece);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

#[test]
fn a_key_is_a_value_in_the_body() {
    let upstream = Upstream::ok();
    let gateway = start(&format!("\"{}\"", upstream.url()), BY_TOOL, "limits: tool");
    let mut client = gateway.client();
    for (body, status) in [
        (call_of("read"), 200),
        (call_of("read"), 429),
        (call_of("write"), 200),
        (call_of("wr\\u0069te"), 429),
        // These have no name, and share one counter.
        (r#"{"params":{"name":["read"]}}"#.to_owned(), 200),
        (r#"{"params":{"name":null}}"#.to_owned(), 429),
        ("no JSON".to_owned(), 429),
        (format!("[{}]", call_of("batch")), 429),
        (format!("{}}}", call_of("garbage")), 429),
        (format!("{}1{}", "[".repeat(200), "]".repeat(200)), 429),
        // A member that is there twice is an ambiguous request.
        (r#"{"params":{"name":"new","name":"other"}}"#.to_owned(), 400),
        (r#"{"params":{"name":"new","Name":"other"}}"#.to_owned(), 400),
        (r#"{"PARAMS":{"name":"new"}}"#.to_owned(), 400),
    ] {
        assert_eq!(client.ask(&post("/", body.as_bytes())).status, status, "{body}");
    }
    assert_eq!(client.ask(&get("/")).status, 429, "no body has no name");
    let passed = upstream.requests();
    assert_eq!(passed.len(), 3);
    assert_eq!(passed[0].body, call_of("read").as_bytes());
    let plain = post("/", call_of("plain").as_bytes()).header("Content-Encoding", "Identity");
    client.ask(&plain.header("Content-Type", "application/json; Charset=\"UTF-8\"")).expect(200);
}

/// Upstreams that do not look at these fields, or know the charset, read such a body all the same.
#[test]
fn an_encoded_body_is_refused_where_something_counts_by_it() {
    let upstream = Upstream::ok();
    let encodings = [
        ("Content-Encoding", "gzip"),
        ("Content-Encoding", "none"),
        ("Content-Encoding", ""),
        ("Content-Encoding", "identity, br"),
        ("Content-Type", "application/json; charset=utf-7"),
        ("Content-Type", "application/json; a=b; CHARSET = \"UTF-16\""),
        ("Content-Type", "application/json;charset*=utf-8''utf-7"),
        ("Content-Type", "application/json, text/x; charset=utf-16"),
        ("Content-Type", "application/json, charset=utf-16"),
        ("Content-Type", "application/json charset=utf-16"),
        ("Content-Type", "charset=utf-8; charset=utf-16"),
    ];
    let ask = |gateway: &Gateway, (name, value)| {
        gateway.ask(&post("/", call_of("x").as_bytes()).header(name, value))
    };
    for (top, location) in [
        ("limits: { l: { key: json:/params/name, missing_key: skip, rate: 9/h } }", "limits: l"),
        ("limits: { l: { rate: 9/h, cost: json:/id } }", "limits: l"),
        ("limits: { l: { rate: 9/h, cost: json-rpc, invalid_cost: one } }", "limits: l"),
        ("account: { from: json:/user }", "limits: [{ key: account, rate: 9/h }]"),
        ("", "bandwidth: { rate: 1MiB/s, key: json:/user }"),
    ] {
        let gateway = start(&format!("\"{}\"", upstream.url()), top, location);
        for field in encodings {
            let answer = ask(&gateway, field).expect(415);
            assert!(answer.text().contains("its limits read it"), "{field:?} {}", answer.text());
        }
        // There is nothing to read.
        gateway.ask(&get("/").header("Content-Encoding", "gzip")).expect(200);
    }
    assert_eq!(upstream.count(), 5);
    // What a request reserves is a guess, which its response corrects.
    let charge = "{ units: header:X, reserve: { from: json:/id, default: 1 } }";
    let limit = format!("limits: {{ l: {{ rate: 99/h, charge: {charge} }} }}");
    let gateway = start(&format!("\"{}\"", upstream.url()), &limit, "limits: l");
    encodings.into_iter().for_each(|field| drop(ask(&gateway, field).expect(200)));
}

#[test]
fn streams_of_http2_are_read_as_well() {
    let upstream = Upstream::ok();
    let gateway = start(&format!("\"{}\"", upstream.url()), BY_TOOL, "limits: tool");
    let mut client = Client2::connect(gateway.addr());
    let mut ask = |body: &str| {
        let request = ::http::Request::post(format!("http://{}/", gateway.addr())).body(()).unwrap();
        client.ask(request, body.as_bytes(), None).expect("an answer").status.as_u16()
    };
    for (body, status) in
        [(call_of("read"), 200), (call_of("read"), 429), (call_of("write"), 200), (String::new(), 200)]
    {
        assert_eq!(ask(&body), status, "{body}");
    }
    let long = format!(r#"{{"x":"{}"}}"#, "x".repeat(100_000));
    assert_eq!(ask(&long), 413);
    assert_eq!(upstream.requests()[1].body, call_of("write").as_bytes());
    // An HTTP/2 body without a length has none at the upstream either.
    assert_eq!(upstream.requests()[1].header("transfer-encoding").as_deref(), Some("chunked"));
}

/// However the body is cut, the same value is found and the same bytes arrive.
#[test]
fn bodies_may_be_split_everywhere() {
    let upstream = Upstream::ok();
    let gateway = start(
        &format!("\"{}\"", upstream.url()),
        "limits: { tool: { key: json:/params/name, missing_key: reject, rate: 1/h } }",
        "limits: tool",
    );
    let mut client = gateway.client();
    let mut sent = Vec::new();
    for cut in 1..call_of("cut-00").len() {
        let body = call_of(&format!("cut-{cut:02}"));
        let (first, second) = body.as_bytes().split_at(cut);
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        client.send_pieces(&[head.as_bytes(), first, second], ms(1));
        client.response().expect(200);
        sent.push(body);
        client.ask(&post("/", sent[sent.len() - 1].as_bytes())).expect(429);
    }
    for size in [1, 2, 3, 7, 1000] {
        let body = call_of(&format!("chunks-{size}"));
        client.send(chunked(body.as_bytes(), size));
        client.response().expect(200);
        sent.push(body);
    }
    let body = call_of("slow");
    chunked(body.as_bytes(), 1).iter().for_each(|byte| client.send([*byte]));
    client.response().expect(200);
    sent.push(body);
    let arrived: Vec<Vec<u8>> = upstream.requests().into_iter().map(|seen| seen.body).collect();
    assert_eq!(arrived, sent.iter().map(|body| body.as_bytes().to_vec()).collect::<Vec<_>>());
}

/// The framing of a body is the same at the upstream, whatever its size beside that of the peek.
#[test]
fn bodies_around_the_peek_go_on_as_they_came() {
    const PEEK: usize = 4096;
    let upstream = Upstream::ok();
    let gateway = start(
        &format!("\"{}\"", upstream.url()),
        "limits: { many: { key: json:/k, rate: 1000/s } }",
        "limits: many, body_peek: 4KiB",
    );
    let mut client = gateway.client();
    let mut arrived = 0;
    for length in [9, 10, 1000, PEEK - 1, PEEK, PEEK + 1, PEEK + 2, 2 * PEEK, 20 * PEEK] {
        let body = format!(r#"{{"k":"{}"}}"#, "k".repeat(length - 8));
        for is_chunked in [false, true] {
            if is_chunked {
                client.send(chunked(body.as_bytes(), 1000));
            } else {
                client.send(post("/", body.as_bytes()).bytes());
            }
            let answer = client.response();
            assert_eq!(answer.status, if length > PEEK { 413 } else { 200 }, "{length} {is_chunked}");
            if length > PEEK {
                assert!(answer.text().contains("larger than its limits read"), "{}", answer.text());
                client = gateway.client();
                continue;
            }
            arrived += 1;
            let seen = &upstream.wait_for(arrived)[arrived - 1];
            assert!(seen.body == body.as_bytes(), "{length} {is_chunked}");
            assert_eq!(seen.header("transfer-encoding").is_some(), is_chunked);
            assert_eq!(seen.header("content-length").is_some(), !is_chunked);
        }
    }
    assert_eq!(upstream.count(), arrived);
    assert_eq!(gateway.metric("sluicegate_faults_total", &["body_beyond_peek"]), 8.0);
}

#[test]
fn a_short_body_beyond_the_peek_keeps_the_connection() {
    let upstream = Upstream::ok();
    let gateway = start(
        &format!("\"{}\"", upstream.url()),
        "limits: { many: { key: json:/k, rate: 1000/s } }",
        "limits: many, body_peek: 10B",
    );
    let mut client = gateway.client();
    client.ask(&post("/", b"{\"k\":1234}")).expect(200);
    client.ask(&post("/", b"{\"k\":12345}")).expect(413);
    client.send(chunked(b"{\"k\":12345}", 5));
    client.response().expect(413);
    client.ask(&post("/", b"{\"k\":1234}")).expect(200);
}

#[test]
fn costs_come_from_the_body_of_any_client() {
    let upstream = Upstream::ok();
    let gateway = start(
        &format!("\"{}\"", upstream.url()),
        "limits: { images: { key: global, rate: 10/h, cost: json:/n } }",
        "limits: images",
    );
    let ask = |body: &str| gateway.ask(&post("/", body.as_bytes())).status;
    assert_eq!(ask(r#"{"n":11}"#), 413, "it never fits");
    assert_eq!(ask(r#"{"n":3.2}"#), 200);
    assert_eq!(ask(r#"{"n":7}"#), 429);
    assert_eq!(ask(r#"{"n":-7}"#), 200);
    assert_eq!(ask("\u{feff}{\"n\":4,\"t\":\"\\ud83d\"}"), 200);
    assert_eq!(ask("{}"), 200);
    assert_eq!(ask(""), 429, "all ten are used");
    // An upstream may read a number in them all the same.
    let deep = format!(r#"{{"n":2,"x":{}{}}}"#, "[".repeat(130), "]".repeat(130));
    let wrong = [r#"{"n":"2"}"#, r#"{"n":2,"x":NaN}"#, "n=2", r#"{"n":2,"n":1}"#, r#"{"n":2}x"#, &deep];
    wrong.iter().for_each(|body| assert_eq!(ask(body), 400, "{body}"));
    assert_eq!(gateway.metric("sluicegate_invalid_costs_total", &["images"]), 6.0);
    let lenient = "limits: { images: { key: global, rate: 10/h, cost: json:/n, invalid_cost: one } }";
    let gateway = start(&format!("\"{}\"", upstream.url()), lenient, "limits: images");
    for (body, status) in [(r#"{"n":"2"}"#, 200), ("n=2", 200), (r#"{"n":2,"n":1}"#, 400), ("", 200)] {
        assert_eq!(gateway.ask(&post("/", body.as_bytes())).status, status, "{body}");
    }
}

#[test]
fn a_batch_of_json_rpc_costs_its_calls() {
    let upstream = Upstream::ok();
    let gateway = start(
        &format!("\"{}\"", upstream.url()),
        "limits: { calls: { key: global, rate: 5/h, cost: json-rpc } }",
        "limits: calls",
    );
    let ask = |body: &str| gateway.ask(&post("/", body.as_bytes())).status;
    assert_eq!(ask(r#"[{"id":1},{"id":2},{"id":3},{"id":4},{"id":5},{"id":6}]"#), 413);
    assert_eq!(ask(r#"[{"id":1},{"id":2},{"id":3}]"#), 200);
    assert_eq!(ask(r#"[{"id":1},{"id":2},{"id":3}]"#), 429);
    assert_eq!(ask(r#"{"id":1,"params":[1,2,3]}"#), 200);
    assert_eq!(ask("[]"), 200);
    assert_eq!(ask("{}"), 429);
}

/// Calls that a lenient upstream reads in a body that is no JSON pass no limit by the price of one.
#[test]
fn a_body_that_is_no_json_is_no_call() {
    let upstream = Upstream::ok();
    let calls = |more: &str| {
        let limits = format!("limits: {{ calls: {{ key: global, rate: 60/h, cost: json-rpc{more} }} }}");
        start(&format!("\"{}\"", upstream.url()), &limits, "limits: calls")
    };
    let batch = format!("[{}]", vec![call_of("x"); 50].join(","));
    let utf16 = batch.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let bodies = [
        format!("{batch}x").into_bytes(),
        format!("{batch}\0").into_bytes(),
        format!("{batch}\n{batch}").into_bytes(),
        batch.replace("}]", "},]").into_bytes(),
        batch.replace(",{", ",/**/{").into_bytes(),
        batch.replace("\"id\":1", "\"id\":NaN").into_bytes(),
        utf16,
        b"\xff".to_vec(),
    ];
    let gateway = calls("");
    for body in &bodies {
        gateway.ask(&post("/", body)).expect(400);
    }
    let grpc = |body: &[u8]| gateway.ask(&post("/", body).header("Content-Type", "application/grpc"));
    assert_eq!(grpc(b"\0\0\0\0\x02\x08\x01").header("grpc-status").as_deref(), Some("3"));
    assert_eq!(gateway.metric("sluicegate_invalid_costs_total", &["calls"]), 9.0);
    // Upstreams that do not look at the type read calls and padding all the same.
    for read in [format!("[{}]", vec![call_of("x"); 70].join(",")), " ".repeat(100_000)] {
        assert_eq!(grpc(read.as_bytes()).header("grpc-status").as_deref(), Some("8"));
    }
    assert_eq!(upstream.count(), 0);
    // None of them was charged, and a request without a body costs 1.
    gateway.get("/").expect(200);
    let mut client = gateway.client();
    client.send(chunked(b"", 1));
    client.response().expect(200);
    gateway.ask(&post("/", batch.as_bytes())).expect(200);
    (0..8).for_each(|_| drop(gateway.ask(&post("/", call_of("x").as_bytes())).expect(200)));
    gateway.get("/").expect(429);
    for one in [calls(", invalid_cost: one"), calls(", dry_run: true")] {
        bodies.iter().for_each(|body| drop(one.ask(&post("/", body)).expect(200)));
    }
}

/// The gateway and the upstream may read different ones.
#[test]
fn a_cost_is_given_once() {
    let upstream = Upstream::ok();
    let reserve =
        "charge: { units: header:X, reserve: { from: [json:/n, json:/m], plus: json_bytes/9, default: 1 } }";
    let limited = |fields: &str| {
        let limits = format!("limits: {{ l: {{ key: global, rate: 90/h, {fields} }} }}");
        start(&format!("\"{}\"", upstream.url()), &limits, "limits: l")
    };
    for fields in ["cost: json:/n", reserve] {
        let ask = |gateway: &Gateway, body: &str| gateway.ask(&post("/", body.as_bytes()));
        let gateway = limited(fields);
        for body in [r#"{"n":1,"n":80}"#, r#"{"n":80,"x":{},"\u006e":1}"#, r#"{"n":1,"n":null}"#] {
            let refused = ask(&gateway, body).expect(400);
            assert!(refused.text().contains("given more than once"), "{}", refused.text());
        }
        ask(&gateway, r#"{"n":1,"x":{"n":80},"y":1,"y":2}"#).expect(200);
        assert_eq!(gateway.metric("sluicegate_faults_total", &["repeated_key"]), 3.0);
        ask(&limited(&format!("{fields}, dry_run: true")), r#"{"n":1,"n":80}"#).expect(200);
    }
    limited(reserve).ask(&post("/", br#"{"n":1,"m":2,"m":3}"#)).expect(400);
}

#[test]
fn account_and_tier_come_from_the_body() {
    let upstream = Upstream::ok();
    let gateway = start(
        &format!("\"{}\"", upstream.url()),
        "account: { from: json:/user/id, tier: { from: json:/user/tier } }\n\
         limits: { own: { key: account, missing_key: reject, rate: 1/h, tiers: { gold: { rate: 2/h } } } }",
        "limits: own, request_headers: { set: { X-Caller: \"${account} ${tier}\" } }",
    );
    let ask = |body: &str| gateway.ask(&post("/", body.as_bytes())).status;
    assert_eq!(ask(r#"{"user":{"id":"al","tier":"gold"}}"#), 200);
    assert_eq!(ask(r#"{"user":{"id":"al","tier":"gold"}}"#), 200);
    assert_eq!(ask(r#"{"user":{"id":"al","tier":"gold"}}"#), 429);
    assert_eq!(ask(r#"{"user":{"id":7}}"#), 200);
    assert_eq!(ask(r#"{"user":{"id":7}}"#), 429);
    assert_eq!(ask(r#"{"user":{"id":7,"id":8}}"#), 400);
    assert_eq!(ask("{}"), 403);
    assert_eq!(gateway.get("/").status, 403);
    let callers: Vec<_> = upstream.requests().iter().map(|seen| seen.header("x-caller").unwrap()).collect();
    assert_eq!(callers, ["al gold", "al gold", "7 default"]);
}

/// A request whose body was read waits with it, and is sent whole after its turn.
#[test]
fn a_body_waits_in_the_queue() {
    let upstream = Upstream::ok();
    let gateway = start(
        &format!("\"{}\"", upstream.url()),
        "limits: { paced: { key: json:/model, algorithm: leaky_bucket, rate: 5/s, queue: 5 } }",
        "limits: paced",
    );
    let bodies: Vec<String> =
        (0..3).map(|n| format!(r#"{{"model":"m","n":{n},"x":"{}"}}"#, "x".repeat(30_000))).collect();
    let clients: Vec<Client> = bodies
        .iter()
        .map(|body| {
            let mut client = gateway.client();
            client.send(post("/", body.as_bytes()).bytes());
            client
        })
        .collect();
    for mut client in clients {
        client.response().expect(200);
    }
    let mut arrived: Vec<Vec<u8>> = upstream.requests().into_iter().map(|seen| seen.body).collect();
    arrived.sort();
    assert!(arrived == bodies.iter().map(|body| body.as_bytes().to_vec()).collect::<Vec<_>>());
}

#[test]
fn nothing_is_read_where_nothing_asks_for_it() {
    let upstream = Upstream::new(|_| Reply::text("early").early());
    let gateway = Gateway::start(&format!(
        "{BY_TOOL}\nlocations:\n  - {{ path: /free/, upstream: \"{0}\", body_peek: 64KiB }}\n  \
         - {{ path: /tool/, upstream: \"{0}\", limits: tool }}\n",
        upstream.url()
    ));
    // The upstream answers before the body comes.
    let mut client = gateway.client();
    client.send("POST /free/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
    client.response().expect(200);
    let mut client = gateway.client();
    client.send("POST /tool/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
    assert!(client.response_within(ms(300)).is_err(), "the body is awaited");
    client.send("{\"x\":");
    client.response().expect(200);
}
