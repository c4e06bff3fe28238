//! API keys: their places, answers, and what is never told.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use ::http::{HeaderMap, Request};

use crate::support::run::completed;
use crate::support::*;

const KEY: &str = "wandering-albatross-4711";
const OTHER: &str = "sleeping-cormorant-0815";

/// The SHA-256 of a key by a program that is not ours.
fn sha256(key: &str) -> String {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(key.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()[..64].to_owned()
}

/// A file of keys with these lines behind their hashes: `KEY` of acme and `OTHER` of bolt, if these words begin them.
fn write_keys(dir: &Path, lines: &[(&str, &str)]) {
    let lines: String = lines.iter().map(|(key, rest)| format!("{},{rest}\n", sha256(key))).collect();
    std::fs::write(dir.join("keys.csv"), format!("sha256,account,tier,until,disabled,note\n{lines}"))
        .unwrap();
}

/// A gateway with a file of two keys in the folder of its own file.
fn start(keys: &str, rest: &str) -> Gateway {
    let dir = Scratch::new();
    write_keys(dir.path(), &[(KEY, "acme,gold,,,web shop"), (OTHER, "bolt,,,,")]);
    start_with(&dir, keys, rest)
}

fn start_with(dir: &Scratch, keys: &str, rest: &str) -> Gateway {
    let file = dir.path().join("keys.csv");
    Gateway::start(&format!("account: {{ keys: {{ file: \"{}\"{keys} }} }}\n{rest}\n", file.display()))
}

const ECHO: &str = "locations: [{ path: /, respond: { body: \"${account}/${tier}/${key:note}\" } }]";

/// A key is found in each of its places, gives the account and the tier, and does not reach the upstream; the rest of
/// the cookie and of the query does.
#[test]
fn a_key_is_read_and_removed() {
    let upstream = Upstream::ok();
    let gateway = start(
        ", from: [bearer, header:X-Api-Key, query:key, cookie:key, basic]",
        &format!(
            "locations:\n  - path: /\n    upstream: \"{}\"\n    request_headers: {{ set: {{ X-Account: \"${{account}}\", \
             X-Plan: \"${{tier}}\", X-Note: \"${{key:note}}\" }} }}",
            upstream.url()
        ),
    );
    // wandering-albatross-4711 behind a user's name.
    let basic = "Basic c29tZWJvZHk6d2FuZGVyaW5nLWFsYmF0cm9zcy00NzEx";
    let own = |ask: Ask| ask.header("X-Account", "boss").header("X-Note", "mine");
    let asks = [
        get("/a?x=1").header("Authorization", format!("bEARER {KEY}")),
        get("/a?x=1").header("X-Api-Key", KEY),
        get(&format!("/a?key={KEY}&x=1")),
        get(&format!("/a?x=1&%6bey={}", KEY.replace('-', "%2D"))),
        get("/a?x=1").header("Cookie", format!("key={KEY}; theme=dark")),
        get("/a?x=1").header("Authorization", basic),
        get(&format!("/a?x=1&key={KEY}")).header("X-Api-Key", KEY).header("Authorization", basic),
    ];
    for ask in asks {
        gateway.ask(&own(ask)).expect(200);
        let seen = upstream.requests().pop().expect("a request");
        assert_eq!(seen.target, "/a?x=1");
        let text = format!("{seen:?}");
        assert!(!text.contains("albatross") && !text.contains("YmF0cm9zcy0"), "{text}");
        assert!(seen.header("authorization").is_none() && seen.header("x-api-key").is_none());
        assert_eq!(seen.header("x-account").as_deref(), Some("acme"));
        assert_eq!(seen.header("x-plan").as_deref(), Some("gold"));
        assert_eq!(seen.header("x-note").as_deref(), Some("web shop"));
    }
    assert_eq!(upstream.requests()[4].header("cookie").as_deref(), Some("theme=dark"));
    // Values that are not there remove the fields, the client's own included.
    gateway.ask(&own(get("/").header("X-Api-Key", OTHER))).expect(200);
    let seen = upstream.requests().pop().expect("a request");
    assert_eq!((seen.header("x-account").as_deref(), seen.header("x-note")), (Some("bolt"), None));
    gateway.ask(&own(get("/"))).expect(200);
    let seen = upstream.requests().pop().expect("a request");
    assert!(!seen.headers.has("x-account") && !seen.headers.has("x-note"), "{seen:?}");
}

/// `forward: pass` leaves the key, and `unknown: ignore` the request without an account, its key untouched.
#[test]
fn a_key_may_be_passed_and_a_foreign_one_ignored() {
    let upstream = Upstream::ok();
    let locations = format!("locations: [{{ path: /, upstream: \"{}\" }}]", upstream.url());
    for (fields, key) in [(", forward: pass", KEY), (", unknown: ignore", "foreign")] {
        let gateway = start(fields, &locations);
        gateway.ask(&get("/").header("X-Api-Key", key)).expect(200);
        assert_eq!(upstream.requests().pop().unwrap().header("x-api-key").as_deref(), Some(key));
    }
}

/// A location with `account: none` reads no key and removes none.
#[test]
fn a_location_may_read_no_account() {
    let upstream = Upstream::ok();
    let gateway = start(
        ", missing: reject",
        &format!(
            "locations: [{{ path: /, respond: {{ body: \"${{account}}\" }} }}, \
             {{ path: /open, upstream: \"{}\", account: none }}]",
            upstream.url()
        ),
    );
    gateway.get("/").expect(401);
    for key in [KEY, "foreign"] {
        gateway.ask(&get("/open").header("X-Api-Key", key)).expect(200);
        assert_eq!(upstream.requests().pop().unwrap().header("x-api-key").as_deref(), Some(key));
    }
    gateway.get("/open").expect(200);
}

/// A request whose key counts for nothing is answered 401 with a challenge; two keys are two callers.
#[test]
fn keys_that_are_refused() {
    let dir = Scratch::new();
    let lines = [
        ("expired", "acme,,2001-01-31T00:00:00Z,,"),
        ("disabled", "acme,,,yes,"),
        ("twice", "acme,,,,"),
        ("twice", "acme,,,true,"),
        ("later", "acme,,2222-01-31T00:00:00Z,false,"),
        (KEY, "acme,,,,"),
        (OTHER, "bolt,,,,"),
    ];
    write_keys(dir.path(), &lines);
    let gateway = start_with(&dir, ", from: [bearer, header:X-Api-Key, query:key]", ECHO);
    let with = |key: &str| gateway.ask(&get("/").header("X-Api-Key", key));
    for key in ["foreign", "expired", "disabled", "twice", &"x".repeat(5000), "sgk_tooshort"] {
        let refused = with(key).expect(401);
        let challenge = refused.header("www-authenticate").expect("a challenge");
        assert!(challenge.starts_with("Bearer realm=\""), "{challenge}");
        assert_eq!(refused.json()["detail"], "the API key is not known");
        assert!(!refused.text().contains(key));
    }
    with("later").expect(200);
    with("").expect(200);
    let two = [
        get(&format!("/?key={KEY}")).header("X-Api-Key", OTHER),
        get("/").header("X-Api-Key", KEY).header("X-Api-Key", KEY),
        get("/").header("X-Api-Key", KEY).header("Authorization", "Bearer foreign"),
        get(&format!("/?key={KEY}&key={KEY}")),
    ];
    two.iter().for_each(|ask| drop(gateway.ask(ask).expect(400)));
    let grpc = get("/").header("Content-Type", "application/grpc").header("TE", "trailers");
    let refused = gateway.ask(&grpc.header("X-Api-Key", "foreign")).expect(200);
    assert_eq!(refused.header("grpc-status").as_deref(), Some("16"));
    let mut client = Client2::connect(gateway.addr());
    let request = Request::get(format!("http://{}/", gateway.addr())).header("x-api-key", "foreign");
    let refused = client.ask(request.body(()).unwrap(), b"", None::<HeaderMap>).expect("an answer");
    assert_eq!(refused.status, 401);
}

/// Before a 401, the limits of addresses judge and are charged, and no others; strikes count it.
#[test]
fn a_refused_key_costs_its_address() {
    let gateway = start(
        "",
        "limits:\n  address: { key: ip, rate: 3/h }\n  pair: { key: [ip, account], rate: 1/h, missing_key: ip }\n  \
         all: { key: global, rate: 3/h }\nlocations: [{ path: /, respond: { body: ok }, limits: [address, pair, all] }]",
    );
    let from = |ip: &str, key: &str| {
        Client::connect_from(ip, gateway.addr()).ask(&get("/").header("X-Api-Key", key))
    };
    for _ in 0..3 {
        from("127.0.0.7", "foreign").expect(401);
    }
    assert_eq!(from("127.0.0.7", "foreign").expect(429).json()["limit"], "address");
    from("127.0.0.8", KEY).expect(200);
    assert_eq!(from("127.0.0.8", KEY).expect(429).json()["limit"], "pair");
    let guarded = start("", &format!("bans: {{ after: 3/1m, for: 1h, strikes: [401] }}\n{ECHO}"));
    for _ in 0..3 {
        guarded.ask(&get("/").header("X-Api-Key", "foreign")).expect(401);
    }
    guarded.ask(&get("/").header("X-Api-Key", KEY)).expect(429);
}

/// Neither `bypass` nor a rejecting limit opens what a key closes.
#[test]
fn a_bypass_opens_nothing() {
    let gateway = start("", &format!("access: {{ bypass: [127.0.0.0/8] }}\n{ECHO}"));
    gateway.ask(&get("/").header("X-Api-Key", "foreign")).expect(401);
    assert_eq!(gateway.ask(&get("/").header("X-Api-Key", KEY)).expect(200).text(), "acme/gold/web shop");
}

/// A change of the file counts within seconds; broken lines are reported, and a broken file changes nothing.
#[test]
fn the_file_is_read_again() {
    let dir = Scratch::new();
    write_keys(dir.path(), &[(KEY, "acme,,,,")]);
    let gateway = start_with(&dir, "", ECHO);
    let status = |key: &str| gateway.ask(&get("/").header("X-Api-Key", key)).status;
    assert_eq!((status(KEY), status(OTHER)), (200, 401));
    let mut lines = vec![("a", "a,,,,"); 150];
    lines.extend([(KEY, "acme,,,yes,"), (OTHER, "bolt,,,,"), ("broken", ",,,,")]);
    write_keys(dir.path(), &lines);
    eventually("the new file", || status(OTHER) == 200);
    assert_eq!(status(KEY), 401);
    gateway.wait_stderr("line 154 has no account");
    let ask = get("/status").header("Accept", "application/json");
    let trouble = || gateway.ask_admin(&ask).json()["files"][0]["trouble"].to_string();
    assert!(trouble().contains("has a broken line: line 154 has no account"), "{}", trouble());
    write_keys(dir.path(), &[(KEY, "acme,,,,"), ("broken", ",,,,")]);
    gateway.wait_stderr("stays in force");
    std::fs::remove_file(dir.path().join("keys.csv")).unwrap();
    eventually("a second warning", || gateway.stderr().matches("stays in force").count() > 1);
    assert!(trouble().contains("does not exist"), "{}", trouble());
    assert_eq!((status(KEY), status(OTHER)), (401, 200));
}

/// Nothing of a key stands in any output: logs, errors, metrics, traces, snapshot, answers of the admin API.
#[test]
fn a_key_is_never_told() {
    let (dir, collector) = (Scratch::new(), Collector::new());
    write_keys(
        dir.path(),
        &[(KEY, "acme,gold,,,web shop"), ("expired-albatross", "acme,,2001-01-31T00:00:00Z,,")],
    );
    let rest = format!(
        "state: {{ snapshot: {} }}\n\
         access_log: {{ hash_keys: false, fields: referer, headers: [X-Api-Key, Authorization, Cookie, Referer] }}\n\
         tracing: {{ otlp: \"{}\", sample: 100% }}\n\
         limits: {{ per: {{ key: [account, uri], rate: 1/h }} }}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, limits: per }}]",
        dir.path().join("counters").display(),
        collector.0.url(),
    );
    let mut gateway = start_with(&dir, ", from: [bearer, header:X-Api-Key, query:key, cookie:key]", &rest);
    for key in [KEY, KEY, "expired-albatross", "foreign-albatross"] {
        let asks = [
            get("/header").header("X-Api-Key", key).header("Referer", format!("http://a/?x=1&key={key}")),
            get("/bearer").header("Authorization", format!("Bearer {key}")),
            get("/cookie").header("Cookie", format!("a=1; key={key}")),
            get(&format!("/query?a=1&key={key}")),
            get(&format!("/query?a=1&%6Bey={key}")),
            get("/two").header("X-Api-Key", key).header("Authorization", "Bearer other-albatross"),
        ];
        asks.iter().for_each(|ask| {
            let text = gateway.ask(ask).text();
            assert!(!text.contains("albatross"), "{text}");
        });
    }
    collector.wait_spans(24);
    let log: String = gateway.wait_log(24).iter().map(|line| format!("{line}\n")).collect();
    let spans: Vec<u8> = collector.0.requests().iter().flat_map(|seen| seen.body.clone()).collect();
    let explain = r#"{"method":"GET","url":"/q?key=wandering-albatross-4711","headers":["X-Api-Key: wandering-albatross-4711"]}"#;
    let answers = ["/status", "/limits/per/keys", "/limits", "/metrics"];
    let answers = answers.map(|target| gateway.admin_get(target).text()).concat()
        + gateway.ask_admin(&post("/explain", explain.as_bytes())).expect(200).text().as_str();
    gateway.term();
    gateway.wait_exit();
    let outputs: [(&str, Vec<u8>); 5] = [
        ("the access log", log.clone().into_bytes()),
        ("the snapshot", std::fs::read(dir.path().join("counters")).expect("a snapshot")),
        ("the traces", spans),
        ("the program's log", gateway.stderr().into_bytes()),
        ("the admin API", answers.into_bytes()),
    ];
    for (name, bytes) in outputs {
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("albatross"), "{name}: {text}");
        let names_accounts = matches!(name, "the access log" | "the admin API");
        assert!(!names_accounts || text.contains("acme"), "{name}: {text}");
    }
    assert!(log.contains("http://a/?x=1&key=***") && log.contains("\"***\""), "{log}");
}

