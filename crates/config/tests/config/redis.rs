//! Local and shared counters, and reports without the credentials of Redis.

use std::path::Path;
use std::time::Duration;

use sluicegate_config::{self as config, LoadedConfig};
use sluicegate_model::*;

fn read(name: &str) -> LoadedConfig {
    let path = format!("tests/config/valid/{name}.yaml");
    config::load(Path::new(&path)).unwrap_or_else(|report| panic!("{report}"))
}

fn parsed(text: &str) -> LoadedConfig {
    config::parse(text, "gateway.yaml").unwrap_or_else(|report| panic!("{text}\n{report}"))
}

fn shared(config: &Config) -> Vec<Option<OnFailure>> {
    config.limits.iter().map(|limit| limit.shared).collect()
}

#[test]
fn without_redis_all_is_local() {
    let config = read("smallest").config;
    assert!(config.state.store == StoreConfig::Local && config.state.redis.is_none());
    assert!(read("all_limit_fields").config.limits.iter().all(|limit| limit.shared.is_none()));
}

#[test]
fn all_limits_in_redis_but_one() {
    let config = read("redis").config;
    let (reject, allow, local) = (Some(OnFailure::Reject), Some(OnFailure::Allow), Some(OnFailure::Local));
    assert_eq!(shared(&config), [reject, reject, allow, local, None, reject, reject]);
    assert_eq!(config.state.store, StoreConfig::Redis);
    let redis = config.state.redis.as_ref().expect("a limit is shared");
    assert_eq!(redis.servers, RedisServers::Single("redis.example.com".to_owned(), 6380));
    let text = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.0.clone());
    assert_eq!(text(&redis.user).as_deref(), Some("gate keeper"));
    assert_eq!(text(&redis.password).as_deref(), Some("hunter2@home"));
    assert_eq!((redis.tls, redis.database, redis.prefix.as_str()), (true, 3, "shop:sg"));
    assert_eq!((redis.timeout, redis.nodes_at_least), (Duration::from_millis(50), 3));
}

/// With `store: leased`, limits are leased that can be, and others count exactly.
#[test]
fn the_store_leases_what_it_can() {
    let text = |limits: &str, chain: &str| {
        format!(
            "state: {{ store: leased, redis: {{ url: redis://h }} }}\nlimits:\n{limits}\
             locations: [{{ path: /, upstream: demo, limits: [{chain}] }}]\n"
        )
    };
    let limits = "  fit: { rate: 100/s, burst: 100 }\n  windows: { algorithm: fixed_window, rate: 100/m }\n  \
                  slots: { algorithm: concurrency, max_concurrent: 5 }\n  own: { rate: 100/s, burst: 100, state: redis }\n  \
                  here: { rate: 100/s, burst: 100, state: local }\n  small: 100/s\n  \
                  viewed: { rate: 50/s, burst: 100 }\n  short: { algorithm: sliding_log, rate: 30/s }\n";
    let chain = "fit, windows, slots, own, here, small, { use: viewed, burst: 50 }, short";
    let loaded = parsed(&text(limits, chain));
    let leased: Vec<bool> = loaded.config.limits.iter().map(|limit| limit.leased).collect();
    assert_eq!(leased, [true, true, false, false, false, true, false, false]);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let described = |name: &str| {
        let index = loaded.config.limits.iter().position(|limit| limit.name == name).unwrap();
        config::describe::describe_limit(&loaded.config, LimitId(index), None)
    };
    assert!(described("fit").contains("leased from Redis"), "{}", described("fit"));
    let reason = "Redis for all gateways together (a limit with other numbers at a place is not leased);";
    assert!(described("viewed").contains(reason), "{}", described("viewed"));
    let warned = parsed(&text("  slots: { algorithm: concurrency, max_concurrent: 5 }\n", "slots")).warnings;
    assert_eq!(warned.len(), 1);
    assert_eq!(warned[0].message, "no limit is leased");
}

