//! The facts of one request combined: the key a limit counts by, for any bytes a client chooses.

mod reach;

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version};
use sluicegate_http::request::client::ClientIp;
use sluicegate_http::request::headers::hop_by_hop::{protected_names, strip_request};
use sluicegate_http::request::headers::summary::HeaderSummary;
use sluicegate_http::request::key::{KeyHasher, KeyInput, KeyOutcome, KeySpec};
use sluicegate_http::request::location::{
    Arrival, LocationLookup, Locations, check_target, request_host, take_authority,
};
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{self as model, KeyPart, MissingKey, PathRule};

fn server(trusted: &[&str]) -> model::ServerConfig {
    let second = Duration::from_secs(1);
    model::ServerConfig {
        workers: 1,
        trusted_proxies: trusted.iter().map(|network| network.parse().expect("a network")).collect(),
        client_ip: model::ClientIpConfig::XForwardedFor,
        ipv6_prefix: 64,
        ipv4_prefix: 32,
        limits: Vec::new(),
        views: Vec::new(),
        max_connections: 1,
        is_max_connections_written: false,
        connections_per_ip: None,
        keepalive_requests: 1,
        keepalive_age: None,
        max_waiting: 1,
        max_in_flight: None,
        max_header_size: 1,
        max_headers: 1,
        max_body: None,
        body_memory: 1,
        timeouts: model::ServerTimeouts {
            header: second,
            idle: second,
            body: second,
            write: second,
            handshake: second,
            drain: second,
            shutdown: second,
        },
        underscore_headers: model::UnderscoreHeaders::Drop,
        headers: model::HeaderEdits::default(),
        request_id: HeaderName::from_static("x-request-id"),
    }
}

fn prefix(path: &str) -> model::LocationConfig {
    model::LocationConfig {
        reads_account: true,
        owner: None,
        auth: None,
        access: Default::default(),
        name: path.to_owned(),
        written_path: path.to_owned(),
        path: PathRule::Prefix { path: path.to_owned(), no_regex: false },
        hosts: Vec::new(),
        methods: Vec::new(),
        scheme: None,
        listeners: Vec::new(),
        action: model::ActionConfig::Respond {
            status: StatusCode::OK,
            body: model::TemplateConfig(Vec::new()),
            content_type: HeaderValue::from_static("text/plain"),
        },
        limits: Vec::new(),
        views: Vec::new(),
        when: Vec::new(),
        strip: None,
        rewrite: None,
        add_prefix: None,
        host_header: model::HostHeader::Client,
        request_headers: model::HeaderEdits::default(),
        response_headers: model::HeaderEdits::default(),
        on_reject: model::OnRejectPatch::default(),
        timeout: None,
        bandwidth: None,
        body_peek: None,
        max_body: None,
        cors: None,
    }
}

/// The fact finders of one gateway: `/admin` is location 0, everything else location 1.
struct Facts {
    client_ip: ClientIp,
    locations: Locations,
    keys: KeyHasher,
}

impl Facts {
    fn new(trusted: &[&str]) -> Facts {
        Facts {
            client_ip: ClientIp::from(&server(trusted)),
            locations: Locations::new(&[prefix("/admin"), prefix("/")]),
            keys: KeyHasher::random(),
        }
    }

    /// The key by `part` and the location of a GET, or the reason for a 400.
    fn get(
        &self,
        part: KeyPart,
        peer: &str,
        target: &str,
        lines: &[(&str, &str)],
    ) -> Result<(CounterKey, usize), String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().expect("a header name");
            headers.append(name, HeaderValue::from_str(value).expect("a header value"));
        }
        let mut uri: Uri = target.parse().map_err(|error| format!("{error}"))?;
        let authority = take_authority(&mut uri);
        let target = check_target(&Method::GET, &uri).map_err(|error| format!("{error:?}"))?;
        let path = target.normalised_path().map_err(|error| format!("{error:?}"))?;
        let host = request_host(Version::HTTP_11, &headers, authority.as_ref())
            .map_err(|error| format!("{error:?}"))?;
        let peer: IpAddr = peer.parse().expect("an address");
        let client = self.client_ip.find_client(Some(peer.to_canonical()), &headers);
        let arrival =
            Arrival { method: &Method::GET, scheme: model::Scheme::Http, listener: None, values: None };
        let LocationLookup::Found(location) = self.locations.find_location(&host, &path, &arrival) else {
            return Err("no location".to_owned());
        };
        let subject = KeyInput {
            ip: self.client_ip.mask_address(client.ip),
            ip_key: None,
            account: None,
            tier: "default",
            path: &path,
            query: uri.query(),
            location: Some(self.locations.identity_of(location)),
            host: &host,
            method: &Method::GET,
            headers: &headers,
            trusted_peer: client.trusted_peer,
            token: None,
            body: None,
        };
        match self.keys.hash_key(&KeySpec::new(&[part], MissingKey::Reject), &subject) {
            KeyOutcome::Key(key) => Ok((key, location.0)),
            other => Err(format!("{other:?}")),
        }
    }
}

