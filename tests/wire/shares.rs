//! `shares` as people see them: answers, access log, metrics, keys, lists and explanations.

use jsonwebtoken::EncodingKey;
use serde_json::{Value, json};

use crate::support::*;

const SECRET: &str = "of-the-tests-0123456789abcdef-0123456789";

/// A limit for each fact that names a class. Gold has 10 of 40 for itself, and 30 are common. Nothing refills while the
/// test runs.
fn file(trusted: &str) -> String {
    let limit = |name: &str, by: &str| {
        format!(
            "  by-{name}: {{ key: global, rate: 40/d, burst: 40, \
             shares: {{ by: {by}, classes: {{ gold: {{ least: 50% }} }} }} }}\n"
        )
    };
    let names = [
        ("tier", "tier"),
        ("account", "account"),
        ("header", "\"header:X-Class\""),
        ("claim", "\"jwt:team\""),
    ];
    let limits: String = names.iter().map(|(name, by)| limit(name, by)).collect();
    let location = |(name, _): &(&str, &str)| {
        format!("  - {{ path: /{name}, respond: {{ body: ok }}, limits: by-{name} }}\n")
    };
    let locations: String = names.iter().map(location).collect();
    format!(
        "server: {{ trusted_proxies: [{trusted}] }}\n\
         account: {{ from: jwt:sub, tier: {{ from: jwt:plan, default: free }}, \
         jwt: {{ secret: {SECRET}, algorithms: HS256 }} }}\n\
         limits:\n{limits}{}  plain: {{ key: global, rate: 1000/d }}\n\
         locations:\n{locations}  \
         - {{ path: /place, name: gold, respond: {{ body: ok }}, limits: [plain, by-place] }}\n  \
         - {{ path: /elsewhere, respond: {{ body: ok }}, limits: by-place, \
         on_reject: {{ body: {{ template: \"${{limit}}/${{class}}\" }} }} }}\n",
        limit("place", "location")
    )
}

/// A request of a caller that is gold by every fact but its location.
fn gold(target: &str) -> Ask {
    let claims = json!({ "sub": "gold", "plan": "gold", "team": "gold", "exp": u32::MAX });
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).expect("a token");
    get(target).header("Authorization", format!("Bearer {token}")).header("X-Class", "gold")
}

fn class_of(refused: &Response) -> Value {
    refused.json()["class"].clone()
}

#[test]
fn each_fact_names_a_class() {
    let gateway = Gateway::start(&file("127.0.0.1"));
    let mut client = gateway.client();
    for name in ["tier", "account", "header", "claim"] {
        let path = format!("/{name}");
        (0..30).for_each(|_| drop(client.ask(&get(&path)).expect(200)));
        let refused = client.ask(&get(&path)).expect(429);
        assert_eq!(
            (refused.json()["limit"].as_str(), class_of(&refused)),
            (Some(&*format!("by-{name}")), json!("default"))
        );
        for left in (0..10).rev() {
            let admitted = client.ask(&gold(&path)).expect(200);
            let told = admitted.header("ratelimit").expect("RateLimit");
            assert!(told.contains(&format!(";r={left};")), "{name}: {told}");
        }
        assert_eq!(class_of(&client.ask(&gold(&path)).expect(429)), "gold");
    }
    client.ask(&get("/header").header("X-Class", "gold").header("X-Class", "gold")).expect(400);
    (0..30).for_each(|_| drop(client.ask(&get("/elsewhere")).expect(200)));
    assert_eq!(client.ask(&get("/elsewhere")).expect(429).text(), "by-place/default");
    (0..10).for_each(|_| drop(client.ask(&get("/place")).expect(200)));
    assert_eq!(class_of(&client.ask(&get("/place")).expect(429)), "gold");

    let lines = gateway.wait_log(4 * 42 + 1 + 31 + 11);
    let logged = |path: &str, class: &str, verdict: &str| {
        let is_one =
            |line: &&Value| line["path"] == path && line["class"] == class && line["verdict"] == verdict;
        lines.iter().filter(is_one).count()
    };
    assert_eq!([logged("/tier", "default", "admit"), logged("/tier", "default", "reject")], [30, 1]);
    assert_eq!([logged("/claim", "gold", "admit"), logged("/claim", "gold", "reject")], [10, 1]);
    assert_eq!(logged("/place", "gold", "admit"), 10, "a limit without shares comes first");
    let counted = |class: &str, verdict: &str| {
        let labels = ["limit=\"by-header\"", &format!("class=\"{class}\",verdict=\"{verdict}\"")];
        gateway.metric("sluicegate_decisions_total", &labels)
    };
    assert_eq!(
        [
            counted("gold", "admit"),
            counted("gold", "reject"),
            counted("default", "admit"),
            counted("default", "reject")
        ],
        [10.0, 1.0, 30.0, 1.0]
    );
    assert_eq!(gateway.metric("sluicegate_decisions_total", &["limit=\"plain\"", "class"]), 0.0);
}

