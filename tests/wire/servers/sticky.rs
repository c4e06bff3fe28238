//! Cookies that lead a client to the same server, as long as that one serves.

use std::sync::{Arc, Mutex};

use ::http::Request;

use crate::support::*;

const NAMES: [&str; 3] = ["one", "two", "three"];

fn servers() -> Vec<Upstream> {
    NAMES.into_iter().map(Upstream::named).collect()
}

fn start(addresses: &[String], more: &str, head: &str) -> Gateway {
    Gateway::start(&file(addresses, more, head))
}

fn file(addresses: &[String], more: &str, head: &str) -> String {
    format!(
        "{head}upstreams:\n  app: {{ servers: [{}], balance: round_robin, {more} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        addresses.join(", ")
    )
}

fn addresses(servers: &[Upstream]) -> Vec<String> {
    servers.iter().map(|server| server.addr().to_string()).collect()
}

/// The Set-Cookie line of an answer, in its parts: the pair that the client sends, and the attributes.
fn set_cookie(response: &Response) -> Option<(String, String)> {
    let lines = response.headers.all("set-cookie");
    assert!(lines.len() <= 1, "{lines:?}");
    let (pair, attributes) = lines.first()?.split_once("; ").expect("attributes");
    Some((pair.to_owned(), attributes.to_owned()))
}

fn with(cookie: &str) -> Ask {
    get("/").header("Cookie", cookie)
}

/// The name of the server that answered, and the cookie that it set.
fn visit(gateway: &Gateway, cookie: &str) -> (String, Option<String>) {
    let response = gateway.ask(&with(cookie)).expect(200);
    (response.text(), set_cookie(&response).map(|(pair, _)| pair))
}

/// A server, and the cookie that leads to it.
fn begin(gateway: &Gateway) -> (String, String) {
    let (server, cookie) = visit(gateway, "other=1");
    (server, cookie.expect("a cookie"))
}

/// The server's place in the tests' lists.
fn place(name: &str) -> usize {
    NAMES.iter().position(|one| *one == name).expect("a known server")
}

#[test]
fn a_client_stays_with_its_first_server() {
    let servers = servers();
    let gateway = start(&addresses(&servers), "sticky: { cookie: sg, for: 90s }", "");
    let response = gateway.get("/").expect(200);
    let (pair, attributes) = set_cookie(&response).expect("a cookie");
    assert_eq!(attributes, "Path=/; Max-Age=90; HttpOnly; SameSite=Lax");
    assert!(
        !pair.contains("one") && !pair.contains(&servers[place(&response.text())].addr().port().to_string())
    );
    for _ in 0..9 {
        assert_eq!(visit(&gateway, &format!("a=\"x y\"; {pair};b=2")), (response.text(), None));
    }
    let server = &servers[place(&response.text())];
    let cookies: Vec<_> =
        server.requests().iter().skip(1).map(|seen| seen.header("cookie").unwrap()).collect();
    assert_eq!(cookies, ["a=\"x y\";b=2"; 9]);
    // Two lines, of which one had nothing else.
    gateway.ask(&with(&pair).header("Cookie", "c=3")).expect(200);
    assert_eq!(server.requests().last().unwrap().headers.all("cookie"), ["c=3"]);
    // Others are still balanced.
    let others: Vec<String> = (0..6).map(|_| begin(&gateway).0).collect();
    assert!(NAMES.iter().all(|name| others.iter().filter(|other| other == name).count() == 2), "{others:?}");
}

/// `Secure` follows the scheme that a trusted proxy tells; from others it is that of the connection.
#[test]
fn the_cookie_is_secure_where_the_scheme_is_https() {
    let servers = servers();
    for (trusted, expected) in [("127.0.0.0/8", true), ("10.0.0.0/8", false)] {
        let head = format!("server: {{ trusted_proxies: {trusted} }}\n");
        let gateway = start(&addresses(&servers), "sticky: {}", &head);
        let response = gateway.ask(&get("/").header("X-Forwarded-Proto", "https")).expect(200);
        assert_eq!(set_cookie(&response).unwrap().1.ends_with("; Secure"), expected, "{trusted}");
        assert!(!set_cookie(&gateway.get("/").expect(200)).unwrap().1.contains("Secure"));
    }
}

