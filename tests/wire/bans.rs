//! Bans over the wire: strikes, rejections, bypass, and messages.

use crate::support::volley::count;
use crate::support::*;

/// A login that admits one request an hour, and a page without limits.
fn guarded_gateway(extra: &str) -> Gateway {
    Gateway::start(&format!(
        "{extra}\nlocations:\n  - {{ path: /login, respond: {{ body: ok }}, limits: 1/h }}\n  \
           - {{ path: /, respond: {{ body: ok }} }}\n"
    ))
}

/// One request that passes, then rejections up to the last strike.
#[track_caller]
fn collect_strikes(ask: impl Fn(&str) -> Response, strikes: usize) {
    ask("/login").expect(200);
    for _ in 0..strikes {
        assert_eq!(ask("/login").expect(429).json()["limit"], "/login#1");
    }
}

/// A login guard: the fifth rejection in a minute bans the client everywhere for the stated time; other
/// clients continue.
#[test]
fn the_fifth_rejection_bans_the_client() {
    let gateway = guarded_gateway("bans: { after: 5/1m, for: 10m }");
    let from = |ip: &str, target: &str| Client::connect_from(ip, gateway.addr()).ask(&get(target));
    collect_strikes(|target| from("127.0.0.5", target), 4);
    from("127.0.0.5", "/").expect(200);
    assert_eq!(gateway.metric("sluicegate_bans_active", &[]), 0.0);
    from("127.0.0.5", "/login").expect(429);
    for target in ["/login", "/", "/nowhere"] {
        let banned = from("127.0.0.5", target).expect(429);
        let (seconds, ms) = (banned.header("retry-after").expect("a time"), banned.retry_after_ms());
        assert!((500_000..=600_000).contains(&ms), "{ms}");
        assert_eq!(seconds, ms.div_ceil(1000).to_string());
        assert_eq!(banned.json()["detail"], "banned for repeated rejections");
        assert!(!banned.headers.has("ratelimit") && banned.json()["limit"].is_null());
    }
    from("127.0.0.6", "/").expect(200);
    from("127.0.0.6", "/login").expect(200);
    let metric = |name: &str| gateway.metric(name, &[]);
    assert_eq!([metric("sluicegate_strikes_total"), metric("sluicegate_bans_total")], [5.0, 1.0]);
    assert_eq!([metric("sluicegate_bans_rejected_total"), metric("sluicegate_bans_active")], [3.0, 1.0]);
    let lines = gateway.wait_log(12);
    let banned: Vec<_> = lines.iter().filter(|line| line["verdict"] == "ban").collect();
    assert_eq!(banned.len(), 3);
    assert!(banned.iter().all(|line| line["status"] == 429 && line["retry_after"].is_f64()), "{banned:?}");
    eventually("a line about the ban", || {
        let log = gateway.stderr();
        log.lines().any(|line| line.contains("a client is banned") && line.contains("127.0.0.5"))
    });
}

/// After the stated time the client is judged again, and its next ban is twice as long.
#[test]
fn a_ban_ends_and_the_next_one_is_longer() {
    let gateway = guarded_gateway("bans: { after: 2/1h, for: 3s, max: 1h }");
    collect_strikes(|target| gateway.get(target), 2);
    let left = gateway.get("/").expect(429).retry_after_ms();
    assert!((1..=3000).contains(&left), "{left}");
    std::thread::sleep(ms(left));
    gateway.get("/").expect(200);
    gateway.get("/login").expect(429);
    gateway.get("/").expect(200);
    gateway.get("/login").expect(429);
    let left = gateway.get("/").expect(429).retry_after_ms();
    assert!((3001..=6000).contains(&left), "{left}");
}

/// A ban charges nothing; bans, 403, 404, concurrency and dry runs are no strikes.
#[test]
fn only_rates_and_queues_strike() {
    let upstream = Upstream::in_turn([Reply::text("slow").after(ms(2000))]);
    let gateway = Gateway::start(&format!(
        "bans: {{ after: 3/1h }}\n\
         limits:\n  slot: {{ algorithm: concurrency, key: global, max_concurrent: 1 }}\n  \
           dry: {{ rate: 1/h, dry_run: true }}\n  \
           line: {{ algorithm: leaky_bucket, rate: 1/h, queue: 0, key: global }}\n\
         locations:\n  - {{ path: /busy, upstream: \"{}\", limits: slot }}\n  \
           - {{ path: /dry, respond: {{ body: ok }}, limits: dry }}\n  \
           - {{ path: /denied, respond: {{ body: ok }}, access: {{ deny: 127.0.0.1 }} }}\n  \
           - {{ path: /line, respond: {{ body: ok }}, limits: line }}\n",
        upstream.url()
    ));
    let shots = volley(gateway.addr(), (0..5).map(|_| get("/busy")));
    assert_eq!(count(&shots, 503), 4);
    (0..5).for_each(|_| drop(gateway.get("/dry").expect(200)));
    (0..5).for_each(|_| drop(gateway.get("/denied").expect(403)));
    (0..5).for_each(|_| drop(gateway.get("/nowhere").expect(404)));
    assert_eq!(gateway.metric("sluicegate_strikes_total", &[]), 0.0);
    gateway.get("/line").expect(200);
    (0..3).for_each(|_| assert_eq!(gateway.get("/line").expect(429).json()["limit"], "line"));
    assert!(gateway.get("/line").expect(429).json()["limit"].is_null(), "banned");
    let rejected = gateway.metric("sluicegate_decisions_total", &["line", "\"reject\""]);
    assert_eq!(rejected, 3.0, "a banned client is not judged");
}

