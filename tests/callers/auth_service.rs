//! A service that decides over each request of a location.

use ::http::{HeaderMap, HeaderName, HeaderValue, Request};

use crate::support::caddy::Caddy;
use crate::support::h2_raw::{self, H2};
use crate::support::*;

/// The service of these tests decides by the cookie: `joe` is admitted as joe, `anon` without a name.
fn decide(seen: &Seen) -> Reply {
    let cookie = seen.header("cookie").unwrap_or_default();
    let (_, word) = cookie.split_once("who=").unwrap_or_default();
    match word {
        "anon" => Reply::with(200, &[], ""),
        "renewed" => Reply::with(200, &[("X-User", "joe"), ("Set-Cookie", "session=2")], "ignored"),
        "deny" => {
            Reply::with(401, &[("WWW-Authenticate", "Basic realm=\"x\""), ("X-Secret", "1")], "who are you?")
        }
        "forbid" => Reply::with(403, &[("Content-Type", "text/html")], "<p>no</p>"),
        "login" => {
            Reply::with(302, &[("Location", "https://login.test/?rd=1"), ("Set-Cookie", "state=1")], "")
        }
        "error" => Reply::with(500, &[], "broken"),
        "teapot" => Reply::with(418, &[], ""),
        "switch" => {
            Reply::raw("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
        }
        "fields" => {
            let fields: String = (0..10_000).map(|n| format!("X-{n}: {n}\r\n")).collect();
            Reply::raw(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 0\r\n\r\n")).close()
        }
        "large" => Reply::with(200, &[("X-User", "joe")], &"x".repeat(65 * 1024)),
        "control" => Reply::with(200, &[("X-User", "j\toe")], ""),
        "twice" => Reply::with(200, &[("X-User", "joe"), ("X-User", "eve")], ""),
        "cut" => Reply::raw("HTTP/1.1 200 OK\r\nX-User: joe\r\nContent-Length: 10\r\n\r\nab").close(),
        "silent" => Reply::silence(),
        name => Reply::with(200, &[("X-User", name), ("X-Groups", "a"), ("X-Groups", "b")], ""),
    }
}

struct Site {
    service: Upstream,
    app: Upstream,
    gateway: Gateway,
}

impl Site {
    /// `/app/` asks the service with these further fields of `auth`; `/open/` does not.
    #[track_caller]
    fn start(auth: &str, top: &str) -> Site {
        Site::with_service(Upstream::new(decide), auth, top)
    }

    #[track_caller]
    fn with_service(service: Upstream, auth: &str, top: &str) -> Site {
        let app = Upstream::ok();
        let gateway = Gateway::start(&format!(
            "{top}\nadmin: {{ listen: 127.0.0.1:0 }}\nlocations:\n  - path: /app/\n    upstream: {app}\n    \
             auth:\n      url: {service}/verify?by=gateway\n      \
             copy: [X-User, X-Groups]\n      {auth}\n  - {{ path: /open/, upstream: \"{app}\" }}\n",
            app = app.url(),
            service = service.url(),
        ));
        Site { service, app, gateway }
    }

    #[track_caller]
    fn ask(&self, who: &str) -> Response {
        self.gateway.ask(&ask_as(who))
    }
}

fn ask_as(who: &str) -> Ask {
    get("/app/page?q=1").header("Cookie", format!("a=b; who={who}"))
}

const CACHED: &str = "cache: { by: [cookie, authorization] }";

#[test]
fn the_service_sees_the_request_and_the_upstream_its_answer() {
    let site = Site::start("send: [cookie, authorization, X-Tenant]", "account: { from: auth:X-User }");
    let ask = ask_as("joe").header("X-Forwarded-Method", "DELETE").header("X-Forwarded-Uri", "/admin");
    let ask = ask.header("X-Forwarded-For", "10.0.0.1").header("X-Forwarded-Host", "evil.test");
    let ask = ask.header("X-Original-Url", "/x").header("X-Tenant", "t").header("Accept", "text/html");
    site.gateway.ask(&ask.host("app.test:8080")).expect(200);
    let question = &site.service.requests()[0];
    assert_eq!((question.method.as_str(), question.target.as_str()), ("GET", "/verify?by=gateway"));
    for (name, value) in [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/app/page?q=1"),
        ("x-forwarded-host", "app.test:8080"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-original-method", "GET"),
        ("x-original-uri", "/app/page?q=1"),
        ("x-original-url", "http://app.test:8080/app/page?q=1"),
        ("x-real-ip", "127.0.0.1"),
        ("cookie", "a=b; who=joe"),
        ("x-tenant", "t"),
        ("host", &site.service.addr().to_string()),
    ] {
        assert_eq!(question.headers.all(name), [value], "{name}");
    }
    assert!(!question.headers.has("accept"));
    let seen = &site.app.requests()[0];
    assert_eq!(seen.headers.all("x-user"), ["joe"]);
    assert_eq!(seen.headers.all("x-groups"), ["a", "b"]);
    assert!(site.gateway.wait_log(1)[0]["account"].is_string());
}

#[test]
fn refusals_pass_to_the_client_and_open_nothing() {
    let site = Site::start("timeout: 300ms", "");
    let denied = site.ask("deny").expect(401);
    assert_eq!(denied.header("www-authenticate").as_deref(), Some("Basic realm=\"x\""));
    assert_eq!((denied.text().as_str(), denied.header("x-secret")), ("who are you?", None));
    let forbidden = site.ask("forbid").expect(403);
    assert_eq!(
        (forbidden.text().as_str(), forbidden.header("content-type").unwrap().as_str()),
        ("<p>no</p>", "text/html")
    );
    let login = site.ask("login").expect(302);
    assert_eq!(login.header("location").as_deref(), Some("https://login.test/?rd=1"));
    assert_eq!(login.header("set-cookie").as_deref(), Some("state=1"));
    assert_eq!(site.app.count(), 0);
    assert_eq!(site.gateway.metric("sluicegate_auth_total", &["result=\"refused\""]), 3.0);
    assert_eq!(site.gateway.wait_log(3)[0]["verdict"], "auth_refused");
}

#[test]
fn a_cookie_of_an_admitting_answer_reaches_the_client() {
    let site = Site::start(CACHED, "");
    for _ in 0..2 {
        let renewed = site.ask("renewed").expect(200);
        assert_eq!(renewed.header("set-cookie").as_deref(), Some("session=2"));
    }
    assert_eq!(site.service.count(), 2, "an answer with a cookie is not kept");
}

#[test]
fn without_a_decision_nothing_is_opened() {
    for (failure, status, cause) in [("503", 503, "auth_unavailable"), ("403", 403, "auth_denied")] {
        let site = Site::start(&format!("timeout: 300ms\n      on_failure: {failure}"), "");
        let cases = [
            ("error", "another status"),
            ("teapot", "another status"),
            ("switch", "not valid HTTP"),
            ("fields", "not valid HTTP"),
            ("large", "too long"),
            ("control", "control bytes"),
            ("cut", "broke off"),
            ("silent", "in time"),
        ];
        for (index, (who, word)) in cases.iter().enumerate() {
            site.ask(who).expect(status);
            let lines = site.gateway.wait_log(index + 1);
            assert_eq!(lines[index]["verdict"], cause, "{who}");
            let error = lines[index]["error"].as_str().unwrap_or_default();
            assert!(error.contains(word), "{who}: {error}");
        }
        assert_eq!(site.app.count(), 0);
        assert_eq!(site.gateway.metric("sluicegate_auth_total", &["result=\"failed\""]), cases.len() as f64);
    }
}

#[test]
fn a_service_that_is_away_opens_nothing() {
    let refusing = Refusing::new();
    let app = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "locations: [{{ path: /, upstream: \"{}\", auth: {{ url: {} }} }}]",
        app.url(),
        refusing.url()
    ));
    gateway.get("/").expect(503);
    assert_eq!(app.count(), 0);
}

#[test]
fn two_accounts_in_an_answer_are_no_decision() {
    let site = Site::start("", "account: { from: auth:X-User }");
    site.ask("twice").expect(503);
    assert_eq!(site.app.count(), 0);
}

/// The spellings of a name that CGI servers read as one.
fn spellings(name: &str) -> Vec<String> {
    let mut all: Vec<String> =
        "_.!~|+*'`^".chars().map(|mark| name.replace('-', &mark.to_string())).collect();
    all.extend([
        name.to_owned(),
        name.to_uppercase(),
        name.to_lowercase(),
        name.to_lowercase().replace('-', "_"),
    ]);
    all
}

/// Those of them that HTTP/2 can carry.
fn lower_spellings(name: &str) -> impl Iterator<Item = HeaderName> {
    let names = spellings(&name.to_lowercase()).into_iter();
    let names = names.filter(|spelling| !spelling.contains(|c: char| c.is_uppercase()));
    names.map(|spelling| HeaderName::from_bytes(spelling.as_bytes()).expect("a name"))
}

/// No upstream ever sees a value that the client wrote.
#[track_caller]
fn assert_unforged(site: &Site, case: &str) {
    for seen in site.app.requests() {
        let text = format!("{:?} {:?}", seen.headers, seen.trailers);
        assert!(!text.contains("forged"), "{case}: {text}");
    }
}

#[test]
fn the_upstream_never_sees_the_clients_own_names() {
    for (auth, top) in [("", ""), (CACHED, "server: { underscore_headers: pass }")] {
        let site = Site::start(auth, top);
        for (who, status) in
            [("joe", 200), ("joe", 200), ("anon", 200), ("anon", 200), ("error", 503), ("joe", 200)]
        {
            for name in ["X-User", "X-Groups"] {
                let mut client = site.gateway.client();
                for spelling in spellings(name) {
                    let forged = ask_as(who).header(&spelling, "forged").header(&spelling, "forged-too");
                    client.ask(&forged.header("Connection", name)).expect(status);
                    client.ask(&get("/open/").header(&spelling, "forged")).expect(200);
                }
                ask_over_http2(&site, who, name, status);
            }
            assert_unforged(&site, who);
        }
        let named = site.app.requests().into_iter().filter(|seen| {
            seen.target.starts_with("/app/")
                && seen.header("cookie").is_some_and(|cookie| cookie.ends_with("joe"))
        });
        for seen in named {
            assert_eq!(seen.headers.all("x-user"), ["joe"], "Connection does not remove the answer's");
        }
    }
}

fn ask_over_http2(site: &Site, who: &str, name: &str, status: u16) {
    let mut client = Client2::connect(site.gateway.addr());
    let forged = HeaderValue::from_static("forged");
    for spelling in
        spellings(&name.to_lowercase()).into_iter().filter(|spelling| *spelling == spelling.to_lowercase())
    {
        let spelling = HeaderName::from_bytes(spelling.as_bytes()).unwrap();
        let request = Request::post("http://a/app/h2").header("cookie", format!("who={who}"));
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let request = request.header(&spelling, &forged).header(&spelling, "forged-too").body(()).unwrap();
        let trailers = HeaderMap::from_iter([(spelling, forged.clone())]);
        let answer = client.ask(request, b"x", Some(trailers)).expect("an answer");
        assert!(answer.status == status || answer.headers.contains_key("grpc-status"), "{}", answer.status);
    }
}

/// Servers of HTTP/2 get the trailers of gRPC, and may add them to the head that they have read.
#[test]
fn trailers_never_bring_the_clients_own_names() {
    let service = Upstream::new(decide);
    let app = Upstream2::new(|_| Act::Echo);
    let gateway = Gateway::start(&format!(
        "server: {{ underscore_headers: pass }}\nupstreams: {{ app: {{ servers: [\"{}\"], protocol: http2 }} }}\n\
         locations:\n  - {{ path: /app/, upstream: app, auth: {{ url: {}, copy: [X-User] }} }}\n  \
         - {{ path: /, upstream: app }}\n",
        app.addr(),
        service.url(),
    ));
    let mut client = Client2::connect(gateway.addr());
    for target in ["/app/call", "/open/call"] {
        for spelling in lower_spellings("X-User") {
            let request = Request::post(format!("http://a{target}")).header("cookie", "who=joe");
            let request = request.header("content-type", "application/grpc").header("te", "trailers");
            let names =
                [spelling.clone(), HeaderName::from_static("x-kept"), HeaderName::from_static("my_own")];
            let trailers = names.map(|name| (name, HeaderValue::from_static("1"))).into_iter().collect();
            let answer = client.ask(request.body(()).unwrap(), b"x", Some(trailers)).expect("an answer");
            let echoed = answer.trailers.expect("trailers");
            assert!(echoed.contains_key("x-kept") && echoed.contains_key("my_own"), "{echoed:?}");
            assert!(!echoed.contains_key(&spelling), "{target}: {echoed:?}");
        }
    }
    let of_client = app.requests().into_iter().filter(|seen| seen.uri.contains("/open/"));
    assert!(of_client.into_iter().all(|seen| !seen.headers.contains_key("x-user")));
}

#[test]
fn answers_are_kept_by_all_that_the_service_may_judge_by() {
    let site = Site::start(CACHED, "server: { workers: 1, trusted_proxies: 127.0.0.1 }");
    let usual = || ask_as("joe").host("a.test").header("X-Forwarded-For", "192.0.2.1");
    let asked = |ask: Ask| {
        let before = site.service.count();
        site.gateway.ask(&ask).expect(200);
        site.service.count() - before
    };
    assert_eq!(asked(usual()), 1);
    assert_eq!(asked(usual()), 0);
    assert_eq!(asked(usual().header("Authorization", "x")), 1);
    assert_eq!(asked(usual().header("Accept", "x")), 0, "the service does not see it");
    assert_eq!(asked(ask_as("joe").host("b.test").header("X-Forwarded-For", "192.0.2.1")), 1);
    assert_eq!(asked(ask_as("joe").host("a.test").header("X-Forwarded-For", "192.0.2.2")), 1);
    assert_eq!(asked(usual().header("X-Forwarded-Proto", "https")), 1);
    let other = |method: &str, target: &str| {
        let ask = Ask::new(method, target).header("Cookie", "a=b; who=joe").host("a.test");
        ask.header("X-Forwarded-For", "192.0.2.1")
    };
    assert_eq!(asked(other("GET", "/app/page?q=2")), 1);
    assert_eq!(asked(other("POST", "/app/page?q=1").header("Content-Length", 0)), 1);
    assert_eq!(asked(other("GET", "/app/page?q=1")), 0);
    assert_eq!(site.gateway.metric("sluicegate_auth_total", &["result=\"cached\""]), 3.0);
}

#[test]
fn what_is_ignored_needs_no_new_question() {
    let site = Site::start("cache: { by: [cookie, authorization], ignore: [target, method, address] }", "");
    for ask in [get("/app/a"), get("/app/b?c"), post("/app/d", b"x")] {
        site.gateway.ask(&ask.header("Cookie", "who=joe")).expect(200);
    }
    Client::connect_from("127.0.0.9", site.gateway.addr())
        .ask(&get("/app/e").header("Cookie", "who=joe"))
        .expect(200);
    assert!(site.service.count() <= 2, "one for each worker: {}", site.service.count());
}

#[test]
fn the_answer_says_how_long_it_holds() {
    let service = |control: &'static str| {
        Upstream::new(move |_: &Seen| Reply::with(200, &[("Cache-Control", control)], ""))
    };
    for (control, questions) in
        [("max-age=60", 1), ("no-store", 3), ("private, max-age=0", 3), ("max-age=x", 3)]
    {
        let site = Site::with_service(service(control), CACHED, "server: { workers: 1 }");
        for _ in 0..3 {
            site.ask("joe").expect(200);
        }
        assert_eq!(site.service.count(), questions, "{control}");
    }
    let site = Site::with_service(service("max-age=1"), CACHED, "server: { workers: 1 }");
    site.ask("joe").expect(200);
    std::thread::sleep(ms(1200));
    site.ask("joe").expect(200);
    assert_eq!(site.service.count(), 2);
}