#[test]
fn a_thousand_forged_addresses_are_one_client() {
    let facts = Facts::new(&["127.0.0.1/32"]);
    let mut keys = HashSet::new();
    for number in 0..1000 {
        let forged = format!("10.0.{}.{}", number / 250, number % 250);
        let element = format!("for={forged}");
        let lines = [
            ("host", "a.test"),
            ("x-forwarded-for", forged.as_str()),
            ("forwarded", element.as_str()),
            ("x-real-ip", forged.as_str()),
            ("true-client-ip", forged.as_str()),
        ];
        keys.insert(facts.get(KeyPart::Ip, "192.0.2.1", "/", &lines).expect("a key").0);
    }
    assert_eq!(keys.len(), 1);
    let headers = [("host", "a.test"), ("x-forwarded-for", "10.0.0.1")];
    keys.insert(facts.get(KeyPart::Ip, "127.0.0.1", "/", &headers).expect("a key").0);
    assert_eq!(keys.len(), 2, "a trusted proxy is believed");
}

#[test]
fn one_network_of_ipv6_is_one_client_and_the_next_another() {
    let facts = Facts::new(&[]);
    let of = |peer: &str| facts.get(KeyPart::Ip, peer, "/", &[("host", "a.test")]).expect("a key").0;
    let one: HashSet<_> = (0..1000).map(|last| of(&format!("2001:db8:0:1:{last:x}::{last:x}"))).collect();
    assert_eq!(one.len(), 1);
    assert!(!one.contains(&of("2001:db8:0:2::1")));
    assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    assert_ne!(of("192.0.2.1").id, of("192.0.2.2").id);
}

#[test]
fn spellings_of_a_host_are_one_host() {
    let facts = Facts::new(&[]);
    let of = |host: &str, target: &str| facts.get(KeyPart::Host, "192.0.2.1", target, &[("host", host)]);
    let plain = of("example.com", "/");
    assert!(plain.is_ok());
    for spelling in ["EXAMPLE.com", "example.com:80", "example.com.", "Example.Com.:8080"] {
        assert_eq!(of(spelling, "/"), plain, "{spelling}");
    }
    assert_eq!(of("a.test", "http://Example.com:80/"), plain, "the target wins over the header");
    assert_ne!(of("a.test", "/"), plain);
}

#[test]
fn spellings_of_a_path_are_one_path() {
    let facts = Facts::new(&[]);
    let of = |target: &str| facts.get(KeyPart::Uri, "192.0.2.1", target, &[("host", "a.test")]);
    let plain = of("/a/b%3f");
    assert!(plain.is_ok());
    for spelling in
        ["/a/b%3F", "/a/b%3f?x=1", "/a/b%3f?x=2#y", "/%61//b%3f", "/./a/c/../b%3F", "http://a.test/a/b%3f"]
    {
        assert_eq!(of(spelling), plain, "{spelling}");
    }
    assert_ne!(of("/a/b"), plain, "an escaped question mark starts no query");
    assert_ne!(of("/a/B%3f"), plain, "letters keep their case");
}

#[test]
fn no_spelling_of_admin_slips_past_its_limit() {
    let facts = Facts::new(&[]);
    let lines = [("host", "a.test")];
    let of = |target: &str| facts.get(KeyPart::Location, "192.0.2.1", target, &lines);
    let admin = of("/admin");
    assert_eq!(admin.as_ref().map(|(_, location)| *location), Ok(0));
    let spellings = [
        "//admin",
        "/./admin",
        "/x/../admin",
        "/%61dmin",
        "/%61%64%6d%69%6E",
        "/x/%2e%2e/admin",
        "/x%2f..%2fadmin",
        "/admin/",
        "/admin?x=/../",
        "http://a.test//admin",
    ];
    for target in spellings {
        assert_eq!(of(target), admin, "{target}");
    }
    for target in ["/../admin", "/x/../../admin", "/admin%00", "/%", "/ad%6", "admin", "a.test:80", "*"] {
        assert!(of(target).is_err(), "{target}");
    }
    assert_eq!(
        of("/ADMIN").map(|(_, location)| location),
        Ok(1),
        "nginx minds case, and so does the upstream"
    );
}

