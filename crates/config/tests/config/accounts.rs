//! Accounts, tiers and tokens as valid files configure them.

use std::path::Path;
use std::time::Duration;

use sluicegate_config::{self as config, describe};
use sluicegate_model::{LimitId, *};

fn tiers() -> Config {
    let loaded = config::load(Path::new("tests/config/valid/tiers.yaml"));
    loaded.unwrap_or_else(|report| panic!("{report}")).config
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

#[test]
fn tiers_override_the_numbers_of_their_limit() {
    let config = tiers();
    let numbers = |limit: usize, tier: &str| {
        let limit = &config.limits[limit];
        limit
            .variant_at(0, Some(tier))
            .map(|variant| limit.algorithm_variants().nth(variant).expect("its numbers").rate_quotas())
    };
    let listed = |limit: usize, tier: &str| {
        let listed = |(rate, quota): &(Rate, u64)| (rate.units.get(), rate.period.as_secs(), *quota);
        numbers(limit, tier).map(|quotas| quotas.iter().map(listed).collect::<Vec<_>>())
    };
    assert_eq!(listed(0, "free"), Some(vec![(10, 1, 10)]));
    assert_eq!(listed(0, "gold"), Some(vec![(100, 1, 100)]), "auto follows the rate of the tier");
    assert_eq!(listed(0, "silver"), Some(vec![(10, 1, 50)]));
    assert_eq!(listed(0, "internal"), None);
    assert_eq!(listed(1, "gold"), Some(vec![(50, 1, 20), (1000, 60, 30)]), "fields of the limit are kept");
    assert_eq!(listed(1, "silver"), Some(vec![(5, 1, 5)]));
    // Burst 1 plus the queue of requests that leave within a second.
    assert_eq!(listed(2, "gold"), Some(vec![(50, 1, 51)]));
    assert_eq!(listed(2, "silver"), Some(vec![(5, 1, 2)]));
    let waits: Vec<_> = config.limits[2]
        .algorithm_variants()
        .map(|numbers| match numbers {
            Algorithm::LeakyBucket { max_wait, .. } => *max_wait,
            _ => panic!("{numbers:?}"),
        })
        .collect();
    assert_eq!(waits, [Some(seconds(2)), Some(seconds(2)), None, Some(seconds(2))]);
    let slots: Vec<_> = config.limits[3].algorithm_variants().collect();
    assert!(matches!(
        slots[..],
        [Algorithm::Concurrency { max: 5, .. }, Algorithm::Concurrency { max: 50, .. }]
    ));
    assert_eq!(config.limits[3].variant_at(0, Some("internal")), None);
    assert!(config.limits[4].tiers.is_empty());
}

#[test]
fn account_sources() {
    let config = tiers();
    assert_eq!(config.limits[0].key, [KeyPart::Tier, KeyPart::Source(ValueSource::Jwt("team".to_owned()))]);
    let AccountConfig { from, tier, jwt, .. } = &config.account;
    assert_eq!(*from, Some(ValueSource::Jwt("sub".to_owned())));
    assert_eq!((&tier.from, tier.default.as_str()), (&Some(ValueSource::Jwt("plan".to_owned())), "free"));
    assert_eq!(
        (tier.members.tier_of(b"alice"), tier.members.tier_of(b"10")),
        (Some("gold"), Some("internal"))
    );
    let file = tier.file.as_ref().expect("a file");
    assert_eq!((file.content().tier_of(b"bob"), file.content().tiers().count()), (Some("gold"), 1));
    let jwt = jwt.as_ref().expect("tokens");
    assert_eq!(jwt.header.as_str(), "x-token");
    let [jwt] = &jwt.entries[..] else { panic!("{jwt:?}") };
    assert_eq!(
        (&jwt.issuers[..], &jwt.audiences[..]),
        (&["https://issuer.test".to_owned()][..], &["api".to_owned(), "web".to_owned()][..])
    );
    assert_eq!(format!("{:?}", jwt.algorithms), "[ES256, HS512]");
    assert!(jwt.keys.is_some() && jwt.secret.is_some() && !format!("{config:?}").contains("0123456789"));
}

#[test]
fn the_algorithms_of_tokens_follow_their_keys() {
    let algorithms = |jwt: &str| {
        let text = format!(
            "account: {{ from: jwt:sub, jwt: {{ {jwt} }} }}\nlocations: [{{ path: /, upstream: demo }}]\n"
        );
        let config = config::parse(&text, "../../tests/gateway.yaml")
            .unwrap_or_else(|report| panic!("{report}"))
            .config;
        format!("{:?}", config.account.jwt.expect("tokens").entries[0].algorithms)
    };
    assert_eq!(algorithms("jwks: keys/rsa.pub.pem"), "[RS256, ES256]");
    assert_eq!(algorithms("secret: hunter2"), "[HS256]");
    assert_eq!(algorithms("secret: hunter2, algorithms: HS512"), "[HS512]");
    assert_eq!(algorithms("jwks: keys/ed.pub.pem, algorithms: EdDSA"), "[EdDSA]");
}

#[test]
fn a_tier_without_possible_members_is_a_warning() {
    let warnings = |tier: &str| {
        let text = format!(
            "server: {{ trusted_proxies: 127.0.0.1 }}\n\
             account: {{ from: header:a, tier: {{ {tier} }} }}\n\
             locations: [{{ path: /, upstream: demo, limits: {{ rate: 1/s, tiers: {{ gold: none, free: none }} }} }}]\n"
        );
        let loaded = config::parse(&text, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
        loaded.warnings.iter().map(|warning| warning.message.clone()).collect::<Vec<_>>()
    };
    assert_eq!(warnings("members: { a: gold }"), ["no caller can be in the tier `free`"]);
    assert_eq!(warnings("default: free"), ["no caller can be in the tier `gold`"]);
    assert!(
        warnings("from: header:tier").is_empty()
            && warnings("default: free, members: { a: gold }").is_empty()
    );
}

#[test]
fn tiers_are_described() {
    let config = tiers();
    let listed: Vec<String> = (0..config.limits.len())
        .map(|index| describe::describe_limit(&config, LimitId(index), None))
        .collect();
    assert_eq!(
        listed[0],
        "bucket: 10 requests per second per tier and token claim team, 10 at once; the 11th is rejected \
         with 429 and told when to return; tier gold: 100 requests per second, 100 at once; tier silver: 10 requests \
         per second, 50 at once; tier internal: no limit"
    );
    assert!(
        listed[3].ends_with("tier gold: 50 requests in flight; tier internal: no limit"),
        "{}",
        listed[3]
    );
}

/// The entries of `jwt`, each with the URL of its keys.
fn fetched(jwt: &str) -> Vec<(String, String, bool)> {
    let ca = "../../tests/keys/upstream.pem";
    let yaml = format!(
        "account: {{ from: jwt:sub, jwt: {} }}\nlocations: [{{ path: /, upstream: demo }}]\n",
        jwt.replace("CA", &format!("tls: {{ ca: {ca} }}"))
    );
    let loaded = config::parse(&yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    let entries = loaded.config.account.jwt.expect("tokens").entries;
    let source = |rules: TokenRules| match rules.keys {
        Some(TokenKeySource::Issuer(source)) => {
            Some((source.issuer.clone(), source.url.to_string(), source.is_discovery))
        }
        _ => None,
    };
    entries.into_iter().filter_map(source).collect()
}

#[test]
fn keys_are_fetched_from_a_url_or_discovered() {
    let one = fetched("{ issuer: https://id.test/, jwks: discover, CA }");
    let document = "https://id.test/.well-known/openid-configuration";
    assert_eq!(one, [("https://id.test/".to_owned(), document.to_owned(), true)]);
    let without_slash = fetched("{ issuer: https://id.test, jwks: discover, CA }");
    assert_eq!(without_slash[0].1, document, "one slash");
    let realm = fetched("{ issuer: \"https://id.test:8443/realms/a\", jwks: discover, CA }");
    assert_eq!(realm[0].1, "https://id.test:8443/realms/a/.well-known/openid-configuration");
    let list = fetched(
        "[{ issuer: a, jwks: \"https://id.test/keys?p=secret\", CA }, \
          { issuer: b, secret: \"0123456789abcdef0123456789abcdef\" }]",
    );
    assert_eq!(list, [("a".to_owned(), "https://id.test/keys".to_owned(), false)], "a query is not shown");
}