/// A wait that the location's timeout does not allow is rejected by the queue, and is a strike.
#[test]
fn a_wait_that_is_too_long_is_a_strike() {
    let gateway = Gateway::start(
        "bans: { after: 1/1h }\n\
         limits: { line: { algorithm: leaky_bucket, rate: 1/h, queue: 5, max_wait: none } }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: line, timeout: 1s }\n",
    );
    gateway.get("/").expect(200);
    assert_eq!(gateway.get("/").expect(503).json()["limit"], "line");
    gateway.get("/").expect(429);
}

/// Bypassed clients are never banned and pass during a ban; a location without the bypass still limits them.
#[test]
fn the_office_is_never_banned() {
    let gateway = Gateway::start(
        "bans: { after: 1/1h }\nip_sets: { office: 127.0.7.0/24 }\n\
         locations:\n  - { path: /login, respond: { body: ok }, limits: 1/h, access: { bypass: office } }\n  \
           - { path: /strict, respond: { body: ok }, limits: 1/h }\n",
    );
    let from = |ip: &str, target: &str| Client::connect_from(ip, gateway.addr()).ask(&get(target)).status;
    let logins = |ip: &str| [0, 1, 2].map(|_| from(ip, "/login"));
    assert_eq!(logins("127.0.7.1"), [200, 200, 200]);
    assert_eq!([from("127.0.7.1", "/strict"), from("127.0.7.1", "/strict")], [200, 429]);
    assert_eq!(from("127.0.7.1", "/nowhere"), 429, "banned where it is not spared");
    assert_eq!(logins("127.0.7.1"), [200, 200, 200]);
    assert_eq!(logins("127.0.8.1"), [200, 429, 429]);
}

/// Behind a trusted proxy the ban applies to the client, by its network, not to the proxy.
#[test]
fn the_client_behind_a_proxy_is_banned() {
    let gateway = guarded_gateway("server: { trusted_proxies: 127.0.0.1 }\nbans: { after: 2/1h }");
    let from = |ip: &str, target: &str| gateway.ask(&get(target).header("X-Forwarded-For", ip));
    collect_strikes(|target| from("192.0.2.1", target), 2);
    from("192.0.2.1", "/").expect(429);
    from("10.0.0.1, 192.0.2.1", "/").expect(429);
    from("192.0.2.2", "/").expect(200);
    gateway.get("/").expect(200);
    collect_strikes(|target| from("2001:db8::1", target), 2);
    from("2001:db8::ffff", "/").expect(429);
    from("2001:db8:0:1::1", "/").expect(200);
}

/// A ban by account follows the account to every address; without an account the address is banned. Accounts
/// are shown as hashes.
#[test]
fn an_account_is_banned_at_every_address() {
    let gateway = guarded_gateway("account: { from: header:x-account }\nbans: { after: 2/1h, key: account }");
    let call = |ip: &str, account: Option<&str>, target: &str| {
        let ask = account.into_iter().fold(get(target), |ask, account| ask.header("X-Account", account));
        Client::connect_from(ip, gateway.addr()).ask(&ask)
    };
    collect_strikes(|target| call("127.0.0.5", Some("mallory"), target), 2);
    for ip in ["127.0.0.5", "127.0.0.6"] {
        call(ip, Some("mallory"), "/").expect(429);
        call(ip, Some("bob"), "/").expect(200);
        call(ip, None, "/").expect(200);
    }
    collect_strikes(|target| call("127.0.0.7", None, target), 2);
    call("127.0.0.7", None, "/").expect(429);
    call("127.0.0.7", Some("127.0.0.7"), "/").expect(200);
    eventually("two lines", || gateway.stderr().matches("a client is banned").count() == 2);
    assert!(!gateway.stderr().contains("mallory"), "{}", gateway.stderr());
}

/// The response follows `on_reject`, of the file and of the location.
#[test]
fn a_ban_response_follows_on_reject() {
    let gateway = Gateway::start(
        "bans: { after: 1/1h }\non_reject: { status: 420, body: envelope, headers: { X-Why: no } }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: 1/h }\n  \
           - { path: /own, respond: { body: ok }, on_reject: { status: auto, body: none } }\n",
    );
    gateway.get("/").expect(200);
    gateway.get("/").expect(420);
    let banned = gateway.get("/").expect(420);
    let text = banned.json()["resp_msg"].as_str().expect("a message").to_owned();
    assert!(text.starts_with("Banned for repeated rejections, try again in "), "{text}");
    assert_eq!(banned.header("x-why").as_deref(), Some("no"));
    let own = gateway.get("/own").expect(429);
    assert!(own.body.is_empty() && own.headers.has("retry-after"));
}
