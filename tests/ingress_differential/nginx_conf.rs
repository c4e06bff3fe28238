//! The nginx.conf that ingress-nginx writes, as far as the objects need it.
//!
//! ingress-nginx chooses between a service and its canary in Lua; here maps do, in the same order of precedence.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use crate::objects::{CANARIES, MAINS, Object};

/// A location of a host.
#[derive(Clone)]
struct Place<'o> {
    path: String,
    is_exact: bool,
    /// `None`: the default backend of all, which answers 404.
    service: Option<&'static str>,
    /// Nothing but a default backend leads to it.
    is_default: bool,
    /// The object with the annotations.
    object: Option<&'o Object>,
}

impl Place<'_> {
    fn annotation(&self, name: &str) -> Option<&str> {
        self.object?.get(name)
    }

    fn rewrites(&self) -> Option<&str> {
        self.annotation("rewrite-target").filter(|target| *target != self.path)
    }

    fn is_expression(&self) -> bool {
        self.rewrites().is_some() || self.annotation("use-regex").is_some()
    }
}

type Hosts<'o> = BTreeMap<&'static str, Vec<Place<'o>>>;

/// The order in which ingress-nginx reads objects: the oldest first, and of equal ones the last name first.
fn in_order(objects: &[Object]) -> Vec<&Object> {
    let mut ordered: Vec<&Object> = objects.iter().collect();
    ordered.sort_by_key(|object| (object.created, Reverse(&object.name)));
    ordered
}

/// The inside of `http`, with `@m0@` for the address of a service; `None`: nginx takes no configuration with these
/// objects, because a location stands in it twice.
pub fn write_conf(objects: &[Object]) -> Option<String> {
    let ordered = in_order(objects);
    let hosts = collect_places(&ordered)?;
    let mut out =
        String::from("underscores_in_headers off; client_max_body_size 1m; proxy_http_version 1.1;\n");
    for service in MAINS.into_iter().chain(CANARIES) {
        out += &write_choice(service, find_canary(service, &ordered, &hosts));
    }
    for (host, places) in &hosts {
        let places = write_places(places)?;
        if host.is_empty() {
            let _ = writeln!(out, "server {{ listen @0@ default_server; server_name _;\n{places} }}");
            continue;
        }
        let name = match host.strip_prefix("*.") {
            Some(rest) => format!("\"~^(?<subdomain>[\\w-]+)\\.{}$\"", rest.replace('.', "\\.")),
            None => (*host).to_owned(),
        };
        let _ = writeln!(out, "server {{ listen @0@; server_name {name};\n{places} }}");
    }
    Some(out)
}

/// The locations of hosts, sorted as ingress-nginx sorts them, before paths of prefixes become two.
fn collect_places<'o>(ordered: &[&'o Object]) -> Option<Hosts<'o>> {
    let mains = || ordered.iter().copied().filter(|object| !object.is_canary());
    let root =
        |service, object| Place { path: "/".to_owned(), is_exact: false, service, is_default: true, object };
    let mut hosts = Hosts::from([("", vec![root(None, None)])]);
    for object in mains() {
        hosts.entry(object.host).or_insert_with(|| vec![root(object.default, Some(object))]);
        let rest = hosts.get_mut("").filter(|places| object.takes_rest() && places[0].is_default);
        if let Some(places) = rest {
            places[0] = Place { is_default: false, ..root(object.default, Some(object)) };
        }
    }
    for object in mains() {
        let places = hosts.get_mut(object.host)?;
        for path in &object.paths {
            let is_exact = path.kind == "Exact";
            let (service, object) = (Some(path.service), Some(object));
            let place = Place { path: path.text.to_owned(), is_exact, service, is_default: false, object };
            let same: Vec<usize> = (0..places.len()).filter(|at| places[*at].path == path.text).collect();
            // ingress-nginx looks at the first location of a path alone.
            match same.first() {
                Some(first) if places[*first].is_exact == is_exact => {
                    if places[*first].is_default {
                        places[*first] = place;
                    }
                }
                _ if same.iter().any(|at| places[*at].is_exact == is_exact) => return None,
                _ => places.push(place),
            }
        }
    }
    for places in hosts.values_mut() {
        places.sort_by(|a, b| (b.path.len(), &b.path).cmp(&(a.path.len(), &a.path)));
    }
    Some(hosts)
}