#[test]
fn operators_see_each_class() {
    let gateway = Gateway::start(&file("127.0.0.1"));
    let mut client = gateway.client();
    (0..25).for_each(|_| drop(client.ask(&get("/tier")).expect(200)));
    (0..6).for_each(|_| drop(client.ask(&gold("/tier")).expect(200)));
    let asked =
        |path: &str| gateway.ask_admin(&get(path).header("Accept", "application/json")).expect(200).json();
    let key = asked("/limits/by-tier/keys/global");
    let rest = json!([{ "class": "gold", "remaining": 9 }, { "class": "default", "remaining": 5 }]);
    assert_eq!((&key["classes"], &key["remaining"]), (&rest, &json!(9)), "{key:#}");
    assert!(asked("/limits/plain/keys/global").get("classes").is_none());
    let limits = asked("/limits");
    let of = |name: &str| {
        limits["limits"].as_array().expect("a list").iter().find(|one| one["limit"] == name).cloned()
    };
    let classes = of("by-tier").expect("the limit")["classes"].clone();
    let told: Vec<(&str, u64)> = classes
        .as_array()
        .expect("classes")
        .iter()
        .map(|one| (one["class"].as_str().unwrap_or("?"), one["admitted"]["total"].as_u64().unwrap_or(0)))
        .collect();
    assert_eq!(told, [("gold", 6), ("default", 25)]);
    assert_eq!(classes[0]["share"], "never below 20 per day, up to 40 while others are idle");
    assert!(of("plain").expect("the limit").get("classes").is_none());
    let text = gateway.ask_admin(&get("/limits").header("Accept", "text/plain")).expect(200).text();
    assert!(text.contains("gold: never below 20 per day"), "{text}");
}

/// Anybody can write a header, so that it counts from proxies alone; `explain` says so.
#[test]
fn a_header_of_strangers_names_no_class() {
    let gateway = Gateway::start(&file("192.0.2.1"));
    let mut client = gateway.client();
    (0..30).for_each(|_| drop(client.ask(&gold("/header")).expect(200)));
    assert_eq!(class_of(&client.ask(&gold("/header")).expect(429)), "default");

    let dir = Scratch::new();
    let path = dir.file("gateway.yaml", &format!("listen: 127.0.0.1:0\n{}", file("192.0.2.1")));
    let path = path.display().to_string();
    let explain = |from: &str, name: &str, class: &str| {
        let header = format!("X-Class: {class}");
        let target = format!("/{name}");
        let args = ["explain", "GET", &target, "-c", &path, "--ip", from, "-H", &header];
        Run::default().args(&args).finish(dir.path()).stdout
    };
    let told = explain("192.0.2.1", "header", "gold");
    assert!(
        told.contains(
            "    class gold: by header x-class\n    \
             40 of 40 left, 10 of its own: admit\n"
        ),
        "{told}"
    );
    let told = explain("198.51.100.1", "header", "gold");
    assert!(
        told.contains(
            "    class default: header x-class counts from trusted proxies only\n    \
             30 of 30 left, 0 of its own: admit\n"
        ),
        "{told}"
    );
    let told = explain("192.0.2.1", "header", "iron");
    assert!(told.contains("    class default: no class has the name of its header x-class\n"), "{told}");
    let told = explain("192.0.2.1", "account", "gold");
    assert!(told.contains("    class default: the request has no account\n"), "{told}");
    let told = explain("192.0.2.1", "place", "gold");
    assert!(told.contains("    class gold: by location\n"), "{told}");
}
