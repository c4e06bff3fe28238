//! Accounts and tiers: numbers per tier, the file of tiers, accounts from tokens.

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};

use crate::support::*;

const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/keys");

/// A gateway that responds itself, with one limit.
fn gateway_with_account(account: &str, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "account: {{ {account} }}\nlimits:\n  x: {{ {limit} }}\n\
         locations:\n  - {{ path: /, respond: {{ body: \"${{tier}}\" }}, limits: x }}\n"
    ))
}

fn as_account(name: &str) -> Ask {
    get("/").header("X-Account", name)
}

/// The number of `count` requests that pass.
fn count_passing(gateway: &Gateway, ask: &Ask, count: usize) -> usize {
    let mut client = gateway.client();
    (0..count).filter(|_| client.ask(ask).status == 200).count()
}

fn policy(response: &Response) -> String {
    response.header("ratelimit-policy").unwrap_or_default()
}

/// Clients of a tier get its numbers, see them in the response, and may be exempt from the limit.
#[test]
fn each_tier_has_its_own_numbers() {
    let gateway = gateway_with_account(
        "from: header:x-account, tier: { members: { ann: gold, ivy: internal } }",
        "key: account, rate: 3/h, tiers: { gold: { rate: 5/h }, internal: none }",
    );
    assert_eq!(count_passing(&gateway, &as_account("bob"), 8), 3);
    assert_eq!(count_passing(&gateway, &as_account("ann"), 8), 5);
    assert_eq!(count_passing(&gateway, &as_account("ivy"), 8), 8);
    let rejected = gateway.ask(&as_account("ann")).expect(429);
    assert!(policy(&rejected).contains("q=5;"), "{}", policy(&rejected));
    assert!(rejected.text().contains("5 requests per hour, burst 5"), "{}", rejected.text());
    assert!(policy(&gateway.ask(&as_account("bob"))).contains("q=3;"));
    assert_eq!(policy(&gateway.ask(&as_account("ivy")).expect(200)), "", "an unlimited caller has no policy");
    let lines = gateway.wait_log(27);
    let tiers: Vec<&str> = lines.iter().map(|line| line["tier"].as_str().unwrap_or_default()).collect();
    assert!(["default", "gold", "internal"].iter().all(|tier| tiers.contains(tier)), "{tiers:?}");
}

/// Concurrency slots are counted per tier: one tier does not take those of another.
#[test]
fn slots_are_counted_per_tier() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:x-account, tier: {{ from: header:x-tier }} }}\n\
         limits:\n  x: {{ key: account, algorithm: concurrency, max_concurrent: 1, \
           tiers: {{ gold: {{ max_concurrent: 2 }} }} }}\n\
         locations:\n  - {{ path: /a, upstream: \"{url}\", limits: x }}\n  \
           - {{ path: /b, upstream: \"{url}\", limits: x }}\n",
        url = upstream.url()
    ));
    let ask = |target: &str, tier: &str| get(target).header("X-Account", "ann").header("X-Tier", tier);
    let mut held: Vec<Client> = Vec::new();
    for (target, tier) in [("/a", "gold"), ("/b", "gold"), ("/a", "free")] {
        let mut client = gateway.client();
        client.send(ask(target, tier).bytes());
        held.push(client);
        upstream.wait_for(held.len());
    }
    gateway.ask(&ask("/a", "gold")).expect(503);
    gateway.ask(&ask("/b", "free")).expect(503);
    gate.open();
    held.iter_mut().for_each(|client| drop(client.response().expect(200)));
}

/// `key: tier` counts all clients of a tier together; every client has a tier.
#[test]
fn a_tier_can_be_the_key() {
    let gateway =
        gateway_with_account("tier: { from: header:x-tier, default: free }", "key: [tier], rate: 2/h");
    let of = |tier: &str| get("/").header("X-Tier", tier);
    assert_eq!(gateway.ask(&of("gold")).expect(200).text(), "gold");
    assert_eq!(gateway.get("/").expect(200).text(), "free");
    assert_eq!(gateway.ask(&of("go ld")).expect(200).text(), "free", "an invalid tier is the default");
    gateway.get("/").expect(429);
    gateway.ask(&of(&"x".repeat(65))).expect(429);
    gateway.ask(&of("gold")).expect(200);
    gateway.ask(&of("gold")).expect(429);
    gateway.ask(&of("silver")).expect(200);
    gateway.ask(&of("silver").header("X-Tier", "gold")).expect(400);
}

