//! What is told of a changed file, and what is not.

use crate::parse;

#[track_caller]
fn changes(old: &str, new: &str) -> Vec<String> {
    let read = |text: &str| {
        let rest = if text.contains("locations") { "" } else { "locations: [{ path: /, upstream: demo }]\n" };
        parse(&format!("{text}{rest}"), "gateway.yaml").unwrap_or_else(|report| panic!("{report}")).values
    };
    let told = |old: &str, new: &str| -> Vec<String> {
        read(old).changes_to(&read(new)).iter().map(ToString::to_string).collect()
    };
    assert_eq!(told(new, new), [""; 0], "{new}");
    assert_eq!(told(old, new).is_empty(), told(new, old).is_empty(), "{old} {new}");
    told(old, new)
}

#[test]
fn numbers_are_told_with_their_fields() {
    let limits = |limits: &str| format!("limits: {{ {limits} }}\n");
    let told = |old: &str, new: &str| changes(&limits(old), &limits(new));
    assert_eq!(told("per-ip: 10/s", "per-ip: 20/s"), ["limits.per-ip.rate: 10/s → 20/s"]);
    assert_eq!(told("per-ip: 10/s", "per-ip: { rate: 10/s }"), [""; 0]);
    assert_eq!(told("a: 1/s", "a: { rate: 1/s, burst: 5 }"), ["limits.a.burst: new, 5"]);
    assert_eq!(told("a: { rate: 1/s, burst: 5 }", "a: 1/s"), ["limits.a.burst: gone, was 5"]);
    assert_eq!(told("a: 1/s", "b: { rate: 1/s, burst: 5 }"), ["limits.b: new", "limits.a: gone"]);
    assert_eq!(
        told("a: { rate: [1/s, 2/m] }", "a: { rate: [1/s, 3/m] }"),
        ["limits.a.rate: [1/s, 2/m] → [1/s, 3/m]"]
    );
    assert_eq!(
        told("a: { rate: 1/s, tiers: { x: { rate: 2/s } } }", "a: { rate: 1/s, tiers: { x: none } }"),
        ["limits.a.tiers.x: {…} → none", "limits.a.tiers.x.rate: gone, was 2/s"]
    );
    assert_eq!(changes("", "limits: { a: 1/s }\n"), ["limits.a: new"]);
    assert_eq!(changes("", "server: { max_body: 1MiB }\n"), ["server.max_body: new, 1MiB"]);
    assert_eq!(changes("", "owner: pay\n"), ["owner: new, pay", "locations /.owner: new, pay"]);
}

