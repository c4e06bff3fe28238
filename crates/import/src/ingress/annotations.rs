//! The annotations of ingress-nginx that limit, deny, or change how a service is called.

use std::collections::HashMap;

use super::affinity::{is_affinity, read_sticky};
use super::object::{IngressObject, IngressPath, PREFIX, read_number};
use crate::gateway_file::{NamedLimitPlan, PlannedField};
use crate::networks::parse_networks;
use crate::nginx::auth::{ASKED, AuthFields, write_auth};
use crate::nginx::headers::can_be_copied;
use crate::nginx::path_edits::translate_rewrite;
use crate::nginx::regex::translate_pattern;
use crate::nginx::values::{parse_size, write_body_size};
use crate::yaml_text::{one_or_list, quote, quoted_list, write_rate};
use crate::{FindingKind, ImportFault, ImportReport, ImportedLine};
use sluicegate_model::value::server_url::is_server_url;

/// The fields and limits that the annotations of an Ingress give to all of its paths.
#[derive(Debug, Default)]
pub(super) struct IngressRules {
    pub limits: Vec<NamedLimitPlan>,
    pub location_fields: Vec<PlannedField>,
    pub upstream_fields: Vec<PlannedField>,
    /// A check that the gateway does not make refuses everyone.
    pub is_closed: bool,
    /// The same for the paths that other objects have at its hosts.
    pub closes_hosts: bool,
    /// `http` or `https`.
    pub scheme: &'static str,
    use_regex: bool,
    rewrite_target: Option<String>,
}

/// Annotations that change other things than limits and access.
const HARMLESS: &str = "\
    ssl-redirect proxy-buffering proxy-buffer-size proxy-buffers-number \
    proxy-request-buffering proxy-http-version proxy-max-temp-file-size proxy-busy-buffers-size \
    enable-access-log enable-rewrite-log enable-opentracing enable-opentelemetry service-upstream \
    upstream-hash-by upstream-vhost load-balance enable-cors connection-proxy-header \
    x-forwarded-prefix preserve-trailing-slash http2-push-preload ssl-ciphers ssl-prefer-server-ciphers \
    client-body-buffer-size proxy-send-timeout default-backend permanent-redirect-code \
    temporal-redirect-code custom-headers backend-protocol";

/// Annotations that change answers or limits of no more than some requests, and close nothing.
const OPEN: &str = "app-root from-to-www-redirect force-ssl-redirect server-alias custom-http-errors";

/// Beginnings of such names. A part of a check says nothing without it.
const FAMILIES: [&str; 6] =
    ["auth-", "cors-", "proxy-cookie-", "proxy-next-upstream", "proxy-redirect-", "proxy-ssl-"];

/// The numbers of the annotations that belong together.
#[derive(Default)]
struct AnnotatedLimits {
    per_second: Option<(ImportedLine, u64)>,
    per_minute: Option<(ImportedLine, u64)>,
    multiplier: u64,
    connections: Option<(ImportedLine, u64)>,
    rate_kib: Option<(ImportedLine, u64)>,
    rate_after_kib: u64,
    exempt: Vec<String>,
}

