//! Canaries of ingress-nginx on the gateway: the service that its order of precedence gives to each request.

use sluicegate_import::import_file;

use crate::support::{Gateway, Scratch, Upstream, get};

/// Annotations of a canary, without their prefix.
type Annotations = &'static [(&'static str, &'static str)];

const POLICIES: &[Annotations] = &[
    &[("by-header", "X-Env")],
    &[("by-header", "X-Env"), ("weight", "100")],
    &[("by-header", "X_Env"), ("by-header-value", "beta"), ("by-header-pattern", "always")],
    &[("by-header", "X-Env"), ("by-header-value", "*"), ("by-cookie", "c")],
    &[("by-header", "X-Env"), ("by-header-value", "~ .")],
    &[("by-header", "X-Env"), ("by-header-pattern", "^be|\\d$"), ("by-cookie", "c"), ("weight", "100")],
    &[("by-header", "X-Env"), ("by-cookie", "c")],
    &[("by-header", "X-Env"), ("by-cookie", "c"), ("weight", "100")],
    &[("by-header", "X-Env"), ("by-cookie", "c"), ("weight", "120"), ("weight-total", "120")],
    &[("by-cookie", "c")],
    &[("by-cookie", "c"), ("weight", "100"), ("weight-total", "50")],
    &[("by-header-value", "always"), ("by-cookie", "c")],
    &[("weight", "0")],
    &[],
];

const VALUES: &[Option<&str>] = &[
    None,
    Some("always"),
    Some("never"),
    Some("other"),
    Some("beta"),
    Some("Always"),
    Some("*"),
    Some("~ ."),
    Some("v7"),
    Some("7v"),
];

/// The balancer of ingress-nginx in few words; true = the canary.
fn leads(policy: Annotations, header: Option<&str>, cookie: Option<&str>) -> bool {
    let of = |name: &str| policy.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
    if let (Some(_), Some(sent)) = (of("by-header"), header) {
        match (of("by-header-value"), of("by-header-pattern")) {
            (Some(value), _) if value == sent => return true,
            (None, Some(_)) if sent.starts_with("be") || sent.ends_with(|c: char| c.is_ascii_digit()) => {
                return true;
            }
            (None, None) if sent == "always" => return true,
            (None, None) if sent == "never" => return false,
            _ => {}
        }
    }
    match cookie.filter(|_| of("by-cookie").is_some()) {
        Some("always") => true,
        Some("never") => false,
        // Weights here are none or all.
        _ => of("weight").is_some_and(|weight| weight != "0"),
    }
}

/// An Ingress of `service` for each path of `a.test`.
fn ingress(name: &str, service: &str, annotations: Annotations, prefix: &str, paths: &[&str]) -> String {
    let lines: String = annotations
        .iter()
        .map(|(name, value)| format!("    nginx.ingress.kubernetes.io/{prefix}{name}: '{value}'\n"))
        .collect();
    let paths: String = paths
        .iter()
        .map(|path| {
            format!(
                "          - {{ path: {path}, pathType: Prefix, backend: {{ service: {{ name: {service}, \
                 port: {{ number: 80 }} }} }} }}\n"
            )
        })
        .collect();
    format!(
        "---\nkind: Ingress\nmetadata:\n  name: {name}\n  annotations:\n    x: y\n{lines}spec:\n  rules:\n    - host: \
         a.test\n      http:\n        paths:\n{paths}"
    )
}

/// A gateway with these objects, and the reply of the service that answers; each names itself.
fn start(objects: &str) -> (Gateway, [Upstream; 2]) {
    let services = ["main", "next"].map(Upstream::named);
    let scratch = Scratch::new();
    let imported = import_file(&scratch.file("ingress.yaml", objects)).expect("an import");
    assert_eq!(imported.report.count_lost(), 0, "{}", imported.report.render_text());
    let mut yaml = format!("listen: 127.0.0.1:0\nadmin: none\naccess_log: none\n{}", imported.yaml);
    for (name, upstream) in ["main", "next"].into_iter().zip(&services) {
        yaml = yaml.replace(&format!("http://{name}.default.svc.cluster.local:80"), &upstream.url());
    }
    (Gateway::start(&yaml), services)
}

/// The service that answers, and the path that it sees.
fn answer(
    gateway: &Gateway,
    services: &[Upstream; 2],
    path: &str,
    fields: &[(&str, &str)],
) -> (bool, String) {
    let before = services.each_ref().map(Upstream::count);
    let ask = fields.iter().fold(get(path).host("a.test"), |ask, (name, value)| ask.header(name, value));
    let response = gateway.ask(&ask);
    assert_eq!(response.status, 200, "{path} {fields:?}");
    let leads = services[1].count() > before[1];
    (leads, services[usize::from(leads)].targets().pop().unwrap_or_default())
}

#[test]
fn canaries_take_the_requests_that_precedence_gives_them() {
    let mut taken = 0;
    for policy in POLICIES {
        let canary = ingress("next", "next", policy, "canary-", &["/"])
            .replace("    x: y\n", "    x: y\n    nginx.ingress.kubernetes.io/canary: 'true'\n");
        let (gateway, services) = start(&(canary + &ingress("main", "main", &[], "", &["/"])));
        for header in VALUES {
            for cookie in VALUES {
                let cookie_line = cookie.map(|value| format!("a=b; c={value}")).unwrap_or_default();
                let fields = [("X-Env", header.unwrap_or_default()), ("Cookie", cookie_line.as_str())];
                let fields: Vec<_> = fields.into_iter().filter(|(_, value)| !value.is_empty()).collect();
                let expected = leads(policy, *header, *cookie);
                let (seen, _) = answer(&gateway, &services, "/x", &fields);
                assert_eq!(seen, expected, "{policy:?} {fields:?}");
                taken += usize::from(seen);
            }
        }
    }
    assert!(taken > 300, "{taken}");
}

/// The annotations of the main Ingress hold, for all paths of its service, and a weight is a share.
#[test]
fn a_canary_has_the_rewrites_of_the_main_service_and_its_share() {
    let rewrites: Annotations = &[("rewrite-target", "/v1/$2")];
    let weighted: Annotations =
        &[("canary", "true"), ("canary-weight", "60"), ("canary-weight-total", "200")];
    let main = ingress("main", "main", rewrites, "", &["/Shop(/|$)(.*)", "/b"]);
    let objects = main + &ingress("next", "next", weighted, "", &["/Shop(/|$)(.*)"]);
    let (gateway, services) = start(&objects);
    for (path, forwarded) in [("/shop/cart%20?x", "/v1/cart%20?x"), ("/b", "/v1/")] {
        let mut taken = 0;
        for _ in 0..400 {
            let (leads, seen) = answer(&gateway, &services, path, &[]);
            assert_eq!(seen, forwarded);
            taken += usize::from(leads);
        }
        // 120 of 400, give or take five deviations.
        assert!((75..=165).contains(&taken), "{taken}");
    }
}
