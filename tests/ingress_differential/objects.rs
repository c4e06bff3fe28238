//! Random Ingress objects with annotations of ingress-nginx, and their JSON.

use serde_json::{Value, json};

use crate::support::Dice;

pub const PREFIX: &str = "nginx.ingress.kubernetes.io/";
/// The services of main rules, and those of canaries.
pub const MAINS: [&str; 5] = ["m0", "m1", "m2", "m3", "m4"];
pub const CANARIES: [&str; 2] = ["c0", "c1"];
const HOSTS: [&str; 5] = ["a.test", "a.test", "b.test", "*.w.test", ""];
const PATHS: [&str; 8] = ["/", "/", "/x", "/x/", "/x/y", "/X", "/xy", "/z"];
const EXPRESSIONS: [&str; 6] = ["/x(/|$)(.*)", "/z/[0-9]+", "/(x|z)/(.*)", "/x/.*", "/p/([^/]+)/?(.*)", "/X"];
const TARGETS: [&str; 5] = ["/$2", "/$1", "/", "/new/$2", "/x"];
pub const KINDS: [&str; 3] = ["Prefix", "Exact", "ImplementationSpecific"];

/// Annotations of canaries without `canary-`. Weights are none or all, so that each request has one answer.
const POLICIES: [&[(&str, &str)]; 10] = [
    &[("by-header", "X-Env")],
    &[("by-header", "X-Env"), ("weight", "100")],
    &[("by-header", "X-Env"), ("by-header-value", "beta"), ("by-header-pattern", "always")],
    &[("by-header", "X-Env"), ("by-header-pattern", "^be|\\d$"), ("by-cookie", "c"), ("weight", "100")],
    &[("by-header", "X-Env"), ("by-header-value", "beta"), ("by-cookie", "c")],
    &[("by-header", "X-Env"), ("by-cookie", "c"), ("weight", "120"), ("weight-total", "120")],
    &[("by-cookie", "c")],
    &[("by-cookie", "c"), ("weight", "100"), ("weight-total", "50")],
    &[("weight", "100")],
    &[("weight", "0"), ("by-header-value", "always")],
];

/// An Ingress with one rule, or with a default backend alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    pub name: String,
    /// The second of its creation.
    pub created: usize,
    /// Empty for any host.
    pub host: &'static str,
    pub paths: Vec<Path>,
    /// The service of its default backend.
    pub default: Option<&'static str>,
    /// Without their prefix.
    pub annotations: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    pub text: &'static str,
    pub kind: &'static str,
    pub service: &'static str,
}

impl Object {
    pub fn get(&self, annotation: &str) -> Option<&str> {
        self.annotations.iter().find(|(name, _)| *name == annotation).map(|(_, value)| value.as_str())
    }

    pub fn is_canary(&self) -> bool {
        self.get("canary").is_some()
    }

    /// True if it is for all requests that no rule is for.
    pub fn takes_rest(&self) -> bool {
        self.default.is_some() && self.paths.is_empty() && self.host.is_empty()
    }

    pub fn json(&self) -> Value {
        let backend = |service| json!({ "service": { "name": service, "port": { "number": 80 } } });
        let annotations = self.annotations.iter();
        let annotations = annotations.map(|(name, value)| (format!("{PREFIX}{name}"), json!(value)));
        let paths = self.paths.iter().map(
            |path| json!({ "path": path.text, "pathType": path.kind, "backend": backend(path.service) }),
        );
        let (mut rule, mut spec) = (json!({}), json!({}));
        if !self.paths.is_empty() {
            rule["http"] = json!({ "paths": paths.collect::<Vec<_>>() });
        }
        if !self.host.is_empty() {
            rule["host"] = json!(self.host);
        }
        if !self.takes_rest() {
            spec["rules"] = json!([rule]);
        }
        if let Some(service) = self.default {
            spec["defaultBackend"] = backend(service);
        }
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {
                "name": self.name,
                "namespace": "default",
                "uid": self.name,
                "resourceVersion": "1",
                "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", self.created),
                "annotations": annotations.collect::<serde_json::Map<_, _>>(),
            },
            "spec": spec,
        })
    }
}

