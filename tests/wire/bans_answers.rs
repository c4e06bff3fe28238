//! Bans by responses over the wire: scanners, guessed passwords, and the responses that are no strikes.

use crate::support::volley::count;
use crate::support::*;

const TRUSTING: &str = "server: { trusted_proxies: 127.0.0.1 }";

/// An application whose login knows one password, and that has three pages.
fn application() -> Upstream {
    Upstream::new(|seen| match (seen.target.as_str(), seen.header("x-password").as_deref()) {
        ("/login", Some("right")) | ("/", _) => Reply::text("ok"),
        ("/login", _) => Reply::with(401, &[], "no"),
        ("/broken", _) => Reply::with(500, &[], "oh"),
        _ => Reply::with(404, &[], "none"),
    })
}

/// A gateway in front of `upstream` with these strikes; `more` are further locations.
fn gateway(upstream: &Upstream, bans: &str, more: &str) -> Gateway {
    let url = upstream.url();
    Gateway::start(&format!(
        "{TRUSTING}\nbans: {{ {bans} }}\nlocations:\n  - {{ path: /, upstream: \"{url}\" }}\n{more}"
    ))
}

fn from(ip: &str, target: &str) -> Ask {
    get(target).header("X-Forwarded-For", ip)
}

fn login(ip: &str, password: &str) -> Ask {
    from(ip, "/login").header("X-Password", password)
}

fn is_ban(response: &Response) -> bool {
    response.status == 429
        && response.json()["detail"].as_str().is_some_and(|text| text.starts_with("banned for repeated "))
}

/// A scanner that finds nothing is banned with its tenth 404; a reader with a few dead links is not.
#[test]
fn a_scanner_is_banned() {
    let upstream = application();
    let gateway = gateway(&upstream, "after: 10/1h, strikes: [reject, 404]", "");
    let ask = |ip: &str, target: &str| gateway.ask(&from(ip, target));
    for number in 0..10 {
        ask("192.0.2.1", &format!("/.env{number}")).expect(404);
    }
    assert!(is_ban(&ask("192.0.2.1", "/.git")) && is_ban(&ask("192.0.2.1", "/")));
    assert_eq!(ask("192.0.2.1", "/").json()["detail"], "banned for repeated rejections or errors");
    for number in 0..30 {
        ask("192.0.2.2", "/").expect(200);
        if number % 4 == 0 {
            ask("192.0.2.2", "/dead").expect(404);
        }
    }
    let metric = |name: &str| gateway.metric(name, &[]);
    assert_eq!([metric("sluicegate_strikes_total"), metric("sluicegate_bans_total")], [18.0, 1.0]);
    assert_eq!(upstream.count(), 10 + 38, "a banned client does not reach it");
}

/// Guessed passwords ban; right ones are no strikes, however many.
#[test]
fn guessed_passwords_ban() {
    let upstream = application();
    let gateway = gateway(&upstream, "after: 5/1h, strikes: 401", "");
    for _ in 0..4 {
        gateway.ask(&login("192.0.2.1", "wrong")).expect(401);
        (0..3).for_each(|_| drop(gateway.ask(&login("192.0.2.1", "right")).expect(200)));
    }
    gateway.ask(&login("192.0.2.1", "wrong")).expect(401);
    assert_eq!(gateway.ask(&login("192.0.2.1", "right")).json()["detail"], "banned for repeated errors");
    gateway.ask(&login("192.0.2.2", "right")).expect(200);
}

/// Requests that were sent before the ban began get their response, and neither count nor lengthen it.
#[test]
fn requests_in_flight_are_answered() {
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::new(move |_| Reply::with(401, &[], "no").held_by(&held));
    let gateway = gateway(&upstream, "after: 3/1h, for: 10m, strikes: 401", "");
    let asking: Vec<_> = (0..8)
        .map(|_| {
            let mut client = gateway.client();
            std::thread::spawn(move || client.ask(&login("192.0.2.1", "wrong")).status)
        })
        .collect();
    upstream.wait_for(8);
    gate.open();
    let statuses: Vec<u16> = asking.into_iter().map(|asking| asking.join().expect("an answer")).collect();
    assert_eq!(statuses, [401; 8]);
    let banned = gateway.ask(&login("192.0.2.1", "right"));
    assert!(is_ban(&banned) && banned.retry_after_ms() <= 600_000);
    let metric = |name: &str| gateway.metric(name, &[]);
    assert_eq!([metric("sluicegate_strikes_total"), metric("sluicegate_bans_total")], [3.0, 1.0]);
}

/// A response is a strike as soon as its head is here, not at the end of its body.
#[test]
fn the_head_counts() {
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::new(move |_| {
        Reply::raw("HTTP/1.1 404 No\r\nContent-Length: 5\r\n\r\nno").until(&held).then("ne\n")
    });
    let gateway = gateway(&upstream, "after: 1/1h, strikes: 404", "");
    let mut scanner = gateway.client();
    scanner.send(from("192.0.2.1", "/x").bytes());
    eventually("a ban before the end of the body", || gateway.metric("sluicegate_bans_total", &[]) == 1.0);
    assert!(is_ban(&gateway.ask(&from("192.0.2.1", "/"))));
    gate.open();
    assert_eq!(scanner.response().expect(404).body, b"none\n");
}

