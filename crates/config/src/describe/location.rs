//! A location and its action in one line, and edits of headers, whose values may be secrets.

use http::{HeaderName, Method};

use super::{format_bytes, format_full_period, format_key, format_period, join_names, shorten};
use crate::schema::tables::locations::cors;
use sluicegate_model::{
    ActionConfig, AuthConfig, BandwidthConfig, Config, CorsConfig, CorsOrigins, HeaderEdits, HeaderText,
    HostRule, LocationConfig, OriginRule, RewriteConfig,
};

/// More names would hide the rest of the line.
const NAMES_MAX: usize = 3;

/// "/api/ (*.example.com, GET) -> app", "= /x -> answers 204", "apex: / (http, listener plain) -> redirects to / with
/// 308", "/files/ -> app (bodies: 1 MiB per second per client IP, 4 MiB at once)", "/api -> app (cors: every origin)",
/// "/ (header:x-env=canary) -> app (path: ^/old becomes /new)".
pub fn describe_location(config: &Config, location: &LocationConfig) -> String {
    let mut narrowed = describe_hosts(location);
    narrowed.extend(location.methods.iter().map(Method::to_string));
    narrowed.extend(location.scheme.map(|scheme| scheme.as_str().to_owned()));
    narrowed.extend(location.listeners.iter().map(|listener| format!("listener {listener}")));
    narrowed.extend(location.when.iter().map(|condition| shorten(&condition.to_string())));
    let changed = describe_path_edits(location).map(|edits| format!(" (path: {edits})"));
    let bounded = describe_max_body(config, location).map(|size| format!(" (request bodies: {size})"));
    let paced =
        location.bandwidth.as_ref().map(|bandwidth| format!(" (bodies: {})", describe_bandwidth(bandwidth)));
    let shared = location.cors.as_ref().map(|cors| format!(" (cors: {})", describe_cors(cors)));
    let asked = location.auth.as_ref().map(|auth| format!(" (auth: {})", describe_auth(config, auth)));
    let action = describe_action(config, location)
        + &[changed, bounded, paced, shared, asked].map(Option::unwrap_or_default).concat();
    let place = match location.name == location.written_path {
        true => location.name.clone(),
        false => format!("{}: {}", location.name, location.written_path),
    };
    match narrowed.as_slice() {
        [] => format!("{place} -> {action}"),
        narrowed => format!("{place} ({}) -> {action}", narrowed.join(", ")),
    }
}

/// "^/old becomes /new; /v1 in front"; `None` without `rewrite` and `add_prefix`.
pub fn describe_path_edits(location: &LocationConfig) -> Option<String> {
    let rewritten = location
        .rewrite
        .as_ref()
        .map(|RewriteConfig { from, to }| format!("{} becomes {}", shorten(from.pattern()), shorten(to)));
    let prefixed = location.add_prefix.as_ref().map(|prefix| format!("{} in front", shorten(prefix)));
    let steps: Vec<String> = rewritten.into_iter().chain(prefixed).collect();
    (!steps.is_empty()).then(|| steps.join("; "))
}

/// "at most 1 MiB", "of any size"; `None` if it is that of the server.
pub fn describe_max_body(config: &Config, location: &LocationConfig) -> Option<String> {
    let own =
        location.max_body.map_or("of any size".to_owned(), |max| format!("at most {}", format_bytes(max)));
    (location.max_body != config.server.max_body).then_some(own)
}

/// "http://127.0.0.1:9091 for /verify; copies x-user; kept for 30 seconds".
pub fn describe_auth(config: &Config, auth: &AuthConfig) -> String {
    let upstream = config.upstreams.get(auth.upstream.0).map_or("unknown", |upstream| &upstream.name);
    let mut parts = vec![format!("{upstream} for {}", auth.target)];
    parts.extend((!auth.copy.is_empty()).then(|| format!("copies {}", join_names(&auth.copy, NAMES_MAX))));
    parts.extend(auth.cache.as_ref().map(|cache| format!("kept for {}", format_full_period(cache.span))));
    parts.join("; ")
}

/// "every origin", "https://app.example.com; GET, POST; headers authorization; credentials; kept for 1 hour". Usual
/// values are left out.
pub fn describe_cors(cors: &CorsConfig) -> String {
    let mut parts = vec![describe_origins(&cors.origins)];
    let methods: Vec<&str> = cors.methods.iter().map(Method::as_str).collect();
    parts.extend((!methods.is_empty()).then(|| join_names(&methods, NAMES_MAX)));
    parts.extend(cors.headers.as_ref().map(|names| match names.as_slice() {
        [] => "no headers".to_owned(),
        names => format!("headers {}", join_names(names, NAMES_MAX)),
    }));
    parts.extend(cors.credentials.then(|| "credentials".to_owned()));
    if cors.max_age != cors::MAX_AGE.parse_default() {
        parts.push(format!("kept for {}", format_full_period(cors.max_age)));
    }
    parts.join("; ")
}

/// "every origin", "https://app.example.com, https://*.example.org".
fn describe_origins(origins: &CorsOrigins) -> String {
    let CorsOrigins::Listed(rules) = origins else { return "every origin".to_owned() };
    let origins = rules.iter().map(|rule| match rule {
        OriginRule::Exact(origin) => origin.clone(),
        OriginRule::Subdomains { scheme, suffix } => format!("{scheme}*{suffix}"),
    });
    join_names(&origins.collect::<Vec<_>>(), NAMES_MAX)
}

