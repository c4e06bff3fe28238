//! The values of valid files, section by section.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluicegate_config as config;
use sluicegate_model::*;

pub fn read(name: &str) -> Config {
    let path = format!("tests/config/valid/{name}.yaml");
    config::load(Path::new(&path)).unwrap_or_else(|report| panic!("{report}")).config
}

pub fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect(text)
}

#[test]
fn the_smallest_file_has_every_default() {
    let config = read("smallest");
    assert_eq!(config.listen, [ListenConfig::with_address(ListenAddress::Port(8080))]);
    let server = &config.server;
    assert!(server.workers >= 1 && server.trusted_proxies.is_empty() && server.limits.is_empty());
    assert_eq!((server.ipv6_prefix, server.ipv4_prefix), (64, 32));
    assert_eq!((server.max_connections, server.connections_per_ip), (65_536, None));
    assert_eq!((server.keepalive_requests, server.keepalive_age), (100_000, None));
    assert_eq!((server.max_waiting, server.max_in_flight, server.max_body), (50_000, None, None));
    assert_eq!(server.body_memory, 256 << 20);
    assert_eq!((server.max_header_size, server.max_headers), (65_536, 100));
    let times = &server.timeouts;
    assert_eq!([times.header, times.idle, times.body], [seconds(10), seconds(75), seconds(60)]);
    assert_eq!([times.write, times.handshake, times.shutdown], [seconds(60), seconds(5), seconds(30)]);
    assert_eq!(
        (server.client_ip.clone(), server.request_id.as_str()),
        (ClientIpConfig::XForwardedFor, "x-request-id")
    );
    assert_eq!(server.underscore_headers, UnderscoreHeaders::Drop);
    assert!(matches!(&config.upstreams[..], [UpstreamConfig { kind: UpstreamKind::Demo, .. }]));
    assert!(config.limits.is_empty() && config.account.from.is_none());
    assert!(config.ip_sets.is_empty() && *config.access == AccessConfig::default() && config.bans.is_none());
    let reject = &config.on_reject;
    assert!(
        reject.status.is_none() && matches!(reject.body, RejectBody::Problem) && reject.headers.is_empty()
    );
    assert_eq!(
        reject.ratelimit_headers,
        RateLimitHeaders { draft: Some(RateLimitDraft::Draft11), legacy: false }
    );
    assert_eq!((reject.retry_jitter, config.state.max_keys), (0, 1_000_000));
    assert!(config.state.snapshot.is_none() && config.state.heavy_hitters == Some(1024));
    let admin = config.admin.expect("admin");
    assert!(admin.listen == address("127.0.0.1:9901") && admin.tokens.is_empty() && admin.hosts.is_empty());
    assert_eq!((config.log.level, config.log.format), (LogLevel::Info, LogFormat::Auto));
    assert_eq!(config.access_log.format, LogFormat::Auto);
    assert_eq!((config.access_log.output, config.access_log.sample), (AccessLogOutput::Stdout, 100.0));
    assert!(
        config.access_log.headers.is_empty()
            && config.access_log.fields.is_empty()
            && config.access_log.hash_keys
    );
    assert!(config.access_log.hash_secret.is_none());
    let location = &config.locations[0];
    assert!(matches!(&location.path, PathRule::Prefix { path, no_regex: false } if path == "/"));
    assert!(location.hosts.is_empty() && location.methods.is_empty() && location.limits.is_empty());
    assert!(location.strip.is_none() && location.timeout.is_none());
    assert_eq!(location.host_header, HostHeader::Client);
}

