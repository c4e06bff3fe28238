//! `/auth` behind a real nginx and a real Caddy, with the configurations that the page shows: they decide as the
//! gateway itself does.

use std::thread;
use std::time::Instant;

use crate::caddy::Caddy;
use crate::nginx::Nginx;
use crate::*;

/// The one fenced block of docs/service-auth.md that begins with `mark`.
fn block(mark: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/service-auth.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let mut found = page.split("```").filter_map(|part| part.split_once('\n').map(|(_, text)| text));
    let block = found.find(|text| text.starts_with(mark)).unwrap_or_else(|| panic!("no block {mark}"));
    assert!(found.all(|text| !text.starts_with(mark)), "{mark} stands twice");
    block.to_owned()
}

fn replace_once(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from} in\n{text}");
    text.replace(from, to)
}

/// The text with the addresses of a gateway and of an application.
fn with_addresses(text: &str, gateway: &Gateway, app: &Upstream) -> String {
    let text = replace_once(text, "127.0.0.1:9902", &service(gateway).to_string());
    replace_once(&text, "127.0.0.1:8000", &app.addr().to_string())
}

fn nginx(gateway: &Gateway, app: &Upstream) -> Nginx {
    let file = with_addresses(&block("# nginx.conf\n"), gateway, app);
    let (_, http) = file.split_once("\nhttp {\n").expect("a block http");
    let http = http.trim_end().strip_suffix('}').expect("the end of http");
    Nginx::start(&replace_once(http, "listen 80;", "listen @0@;"), 1)
}

fn caddy(gateway: &Gateway, app: &Upstream) -> Caddy {
    let file = with_addresses(&block("# Caddyfile\n"), gateway, app);
    Caddy::start(&replace_once(&file, "\n:80 {", "\n:@port@ {"))
}

/// A gateway for requests and one for each proxy, with the same file; and what asks them.
struct Trio {
    gateways: [Gateway; 3],
    nginx: Nginx,
    caddy: Caddy,
    /// Behind nginx, and behind Caddy.
    apps: [Upstream; 2],
}

impl Trio {
    fn start(lines: &str) -> Trio {
        let file = format!(
            "service: {{ listen: 127.0.0.1:0 }}\nserver: {{ trusted_proxies: 127.0.0.1 }}\n{lines}\n"
        );
        let gateways = [(); 3].map(|()| Gateway::start(&file));
        let apps = [Upstream::named("app"), Upstream::named("app")];
        let (nginx, caddy) = (nginx(&gateways[1], &apps[0]), caddy(&gateways[2], &apps[1]));
        Trio { gateways, nginx, caddy, apps }
    }

    /// The gateway itself, nginx and Caddy.
    fn addrs(&self) -> [SocketAddr; 3] {
        [self.gateways[0].addr(), self.nginx.addr(0), self.caddy.addr()]
    }
}

/// Rates so slow that the time between the runs of a trace changes no decision.
const TRACE: &str = "
account: { from: header:X-Account }
bans: { after: 12/1h, for: 1h }
limits:
  per-ip: { key: ip, rate: 25/1h, burst: 25 }
  login: { key: ip, algorithm: sliding_log, rate: 4/1h, methods: POST }
  account: { key: account, rate: 12/1h, burst: 12, missing_key: { reject: 401 } }
  session: { key: 'cookie:session', algorithm: fixed_window, rate: 6/1h, align: first }
  query: { key: [ip, 'query:page'], rate: 2/1h, burst: 2 }
  host: { key: host, rate: 40/1h, burst: 40 }
locations:
  - { path: /, respond: {}, limits: [per-ip, host] }
  - { path: = /login, respond: {}, limits: [per-ip, login] }
  - { path: /api/, respond: {}, limits: [account] }
  - { path: /cart/, methods: [GET, DELETE], respond: {}, limits: [per-ip, session] }
  - { path: /list, respond: {}, limits: [query] }
  - { path: /office/, respond: {}, access: { allow: 10.0.0.0/8 } }
