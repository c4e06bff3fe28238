//! A location and where it leads, in one line.

use http::Method;

use crate::config::model::{Action, Config, HostRule, Location};

/// "/api/ (*.example.com, GET) -> app", "= /x -> answers 204".
pub fn describe_location(config: &Config, location: &Location) -> String {
    let narrowed: Vec<String> =
        describe_hosts(location).into_iter().chain(location.methods.iter().map(Method::to_string)).collect();
    let action = describe_action(config, location);
    match narrowed.as_slice() {
        [] => format!("{} -> {action}", location.name),
        narrowed => format!("{} ({}) -> {action}", location.name, narrowed.join(", ")),
    }
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
