//! The numbers of a running gateway, from its admin API.

use serde_json::{Value, json};

use crate::cli::admin_client::{AdminFault, OperatorRequest, escape_controls};
use crate::cli::operator_verbs::encode_segment;
use crate::operate::text_table::show_count;
use sluicegate_model::AdminConfig;

/// The most limits and keys that are asked for.
const LIMITS_MAX: usize = 100;
const KEYS_MAX: usize = 50;

/// The answers of the gateway at one moment.
#[derive(Default)]
pub(super) struct GatewayReading {
    /// The limit of the keys; none without limits.
    pub limit: Option<String>,
    /// The rows of each table, in the order of [`super::tables::TABLES`].
    pub rows: [Vec<Value>; 4],
    /// The same, as the gateway sent it.
    pub answers: Value,
}

/// Reads all, with the keys of the limit `chosen`, or else of the one with most rejections.
pub(super) fn read_gateway(admin: &AdminConfig, chosen: Option<&str>) -> Result<GatewayReading, AdminFault> {
    let ask = |path: String| -> Result<Value, AdminFault> {
        let text = OperatorRequest::get(path).send_for_text(admin, "application/json")?;
        serde_json::from_str(&text).map_err(|_| malformed())
    };
    let status = ask("/status".to_owned())?;
    let limits = ask(format!("/limits?by=rejected&top={LIMITS_MAX}"))?;
    let names = || limits["limits"].as_array().into_iter().flatten().filter_map(|one| one["limit"].as_str());
    let limit = names().find(|name| Some(*name) == chosen).or_else(|| names().next()).map(str::to_owned);
    let path = limit.as_ref().map(|name| format!("/limits/{}/keys?top={KEYS_MAX}", encode_segment(name)));
    let keys = match path.map(ask) {
        None => json!({ "keys": [] }),
        // A gateway may keep no names of keys.
        Some(Err(AdminFault::Rejected(why))) => json!({ "error": why }),
        Some(answer) => answer?,
    };
    let bans = ask("/bans".to_owned())?;
    // Without rates if there are as many readers of events as there may be.
    let event = OperatorRequest::get("/events").read_event(admin)?.unwrap_or_default();
    let answers = json!({
        "status": status, "limits": limits["limits"], "keys": keys, "bans": bans["bans"],
        "upstreams": event["upstreams"],
    });
    GatewayReading::parse_answers(answers, limit)
}

impl GatewayReading {
    pub(super) fn parse_answers(answers: Value, limit: Option<String>) -> Result<GatewayReading, AdminFault> {
        if !answers["status"]["version"].is_string() || !answers["limits"].is_array() {
            return Err(malformed());
        }
        let rows =
            [list_limits(&answers), list_keys(&answers), list_servers(&answers), list(&answers["bans"])];
        Ok(GatewayReading { limit, rows, answers })
    }

    /// The heading of the keys, with the reason if there are none.
    pub(super) fn describe_keys(&self) -> String {
        let limit = self.limit.as_deref().map(escape_controls);
        match (limit, self.answers["keys"]["error"].as_str()) {
            (None, _) => "no limits".to_owned(),
            (Some(_), Some(why)) => escape_controls(why),
            (Some(limit), _) if self.rows[1].is_empty() => format!("no key of {limit} was refused lately"),
            (Some(limit), _) => format!("keys of {limit}"),
        }
    }
}

/// Each upstream with its rates, and behind it its servers, those in trouble first.
fn list_servers(answers: &Value) -> Vec<Value> {
    let (mut rows, rates) = (Vec::new(), list(&answers["upstreams"]));
    for upstream in list(&answers["status"]["upstreams"]) {
        let (name, queue) = (&upstream["upstream"], &upstream["queue"]);
        let mut servers = list(&upstream["servers"]);
        let up = servers.iter().filter(|server| server["state"] == "up").count();
        let waits = queue["size"].as_u64().map(|size| format!(", {} of {size} wait", queue["waiting"]));
        let rates = rates.iter().find(|rates| rates["upstream"] == *name);
        let mut row = rates.cloned().unwrap_or_default();
        // Servers have counts since their start in that place.
        let failed = row.pointer("/responses/5xx").cloned().unwrap_or_default();
        row["server"] = name.clone();
        row["state"] = format!("{up} of {} up{}", servers.len(), waits.unwrap_or_default()).into();
        row["is_calm"] = (up == servers.len() && failed.as_f64().unwrap_or_default() == 0.0).into();
        row["failed_per_s"] = failed;
        rows.push(row);
        servers.sort_by_key(|server| server["state"] == "up");
        for mut server in servers {
            server["of"] = name.clone();
            server["is_calm"] = (server["state"] == "up").into();
            rows.push(server);
        }
    }
    rows
}

/// The limits, each followed by the classes of its shares.
fn list_limits(answers: &Value) -> Vec<Value> {
    let with_classes = |limit: Value| {
        let mut rows = list(&limit["classes"]);
        for class in &mut rows {
            class["of"] = limit["limit"].clone();
            class["limit"] = class["class"].take();
        }
        rows.insert(0, limit);
        rows
    };
    list(&answers["limits"]).into_iter().flat_map(with_classes).collect()
}

/// The keys, with the place of leased units in words.
fn list_keys(answers: &Value) -> Vec<Value> {
    let mut rows = list(&answers["keys"]["keys"]);
    for row in &mut rows {
        if let [Some(here), Some(store)] = ["here", "store"].map(|place| row["leased"][place].as_u64()) {
            row["leased"] = format!("{} here, {} in the store", show_count(here), show_count(store)).into();
        }
    }
    rows
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn malformed() -> AdminFault {
    AdminFault::Unreachable(
        "the gateway answered with other fields than expected: its version may differ".into(),
    )
}