pub(super) fn read_rules(
    object: &IngressObject,
    report: &mut ImportReport,
) -> Result<IngressRules, ImportFault> {
    let mut numbers = AnnotatedLimits { multiplier: 5, ..AnnotatedLimits::default() };
    let mut rules = IngressRules {
        upstream_fields: vec![PlannedField::new("eject", "none", "the service chooses among its pods")],
        scheme: "http",
        ..IngressRules::default()
    };
    rules.upstream_fields.extend(read_sticky(object, report));
    let (mut access, mut times, auth) = (Vec::new(), Vec::new(), read_auth(object));
    for (at, key, value) in &object.annotations {
        let Some(name) = key.strip_prefix(PREFIX) else {
            report.skips(at, key, "it is no annotation of ingress-nginx");
            continue;
        };
        let number = || read_number(at, value);
        let positive = |number: u64| (number > 0).then(|| (at.clone(), number));
        match name {
            name if is_affinity(name) => continue,
            "limit-rps" => numbers.per_second = positive(number()?),
            "limit-rpm" => numbers.per_minute = positive(number()?),
            "limit-burst-multiplier" => numbers.multiplier = number()?.max(1),
            "limit-connections" => numbers.connections = positive(number()?),
            "limit-rate" => numbers.rate_kib = positive(number()?),
            "limit-rate-after" => numbers.rate_after_kib = number()?,
            "limit-whitelist" | "limit-allowlist" => numbers.exempt = read_networks(at, value)?,
            "whitelist-source-range" | "allowlist-source-range" => {
                access.push(("allow", one_or_list(&read_networks(at, value)?)));
            }
            "denylist-source-range" => access.push(("deny", one_or_list(&read_networks(at, value)?))),
            "proxy-body-size" => rules.location_fields.push(read_body_size(at, value)?),
            "proxy-connect-timeout" => times.push(("connect", format!("{}s", number()?.max(1)))),
            "proxy-read-timeout" => {
                let seconds = number()?.max(1);
                times.extend(["response", "body"].map(|field| (field, format!("{seconds}s"))));
            }
            "auth-response-headers" if !auth.is_empty() => {}
            "auth-url" if !auth.is_empty() => {
                report.differs(at, &format!("{key}: {value}"), ASKED);
                continue;
            }
            "rewrite-target" => {
                rules.rewrite_target = Some(value.clone()).filter(|target| !target.is_empty());
                if let Some(why) = object.paths.iter().find_map(|path| rules.write_rewrite(&path.path)?.err())
                {
                    report.loses(at, &format!("{key}: {value}"), format!("paths stay as they are: {why}"));
                    continue;
                }
            }
            "use-regex" => rules.use_regex = value == "true",
            "backend-protocol" if read_protocol(value, &mut rules) => {}
            "backend-protocol" => {
                report.skips(at, &format!("{key}: {value}"), "the gateway speaks HTTP to servers");
                continue;
            }
            _ => {
                skip_annotation(at, key, name, value, &mut rules, report);
                continue;
            }
        }
        report.exact(at, &format!("{key}: {value}"), "");
    }
    rules.location_fields.extend(PlannedField::map("access", &access));
    rules.upstream_fields.extend(PlannedField::map("timeouts", &times));
    build_limits(object, &numbers, &mut rules, report);
    order_checks(object, auth, !access.is_empty(), &mut rules, report);
    Ok(rules)
}

fn read_body_size(at: &ImportedLine, value: &str) -> Result<PlannedField, ImportFault> {
    let bytes = parse_size(value.trim());
    let bytes = bytes.ok_or_else(|| ImportFault::new(at, format!("`{value}` is not a size")))?;
    Ok(PlannedField::plain("max_body", write_body_size(bytes)))
}

/// Writes `auth` behind the rates, and tells that addresses come before them.
fn order_checks(
    object: &IngressObject,
    auth: AuthFields,
    has_access: bool,
    rules: &mut IngressRules,
    report: &mut ImportReport,
) {
    // ingress-nginx judges rates before it asks.
    let rates = rules.limits.iter().filter(|limit| !limit.name.ends_with("-connections"));
    let rates: Vec<String> = rates.map(|limit| quote(&limit.name)).collect();
    rules.location_fields.extend(write_auth(auth, &rates));
    if has_access && !rules.limits.is_empty() {
        let says = "the gateway judges addresses before limits: a denied client gets 403 and is not counted";
        report.differs(&object.at, &format!("Ingress {}", object.name), says);
    }
}

