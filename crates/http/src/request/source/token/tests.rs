//! Valid and forged tokens, their lifetimes, and the cache.

use http::HeaderValue;
use jsonwebtoken::{EncodingKey, Header};
use serde_json::json;

use super::*;
use sluicegate_config as config;

const NOW: u64 = 1_800_000_000;
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A verifier for `jwt` that reads the claims of the tests.
fn verifier(jwt: &str) -> TokenVerifier {
    let jwt = if jwt.starts_with('[') { jwt.to_owned() } else { format!("{{ {jwt} }}") };
    let yaml =
        format!("account: {{ from: jwt:sub, jwt: {jwt} }}\nlocations: [{{ path: /, upstream: demo }}]\n");
    let loaded = config::parse(&yaml, "../../tests/gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    let names = ["sub", "plan"].map(str::to_owned).to_vec();
    TokenVerifier::new(&TokenVerification::new(&loaded.config.account.jwt.unwrap(), names, None))
}

fn shared() -> TokenVerifier {
    verifier(&format!("secret: {SECRET}, algorithms: HS256"))
}

fn rsa() -> EncodingKey {
    EncodingKey::from_rsa_pem(include_bytes!("../../../../../../tests/keys/rsa.pem")).unwrap()
}

fn other_rsa() -> EncodingKey {
    EncodingKey::from_rsa_pem(include_bytes!("../../../../../../tests/keys/other.pem")).unwrap()
}

fn ec() -> EncodingKey {
    EncodingKey::from_ec_pem(include_bytes!("../../../../../../tests/keys/ec.pem")).unwrap()
}

fn sign(algorithm: Algorithm, key: &EncodingKey, claims: &Value) -> String {
    jsonwebtoken::encode(&Header::new(algorithm), claims, key).unwrap()
}

fn hs256(claims: &Value) -> String {
    sign(Algorithm::HS256, &EncodingKey::from_secret(SECRET.as_bytes()), claims)
}

fn ann() -> Value {
    json!({ "sub": "ann", "exp": NOW + 60 })
}

fn with(claims: Value, name: &str, value: Value) -> Value {
    let Value::Object(mut claims) = claims else { panic!("claims are an object") };
    claims.insert(name.to_owned(), value);
    Value::Object(claims)
}

fn claim_of(verifier: &TokenVerifier, lines: &[&str], name: &str, now: u64) -> Option<String> {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(verifier.header.clone(), HeaderValue::from_str(line).unwrap());
    }
    let token = Token::new(verifier, &headers, now);
    token.claim_value(name).map(|text| String::from_utf8(text.to_vec()).unwrap())
}

fn sub(verifier: &TokenVerifier, token: &str) -> Option<String> {
    claim_of(verifier, &[&format!("Bearer {token}")], "sub", NOW)
}

fn cached(verifier: &TokenVerifier) -> usize {
    let memory = verifier.cache.borrow();
    memory.recent.len() + memory.older.len()
}

#[test]
fn the_library_has_its_cryptography() {
    TokenVerifier::self_test().unwrap();
}

#[test]
fn a_good_token_is_believed_under_each_kind_of_key() {
    let ann_of =
        |verifier: TokenVerifier, token: String| assert_eq!(sub(&verifier, &token).as_deref(), Some("ann"));
    ann_of(shared(), hs256(&ann()));
    ann_of(verifier("jwks: keys/rsa.pub.pem"), sign(Algorithm::RS256, &rsa(), &ann()));
    ann_of(verifier("jwks: keys/rsa.pub.pem, algorithms: PS384"), sign(Algorithm::PS384, &rsa(), &ann()));
    ann_of(verifier("jwks: keys/ec.pub.pem"), sign(Algorithm::ES256, &ec(), &ann()));
    let both = format!("jwks: keys/rsa.pub.pem, secret: {SECRET}, algorithms: [RS256, HS256]");
    ann_of(verifier(&both), hs256(&ann()));
    ann_of(verifier(&both), sign(Algorithm::RS256, &rsa(), &ann()));
}

