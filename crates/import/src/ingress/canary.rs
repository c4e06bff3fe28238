//! Canaries: Ingress objects whose services take some requests of the service of another one.

use std::collections::{HashMap, HashSet};

use super::object::{IngressObject, IngressPath, PREFIX, read_number};
use crate::gateway_file::PlannedField;
use crate::nginx::path_edits::check_field;
use crate::nginx::regex::{is_usable_path, translate_pattern};
use crate::yaml_text::{flow_map, quote};
use crate::{FindingKind, ImportFault, ImportReport, ImportedLine};

/// The requests that a canary takes.
pub(super) struct CanaryPolicy {
    /// Fields `when` in the order of precedence, and whether each leads to the canary or keeps the main service.
    pub conditions: Vec<(PlannedField, bool)>,
    /// The share of the other requests, of `total`.
    pub weight: u64,
    pub total: u64,
    /// Whether a cookie of the main Ingress keeps clients at the service that the share gave them.
    pub keeps_clients: bool,
}

/// A path of a canary.
#[derive(Clone, Copy)]
pub(super) struct Canary<'o> {
    pub object: &'o IngressObject,
    pub path: &'o IngressPath,
    pub policy: &'o CanaryPolicy,
}

/// The namespace, the name and the port of a service, by which ingress-nginx tells services apart.
type ServiceKey<'o> = (&'o str, &'o str, &'o str);

pub(super) fn service_key<'o>(object: &'o IngressObject, path: &'o IngressPath) -> ServiceKey<'o> {
    (&object.namespace, &path.service, &path.port)
}

/// The canaries by their main services, without those that ingress-nginx leaves out.
pub(super) fn match_canaries<'o>(
    mains: &[(&'o IngressObject, &'o IngressPath)],
    canaries: &'o [(&'o IngressObject, CanaryPolicy)],
    report: &mut ImportReport,
) -> HashMap<ServiceKey<'o>, Canary<'o>> {
    let place = |path: &'o IngressPath| (&path.host, &path.path, path.is_exact);
    let mut main_at = HashMap::new();
    for (object, path) in mains {
        main_at.entry(place(path)).or_insert_with(|| service_key(object, path));
    }
    let main_services: HashSet<_> = main_at.values().copied().collect();
    let (mut found, mut policies) = (HashMap::new(), HashMap::new());
    let objects = canaries.iter().map(|(object, policy)| (*object, policy));
    for (object, path, policy) in
        objects.flat_map(|(object, policy)| object.paths.iter().map(move |path| (object, path, policy)))
    {
        let own = service_key(object, path);
        // The first canary of a service decides for all of them.
        let policy = *policies.entry(own).or_insert(policy);
        let (kind, says) = match main_at.get(&place(path)) {
            None => {
                (FindingKind::NotTranslated, "left out: no other Ingress has this host, path and pathType")
            }
            Some(_) if main_services.contains(&own) => {
                (FindingKind::Lost, "left out: its service is also that of a path without a canary")
            }
            Some(main) => {
                let first: &Canary<'_> = found.entry(*main).or_insert(Canary { object, path, policy });
                match service_key(first.object, first.path) == own {
                    true => (FindingKind::Exact, "for all paths of the main service"),
                    false => (FindingKind::NotTranslated, "left out: an earlier canary of the service wins"),
                }
            }
        };
        report.add(kind, &path.at, &format!("path {} of a canary", path.path), says.to_owned());
    }
    found
}

/// Annotations of ingress-nginx that are not empty, by their names.
type NamedAnnotations<'o> = HashMap<&'o str, (&'o ImportedLine, &'o str)>;

