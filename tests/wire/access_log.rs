//! The access log: one JSON line per request, however it ends.

use serde_json::Value;

use crate::support::*;

fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_else(|| panic!("no text {field} in {line}"))
}

/// The host of an HTTP/2 request is its authority.
#[test]
fn the_host_of_a_line_is_the_authority() {
    let gateway = Gateway::start("locations:\n  - { path: /, respond: { body: ok } }\n");
    let url = format!("http://{}/", gateway.addr());
    let streamed = ::http::Request::get(url).body(()).expect("a request");
    Client2::connect(gateway.addr()).ask(streamed, b"", None).expect("an answer");
    assert_eq!(text(&gateway.wait_log(1)[0], "host"), gateway.addr().to_string());
}

/// A line has the request, its destination and its outcome.
#[test]
fn a_line_describes_the_request() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:x-account }}\naccess_log: {{ headers: [user-agent] }}\n\
         limits:\n  per-account: {{ key: account, rate: 1/h }}\n\
         locations:\n  - {{ path: /api/, upstream: \"{}\", limits: per-account }}\n",
        upstream.url()
    ));
    let ask = post("/api/x?y=z", b"12345").header("X-Account", "ann").header("User-Agent", "test/1");
    // One connection is one worker, which writes its lines in order.
    let mut client = gateway.client();
    client.ask(&ask).expect(200);
    client.ask(&ask).expect(429);
    let lines = gateway.wait_log(2);
    let line = &lines[0];
    assert_eq!((&line["status"], &line["bytes"]), (&200.into(), &2.into()), "{line}");
    for (field, expected) in [
        ("method", "POST"),
        ("host", "gateway.test"),
        ("path", "/api/x"),
        ("ip", "127.0.0.1"),
        ("location", "/api/"),
        ("verdict", "admit"),
        ("upstream", &upstream.addr().to_string()),
        ("id", &upstream.requests()[0].header("x-request-id").expect("an id")),
    ] {
        assert_eq!(text(line, field), expected, "{field} in {line}");
    }
    assert!(text(line, "ts").ends_with('Z') && line["dur_ms"].as_f64() > Some(0.0), "{line}");
    assert_eq!(line["headers"]["user-agent"], "test/1", "{line}");
    assert_eq!(text(line, "account").len(), 16, "the account is a 64-bit hash: {line}");
    assert!(!line.to_string().contains("y=z"), "the query is not for logs: {line}");
    let rejected = &lines[1];
    assert_eq!(rejected["status"], 429, "{rejected}");
    assert_eq!((text(rejected, "verdict"), text(rejected, "limit")), ("reject", "per-account"));
    assert!((3590.0..=3600.0).contains(&rejected["retry_after"].as_f64().unwrap_or(0.0)), "{rejected}");
    assert_eq!(text(rejected, "account"), text(line, "account"));
}

/// A line names the key of the limit that rejected the request or made it wait, in the words of the admin API.
#[test]
fn a_line_has_the_key_of_the_limit_that_decided() {
    let gateway = Gateway::start(
        "account: { from: header:x-account }\naccess_log: { hash_secret: s }\n\
         limits:\n  per-account: { key: [account, uri], rate: 1/h }\n  wide: { key: ip, rate: 100/s }\n  \
           slow: { key: ip, algorithm: leaky_bucket, rate: 10/s, queue: 3, max_wait: 150ms }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: [wide, per-account] }\n  \
           - { path: /slow, respond: { body: ok }, limits: [slow, per-account] }\n",
    );
    let ask = |path: &str| get(path).header("X-Account", "ann");
    let mut client = gateway.client();
    client.ask(&ask("/a")).expect(200);
    client.ask(&ask("/a")).expect(429);
    client.ask(&ask("/slow/1")).expect(200);
    client.ask(&ask("/slow/2")).expect(200);
    let lines = gateway.wait_log(4);
    assert!(lines[0].get("key").is_none() && lines[2].get("key").is_none(), "{lines:#?}");
    let account = text(&lines[1], "account");
    assert_eq!(account.len(), 16, "{lines:#?}");
    assert_eq!(text(&lines[1], "key"), format!("account=#{account},uri=/a"));
    assert_eq!((text(&lines[3], "verdict"), text(&lines[3], "key")), ("wait", "ip=127.0.0.1"));
    let known = gateway.admin_get("/limits/per-account/keys?by=refused").expect(200).text();
    assert!(known.contains(text(&lines[1], "key")), "{known}");
}

/// Without hashing, a key is shown as text that cannot forge a line, and of bounded length.
#[test]
fn a_key_in_clear_is_encoded_and_cut() {
    let gateway = Gateway::start(
        "account: { from: header:x-account }\naccess_log: { hash_keys: false }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: { key: account, rate: 1/h } }\n",
    );
    let mut client = gateway.client();
    for (index, (account, shown)) in
        [("a\",\"x\":1", "account=a%22%2C%22x%22:1"), (&"x".repeat(4000), "…")].into_iter().enumerate()
    {
        client.ask(&get("/").header("X-Account", account)).expect(200);
        client.ask(&get("/").header("X-Account", account)).expect(429);
        let line = &gateway.wait_log(2 * index + 2)[2 * index + 1];
        assert!(text(line, "key").ends_with(shown) && text(line, "key").len() < 200, "{line}");
    }
}