/// A rejection may name the tier, also if no tiers are configured.
#[test]
fn a_rejection_may_name_the_tier() {
    let start = |account: &str| {
        Gateway::start(&format!(
            "account: {{ {account} }}\n\
             on_reject: {{ body: {{ template: \"{{\\\"tier\\\":\\\"${{tier}}\\\"}}\", content_type: application/json }} }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: 1/h }}\n"
        ))
    };
    let rejected = |gateway: &Gateway| {
        let ask = get("/").header("X-Tier", "a\"b");
        gateway.ask(&ask).expect(200);
        gateway.ask(&ask).expect(429).json()["tier"].clone()
    };
    assert_eq!(rejected(&start("tier: { from: header:x-tier }")), "a\"b");
    let plain = start("from: none");
    assert_eq!(rejected(&plain), "default");
    assert!(plain.wait_log(2).iter().all(|line| line.get("tier").is_none()), "no tiers are configured");
}

/// The file of tiers is read again when it changes; a bad one changes nothing and is logged.
#[test]
fn the_file_of_tiers_is_read_again() {
    let dir = Scratch::new();
    let file = dir.file("tiers.csv", "id,tier\nann,gold\n");
    let gateway = gateway_with_account(
        &format!("from: header:x-account, tier: {{ file: \"{}\", from: header:x-tier }}", file.display()),
        "key: global, rate: 100000/s",
    );
    let tier = |account: &str| gateway.ask(&as_account(account).header("X-Tier", "said")).expect(200).text();
    assert_eq!((tier("ann"), tier("bob")), ("gold".to_owned(), "said".to_owned()));
    dir.file("tiers.csv", "ann,silver\nbob,gold\n");
    eventually("the new tiers", || tier("bob") == "gold");
    assert_eq!(tier("ann"), "silver");
    dir.file("tiers.csv", "ann,silver\nsecret-id\n");
    let warned = || gateway.stderr().matches("stays").count();
    eventually("a warning", || warned() > 0);
    assert_eq!((tier("ann"), tier("bob")), ("silver".to_owned(), "gold".to_owned()));
    std::fs::remove_file(&file).expect("removed");
    eventually("another warning", || warned() > 1);
    assert_eq!(tier("bob"), "gold");
    dir.file("tiers.csv", "bob,free\n");
    eventually("the file again", || tier("bob") == "free");
    let stderr = gateway.stderr();
    assert!(stderr.contains("line 2") && !stderr.contains("secret-id"), "{stderr}");
    assert_eq!(warned(), 2, "once for each change: {stderr}");
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn pem(name: &str) -> Vec<u8> {
    std::fs::read(format!("{KEYS}/{name}")).expect("a key")
}

fn sign(algorithm: Algorithm, key: &EncodingKey, claims: &Value) -> String {
    jsonwebtoken::encode(&jsonwebtoken::Header::new(algorithm), claims, key).expect("signed")
}

fn rs256(key: &str, claims: &Value) -> String {
    sign(Algorithm::RS256, &EncodingKey::from_rsa_pem(&pem(key)).expect("an RSA key"), claims)
}

fn bearer(token: &str) -> Ask {
    get("/").header("Authorization", format!("Bearer {token}"))
}

fn claims(sub: &str) -> Value {
    json!({ "sub": sub, "plan": "gold", "iss": "https://issuer.test", "aud": "api", "exp": now() + 600 })
}

fn with_claim(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

fn gateway_with_jwt(jwt: &str) -> Gateway {
    gateway_with_account(
        &format!(
            "from: jwt:sub, tier: {{ from: jwt:plan }}, \
             jwt: {{ {jwt}, issuer: \"https://issuer.test\", audience: api }}"
        ),
        "key: account, missing_key: reject, rate: 1/h, tiers: { gold: { rate: 2/h } }",
    )
}

/// A good token yields an account with a tier; any other yields none, and at worst a rejection.
#[test]
fn only_good_tokens_yield_accounts() {
    let gateway = gateway_with_jwt(&format!("jwks: \"{KEYS}/rsa.pub.pem\""));
    let good = |sub: &str| bearer(&rs256("rsa.pem", &claims(sub)));
    assert_eq!(gateway.ask(&good("ann")).expect(200).text(), "gold");
    assert_eq!(count_passing(&gateway, &good("ann"), 3), 1, "the same account under another token");
    assert_eq!(count_passing(&gateway, &good("bob"), 3), 2);
    let token = rs256("rsa.pem", &claims("cid"));
    let [head, body, signature] = token.split('.').collect::<Vec<_>>()[..] else { panic!("{token}") };
    let public = EncodingKey::from_secret(&pem("rsa.pub.pem"));
    let ec = EncodingKey::from_ec_pem(&pem("ec.pem")).expect("an EC key");
    for bad in [
        rs256("other.pem", &claims("cid")),
        sign(Algorithm::ES256, &ec, &claims("cid")),
        sign(Algorithm::HS256, &public, &claims("cid")),
        rs256("rsa.pem", &with_claim(claims("cid"), "exp", json!(now() - 10))),
        rs256("rsa.pem", &with_claim(claims("cid"), "nbf", json!(now() + 600))),
        rs256("rsa.pem", &with_claim(claims("cid"), "iss", json!("https://evil.test"))),
        rs256("rsa.pem", &with_claim(claims("cid"), "aud", json!("other"))),
        rs256("rsa.pem", &with_claim(claims("cid"), "exp", json!(null))),
        rs256("rsa.pem", &with_claim(claims("cid"), "sub", json!({ "x": 1 }))),
        rs256("rsa.pem", &with_claim(claims("cid"), "pad", json!("x".repeat(9000)))),
        // {"alg":"none"}
        format!("eyJhbGciOiJub25lIn0.{body}."),
        format!("{head}.{body}."),
        format!("{head}.{body}x.{signature}"),
        "a.b.c".to_owned(),
        "Bearer".to_owned(),
        ".".repeat(4000),
    ] {
        let rejected = gateway.ask(&bearer(&bad)).expect(403);
        assert!(rejected.text().contains("the request has no account"), "{bad}: {}", rejected.text());
    }
    gateway.ask(&bearer(&token).header("Authorization", format!("Bearer {token}"))).expect(403);
    gateway.ask(&get("/").header("Authorization", format!("Basic {token}"))).expect(403);
    gateway.get("/").expect(403);
    gateway.ask(&bearer(&token)).expect(200);
    eventually("access-log lines", || gateway.log_lines().len() > 20);
    let log = gateway.log_lines();
    assert!(log.iter().all(|line| !line.to_string().contains("ann") && !line.to_string().contains("eyJ")));
    assert!(!gateway.stderr().contains("eyJ"), "{}", gateway.stderr());
}

/// A token expires at its time, cached or not.
#[test]
fn a_token_expires_while_it_is_used() {
    let gateway = gateway_with_account(
        "from: jwt:sub, jwt: { secret: 0123456789abcdef0123456789abcdef }",
        "key: account, missing_key: reject, rate: 100000/s",
    );
    let key = EncodingKey::from_secret(b"0123456789abcdef0123456789abcdef");
    let token = sign(Algorithm::HS256, &key, &json!({ "sub": "ann", "exp": now() + 5 }));
    let mut client = gateway.client();
    client.ask(&bearer(&token)).expect(200);
    eventually("the end of the token", || client.ask(&bearer(&token)).status == 403);
}

/// The keys are read again when their file changes: tokens of a withdrawn key are no longer valid.
#[test]
fn the_keys_are_read_again() {
    let dir = Scratch::new();
    let file = dir.path().join("keys.pem");
    std::fs::copy(format!("{KEYS}/rsa.pub.pem"), &file).expect("copied");
    let gateway = gateway_with_jwt(&format!("jwks: \"{}\"", file.display()));
    let rsa = bearer(&rs256("rsa.pem", &claims("ann")));
    let ec = EncodingKey::from_ec_pem(&pem("ec.pem")).expect("an EC key");
    let ec = |sub: &str| bearer(&sign(Algorithm::ES256, &ec, &claims(sub)));
    gateway.ask(&rsa).expect(200);
    gateway.ask(&ec("bob")).expect(403);
    std::fs::copy(format!("{KEYS}/ec.pub.pem"), &file).expect("copied");
    eventually("the new key", || gateway.ask(&ec("bob")).status == 200);
    let rejected = gateway.ask(&rsa).expect(403);
    assert!(rejected.text().contains("the request has no account"), "{}", rejected.text());
}

/// A limit by urgency believes trusted proxies alone; the upstream gets the field as it is.
#[test]
fn only_trusted_proxies_tell_a_priority() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ trusted_proxies: [127.0.0.2] }}\nlimits:\n  x: {{ key: priority, rate: 1/h }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: x }}\n",
        upstream.url()
    ));
    let ask = |from: &str, priority: &str| {
        let request = get("/").header("Priority", priority).header("Connection", "priority");
        Client::connect_from(from, gateway.addr()).ask(&request).status
    };
    assert_eq!([ask("127.0.0.2", "u=1, i"), ask("127.0.0.2", "u=1")], [200, 429]);
    assert_eq!(ask("127.0.0.2", "u=7"), 200);
    // Urgency 3: strangers, garbage, and who says so.
    assert_eq!([ask("127.0.0.1", "u=0"), ask("127.0.0.1", "u=2")], [200, 429]);
    assert_eq!([ask("127.0.0.2", "u=nine"), ask("127.0.0.2", "u=3")], [429, 429]);
    let seen: Vec<_> = upstream.requests().iter().map(|seen| seen.headers.get("priority")).collect();
    assert_eq!(seen, ["u=1, i", "u=7", "u=0"].map(|text| Some(text.to_owned())));
}