#[test]
fn refusals_are_asked_for_by_each() {
    let site = Site::start(CACHED, "server: { workers: 1 }");
    for _ in 0..3 {
        site.ask("deny").expect(401);
    }
    assert_eq!(site.service.count(), 3);
}

/// A service that answers once its gate opens.
fn gated(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::new(move |seen: &Seen| decide(seen).held_by(&gate))
}

#[test]
fn equal_requests_share_one_question() {
    for (who, status, questions) in [("joe", 200, 1), ("deny", 401, 8)] {
        let gate = Gate::default();
        let site = Site::with_service(gated(&gate), CACHED, "server: { workers: 1 }");
        let mut clients: Vec<Client> = (0..8).map(|_| site.gateway.client()).collect();
        for client in &mut clients {
            client.send(ask_as(who).bytes());
        }
        site.service.wait_for(1);
        std::thread::sleep(ms(200));
        assert_eq!(site.service.count(), 1);
        gate.open();
        for client in &mut clients {
            client.response().expect(status);
        }
        assert_eq!(site.service.count(), questions, "{who}");
    }
}

#[test]
fn a_client_that_leaves_ends_its_own_wait_alone() {
    let gate = Gate::default();
    let site = Site::with_service(gated(&gate), CACHED, "server: { workers: 1 }");
    let mut first = site.gateway.client();
    first.send(ask_as("joe").bytes());
    site.service.wait_for(1);
    let mut second = site.gateway.client();
    second.send(ask_as("joe").bytes());
    std::thread::sleep(ms(100));
    drop(first);
    std::thread::sleep(ms(400));
    gate.open();
    second.response().expect(200);
    assert_eq!((site.service.count(), site.app.count()), (1, 1));
    // Without another request that waits, the question ends with its client.
    let gate = Gate::default();
    let site = Site::with_service(gated(&gate), "timeout: 20s", "");
    let mut alone = site.gateway.client();
    alone.send(ask_as("joe").bytes());
    site.service.wait_for(1);
    drop(alone);
    assert_eq!(site.gateway.wait_log(1)[0]["status"], 499);
    gate.open();
    site.service.wait_ended(1);
    assert_eq!(site.app.count(), 0);
}