/// `access_log.fields` adds facts of the request and of its upstream; a request that no server got has none of them.
#[test]
fn configured_fields_are_added() {
    let busy = || Upstream::new(|_| Reply::with(503, &[], "no").after(ms(100)));
    let all = [busy(), busy()];
    let gateway = Gateway::start(&format!(
        "access_log: {{ fields: [user_agent, referer, tries, upstream_ms, scheme, proto] }}\n\
         server: {{ trusted_proxies: 127.0.0.1 }}\n\
         upstreams:\n  app: {{ servers: [{}, {}], eject: none, retries: {{ attempts: 1, when: 503, budget: none }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n  - {{ path: /local, respond: {{ body: ok }} }}\n",
        all[0].addr(),
        all[1].addr()
    ));
    let ask = |path: &str| {
        let ask = get(path).header("User-Agent", "test/1").header("Referer", "https://a.test/b?token=x");
        ask.header("X-Forwarded-Proto", "https")
    };
    let mut client = gateway.client();
    client.ask(&ask("/")).expect(503);
    client.ask(&ask("/local")).expect(200);
    client.ask(&get("/local")).expect(200);
    let lines = gateway.wait_log(3);
    for line in &lines[..2] {
        for (field, expected) in [
            ("user_agent", "test/1"),
            ("referer", "https://a.test/b"),
            ("scheme", "https"),
            ("proto", "HTTP/1.1"),
        ] {
            assert_eq!(text(line, field), expected, "{field} in {line}");
        }
    }
    assert_eq!(lines[0]["tries"], 2, "{}", lines[0]);
    let upstream_ms = lines[0]["upstream_ms"].as_f64().expect("a number");
    assert!((200.0..=lines[0]["dur_ms"].as_f64().unwrap()).contains(&upstream_ms), "{}", lines[0]);
    assert!(lines[1].get("tries").is_none() && lines[1].get("upstream_ms").is_none(), "{}", lines[1]);
    assert!(lines[2].get("user_agent").is_none() && text(&lines[2], "scheme") == "http", "{}", lines[2]);
    // Without the field list a line has none of them.
    gateway.change("locations:\n  - { path: /, respond: { body: ok } }\n");
    client.ask(&ask("/")).expect(200);
    let line = &gateway.wait_log(4)[3];
    assert!(line.get("user_agent").is_none() && line.get("proto").is_none(), "{line}");
}

/// A line has the time that the request waited in queues, and the limit that made it wait.
#[test]
fn a_line_has_the_wait() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "limits:\n  slow: {{ key: global, algorithm: leaky_bucket, rate: 5/s, queue: 3 }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: slow }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    let mut client = gateway.client();
    client.ask(&get("/")).expect(200);
    client.ask(&get("/")).expect(200);
    let lines = gateway.wait_log(2);
    assert_eq!(lines[0]["wait_ms"].as_f64(), Some(0.0), "{}", lines[0]);
    let waited = lines[1]["wait_ms"].as_f64().expect("a number");
    assert!(waited > 100.0 && waited < 200.0 + noise.late().as_secs_f64() * 1000.0, "{}", lines[1]);
    assert_eq!((text(&lines[1], "verdict"), text(&lines[1], "limit")), ("wait", "slow"));
}

/// Exactly one line per request: served, rejected, unknown, failed, cut and aborted alike.
#[test]
fn every_request_leaves_one_line() {
    let upstream = Upstream::new(|seen| match seen.target.as_str() {
        "/cut" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc").close(),
        "/never" => Reply::silence(),
        _ => Reply::text("ok"),
    });
    let gateway = Gateway::start(&format!(
        "limits:\n  once: {{ key: global, rate: 1/h }}\n  \
           queue: {{ key: global, algorithm: leaky_bucket, rate: 1/m, queue: 9, max_wait: none }}\n\
         locations:\n  - {{ path: /, host: gateway.test, upstream: \"{url}\" }}\n  \
           - {{ path: /once, upstream: \"{url}\", limits: once }}\n  \
           - {{ path: /queue, upstream: \"{url}\", limits: queue }}\n",
        url = upstream.url()
    ));
    gateway.get("/").expect(200);
    gateway.ask(&get("/once").host("o")).expect(200);
    gateway.ask(&get("/once").host("o")).expect(429);
    gateway.ask(&get("/nowhere").host("o")).expect(404);
    gateway.get("/cut");
    let mut aborted = gateway.client();
    aborted.send(get("/never").bytes());
    upstream.wait_for(4);
    aborted.reset();
    gateway.ask(&get("/queue").host("o")).expect(200);
    gateway.wait_log(7);
    let mut waiting = gateway.client();
    waiting.send(get("/queue").host("o").bytes());
    gateway.wait_queued(1);
    drop(waiting);
    gateway.wait_log(8);
    // A head that cannot be parsed leaves no line.
    let _ = gateway.raw("NONSENSE\r\n\r\n");
    gateway.get("/").expect(200);
    let mut statuses: Vec<_> =
        gateway.wait_log(9).iter().map(|l| l["status"].as_u64().unwrap_or(0)).collect();
    statuses.sort_unstable();
    assert!(statuses.contains(&429) && statuses.contains(&404), "{statuses:?}");
}