/// A region leases from its home; limits that are not leased count in the region.
#[test]
fn a_region_has_a_home() {
    let with_timeout = |timeout: &str, limits: &str| {
        let home = "{ url: \"redis://:hunter2@home\", share: 12.5% }";
        format!(
            "state: {{ redis: {{ url: redis://here, timeout: {timeout}, prefix: shop, home: {home} }} }}\n\
             locations: [{{ path: /, upstream: demo, limits: [{limits}] }}]\n"
        )
    };
    let text = |limits: &str| with_timeout("200ms", limits);
    let loaded = parsed(&text("{ rate: 9/s, burst: 90, state: leased }, { rate: 8/s, state: redis }"));
    let redis = loaded.config.state.redis.as_ref().unwrap();
    let home = redis.home.as_ref().unwrap();
    assert_eq!((home.share, home.redis.prefix.as_str()), (125_000, "shop"));
    assert_eq!(home.redis.servers, RedisServers::Single("home".to_owned(), 6379));
    let described = config::describe::describe_state(&loaded.config).unwrap();
    assert!(
        described.ends_with("a region with a floor of 12.5% of its home, redis at home:6379"),
        "{described}"
    );
    let described = |id| config::describe::describe_limit(&loaded.config, LimitId(id), None);
    assert!(described(0).contains("for all regions together; 12.5% of it while"), "{}", described(0));
    assert!(described(1).contains("for all gateways of this region together;"), "{}", described(1));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let warned = parsed(&text("{ rate: 8/s, state: redis }")).warnings;
    assert_eq!(
        warned.iter().map(|one| one.message.as_str()).collect::<Vec<_>>(),
        ["no limit is leased from the home"]
    );
    let warned = parsed(&with_timeout("20ms", "{ rate: 9/s, burst: 90, state: leased }")).warnings;
    assert_eq!(
        warned.iter().map(|one| one.message.as_str()).collect::<Vec<_>>(),
        ["the first requests for a key wait for the home, at most 20ms"]
    );
}

#[test]
fn one_limit_in_redis_and_defaults() {
    let config = read("redis_some").config;
    assert_eq!(shared(&config), [None, Some(OnFailure::Local)]);
    assert_eq!((config.state.store, config.state.snapshot.is_some()), (StoreConfig::Local, true));
    let redis = config.state.redis.expect("a limit is shared");
    let seeds = vec![("one".to_owned(), 6379), ("::1".to_owned(), 7001)];
    assert_eq!(redis.servers, RedisServers::Cluster(seeds));
    assert!(redis.user.is_none() && redis.password.is_none() && !redis.tls);
    assert_eq!((redis.prefix.as_str(), redis.timeout), ("sg", Duration::from_millis(20)));
    assert_eq!(redis.nodes_at_least, 1);
}

#[test]
fn certificates_for_redis_are_read_with_their_files() {
    let text = |tls: &str| {
        let redis = format!("store: redis, redis: {{ url: rediss://h{tls} }}");
        let redis = parsed(&format!(
            "state: {{ {redis} }}\nlocations: [{{ path: /, upstream: demo, limits: 1/s }}]\n"
        ));
        redis.config.state.redis.expect("a limit is shared")
    };
    let plain = text("");
    assert!(plain.tls && plain.tls_files.roots.is_none() && plain.tls_files.identity.is_none());
    assert!(plain == text(", tls: {}") && plain == text(", tls: { ca: system, cert: none, key: none }"));
    let own = text(
        ", tls: { ca: ../../tests/keys/tls/ca.pem, cert: ../../tests/keys/tls/a.pem, key: ../../tests/keys/tls/a.key.pem }",
    );
    assert!(own.tls_files.identity.is_some() && own.tls_files.roots.is_some_and(|roots| roots.len() == 1));
    let other = text(
        ", tls: { ca: ../../tests/keys/tls/ca.pem, cert: ../../tests/keys/tls/b.pem, key: ../../tests/keys/tls/b.key.pem }",
    );
    assert!(
        other != text(", tls: { ca: ../../tests/keys/tls/ca.pem }") && other != plain,
        "a reload sees the change"
    );
}

#[test]
fn redis_is_used_if_a_limit_is_shared() {
    let redis = |store: &str, more: &str| {
        let text = format!("state: {{ store: {store}, redis: {{ url: redis://h }} }}\n{more}\n");
        parsed(&text).config.state.redis.is_some()
    };
    let plain = "locations: [{ path: /, upstream: demo, limits: 5/s }]";
    assert!(!redis("local", plain) && redis("redis", plain));
    assert!(!redis("redis", "locations: [{ path: /, upstream: demo }]"));
    let bans =
        "bans: { after: 5/m }\nlocations: [{ path: /, upstream: demo, limits: { rate: 1/s, state: local } }]";
    assert!(!redis("local", bans) && redis("redis", bans), "bans are shared as well");
}