/// "1 MiB per second per client IP, 4 MiB at once".
pub fn describe_bandwidth(bandwidth: &BandwidthConfig) -> String {
    let BandwidthConfig { rate, burst, key } = bandwidth;
    let bytes = format_bytes(rate.units.get());
    format!("{bytes} per {}{}, {} at once", format_period(rate.period), format_key(key), format_bytes(*burst))
}

/// The hosts as in the file; empty for any host.
pub fn describe_hosts(location: &LocationConfig) -> Vec<String> {
    location.hosts.iter().map(spell_host).collect()
}

/// "a.example.com", "*.example.com".
pub(crate) fn spell_host(host: &HostRule) -> String {
    match host {
        HostRule::Exact(name) => name.clone(),
        HostRule::Suffix(suffix) => format!("*{suffix}"),
    }
}

/// The upstream's name, "answers 204" or "redirects to https://${host}/ with 308", "tells what is left of plan".
pub fn describe_action(config: &Config, location: &LocationConfig) -> String {
    match &location.action {
        ActionConfig::Upstream(upstream) => match config.upstreams.get(upstream.0) {
            Some(upstream) => upstream.name.clone(),
            None => "unknown".to_owned(),
        },
        ActionConfig::Respond { status, .. } => format!("answers {}", status.as_u16()),
        ActionConfig::Redirect { to, status } => {
            format!("redirects to {} with {}", shorten(&to.to_string()), status.as_u16())
        }
        ActionConfig::Usage { limits: None } => "tells what is left".to_owned(),
        ActionConfig::Usage { limits: Some(limits) } => {
            let names: Vec<_> = limits.iter().map(|limit| &config.limits[*limit].name).collect();
            format!("tells what is left of {}", join_names(&names, NAMES_MAX))
        }
    }
}

/// More names would hide the rest of the line.
const HEADERS_MAX: usize = 5;

/// "set x-client, x-tier; add via; remove cookie"; `None` without edits.
pub fn describe_header_edits(edits: &HeaderEdits) -> Option<String> {
    let written = |pairs: &[(HeaderName, HeaderText)]| pairs.iter().map(|(name, _)| name.clone()).collect();
    let steps: [(&str, Vec<HeaderName>); 3] =
        [("set", written(&edits.set)), ("add", written(&edits.add)), ("remove", edits.remove.clone())];
    let steps = steps.iter().filter(|(_, names)| !names.is_empty());
    let described: Vec<String> =
        steps.map(|(verb, names)| format!("{verb} {}", join_names(names, HEADERS_MAX))).collect();
    (!described.is_empty()).then(|| described.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_described(fields: &str, expected: &str) {
        let file = format!("locations: [{{ path: /, {fields} }}]");
        let config = crate::parse(&file, "x").unwrap_or_else(|report| panic!("{report}")).config;
        assert_eq!(describe_location(&config, &config.locations[0]), expected);
    }

    #[test]
    fn redirects_show_their_target() {
        let target = "redirect: { to: 'https://${host}:8443${request_uri}', status: 302 }";
        assert_described(target, "/ -> redirects to https://${host}:8443${request_uri} with 302");
        let path = "é".repeat(100);
        let shown = format!("/ -> redirects to /{}… with 308", "é".repeat(79));
        assert_described(&format!("redirect: {{ to: /{path} }}"), &shown);
    }

    #[test]
    fn the_rules_of_cors_are_described() {
        assert_described(
            "upstream: demo, cors: { origins: https://a.test, methods: [GET, PUT], headers: [Authorization, X-A], \
               credentials: true, max_age: 1h }",
            "/ -> demo (cors: https://a.test; GET, PUT; headers authorization, x-a; credentials; kept for 1 hour)",
        );
        assert_described(
            "upstream: demo, cors: { origins: '*', headers: none, methods: [GET, PUT, POST, PATCH, DELETE] }",
            "/ -> demo (cors: every origin; GET, PUT, POST, 2 more; no headers)",
        );
        for (origins, expected) in [
            ("'*'", "/ -> demo (cors: every origin)"),
            (
                "[https://a.test, 'https://*.b.test:8443']",
                "/ -> demo (cors: https://a.test, https://*.b.test:8443)",
            ),
            (
                "[http://a, http://b, http://c, http://d, http://e]",
                "/ -> demo (cors: http://a, http://b, http://c, 2 more)",
            ),
        ] {
            assert_described(&format!("upstream: demo, cors: {{ origins: {origins} }}"), expected);
        }
    }

    #[test]
    fn edits_are_named_without_their_values() {
        let described = |edits: &str| {
            let file = format!("locations: [{{ path: /, upstream: demo, request_headers: {{ {edits} }} }}]");
            let config = crate::parse(&file, "x").unwrap_or_else(|report| panic!("{report}")).config;
            describe_header_edits(&config.locations[0].request_headers)
        };
        assert_eq!(described(""), None);
        let all = "set: { X-Key: secret, X-B: b }, add: { Via: g }, remove: [Cookie]";
        assert_eq!(described(all).unwrap(), "set x-key, x-b; add via; remove cookie");
        assert_eq!(described("remove: [a, b, c, d, e, f, g]").unwrap(), "remove a, b, c, d, e, 2 more");
    }
}
