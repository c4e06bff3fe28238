//! The tables of `top`: their columns, their rows in the chosen order, and all of them as plain text.

use std::array;
use std::cmp::Ordering;

use serde_json::Value;

use super::reading::GatewayReading;
use crate::cli::admin_client::escape_controls;
use crate::cli::operator_verbs::format_seconds;
use crate::operate::text_table::{render_table, show_count};

/// The most rows of a table of plain text.
const TEXT_ROWS_MAX: usize = 20;
const COLUMNS_MAX: usize = 8;

pub(super) const LIMITS: usize = 0;
pub(super) const KEYS: usize = 1;
pub(super) const SERVERS: usize = 2;
pub(super) const BANS: usize = 3;

/// The titles of the columns, and the places of their values. A narrow screen leaves out the last columns.
pub(super) type TopColumns = &'static [(&'static str, &'static str)];

pub(super) const TABLES: [TopColumns; 4] = [
    &[
        ("limit", "/limit"),
        ("rejected/s", "/rejected/per_s"),
        ("admitted/s", "/admitted/per_s"),
        ("waited/s", "/waited/per_s"),
        ("waiting", "/waiting"),
        ("keys", "/keys"),
    ],
    &[
        ("key", "/key"),
        ("refused/s", "/refused_per_s"),
        ("asked/s", "/asked_per_s"),
        ("left", "/remaining"),
        ("leased", "/leased"),
        ("waiting", "/waiting"),
        ("granted", "/grant/numbers"),
        ("step", "/step"),
    ],
    &[
        ("server", "/server"),
        ("state", "/state"),
        ("5xx/s", "/failed_per_s"),
        ("p50 ms", "/response/p50_ms"),
        ("p99 ms", "/response/p99_ms"),
        ("in flight", "/in_flight"),
        ("ejections", "/ejections"),
        ("last error", "/last_error/error"),
    ],
    &[("banned", "/banned"), ("left s", "/left_s"), ("by", "/by"), ("reason", "/reason")],
];

/// A row, and the object that it shows.
pub(super) struct TopRow<'r> {
    /// No other row of the table has it.
    pub id: String,
    pub cells: Vec<String>,
    pub value: &'r Value,
}

/// The column that a table is sorted by, largest numbers first unless it is reversed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TopOrder {
    /// `None` = the order of the gateway.
    pub column: Option<usize>,
    pub is_reversed: bool,
}

/// The totals, in the order in which a narrow screen shows them.
pub(super) fn list_totals(reading: &GatewayReading) -> Vec<String> {
    let status = &reading.answers["status"];
    let up = format_seconds(status["uptime_s"].as_f64().unwrap_or_default()).unwrap_or_default();
    let place = |(name, place)| format!("{name} {}", show_cell(status.pointer(place)));
    let counts = [("in flight", "/in_flight"), ("connections", "/connections"), ("bans", "/bans/active")];
    let mut totals = vec![place(("rejections", "/rejections/per_s")) + "/s"];
    totals.extend(counts.map(place));
    totals.extend([format!("up {up}"), place(("sluicegate", "/version"))]);
    totals
}

/// The limits that operators have paused.
pub(super) fn describe_paused(reading: &GatewayReading) -> Option<String> {
    let paused = reading.answers["status"]["paused"].as_array()?;
    let names: Vec<&str> = paused.iter().filter_map(|limit| limit["limit"].as_str()).collect();
    (!names.is_empty()).then(|| escape_controls(&format!("paused: {}", names.join(", "))))
}

/// The rows with `search` in a cell, in this order. A server stays below its upstream.
pub(super) fn list_rows<'r>(
    values: &'r [Value],
    columns: TopColumns,
    search: &str,
    order: TopOrder,
) -> Vec<TopRow<'r>> {
    let is_found = |row: &TopRow<'_>| row.cells.iter().any(|cell| cell.to_lowercase().contains(search));
    let groups = values.chunk_by(|_, next| !next["of"].is_null());
    let mut groups: Vec<Vec<TopRow<'r>>> = groups
        .map(|group| group.iter().map(|value| make_row(value, columns)).collect())
        .filter(|group: &Vec<TopRow<'_>>| group.iter().any(is_found))
        .collect();
    if let Some(column) = order.column {
        groups.sort_by(|one, other| {
            let order_of = compare_cells(&one[0].cells[column], &other[0].cells[column]);
            if order.is_reversed { order_of.reverse() } else { order_of }
        });
    }
    groups.into_iter().flatten().collect()
}

fn make_row<'r>(value: &'r Value, columns: TopColumns) -> TopRow<'r> {
    let indent = if value["of"].is_null() { "" } else { "  " };
    let mut cells: Vec<_> = columns.iter().map(|(_, place)| show_cell(value.pointer(place))).collect();
    cells[0].insert_str(0, indent);
    let id = format!("{} {:?}", value["of"], value.pointer(columns[0].1));
    TopRow { id, cells, value }
}

/// Larger numbers first, then texts by their letters.
fn compare_cells(one: &str, other: &str) -> Ordering {
    let number = |cell: &str| cell.replace(',', "").parse::<f64>().ok();
    match (number(one), number(other)) {
        (Some(one), Some(other)) => other.total_cmp(&one),
        (one_number, other_number) => {
            other_number.is_some().cmp(&one_number.is_some()).then_with(|| one.cmp(other))
        }
    }
}

/// Rates and times have one digit after the point, counts none.
fn show_cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => escape_controls(text),
        Some(value) => match (value.as_u64(), value.as_f64()) {
            (Some(count), _) => show_count(count),
            (None, Some(number)) => {
                let tenths = (number * 10.0).round() as u64;
                format!("{}.{}", show_count(tenths / 10), tenths % 10)
            }
            (None, None) => value.to_string(),
        },
    }
}

pub(super) fn render_text(reading: &GatewayReading) -> String {
    let table = |table: usize| {
        let rows = list_rows(&reading.rows[table], TABLES[table], "", TopOrder::default());
        let rows = rows.into_iter().map(|row| row.cells.into_iter());
        let titles = array::from_fn(|column| TABLES[table].get(column).map_or("", |(title, _)| title));
        let rows = rows.map(|mut cells| array::from_fn(|_| cells.next().unwrap_or_default()));
        render_table::<COLUMNS_MAX>(titles, rows, TEXT_ROWS_MAX)
    };
    let keys = format!("{}\n{}", reading.describe_keys(), table(KEYS).trim_start());
    let (limits, servers, bans) = (table(LIMITS), table(SERVERS), table(BANS));
    let paused = describe_paused(reading).map(|paused| paused + "\n").unwrap_or_default();
    let totals = list_totals(reading).join("  ");
    format!("{totals}\n{paused}{limits}\n{}\n{servers}{bans}", keys.trim_end())
}