";

/// A small generator with a fixed seed: the same requests in every run.
struct Dice(u64);

impl Dice {
    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        choices[(self.0 >> 33) as usize % choices.len()]
    }
}

/// One request of a trace, and the address of its client.
fn roll(dice: &mut Dice) -> (&'static str, Ask) {
    let paths = [
        "/",
        "/a?b=c",
        "/login",
        "/api/x",
        "/%61pi/y",
        "/cart/1",
        "/list?page=1",
        "/list?page=2",
        "/office/z",
        "/x/../login",
    ];
    let ask = Ask::new(dice.pick(&["GET", "GET", "POST", "DELETE", "PUT"]), dice.pick(&paths));
    let ask = ask.host(dice.pick(&["shop.test", "SHOP.test:80", "other.test"]));
    let ask = match dice.pick(&["", "ann", "bob"]) {
        "" => ask,
        account => ask.header("X-Account", account),
    };
    let ask = match dice.pick(&["", "s1", "s2"]) {
        "" => ask,
        session => ask.header("Cookie", format!("a=b; session={session}")),
    };
    // What a client would send to be taken for another one.
    let ask = match dice.pick(&["", "", "spoof"]) {
        "" => ask,
        _ => ask
            .header("X-Forwarded-For", "203.0.113.77")
            .header("X-Forwarded-Uri", "/free")
            .header("X-Forwarded-Method", "GET")
            .header("X-Forwarded-Host", "free.test")
            .header("X-Forwarded-Proto", "https")
            .header("X-Original-URI", "/free"),
    };
    (dice.pick(&["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"]), ask)
}

fn retry_after(response: &Response) -> Option<u64> {
    response.header("retry-after").and_then(|text| text.parse().ok())
}

/// Within a second of rounding, and the time that the machine lost between the runs.
fn assert_same_retry(name: &str, place: usize, of: Option<u64>, than: Option<u64>) {
    match (of, than) {
        (Some(of), Some(than)) => {
            assert!(of.abs_diff(than) <= 20, "{name}, request {place}: {of}, not {than}")
        }
        _ => assert_eq!(of, than, "{name}, request {place}"),
    }
}

#[test]
fn the_proxies_decide_as_the_gateway_does() {
    let trio = Trio::start(TRACE);
    let [direct, nginx, caddy] = trio.addrs();
    let mut dice = Dice(17);
    let (mut seen, mut passed) = (Vec::new(), 0);
    for place in 0..260 {
        let (ip, ask) = roll(&mut dice);
        let [of_gateway, of_nginx, of_caddy] =
            [direct, nginx, caddy].map(|addr| Client::connect_from(ip, addr).ask(&ask));
        let status = of_gateway.status;
        let context = format!("request {place} of {ip}: {:?}", String::from_utf8_lossy(&ask.head()));
        assert_eq!(of_caddy.status, status, "caddy, {context}");
        let for_nginx = if matches!(status, 200 | 401 | 429) { status } else { 403 };
        assert_eq!(of_nginx.status, for_nginx, "nginx, {context}");
        assert_same_retry("caddy", place, retry_after(&of_caddy), retry_after(&of_gateway));
        assert_same_retry("nginx", place, retry_after(&of_nginx), retry_after(&of_gateway));
        if status == 200 {
            passed += 1;
            assert_eq!([of_nginx.text(), of_caddy.text()], ["app", "app"], "{context}");
            let fields = |response: &Response| {
                response.header("ratelimit").map(|text| text.split(";t=").next().map(str::to_owned))
            };
            assert_eq!(fields(&of_nginx), fields(&of_gateway), "{context}");
        } else {
            let challenges =
                [&of_gateway, &of_nginx, &of_caddy].map(|answer| answer.header("www-authenticate"));
            assert_eq!(challenges[0].is_some(), status == 401, "{context}");
            assert!(challenges.iter().all(|one| *one == challenges[0]), "{context}: {challenges:?}");
            let (json, expected) = (of_caddy.json(), of_gateway.json());
            for member in ["type", "title", "status", "detail", "limit", "violated-policies"] {
                assert_eq!(json[member], expected[member], "{context}");
            }
            assert_eq!(of_caddy.header("content-type"), of_gateway.header("content-type"));
        }
        seen.push((status, of_gateway.text().contains("banned")));
    }
    // The trace met every kind of decision.
    for (kind, least) in
        [((200, false), 60), ((401, false), 5), ((429, false), 20), ((429, true), 5), ((403, false), 5)]
    {
        let count = seen.iter().filter(|one| **one == kind).count();
        assert!(count >= least, "{count} of {kind:?}");
    }
    // Only what was admitted reached the applications.
    assert_eq!(trio.apps.each_ref().map(Upstream::count), [passed; 2]);
    for gateway in &trio.gateways[1..] {
        assert_eq!(gateway.metric("sluicegate_service_calls_total", &["protocol=\"auth\""]), 260.0);
    }
}

