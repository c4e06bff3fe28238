//! `GET /limits/{limit}/usage`: what every key has used in the present window of the calendar or in the last one.

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::answer::{AdminBody, AdminError, Answer, JSON};
use super::endpoint::{AdminRequest, AnswerForm, Answered, Endpoint, Parameter, ParameterKind, error, ok};
use super::key_status::find_account;
use super::{examples, keys};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::{JsonShaped, json_object};
use sluicegate_limit::steps::WindowUsage;
use sluicegate_model::LimitId;
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::gateway::usage::UsageEntry;
use sluicegate_store::StoreFault;

json_object! {
    struct LimitUsage as "LimitUsage" {
        limit: String = "The name of the limit.",
        window: &'static str = "The window." in ["current", "last"],
        keys: Vec<UsageEntry> = "Each rate of each key that has counted there, in no order.",
    }
}

const CSV: &str = "text/csv; charset=utf-8";
const COLUMNS: [&str; 11] =
    ["limit", "key", "rate", "unit", "quota", "used", "reserved", "left", "begins", "ends", "step"];

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
/// Bytes that are sent together.
const PART: usize = 16 << 10;
/// Parts that wait for a slow reader.
const PARTS_WAITING: usize = 4;
/// The time for a whole answer.
const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3600);

/// Writes entries into the parts of a body.
struct UsageWriter {
    gateway: Arc<Gateway>,
    limit: LimitId,
    rate: usize,
    /// Names of clients are shown.
    sees_names: bool,
    is_csv: bool,
    is_first: bool,
    now: Now,
    out: Vec<u8>,
    parts: mpsc::Sender<Bytes>,
    /// Told when the first part is sent, or why none can be.
    begun: Option<oneshot::Sender<Result<(), StoreFault>>>,
}

/// Why an answer has no end: whether a part of it was sent before the fault, which was told otherwise.
struct HasBegun(bool);

async fn list_usage(request: AdminRequest) -> Answered {
    let gateway = request.state.gateway();
    let id = keys::find_limit(&gateway, request.path_value("limit"))?;
    let config = &gateway.config.limits[id.0];
    if !config.has_calendar() {
        let why = "no rate of the limit has windows of the calendar, such as 1000/month";
        return Err(AdminError::new(StatusCode::CONFLICT, why));
    }
    let busy = || AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "two answers of this kind are being sent");
    let permit = ANSWERS.try_acquire().map_err(|_| busy())?;
    let is_last = request.query_value("window") == "last";
    let is_csv = request.query_value("format") == "csv";
    let (parts, body) = mpsc::channel(PARTS_WAITING);
    let (begun, has_begun) = oneshot::channel();
    let head = match is_csv {
        true => COLUMNS.join(",") + "\r\n",
        false => format!(
            "{{\"limit\":{},\"window\":\"{}\",\"keys\":[",
            json!(config.name),
            if is_last { "last" } else { "current" }
        ),
    };
    let writer = UsageWriter {
        limit: id,
        rate: 0,
        sees_names: request.caller.sees_accounts || gateway.access_log.hasher().is_none(),
        is_csv,
        is_first: true,
        now: Now::read_clock(),
        out: head.into_bytes(),
        parts,
        begun: Some(begun),
        gateway,
    };
    let connection = request.connection.clone();
    connection.extend_for(ANSWER_TIMEOUT);
    tokio::task::spawn_local(async move {
        let parts = writer.parts.clone();
        if let Err(HasBegun(true)) = writer.write_all(is_last).await {
            // Without its end the answer is not taken for a whole one.
            connection.close();
            parts.closed().await;
        }
        drop(permit);
    });
    match has_begun.await {
        Ok(Ok(())) => Ok(Answer::fixed(if is_csv { CSV } else { JSON }, AdminBody::Stream(body))),
        Ok(Err(fault)) => Err(refuse_by_store(fault)),
        Err(_) => Err(AdminError::shutting_down()),
    }
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