#[test]
fn a_forged_token_claims_nothing() {
    let public = verifier("jwks: keys/rsa.pub.pem");
    assert_eq!(sub(&public, &sign(Algorithm::RS256, &other_rsa(), &ann())), None, "another key");
    assert_eq!(
        sub(&public, &sign(Algorithm::RS384, &rsa(), &ann())),
        None,
        "an algorithm that is not listed"
    );
    assert_eq!(sub(&public, &sign(Algorithm::ES256, &ec(), &ann())), None, "a key of another kind");
    assert_eq!(sub(&public, &hs256(&ann())), None);
    // The public key as a shared secret.
    let pem = include_bytes!("../../../../../../tests/keys/rsa.pub.pem");
    assert_eq!(sub(&public, &sign(Algorithm::HS256, &EncodingKey::from_secret(pem), &ann())), None);
    let good = sign(Algorithm::RS256, &rsa(), &ann());
    let [head, _, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("{good}") };
    let eve = sign(Algorithm::RS256, &other_rsa(), &json!({ "sub": "eve", "exp": NOW + 60 }));
    let body = eve.split('.').nth(1).unwrap();
    // {"alg":"none"}
    let none = "eyJhbGciOiJub25lIn0";
    for forged in [
        format!("{head}.{body}.{signature}"),
        format!("{none}.{body}."),
        format!("{none}.{body}.{signature}"),
        format!("{head}.{body}."),
        format!("{head}.{body}"),
        format!("{good}.x"),
        format!("{good}="),
        "..".to_owned(),
        "a.b.c".to_owned(),
        String::new(),
    ] {
        assert_eq!(sub(&public, &forged), None, "{forged}");
    }
    assert_eq!(cached(&public), 0, "bad tokens are not cached");
}

#[test]
fn a_token_counts_only_in_its_time() {
    let verifier = shared();
    let at = |claims: &Value, now: u64| {
        claim_of(&verifier, &[&format!("Bearer {}", hs256(claims))], "sub", now).is_some()
    };
    assert!(at(&ann(), NOW) && at(&ann(), NOW + 59));
    assert!(!at(&ann(), NOW + 60), "cached or not, it ends when it says");
    assert!(at(&ann(), NOW), "a clock that was set back is believed");
    let early = with(ann(), "nbf", json!(NOW + 10));
    assert!(!at(&early, NOW) && at(&early, NOW + 5) && at(&early, NOW + 10));
    let precise = with(ann(), "exp", json!((NOW + 1) as f64 + 0.5));
    assert!(at(&precise, NOW) && !at(&precise, NOW + 2));
    for exp in [json!(null), json!("1900000000"), json!(-1), json!(1e300), json!([NOW + 60])] {
        assert!(!at(&with(ann(), "exp", exp.clone()), NOW), "exp {exp}");
        assert!(!at(&with(ann(), "nbf", exp.clone()), NOW), "nbf {exp}");
    }
    assert!(!at(&json!({ "sub": "ann" }), NOW), "a token that never ends is none");
}

#[test]
fn issuer_and_audience_must_be_the_ones_named() {
    let named = verifier(&format!("secret: {SECRET}, issuer: [a, b], audience: [api, web]"));
    let believed = |iss: Value, aud: Value| {
        let claims = with(with(ann(), "iss", iss), "aud", aud);
        sub(&named, &hs256(&claims)).is_some()
    };
    assert!(believed(json!("a"), json!("api")) && believed(json!("b"), json!(["x", "web"])));
    assert!(!believed(json!("c"), json!("api")) && !believed(json!("a"), json!("other")));
    assert!(!believed(json!(null), json!("api")) && !believed(json!("a"), json!(null)));
    assert!(!believed(json!(5), json!("api")) && !believed(json!("a"), json!([])));
    assert_eq!(sub(&named, &hs256(&ann())), None, "both must be there");
    let any = with(with(ann(), "iss", json!("x")), "aud", json!("y"));
    assert!(sub(&shared(), &hs256(&any)).is_some(), "what is not named is not judged");
}