/// The fields of `auth` for a service that decides; empty if there is none, or if it is asked in a way that the gateway
/// has not, which closes the paths.
fn read_auth(object: &IngressObject) -> AuthFields {
    const FIT: &str = "auth-url auth-response-headers auth-signin auth-signin-redirect-param auth-realm auth-cache-key \
                       auth-cache-duration auth-always-set-cookie auth-keepalive auth-keepalive-requests \
                       auth-keepalive-timeout auth-keepalive-share-vars";
    let named =
        object.annotations.iter().filter_map(|(_, key, value)| Some((key.strip_prefix(PREFIX)?, value)));
    let parts: HashMap<&str, &String> = named.filter(|(name, _)| name.starts_with("auth-")).collect();
    let copied = parts.get("auth-response-headers").map_or("", |names| names.as_str());
    let copied: Vec<String> =
        copied.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let fits = |name: &&str| FIT.split_whitespace().any(|known| known == *name);
    let url = parts.get("auth-url").filter(|url| is_server_url(url) && !url.contains('$'));
    let Some(url) = url.filter(|_| parts.keys().all(fits) && copied.iter().all(|name| can_be_copied(name)))
    else {
        return Vec::new();
    };
    let mut fields = vec![("url", quote(url))];
    fields.extend((!copied.is_empty()).then(|| ("copy", quoted_list(&copied))));
    fields
}

fn skip_annotation(
    at: &ImportedLine,
    key: &str,
    name: &str,
    value: &str,
    rules: &mut IngressRules,
    report: &mut ImportReport,
) {
    let text = format!("{key}: {value}");
    if name.starts_with("canary") {
        return report.skips(at, &text, "it has no effect without `canary: true`");
    }
    let says = if matches!(name, "auth-type" | "auth-url" | "auth-tls-secret") && !value.is_empty() {
        "its paths answer 403: the gateway makes no such check; give out API keys (account.keys) or ask a service"
    } else if matches!(name, "permanent-redirect" | "temporal-redirect") {
        "its paths answer 403: write the redirect into the field `redirect`"
    } else if HARMLESS.split(' ').any(|known| known == name)
        || FAMILIES.iter().any(|family| name.starts_with(family))
    {
        return report.skips(
            at,
            &text,
            "it neither limits nor denies; write its field by hand if you need it",
        );
    } else if OPEN.split(' ').any(|known| known == name) || value == "false" {
        return report.loses(at, &text, "it is not translated: the services get their requests as they are");
    } else {
        rules.closes_hosts |= name == "server-snippet";
        "its paths answer 403: it is not translated, and may limit or deny"
    };
    report.add(FindingKind::Closed, at, &text, says.to_owned());
    rules.is_closed = true;
}

/// Adds the fields for calls by a protocol; returns false for one that the gateway does not speak.
fn read_protocol(value: &str, rules: &mut IngressRules) -> bool {
    let protocol = value.to_ascii_uppercase();
    match protocol.as_str() {
        "HTTP" | "GRPC" => {}
        "HTTPS" | "GRPCS" => {
            rules.scheme = "https";
            rules.upstream_fields.push(PlannedField::new("tls", "{ verify: false }", "as in ingress-nginx"));
        }
        _ => return false,
    }
    if protocol.starts_with("GRPC") {
        rules.upstream_fields.push(PlannedField::plain("protocol", "http2"));
    }
    true
}

fn read_networks(at: &ImportedLine, value: &str) -> Result<Vec<String>, ImportFault> {
    let mut nets = Vec::new();
    for text in value.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let found = parse_networks(text).map_err(|why| ImportFault::new(at, why))?;
        nets.extend(found.iter().map(|net| quote(&net.to_string())));
    }
    if nets.is_empty() {
        return Err(ImportFault::new(at, "the list of networks is empty"));
    }
    Ok(nets)
}

