//! Every example, started unchanged, behaves as its header says.

mod charge;
mod service;

use std::sync::Arc;
use std::thread;

use crate::support::tls::{AnyCertificate, shake_hands};
use crate::support::volley::count;
use crate::support::*;

/// The gateway of an example, with more top-level lines for the test.
#[track_caller]
pub fn example(name: &str, more: &str) -> Gateway {
    let path = format!("{}/examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Gateway::start(&format!("{more}\n{}", moved(&text)))
}

/// An example with addresses and files that suit any machine and parallel runs.
pub fn moved(text: &str) -> String {
    // No Redis listens there, and no file of the user is written.
    let text = text.replace("${REDIS_URL:-redis://127.0.0.1:6379}", "redis://127.0.0.1:9");
    let text = text.replace("api_keys.csv", concat!(env!("CARGO_MANIFEST_DIR"), "/examples/api_keys.csv"));
    let text = text
        .replace("prices/models.yaml", concat!(env!("CARGO_MANIFEST_DIR"), "/examples/prices/models.yaml"));
    let text = text.replace("teams/*.yaml", concat!(env!("CARGO_MANIFEST_DIR"), "/examples/teams/*.yaml"));
    let text = text.replace("../tests/", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/"));
    // No issuer answers there.
    let text = text.replace("https://id.example.com", "https://127.0.0.1:9");
    let text = text.replace("https://partner.example.net", "https://127.0.0.1:9");
    // No authority answers there.
    let text = text.replace("https://acme-v02.api.letsencrypt.org", "https://127.0.0.1:9");
    // The network of Traefik's containers is that of the tests.
    let text = text.replace("172.16.0.0/12", "127.0.0.1");
    let addresses = ["\":8443\"", "\":8080\"", "127.0.0.1:9902", "0.0.0.0:9902", "127.0.0.1:6380"];
    addresses.iter().fold(text, |text, address| text.replace(address, "127.0.0.1:0"))
}

pub fn from_account(target: &str, account: &str) -> Ask {
    get(target).header("X-Account-Id", account)
}

fn from_client(target: &str, ip: &str) -> Ask {
    get(target).header("X-Forwarded-For", ip)
}

const TRUSTING: &str = "server: { trusted_proxies: 127.0.0.1 }";

#[test]
fn every_example_is_tried_here() {
    let source = concat!(include_str!("mod.rs"), include_str!("charge.rs"), include_str!("service.rs"));
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).expect("the examples");
    let files = folder.map(|file| file.expect("a readable folder").file_name());
    for file in files.filter_map(|file| file.to_str().map(str::to_owned)) {
        let Some(name) = file.strip_suffix(".yaml").filter(|name| !name.ends_with("_test")) else { continue };
        assert!(source.contains(&format!("example(\"{name}\"")), "{name} is not tried");
    }
}

#[test]
fn per_ip_limit() {
    let gateway = example("per_ip_limit", TRUSTING);
    let shots = volley(gateway.addr(), (0..30).map(|_| from_client("/", "203.0.113.1")));
    assert!((20..=24).contains(&count(&shots, 200)), "{} passed", count(&shots, 200));
    gateway.ask(&from_client("/", "203.0.113.2")).expect(200);
}

#[test]
fn teams() {
    let gateway = example("teams", "");
    let paid = |account: &str| {
        gateway.ask(&from_client("/payments/", "203.0.113.1").header("X-Account-Id", account)).status
    };
    assert_eq!([paid("a"), paid("a"), paid("a"), paid("b")], [200, 200, 429, 200]);
    gateway.ask(&from_client("/search/", "203.0.113.2")).expect(200);
    let log = gateway.wait_log(5);
    let owner = |path: &str| log.iter().find(|line| line["path"] == path).expect("a line")["owner"].clone();
    assert_eq!([owner("/payments/"), owner("/search/")], ["payments", "search"]);
}

#[test]
fn canary() {
    let gateway = example("canary", "");
    let mut client = gateway.client();
    let mut named = |ask: Ask| client.ask(&ask).expect(200).header("ratelimit-policy").is_some();
    assert!(named(get("/").header("x-env", "canary")) && named(get("/").header("Cookie", "a=b; beta=1")));
    assert!(!named(get("/")) && !named(get("/").header("X-Env", "production")));
    assert!(!named(get("/").header("X-Env", "canary").header("X-Env", "canary")));
    let lines = gateway.wait_log(5);
    let locations: Vec<_> = lines.iter().filter_map(|line| line["location"].as_str()).collect();
    assert_eq!(locations, ["canary-by-header", "canary-by-cookie", "/", "/", "/"]);
}

#[test]
fn two_windows() {
    let gateway = example("two_windows", "");
    let mut client = gateway.client();
    let passed = (0..130).filter(|_| client.ask(&get("/")).status == 200).count();
    assert_eq!(passed, 100);
    let rejected = client.ask(&get("/")).expect(429);
    assert!(rejected.retry_after_ms() <= 5_500, "{}", rejected.retry_after_ms());
    assert!(
        rejected.header("ratelimit-policy").expect("policies").contains("\"two-windows;300/60s\";q=300;w=60")
    );
    assert!(
        rejected.header("ratelimit").expect("numbers").contains("\"two-windows;300/60s\";r=200"),
        "refusals are counted nowhere"
    );
}

#[test]
fn per_account() {
    let gateway = example("per_account", "");
    let shots = volley(gateway.addr(), (0..60).map(|_| from_account("/", "acme")));
    assert!((50..=56).contains(&count(&shots, 200)), "{} passed", count(&shots, 200));
    gateway.ask(&from_account("/", "other")).expect(200);
    gateway.get("/").expect(403);
}

#[test]
fn api_keys() {
    let gateway = example("api_keys", "");
    let with = |key: &str| get("/").header("Authorization", format!("Bearer {key}"));
    let shots = volley(gateway.addr(), (0..20).map(|_| with("demo-key-of-bolt")));
    assert!((10..=12).contains(&count(&shots, 200)), "{} passed", count(&shots, 200));
    let echo = gateway.ask(&with("demo-key-of-acme")).expect(200).text();
    assert!(echo.contains("acme") && echo.contains("web shop") && !echo.contains("demo-key"), "{echo}");
    gateway.get("/").expect(401);
    gateway.get("/status").expect(200);
    (0..19).for_each(|_| drop(gateway.ask(&with("guessed")).expect(401)));
    gateway.ask(&with("demo-key-of-acme")).expect(429);
}

#[test]
fn oidc() {
    use base64::Engine;
    let gateway = example("oidc", "");
    assert_eq!(gateway.get("/").expect(401).json()["limit"], "per-account");
    let part = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let claims = r#"{"iss":"https://127.0.0.1:9/realms/shop","aud":"api","sub":"ann","exp":9999999999}"#;
    let token = format!("{}.{}.AAAA", part(r#"{"alg":"RS256","kid":"1"}"#), part(claims));
    let unknown = gateway.ask(&get("/").header("Authorization", format!("Bearer {token}"))).expect(503);
    assert!(unknown.header("retry-after").is_some(), "{unknown:?}");
    assert!(gateway.admin_get("/readyz").expect(200).text().contains("degraded: issuer"));
}

#[test]
fn plans() {
    let gateway = example("plans", "");
    let fields = |account: &str| {
        let answer = gateway.ask(&from_account("/", account)).expect(200);
        let field = |name: &str| answer.header(name).unwrap_or_default();
        (field("ratelimit"), field("ratelimit-policy"))
    };
    let (left, policy) = fields("small");
    assert!(
        left.starts_with("\"plan\";r=999;t=") && policy.starts_with("\"plan\";q=1000;w="),
        "{left} {policy}"
    );
    assert!(fields("small").0.starts_with("\"plan\";r=998;"));
    let (left, policy) = fields("acme");
    assert!(
        left.starts_with("\"plan\";r=4999;") && policy.starts_with("\"plan\";q=5000;"),
        "{left} {policy}"
    );
    assert!(!fields("monitoring").0.contains("plan"));
}

#[test]
fn account_tiers() {
    let gateway = example("account_tiers", "");
    let passed = |account: &str| {
        let shots = volley(gateway.addr(), (0..130).map(|_| from_account("/", account)));
        count(&shots, 200)
    };
    let (free, gold) = (passed("someone"), passed("acme"));
    assert!((10..=13).contains(&free), "{free} of a free account passed");
    assert!((100..=125).contains(&gold), "{gold} of a gold account passed");
    assert_eq!(passed("monitoring"), 130);
}

#[test]
fn shares() {
    let gateway = example("shares", "");
    let shots = |account: &str| volley(gateway.addr(), (0..100).map(|_| from_account("/", account)));
    let (others, gold) = (count(&shots("nobody"), 200), count(&shots("acme"), 200));
    assert!((60..=75).contains(&others), "{others} of the others passed");
    assert!((25..=75).contains(&gold), "{gold} of gold passed");
    let decisions = |class: &str, verdict: &str| {
        gateway.metric("sluicegate_decisions_total", &[&format!("class=\"{class}\",verdict=\"{verdict}\"")])
    };
    assert_eq!(decisions("gold", "admit"), gold as f64);
    assert_eq!(decisions("default", "reject"), (100 - others) as f64);
    assert_eq!(decisions("silver", "admit"), 0.0);
}

#[test]
fn login_guard() {
    let gateway = example("login_guard", TRUSTING);
    let login = || post("/login", b"user=a").header("X-Forwarded-For", "203.0.113.1");
    let statuses: Vec<u16> = (0..15).map(|_| gateway.ask(&login()).status).collect();
    assert_eq!(statuses, [vec![200; 5], vec![429; 10]].concat());
    let banned = gateway.ask(&from_client("/", "203.0.113.1")).expect(429);
    let left: u64 = banned.header("retry-after").expect("Retry-After").parse().expect("seconds");
    assert!((880..=900).contains(&left), "banned for {left} s");
    gateway.ask(&from_client("/login", "203.0.113.2")).expect(200);
    // Wrong passwords count too, wherever they are tried.
    let upstream = Upstream::new(|seen| match seen.header("x-password").as_deref() {
        Some("right") => Reply::text("welcome"),
        _ => Reply::with(401, &[], "no"),
    });
    let text = std::fs::read_to_string("examples/login_guard.yaml").expect("the example");
    let text = text.replace("upstream: demo", &format!("upstream: \"{}\"", upstream.url()));
    let gateway = Gateway::start(&format!("{TRUSTING}\n{}", moved(&text)));
    let login = |password: &str| from_client("/api/session", "203.0.113.3").header("X-Password", password);
    (0..10).for_each(|_| drop(gateway.ask(&login("wrong")).expect(401)));
    gateway.ask(&login("right")).expect(429);
}

#[test]
fn forward_auth() {
    let gateway = example("forward_auth", "");
    // Nothing listens at the address of its service.
    gateway.get("/app/").expect(503);
    gateway.get("/").expect(200);
}

#[test]
fn cors() {
    let gateway = example("cors", "");
    let asked = || get("/").header("Origin", "http://localhost:3000");
    let shots = volley(gateway.addr(), (0..30).map(|_| asked()));
    assert!((20..=26).contains(&count(&shots, 200)), "{} passed", count(&shots, 200));
    for shot in &shots {
        let allowed = shot.response.header("access-control-allow-origin");
        assert_eq!(allowed.as_deref(), Some("http://localhost:3000"));
    }
    let preflight = Ask::new("OPTIONS", "/").header("Origin", "https://app.example.com");
    let answer = gateway.ask(&preflight.header("Access-Control-Request-Method", "DELETE")).expect(204);
    assert_eq!(answer.header("access-control-allow-methods").as_deref(), Some("DELETE"));
    assert_eq!(answer.header("access-control-max-age").as_deref(), Some("3600"));
}

/// The polite account's one message does not wait for the hundreds that another account sent before.
#[test]
fn sms_smoothing_queue() {
    let gateway = example("sms_smoothing_queue", "");
    let flood = (0..400).map(|_| (ms(0), from_account("/sms/", "flooder")));
    let plan = flood.chain([(ms(100), from_account("/sms/", "polite"))]);
    let shots = volley_at(gateway.addr(), plan);
    assert_eq!(count(&shots, 200), 401);
    let last = shots[..400].iter().map(|shot| shot.answered).max().expect("a flood");
    assert!(last >= ms(990), "400 in {last:?}: too fast for the provider");
    let polite = &shots[400];
    assert!(polite.answered < last - ms(200), "polite {:?}, the flood {last:?}", polite.answered);
}

/// `demo` responds after it has the whole body, so a held body holds a slot.
#[test]
fn concurrency_cap() {
    let gateway = example("concurrency_cap", "");
    let mut held: Vec<Client> = (0..20).map(|_| gateway.client()).collect();
    for client in &mut held {
        client.send(post("/reports/", b"x").head());
    }
    eventually("20 in flight", || gateway.metric("sluicegate_requests_in_flight", &[]) == 20.0);
    gateway.get("/reports/").expect(503);
    for client in &mut held {
        client.send("x");
        client.response().expect(200);
    }
    gateway.get("/reports/").expect(200);
}

#[test]
fn dry_run() {
    let gateway = example("dry_run", "");
    let shots = volley(gateway.addr(), (0..20).map(|_| get("/")));
    assert_eq!(count(&shots, 200), 20);
    assert!(gateway.metric("sluicegate_decisions_total", &["dry_run_reject"]) >= 5.0);
}

#[test]
fn flash_sale() {
    let gateway = example("flash_sale", "");
    let order = |account: &str| gateway.ask(&from_account("/order", account)).expect(200);
    assert!(order("alice").text().contains("demo"));
    let second = order("alice");
    assert_eq!(second.text(), r#"{"sold_out":true}"#);
    assert_eq!(second.header("sluicegate-degraded").as_deref(), Some("\"one-each\""));
    assert!(order("bob").text().contains("demo"));
    let nobody = gateway.get("/order").expect(200);
    assert_eq!(nobody.text(), r#"{"sold_out":true}"#);
}

#[test]
fn ticket_sale() {
    let gateway = example("ticket_sale", "");
    let ask = |client: usize| gateway.ask(&from_client("/", &format!("203.0.113.{client}")));
    let refused: Vec<Response> =
        (0..250).map(ask).filter(|response| response.status == 429).take(20).collect();
    let told: Vec<u64> = refused.iter().map(Response::retry_after_ms).collect();
    // Requests of a slow machine come after turns that have passed.
    let is_row = |told: &[u64]| told.windows(2).any(|pair| pair[1] > pair[0]);
    assert!(told.len() < 2 || is_row(&told), "{told:?}");
}

#[test]
fn openresty_counter() {
    let gateway = example("openresty_counter", "");
    let mut client = gateway.client();
    let statuses: Vec<u16> = (0..12).map(|_| client.ask(&get("/")).status).collect();
    assert_eq!(statuses, [vec![200; 10], vec![429; 2]].concat());
    let body = client.ask(&get("/")).expect(429).text();
    assert!(body.starts_with(r#"{"resp_code":-1,"resp_msg":"Too many requests, try again in "#), "{body}");
}

#[test]
fn allow_listed_office() {
    let gateway = example("allow_listed_office", TRUSTING);
    let office = volley(gateway.addr(), (0..40).map(|_| from_client("/", "192.0.2.7")));
    assert_eq!(count(&office, 200), 40);
    let others = volley(gateway.addr(), (0..40).map(|_| from_client("/", "203.0.113.1")));
    assert!(count(&others, 429) >= 20, "{} rejected", count(&others, 429));
    gateway.ask(&from_client("/", "198.51.100.9")).expect(403);
    gateway.ask(&from_client("/backoffice/", "203.0.113.2")).expect(403);
    gateway.ask(&from_client("/backoffice/", "192.0.2.7")).expect(200);
    gateway.ask(&from_client("/backoffice/", "2001:db8:aa::1")).expect(200);
}

#[test]
fn weighted_api() {
    let gateway = example("weighted_api", "");
    let call = |cost: &str| gateway.ask(&from_account("/", "acme").header("X-Cost", cost));
    call("60").expect(200);
    let rejected = call("60").expect(429);
    assert!(rejected.retry_after_ms() <= 1_200, "{}", rejected.retry_after_ms());
    call("30").expect(200);
    call("101").expect(413);
}

#[test]
fn mcp_tools() {
    let gateway = example("mcp_tools", "");
    let call = |name: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}"}}}}"#)
    };
    let ask = |body: &str| gateway.ask(&post("/mcp", body.as_bytes()));
    let passed = (0..15).filter(|_| ask(&call("search")).status == 200).count();
    assert!((10..=11).contains(&passed), "{passed} passed");
    let rejected = ask(&call("search")).expect(429);
    assert_eq!(
        rejected.header("ratelimit").as_deref().map(|field| field.contains("\"tool\";r=0")),
        Some(true)
    );
    assert_eq!((&rejected.json()["id"], &rejected.json()["error"]["code"]), (&1.into(), &(-32023).into()));
    ask(&call("read")).expect(200);
    let named = |name: &str| gateway.ask(&post("/mcp", call("read").as_bytes()).header("Mcp-Name", name));
    named("read").expect(200);
    named("=?base64?cmVhZA==?=").expect(200);
    assert_eq!(named("search").expect(400).json()["error"]["code"], -32020);
    for message in [
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"c"}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
        r#"{"jsonrpc":"2.0","id":3,"result":{"roots":[]}}"#,
    ] {
        ask(message).expect(200);
    }
    gateway.get("/mcp").expect(200);
    // A call that hides its name, for a server that reads it all the same.
    for _ in 0..24 {
        gateway.ask(&post("/mcp", call("search").as_bytes()).header("Content-Encoding", "none")).expect(415);
        ask(&format!("[{}]", call("search"))).expect(403);
        ask(&format!("{}//", call("search"))).expect(403);
    }
    // None of these was counted.
    let passed = (0..60).filter(|n| ask(&call(&format!("tool-{n}"))).status == 200).count();
    assert!((41..=45).contains(&passed), "{passed} passed");
}

#[test]
fn behind_a_proxy() {
    let gateway = example("behind_a_proxy", "");
    let shots = volley(gateway.addr(), (0..30).map(|_| from_client("/", "203.0.113.1")));
    assert!(count(&shots, 429) >= 6, "{} rejected", count(&shots, 429));
    gateway.ask(&from_client("/", "203.0.113.2, 10.1.2.3")).expect(200);
}

/// Without its Redis it serves all the same.
#[test]
fn cluster_redis() {
    let gateway = example("cluster-redis", "");
    let shots = volley(gateway.addr(), (0..20).map(|_| from_account("/", "acme")));
    assert_eq!(count(&shots, 200), 20);
    gateway.ask(&from_client("/", "203.0.113.1")).expect(200);
    assert!(gateway.admin_get("/readyz").expect(200).text().contains("degraded: redis"), "no Redis is there");
}

/// Nothing listens at the example's addresses, and the gateway says so.
#[test]
fn load_balancing() {
    let gateway = example("load_balancing", "");
    thread::sleep(ms(10));
    assert!([502, 503].contains(&gateway.get("/").status));
}

/// Four requests are at each server, the others wait.
#[test]
fn job_queue() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/job_queue.yaml");
    let text = std::fs::read_to_string(path).expect("an example");
    let gate = Gate::default();
    let servers = [Upstream::held_by(&gate), Upstream::held_by(&gate)];
    let places = [9001, 9002].into_iter().zip(&servers);
    let text = places.fold(text, |text, (port, server)| {
        text.replace(&format!("127.0.0.1:{port}"), &server.addr().to_string())
    });
    let gateway = Gateway::start(&moved(&text));
    let mut clients: Vec<Client> = (0..20).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get("/").bytes()));
    eventually("12 wait", || gateway.metric("sluicegate_upstream_queue_depth", &[]) == 12.0);
    assert!(servers.iter().all(|server| server.wait_for(4).len() == 4));
    gate.open();
    clients.iter_mut().for_each(|client| drop(client.response().expect(200)));
    // The unchanged file, without any server.
    let alone = example("job_queue", "");
    alone.get("/").expect(502);
}

/// Without a directory the site is served all the same, under a self-signed certificate.
#[test]
fn acme() {
    let gateway = example("acme", "");
    let [plain, secure] = gateway.addrs()[..] else { panic!("two listeners: {:?}", gateway.addrs()) };
    let config =
        rustls::ClientConfig::builder_with_provider(Authority::new().client(None).crypto_provider().clone())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate))
            .with_no_client_auth();
    let config = Arc::new(config);
    let visit = || {
        let stream = shake_hands(secure, &config, "example.com").expect("a handshake");
        Client::over_tls(stream).ask(&get("/").host("example.com")).status
    };
    assert_eq!(visit(), 200);
    let redirect = Client::connect(plain).ask(&get("/a").host("example.com")).expect(308);
    assert_eq!(redirect.header("location").as_deref(), Some("https://example.com/a"));
    assert!((0..60).filter(|_| visit() == 429).count() > 0);
}