fn limit(key: Vec<KeyPart>, cost: model::Cost) -> model::LimitConfig {
    model::LimitConfig {
        name: "one".to_owned(),
        owner: None,
        key,
        missing_key: MissingKey::Ip,
        missing_key_status: http::StatusCode::FORBIDDEN,
        tiers: vec![],
        views: vec![],
        grants: vec![],
        fair_by: vec![],
        warm_up: None,
        calendar: None,
        steps: Vec::new(),
        shares: None,
        anchors: None,
        algorithm: model::Algorithm::Concurrency { min: None, max: 1, queue: 0, max_wait: None },
        cost,
        charge: None,
        methods: Vec::new(),
        bypass: Default::default(),
        dry_run: false,
        enforce: None,
        shadow: None,
        shadow_of: None,
        pause: None,
        set: None,
        file: None,
        shared: None,
        leased: false,
        on_reject: model::OnRejectPatch::default(),
    }
}

fn with_limits(
    account: model::ValueSource,
    limits: Vec<model::LimitConfig>,
    server: model::ServerConfig,
) -> model::Config {
    model::Config {
        ip_sets: Vec::new(),
        access: Default::default(),
        bans: None,
        notify: None,
        listen: vec![model::ListenConfig::with_address(model::ListenAddress::Port(8080))],
        server,
        upstreams: Vec::new(),
        limits,
        locations: Vec::new(),
        account: model::AccountConfig { from: Some(account), ..model::AccountConfig::default() },
        on_reject: model::OnReject {
            status: None,
            body: model::RejectBody::Problem,
            headers: Vec::new(),
            ratelimit_headers: model::RateLimitHeaders::default(),
            retry_after: model::RetryAfter::Exact,
            turns_at_most: std::time::Duration::from_secs(10),
            retry_jitter: 0,
            degrade: None,
        },
        state: model::StateConfig {
            store: model::StoreConfig::Local,
            redis: None,
            max_keys: 1,
            heavy_hitters: None,
            snapshot: None,
        },
        service: None,
        reload: model::ReloadConfig { watch: None },
        admin: None,
        log: model::LogConfig { level: model::LogLevel::Info, format: model::LogFormat::Auto },
        access_log: model::AccessLogConfig {
            output: model::AccessLogOutput::None,
            format: model::LogFormat::Auto,
            sample: 100.0,
            headers: Vec::new(),
            fields: Vec::new(),
            hash_keys: true,
            hash_secret: None,
        },
        tracing: model::TracingConfig { otlp: None, sample: 1.0 },
    }
}

#[test]
fn a_client_cannot_make_the_gateway_drop_its_key() {
    let header = |name: &'static str| model::ValueSource::Header(HeaderName::from_static(name));
    let keys = vec![KeyPart::Ip, KeyPart::Source(header("x-tenant"))];
    let limits = vec![
        limit(
            keys,
            model::Cost::Header { name: HeaderName::from_static("x-cost"), invalid: model::InvalidCost::One },
        ),
        limit(vec![KeyPart::Source(model::ValueSource::Cookie("sid".to_owned()))], model::Cost::Units(1)),
    ];
    let client_ip = model::ClientIpConfig::Header(HeaderName::from_static("x-client"));
    let server = model::ServerConfig { client_ip, ..server(&[]) };
    let protected = protected_names(&with_limits(header("x-account-id"), limits, server));
    let relied_on = ["x-tenant", "x-cost", "cookie", "x-account-id", "x-client", "x-request-id", "host"];
    for name in relied_on {
        let mut headers = HeaderMap::new();
        headers.insert("connection", HeaderValue::from_str(&format!("{name}, x-other")).expect("two names"));
        headers.insert(name, HeaderValue::from_static("1"));
        headers.insert("x-other", HeaderValue::from_static("1"));
        let summary = HeaderSummary::scan_request(&headers);
        strip_request(&mut headers, summary, &protected);
        assert!(headers.contains_key(name), "{name}");
        assert!(!headers.contains_key("x-other") && !headers.contains_key("connection"), "{name}");
    }
}
