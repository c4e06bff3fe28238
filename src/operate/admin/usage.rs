//! `GET /limits/{limit}/usage`: what every key has used in the present window of the calendar or in the last one.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use super::answer::{AdminBody, AdminError, Answer, JSON};
use super::endpoint::{AdminRequest, AnswerForm, Answered, Endpoint, Parameter, ParameterKind, error, ok};
use super::key_status::find_account;
use super::{examples, keys};
use crate::operate::text_table::quote_csv;
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::{JsonShaped, json_object};
use sluicegate_model::LimitId;
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::gateway::usage::UsageEntry;
use sluicegate_store::{NamedWindow, StoreFault, WindowScan};

json_object! {
    struct LimitUsage as "LimitUsage" {
        limit: String = "The name of the limit.",
        window: &'static str = "The window." in ["current", "last"],
        keys: Vec<UsageEntry> = "Each rate of each key that has counted there, in no order.",
    }
}

const CSV: &str = "text/csv; charset=utf-8";

pub(super) const LIST_USAGE: Endpoint = Endpoint {
    name: "list_usage",
    path: "/limits/{limit}/usage",
    summary: "What all keys of a limit have used in a window of the calendar.",
    parameters: &[
        keys::LIMIT,
        Parameter::in_query(
            ("window", "current"),
            ParameterKind::Words(&["current", "last"]),
            "last",
            "The present window of each key, or the one before.",
        ),
        Parameter::in_query(
            ("format", "json"),
            ParameterKind::Words(&["json", "csv"]),
            "csv",
            "JSON, or a table with a line for each rate of each key.",
        ),
    ],
    answers: &[
        ok(
            "The use; an answer that breaks off is not complete.",
            &[
                AnswerForm::Json(LimitUsage::SHAPE, examples::USAGE),
                AnswerForm::Other(CSV, "limit,key,rate,unit,quota,used,reserved,left,begins,ends,step\r\n"),
            ],
        ),
        keys::NO_LIMIT,
        error(409, "No rate of the limit has windows of the calendar."),
        error(
            503,
            "Redis does not answer or does not allow SCAN, two other answers are being sent, or the \
                    process is shutting down.",
        ),
    ],
    handler: |request| Box::pin(list_usage(request)),
    ..Endpoint::READ
};

/// Answers that are sent at once.
static ANSWERS: Semaphore = Semaphore::const_new(2);
/// Keys that are sent together.
const KEYS_SENT: usize = 200;
/// Parts that wait for a slow reader.
const PARTS_WAITING: usize = 4;
/// The time for a whole answer.
const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3600);

/// The use of all keys of a limit.
struct UsageList {
    gateway: Arc<Gateway>,
    limit: LimitId,
    is_last: bool,
    /// Names of clients are shown.
    sees_names: bool,
    is_csv: bool,
    /// Reads the counters in the store; `None` = those of `rates` are in this process.
    scan: Option<WindowScan>,
    rates: Vec<usize>,
}