/// `api-key` makes, lists and disables keys in the file of gateway.yaml, and the gateway takes them.
#[test]
fn keys_are_made_at_the_command_line() {
    let dir = Scratch::new();
    let yaml = completed(&format!("account: {{ keys: {{ file: keys.csv, missing: reject }} }}\n{ECHO}\n"))
        .replace("${key:note}", "");
    dir.file("gateway.yaml", &yaml);
    let run = |args: &[&str]| {
        let done = Run::default().args(&[&["api-key"], args].concat()).finish(dir.path());
        (done.code, done.stdout, done.stderr)
    };
    let (code, key, said) = run(&["new", "--account", "acme, \"Inc\"", "--tier", "gold", "--until", "90d"]);
    assert_eq!(code, Some(0), "{said}");
    let key = key.trim_end();
    assert!(
        key.starts_with("sgk_")
            && key.len() == 40
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    );
    let hash = sha256(key);
    assert!(said.contains(&hash[..12]) && !said.contains(&key[4..]), "{said}");
    assert_eq!(run(&["new", "--account", "bolt\nforged"]).0, Some(1), "a value is no second line");
    let (_, other, _) = run(&["new", "--account", "bolt"]);
    let (_, list, _) = run(&["list"]);
    assert!(list.contains(&hash[..12]) && list.contains("acme, \"Inc\"\tgold\t20"), "{list}");
    let args = ["run", "-c", &*dir.path().join("gateway.yaml").display().to_string()].map(str::to_owned);
    let gateway = Run::default().args(&args.each_ref().map(String::as_str)).serve(true);
    let with =
        |key: &str| gateway.ask(&get("/").header("Authorization", format!("Bearer {}", key.trim_end())));
    assert_eq!(with(key).expect(200).text(), "acme, \"Inc\"/gold/");
    with(&other).expect(200);
    // One digit of its checksum is wrong.
    let wrong = key.chars().rev().skip(1).collect::<String>().chars().rev().collect::<String>() + "_";
    with(&wrong).expect(401);
    let (code, _, said) = run(&["disable", &hash[..7]]);
    assert_eq!(code, Some(2), "{said}");
    assert_eq!(run(&["disable", "ffffffffffff"]).0, Some(1));
    assert_eq!(run(&["disable", &hash[..8].to_uppercase()]).0, Some(0));
    eventually("the disabled key", || with(key).status == 401);
    with(&other).expect(200);
    assert!(run(&["list"]).1.contains("disabled"));
}

/// A key that is refused opens no other upstream when a limit by address rejects the request first.
#[test]
fn a_refused_key_is_not_degraded_to_an_upstream() {
    let (own, other) = (Upstream::ok(), Upstream::ok());
    let gateway = start(
        "",
        &format!(
            "upstreams: {{ own: \"{}\", other: \"{}\" }}\nlocations:\n  - {{ path: /a/, upstream: own, strip: /a, \
             limits: {{ key: ip, rate: 2/h }}, on_reject: {{ degrade: other }} }}",
            own.url(),
            other.url()
        ),
    );
    let ask = |key: &str| gateway.ask(&get("/a/x").header("Authorization", format!("Bearer {key}"))).status;
    assert_eq!([ask("wrong"), ask("wrong"), ask("wrong")], [401, 401, 429]);
    assert_eq!((own.count(), other.count()), (0, 0));
    assert_eq!(ask(KEY), 200);
    assert_eq!((own.count(), other.targets()), (0, vec!["/x".to_owned()]), "a known one");
}