#[test]
fn claims_become_text_only_without_loss() {
    let verifier = shared();
    let read = |claim: Value| sub(&verifier, &hs256(&with(ann(), "sub", claim)));
    assert_eq!(read(json!("ü ann")).as_deref(), Some("ü ann"));
    assert_eq!(read(json!(42)).as_deref(), Some("42"));
    assert_eq!(read(json!(u64::MAX)).as_deref(), Some("18446744073709551615"));
    assert_eq!(read(json!(-7)).as_deref(), Some("-7"));
    assert_eq!(read(json!(1.5)).as_deref(), Some("1.5"));
    assert_eq!(read(json!(true)).as_deref(), Some("true"));
    for nothing in [json!(""), json!(null), json!(["ann"]), json!({ "id": "ann" }), json!(1e20)] {
        assert_eq!(read(nothing.clone()), None, "{nothing}");
    }
    let token = hs256(&with(ann(), "plan", json!("gold")));
    assert_eq!(claim_of(&verifier, &[&format!("Bearer {token}")], "plan", NOW).as_deref(), Some("gold"));
    assert_eq!(claim_of(&verifier, &[&format!("Bearer {token}")], "exp", NOW), None, "nobody asks for it");
}

#[test]
fn the_token_is_read_from_its_header_alone() {
    let verifier = shared();
    let token = hs256(&ann());
    let found = |lines: &[&str]| claim_of(&verifier, lines, "sub", NOW).is_some();
    let line = |scheme: &str| format!("{scheme}{token}");
    assert!(found(&[&line("Bearer ")]) && found(&[&line("bEARER   ")]));
    assert!(!found(&[&token]) && !found(&[&line("Basic ")]) && !found(&[&line("Bearer")]) && !found(&[]));
    assert!(!found(&[&line("Bearer "), &line("Bearer ")]), "twice is once too often");
    assert!(!found(&["Bearer "]) && !found(&["Bearer"]) && !found(&[""]));
    let long = with(ann(), "pad", json!("x".repeat(TOKEN_BYTES_MAX)));
    assert!(!found(&[&format!("Bearer {}", hs256(&long))]), "too long to be read");
    let own = self::verifier(&format!("secret: {SECRET}, header: x-token"));
    assert!(claim_of(&own, &[&token], "sub", NOW).is_some());
    assert!(claim_of(&own, &[&line("Bearer ")], "sub", NOW).is_some());
}

#[test]
fn a_critical_extension_makes_a_token_invalid() {
    let header = Header { crit: Some(vec!["b64".to_owned()]), ..Header::default() };
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    assert_eq!(sub(&shared(), &jsonwebtoken::encode(&header, &ann(), &key).unwrap()), None);
}

#[test]
fn valid_tokens_are_cached_within_bounds() {
    let verifier = shared();
    let token = hs256(&ann());
    assert!(sub(&verifier, &token).is_some() && sub(&verifier, &token).is_some());
    assert_eq!(cached(&verifier), 1);
    for n in 0..3 * CACHED_MAX {
        assert!(sub(&verifier, &hs256(&with(ann(), "n", json!(n)))).is_some());
        assert!(cached(&verifier) <= CACHED_MAX);
    }
    assert!(cached(&verifier) > CACHED_MAX / 4);
}