#[test]
fn locations_are_told_by_what_they_match() {
    let locations = |items: &[&str]| {
        items.iter().fold("locations:\n".to_owned(), |text, item| {
            text + &format!("  - {{ {item}, upstream: demo }}\n")
        })
    };
    let told = |old: &[&str], new: &[&str]| changes(&locations(old), &locations(new));
    assert_eq!(told(&["path: /"], &["path: /", "path: /a/"]), ["locations /a/: new"]);
    assert_eq!(told(&["path: /", "path: /a/"], &["path: /a/"]), ["locations /: gone"]);
    assert_eq!(told(&["path: /, timeout: 1s"], &["path: /, timeout: 2s"]), ["locations /.timeout: 1s → 2s"]);
    assert_eq!(
        told(&["path: /, host: [a.test, b.test]"], &["path: /, host: a.test"]),
        ["locations a.test /: new", "locations [a.test, b.test] /: gone"]
    );
    assert_eq!(
        told(
            &["path: /, methods: GET", "path: /, methods: PUT"],
            &["path: /, methods: PUT", "path: /, methods: GET"]
        ),
        [""; 0]
    );
    assert_eq!(told(&["path: /"], &["path: /", r#"path: '~ ^/a\."x"$'"#]), [r#"locations ~ ^/a\."x"$: new"#]);
    assert_eq!(told(&["path: /a, name: one"], &["path: /b, name: one"]), ["locations one.path: /a → /b"]);
    assert_eq!(
        told(&["path: /, limits: 1/s"], &["path: /, limits: [{ rate: 2/s, name: x }]"]),
        ["locations /.limits: 1/s → {…}", "locations /.limits[x]: new"]
    );
}

#[test]
fn a_secret_is_told_as_changed() {
    let (old, new) = ("hunter2-hunter2-hunter2-hunter2-", "hunter3-hunter3-hunter3-hunter3-");
    for (text, path) in [
        ("admin: { listen: 127.0.0.1:1, token: SECRET }\n", "admin.token"),
        (
            "admin: { listen: 127.0.0.1:1, tokens: [{ name: ops, token: SECRET }] }\n",
            "admin.tokens[ops].token",
        ),
        ("service: { listen: 127.0.0.1:1, token: [SECRET, other] }\n", "service.token"),
        (
            "state: { store: redis, redis: { url: \"redis://u:SECRET@h\" } }\nlimits: { a: 1/s }\n",
            "state.redis.url",
        ),
        ("account: { from: jwt:sub, jwt: { algorithms: [HS256], secret: SECRET } }\n", "account.jwt.secret"),
        ("access_log: { hash_secret: SECRET }\n", "access_log.hash_secret"),
        ("tracing: { otlp: http://h:1, headers: { x-odd: SECRET } }\n", "tracing.headers.x-odd"),
        ("notify: { url: \"http://127.0.0.1:1/SECRET\", secret: 0123456789abcdef01234567 }\n", "notify.url"),
        ("notify: { url: \"http://127.0.0.1:1/\", secret: SECRET }\n", "notify.secret"),
        (
            "locations: [{ path: /, upstream: demo, request_headers: { set: { X-Key: SECRET } } }]\n",
            "locations /.request_headers.set.X-Key",
        ),
        (
            "locations: [{ path: /, upstream: demo, request_headers: { set: { Authorization: SECRET } } }]\n",
            "locations /.request_headers.set.Authorization",
        ),
    ] {
        let (before, after) = (text.replace("SECRET", old), text.replace("SECRET", new));
        assert_eq!(changes(&before, &after), [format!("{path}: changed")]);
        let read = |text: &str| {
            let rest =
                if text.contains("locations") { "" } else { "locations: [{ path: /, upstream: demo }]\n" };
            parse(&format!("{text}{rest}"), "gateway.yaml").unwrap_or_else(|report| panic!("{report}"))
        };
        let all = [
            read(&before).values.changes_to(&read("").values),
            read("").values.changes_to(&read(&before).values),
        ];
        let shown = format!("{all:?} {:?}", read(&before).values);
        assert!(!shown.contains("hunter"), "{shown}");
    }
}

#[test]
fn accounts_are_told_without_their_names() {
    let members = |tiers: &str| {
        format!(
            "account: {{ from: header:x-id, tier: {{ members: {{ {tiers} }} }} }}\n\
             limits: {{ a: {{ rate: 1/s, tiers: {{ gold: {{ rate: 2/s }} }} }} }}\n"
        )
    };
    let told = changes(&members("alice: gold"), &members("alice: gold, bob: gold"));
    assert_eq!(told, ["account.tier.members: changed"]);
}

/// A variable is shown by its name; its value is a secret.
#[test]
fn variables_are_told_by_their_names() {
    let told = changes("limits: { a: 1/s }\n", "limits: { a: \"${NOT_SET_ANYWHERE:-2/s}\" }\n");
    assert_eq!(told, ["limits.a.rate: 1/s → ${NOT_SET_ANYWHERE:-2/s}"]);
    let file = std::env::temp_dir().join(format!("sluicegate-values-{}", std::process::id()));
    let text = format!("limits: {{ a: \"${{file:{}}}\" }}\nlocations: []\n", file.display());
    let read = |rate: &str| {
        std::fs::write(&file, rate).unwrap();
        parse(&text, "gateway.yaml").unwrap_or_else(|report| panic!("{report}")).values
    };
    let told = read("1/s").changes_to(&read("2/s"));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(told[0].to_string(), "limits.a.rate: changed");
}

#[test]
fn locations_of_one_path_are_told_by_their_conditions() {
    let location = |rest: &str| format!("  - {{ path: /, upstream: demo{rest} }}\n");
    let (main, canary) = (location(""), location(", when: { \"header:X-Env\": canary }"));
    let old = format!("locations:\n{main}");
    let new = format!("locations:\n{canary}{main}");
    assert_eq!(changes(&old, &new), ["locations / header:X-Env=canary: new"]);
    let keyed = |key: &str| {
        format!("locations:\n{}", location(&format!(", when: {{ \"header:X-Api-Key\": {key} }}")))
    };
    let told = changes(&keyed("one"), &keyed("two")).join("\n");
    assert!(!told.contains("one") && !told.contains("two"), "{told}");
}