impl UsageWriter {
    /// Writes all rates with windows of the calendar.
    async fn write_all(mut self, is_last: bool) -> Result<(), HasBegun> {
        let gateway = self.gateway.clone();
        let limit = &gateway.limits[self.limit.0];
        for rate in limit.rate_range(0) {
            let located = limit.config.locate_rate(rate).and_then(|(_, numbers, index)| {
                numbers.rate_quotas().get(index).and_then(|(rate, _)| rate.calendar)
            });
            if located.is_none() {
                continue;
            }
            self.rate = rate;
            self = match &gateway.shared[self.limit.0] {
                None => self.write_local(is_last).await?,
                Some(shared) => {
                    let store = gateway.store.as_ref().ok_or(HasBegun(false))?;
                    let anchor_of = |name: &str| limit.config.anchor_of(find_account(name).as_deref());
                    let take = async |found: Vec<(String, WindowUsage)>| {
                        let is_due =
                            found.into_iter().fold(false, |due, (name, usage)| self.add(&name, usage) || due);
                        !is_due || self.send().await
                    };
                    if let Err(fault) =
                        store.read_windows(&shared.rules[rate], is_last, anchor_of, take).await
                    {
                        let Some(begun) = self.begun.take() else { return Err(HasBegun(true)) };
                        // The caller may be gone.
                        let _ = begun.send(Err(fault));
                        return Err(HasBegun(false));
                    }
                    self
                }
            };
        }
        self.out.extend_from_slice(if self.is_csv { b"" } else { b"]}\n" });
        self.send().await;
        Ok(())
    }

    /// The counters of this process are read beside the workers, which no slow reader may hold up.
    async fn write_local(self, is_last: bool) -> Result<UsageWriter, HasBegun> {
        let read = move || {
            let mut found = Vec::new();
            let gateway = self.gateway.clone();
            gateway.limits[self.limit.0].each_window(self.rate, is_last, self.now, &mut |name, usage| {
                found.push((Box::<str>::from(name), usage));
            });
            (self, found)
        };
        let (mut writer, found) = tokio::task::spawn_blocking(read).await.map_err(|_| HasBegun(true))?;
        for (name, usage) in found {
            if writer.add(&name, usage) && !writer.send().await {
                break;
            }
        }
        Ok(writer)
    }

    /// Adds an entry; true if a part is full.
    fn add(&mut self, name: &str, usage: WindowUsage) -> bool {
        let config = &self.gateway.limits[self.limit.0].config;
        let name = if self.sees_names { name.to_owned() } else { self.gateway.hide_values(config, name) };
        let Some(entry) = UsageEntry::of(config, self.rate, name, Some(usage), (self.now, None)) else {
            return false;
        };
        let entry = json!(entry);
        if self.is_csv {
            let cells: Vec<String> = COLUMNS.iter().map(|column| render_cell(&entry[column])).collect();
            self.out.extend_from_slice((cells.join(",") + "\r\n").as_bytes());
        } else {
            self.out.extend_from_slice(if self.is_first { b"\n" } else { b",\n" });
            self.out.extend_from_slice(entry.to_string().as_bytes());
        }
        self.is_first = false;
        self.out.len() >= PART
    }

    /// Sends what was written; false if nobody reads it.
    async fn send(&mut self) -> bool {
        if let Some(begun) = self.begun.take() {
            // The caller may be gone.
            let _ = begun.send(Ok(()));
        }
        self.parts.send(std::mem::take(&mut self.out).into()).await.is_ok()
    }
}

/// A value as a cell of CSV (RFC 4180); a step is its word.
fn render_cell(value: &Value) -> String {
    let mut cell = String::new();
    // Writing into a String cannot fail.
    let _ = match value {
        Value::Null => Ok(()),
        Value::String(text) if text.contains([',', '"', '\r', '\n']) => {
            write!(cell, "\"{}\"", text.replace('"', "\"\""))
        }
        Value::String(text) => cell.write_str(text),
        Value::Object(step) => write!(cell, "{}", step["then"].as_str().unwrap_or_default()),
        Value::Number(number) if number.is_f64() => write!(cell, "{}", number.as_f64().unwrap_or_default()),
        other => write!(cell, "{other}"),
    };
    cell
}