#[test]
fn new_keys_empty_the_cache() {
    let folder = std::env::temp_dir().join(format!("sluicegate-token-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("keys");
    let set = |keys: &[(&str, &EncodingKey)]| {
        let jwk = |(id, key): &(&str, &EncodingKey)| {
            let mut jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(key, Algorithm::RS256).unwrap();
            jwk.common.key_id = Some((*id).to_owned());
            jwk
        };
        let set = jsonwebtoken::jwk::JwkSet { keys: keys.iter().map(jwk).collect() };
        std::fs::write(&file, serde_json::to_vec(&set).unwrap()).unwrap();
    };
    let (first, second) = (rsa(), other_rsa());
    set(&[("one", &first), ("two", &second)]);
    let verifier = verifier(&format!("jwks: {}", file.display()));
    let signed = |id: Option<&str>, key: &EncodingKey| {
        let header = Header { kid: id.map(str::to_owned), ..Header::new(Algorithm::RS256) };
        jsonwebtoken::encode(&header, &ann(), key).unwrap()
    };
    let of_second = signed(Some("two"), &second);
    assert!(sub(&verifier, &signed(Some("one"), &first)).is_some() && sub(&verifier, &of_second).is_some());
    assert!(sub(&verifier, &signed(None, &second)).is_some(), "every key is tried");
    assert!(sub(&verifier, &signed(Some("one"), &second)).is_none(), "it names another key");
    assert!(sub(&verifier, &signed(Some("three"), &first)).is_none(), "it names an unknown key");
    let Some(LiveKeys::File(keys)) = &verifier.entries[0].keys else { panic!("no file") };
    assert_eq!(keys.reload_if_changed(), Ok(false));
    std::fs::write(&file, "nonsense").unwrap();
    assert!(keys.reload_if_changed().is_err() && sub(&verifier, &of_second).is_some(), "the old keys stay");
    assert_eq!(keys.reload_if_changed(), Ok(false), "said once");
    set(&[("one", &first)]);
    assert_eq!(keys.reload_if_changed(), Ok(true));
    assert!(sub(&verifier, &of_second).is_none(), "its key was withdrawn");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Each fault of a token is reported by its own name.
#[test]
fn each_fault_is_reported() {
    let strict =
        verifier(&format!("secret: {SECRET}, algorithms: HS256, issuer: \"https://a.test\", audience: api"));
    let fault = |lines: &[&str]| {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(AUTHORIZATION, HeaderValue::from_str(line).unwrap());
        }
        Token::new(&strict, &headers, NOW).fault()
    };
    let of = |claims: &Value| fault(&[&format!("Bearer {}", hs256(claims))]);
    let good = json!({ "sub": "ann", "exp": NOW + 60, "iss": "https://a.test", "aud": "api" });
    let without = |name: &str| {
        let Value::Object(mut claims) = good.clone() else { panic!("claims are an object") };
        claims.remove(name);
        Value::Object(claims)
    };
    assert_eq!(of(&good), None);
    assert_eq!(of(&without("exp")), Some(TokenFault::NoExpiry));
    assert_eq!(of(&with(good.clone(), "exp", json!("soon"))), Some(TokenFault::NoExpiry));
    assert_eq!(of(&with(good.clone(), "exp", json!(NOW))), Some(TokenFault::Expired));
    assert_eq!(of(&with(good.clone(), "nbf", json!(NOW + 60))), Some(TokenFault::Early));
    assert_eq!(of(&with(good.clone(), "nbf", json!("later"))), Some(TokenFault::NoStart));
    for (name, expected) in [("iss", TokenFault::Issuer), ("aud", TokenFault::Audience)] {
        assert_eq!(of(&without(name)), Some(expected));
        assert_eq!(of(&with(good.clone(), name, json!("other"))), Some(expected));
    }
    let forged = sign(Algorithm::HS256, &EncodingKey::from_secret(b"another secret"), &good);
    assert_eq!(fault(&[&format!("Bearer {forged}")]), Some(TokenFault::Signature));
    let other = sign(Algorithm::RS256, &rsa(), &good);
    assert_eq!(fault(&[&format!("Bearer {other}")]), Some(TokenFault::Algorithm));
    assert_eq!(fault(&["Bearer a.b.c"]), Some(TokenFault::Malformed));
    assert_eq!(fault(&[]), Some(TokenFault::Absent));
    assert_eq!(fault(&["Bearer a", "Bearer b"]), Some(TokenFault::Repeated));
    assert_eq!(fault(&["Basic YTpi"]), Some(TokenFault::NotBearer));
    assert_eq!(fault(&[&format!("Bearer {}", "a".repeat(9000))]), Some(TokenFault::TooLong));
    let unfitting = verifier("jwks: keys/rsa.pub.pem, algorithms: [RS256, ES256]");
    let mut headers = HeaderMap::new();
    let token = format!("Bearer {}", sign(Algorithm::ES256, &ec(), &good));
    headers.insert(AUTHORIZATION, HeaderValue::from_str(&token).unwrap());
    assert_eq!(Token::new(&unfitting, &headers, NOW).fault(), Some(TokenFault::UnknownKey));
}

/// Entries of issuers `a` and `b`, whose keys are fetched, and of `c` with a secret.
fn three_issuers() -> TokenVerifier {
    let of = |issuer: &str| {
        format!("{{ issuer: {issuer}, jwks: \"https://{issuer}.test/\", tls: {{ ca: keys/upstream.pem }} }}")
    };
    verifier(&format!("[{}, {}, {{ issuer: c, secret: {SECRET} }}]", of("a"), of("b")))
}

fn set_of(verifier: &TokenVerifier, entry: usize) -> &Arc<KeySet> {
    let Some(LiveKeys::Fetched(set)) = &verifier.entries[entry].keys else { panic!("not fetched") };
    set
}

fn signed_as(issuer: &str, id: Option<&str>, key: &EncodingKey) -> String {
    let header = Header { kid: id.map(str::to_owned), ..Header::new(Algorithm::RS256) };
    jsonwebtoken::encode(&header, &with(ann(), "iss", json!(issuer)), key).unwrap()
}

fn set_text(keys: &[(&str, &EncodingKey)]) -> Vec<u8> {
    let jwk = |(id, key): &(&str, &EncodingKey)| {
        let mut jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(key, Algorithm::RS256).unwrap();
        jwk.common.key_id = Some((*id).to_owned());
        jwk
    };
    serde_json::to_vec(&jsonwebtoken::jwk::JwkSet { keys: keys.iter().map(jwk).collect() }).unwrap()
}

fn fault_of(verifier: &TokenVerifier, token: &str) -> Option<TokenFault> {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
    Token::new(verifier, &headers, NOW).fault()
}

#[test]
fn keys_never_cross_issuers() {
    let verifier = three_issuers();
    let (first, second) = (rsa(), other_rsa());
    let fetch = |entry: usize, keys: &[(&str, &EncodingKey)]| {
        set_of(&verifier, entry).apply_text(&set_text(keys));
    };
    let of = |issuer: &str, id: Option<&str>, key| fault_of(&verifier, &signed_as(issuer, id, key));
    assert_eq!(of("a", Some("1"), &first), Some(TokenFault::NoKeys));
    fetch(0, &[("1", &first)]);
    fetch(1, &[("1", &second)]);
    assert_eq!((of("a", Some("1"), &first), of("b", Some("1"), &second)), (None, None));
    assert_eq!(of("a", Some("1"), &second), Some(TokenFault::Signature), "the same id at another issuer");
    assert_eq!(of("a", None, &second), Some(TokenFault::Signature));
    assert_eq!(of("b", Some("1"), &first), Some(TokenFault::Signature));
    assert_eq!(of("a", Some("2"), &first), Some(TokenFault::UnknownKey));
    assert_eq!(of("x", Some("1"), &first), Some(TokenFault::Issuer), "an unknown issuer");
    let own = |claims: &Value| fault_of(&verifier, &hs256(claims));
    assert_eq!(own(&with(ann(), "iss", json!("c"))), None);
    assert_eq!(own(&with(ann(), "iss", json!("a"))), Some(TokenFault::Algorithm), "the secret is of another");
    assert_eq!(own(&with(ann(), "iss", json!(["c"]))), Some(TokenFault::Issuer));
    assert_eq!(own(&ann()), Some(TokenFault::Issuer));
    let urls = Header {
        jku: Some("https://evil.test/".to_owned()),
        x5u: Some("https://evil.test/".to_owned()),
        jwk: Some(jsonwebtoken::jwk::Jwk::from_encoding_key(&second, Algorithm::RS256).unwrap()),
        ..Header::new(Algorithm::RS256)
    };
    let claims = with(ann(), "iss", json!("a"));
    let forged = jsonwebtoken::encode(&urls, &claims, &second).unwrap();
    assert_eq!(fault_of(&verifier, &forged), Some(TokenFault::Signature), "keys of the token itself");
    // The same set again keeps the cache, and one without the key empties it.
    assert_eq!(cached(&verifier), 3);
    fetch(0, &[("1", &first)]);
    assert_eq!((of("a", Some("1"), &first), cached(&verifier)), (None, 3));
    fetch(0, &[("2", &second)]);
    assert_eq!(of("a", Some("1"), &first), Some(TokenFault::UnknownKey), "withdrawn");
}
