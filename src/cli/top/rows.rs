//! The texts of `top`: the totals and the rows of its tables, and all of them as plain text.

use super::reading::{GatewayReading, TopKey, TopLimit, TopUpstream};
use crate::cli::admin_client::escape_controls;
use crate::cli::operator_verbs::format_seconds;
use crate::operate::text_table::{or_dash, render_table};

/// The most rows of a table of plain text.
const TEXT_ROWS_MAX: usize = 20;

// A narrow screen leaves out the last columns.
pub(super) const LIMIT_COLUMNS: [&str; 6] =
    ["limit", "rejected/s", "admitted/s", "waited/s", "waiting", "keys"];
pub(super) const KEY_COLUMNS: [&str; 6] = ["key", "refused/s", "asked/s", "left", "waiting", "granted"];
pub(super) const SERVER_COLUMNS: [&str; 6] =
    ["server", "state", "in flight", "ejections", "upstream", "last error"];

pub(super) type TopRow = [String; 6];

/// The totals, in the order in which a narrow screen shows them.
pub(super) fn list_totals(reading: &GatewayReading) -> Vec<String> {
    let status = &reading.status;
    let bans = status.bans.as_ref().map(|bans| format!("bans {}", bans.active));
    let up = format_seconds(status.uptime_s as f64).unwrap_or_default();
    let totals = [
        format!("rejections {:.1}/s", status.rejections.per_s),
        format!("in flight {}", status.in_flight),
        format!("connections {}", status.connections),
    ];
    let about = [format!("up {up}"), escape_controls(&format!("sluicegate {}", status.version))];
    totals.into_iter().chain(bans).chain(about).collect()
}

pub(super) fn limit_rows(reading: &GatewayReading) -> Vec<TopRow> {
    let row = |limit: &TopLimit| {
        [
            escape_controls(&limit.limit),
            format!("{:.1}", limit.rejected.per_s),
            format!("{:.1}", limit.admitted.per_s),
            format!("{:.1}", limit.waited.per_s),
            limit.waiting.to_string(),
            or_dash(limit.keys),
        ]
    };
    reading.limits.iter().map(row).collect()
}

/// Empty if there are no names of keys.
pub(super) fn key_rows(reading: &GatewayReading) -> Vec<TopRow> {
    let row = |key: &TopKey| {
        [
            escape_controls(&key.key),
            format!("{:.1}", key.refused_per_s),
            format!("{:.1}", key.asked_per_s),
            or_dash(key.remaining),
            or_dash(key.waiting),
            or_dash(key.grant.as_ref().map(|grant| escape_controls(&grant.numbers))),
        ]
    };
    reading.keys.iter().flatten().map(row).collect()
}

/// The heading of the keys, with the reason if there are none.
pub(super) fn describe_keys(reading: &GatewayReading) -> String {
    let limit = reading.limit.as_deref().map(escape_controls);
    match (limit, &reading.keys) {
        (None, _) => "no limits".to_owned(),
        (Some(_), Err(why)) => escape_controls(why),
        (Some(limit), Ok(keys)) if keys.is_empty() => format!("no key of {limit} was refused lately"),
        (Some(limit), Ok(_)) => format!("keys of {limit}, most refused first"),
    }
}

/// Servers in trouble first.
pub(super) fn server_rows(reading: &GatewayReading) -> Vec<TopRow> {
    let mut rows: Vec<TopRow> = Vec::new();
    for upstream in &reading.status.upstreams {
        rows.extend(upstream.servers.iter().map(|server| {
            [
                escape_controls(&server.server),
                escape_controls(&server.state),
                server.in_flight.to_string(),
                server.ejections.to_string(),
                describe_upstream(upstream),
                or_dash(server.last_error.as_ref().map(|last| escape_controls(&last.error))),
            ]
        }));
    }
    rows.sort_by_key(|row| row[1] == "up");
    rows
}

/// The name, and how many requests wait in front of its servers.
fn describe_upstream(upstream: &TopUpstream) -> String {
    let name = escape_controls(&upstream.upstream);
    match &upstream.queue {
        Some(queue) => format!("{name}, {} of {} wait", queue.waiting, queue.size),
        None => name,
    }
}

pub(super) fn render_text(reading: &GatewayReading) -> String {
    let table =
        |columns: [&str; 6], rows: Vec<TopRow>| render_table(columns, rows.into_iter(), TEXT_ROWS_MAX);
    format!(
        "{}\n{}\n{}\n{}{}",
        list_totals(reading).join("  "),
        table(LIMIT_COLUMNS, limit_rows(reading)).trim_end(),
        format_args!("\n{}", describe_keys(reading)),
        table(KEY_COLUMNS, key_rows(reading)).trim_start_matches('\n'),
        table(SERVER_COLUMNS, server_rows(reading)),
    )
}