/// The application gets the request as the client sent it, with its body.
#[test]
fn bodies_pass_to_the_application_alone() {
    let trio = Trio::start("locations: [{ path: /, respond: {} }]");
    let [_, nginx, caddy] = trio.addrs();
    for (addr, app) in [nginx, caddy].into_iter().zip(&trio.apps) {
        let mut client = Client::connect(addr);
        client.ask(&post("/form?x", b"name=value")).expect(200);
        let chunked = Ask::new("PUT", "/chunked").header("Transfer-Encoding", "chunked");
        client.send([&chunked.bytes()[..], b"a\r\nname=value\r\n0\r\n\r\n"].concat());
        client.response().expect(200);
        let seen = app.requests();
        assert_eq!(app.targets(), ["/form?x", "/chunked"]);
        assert!(seen.iter().all(|request| request.body == b"name=value"), "{seen:?}");
    }
}

/// What a client may send through the proxies so that another request is judged than the one that passes.
#[test]
fn a_client_cannot_have_another_request_judged() {
    let trio = Trio::start(
        "limits: { each: { key: ip, rate: 3/1h, burst: 3 } }\nlocations:\n  \
         - { path: /, respond: {}, limits: each }\n  - { path: /free, respond: {} }\n  \
         - { host: free.test, path: /, respond: {} }\n  - { path: /, methods: PUT, respond: {} }",
    );
    let [_, nginx, caddy] = trio.addrs();
    let tries = [
        get("/a").header("X-Forwarded-Uri", "/free").header("X-Original-URI", "/free"),
        get("/a").header("X-Forwarded-Host", "free.test").header("Forwarded", "host=free.test"),
        get("/a").header("X-Forwarded-Method", "PUT").header("X-HTTP-Method-Override", "PUT"),
        get("/a").header("X-Forwarded-For", "203.0.113.8").header("X-Real-IP", "203.0.113.8"),
        get("/a").header("Connection", "X-Forwarded-For, X-Forwarded-Uri, X-Forwarded-Host, X-Auth-Status"),
        get("/a").header("X_Forwarded_Uri", "/free").header("X_Forwarded_Host", "free.test"),
        get("/free/../a"),
        get("/fre%65/%2e%2e/a"),
        get("//a"),
        get("http://free.test/a").host("shop.test").header("X-Forwarded-Host", "shop.test"),
        get("/a").header("Content-Type", "application/grpc").header("TE", "trailers"),
        get("/a").header("Sluicegate-Token", "any").header("Authorization", "Bearer any"),
        get("/a").header("Upgrade", "websocket").header("Connection", "Upgrade"),
    ];
    for (name, addr) in [("nginx", nginx), ("caddy", caddy)] {
        for (place, ask) in tries.iter().enumerate() {
            let ip = format!("127.0.0.{}", place + 10);
            let statuses: Vec<u16> =
                (0..4).map(|_| Client::connect_from(&ip, addr).ask(ask).status).collect();
            // The target in absolute form names the host itself, which is free.
            let expected = if place == 9 { [200; 4] } else { [200, 200, 200, 429] };
            assert_eq!(statuses, expected, "{name}: {ask:?}");
        }
    }
    // Clients of Caddy can ask for the answer of nginx, and get no more by it than another status.
    let for_nginx = get("/a").header("X-Auth-Status", "403");
    let statuses: Vec<u16> =
        (0..4).map(|_| Client::connect_from("127.0.0.99", caddy).ask(&for_nginx).status).collect();
    assert_eq!(statuses, [200, 200, 200, 403]);
    // The location for calls is no location for clients.
    Client::connect(nginx).ask(&get("/_sluicegate")).expect(404);
}

