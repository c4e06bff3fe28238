//! The start-up banner: the addresses, the state store, bans, access rules, and the limits of each location in words.

use std::io::{self, Write};

use sluicegate_config::describe::{
    describe_access, describe_bans, describe_chain_limit, describe_location, describe_state,
};
use sluicegate_model::{Config, LimitId, LocationConfig};
use sluicegate_observe::logging;
use sluicegate_observe::stderr_line::StderrLine;

/// Maximum number of locations; more would scroll the addresses off the screen.
const LOCATIONS_MAX: usize = 40;

/// A line and the indented lines below it.
type BannerLine = (String, Vec<String>);

/// Writes the banner to stderr, because stdout belongs to the access log, and then the lines of the log that wait for
/// it. `listening` and `admin` are the bound addresses, e.g. `http://127.0.0.1:8080` or `unix:/path`.
pub(super) fn print_banner(config: &Config, source: &str, listening: &[String], admin: Option<&str>) {
    let lines = banner_lines(config, source, listening, admin);
    let text = if logging::is_json() { render_json(&lines) } else { render_text(&lines) };
    // A closed stderr must not stop the start.
    let _ = io::stderr().write_all(text.as_bytes());
    logging::release_lines();
}

fn render_text(lines: &[BannerLine]) -> String {
    let mut out = String::new();
    for (text, details) in lines {
        out.push_str(text);
        out.push('\n');
        details.iter().for_each(|detail| out.extend(["  ", detail, "\n"]));
    }
    out
}

fn render_json(lines: &[BannerLine]) -> String {
    let render =
        |(text, details): &BannerLine| StderrLine::new("INFO", text).with_details(details).render_json();
    lines.iter().map(render).collect()
}

fn banner_lines(config: &Config, source: &str, listening: &[String], admin: Option<&str>) -> Vec<BannerLine> {
    let mut lines = Vec::new();
    let mut push = |text: String, details: Vec<String>| lines.push((text, details));
    push(format!("sluicegate {} serves {source}", env!("CARGO_PKG_VERSION")), Vec::new());
    for address in listening {
        push(format!("listening {address}"), Vec::new());
    }
    let sections = [
        admin.map(|address| format!("admin {address}")),
        describe_state(config).map(|state| format!("state: {state}")),
        describe_bans(config).map(|bans| format!("bans: {bans}")),
        describe_access(config, &config.access).map(|access| format!("access: {access}")),
    ];
    sections.into_iter().flatten().for_each(|section| push(section, Vec::new()));
    if !config.server.limits.is_empty() {
        push("every request".to_owned(), describe_limits(config, &config.server.limits, None));
    }
    for location in config.locations.iter().take(LOCATIONS_MAX) {
        let mut details = Vec::new();
        if location.access != config.access {
            let access = describe_access(config, &location.access);
            details.push(format!("access: {}", access.as_deref().unwrap_or("any")));
        }
        details.extend(describe_limits(config, &location.limits, Some(location)));
        push(describe_location(config, location), details);
    }
    match config.locations.len().saturating_sub(LOCATIONS_MAX) {
        0 => {}
        more => push(format!("and {more} more locations"), Vec::new()),
    }
    lines
}

fn describe_limits(config: &Config, limits: &[LimitId], location: Option<&LocationConfig>) -> Vec<String> {
    config.with_shadows(limits).map(|limit| describe_chain_limit(config, limit, location)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render_banner(yaml: &str) -> String {
        let loaded =
            sluicegate_config::parse(yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
        let listening = ["http://127.0.0.1:8080".to_owned(), "unix:/run/sg.sock".to_owned()];
        render_text(&banner_lines(&loaded.config, "gateway.yaml", &listening, Some("http://127.0.0.1:9901")))
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
    fn json_has_one_line_for_each_location() {
        let loaded = sluicegate_config::parse("locations: [{ path: /, upstream: demo, limits: 1/s }]\n", "x");
        let lines = banner_lines(&loaded.unwrap().config, "x", &["http://[::1]:80".to_owned()], None);
        let lines: Vec<serde_json::Value> =
            render_json(&lines).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let messages: Vec<&str> = lines.iter().filter_map(|line| line["message"].as_str()).collect();
        assert_eq!(messages[1..], ["listening http://[::1]:80", "/ -> demo"]);
        assert!(messages[0].ends_with(" serves x"), "{messages:?}");
        assert!(
            lines[2]["details"][0].as_str().unwrap().starts_with("/#1: 1 request per second"),
            "{lines:?}"
        );
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