/// The limits of ingress-nginx: `burst=N·multiplier nodelay`, counted by address, refused with 503.
fn build_limits(
    object: &IngressObject,
    numbers: &AnnotatedLimits,
    rules: &mut IngressRules,
    report: &mut ImportReport,
) {
    let base: String = format!("{}-{}", object.namespace, object.name).chars().take(48).collect();
    let finish = |name: &str, at: &ImportedLine, mut fields: Vec<PlannedField>| {
        if !numbers.exempt.is_empty() {
            fields.push(PlannedField::plain("bypass", one_or_list(&numbers.exempt)));
        }
        NamedLimitPlan { name: format!("{base}-{name}"), fields, source: at.clone() }
    };
    let rates =
        [(&numbers.per_second, "rps", 1000, "second"), (&numbers.per_minute, "rpm", 60_000, "minute")];
    for (number, name, divisor, unit) in rates {
        let Some((at, number)) = number else { continue };
        // ingress-nginx hands the number to nginx, which counts in thousandths of a request per second.
        let thousandths = number.saturating_mul(1_000_000) / divisor;
        let burst = number.saturating_mul(numbers.multiplier).saturating_add(1).to_string();
        let burst_note = format!("{number} times {}, and the first request", numbers.multiplier);
        let status_note = "limit-req-status-code of the ConfigMap, by default 503";
        let fields = vec![
            PlannedField::plain("key", "ip"),
            PlannedField::plain("algorithm", "token_bucket"),
            PlannedField::new("rate", write_rate(thousandths), format!("{number} per {unit}")),
            PlannedField::new("burst", burst, burst_note),
            PlannedField::new("on_reject", "{ status: 503 }", status_note),
        ];
        rules.limits.push(finish(name, at, fields));
    }
    if let Some((at, number)) = &numbers.connections {
        let fields = vec![
            PlannedField::plain("key", "ip"),
            PlannedField::plain("algorithm", "concurrency"),
            PlannedField::plain("max_concurrent", number.to_string()),
        ];
        rules.limits.push(finish("connections", at, fields));
        if rules.limits.len() > 1 {
            let says =
                "a request that it refuses is not charged to the rates of its chain, as it is in nginx";
            report.differs(at, &format!("{PREFIX}limit-connections"), says);
        }
    }
    if let Some((at, kib)) = &numbers.rate_kib {
        let burst = numbers.rate_after_kib.max(*kib / 10).max(1);
        let value = format!("{{ rate: {kib}KiB/s, burst: {burst}KiB }}");
        rules.location_fields.push(PlannedField::plain("bandwidth", value));
        let says = "bandwidth: the pace of all responses to a client together, not of each one";
        report.differs(at, &format!("{PREFIX}limit-rate"), says);
    }
}

impl IngressRules {
    /// The field `rewrite` of a path, as ingress-nginx writes it for nginx; `None` if its requests stay as they are.
    fn write_rewrite(&self, text: &str) -> Option<Result<PlannedField, String>> {
        let target = self.rewrite_target.as_ref().filter(|target| *target != text)?;
        Some(translate_rewrite(&format!("(?i){text}"), target))
    }

    /// True if ingress-nginx matches all paths of the host by expressions because of this one.
    pub(super) fn makes_expressions(&self, text: &str) -> bool {
        // A target that is the path itself still holds for the path `/` that ingress-nginx adds.
        self.use_regex || self.rewrite_target.as_ref().is_some_and(|target| target != text || target != "/")
    }

    /// The paths for which ingress-nginx writes locations, and whether each is exact; `has_exact`: another Ingress has
    /// this path as an exact one.
    fn split_path(&self, path: &IngressPath, has_exact: bool) -> Vec<(String, bool)> {
        let text = path.path.clone();
        if path.is_exact || text.ends_with('/') || self.use_regex || self.write_rewrite(&text).is_some() {
            return vec![(text, path.is_exact)];
        }
        let folder = (format!("{text}/"), false);
        std::iter::once(folder).chain((!has_exact).then_some((text, true))).collect()
    }

    /// The paths of gateway.yaml with their fields `rewrite`; `by_regex`: as expressions.
    pub(super) fn write_paths(
        &self,
        path: &IngressPath,
        by_regex: bool,
        has_exact: bool,
    ) -> Vec<(String, Option<PlannedField>)> {
        let write = |(text, is_exact): (String, bool)| {
            let rewrite = self.write_rewrite(&text).and_then(Result::ok);
            let written = match (by_regex, is_exact) {
                (true, _) => format!("~* {}", translate_pattern(&format!("^{text}"), true)),
                (false, true) => format!("= {text}"),
                (false, false) => text,
            };
            (written, rewrite)
        };
        self.split_path(path, has_exact).into_iter().map(write).collect()
    }
}
