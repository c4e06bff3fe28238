//! Ingress objects with annotations of ingress-nginx.

use sluicegate_config as config;
use sluicegate_import::import_file;

use crate::support::Scratch;

const INGRESS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: shop
  namespace: prod
  annotations:
    nginx.ingress.kubernetes.io/limit-rps: "10"
    nginx.ingress.kubernetes.io/limit-rpm: "100"
    nginx.ingress.kubernetes.io/limit-burst-multiplier: "3"
    nginx.ingress.kubernetes.io/limit-connections: "7"
    nginx.ingress.kubernetes.io/limit-rate: "64"
    nginx.ingress.kubernetes.io/limit-rate-after: "128"
    nginx.ingress.kubernetes.io/limit-whitelist: "10.0.0.0/8, 192.0.2.1"
    nginx.ingress.kubernetes.io/rewrite-target: /
spec:
  rules:
    - host: shop.test
      http:
        paths:
          - { path: /api, pathType: Prefix, backend: { service: { name: api, port: { name: http } } } }
          - { path: /exact, pathType: Exact, backend: { service: { name: api, port: { number: 81 } } } }
          - { path: /raw, pathType: ImplementationSpecific, backend: { service: { name: web, port: { number: 80 } } } }
---
apiVersion: v1
kind: Service
metadata: { name: api, namespace: prod }
spec: { ports: [{ name: http, port: 8080 }] }
"#;

#[test]
fn annotations_become_limits() {
    let scratch = Scratch::new();
    let imported = import_file(&scratch.file("ingress.yaml", INGRESS)).unwrap();
    config::parse(&imported.yaml, "gateway.yaml")
        .unwrap_or_else(|report| panic!("{report}\n{}", imported.yaml));
    let yaml: serde_yaml::Value = serde_yaml::from_str(&imported.yaml).unwrap();
    let rps = &yaml["limits"]["prod-shop-rps"];
    assert_eq!((rps["rate"].as_str(), rps["burst"].as_u64()), (Some("10/s"), Some(31)));
    assert_eq!(rps["bypass"][1].as_str(), Some("192.0.2.1/32"));
    let rpm = &yaml["limits"]["prod-shop-rpm"];
    // nginx counts 100r/m as 1.666 per second.
    assert_eq!((rpm["rate"].as_str(), rpm["burst"].as_u64()), (Some("833/500s"), Some(301)));
    assert_eq!(yaml["limits"]["prod-shop-connections"]["max_concurrent"].as_u64(), Some(7));
    let paths: Vec<_> =
        yaml["locations"].as_sequence().unwrap().iter().map(|l| l["path"].as_str().unwrap()).collect();
    // A rewrite makes expressions of all paths, the longest first.
    assert_eq!(paths, ["~* ^/exact", "~* ^/raw", "~* ^/api"]);
    let first = &yaml["locations"][0];
    assert_eq!(first["limits"].as_sequence().unwrap().len(), 3);
    assert_eq!(first["bandwidth"]["burst"].as_str(), Some("128KiB"));
    let server = &yaml["upstreams"]["prod-api-8080"]["servers"][0];
    assert_eq!(server.as_str(), Some("http://api.prod.svc.cluster.local:8080"));
    assert_eq!(first["rewrite"]["from"].as_str(), Some("(?i)/exact"));
    assert_eq!(first["rewrite"]["to"].as_str(), Some("/"));
    assert_eq!(imported.report.count_lost(), 0, "{}", imported.report.render_text());
}