#[test]
fn limits_before_the_question_keep_a_flood_from_the_service() {
    let top = "limits:\n  few: { key: ip, rate: 1/h, burst: 2 }\n  many: { key: account, rate: 1/h, burst: 9 }\n\
               account: { from: auth:X-User }";
    let site = Site::start("limits: [few]", top);
    for who in ["deny", "joe"] {
        site.ask(who);
    }
    let rejected = site.ask("joe").expect(429);
    assert!(rejected.text().contains("few"), "{}", rejected.text());
    assert_eq!((site.service.count(), site.app.count()), (2, 1));
    // A kept answer takes nothing of them.
    let site =
        Site::start(&format!("limits: [few]\n      {CACHED}"), &format!("server: {{ workers: 1 }}\n{top}"));
    for _ in 0..5 {
        site.ask("joe").expect(200);
    }
    assert_eq!(site.service.count(), 1);
}

#[test]
fn a_limit_of_both_chains_counts_once() {
    let service = Upstream::new(decide);
    let app = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "limits: {{ both: {{ key: ip, rate: 1/h, burst: 4 }} }}\nlocations:\n  - path: /\n    upstream: {}\n    \
         limits: both\n    auth: {{ url: {}, limits: both }}\n",
        app.url(),
        service.url()
    ));
    let asked: Vec<u16> = (0..5).map(|_| gateway.ask(&get("/").header("Cookie", "who=joe")).status).collect();
    assert_eq!(asked, [200, 200, 200, 200, 429]);
}