#[test]
fn other_cookies_are_replaced() {
    let servers = servers();
    let gateway = start(&addresses(&servers), "sticky: { secret: own }", "");
    let elsewhere = start(&addresses(&servers), "sticky: { secret: another }", "");
    let short = start(&addresses(&servers), "sticky: { secret: own, for: 1s }", "");
    let (_, good) = begin(&gateway);
    let old = begin(&short).1;
    std::thread::sleep(ms(2_100));
    let forged = [
        "sg=".to_owned(),
        "sg=one".to_owned(),
        format!("{good}A"),
        format!("{good}; {good}"),
        format!("{good}; a=1; sg=x"),
        begin(&elsewhere).1,
        old,
    ];
    for forged in forged {
        let (server, cookie) = visit(&gateway, &format!("x=1; {forged}"));
        let cookie = cookie.unwrap_or_else(|| panic!("{forged} was accepted"));
        assert_eq!(visit(&gateway, &cookie), (server.clone(), None), "{forged}");
        let seen = servers[place(&server)].requests();
        let seen = seen.iter().rev().map(|seen| seen.header("cookie")).nth(1).unwrap();
        assert!(
            seen.as_deref().is_some_and(|seen| !seen.contains("sg=") && seen.starts_with("x=1")),
            "{seen:?}"
        );
    }
}

/// A server that drains gets none of its clients any more, and they stay with the other one afterwards.
#[test]
fn a_drained_server_loses_its_clients() {
    let servers = servers();
    let gateway = start(&addresses(&servers), "sticky: {}", "");
    let (server, cookie) = begin(&gateway);
    let verb = |verb: &str| {
        let path = format!("/upstreams/app/servers/{}/{verb}", servers[place(&server)].addr());
        let ask =
            Ask::new("POST", &path).header("Content-Length", 0).header("Content-Type", "application/json");
        gateway.ask_admin(&ask).expect(200);
    };
    verb("drain");
    let (next, followed) = visit(&gateway, &cookie);
    assert_ne!(next, server);
    let followed = followed.expect("a new cookie");
    verb("undrain");
    assert_eq!(visit(&gateway, &followed), (next, None));
    assert_eq!(visit(&gateway, &cookie), (server, None), "the old one is still good");
}

/// A server that is gone: the retry finds another, and the cookie follows the server that answered.
#[test]
fn the_cookie_follows_a_retry() {
    let ill = Arc::new(Mutex::new(String::new()));
    let serve = |name: &'static str| {
        let ill = ill.clone();
        Upstream::new(move |_| match *ill.lock().unwrap() == name {
            true => Reply::with(502, &[], "ill"),
            false => Reply::text(name),
        })
    };
    let servers: Vec<Upstream> = NAMES.into_iter().map(serve).collect();
    let gateway = start(&addresses(&servers), "sticky: {}, eject: none, retries: { when: [502] }", "");
    let (server, cookie) = begin(&gateway);
    ill.lock().unwrap().clone_from(&server);
    let (next, followed) = visit(&gateway, &cookie);
    assert_ne!(next, server);
    assert_eq!(visit(&gateway, &followed.expect("a new cookie")), (next, None));
}

#[test]
fn an_ejected_server_loses_its_clients() {
    let ill = |name: &'static str| {
        Upstream::new(move |seen| match seen.target.as_str() {
            "/ill" => Reply::with(503, &[], "no"),
            _ => Reply::text(name),
        })
    };
    let servers: Vec<Upstream> = NAMES.into_iter().map(ill).collect();
    let eject = "sticky: {}, eject: { errors: 1, for: 60s, status: 503 }";
    let gateway = start(&addresses(&servers), eject, "");
    let (server, cookie) = begin(&gateway);
    let answer = gateway.ask(&get("/ill").header("Cookie", &cookie)).expect(503);
    assert_eq!(set_cookie(&answer), None);
    let (next, followed) = visit(&gateway, &cookie);
    assert_ne!(next, server);
    assert_eq!(visit(&gateway, &followed.expect("a new cookie")), (next, None));
}