#[test]
fn tls_edge() {
    let gateway = example("tls_edge", "");
    let url = |path: &str| format!("https://a.test:{}{path}", gateway.addr().port());
    let curl = |more: &[&str]| {
        let to = format!("::{}", gateway.addr());
        let common = ["-sSk", "--noproxy", "*", "--max-time", "10", "--connect-to", &to];
        let output = std::process::Command::new("curl").args(common).args(more).output().expect("curl runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let version =
        |version: &str| curl(&["-o", "/dev/null", "-w", "%{http_code} %{http_version}", version, &url("/")]);
    assert_eq!([version("--http2"), version("--http1.1")], ["200 2", "200 1.1"]);
    assert_eq!(curl(&[&url("/healthz")]), "ok");
    // curl announces the address of its own end of the connection.
    let seen: serde_json::Value =
        serde_json::from_str(&curl(&["--haproxy-protocol", &url("/")])).expect("the echo's JSON");
    assert_eq!(seen["headers"]["x-forwarded-for"], "127.0.0.1");
    // Every listener of the example: nothing of the site in plain text.
    for addr in gateway.addrs() {
        assert_eq!(Client::connect(addr).ask(&get("/")).status, 400);
    }
}

#[test]
fn https_redirect() {
    let gateway = example("https_redirect", "");
    let insecure = |addr| Client::connect(addr).ask(&get("/x?y=1").host("a.test"));
    let plain: Vec<_> = gateway.addrs().into_iter().filter(|addr| insecure(*addr).status == 308).collect();
    let [plain] = plain[..] else { panic!("{plain:?}") };
    let away = insecure(plain);
    assert_eq!(away.header("location").as_deref(), Some("https://a.test/x?y=1"));
    assert_eq!(away.header("x-content-type-options").as_deref(), Some("nosniff"));
    assert!(!away.headers.has("strict-transport-security"));
    assert_eq!(Client::connect(plain).ask(&get("/healthz")).expect(200).text(), "ok");
    let secure = gateway.addrs().into_iter().find(|addr| *addr != plain).expect("a TLS listener");
    let output = std::process::Command::new("curl")
        .args(["-sSki", "--noproxy", "*", "--max-time", "10", "--connect-to", &format!("::{secure}")])
        .arg("https://a.test/x")
        .output()
        .expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).to_ascii_lowercase();
    for line in ["strict-transport-security: max-age=31536000", "x-content-type-options: nosniff"] {
        assert!(text.contains(line), "{text}");
    }
    assert!(text.contains("\"x-request-scheme\":\"https\"") && text.contains("\"visitors\""), "{text}");
}

/// One of the three servers is missing: clients see no error, and after a while it gets no more requests.
#[test]
fn health_and_retries() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/health_and_retries.yaml");
    let text = std::fs::read_to_string(path).expect("an example");
    let (one, two, gone) = (Upstream::ok(), Upstream::ok(), Refusing::new());
    let places = [(9001, one.addr()), (9002, gone.addr()), (9003, two.addr())];
    let text = places
        .iter()
        .fold(text, |text, (port, addr)| text.replace(&format!("127.0.0.1:{port}"), &addr.to_string()));
    let gateway = Gateway::start(&text);
    (0..30).for_each(|_| drop(gateway.get("/").expect(200)));
    let server = format!("server=\"{}\"", gone.addr());
    eventually("it is down", || gateway.metric("sluicegate_upstream_up", &[&server]) == 0.0);
    assert_eq!(gateway.metric("sluicegate_upstream_up", &[]), 2.0);
    // The unchanged file, without any server.
    let alone = example("health_and_retries", "");
    assert!([502, 503].contains(&alone.get("/").status));
}

