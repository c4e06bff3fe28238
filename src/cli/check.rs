//! `check`: reports every problem of a file, or describes a valid one, for people or for programs.

use std::fmt::Write as _;
use std::process::ExitCode;

use http::Method;
use serde::Serialize;

use super::args::CheckArgs;
use super::file_argument::ConfigInput;
use super::server_names::find_unresolved;
use super::{CONFIG_INVALID, load_noted, print_error, print_output, use_colors, warning_text};
use crate::config::LimitId;
use crate::config::describe::{
    advise_on_state, describe_access, describe_action, describe_bans, describe_chain_limit, describe_cors,
    describe_domains, describe_header_edits, describe_hosts, describe_limit, describe_listen,
    describe_location, describe_service, describe_state, describe_upstream,
};
use crate::config::{Config, LocationConfig, Problem, UpstreamConfig};

#[derive(Serialize)]
struct CheckReport<'a> {
    file: &'a str,
    valid: bool,
    problems: &'a [Problem],
    warnings: &'a [Problem],
    /// The effects of the file; absent when it has problems.
    #[serde(flatten)]
    does: Option<ConfigSummary<'a>>,
}

#[derive(Serialize)]
struct ConfigSummary<'a> {
    listen: Vec<String>,
    upstreams: Vec<NamedSummary<'a>>,
    limits: Vec<NamedSummary<'a>>,
    /// The limits that apply before every location's own.
    server_limits: Vec<&'a str>,
    /// Absent if nothing is counted in Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    /// Suggestions, which never make a file invalid; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    /// Absent without a rate-limit service.
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    /// Absent without bans.
    #[serde(skip_serializing_if = "Option::is_none")]
    bans: Option<String>,
    /// The default of all locations; absent if all clients are treated alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<String>,
    /// The edits of `server.headers`; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_headers: Option<String>,
    locations: Vec<LocationSummary<'a>>,
}

/// A limit or an upstream and its description.
#[derive(Serialize)]
struct NamedSummary<'a> {
    name: &'a str,
    does: String,
}

#[derive(Serialize)]
struct LocationSummary<'a> {
    path: &'a str,
    /// Empty = any.
    hosts: Vec<String>,
    /// Empty = any.
    methods: Vec<&'a str>,
    /// The name of the upstream, or the answer given here.
    to: String,
    /// Absent if all clients are treated alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<String>,
    /// Absent without `cors`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cors: Option<String>,
    /// Absent without edits, as is the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_headers: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_headers: Option<String>,
    limits: Vec<NamedSummary<'a>>,
}

/// Checks the file; with `--strict` a file with warnings is invalid, except those about names that do not resolve: they
/// depend on the machine.
pub(super) fn run_check(input: &ConfigInput, args: &CheckArgs) -> ExitCode {
    let CheckArgs { strict, json, .. } = *args;
    let name = input.display_name();
    let outcome = load_noted(input);
    let (problems, mut warnings) = match &outcome {
        Ok(loaded) => (&[][..], loaded.warnings.clone()),
        Err(report) => (&report.problems[..], Vec::new()),
    };
    let valid = outcome.is_ok() && (!strict || warnings.is_empty());
    if let Ok(loaded) = &outcome {
        let text = std::fs::read_to_string(&name).unwrap_or_default();
        warnings.extend(find_unresolved(&loaded.config, &text));
    }
    if json {
        let does = outcome.as_ref().ok().map(|loaded| summarize_config(&loaded.config));
        let findings = CheckReport { file: &name, valid, problems, warnings: &warnings, does };
        // Only maps with odd keys fail to serialize, and there are none.
        print_output(&(serde_json::to_string_pretty(&findings).unwrap_or_default() + "\n"));
    } else {
        warnings.iter().for_each(|warning| print_error(&warning_text(warning, &name)));
        match &outcome {
            Err(report) => print_error(&format!("{}\n", report.render(use_colors()))),
            Ok(loaded) if valid => {
                print_output(&format!("{name} is valid\n{}", render_overview(&loaded.config)))
            }
            Ok(_) => print_error(&format!("{name} has warnings, and --strict makes them errors\n")),
        }
    }
    if valid { ExitCode::SUCCESS } else { ExitCode::from(CONFIG_INVALID) }
}

/// The content of `check --json`.
fn summarize_config(config: &Config) -> ConfigSummary<'_> {
    ConfigSummary {
        listen: describe_listen(config),
        upstreams: config.upstreams.iter().map(summarize_upstream).collect(),
        limits: list_limits(config).into_iter().map(|limit| summarize_limit(config, limit, None)).collect(),
        server_limits: config.server.limits.iter().map(|&limit| limit_name(config, limit)).collect(),
        state: describe_state(config),
        advice: advise_on_state(config),
        service: describe_service(config),
        bans: describe_bans(config),
        access: describe_access(config, &config.access),
        response_headers: describe_header_edits(&config.server.headers),
        locations: config.locations.iter().map(|location| summarize_location(config, location)).collect(),
    }
}

