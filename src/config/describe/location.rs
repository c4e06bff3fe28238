//! A location and where it leads, in one line.

use http::Method;

use super::{per, period};
use crate::config::model::{Action, Bandwidth, Config, HostRule, Location};

/// "/api/ (*.example.com, GET) -> app", "= /x -> answers 204",
/// "/files/ -> app (bodies: 1 MiB per second per client IP, 4 MiB at once)".
pub fn describe_location(config: &Config, location: &Location) -> String {
    let narrowed: Vec<String> =
        describe_hosts(location).into_iter().chain(location.methods.iter().map(Method::to_string)).collect();
    let paced =
        location.bandwidth.as_ref().map(|bandwidth| format!(" (bodies: {})", describe_bandwidth(bandwidth)));
    let action = describe_action(config, location) + &paced.unwrap_or_default();
    match narrowed.as_slice() {
        [] => format!("{} -> {action}", location.name),
        narrowed => format!("{} ({}) -> {action}", location.name, narrowed.join(", ")),
    }
}

/// "1 MiB per second per client IP, 4 MiB at once".
pub fn describe_bandwidth(bandwidth: &Bandwidth) -> String {
    let Bandwidth { rate, burst, key } = bandwidth;
    let bytes = bytes(rate.units.get());
    format!("{bytes} per {}{}, {} at once", period(rate.period), per(key), self::bytes(*burst))
}

/// In the largest unit that is whole.
fn bytes(number: u64) -> String {
    const UNITS: [(u64, &str); 7] = [
        (1 << 30, "GiB"),
        (1_000_000_000, "GB"),
        (1 << 20, "MiB"),
        (1_000_000, "MB"),
        (1 << 10, "KiB"),
        (1_000, "KB"),
        (1, "B"),
    ];
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| number.is_multiple_of(*unit)).unwrap_or((1, "B"));
    format!("{} {name}", number / unit)
}

/// The hosts as the file spells them; none for any.
pub fn describe_hosts(location: &Location) -> Vec<String> {
    let spelled = |host: &HostRule| match host {
        HostRule::Exact(name) => name.clone(),
        HostRule::Suffix(suffix) => format!("*{suffix}"),
    };
    location.hosts.iter().map(spelled).collect()
}

/// The upstream's name, "answers 204" or "redirects with 308".
pub fn describe_action(config: &Config, location: &Location) -> String {
    match &location.action {
        Action::Upstream(upstream) => match config.upstreams.get(*upstream) {
            Some(upstream) => upstream.name.clone(),
            None => "unknown".to_owned(),
        },
        Action::Respond { status, .. } => format!("answers {}", status.as_u16()),
        Action::Redirect { status, .. } => format!("redirects with {}", status.as_u16()),
    }
}