fn write_places(places: &[Place<'_>]) -> Option<String> {
    let places = split_prefixes(places);
    let by_regex = places.iter().any(Place::is_expression);
    let (mut out, mut heads) = (String::new(), HashSet::new());
    for place in places {
        let head = match (by_regex, place.is_exact) {
            (true, _) => format!("~* \"^{}\"", place.path),
            (false, true) => format!("= {}", place.path),
            (false, false) => place.path.clone(),
        };
        if !heads.insert(head.clone()) && !by_regex {
            return None;
        }
        let size = place.annotation("proxy-body-size").unwrap_or("1m");
        let rewrite = place.rewrites();
        let rewrite = rewrite
            .map(|target| format!("rewrite \"(?i){}\" {target} break;", place.path))
            .unwrap_or_default();
        let answer = match place.service {
            Some(service) => {
                format!("proxy_set_header Host $http_host; {rewrite} proxy_pass http://$to_{service};")
            }
            None => "return 404;".to_owned(),
        };
        let _ = writeln!(out, "  location {head} {{ client_max_body_size {size}; {answer} }}");
    }
    Some(out)
}

/// A prefix without an expression becomes one with a slash at its end, and an exact path unless another object has it.
fn split_prefixes<'o>(places: &[Place<'o>]) -> Vec<Place<'o>> {
    let exact: HashSet<&str> =
        places.iter().filter(|place| place.is_exact).map(|place| place.path.as_str()).collect();
    let mut found = Vec::new();
    for place in places {
        if place.path == "/" || place.is_exact || place.is_expression() {
            found.push(place.clone());
            continue;
        }
        let path = format!("{}/", place.path.strip_suffix('/').unwrap_or(&place.path));
        found.push(Place { path, ..place.clone() });
        if !exact.contains(place.path.as_str()) {
            found.push(Place { is_exact: true, ..place.clone() });
        }
    }
    found
}

/// The first canary of a service, by any of its paths.
fn find_canary<'o>(
    service: &str,
    ordered: &[&'o Object],
    hosts: &Hosts<'_>,
) -> Option<(&'static str, &'o Object)> {
    let mut policies = BTreeMap::new();
    let canaries: Vec<&Object> = ordered.iter().copied().filter(|object| object.is_canary()).collect();
    for canary in &canaries {
        for path in &canary.paths {
            policies.entry(path.service).or_insert(*canary);
        }
    }
    let mut paths = canaries.iter().flat_map(|canary| canary.paths.iter().map(|path| (canary.host, path)));
    let (_, path) = paths.find(|(host, path)| {
        let mut places = hosts.get(host).into_iter().flatten();
        places.any(|place| {
            let is_same = (place.path.as_str(), place.is_exact) == (path.text, path.kind == "Exact");
            is_same && place.service == Some(service)
        })
    })?;
    Some((path.service, policies[path.service]))
}

/// The maps of `$to_SERVICE`, the address to which requests for a service go.
fn write_choice(service: &str, canary: Option<(&'static str, &Object)>) -> String {
    let Some((other, policy)) = canary else {
        return format!("map \"\" $to_{service} {{ default @{service}@; }}\n");
    };
    let weight = policy.get("canary-weight").is_some_and(|weight| weight != "0");
    let rest = if weight { format!("@{other}@") } else { format!("@{service}@") };
    // Texts in maps have no case, expressions do.
    let word = |word: &str, to: &str| format!("\"~^{word}\\z\" @{to}@; ");
    let words = || word("always", other) + &word("never", service);
    let (cookie, by_cookie) = match policy.get("canary-by-cookie") {
        Some(name) => (format!("$cookie_{name}"), words()),
        None => (String::new(), String::new()),
    };
    let (header, by_header) = match policy.get("canary-by-header") {
        Some(name) => {
            let tests = match (policy.get("canary-by-header-value"), policy.get("canary-by-header-pattern")) {
                (Some(value), _) => word(value, other),
                (None, Some(pattern)) => format!("\"~{pattern}\" @{other}@; "),
                (None, None) => words(),
            };
            (format!("$http_{}", name.to_lowercase().replace('-', "_")), tests)
        }
        None => (String::new(), String::new()),
    };
    format!(
        "map \"{cookie}\" $by_cookie_{service} {{ {by_cookie}default {rest}; }}\n\
         map \"{header}\" $to_{service} {{ {by_header}default $by_cookie_{service}; }}\n"
    )
}