fn summarize_location<'a>(config: &'a Config, location: &'a LocationConfig) -> LocationSummary<'a> {
    LocationSummary {
        path: &location.written_path,
        hosts: describe_hosts(location),
        methods: location.methods.iter().map(Method::as_str).collect(),
        to: describe_action(config, location),
        access: describe_access(config, &location.access),
        cors: location.cors.as_ref().map(describe_cors),
        request_headers: describe_header_edits(&location.request_headers),
        response_headers: describe_header_edits(&location.response_headers),
        limits: location.limits.iter().map(|&limit| summarize_limit(config, limit, Some(location))).collect(),
    }
}

fn summarize_upstream(upstream: &UpstreamConfig) -> NamedSummary<'_> {
    NamedSummary { name: &upstream.name, does: describe_upstream(upstream) }
}

fn summarize_limit<'a>(
    config: &'a Config,
    limit: LimitId,
    location: Option<&LocationConfig>,
) -> NamedSummary<'a> {
    NamedSummary { name: limit_name(config, limit), does: describe_limit(config, limit, location) }
}

/// All limits in file order, each with its shadow behind it.
fn list_limits(config: &Config) -> Vec<LimitId> {
    config.with_shadows(&config.declared_limits()).collect()
}

fn limit_name(config: &Config, limit: LimitId) -> &str {
    config.limits.get(limit.0).map_or("", |limit| &limit.name)
}

/// Every listener, upstream and limit as a sentence, then every location.
pub(super) fn render_overview(config: &Config) -> String {
    let upstreams = config.upstreams.iter().map(|one| format!("{}: {}", one.name, describe_upstream(one)));
    let limits = list_limits(config).into_iter().map(|limit| describe_limit(config, limit, None));
    let mut out = String::new();
    write_list(&mut out, "listen", describe_listen(config));
    write_list(&mut out, "upstreams", upstreams);
    write_list(&mut out, "limits", limits);
    let mut server_limits = join_limit_names(config, &config.server.limits);
    for &(limit, _) in &config.server.views {
        server_limits += &format!("\n  {}", describe_chain_limit(config, limit, None));
    }
    let sections = [
        ("every request", (!server_limits.is_empty()).then_some(server_limits)),
        ("every response", describe_header_edits(&config.server.headers)),
        ("state", describe_state(config)),
        ("advice", advise_on_state(config)),
        ("service", describe_service(config)),
        ("bans", describe_bans(config)),
        ("access", describe_access(config, &config.access)),
    ];
    for (name, text) in sections {
        if let Some(text) = text {
            // Writing into a String cannot fail.
            let _ = writeln!(out, "\n{name}: {text}");
        }
    }
    write_list(
        &mut out,
        "locations",
        config.locations.iter().map(|location| render_location(config, location)),
    );
    write_list(&mut out, "domains", describe_domains(config));
    out
}

/// A title and the indented lines below it; nothing without lines.
fn write_list(out: &mut String, title: &str, lines: impl IntoIterator<Item = String>) {
    for (index, line) in lines.into_iter().enumerate() {
        if index == 0 {
            let _ = writeln!(out, "\n{title}");
        }
        let _ = writeln!(out, "  {line}");
    }
}

/// A location with its chain, its edits of headers, and the access rules and limits that differ there.
fn render_location(config: &Config, location: &LocationConfig) -> String {
    let mut out = describe_location(config, location);
    if !location.limits.is_empty() {
        out += &format!(": {}", join_limit_names(config, &location.limits));
    }
    let mut push = |detail: String| out.extend(["\n    ", &detail]);
    if location.access != config.access {
        let access = describe_access(config, &location.access);
        push(format!("access: {}", access.as_deref().unwrap_or("any")));
    }
    for (name, edits) in [("request", &location.request_headers), ("response", &location.response_headers)] {
        if let Some(edits) = describe_header_edits(edits) {
            push(format!("{name} headers: {edits}"));
        }
    }
    for &limit in &location.limits {
        let (general, here) =
            (describe_limit(config, limit, None), describe_limit(config, limit, Some(location)));
        if general != here {
            push(here);
        }
    }
    out
}

fn join_limit_names(config: &Config, limits: &[LimitId]) -> String {
    limits.iter().map(|&limit| limit_name(config, limit)).collect::<Vec<_>>().join(", ")
}
