//! Warns of redirects to https that lead to themselves, and of locations that stay reachable without TLS.

use std::collections::HashSet;

use super::LintContext;
use super::locations::selects_listener;
use sluicegate_model::{ActionConfig, LocationConfig, PathRule, Scheme, TemplatePiece, TemplateVar, codes};

pub(super) fn lint_redirects(file: &LintContext<'_>) {
    use TemplatePiece::{Text, Var};
    use TemplateVar::{Host, Path, RequestUri, Uri};
    let locations = &file.config.locations;
    let schemes: SchemesOfPaths<'_> = locations
        .iter()
        .filter_map(|location| Some((location.written_path.as_str(), location.scheme?)))
        .collect();
    for (index, location) in locations.iter().enumerate() {
        let ActionConfig::Redirect { to, .. } = &location.action else { continue };
        let first = to.0.first();
        if matches!(first, Some(Var(RequestUri | Path | Uri))) {
            let message = "this redirect leads to the path of the request on the same host";
            let help = "write the host before it, e.g. https://www.example.com${request_uri}";
            file.location_value(index, &["redirect", "to"]).warn(codes::MISREAD, message, help);
        }
        if !matches!(first, Some(Text(text)) if text.starts_with("https://")) {
            continue;
        }
        match location.scheme {
            None => {
                let keeps_url = matches!(&to.0[..],
                    [Text(scheme), Var(Host), Var(RequestUri | Path | Uri)] if scheme == "https://");
                let mut listeners = file.config.listen.iter();
                let serves_tls = listeners
                    .any(|listen| listen.scheme() == Scheme::Https && selects_listener(location, listen));
                // Another location for https comes before one for any scheme.
                let is_first = !schemes.contains(&(location.written_path.as_str(), Scheme::Https));
                if keeps_url && serves_tls && is_first {
                    let message = "this location redirects to itself over https";
                    let help = "write scheme: http, so that it takes only requests without TLS";
                    file.location_value(index, &["redirect", "to"]).warn(codes::MISREAD, message, help);
                }
            }
            Some(Scheme::Http) => warn_of_plain_locations(file, location, &schemes),
            _ => {}
        }
    }
}

/// The paths as written of the locations with a scheme.
type SchemesOfPaths<'a> = HashSet<(&'a str, Scheme)>;

/// Locations below `redirect`, which sends every request without TLS to https.
fn warn_of_plain_locations(file: &LintContext<'_>, redirect: &LocationConfig, schemes: &SchemesOfPaths<'_>) {
    let mut listeners = file.config.listen.iter();
    let serves_plain =
        listeners.any(|listen| listen.scheme() == Scheme::Http && selects_listener(redirect, listen));
    let is_root = matches!(&redirect.path, PathRule::Prefix { path, .. } if path == "/");
    if !redirect.when.is_empty() || !is_root || !serves_plain {
        return;
    }
    for (index, location) in file.config.locations.iter().enumerate() {
        let (PathRule::Prefix { path, .. } | PathRule::Exact(path)) = &location.path else { continue };
        // Certificates are fetched by requests without TLS.
        let is_below = path != "/" && !path.starts_with("/.well-known/") && location.hosts == redirect.hosts;
        let is_open = location.scheme.is_none()
            && location.listeners.is_empty()
            && matches!(location.action, ActionConfig::Upstream(_));
        if is_below && is_open && !schemes.contains(&(location.written_path.as_str(), Scheme::Http)) {
            let message = format!("{path} is also served without TLS, because it is longer than /");
            let help = "write scheme: https, or a redirect with scheme: http for this path too";
            file.location_value(index, &["path"]).warn(codes::MISREAD, message, help);
        }
    }
}