/// Objects in the order of their file.
pub fn roll_objects(dice: &mut Dice) -> Vec<Object> {
    let mut objects: Vec<Object> = (0..2 + dice.below(4)).map(|number| roll_main(number, dice)).collect();
    for number in 0..dice.below(3) {
        let mains: Vec<&Object> =
            objects.iter().filter(|object| !object.is_canary() && !object.paths.is_empty()).collect();
        let canary = mains.get(dice.below(mains.len().max(1))).map(|main| roll_canary(number, main, dice));
        objects.extend(canary);
    }
    for place in (1..objects.len()).rev() {
        objects.swap(place, dice.below(place + 1));
    }
    objects
}

fn roll_main(number: usize, dice: &mut Dice) -> Object {
    let mut annotations = Vec::new();
    match dice.below(6) {
        0 => annotations.push(("use-regex", "true".to_owned())),
        1 => annotations.push(("rewrite-target", dice.pick(&TARGETS).to_owned())),
        _ => {}
    }
    let is_regex = !annotations.is_empty();
    if dice.one_in(4) {
        annotations.push(("proxy-body-size", dice.pick(&["0", "1k", "2k"]).to_owned()));
    }
    let count = if dice.one_in(12) { 0 } else { 1 + dice.below(3) };
    let paths = (0..count).map(|_| {
        let is_expression = is_regex && !dice.one_in(3);
        let text = dice.pick(if is_expression { &EXPRESSIONS[..] } else { &PATHS });
        let kind = if is_expression { "ImplementationSpecific" } else { dice.pick(&KINDS) };
        Path { text, kind, service: dice.pick(&MAINS) }
    });
    let paths = paths.collect();
    let (created, host) = (dice.below(4), dice.pick(&HOSTS));
    let default = dice.one_in(8).then(|| dice.pick(&MAINS));
    let mut object = Object { name: format!("i{number}"), created, host, paths, default, annotations };
    if object.paths.is_empty() {
        // Those of a location that is there for a default backend alone hold in part.
        object.annotations.clear();
    }
    object
}

/// A canary of one path of `main`, now and then of another `pathType`.
fn roll_canary(number: usize, main: &Object, dice: &mut Dice) -> Object {
    let mut path = main.paths[dice.below(main.paths.len())].clone();
    if dice.one_in(6) {
        path.kind = dice.pick(&KINDS);
    }
    path.service = dice.pick(&CANARIES);
    let names = [
        "canary-by-header",
        "canary-by-header-value",
        "canary-by-header-pattern",
        "canary-by-cookie",
        "canary-weight",
        "canary-weight-total",
    ];
    let policy = dice.pick(&POLICIES).iter();
    let policy = policy.filter_map(|(name, value)| {
        let full = names.iter().find(|full| full.strip_prefix("canary-") == Some(name))?;
        Some((*full, (*value).to_owned()))
    });
    let annotations = std::iter::once(("canary", "true".to_owned())).chain(policy).collect();
    let (created, host) = (dice.below(4), main.host);
    Object { name: format!("k{number}"), created, host, paths: vec![path], default: None, annotations }
}

/// A canary that takes 60 of 200 requests for a path that is rewritten.
pub fn weighted_objects() -> Vec<Object> {
    let object = |name: &str, service, annotations: &[(&'static str, &str)]| Object {
        name: name.to_owned(),
        created: 0,
        host: "a.test",
        paths: vec![Path { text: "/x", kind: "Prefix", service }],
        default: None,
        annotations: annotations.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
    };
    let weight = [("canary", "true"), ("canary-weight", "60"), ("canary-weight-total", "200")];
    vec![object("main", "m0", &[("rewrite-target", "/new")]), object("next", "c0", &weight)]
}
