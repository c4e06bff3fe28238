//! `check`: reports every problem of a file, or describes a valid one, for people or for programs.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use http::Method;
use serde_json::{Map, Value, json};

use super::args::CheckArgs;
use super::file_argument::ConfigInput;
use super::issuer_keys::{IssuerKeys, fetch_issuers};
use super::server_names::find_unresolved;
use super::{
    CONFIG_INVALID, CommandFault, CommandResult, FAILED, load_noted, print_error, print_output, render_json,
    warning_text,
};
use sluicegate_config as config;
use sluicegate_config::describe::{
    advise_on_state, describe_access, describe_action, describe_auth, describe_bans, describe_chain_limit,
    describe_cors, describe_domains, describe_header_edits, describe_hosts, describe_limit, describe_listen,
    describe_location, describe_max_body, describe_path_edits, describe_service, describe_state,
    describe_upstream,
};
use sluicegate_model::{Config, LimitId, LocationConfig, UpstreamConfig};

/// Checks the file; with `--strict` a file with warnings is invalid, except those about names that do not resolve: they
/// depend on the machine.
pub(super) fn run_check(input: &ConfigInput, args: &CheckArgs) -> CommandResult {
    let CheckArgs { strict, fetch, json, .. } = *args;
    let old = args.against.as_deref().map(config::load).transpose()?;
    let name = input.display_name();
    let outcome = load_noted(input);
    let (problems, mut warnings) = match &outcome {
        Ok(loaded) => (&[][..], loaded.warnings.clone()),
        Err(report) => (&report.problems[..], Vec::new()),
    };
    let valid = outcome.is_ok() && (!strict || warnings.is_empty());
    let issuers = match &outcome {
        Ok(loaded) if fetch => fetch_issuers(&loaded.config)?,
        _ => Vec::new(),
    };
    if let Ok(loaded) = &outcome {
        let files = [&name].into_iter().chain(&loaded.included);
        let texts = files.map(|file| (file.as_str(), std::fs::read_to_string(file).unwrap_or_default()));
        warnings.extend(find_unresolved(&loaded.config, &texts.collect::<Vec<_>>()));
    }
    let both = old.iter().zip(&outcome).next();
    let changes = both.map(|(old, loaded)| old.values.changes_to(&loaded.values));
    if json {
        let mut findings = omit_nulls(json!({
            "file": name,
            "valid": valid,
            "problems": problems,
            "warnings": warnings,
            "changes": changes,
        }));
        if fetch {
            findings.insert("issuers".to_owned(), json!(issuers));
        }
        findings.extend(outcome.iter().flat_map(|loaded| summarize_config(&loaded.config)));
        print_output(&render_json(&findings));
    } else {
        warnings.iter().for_each(|warning| print_error(&warning_text(warning, &name)));
        match &outcome {
            Err(report) => print_error(&CommandFault::from(report).text),
            Ok(_) if let (true, Some(changes)) = (valid, &changes) => {
                changes.iter().for_each(|change| print_output(&format!("{change}\n")));
            }
            Ok(loaded) if valid => {
                let mut overview = render_overview(&loaded.config);
                write_list(&mut overview, "issuers", issuers.iter().map(IssuerKeys::to_string));
                print_output(&format!("{name} is valid\n{overview}"))
            }
            Ok(_) => print_error(&format!("{name} has warnings, and --strict makes them errors\n")),
        }
    }
    Ok(match valid {
        false => ExitCode::from(CONFIG_INVALID),
        true if issuers.iter().any(|one| one.error.is_some()) => ExitCode::from(FAILED),
        true => ExitCode::SUCCESS,
    })
}

/// The effects of a valid file in `check --json`, without those that the file does not set.
fn summarize_config(config: &Config) -> Map<String, Value> {
    let named = |name: &str, owner: &Option<Arc<str>>, does: String| {
        omit_nulls(json!({ "name": name, "owner": owner.as_deref(), "does": does }))
    };
    let limit = |id: LimitId, location: Option<&LocationConfig>| {
        named(limit_name(config, id), &config.limits[id].owner, describe_limit(config, id, location))
    };
    let location = |location: &LocationConfig| {
        omit_nulls(json!({
            "path": location.written_path,
            "owner": location.owner.as_deref(),
            "hosts": describe_hosts(location),
            "methods": location.methods.iter().map(Method::as_str).collect::<Vec<_>>(),
            "when": describe_conditions(location),
            "to": describe_action(config, location),
            "path_becomes": describe_path_edits(location),
            "max_body": describe_max_body(config, location),
            "access": describe_access(config, &location.access),
            "cors": location.cors.as_ref().map(describe_cors),
            "auth": location.auth.as_ref().map(|auth| describe_auth(config, auth)),
            "request_headers": describe_header_edits(&location.request_headers),
            "response_headers": describe_header_edits(&location.response_headers),
            "limits": location.limits.iter().map(|&id| limit(id, Some(location))).collect::<Vec<_>>(),
        }))
    };
    let upstream = |one: &UpstreamConfig| named(&one.name, &one.owner, describe_upstream(config, one));
    omit_nulls(json!({
        "listen": describe_listen(config),
        "upstreams": config.upstreams.iter().map(upstream).collect::<Vec<_>>(),
        "limits": list_limits(config).into_iter().map(|id| limit(id, None)).collect::<Vec<_>>(),
        "server_limits": config.server.limits.iter().map(|&id| limit_name(config, id)).collect::<Vec<_>>(),
        "state": describe_state(config),
        "advice": advise_on_state(config),
        "service": describe_service(config),
        "bans": describe_bans(config),
        "access": describe_access(config, &config.access),
        "response_headers": describe_header_edits(&config.server.headers),
        "locations": config.locations.iter().map(location).collect::<Vec<_>>(),
    }))
}

/// `None` without conditions.
fn describe_conditions(location: &LocationConfig) -> Option<Vec<String>> {
    let conditions = location.when.iter().map(ToString::to_string);
    (!location.when.is_empty()).then(|| conditions.collect())
}

fn omit_nulls(object: Value) -> Map<String, Value> {
    let Value::Object(mut fields) = object else { return Map::new() };
    fields.retain(|_, field| !field.is_null());
    fields
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
    let owned =
        |owner: &Option<Arc<str>>| owner.iter().map(|owner| format!(" [{owner}]")).collect::<String>();
    let upstream = |one: &UpstreamConfig| {
        format!("{}: {}{}", one.name, describe_upstream(config, one), owned(&one.owner))
    };
    let upstreams = config.upstreams.iter().map(upstream);
    let limit = |id: LimitId| describe_limit(config, id, None) + &owned(&config.limits[id].owner);
    let limits = list_limits(config).into_iter().map(limit);
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
    let locations = config.locations.iter().map(|location| render_location(config, location));
    write_list(&mut out, "locations", locations);
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
    out.extend(location.owner.iter().map(|owner| format!(" [{owner}]")));
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
