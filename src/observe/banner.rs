//! The start-up banner: the addresses, the state store, bans, access rules, and the limits of each location in words.

use std::fmt::Write as _;
use std::io::{self, Write};

use crate::config::LimitId;
use crate::config::describe::{
    describe_access, describe_bans, describe_limit, describe_location, describe_state,
};
use crate::config::{Config, LocationConfig};

/// Maximum number of locations; more would scroll the addresses off the screen.
const LOCATIONS_MAX: usize = 40;

/// Writes the banner to stderr, because stdout belongs to the access log. `listening` and `admin` are the bound
/// addresses, e.g. `http://127.0.0.1:8080` or `unix:/path`.
pub fn print_banner(config: &Config, source: &str, listening: &[String], admin: Option<&str>) {
    // A closed stderr must not stop the start.
    let _ = io::stderr().write_all(banner_text(config, source, listening, admin).as_bytes());
}

fn banner_text(config: &Config, source: &str, listening: &[String], admin: Option<&str>) -> String {
    let mut out = format!("sluicegate {} serves {source}\n", env!("CARGO_PKG_VERSION"));
    for address in listening {
        push_line(&mut out, format_args!("listening {address}"));
    }
    if let Some(address) = admin {
        push_line(&mut out, format_args!("admin {address}"));
    }
    if let Some(state) = describe_state(config) {
        push_line(&mut out, format_args!("state: {state}"));
    }
    if let Some(bans) = describe_bans(config) {
        push_line(&mut out, format_args!("bans: {bans}"));
    }
    if let Some(access) = describe_access(config, &config.access) {
        push_line(&mut out, format_args!("access: {access}"));
    }
    if !config.server.limits.is_empty() {
        push_line(&mut out, format_args!("every request"));
        push_limits(&mut out, config, &config.server.limits, None);
    }
    for location in config.locations.iter().take(LOCATIONS_MAX) {
        push_line(&mut out, format_args!("{}", describe_location(config, location)));
        if location.access != config.access {
            let access = describe_access(config, &location.access);
            push_line(&mut out, format_args!("  access: {}", access.as_deref().unwrap_or("any")));
        }
        push_limits(&mut out, config, &location.limits, Some(location));
    }
    match config.locations.len().saturating_sub(LOCATIONS_MAX) {
        0 => {}
        more => push_line(&mut out, format_args!("and {more} more locations")),
    }
    out
}

fn push_line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing into a String cannot fail.
    let _ = writeln!(out, "{text}");
}

fn push_limits(out: &mut String, config: &Config, limits: &[LimitId], location: Option<&LocationConfig>) {
    for &limit in limits {
        push_line(out, format_args!("  {}", describe_limit(config, limit, location)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render_banner(yaml: &str) -> String {
        let loaded = crate::config::parse(yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
        let listening = ["http://127.0.0.1:8080".to_owned(), "unix:/run/sg.sock".to_owned()];
        banner_text(&loaded.config, "gateway.yaml", &listening, Some("http://127.0.0.1:9901"))
    }

    #[test]
    fn addresses_have_their_own_lines_and_limits_are_described() {
        let banner = render_banner(concat!(
            "server: { limits: [all] }\n",
            "limits:\n  per-ip: { rate: 10/s, burst: 20 }\n  all: { key: global, rate: 1000/s }\n",
            "locations:\n",
            "  - { path: /api/, host: \"*.example.com\", methods: [GET], upstream: demo, limits: per-ip }\n",
            "  - { path: = /x, respond: { status: 204 } }\n",
        ));
        let lines: Vec<&str> = banner.lines().collect();
        assert!(lines[0].starts_with("sluicegate ") && lines[0].ends_with("gateway.yaml"), "{banner}");
        assert_eq!(
            lines[1..4],
            ["listening http://127.0.0.1:8080", "listening unix:/run/sg.sock", "admin http://127.0.0.1:9901"]
        );
        assert_eq!(lines[4], "every request");
        assert!(lines[5].starts_with("  all: 1000 requests per second"), "{banner}");
        assert_eq!(lines[6], "/api/ (*.example.com, GET) -> demo");
        assert!(lines[7].starts_with("  per-ip: 10 requests per second per client IP"), "{banner}");
        assert_eq!(lines[8], "= /x -> answers 204");
    }

    #[test]
    fn bans_and_access_are_shown() {
        let banner = render_banner(concat!(
            "bans: { after: 3/1m, for: 1h, max: 1h }\naccess: { deny: 10.0.0.0/8 }\n",
            "locations:\n  - { path: /, upstream: demo, limits: 1/s }\n",
            "  - { path: /x, upstream: demo, access: { deny: [] } }\n",
        ));
        let expected = "bans: 3 rejections per 60 seconds ban a client IP for 1 hour\n\
                     access: 403 for 10.0.0.0/8\n/ -> demo\n";
        assert!(banner.contains(expected) && banner.ends_with("/x -> demo\n  access: any\n"), "{banner}");
    }

    #[test]
    fn redis_is_shown_without_its_password() {
        let banner = render_banner(concat!(
            "state: { store: redis, redis: { url: \"redis://me:hunter2@localhost:7/1\" } }\n",
            "locations: [{ path: /, upstream: demo, limits: 1/s }]\n",
        ));
        assert!(
            banner.contains("\nstate: redis at localhost:7 (prefix sg, database 1)\n/ -> demo\n"),
            "{banner}"
        );
        assert!(!banner.contains("hunter2") && banner.contains("counted in Redis"), "{banner}");
    }

    #[test]
    fn many_locations_are_cut_short() {
        let yaml = (0..50).fold("locations:\n".to_owned(), |yaml, n| {
            yaml + &format!("  - {{ path: /{n}/, respond: {{ status: 200 }} }}\n")
        });
        assert!(render_banner(&yaml).ends_with("and 10 more locations\n"));
    }
}