/// A refused request stops the others, which wait until the provider takes requests again.
#[test]
fn provider_pushback() {
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let provider = Upstream::new(move |_| match is_first.swap(false, std::sync::atomic::Ordering::Relaxed) {
        true => Reply::with(429, &[("Retry-After", "1")], "no"),
        false => Reply::text("sent"),
    });
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/provider_pushback.yaml");
    let text = std::fs::read_to_string(path).expect("an example");
    let gateway = Gateway::start(&text.replace("127.0.0.1:9000", &provider.addr().to_string()));
    gateway.get("/").expect(429);
    let shots = volley(gateway.addr(), (0..5).map(|_| get("/")));
    assert_eq!(count(&shots, 200), 5);
    assert!(shots.iter().all(|shot| shot.answered >= ms(500)), "they waited");
    // The unchanged file, without any provider.
    example("provider_pushback", "").get("/").expect(502);
}

#[test]
fn websocket_bandwidth() {
    let gateway = example("websocket_bandwidth", "");
    let mut chats: Vec<Client> = (0..5).map(|_| gateway.client()).collect();
    chats.iter_mut().for_each(|client| client.send(post("/chat/", b"x").head()));
    eventually("five", || gateway.metric("sluicegate_requests_in_flight", &[]) == 5.0);
    gateway.get("/chat/").expect(503);
    gateway.get("/downloads/").expect(200);
    gateway.get("/").expect(200);
}