/// Control characters and quotes in requests cannot forge a line.
#[test]
fn lines_cannot_be_forged() {
    let gateway = Gateway::start(
        "access_log: { headers: [user-agent] }\nlocations:\n  - { path: /, respond: { body: ok } }\n",
    );
    let mut client = gateway.client();
    client.send(b"GET /a%0a%22b HTTP/1.1\r\nHost: a\r\nUser-Agent: x\",\"status\":0,\"y\":\"\t\xe9\r\n\r\n");
    client.response().expect(200);
    assert_eq!(gateway.wait_log(1)[0]["status"], 200);
}

/// A pipe without a reader delays neither the start nor a reload; its lines reach a later reader.
#[test]
fn a_pipe_may_be_read_later() {
    let dir = Scratch::new();
    let pipes = ["one", "two"].map(|name| dir.path().join(name));
    let file = |pipe: &std::path::Path| {
        format!(
            "access_log: {{ output: \"{}\" }}\nlocations: [{{ path: /, respond: {{ body: ok }} }}]\n",
            pipe.display()
        )
    };
    for pipe in &pipes {
        let (mode, fifo) = (rustix::fs::Mode::from(0o600), rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(rustix::fs::CWD, pipe, fifo, mode, 0).expect("a pipe");
    }
    let line = |pipe: &std::path::Path| {
        let mut line = String::new();
        let reader = std::fs::File::open(pipe).expect("the pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(reader), &mut line).expect("a line");
        line
    };
    let gateway = Gateway::start(&file(&pipes[0]));
    gateway.get("/first").expect(200);
    assert!(line(&pipes[0]).contains("/first"));
    gateway.change(&file(&pipes[1]));
    gateway.get("/second").expect(200);
    assert!(line(&pipes[1]).contains("/second"));
}

/// `output: none` writes nothing, `output: FILE` writes there, `hash_keys: false` shows the account.
#[test]
fn the_log_goes_to_its_output() {
    let silent =
        Gateway::start("access_log: { output: none }\nlocations:\n  - { path: /, respond: { body: ok } }\n");
    silent.get("/").expect(200);
    let dir = Scratch::new();
    let file = dir.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:x-account }}\naccess_log: {{ output: \"{}\", hash_keys: false }}\n\
         locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: {{ key: account, rate: 9/s }} }}\n",
        file.display()
    ));
    gateway.ask(&get("/").header("X-Account", "ann")).expect(200);
    eventually("a line in the file", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'))
    });
    let line: Value =
        serde_json::from_str(std::fs::read_to_string(&file).expect("the file").trim()).expect("JSON");
    assert!(line.to_string().contains("ann"), "{line}");
    assert!(gateway.log_lines().is_empty() && silent.log_lines().is_empty());
}

/// Log rotation sends USR1: the moved file is left alone, and lines go to a new one.
#[test]
fn usr1_reopens_a_moved_log() {
    let dir = Scratch::new();
    let (log, old) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
    let mut gateway = Gateway::start(&format!(
        "access_log: {{ output: \"{}\" }}\nlocations: [{{ path: /, respond: {{ body: ok }} }}]\n",
        log.display()
    ));
    let lines = |file: &std::path::Path| std::fs::read_to_string(file).unwrap_or_default().lines().count();
    gateway.get("/").expect(200);
    eventually("the first line", || lines(&log) == 1);
    std::fs::rename(&log, &old).expect("a file can be moved");
    gateway.signal(rustix::process::Signal::USR1);
    eventually("a new file", || log.exists());
    gateway.get("/").expect(200);
    eventually("the second line", || lines(&log) == 1);
    assert_eq!(lines(&old), 1);
    // With a folder in its place, the open file stays in use.
    std::fs::remove_file(&log).expect("a file can be removed");
    std::fs::create_dir(&log).expect("a folder");
    gateway.signal(rustix::process::Signal::USR1);
    gateway.wait_stderr("the access log stays in its old file");
    gateway.get("/").expect(200);
    assert!(gateway.is_running());
}

/// Without a log file USR1 has no effect and does not end the process.
#[test]
fn usr1_without_a_log_file_has_no_effect() {
    let mut gateway = Gateway::start("locations: [{ path: /, respond: { body: ok } }]\n");
    gateway.signal(rustix::process::Signal::USR1);
    gateway.get("/").expect(200);
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    gateway.wait_log(1);
}