#[test]
fn long_and_short_forms_are_read() {
    let redis = |fields: &str| {
        let text = format!(
            "state: {{ store: redis, redis: {{ url: redis://h, {fields} }} }}\n\
             locations: [{{ path: /, upstream: demo, limits: 5/s }}]\n"
        );
        parsed(&text).config.state.redis.expect("a limit is shared")
    };
    assert_eq!(redis("timeout: 2ms").timeout, Duration::from_millis(2));
    assert_eq!(redis("timeout: 200ms").timeout, Duration::from_millis(200));
    assert_eq!(redis("nodes_at_least: 1").nodes_at_least, 1);
    assert_eq!(redis("nodes_at_least: 100000").nodes_at_least, 100_000);
    let longest = "a.B_c:d-9".repeat(4)[..32].to_owned();
    assert_eq!(redis(&format!("prefix: \"{longest}\"")).prefix, longest);
}

#[test]
fn a_password_over_a_plain_connection_is_a_warning() {
    let warned = |url: &str| {
        let text = format!(
            "state:\n  store: redis\n  redis:\n    url: {url}\n\
             locations: [{{ path: /, upstream: demo, limits: 5/s }}]\n"
        );
        parsed(&text).warnings.iter().any(|warning| warning.code == codes::WEAK)
    };
    for url in [
        "redis://:p@10.0.0.1",
        "redis://u:p@redis.example.com",
        "redis://:p@[2001:db8::1]",
        "[redis://:p@127.0.0.1, redis://:p@10.0.0.1]",
        "redis+sentinel://:p@localhost,a.test/main",
    ] {
        assert!(warned(url), "{url}");
    }
    for url in [
        "redis://10.0.0.1",
        "redis://u@10.0.0.1",
        "rediss://:p@10.0.0.1",
        "redis://:p@127.0.0.2",
        "redis://:p@[::1]",
        "redis://:p@[::ffff:127.0.0.1]",
        "redis://:p@localhost",
        "redis://:p@a.localhost",
        "redis://:p@redis",
    ] {
        assert!(!warned(url), "{url}");
    }
}

/// Every valid and invalid form of user and password.
#[test]
fn no_report_shows_the_credentials_of_redis() {
    let urls = [
        "redis://hunter2:hunter2@host",
        "rediss://:hunter2@host:1/2",
        "valkey://hunter2:x@host",
        "redis+sentinel://u:hunter2@h1,h2/main",
        "redis+sentinel://u:hunter2@h1,h2",
        "redis://:hunter2@host:x",
        "redis://:hunter2/x@host",
        "redis://:x/hunter2@host",
        "redis://:hunter2?x#y@host",
        "redis://:hunter2%zz@host",
        "redis://:a hunter2 b@host",
        "redis:/:hunter2@host",
        "http://:hunter2@host",
        ":hunter2@host",
        "${NO_SUCH_URL:-http://:hunter2@host}",
        "${no-such-url:-http://:hunter2@host}",
        "${NO_SUCH_URL:-http://:hunter2@host",
    ];
    let forms = [
        "state: { store: redis, zebra: 1, redis: { url: \"URL\" } }\n",
        "state: { store: redis, zebra: 1, redis: { url: [\"URL\", \"URL\", redis://other] } }\n",
        "state:\n  store: redis\n  redis:\n    url:\n      - URL\n      - redis://b\n    zebra: 1\n",
        "state:\n  redis:\n    url: >-\n      URL\n    zebra: 1\n",
        "state:\n  zebra: 1\n  redis: URL\n",
        "state:\n  zebra: 1\n  redis: { ulr: URL }\n",
        "state:\n  redis: { zebra: 1, url:URL }\n",
        "state: { redis: { url: { URL: 1 } } }\n",
        "state: { redis: { url: \"URL } }\n",
        "state: { redis: { url: 'URL, prefix: sg } }\n",
        "state:\n  redis:\n  url: URL\n zebra: 1\n",
        "state: { redis: { url: \"URL\", url: \"URL\" } }\n",
        "state: { redis: { \"URL\": 1, \"URL\": 2 } }\n",
        "state: { redis: { url: *URL } }\n",
        "state: { redis: { url: !URL x } }\n",
    ];
    for url in urls {
        for form in forms {
            let text = form.replace("URL", url) + "limits: { x: { rate: 1/s, state: redis } }\nzebra: 1\n";
            let report = config::parse(&text, "gateway.yaml").expect_err(&text);
            let shown =
                format!("{}{report:?}{}", report.render(true), serde_json::to_string(&report).expect("JSON"));
            assert!(!shown.contains("hunter2"), "{text}\n{shown}");
        }
    }
}
