//! Differences that are no faults of the import, each with its reason.

use crate::case::{Case, Side};
use crate::objects::{CANARIES, Object, Path};
use crate::requests::{Answer, Request, normalise};

pub struct Known {
    pub side: Side,
    pub reason: &'static str,
    /// `ours` is the answer of the gateway, `theirs` that of the other program.
    pub explains: fn(&Case, &Request, ours: &Answer, theirs: &Answer) -> bool,
}

pub const KNOWN: &[Known] = &[
    Known {
        side: Side::Nginx,
        reason: "*.w.test stands for all names below w.test here, and for those of one label more there",
        explains: |case, request, _, _| is_deep(case, request),
    },
    Known {
        side: Side::Nginx,
        reason: "a redirect to the path with its slash drops the query",
        explains: |_, request, ours, theirs| {
            (ours.status, theirs.status) == (301, 301) && request.target.contains('?')
        },
    },
    Known {
        side: Side::Nginx,
        reason: "a large body gets 413 even where the answer would be a redirect or the 404 of the default backend",
        explains: |_, _, ours, theirs| matches!((ours.status, theirs.status), (301 | 404, 413)),
    },
    Known {
        side: Side::Traefik,
        reason: "*.w.test stands for all names below w.test here, and for those of one label more there",
        explains: |case, request, _, _| is_deep(case, request),
    },
    Known {
        side: Side::Traefik,
        reason: "nginx redirects a path to the one with its slash, Traefik does not",
        explains: |_, _, ours, theirs| ours.status == 301 && theirs.status != 301,
    },
    Known {
        side: Side::Traefik,
        reason: "a canary of a path that is an expression gets no request",
        explains: |case, request, ours, theirs| {
            is_regex(case, request) && is_of_canary(ours) && !is_of_canary(theirs)
        },
    },
    Known {
        side: Side::Traefik,
        reason: "a rewrite replaces each part of the path that matches, and in nginx the whole path",
        explains: |case, request, ours, theirs| {
            let is_odd =
                theirs.status == 400 || ours.service == theirs.service && ours.target != theirs.target;
            let rewrites =
                |object: &Object| object.get("rewrite-target").is_some() && case.is_for(object, request);
            is_odd && case.objects.iter().any(rewrites)
        },
    },
    Known {
        side: Side::Traefik,
        reason: "an exact path stays exact and keeps its case beside expressions",
        explains: |case, request, ours, _| {
            let is_exact = |path: &Path| path.kind == "Exact" && case.leads(path.service, ours);
            is_regex(case, request) && case.paths_at(request).any(is_exact)
        },
    },
    Known {
        side: Side::Traefik,
        reason: "bodies are bounded only where requests are buffered",
        explains: |_, _, ours, theirs| ours.status == 413 && theirs.status != 413,
    },
    Known {
        side: Side::Traefik,
        reason: "the default backend of any object of a host takes what is left, and in nginx that of the first one",
        explains: |case, request, _, theirs| {
            let mut objects = case.objects.iter().filter(|object| case.is_for(object, request));
            objects.any(|object| object.default.is_some_and(|service| case.leads(service, theirs)))
        },
    },
    Known {
        side: Side::Traefik,
        reason: "the longest rule wins, whatever it has: a prefix over an exact path, the conditions of a canary over a \
                 longer path, a rule for any host over the 404 of a host, and any one of equal paths",
        explains: |case, request, _, theirs| {
            let mut paths = case.objects.iter().filter(|object| case.is_for(object, request));
            paths.any(|object| {
                let mut paths = object.paths.iter().filter(|path| covers(path, request));
                !object.is_canary() && paths.any(|path| case.leads(path.service, theirs))
            })
        },
    },
];

impl Case {
    /// The objects for the host of a request: those of the host, else those for the names below one, else all others.
    fn objects_at<'c>(&'c self, request: &Request) -> impl Iterator<Item = &'c Object> + use<'c> {
        let name = request.host.split(':').next().unwrap_or_default().to_ascii_lowercase();
        let below = name.split_once('.').map(|(_, rest)| format!("*.{rest}")).unwrap_or_default();
        let hosts = [name, below, String::new()];
        let host = hosts.into_iter().find(|host| self.objects.iter().any(|object| object.host == host));
        self.objects.iter().filter(move |object| host.as_deref() == Some(object.host))
    }

    /// The paths of main rules for the host of a request.
    fn paths_at<'c>(&'c self, request: &Request) -> impl Iterator<Item = &'c Path> + use<'c> {
        self.objects_at(request).filter(|object| !object.is_canary()).flat_map(|object| &object.paths)
    }

    /// True if an object is for the host of a request, or for any host.
    fn is_for(&self, object: &Object, request: &Request) -> bool {
        object.host.is_empty() || self.objects_at(request).any(|other| other.host == object.host)
    }

    /// True if an answer is that of a service, or of a canary of it.
    fn leads(&self, service: &str, answer: &Answer) -> bool {
        let Some(name) = answer.service.as_deref() else { return false };
        let is_main = |host: &str, text: &str| {
            let mut mains = self.objects.iter().filter(|object| object.host == host && !object.is_canary());
            mains.any(|main| main.paths.iter().any(|path| (path.text, path.service) == (text, service)))
        };
        let mut canaries = self.objects.iter().filter(|object| object.is_canary());
        name == service
            || canaries.any(|canary| {
                canary.paths.iter().any(|path| path.service == name && is_main(canary.host, path.text))
            })
    }
}

/// True if the host of a request is more than one label below that of a rule.
fn is_deep(case: &Case, request: &Request) -> bool {
    request.host == "u.v.w.test" && case.objects.iter().any(|object| object.host == "*.w.test")
}

/// True if the paths of the host are expressions.
fn is_regex(case: &Case, request: &Request) -> bool {
    let makes = |object: &Object| object.get("use-regex").or(object.get("rewrite-target")).is_some();
    case.objects_at(request).any(makes)
}

fn is_of_canary(answer: &Answer) -> bool {
    answer.service.as_deref().is_some_and(|service| CANARIES.contains(&service))
}

/// True if a path may match the request: what stands before its first sign of an expression does.
fn covers(path: &Path, request: &Request) -> bool {
    let target = normalise(request.target.split('?').next().unwrap_or_default()).to_lowercase();
    let plain = path.text.split(['(', '[', '.']).next().unwrap_or_default().to_lowercase();
    target.starts_with(&plain) || plain.strip_suffix('/') == Some(&target)
}