/// The policy of a canary; `None` for any other Ingress.
pub(super) fn read_canary(
    object: &IngressObject,
    report: &mut ImportReport,
) -> Result<Option<CanaryPolicy>, ImportFault> {
    let lines = object.annotations.iter();
    let named = lines.filter_map(|(at, key, value)| Some((key.strip_prefix(PREFIX)?, (at, value.trim()))));
    let named: NamedAnnotations<'_> = named.filter(|(_, (_, value))| !value.is_empty()).collect();
    if !named
        .get("canary")
        .is_some_and(|(_, value)| matches!(*value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
    {
        return Ok(None);
    }
    let number = |name: &str| named.get(name).map_or(Ok(0), |(at, value)| read_number(at, value));
    let (weight, total) = (number("canary-weight")?, number("canary-weight-total")?.max(100));
    let has = |name: &str| named.contains_key(name);
    for (at, key, value) in &object.annotations {
        let (kind, says) = match key.strip_prefix(PREFIX).unwrap_or_default() {
            "canary-by-header-pattern" if has("canary-by-header") && !has("canary-by-header-value") => {
                (FindingKind::Difference, "a header that is given twice, or is empty, matches nothing")
            }
            "canary-by-header-value" | "canary-by-header-pattern" if !has("canary-by-header") => {
                (FindingKind::NotTranslated, "it has no effect without canary-by-header")
            }
            "canary-by-header-pattern" => {
                (FindingKind::NotTranslated, "it has no effect beside canary-by-header-value")
            }
            "canary-by-cookie" => (
                FindingKind::Difference,
                "a cookie that is given twice chooses nothing; there the first does",
            ),
            "canary-weight" if (1..total).contains(&weight) => {
                (FindingKind::Difference, "a connection that fails is tried again at any of both services")
            }
            "canary"
            | "canary-by-header"
            | "canary-by-header-value"
            | "canary-weight"
            | "canary-weight-total"
            | "affinity-canary-behavior" => (FindingKind::Exact, ""),
            _ => (FindingKind::NotTranslated, "ingress-nginx does not read it in a canary"),
        };
        report.add(kind, at, &format!("{key}: {value}"), says.to_owned());
    }
    let mut conditions = read_conditions(&named, report);
    // Conditions before the last location that lead where it does.
    let rest = if weight == 0 { Some(false) } else { (weight >= total).then_some(true) };
    while conditions.last().is_some_and(|(_, leads)| Some(*leads) == rest) {
        conditions.pop();
    }
    let is_legacy = named.get("affinity-canary-behavior").is_some_and(|(_, value)| *value == "legacy");
    Ok(Some(CanaryPolicy { conditions, weight, total, keeps_clients: !is_legacy }))
}

/// The fields `when` for headers and cookies, in the order of precedence.
fn read_conditions(named: &NamedAnnotations<'_>, report: &mut ImportReport) -> Vec<(PlannedField, bool)> {
    let words = || vec![("always".to_owned(), true), ("never".to_owned(), false)];
    let mut tests = Vec::new();
    if let Some(header) = named.get("canary-by-header") {
        // A variable of nginx has `_` for both.
        let source = format!("header:{}", header.1.replace('_', "-"));
        tests.push(match (named.get("canary-by-header-value"), named.get("canary-by-header-pattern")) {
            (Some(value), _) => (source, value, vec![(write_exact(value.1), true)]),
            (_, Some(pattern)) => {
                (source, pattern, vec![(format!("~ {}", translate_pattern(pattern.1, false)), true)])
            }
            _ => (source, header, words()),
        });
    }
    tests.extend(
        named.get("canary-by-cookie").map(|cookie| (format!("cookie:{}", cookie.1), cookie, words())),
    );
    let mut conditions = Vec::new();
    for (source, (at, value), tests) in tests {
        for (test, leads) in tests {
            let condition = PlannedField::plain("when", flow_map(&[(quote(&source), quote(&test))]));
            let usable = if test.starts_with('~') { is_usable_path(&test) } else { Ok(()) };
            match usable.and_then(|()| check_field(&condition)) {
                Ok(()) => conditions.push((condition, leads)),
                Err(why) => report.loses(at, value, format!("this condition is left out: {why}")),
            }
        }
    }
    conditions
}

/// The test for exactly this value, which may look like another test.
fn write_exact(value: &str) -> String {
    match value.starts_with('~') || matches!(value, "*" | "!") {
        true => format!("~ ^{}$", regex_syntax::escape(value)),
        false => value.to_owned(),
    }
}