#[test]
fn requests_wait_behind_the_proxies() {
    let trio = Trio::start(
        "limits: { paced: { algorithm: leaky_bucket, key: ip, rate: 4/1s, burst: 1, queue: 10 } }\n\
         locations: [{ path: /, respond: {}, limits: paced }]",
    );
    for addr in trio.addrs() {
        let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(addr)).collect();
        let began = Instant::now();
        clients.iter_mut().for_each(|client| client.send(get("/").bytes()));
        let mut left: Vec<_> = thread::scope(|scope| {
            let read = |client: &mut Client| client.response().expect(200).at.duration_since(began);
            let waiting: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(move || read(client))).collect();
            waiting.into_iter().map(|one| one.join().expect("an answer")).collect()
        });
        left.sort_unstable();
        for (place, left) in left.iter().enumerate() {
            let planned = ms(250 * place as u64);
            assert!(*left + ms(20) >= planned, "{addr}: client {place} left after {left:?}");
        }
        assert!(left[3] < ms(5_000), "{left:?}");
    }
}

#[test]
fn clients_that_hang_up_give_their_places_up() {
    let trio = Trio::start(
        "limits: { paced: { algorithm: leaky_bucket, key: global, rate: 1/2s, burst: 1, queue: 50, max_wait: none } }\n\
         locations: [{ path: /, respond: {}, limits: paced }]",
    );
    let [_, nginx, caddy] = trio.addrs();
    for (gateway, addr) in trio.gateways[1..].iter().zip([nginx, caddy]) {
        Client::connect(addr).ask(&get("/")).expect(200);
        let mut leaving: Vec<Client> = (0..20).map(|_| Client::connect(addr)).collect();
        leaving.iter_mut().for_each(|client| client.send(get("/").bytes()));
        gateway.wait_queued(20);
        let mut last = Client::connect(addr);
        last.send(get("/").bytes());
        gateway.wait_queued(21);
        drop(leaving);
        // Behind 20 others it would have waited 42 seconds.
        last.response_within(ms(8_000)).expect("an answer").expect(200);
        eventually("an empty queue", || gateway.metric("sluicegate_queue_depth", &[]) == 0.0);
    }
    assert!(trio.apps.iter().all(|app| app.count() == 2), "{:?}", trio.apps.each_ref().map(Upstream::count));
}