/// A full server is not waited for, and its clients come back to it.
#[test]
fn a_full_server_keeps_its_clients() {
    for queue in ["none", "{ max_wait: 5s }"] {
        let gate = Gate::default();
        let held = |name: &'static str| {
            let gate = gate.clone();
            Upstream::new(move |seen| match seen.target.as_str() {
                "/held" => Reply::text(name).held_by(&gate),
                _ => Reply::text(name),
            })
        };
        let servers: Vec<Upstream> = NAMES.into_iter().map(held).collect();
        let full = format!("sticky: {{}}, max_connections: 1, queue: {queue}");
        let gateway = start(&addresses(&servers), &full, "");
        let (server, cookie) = begin(&gateway);
        let mut slow = gateway.client();
        slow.send(get("/held").header("Cookie", &cookie).bytes());
        servers[place(&server)].wait_for(2);
        for _ in 0..4 {
            let (next, followed) = visit(&gateway, &cookie);
            assert_ne!(next, server);
            assert_eq!(followed, None, "the cookie stays");
        }
        gate.open();
        slow.response().expect(200);
        eventually("its return", || visit(&gateway, &cookie) == (server.clone(), None));
    }
}

/// Over HTTP/2 a cookie may come in several fields.
#[test]
fn clients_of_http2_stay_too() {
    let servers = servers();
    let gateway = start(&addresses(&servers), "sticky: {}", "");
    let (server, cookie) = begin(&gateway);
    let mut client = Client2::connect(gateway.addr());
    for _ in 0..4 {
        let request = Request::get("http://a.test/").header("cookie", "a=1").header("cookie", &cookie);
        let answer = client.ask(request.header("cookie", "b=2").body(()).unwrap(), b"", None).unwrap();
        assert_eq!(answer.body, server.as_bytes());
        assert!(!answer.headers.contains_key("set-cookie"));
    }
    assert_eq!(servers[place(&server)].requests().last().unwrap().headers.all("cookie"), ["a=1; b=2"]);
    let answer = client.ask(Request::get("http://a.test/").body(()).unwrap(), b"", None).unwrap();
    assert!(answer.headers["set-cookie"].to_str().unwrap().starts_with("sg="));
}

/// The answer that switches protocols sets the cookie as well.
#[test]
fn a_websocket_begins_with_a_cookie() {
    let upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let upstream = Upstream::new(move |_| Reply::raw(upgraded));
    let gateway = start(&addresses(&[upstream]), "sticky: {}", "");
    let mut client = gateway.client();
    client.send(get("/").header("Connection", "upgrade").header("Upgrade", "websocket").bytes());
    let head = client.raw_head(PATIENCE).expect("a head");
    assert!(String::from_utf8_lossy(&head).to_lowercase().contains("set-cookie: sg="));
}

/// The secret lives in the file, in the snapshot, or nowhere, which `check` says.
#[test]
fn a_restart_keeps_clients_where_the_secret_is_kept() {
    let (servers, scratch) = (servers(), Scratch::new());
    let snapshot = format!("state: {{ snapshot: {} }}\n", scratch.path().join("state.bin").display());
    let forgets = "a restart begins anew";
    for (sticky, head, is_kept) in [
        ("sticky: {}", "", false),
        ("sticky: {}", "access_log: { hash_secret: own }\n", true),
        ("sticky: { secret: own }", "", true),
        ("sticky: {}", &snapshot, true),
    ] {
        let file = file(&addresses(&servers), sticky, head);
        let mut first = Gateway::start(&file);
        let checked = Run::default().args(&["check"]).finish(first.dir());
        assert_eq!(checked.stdout.contains(forgets), !is_kept, "{}", checked.stdout);
        let cookie = begin(&first).1;
        first.term();
        assert_eq!(first.wait_exit(), 0);
        let second = Gateway::start(&file);
        let accepted = visit(&second, &cookie).1.is_none();
        assert_eq!(accepted, is_kept, "{sticky} {head}");
        second.change(&file.replace("balance: round_robin", "balance: p2c"));
        let (_, again) = begin(&second);
        second.change(&file);
        assert_eq!(visit(&second, &again).1, None, "after a reload");
    }
}

/// Gateways with one Redis accept each other's cookies.
#[test]
fn a_fleet_shares_its_clients() {
    let (servers, redis) = (servers(), Redis::start());
    let head =
        format!("state: {{ redis: {{ url: \"{}\" }} }}\naccess_log: {{ hash_keys: false }}\n", redis.url());
    let file = file(&addresses(&servers), "sticky: {}", &head);
    let (one, other) = (Gateway::start(&file), Gateway::start(&file));
    // Each worker adopts the secret for itself.
    let agree = |one: &Gateway, other: &Gateway| {
        let (server, cookie) = begin(one);
        visit(other, &cookie) == (server, None)
    };
    eventually("one secret", || agree(&one, &other));
    let late = Gateway::start(&file);
    eventually("the secret", || agree(&other, &late));
}
