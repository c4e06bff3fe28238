//! Session affinity of ingress-nginx as the field `sticky` of upstreams.

use std::collections::HashMap;

use super::object::{IngressObject, PREFIX};
use crate::gateway_file::PlannedField;
use crate::yaml_text::quote;
use crate::{FindingKind, ImportReport};
use sluicegate_model::value::names::parse_cookie_name;
use sluicegate_model::value::scalars::DURATION_MAX;

/// True for the annotations that `read_sticky` reads.
pub(super) fn is_affinity(name: &str) -> bool {
    name.starts_with("affinity") || name.starts_with("session-cookie-")
}

/// The field `sticky`, if there is one; reports each annotation of it.
pub(super) fn read_sticky(object: &IngressObject, report: &mut ImportReport) -> Option<PlannedField> {
    let lines = object.annotations.iter().filter_map(|(at, key, value)| {
        Some((at, key.strip_prefix(PREFIX).filter(|name| is_affinity(name))?, value.trim()))
    });
    let lines: Vec<_> = lines.collect();
    let named: HashMap<&str, &str> = lines.iter().map(|(_, name, value)| (*name, *value)).collect();
    let has_cookie = named.get("affinity") == Some(&"cookie");
    let name = named.get("session-cookie-name").filter(|name| parse_cookie_name(name).is_ok());
    let fits = |seconds: &u64| (1..=DURATION_MAX.as_secs()).contains(seconds);
    let seconds = |name: &str| named.get(name)?.parse().ok().filter(fits);
    let max_age = seconds("session-cookie-max-age");
    let time = max_age.or(seconds("session-cookie-expires"));
    for (at, annotation, value) in lines {
        let is_known = |(known, ..): &&(&str, &str, &str)| *known == annotation;
        let (kind, says) = match (annotation, value, OTHERS.iter().find(is_known)) {
            ("affinity", "cookie", _) => (FindingKind::Difference, AS_STICKY),
            ("affinity", ..) => (FindingKind::NotTranslated, "ingress-nginx knows `cookie` alone"),
            _ if !has_cookie => (FindingKind::NotTranslated, "it has no effect without `affinity: cookie`"),
            ("session-cookie-name", ..) if name.is_some() => (FindingKind::Exact, ""),
            ("session-cookie-max-age", ..) if max_age.is_some() => (FindingKind::Exact, ""),
            ("session-cookie-expires", ..) if max_age.is_none() && time.is_some() => (FindingKind::Exact, ""),
            (.., Some((_, own, _))) if *own == value => (FindingKind::Exact, ""),
            (.., Some((.., says))) => (FindingKind::NotTranslated, *says),
            _ => (
                FindingKind::NotTranslated,
                "it has no valid value, no field, or session-cookie-max-age decides",
            ),
        };
        report.add(kind, at, &format!("{PREFIX}{annotation}: {value}"), says.to_owned());
    }
    let time = time.map(|seconds| format!(", for: {seconds}s")).unwrap_or_default();
    let value = format!("{{ cookie: {}{time} }}", quote(name.unwrap_or(&"INGRESSCOOKIE")));
    has_cookie.then(|| PlannedField::new("sticky", value, "among the pods, once they are the servers"))
}

const AS_STICKY: &str = "sticky: behind one Service address the Service chooses the pod; a cookie without a time holds \
                         for an hour, and there until the browser closes; conditions of a canary come before it";

/// Annotations without a field, the value that is that of the gateway, and what holds in place of others.
const OTHERS: [(&str, &str, &str); 8] = [
    ("affinity-mode", "persistent", "the cookie leads to its server as long as that one is up"),
    ("affinity-canary-behavior", "", "ingress-nginx reads it in a canary"),
    ("session-cookie-path", "/", "the cookie is for all paths"),
    ("session-cookie-domain", "", "the cookie is for its host alone"),
    ("session-cookie-secure", "", "the cookie is `Secure` where the scheme is https"),
    ("session-cookie-samesite", "Lax", "the cookie is `SameSite=Lax`"),
    ("session-cookie-conditional-samesite-none", "false", "the cookie is `SameSite=Lax`"),
    ("session-cookie-change-on-failure", "true", "the cookie follows to the server that answers"),
];