#[test]
fn the_chain_knows_the_account_of_the_answer() {
    let top =
        "limits: { per-account: { key: account, rate: 1/h, burst: 1 } }\naccount: { from: auth:X-User }";
    let site = Site::start("", &format!("server: {{ limits: per-account }}\n{top}"));
    site.ask("joe").expect(200);
    site.ask("joe").expect(429);
    site.ask("ann").expect(200);
    // The name that the client writes is nobody's account.
    site.gateway.ask(&get("/open/").header("X-User", "ann")).expect(200);
}

#[test]
fn preflights_are_answered_without_a_question_and_bodies_read_after_it() {
    let site = Site::start("timeout: 2s\n    cors: { origins: https://a.test }", "");
    let preflight = Ask::new("OPTIONS", "/app/").header("Origin", "https://a.test");
    site.gateway.ask(&preflight.header("Access-Control-Request-Method", "GET")).expect(204);
    assert_eq!(site.service.count(), 0);
    // The client that waits for a 100 Continue sends no body that the service refuses.
    let mut client = site.gateway.client();
    client.send(
        "POST /app/ HTTP/1.1\r\nHost: a\r\nCookie: who=deny\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    );
    let refused = client.response().expect(401);
    assert!(refused.interim.is_empty(), "no 100 before the answer");
    assert_eq!(site.app.count(), 0);
}

#[test]
fn a_stream_that_is_reset_leaves_the_service() {
    let gate = Gate::default();
    let site = Site::with_service(gated(&gate), "timeout: 20s", "");
    let mut stream = H2::open(site.gateway.addr());
    stream.ask(1, &h2_raw::request("GET", "/app/", &[("cookie", "who=joe")]));
    site.service.wait_for(1);
    stream.send(h2_raw::RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    assert_eq!(site.gateway.wait_log(1)[0]["status"], 499);
    gate.open();
    assert_eq!(site.app.count(), 0);
}

/// The verdicts of real Caddy with the same service, for 200 requests.
#[test]
fn caddy_decides_alike() {
    let site = Site::start("", "");
    let caddy = Caddy::start(&format!(
        ":@port@ {{\n\tforward_auth {} {{\n\t\turi /verify?by=caddy\n\t\tcopy_headers X-User X-Groups\n\t}}\n\t\
         reverse_proxy {}\n}}\n",
        site.service.addr(),
        site.app.addr()
    ));
    let words = ["joe", "ann", "anon", "deny", "forbid", "login", "renewed", "bob"];
    let mut dice = Dice(7);
    for round in 0..200 {
        let word = words[dice.below(words.len())];
        let ask = ask_as(word);
        let ask = if dice.below(2) == 0 { ask.header("X-User", "forged") } else { ask };
        let verdict = |addr| {
            let response = Client::connect(addr).ask(&ask);
            let name = site.app.requests().last().and_then(|seen| seen.header("x-user"));
            // Caddy before 2.8 sends the placeholder itself where the answer lacks the field.
            let name = name.filter(|name| response.status == 200 && !name.starts_with('{'));
            let fields = ["location", "www-authenticate"].map(|name| response.header(name));
            (response.status, name, fields)
        };
        let (ours, theirs) = (verdict(site.gateway.addr()), verdict(caddy.addr()));
        assert_eq!(ours, theirs, "{round}: {word}");
    }
}
