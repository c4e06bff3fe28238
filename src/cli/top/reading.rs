//! The numbers of a running gateway, from its admin API.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cli::admin_client::{AdminFault, OperatorRequest};
use crate::cli::operator_verbs::encode_segment;
use sluicegate_model::AdminConfig;

/// The most limits and keys that are asked for.
const LIMITS_MAX: usize = 100;
const KEYS_MAX: usize = 50;

/// The answers of the gateway at one moment.
pub(super) struct GatewayReading {
    pub status: TopStatus,
    /// The limits, those with most rejections first.
    pub limits: Vec<TopLimit>,
    /// The limit of `keys`; none without limits.
    pub limit: Option<String>,
    /// The keys, those refused most first; or the reason for none.
    pub keys: Result<Vec<TopKey>, String>,
    /// The same, as the gateway sent it.
    answers: Value,
}

#[derive(Debug, Deserialize)]
pub(super) struct TopStatus {
    pub version: String,
    pub uptime_s: u64,
    pub connections: u64,
    pub in_flight: u64,
    pub rejections: TopRate,
    pub bans: Option<TopBans>,
    pub upstreams: Vec<TopUpstream>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TopRate {
    pub per_s: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct TopBans {
    pub active: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct TopUpstream {
    pub upstream: String,
    pub queue: Option<TopServerQueue>,
    pub servers: Vec<TopServer>,
}

/// The queue in front of the servers of an upstream.
#[derive(Debug, Deserialize)]
pub(super) struct TopServerQueue {
    pub size: u64,
    pub waiting: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct TopServer {
    pub server: String,
    pub state: String,
    pub in_flight: u64,
    pub ejections: u64,
    pub last_error: Option<TopServerError>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TopServerError {
    pub error: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct TopLimit {
    pub limit: String,
    pub keys: Option<u64>,
    pub waiting: u64,
    pub admitted: TopRate,
    pub waited: TopRate,
    pub rejected: TopRate,
}

#[derive(Debug, Deserialize)]
pub(super) struct TopKey {
    pub key: String,
    pub asked_per_s: f64,
    pub refused_per_s: f64,
    pub remaining: Option<u64>,
    pub waiting: Option<u64>,
    pub grant: Option<TopGrant>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TopGrant {
    pub numbers: String,
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
    GatewayReading::parse_answers(status, limits, limit, keys)
}

impl GatewayReading {
    pub(super) fn parse_answers(
        status: Value,
        limits: Value,
        limit: Option<String>,
        keys: Value,
    ) -> Result<GatewayReading, AdminFault> {
        let listed = match keys["error"].as_str() {
            Some(why) => Err(why.to_owned()),
            None => Ok(parse_json(&keys["keys"])?),
        };
        Ok(GatewayReading {
            status: parse_json(&status)?,
            limits: parse_json(&limits["limits"])?,
            limit,
            keys: listed,
            answers: json!({ "status": status, "limits": limits["limits"], "keys": keys }),
        })
    }

    pub(super) fn render_json(&self) -> String {
        format!("{:#}\n", self.answers)
    }
}

fn parse_json<T: DeserializeOwned>(value: &Value) -> Result<T, AdminFault> {
    T::deserialize(value).map_err(|_| malformed())
}

fn malformed() -> AdminFault {
    AdminFault::Unreachable(
        "the gateway answered with other fields than expected: its version may differ".into(),
    )
}