/// Over HTTP/2, streams of one connection count like any other requests.
#[test]
fn streams_of_http2_count() {
    let upstream = application();
    let gateway = gateway(&upstream, "after: 3/1h, strikes: 404", "");
    let mut client = Client2::connect(gateway.addr());
    let mut ask = |target: &str| {
        let request = ::http::Request::get(format!("http://a{target}")).body(()).expect("a request");
        client.ask(request, b"", None).expect("an answer").status.as_u16()
    };
    let statuses = ["/", "/a", "/b", "/", "/c", "/", "/d"].map(&mut ask);
    assert_eq!(statuses, [200, 404, 404, 200, 404, 429, 429]);
}

/// The gateway's own refusals count by their status: unknown paths, wrong methods, access lists, `respond`.
#[test]
fn own_refusals_count_by_their_status() {
    let locations = "  - { path: /denied, respond: { body: ok }, access: { deny: 192.0.2.0/24 } }\n  \
         - { path: /closed, respond: { status: 404 } }\n  \
         - { path: /read, methods: GET, respond: { body: ok } }\n  \
         - { path: /open, respond: { body: ok } }\n";
    let gateway = Gateway::start(&format!(
        "{TRUSTING}\nbans: {{ after: 2/1h, strikes: [403, 404, 405, 400-402] }}\nlocations:\n{locations}"
    ));
    let ask = |ip: &str, target: &str| gateway.ask(&from(ip, target));
    for (ip, target, status) in [
        ("192.0.2.1", "/nowhere", 404),
        ("192.0.2.2", "/denied", 403),
        ("192.0.2.3", "/closed", 404),
        ("192.0.2.4", "/%zz", 400),
    ] {
        ask(ip, "/open").expect(200);
        (0..2).for_each(|_| drop(ask(ip, target).expect(status)));
        assert!(is_ban(&ask(ip, "/open")), "{ip} after {target}");
    }
    let post = |ip: &str| gateway.ask(&Ask::new("POST", "/read").header("X-Forwarded-For", ip));
    (0..2).for_each(|_| drop(post("192.0.2.5").expect(405)));
    assert!(is_ban(&post("192.0.2.5")));
    // A denied client stays denied during its ban, and its ban does not begin again.
    (0..5).for_each(|_| drop(ask("192.0.2.2", "/denied").expect(403)));
    assert_eq!(gateway.metric("sluicegate_strikes_total", &[]), 10.0);
}

/// A rejection counts once, as `reject` or by its status; without either it does not count.
#[test]
fn a_rejection_counts_once() {
    for (strikes, rejections) in [("[reject, 429]", 3), ("429", 3), ("[reject, 404]", 3), ("404", 9)] {
        let gateway = Gateway::start(&format!(
            "bans: {{ after: 3/1h, strikes: {strikes} }}\nlocations:\n  \
             - {{ path: /login, respond: {{ body: ok }}, limits: 1/h }}\n"
        ));
        gateway.get("/login").expect(200);
        let refused: Vec<_> = (0..9).map(|_| gateway.get("/login").expect(429)).collect();
        assert_eq!(refused.iter().filter(|response| !is_ban(response)).count(), rejections, "{strikes}");
    }
}

/// Clients on bypass, degraded answers, and failures that the client did not cause are no strikes.
#[test]
fn what_the_client_did_not_cause_is_no_strike() {
    let (upstream, refusing) = (application(), Refusing::new());
    let locations = format!(
        "  - {{ path: /down, upstream: \"{}\" }}\n  \
           - {{ path: /spared, respond: {{ status: 404 }}, access: {{ bypass: 192.0.2.9 }} }}\n  \
           - {{ path: /instead, respond: {{ body: ok }}, limits: {{ rate: 1/h, key: ip }}, \
               on_reject: {{ degrade: {{ status: 404, body: later }} }} }}\n",
        refusing.url()
    );
    let gateway = gateway(&upstream, "after: 1/1h, strikes: [reject, 404, 5xx]", &locations);
    let ask = |ip: &str, target: &str| gateway.ask(&from(ip, target));
    for _ in 0..3 {
        ask("192.0.2.9", "/spared").expect(404);
        ask("192.0.2.8", "/down").expect(502);
    }
    ask("192.0.2.8", "/instead").expect(200);
    (0..3).for_each(|_| drop(ask("192.0.2.8", "/instead").expect(404)));
    assert_eq!(gateway.metric("sluicegate_strikes_total", &[]), 0.0);
    ask("192.0.2.8", "/broken").expect(500);
    assert!(is_ban(&ask("192.0.2.8", "/")), "the upstream's own 500 counts");
}

/// With `key: account`, responses to an account ban it, wherever it comes from.
#[test]
fn an_account_is_banned_by_responses() {
    let upstream = application();
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:x-account }}\nbans: {{ after: 2/1h, key: account, strikes: 404 }}\n\
         locations:\n  - {{ path: /, upstream: \"{url}\" }}\n"
    ));
    let ask = |account: &str, target: &str| gateway.ask(&get(target).header("X-Account", account)).status;
    assert_eq!(["/a", "/b", "/"].map(|target| ask("mallory", target)), [404, 404, 429]);
    assert_eq!(ask("bob", "/"), 200);
}

/// By default only rejections count.
#[test]
fn by_default_responses_are_no_strikes() {
    let upstream = application();
    let gateway = gateway(&upstream, "after: 1/1h", "");
    let shots = volley(gateway.addr(), (0..20).map(|_| login("192.0.2.1", "wrong")));
    assert_eq!(count(&shots, 401), 20);
    (0..5).for_each(|_| drop(gateway.ask(&from("192.0.2.1", "/x")).expect(404)));
    assert_eq!(gateway.metric("sluicegate_strikes_total", &[]), 0.0);
}