/// A queue that is full, and a call that is wrong.
#[test]
fn nginx_answers_503_and_500_where_they_are_due() {
    let app = Upstream::ok();
    let gateway = Gateway::start(
        "service: { listen: 127.0.0.1:0 }\nserver: { trusted_proxies: 127.0.0.1, max_in_flight: 1 }\n\
         limits: { paced: { algorithm: leaky_bucket, key: ip, rate: 1/1h, burst: 1, queue: 5, max_wait: none } }\n\
         locations: [{ path: /, respond: {}, limits: paced }]\n",
    );
    let proxy = nginx(&gateway, &app);
    Client::connect(proxy.addr(0)).ask(&get("/")).expect(200);
    let mut waiting = Client::connect(proxy.addr(0));
    waiting.send(get("/").bytes());
    gateway.wait_queued(1);
    let refused = Client::connect(proxy.addr(0)).ask(&get("/")).expect(503);
    assert!(refused.headers.has("retry-after"), "{:?}", refused.headers);
    assert_eq!(refused.text(), "Too many requests wait\n");
    let untrusting =
        Gateway::start("service: { listen: 127.0.0.1:0 }\nlocations: [{ path: /, respond: {} }]\n");
    let proxy = nginx(&untrusting, &app);
    Client::connect(proxy.addr(0)).ask(&get("/")).expect(500);
    assert_eq!(app.count(), 1);
}

/// Traefik is no package of Debian, so this sends what its documentation and its source say: the client's headers, and
/// its own five in the place of the client's.
#[test]
fn traefik_gets_the_rejection_itself() {
    let file = replace_once(&block("listen: { address: 0.0.0.0:9902"), "0.0.0.0:9902", "127.0.0.1:0");
    let gateway = Gateway::start(&replace_once(&file, "172.16.0.0/12", "127.0.0.0/8"));
    let call = get("/auth")
        .host("sluicegate:9902")
        .header("Accept-Encoding", "gzip")
        .header("Authorization", "Bearer of-the-client")
        .header("Sluicegate-Token", "change-this-token")
        .header("User-Agent", "curl/8.5.0")
        .header("X-Forwarded-For", "203.0.113.7")
        .header("X-Forwarded-Host", "shop.example.com")
        .header("X-Forwarded-Method", "POST")
        .header("X-Forwarded-Proto", "https")
        .header("X-Forwarded-Uri", "/order?x=1");
    let mut traefik = Client::connect(service(&gateway));
    for _ in 0..20 {
        traefik.ask(&call).expect(200);
    }
    let refused = (0..20).map(|_| traefik.ask(&call)).find(|answer| answer.status != 200).expect("a refusal");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["limit"], "per-ip");
    assert!(refused.headers.has("retry-after"));
}

/// The file and the labels of Traefik say the same.
#[test]
fn the_two_configurations_of_traefik_agree() {
    let parse = |mark: &str| -> serde_yaml::Value { serde_yaml::from_str(&block(mark)).expect("YAML") };
    let (file, compose) = (parse("# traefik-dynamic.yaml\n"), parse("# compose.yaml\n"));
    let labels = &compose["services"]["app"]["labels"];
    let label = |name: &str| labels[format!("traefik.http.{name}")].as_str().expect("a label").to_owned();
    let http = &file["http"];
    assert_eq!(http["routers"]["shop"]["rule"].as_str(), Some(&label("routers.shop.rule")[..]));
    let chain = http["routers"]["shop"]["middlewares"].as_sequence().expect("a list");
    let chain: Vec<&str> = chain.iter().filter_map(serde_yaml::Value::as_str).collect();
    assert_eq!(chain.join(","), label("routers.shop.middlewares"));
    let middlewares = &http["middlewares"];
    let address = middlewares["sluicegate"]["forwardAuth"]["address"].as_str().expect("an address");
    assert_eq!(address, label("middlewares.sluicegate.forwardauth.address"));
    assert!(address.ends_with(":9902/auth"), "{address}");
    let header = |name: &str| {
        let own = &middlewares[name]["headers"]["customRequestHeaders"]["Sluicegate-Token"];
        let label = label(&format!("middlewares.{name}.headers.customrequestheaders.Sluicegate-Token"));
        (own.as_str().expect("a value").contains("SERVICE_TOKEN"), label.contains("SERVICE_TOKEN"))
    };
    assert_eq!(header("sluicegate-token"), (true, true));
    assert_eq!(header("sluicegate-token-removed"), (false, false));
}