#[test]
fn server_fields() {
    let config = read("all_server_fields");
    let tcp = |text: &str| ListenAddress::Address(address(text));
    let plain = ListenConfig::with_address;
    let proxied = |address, wanted| ListenConfig { proxy_protocol: Some(wanted), ..plain(address) };
    let expected = [
        plain(ListenAddress::Port(8080)),
        plain(ListenAddress::Port(8443)),
        plain(tcp("127.0.0.1:9000")),
        plain(tcp("[::1]:9001")),
        plain(tcp("127.0.0.1:9002")),
        plain(ListenAddress::Unix(PathBuf::from("/run/sluicegate.sock"))),
        ListenConfig { http2: false, ..plain(tcp("127.0.0.1:9003")) },
        plain(ListenAddress::Systemd("web".to_owned())),
        proxied(tcp("127.0.0.1:9004"), ProxyProtocolMode::Required),
        proxied(ListenAddress::Unix(PathBuf::from("/run/other.sock")), ProxyProtocolMode::Optional),
    ];
    assert_eq!(config.listen, expected);
    let server = &config.server;
    let proxies: Vec<String> = server.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(proxies, ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"]);
    assert!(matches!(&server.client_ip, ClientIpConfig::Header(name) if name == "x-real-ip"));
    assert_eq!((server.workers, server.ipv6_prefix, server.ipv4_prefix), (3, 56, 24));
    let names: Vec<&str> = server.limits.iter().map(|index| config.limits[*index].name.as_str()).collect();
    assert_eq!(names, ["per-ip", "server#2"]);
    assert_eq!((server.max_connections, server.connections_per_ip), (1000, Some(20)));
    assert_eq!((server.keepalive_requests, server.keepalive_age), (500, Some(seconds(3600))));
    assert_eq!((server.max_waiting, server.max_in_flight, server.max_body), (0, Some(400), Some(10_000_000)));
    assert_eq!(server.body_memory, 1 << 30);
    assert_eq!((server.max_header_size, server.max_headers), (16_384, 50));
    let times = &server.timeouts;
    assert_eq!([times.header, times.idle, times.body], [seconds(1), seconds(2), seconds(3)]);
    assert_eq!([times.write, times.handshake, times.shutdown], [seconds(4), seconds(5), seconds(0)]);
    assert_eq!(server.request_id, "x-trace-id");
    assert_eq!(server.underscore_headers, UnderscoreHeaders::Pass);
}

fn servers(upstream: &UpstreamConfig) -> Vec<String> {
    match &upstream.kind {
        UpstreamKind::Demo => vec!["demo".to_owned()],
        UpstreamKind::Servers(servers) => {
            servers.iter().map(|one| format!("{} {} {}", one.address, one.weight, one.backup)).collect()
        }
    }
}

#[test]
fn upstream_fields() {
    let config = read("all_upstream_fields");
    let names: Vec<&str> = config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    assert_eq!(names[..3], ["one", "two", "full"]);
    assert_eq!(names[8..11], ["careful", "defaults", "sockets"]);
    assert_eq!(names[11..], ["http://10.9.9.9:81", "demo", "unix:/run/other.sock"]);
    assert_eq!(servers(&config.upstreams[10]), ["unix:/run/app.sock 1 false", "unix:/run/spare.sock 1 true"]);
    assert_eq!(servers(&config.upstreams[13]), ["unix:/run/other.sock 1 false"]);
    assert_eq!(servers(&config.upstreams[0]), ["127.0.0.1:9000 1 false"]);
    let two = ["a.internal:1 1 false", "b.internal:80 1 false", "[::1]:3 1 false", "[::1]:4 1 false"];
    assert_eq!(servers(&config.upstreams[1]), two);
    let full = &config.upstreams[2];
    assert_eq!(servers(full), ["10.0.0.1:9000 1 false", "10.0.0.2:9000 2 true"]);
    assert!(matches!(&full.balance, BalancePolicy::HashHeader(name) if name == "x-user"));
    assert_eq!((full.keepalive, full.max_connections, full.dns_refresh), (16, Some(100), seconds(60)));
    let waits = |upstream: &UpstreamConfig| upstream.queue.as_ref().map(|queue| (queue.size, queue.max_wait));
    assert_eq!(waits(full), Some((7, Duration::from_millis(500))));
    assert_eq!(
        (waits(&config.upstreams[9]), waits(&config.upstreams[0])),
        (Some((1_000, seconds(10))), None)
    );
    let times = &full.timeouts;
    assert_eq!(
        [times.connect, times.response, times.body, times.idle],
        [seconds(1), seconds(2), seconds(3), seconds(4)]
    );
    let kinds: Vec<&BalancePolicy> =
        config.upstreams[3..8].iter().map(|upstream| &upstream.balance).collect();
    let expected = [
        BalancePolicy::RoundRobin,
        BalancePolicy::LeastConn,
        BalancePolicy::Random,
        BalancePolicy::HashIp,
        BalancePolicy::HashUri,
    ];
    assert_eq!(kinds, expected.iter().collect::<Vec<_>>());
    let careful = &config.upstreams[8];
    let sticky = careful.sticky.as_ref().expect("a sticky upstream");
    let secret = sticky.secret.as_ref().map(|secret| secret.0.as_str());
    assert_eq!((sticky.cookie.as_str(), sticky.span, secret), ("id", seconds(7_200), Some("hunter3")));
    let one = &config.upstreams[0];
    assert!(careful.proxy_protocol && !one.proxy_protocol && one.sticky.is_none());
    assert_eq!((one.keepalive, one.max_connections, one.dns_refresh), (128, None, seconds(30)));
    assert_eq!(
        (one.timeouts.connect, one.timeouts.response, &one.balance),
        (seconds(2), seconds(60), &BalancePolicy::P2c)
    );
    let ActionConfig::Upstream(first) = config.locations[3].action else { panic!("no upstream") };
    assert!(matches!(config.locations[4].action, ActionConfig::Upstream(second) if second == first));
}

#[test]
fn fields_of_obey() {
    let config = read("obey");
    let obey = |name: &str| config.upstreams.iter().find(|one| one.name == name).expect(name).obey.clone();
    let written = obey("written").expect("obey");
    assert_eq!(written.status, StatusRanges(vec![(429, 429), (503, 504)]));
    let tenant = KeyPart::Source(ValueSource::Header(http::HeaderName::from_static("x-tenant")));
    assert_eq!((written.at_most, written.key), (seconds(300), vec![KeyPart::Ip, tenant]));
    let defaults = obey("defaults").expect("obey");
    assert_eq!((defaults.status, defaults.at_most), (StatusRanges(vec![(429, 429)]), seconds(60)));
    assert_eq!(defaults.key, [KeyPart::Global]);
    assert_eq!(obey("off"), None);
    assert_eq!(obey("fields").expect("obey").status, StatusRanges(Vec::new()));
}

#[test]
fn failure_fields() {
    let config = read("all_upstream_fields");
    let [one, full] = [&config.upstreams[0], &config.upstreams[2]];
    let defaults = &one.retries;
    assert_eq!((defaults.attempts, defaults.budget), (1, Some(20.0)));
    assert_eq!(defaults.when, RetryReasons::from_reasons(&[RetryReason::Connect, RetryReason::Refused]));
    assert_eq!((defaults.per_try, defaults.total, one.slow_start), (None, None, None));
    let eject = one.eject.as_ref().expect("eject");
    assert_eq!((eject.errors, eject.span, eject.max), (5, seconds(10), 50.0));
    assert_eq!(eject.status, StatusRanges(Vec::new()));
    assert!(one.health.is_none());
    assert_eq!((full.retries.attempts, &full.eject, &full.health), (0, &None, &None));
    let [careful, defaults] = [&config.upstreams[8], &config.upstreams[9]];
    let retries = &careful.retries;
    assert_eq!((retries.attempts, retries.budget), (2, None));
    assert_eq!(
        retries.when,
        RetryReasons::from_reasons(&[
            RetryReason::Timeout,
            RetryReason::BadGateway,
            RetryReason::Unavailable
        ])
    );
    assert_eq!((retries.per_try, retries.total), (Some(seconds(1)), Some(seconds(5))));
    assert_eq!(careful.slow_start, Some(seconds(10)));
    let health = careful.health.as_ref().expect("health");
    assert_eq!((health.path.as_str(), health.interval), ("/healthz?deep=1", seconds(1)));
    assert_eq!((health.timeout, health.rise, health.fall), (Duration::from_millis(500), 1, 5));
    assert_eq!(health.status, StatusRanges(vec![(200, 299), (404, 404)]));
    let eject = careful.eject.as_ref().expect("eject");
    assert_eq!((eject.errors, eject.span, eject.max), (3, seconds(60), 33.3));
    assert_eq!(eject.status, StatusRanges(vec![(503, 503), (500, 504), (400, 499)]));
    let health = defaults.health.as_ref().expect("health");
    assert_eq!((health.path.as_str(), health.interval, health.timeout), ("/", seconds(5), seconds(2)));
    assert_eq!((&health.status.0[..], health.rise, health.fall), (&[(200, 399)][..], 2, 3));
    assert_eq!((defaults.retries.when, &defaults.eject), (RetryReasons::default(), &one.eject));
}

pub fn limit<'a>(config: &'a Config, name: &str) -> &'a LimitConfig {
    config.limits.iter().find(|limit| limit.name == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn location_fields() {
    let config = read("all_location_fields");
    let api = &config.locations[0];
    let hosts = [HostRule::Exact("api.example.com".to_owned()), HostRule::Suffix(".example.org".to_owned())];
    assert_eq!(api.hosts, hosts);
    assert_eq!((api.methods.len(), api.strip.as_deref(), api.timeout), (2, Some("/api"), Some(seconds(90))));
    assert!(matches!(&api.host_header, HostHeader::Fixed(name) if name == "backend.internal:8080"));
    let edits = &api.request_headers;
    let fixed = |text: &'static str| HeaderText::Fixed(http::HeaderValue::from_static(text));
    assert_eq!(edits.set[0].1, fixed("1.10"));
    assert_eq!((&edits.set[1].1, &edits.add[0].1), (&fixed("two words"), &fixed("true")));
    assert_eq!((edits.remove.len(), api.response_headers.remove[0].as_str()), (2, "server"));
    let patch = &api.on_reject;
    assert_eq!((patch.status, patch.retry_jitter), (Some(None), Some(10)));
    assert_eq!(patch.ratelimit_headers, Some(RateLimitHeaders::default()));
    let ActionConfig::Respond { status, body, content_type } = &config.locations[1].action else {
        panic!("no respond")
    };
    assert_eq!((status.as_u16(), content_type.as_bytes()), (201, &b"text/html"[..]));
    let text = |text: &str| TemplatePiece::Text(text.to_owned());
    assert_eq!(body.0, [text("hi "), TemplatePiece::Var(TemplateVar::ClientIp), text(" ${x}")]);
    assert!(matches!(&config.locations[1].path, PathRule::Exact(path) if path == "/exact"));
    assert!(
        matches!(&config.locations[2].path, PathRule::Prefix { path, no_regex: true } if path == "/static/")
    );
    assert_eq!(config.locations[2].host_header, HostHeader::Upstream);
    assert!(
        matches!(&config.locations[3].path, PathRule::Regex(regex) if regex.is_match(b"/v1/", "/v1/") && !regex.is_match(b"/V1/", "/V1/"))
    );
    assert!(
        matches!(&config.locations[4].path, PathRule::Regex(regex) if regex.is_match(b"/a.png", "/a.png"))
    );
    let ActionConfig::Redirect { to, status } = &config.locations[5].action else { panic!("no redirect") };
    assert_eq!((status.as_u16(), to.0.len()), (301, 3));
    assert_eq!(config.locations[4].name, "~* \\.PNG$");
    let [chosen, plain, any] = &config.locations[12..] else { panic!("three more") };
    let conditions = chosen.when.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(conditions, ["header:x-env=canary", "cookie:beta=*", "query:old=!", "query:v=~ ^2"]);
    let rewrite = chosen.rewrite.as_ref().expect("a rewrite");
    assert_eq!((rewrite.from.group_count(), rewrite.to.as_str()), (1, "/$$/$1"));
    assert_eq!((chosen.add_prefix.as_deref(), chosen.max_body), (Some("/v1"), Some(50 << 20)));
    assert!(plain.when.is_empty() && plain.rewrite.is_none() && plain.add_prefix.is_none());
    assert_eq!((plain.max_body, any.max_body, any.when[0].to_string().as_str()), (None, None, "query:n=2"));
}

#[test]
fn other_fields() {
    let config = read("all_other_fields");
    assert_eq!(config.account.from, Some(ValueSource::Query("key".to_owned())));
    let reject = &config.on_reject;
    assert_eq!((reject.status.map(|status| status.as_u16()), reject.retry_jitter), (Some(503), 20));
    assert_eq!(
        reject.ratelimit_headers,
        RateLimitHeaders { draft: Some(RateLimitDraft::Draft11), legacy: true }
    );
    assert!(matches!(&reject.body, RejectBody::Template { template, content_type }
        if template.0.len() == 5 && content_type == "application/json"));
    assert_eq!((reject.headers.len(), config.state.max_keys), (2, 5000));
    assert_eq!(config.state.heavy_hitters, Some(64));
    let admin = config.admin.as_ref().expect("admin");
    assert_eq!(
        (admin.listen, admin.tokens.first().map(|token| token.token.0.as_str())),
        (address("0.0.0.0:9901"), Some("hunter2"))
    );
    assert_eq!(admin.hosts, ["admin.example.com", "gateway-1"]);
    assert_eq!(config.access_log.hash_secret.as_ref().map(|secret| secret.0.as_str()), Some("hunter3"));
    assert!(!format!("{config:?}").contains("hunter"));
    assert_eq!((config.log.level, config.log.format), (LogLevel::Debug, LogFormat::Json));
    let log = &config.access_log;
    assert_eq!(log.output, AccessLogOutput::File(PathBuf::from("/var/log/access.log")));
    assert_eq!((log.sample, log.headers.len(), log.hash_keys), (0.5, 2, false));
    assert_eq!(log.format, LogFormat::Pretty);
    assert_eq!(log.fields, [LogField::Tries, LogField::Proto]);
}

#[test]
fn substituted_scalars_keep_their_type() {
    let config = read("substitution");
    assert_eq!(config.listen, [ListenConfig::with_address(ListenAddress::Port(8081))]);
    assert_eq!((config.server.workers, config.server.max_headers), (2, 12));
    assert!(config.limits[0].dry_run);
    assert_eq!(
        config.admin.and_then(|admin| admin.tokens.into_iter().next()).map(|token| token.token.0).as_deref(),
        Some("s3cret")
    );
    assert_eq!(config.locations[0].name, "/sluicegate-config");
}

#[test]
fn none_switches_off_and_aliases_repeat() {
    let config = read("aliases");
    assert!(config.admin.is_none() && config.access_log.output == AccessLogOutput::None);
    assert_eq!(config.limits.len(), 2);
    assert!(read("no_locations").locations.is_empty());
}

#[test]
fn degrade_is_layered_and_uses_its_upstream() {
    let loaded = config::load(Path::new("tests/config/valid/degrade.yaml")).unwrap();
    let unused = loaded.warnings.iter().find(|warning| warning.code == codes::UNUSED);
    assert_eq!(unused, None, "an upstream that only `degrade` names is used");
    let config = loaded.config;
    let listed = |location: usize, limit: usize| {
        let location = &config.locations[location];
        let limit = &config.limits[location.limits[limit]];
        match config.on_reject.merge_patch(&limit.on_reject).merge_patch(&location.on_reject).degrade {
            None => "none".to_owned(),
            Some(Degrade::Upstream(index)) => config.upstreams[index].name.clone(),
            Some(Degrade::Canned(canned)) => {
                let content_type = canned.content_type.to_str().unwrap();
                format!("{} {content_type} {}", canned.status.as_u16(), canned.body.0.len())
            }
        }
    };
    assert_eq!([0, 1, 2, 3].map(|limit| listed(0, limit)), ["fallback", "202 text/html 2", "none", "calm"]);
    let others = ["none", "200 text/plain 0", "demo", "http://127.0.0.1:9003"];
    assert_eq!([1, 2, 3, 4].map(|location| listed(location, 0)), others);
    assert!(matches!(config.upstreams[3].kind, UpstreamKind::Servers(_)), "{:?}", config.upstreams[3]);
}

#[test]
fn a_snapshot_is_a_file() {
    let read = |file: &str| {
        let text = format!("state: {{ snapshot: {file} }}\nlocations: [{{ path: /, upstream: demo }}]\n");
        config::parse(&text, "gateway.yaml").expect("valid").config.state.snapshot
    };
    assert_eq!(read("none"), None);
    for file in ["counters", "./counters.bin", "tests/counters.bin", "/counters"] {
        assert_eq!(read(file), Some(file.into()));
    }
}

#[test]
fn cors_fields() {
    let cors = |fields: &str| {
        let file = format!("locations: [{{ path: /, upstream: demo{fields} }}]");
        config::parse(&file, "x").unwrap_or_else(|report| panic!("{report}")).config.locations.remove(0).cors
    };
    assert_eq!((cors(""), cors(", cors: none")), (None, None));
    let exact = |origin: &str| OriginRule::Exact(origin.to_owned());
    let short = CorsConfig {
        origins: CorsOrigins::Listed(vec![exact("https://a.test")]),
        methods: vec![],
        headers: None,
        credentials: false,
        max_age: seconds(600),
    };
    assert_eq!(cors(", cors: { origins: https://a.test }"), Some(short.clone()));
    assert_eq!(
        cors(
            ", cors: { origins: https://a.test, methods: any, headers: any, credentials: false, max_age: 10m }"
        ),
        Some(short)
    );
    let name = http::HeaderName::from_static;
    let full = CorsConfig {
        origins: CorsOrigins::Any,
        methods: vec![http::Method::GET, http::Method::PUT],
        headers: Some(vec![name("x-a"), name("authorization")]),
        credentials: false,
        max_age: seconds(86_400),
    };
    assert_eq!(
        cors(", cors: { origins: '*', methods: [GET, PUT], headers: [X-A, Authorization], max_age: 1d }"),
        Some(full)
    );
    let with_credentials =
        cors(", cors: { origins: ['https://*.a.test', http://b.test], headers: none, credentials: true }");
    let with_credentials = with_credentials.expect("cors is written");
    let subdomains = OriginRule::Subdomains { scheme: "https://".to_owned(), suffix: ".a.test".to_owned() };
    assert_eq!(with_credentials.origins, CorsOrigins::Listed(vec![subdomains, exact("http://b.test")]));
    assert_eq!((with_credentials.credentials, with_credentials.headers), (true, Some(vec![])));
}

#[test]
fn forms_of_the_fields_about_limits() {
    for (text, draft, legacy) in [
        ("draft-11", Some(RateLimitDraft::Draft11), false),
        ("standard", Some(RateLimitDraft::Draft11), false),
        ("draft-10", Some(RateLimitDraft::Draft10), false),
        ("draft-03", None, true),
        ("legacy", None, true),
        ("[draft-03, draft-10]", Some(RateLimitDraft::Draft10), true),
        ("none", None, false),
    ] {
        let config = config::parse(
            &format!(
                "on_reject: {{ ratelimit_headers: {text} }}\nlocations: [{{ path: /, respond: {{}} }}]\n"
            ),
            "gateway.yaml",
        )
        .unwrap_or_else(|report| panic!("{report}"))
        .config;
        assert_eq!(config.on_reject.ratelimit_headers, RateLimitHeaders { draft, legacy }, "{text}");
    }
}

#[test]
fn auth_of_a_location() {
    let config = read("all_location_fields");
    let asked = |path: &str| {
        let location = config.locations.iter().find(|location| location.written_path == path);
        location.and_then(|location| location.auth.as_ref()).expect("auth")
    };
    let names =
        |names: &[http::HeaderName]| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let auth = asked("/asked");
    assert_eq!((auth.target.as_str(), auth.timeout), ("/verify?a=b", Duration::from_millis(500)));
    assert_eq!(config.upstreams[auth.upstream.0].name, "http://127.0.0.1:9091");
    assert_eq!(config.limits[auth.limits[0].0].name, "/asked auth#1");
    assert_eq!(names(&auth.send), "cookie authorization x-tenant");
    assert_eq!((names(&auth.copy).as_str(), auth.denies_on_failure), ("x-user remote_groups", true));
    let cache = auth.cache.as_ref().expect("a cache");
    assert_eq!((names(&cache.by).as_str(), cache.at_most), ("cookie authorization x-tenant", 10));
    assert_eq!(cache.span, seconds(60));
    assert!(cache.ignores_target && cache.ignores_method && cache.ignores_address);
    let named = asked("/named");
    assert_eq!((config.upstreams[named.upstream.0].name.as_str(), named.target.as_str()), ("app", "/verify"));
    assert_eq!((names(&named.send).as_str(), named.timeout), ("cookie authorization", seconds(2)));
    assert!(named.cache.is_none() && !named.denies_on_failure && named.limits.is_empty());
    assert!(asked("/unix").send.is_empty());
}
