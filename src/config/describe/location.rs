//! A location and its action in one line.

use http::Method;

use super::{format_key, format_period};
use crate::config::model::cors::{CorsOrigins, OriginRule};
use crate::config::model::{ActionConfig, BandwidthConfig, Config, HostRule, LocationConfig};
use crate::config::value::scalars::split_size;

/// "/api/ (*.example.com, GET) -> app", "= /x -> answers 204", "apex: / (http, listener plain) -> redirects with 308",
/// "/files/ -> app (bodies: 1 MiB per second per client IP, 4 MiB at once)", "/api -> app (cors: every origin)".
pub fn describe_location(config: &Config, location: &LocationConfig) -> String {
    let mut narrowed = describe_hosts(location);
    narrowed.extend(location.methods.iter().map(Method::to_string));
    narrowed.extend(location.scheme.map(|scheme| scheme.as_str().to_owned()));
    narrowed.extend(location.listeners.iter().map(|listener| format!("listener {listener}")));
    let paced =
        location.bandwidth.as_ref().map(|bandwidth| format!(" (bodies: {})", describe_bandwidth(bandwidth)));
    let shared = location.cors.as_ref().map(|cors| format!(" (cors: {})", describe_origins(&cors.origins)));
    let action = describe_action(config, location) + &paced.unwrap_or_default() + &shared.unwrap_or_default();
    let place = match location.name == location.written_path {
        true => location.name.clone(),
        false => format!("{}: {}", location.name, location.written_path),
    };
    match narrowed.as_slice() {
        [] => format!("{place} -> {action}"),
        narrowed => format!("{place} ({}) -> {action}", narrowed.join(", ")),
    }
}

/// "every origin", "https://app.example.com, https://*.example.org", at most three of them.
fn describe_origins(origins: &CorsOrigins) -> String {
    const ORIGINS_SHOWN: usize = 3;
    let CorsOrigins::Listed(rules) = origins else { return "every origin".to_owned() };
    let mut shown: Vec<String> = rules
        .iter()
        .take(ORIGINS_SHOWN)
        .map(|rule| match rule {
            OriginRule::Exact(origin) => origin.clone(),
            OriginRule::Subdomains { scheme, suffix } => format!("{scheme}*{suffix}"),
        })
        .collect();
    if rules.len() > ORIGINS_SHOWN {
        shown.push(format!("{} more", rules.len() - ORIGINS_SHOWN));
    }
    shown.join(", ")
}

/// "1 MiB per second per client IP, 4 MiB at once".
pub fn describe_bandwidth(bandwidth: &BandwidthConfig) -> String {
    let BandwidthConfig { rate, burst, key } = bandwidth;
    let bytes = format_bytes(rate.units.get());
    format!("{bytes} per {}{}, {} at once", format_period(rate.period), format_key(key), format_bytes(*burst))
}

/// "4 MiB".
fn format_bytes(bytes: u64) -> String {
    let (number, unit) = split_size(bytes);
    format!("{number} {unit}")
}

/// The hosts as in the file; empty for any host.
pub fn describe_hosts(location: &LocationConfig) -> Vec<String> {
    let spelled = |host: &HostRule| match host {
        HostRule::Exact(name) => name.clone(),
        HostRule::Suffix(suffix) => format!("*{suffix}"),
    };
    location.hosts.iter().map(spelled).collect()
}

/// The upstream's name, "answers 204" or "redirects with 308".
pub fn describe_action(config: &Config, location: &LocationConfig) -> String {
    match &location.action {
        ActionConfig::Upstream(upstream) => match config.upstreams.get(upstream.0) {
            Some(upstream) => upstream.name.clone(),
            None => "unknown".to_owned(),
        },
        ActionConfig::Respond { status, .. } => format!("answers {}", status.as_u16()),
        ActionConfig::Redirect { status, .. } => format!("redirects with {}", status.as_u16()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_listed_up_to_three() {
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
            let file = format!("locations: [{{ path: /, upstream: demo, cors: {{ origins: {origins} }} }}]");
            let config = crate::config::parse(&file, "x").unwrap_or_else(|report| panic!("{report}")).config;
            assert_eq!(describe_location(&config, &config.locations[0]), expected);
        }
    }
}