async fn list_usage(request: AdminRequest) -> Answered {
    let gateway = request.state.gateway();
    let limit = keys::find_limit(&gateway, request.path_value("limit"))?;
    let config = &gateway.config.limits[limit.0];
    if config.calendar.is_none() {
        let why = "no rate of the limit has windows of the calendar, such as 1000/month";
        return Err(AdminError::new(StatusCode::CONFLICT, why));
    }
    let busy = || AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "two answers of this kind are being sent");
    let permit = ANSWERS.try_acquire().map_err(|_| busy())?;
    let (window, is_csv) = (request.query_value("window"), request.query_value("format") == "csv");
    let columns: Vec<&str> = UsageEntry::OBJECT.fields.iter().map(|field| field.name).collect();
    let (kind, mut text, end) = match is_csv {
        true => (CSV, columns.join(",") + "\r\n", ""),
        false => {
            let head = format!("{{\"limit\":{},\"window\":\"{window}\",\"keys\":[", json!(config.name));
            (JSON, head, "]}\n")
        }
    };
    let rates = config.algorithm.rate_quotas().into_iter().enumerate();
    let rates: Vec<usize> =
        rates.filter(|(_, (rate, _))| rate.calendar.is_some()).map(|(index, _)| index).collect();
    let store = gateway.store.as_ref().filter(|_| gateway.shared[limit.0].is_some());
    let mut list = UsageList {
        limit,
        is_last: window == "last",
        sees_names: request.caller.sees_accounts || gateway.access_log.hasher().is_none(),
        is_csv,
        scan: store.map(|store| store.scan_windows(&rates)).transpose().map_err(refuse_by_store)?,
        rates,
        gateway: gateway.clone(),
    };
    let connection = request.connection.clone();
    connection.extend_for(ANSWER_TIMEOUT);
    // A fault before the first entry is an answer.
    let mut found = list.read_windows().await?;
    let (parts, body) = mpsc::channel(PARTS_WAITING);
    tokio::task::spawn_local(async move {
        let _held = permit;
        while let Some((rate, windows)) = found {
            for some in windows.chunks(KEYS_SENT) {
                some.iter().for_each(|window| list.write_entry(&mut text, rate, window));
                if parts.send(std::mem::take(&mut text).into()).await.is_err() {
                    return;
                }
            }
            let more = tokio::select! {
                // A scan may find nothing for long, and nobody may wait for it any more.
                () = parts.closed() => return,
                more = list.read_windows() => more,
            };
            let Ok(more) = more else {
                // Without its end the answer is not taken for a whole one.
                connection.close();
                return parts.closed().await;
            };
            found = more;
        }
        text.push_str(end);
        // The caller may be gone.
        let _ = parts.send(text.into()).await;
    });
    Ok(Answer::fixed(kind, AdminBody::Stream(body)))
}

fn refuse_by_store(fault: StoreFault) -> AdminError {
    let why = match fault {
        StoreFault::Unauthorized => {
            "Redis does not allow SCAN: add +scan to the rights of its user".to_owned()
        }
        StoreFault::Full => "Redis has more than two million keys of this limit".to_owned(),
        fault => format!("Redis does not answer: {}", fault.label()),
    };
    AdminError::new(StatusCode::SERVICE_UNAVAILABLE, &why)
}

impl UsageList {
    /// The windows of some more keys, with their rate; `None` = all were read.
    async fn read_windows(&mut self) -> Result<Option<(usize, Vec<NamedWindow>)>, AdminError> {
        let (gateway, id, last) = (self.gateway.clone(), self.limit.0, self.is_last);
        if let (Some(scan), Some(shared), Some(store)) = (&mut self.scan, &gateway.shared[id], &gateway.store)
        {
            let config = &gateway.limits[id].config;
            let anchor_of = |name: &str| config.anchor_of(find_account(name).as_deref());
            let found = store.read_windows(scan, &shared.rules, last, anchor_of).await;
            return found.map_err(refuse_by_store);
        }
        let Some(rate) = self.rates.pop() else { return Ok(None) };
        // The counters of this process are read beside the workers, which no slow reader may hold up.
        let read = move || {
            let mut found = Vec::new();
            let mut add = |name: &str, usage| found.push((name.to_owned(), usage));
            gateway.limits[id].each_window(rate, last, Now::read_clock(), &mut add);
            found
        };
        let found = tokio::task::spawn_blocking(read).await.map_err(|_| AdminError::shutting_down())?;
        Ok(Some((rate, found)))
    }

    /// Adds an entry to the text.
    fn write_entry(&self, text: &mut String, rate: usize, (name, usage): &NamedWindow) {
        let config = &self.gateway.limits[self.limit.0].config;
        let name = if self.sees_names { name.clone() } else { self.gateway.hide_values(config, name) };
        match json!(UsageEntry::of(config, rate, name, Some(*usage), (Now(0), None))) {
            Value::Null => {}
            Value::Object(entry) if self.is_csv => {
                let cells: Vec<String> = entry.values().map(render_cell).collect();
                text.push_str(&(cells.join(",") + "\r\n"));
            }
            entry => {
                text.push_str(if text.ends_with('[') { "\n" } else { ",\n" });
                text.push_str(&entry.to_string());
            }
        }
    }
}

/// A value as a cell of CSV; a step is its word.
fn render_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => quote_csv(text),
        Value::Object(step) => render_cell(&step["then"]),
        // Written without an exponent.
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}