/// An Ingress of one path at `a.test`.
fn ingress_of(name: &str, annotations: &str, kind: &str, path: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{ name: {name}, annotations: {{ {annotations} }} }}\n\
         spec: {{ rules: [{{ host: a.test, http: {{ paths: [{{ path: \"{path}\", pathType: {kind}, backend: \
         {{ service: {{ name: {name}, port: {{ number: 80 }} }} }} }}] }} }}] }}\n---\n"
    )
}

fn paths_of(text: &str) -> Vec<(String, String)> {
    let scratch = Scratch::new();
    let imported = import_file(&scratch.file("ingress.yaml", text)).unwrap();
    let yaml: serde_yaml::Value = serde_yaml::from_str(&imported.yaml).unwrap();
    let text =
        |location: &serde_yaml::Value, name: &str| location[name].as_str().unwrap_or_default().to_owned();
    let locations = yaml["locations"].as_sequence().unwrap();
    locations.iter().map(|location| (text(location, "path"), text(location, "upstream"))).collect()
}

#[test]
fn one_ingress_makes_expressions_of_all_paths_of_a_host() {
    let prefix = "nginx.ingress.kubernetes.io/";
    let own = |name: &str| format!("default-{name}-80");
    let admin = ingress_of(
        "admin",
        &format!("{prefix}rewrite-target: /$2"),
        "ImplementationSpecific",
        "/admin(/|$)(.*)",
    );
    let all = [ingress_of("all", "", "Prefix", "/"), ingress_of("x", "", "Prefix", "/x"), admin].concat();
    let expected =
        [(r"~* ^/admin(/|\n?$)(.*)", "admin"), ("~* ^/x/", "x"), ("~* ^/x", "x"), ("~* ^/", "all")];
    assert_eq!(paths_of(&all), expected.map(|(path, name)| (path.to_owned(), own(name))));
    let use_regex = format!("{prefix}use-regex: \"true\"");
    let used = ingress_of("api", &use_regex, "Prefix", "/api/.*");
    let all = [ingress_of("all", "", "Exact", "/Skip"), used].concat();
    let expected = [("~* ^/api/.*", "api"), ("~* (?-u:^/Skip)", "all")];
    assert_eq!(paths_of(&all), expected.map(|(path, name)| (path.to_owned(), own(name))));
    // Beside expressions, ingress-nginx has its own `/` before an exact one.
    let all = [ingress_of("all", "", "Exact", "/"), ingress_of("api", &use_regex, "Prefix", "/api")].concat();
    assert_eq!(paths_of(&all), [("~* ^/api".to_owned(), own("api"))]);
    // The exact path of another Ingress is not that of the prefix, and what it takes of `/x` depends on their order.
    let pair = [ingress_of("one", "", "Exact", "/x"), ingress_of("all", "", "Prefix", "/x")];
    let all = [&pair[..], &[ingress_of("api", &use_regex, "Prefix", "/y")]].concat().concat();
    let expected = [("~* ^/y", "api"), ("~* ^/x", "one"), ("~* ^/x/", "all")];
    assert_eq!(paths_of(&all), expected.map(|(path, name)| (path.to_owned(), own(name))));
    let all = [ingress_of("all", "", "Prefix", "/x"), ingress_of("one", "", "Exact", "/x")].concat();
    let expected = [("/x/", "all"), ("= /x", "one")];
    assert_eq!(paths_of(&all)[..2], expected.map(|(path, name)| (path.to_owned(), own(name))));
}

/// ingress-nginx reads the oldest object first, and of equal ones the last name.
#[test]
fn the_oldest_ingress_of_a_path_wins() {
    let at = |name: &str, created: &str| {
        let object = ingress_of(name, "", "Prefix", "/x");
        object.replace("{ name:", &format!("{{ creationTimestamp: \"2026-01-0{created}T00:00:00Z\", name:"))
    };
    for (objects, winner) in [
        ([at("a", "2"), at("b", "1")], "b"),
        ([at("a", "1"), at("b", "1")], "b"),
        ([at("b", "1"), at("a", "2")], "b"),
        ([ingress_of("a", "", "Prefix", "/x"), ingress_of("b", "", "ImplementationSpecific", "/x")], "a"),
    ] {
        let found = paths_of(&objects.concat());
        assert!(found.iter().all(|(_, upstream)| *upstream == format!("default-{winner}-80")), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
    }
}

/// nginx redirects the path without its slash, unless another Ingress has just this path.
#[test]
fn a_path_with_a_slash_gets_a_redirect() {
    let own = |path: &str, name: &str| (path.to_owned(), name.to_owned());
    for kind in ["Prefix", "Exact"] {
        let mark = if kind == "Exact" { "= " } else { "" };
        let folder = ingress_of("all", "", kind, "/x/");
        let expected = [own(&format!("{mark}/x/"), "default-all-80"), own("= /x", "")];
        assert_eq!(paths_of(&folder), expected);
        let found = paths_of(&[folder, ingress_of("one", "", "Exact", "/x")].concat());
        assert_eq!(found[1..], [own("= /x", "default-one-80")]);
    }
    let used = "nginx.ingress.kubernetes.io/use-regex: \"true\"";
    assert_eq!(paths_of(&ingress_of("all", used, "Exact", "/x/")), [own("~* ^/x/", "default-all-80")]);
}

/// A default backend is that of the hosts of its Ingress; a host without paths answers 404.
#[test]
fn default_backends_are_for_their_hosts() {
    let backend = "defaultBackend: { service: { name: rest, port: { number: 80 } } }, rules:";
    let object = ingress_of("all", "", "Prefix", "/x").replace("rules:", backend);
    let scratch = Scratch::new();
    let import = |text: &str| {
        let yaml = import_file(&scratch.file("ingress.yaml", text)).unwrap().yaml;
        serde_yaml::from_str::<serde_yaml::Value>(&yaml).unwrap()["locations"].as_sequence().unwrap().clone()
    };
    let last = import(&object).pop().unwrap();
    let of = |location: &serde_yaml::Value, name: &str| location[name].as_str().map(str::to_owned);
    assert_eq!([of(&last, "path"), of(&last, "host")], [Some("/".to_owned()), Some("a.test".to_owned())]);
    assert_eq!(of(&last, "upstream").as_deref(), Some("default-rest-80"));
    // An earlier Ingress of the host has none.
    let found = import(&[ingress_of("one", "", "Prefix", "/y"), object].concat());
    assert!(found.iter().all(|location| of(location, "path").as_deref() != Some("/")), "{found:?}");
    let rest = "kind: Ingress\nmetadata: { name: a }\nspec: { rules: [{}] }\n---\nkind: Ingress\nmetadata: { name: rest }\nspec: { defaultBackend: { service: { name: rest, port: \
                { number: 80 } } } }\n---\nkind: Ingress\nmetadata: { name: b }\nspec: { rules: [{ host: b.test }] }\n";
    let found = import(rest);
    assert_eq!([of(&found[0], "host"), of(&found[1], "host")], [None, Some("b.test".to_owned())]);
    assert_eq!(found[1]["respond"]["status"].as_u64(), Some(404));
}

/// The targets of `rewrite-target`, and the field `rewrite` for the path `/a(/|$)(.*)`, or why there is none.
#[test]
fn rewrite_targets_become_rewrites() {
    let scratch = Scratch::new();
    for (target, to) in [
        ("/$2", Ok("/$2")),
        ("/v1/$2/$3", Ok("/v1/$2/")),
        ("/$1$2", Ok("/$1$2")),
        ("/x/..", Err("is not a path to send")),
        ("$2", Err("is not a path to send")),
        ("/$2?a=b", Err("takes no `?`")),
        ("/%41", Err("takes no `%`")),
        ("/$host", Err("only groups")),
        ("https://b.test/$2", Err("is not a path to send")),
    ] {
        let annotation = format!("nginx.ingress.kubernetes.io/rewrite-target: \"{target}\"");
        let text = ingress_of("all", &annotation, "ImplementationSpecific", "/a(/|$)(.*)");
        let imported = import_file(&scratch.file("ingress.yaml", &text)).unwrap();
        let yaml: serde_yaml::Value = serde_yaml::from_str(&imported.yaml).unwrap();
        let rewrite = &yaml["locations"][0]["rewrite"];
        let report = imported.report.render_text();
        assert_eq!(rewrite["to"].as_str(), to.ok(), "{target}\n{report}");
        match to {
            Ok(_) => assert_eq!(rewrite["from"].as_str(), Some(r"(?i)/a(/|\n?$)(.*)")),
            Err(why) => assert!(report.contains(why), "{target}\n{report}"),
        }
        assert_eq!(imported.report.count_lost(), usize::from(to.is_err()), "{target}\n{report}");
    }
    // No rewrite: the target is the path.
    let text = ingress_of("all", "nginx.ingress.kubernetes.io/rewrite-target: /", "Prefix", "/");
    let imported = import_file(&scratch.file("ingress.yaml", &text)).unwrap();
    assert!(!imported.yaml.contains("rewrite:"), "{}", imported.yaml);
}

/// The conditions and upstreams at `/`, with the annotations of a canary, and a text of the report.
const CANARIES: &[(&str, &[&str], &str)] = &[
    ("by-header: X-Env", &["header:X-Env=always next", "main"], "0 lines"),
    (
        "by-header: X_Env, P-by-cookie: beta",
        &["header:X-Env=always next", "header:X-Env=never main", "cookie:beta=always next", "main"],
        "a cookie that is given twice",
    ),
    ("by-header: X-Env, P-by-header-value: \"!\"", &["header:X-Env=~ ^!$ next", "main"], "0 lines"),
    (
        "by-header: X, P-by-header-value: a, P-by-header-pattern: b",
        &["header:X=a next", "main"],
        "no effect beside canary-by-header-value",
    ),
    (
        "by-header: X, P-by-header-pattern: \"^a$\"",
        &["header:X=~ ^a\\n?$ next", "main"],
        "twice, or is empty",
    ),
    ("by-header-value: a, P-weight: 100", &["next"], "no effect without canary-by-header"),
    ("by-cookie: c, P-weight: 100", &["cookie:c=always next", "cookie:c=never main", "next"], "0 lines"),
    ("weight: 30", &["main-canary"], "a connection that fails"),
    ("by-header: X, P-by-header-pattern: \"a(\"", &["main"], "LOST: 1"),
    ("by-header: X, P-by-header-pattern: \"a(?=b)\", P-weight: 100", &["next"], "LOST: 1"),
    ("by-header: Host", &["main"], "LOST: 1"),
    ("by-header: a b", &["main"], "LOST: 1"),
    ("weight: 0", &["main"], "0 lines"),
    (
        "by-header: X, P-limit: 1, P-canary: \"false\"",
        &["header:X=always next", "main"],
        "not read it in a canary",
    ),
];

#[test]
fn canaries_become_conditions_and_weights() {
    let scratch = Scratch::new();
    for (annotations, expected, says) in CANARIES {
        let annotations =
            format!("P: \"true\", P-{annotations}").replace('P', "nginx.ingress.kubernetes.io/canary");
        let objects =
            [ingress_of("next", &annotations, "Prefix", "/"), ingress_of("main", "", "Prefix", "/")];
        let imported = import_file(&scratch.file("ingress.yaml", &objects.concat())).unwrap();
        let yaml: serde_yaml::Value = serde_yaml::from_str(&imported.yaml).unwrap();
        let written: Vec<String> = yaml["locations"]
            .as_sequence()
            .unwrap()
            .iter()
            .map(|location| {
                let when = location["when"].as_mapping().and_then(|when| when.iter().next());
                let when = when
                    .map(|(key, value)| format!("{}={} ", key.as_str().unwrap(), value.as_str().unwrap()));
                let upstream =
                    location["upstream"].as_str().unwrap().replace("default-", "").replace("-80", "");
                when.unwrap_or_default() + &upstream
            })
            .collect();
        let report = imported.report.render_text() + "0 lines";
        let unused = config::parse(&imported.yaml, "gateway.yaml").unwrap().warnings.into_iter();
        let unused: Vec<_> = unused.filter(|warning| warning.message.contains("never used")).collect();
        assert!(unused.is_empty(), "{}", imported.yaml);
        assert_eq!(written, *expected, "{annotations}\n{report}");
        assert!(report.contains(says), "{annotations}\n{report}");
        assert_eq!(imported.report.count_lost() > 0, says.starts_with("LOST"), "{report}");
    }
}

#[test]
fn a_canary_without_a_main_rule_is_left_out() {
    let canary =
        "nginx.ingress.kubernetes.io/canary: \"true\", nginx.ingress.kubernetes.io/canary-weight: \"100\"";
    let import = |objects: &[String]| {
        let imported = import_file(&Scratch::new().file("ingress.yaml", &objects.concat())).unwrap();
        (imported.yaml, imported.report.count_lost(), imported.report.render_text())
    };
    let main = || ingress_of("main", "", "Prefix", "/");
    for (kind, path) in [("Prefix", "/other"), ("Exact", "/")] {
        let (yaml, lost, report) = import(&[ingress_of("next", canary, kind, path), main()]);
        assert!(
            !yaml.contains("next") && report.contains("no other Ingress has this host"),
            "{yaml}{report}"
        );
        assert_eq!(lost, 0, "{report}");
    }
    // Of two canaries the first one, and of equal services none.
    let (yaml, lost, report) = import(&[
        main(),
        ingress_of("next", canary, "Prefix", "/"),
        ingress_of("third", canary, "Prefix", "/"),
    ]);
    assert!(yaml.contains("next") && !yaml.contains("third") && lost == 0, "{yaml}{report}");
    let (yaml, lost, report) = import(&[main(), ingress_of("main", canary, "Prefix", "/")]);
    assert!(!yaml.contains("when") && lost == 1, "{yaml}{report}");
    // Nothing but the weight has an effect without the word.
    let plain = "nginx.ingress.kubernetes.io/canary-weight: \"100\"";
    let (yaml, lost, _) = import(&[main(), ingress_of("next", plain, "Prefix", "/x")]);
    assert!(yaml.contains("path: /x/") && lost == 0, "{yaml}");
}

#[test]
fn redirects_and_further_hosts_are_lost() {
    let prefix = "nginx.ingress.kubernetes.io/";
    let scratch = Scratch::new();
    for (annotation, is_closed) in [
        ("permanent-redirect: https://b.test/", true),
        ("temporal-redirect: https://b.test/", true),
        ("app-root: /app", false),
        ("from-to-www-redirect: \"true\"", false),
        ("force-ssl-redirect: \"true\"", false),
        ("server-alias: b.test", false),
        ("configuration-snippet: deny all;", true),
        ("enable-modsecurity: \"true\"", true),
        ("guard-of-a-module: \"true\"", true),
        ("rewrite-target: https://b.test/", false),
    ] {
        let text = ingress_of("all", &format!("{prefix}{annotation}"), "Prefix", "/");
        let imported = import_file(&scratch.file("ingress.yaml", &text)).unwrap();
        assert_eq!(imported.report.count_lost(), 1, "{}", imported.yaml);
        assert_eq!(imported.yaml.contains("    respond: { status: 403 }"), is_closed, "{}", imported.yaml);
    }
}

/// Annotations of one Ingress, the fields `sticky` and `max_body` that they become, and a line of the report.
const AFFINITIES: &[(&str, Option<&str>, Option<&str>, &str)] = &[
    ("P-affinity: cookie", Some("{ cookie: INGRESSCOOKIE }"), None, "there until the browser closes"),
    (
        "P-affinity: cookie, P-session-cookie-name: shop, P-session-cookie-max-age: \"7200\", \
         P-session-cookie-expires: \"60\", P-affinity-mode: persistent, P-session-cookie-path: /",
        Some("{ cookie: shop, for: 7200s }"),
        None,
        "session-cookie-max-age decides",
    ),
    (
        "P-affinity: cookie, P-session-cookie-max-age: \"-1\", P-session-cookie-expires: \"3153600000\"",
        Some("{ cookie: INGRESSCOOKIE, for: 3153600000s }"),
        None,
        "it has no valid value",
    ),
    (
        "P-affinity: cookie, P-session-cookie-samesite: None, P-session-cookie-name: \"a b\"",
        Some("{ cookie: INGRESSCOOKIE }"),
        None,
        "the cookie is `SameSite=Lax`",
    ),
    (
        "P-affinity: cookie, P-session-cookie-secure: \"true\"",
        Some("{ cookie: INGRESSCOOKIE }"),
        None,
        "scheme is https",
    ),
    (
        "P-affinity: cookie, P-session-cookie-domain: a.test",
        Some("{ cookie: INGRESSCOOKIE }"),
        None,
        "for its host alone",
    ),
    (
        "P-affinity: cookie, P-session-cookie-change-on-failure: \"false\"",
        Some("{ cookie: INGRESSCOOKIE }"),
        None,
        "follows to the server that answers",
    ),
    ("P-affinity: ip, P-session-cookie-name: shop", None, None, "ingress-nginx knows `cookie` alone"),
    ("P-session-cookie-name: shop", None, None, "no effect without `affinity: cookie`"),
    ("P-proxy-body-size: 8m", None, Some("8MiB"), ""),
    ("P-proxy-body-size: \"0\"", None, Some("none"), ""),
    ("P-proxy-body-size: 10K", None, Some("10KiB"), ""),
];

#[test]
fn affinity_and_sizes_of_bodies_become_fields() {
    let scratch = Scratch::new();
    for (annotations, sticky, max_body, says) in AFFINITIES {
        let prefix = |text: &str| text.replace("P-", "nginx.ingress.kubernetes.io/");
        let text = ingress_of("all", &prefix(annotations), "Prefix", "/");
        let imported = import_file(&scratch.file("ingress.yaml", &text)).unwrap();
        let report = imported.report.render_text();
        config::parse(&imported.yaml, "gateway.yaml")
            .unwrap_or_else(|wrong| panic!("{wrong}\n{}", imported.yaml));
        let yaml: serde_yaml::Value = serde_yaml::from_str(&imported.yaml).unwrap();
        let expected: serde_yaml::Value = serde_yaml::from_str(sticky.unwrap_or("null")).unwrap();
        let upstream = &yaml["upstreams"]["default-all-80"];
        let found = upstream.get("sticky").cloned().unwrap_or_default();
        assert_eq!(found, expected, "{annotations}\n{}", imported.yaml);
        assert_eq!(yaml["locations"][0]["max_body"].as_str(), *max_body, "{}", imported.yaml);
        assert_eq!(yaml["server"]["max_body"].as_str(), Some("1MiB"));
        assert!(report.contains(&prefix(says)), "{annotations}\n{report}");
        assert_eq!(imported.report.count_lost(), 0, "{report}");
    }
    let text = ingress_of("all", "nginx.ingress.kubernetes.io/proxy-body-size: 8x", "Prefix", "/");
    let fault = import_file(&scratch.file("ingress.yaml", &text)).unwrap_err();
    assert_eq!(fault.message, "`8x` is not a size");
}

/// A cookie keeps a client at the version that the share gave it, unless the canary says `legacy`.
#[test]
fn affinity_holds_for_the_share_of_a_canary() {
    let main = ingress_of("main", "nginx.ingress.kubernetes.io/affinity: cookie", "Prefix", "/");
    for (behavior, keeps) in [
        ("", true),
        (", P-affinity-canary-behavior: sticky", true),
        (", P-affinity-canary-behavior: legacy", false),
    ] {
        let canary = format!("P-canary: \"true\", P-canary-weight: \"30\"{behavior}");
        let canary = canary.replace("P-", "nginx.ingress.kubernetes.io/");
        let objects = [ingress_of("next", &canary, "Prefix", "/"), main.clone()].concat();
        let imported = import_file(&Scratch::new().file("ingress.yaml", &objects)).unwrap();
        let yaml: serde_yaml::Value = serde_yaml::from_str(&imported.yaml).unwrap();
        let upstream = &yaml["upstreams"]["default-main-80-canary"];
        assert_eq!(upstream["servers"].as_sequence().unwrap().len(), 2, "{}", imported.yaml);
        assert_eq!(upstream.get("sticky").is_some(), keeps, "{}", imported.yaml);
    }
}

/// A snippet of the server holds for the paths of others at its hosts.
#[test]
fn a_snippet_of_the_server_closes_its_hosts() {
    let scratch = Scratch::new();
    let snippet = "nginx.ingress.kubernetes.io/server-snippet: \"location /x { deny all; }\"";
    let all = [ingress_of("one", snippet, "Prefix", "/a"), ingress_of("all", "", "Prefix", "/")].concat();
    let yaml = import_file(&scratch.file("ingress.yaml", &all)).unwrap().yaml;
    let locations = yaml.split("locations:").nth(1).unwrap_or_default();
    let forwards = locations.lines().filter(|line| line.trim_start().starts_with("upstream:")).count();
    assert_eq!(forwards, 0, "{yaml}");
}

/// ingress-nginx redirects HTTP to HTTPS where it has a certificate.
#[test]
fn redirects_to_tls_are_lost() {
    let scratch = Scratch::new();
    let off = "nginx.ingress.kubernetes.io/ssl-redirect: \"false\"";
    for (annotations, lost) in [("", 1), (off, 0)] {
        let text = ingress_of("all", annotations, "Prefix", "/").replace("spec: {", "spec: { tls: [{}],");
        let report = import_file(&scratch.file("ingress.yaml", &text)).unwrap().report;
        assert_eq!(report.count_lost(), lost, "{}", report.render_text());
    }
}

#[test]
fn what_denies_and_is_unknown_is_lost() {
    let scratch = Scratch::new();
    let text = INGRESS.replace("rewrite-target: /", "auth-url: http://$host/");
    let imported = import_file(&scratch.file("ingress.yaml", &text)).unwrap();
    assert_eq!(imported.report.count_lost(), 1, "{}", imported.report.render_text());
    let unknown = INGRESS.replace("rewrite-target: /", "enable-modsecurity: \"true\"");
    let imported = import_file(&scratch.file("ingress.yaml", &unknown)).unwrap();
    assert_eq!(imported.report.count_lost(), 1, "{}", imported.report.render_text());
    let wrong = INGRESS.replace("limit-rps: \"10\"", "limit-rps: \"ten\"");
    let fault = import_file(&scratch.file("ingress.yaml", &wrong)).unwrap_err();
    assert_eq!((fault.at.line, fault.message.as_str()), (8, "`ten` is not a number"));
    let fault = import_file(&scratch.file("other.yaml", "a: b\n")).unwrap_err();
    assert!(fault.message.contains("no Kubernetes object"), "{fault}");
}

/// Whoever had to show a password, a certificate or the consent of another server gets 403.
#[test]
fn what_was_closed_stays_closed() {
    let scratch = Scratch::new();
    for check in ["auth-type: basic", "auth-url: http://$host/", "auth-tls-secret: prod/ca"] {
        let lines = format!("{check}\n    nginx.ingress.kubernetes.io/auth-realm: staff");
        let text = INGRESS.replace("rewrite-target: /", &lines);
        let imported = import_file(&scratch.file("ingress.yaml", &text)).unwrap();
        assert_eq!(imported.report.count_lost(), 1, "{}", imported.report.render_text());
        let yaml: serde_yaml::Value = serde_yaml::from_str(&imported.yaml).unwrap();
        for location in yaml["locations"].as_sequence().unwrap() {
            assert_eq!(location["respond"]["status"].as_u64(), Some(403), "{}", imported.yaml);
            assert!(location.get("upstream").is_none(), "{}", imported.yaml);
        }
        let comment = imported.yaml.lines().find(|line| line.contains("# LOST: ")).expect("a comment");
        assert!(comment.contains(check), "{comment}");
    }
}

/// A service that decides becomes `auth`, unless it is asked in a way that the gateway has not.
#[test]
fn a_service_that_decides_is_asked() {
    let scratch = Scratch::new();
    let import = |lines: &[&str]| {
        let lines = lines.join("\n    nginx.ingress.kubernetes.io/");
        let text = INGRESS.replace("rewrite-target: /", &lines);
        import_file(&scratch.file("ingress.yaml", &text)).unwrap()
    };
    let url = "auth-url: http://auth.test/verify";
    let imported =
        import(&[url, "auth-response-headers: \"X-User, X-Groups\"", "auth-signin: https://auth.test/"]);
    assert_eq!(imported.report.count_lost(), 0, "{}", imported.report.render_text());
    let asked = "auth: { url: \"http://auth.test/verify\", copy: [X-User, X-Groups], limits: ";
    assert!(imported.yaml.contains(asked), "{}", imported.yaml);
    config::parse(&imported.yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    for other in ["auth-method: POST", "auth-snippet: return 200;", "auth-response-headers: X-Forwarded-User"]
    {
        let imported = import(&[url, other]);
        assert_eq!(imported.report.count_lost(), 1, "{}", imported.report.render_text());
        assert!(!imported.yaml.contains("\n    upstream: "), "{}", imported.yaml);
    }
}
