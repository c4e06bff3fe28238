//! The part of `/status` about Redis: its servers, its outages, and the gateways that share it.

use serde_json::{Value, json};

use crate::operate::text_table::render_table;
use sluicegate_base::clock::Now;
use sluicegate_store::node_reports::{NodeReport, node_name};
use sluicegate_store::{BreakerState, OutageReport, Store, StoreServerState};

/// Maximum number of servers and of gateways on the screen; JSON has all.
const ROWS_MAX: usize = 8;

/// The store of this gateway at one moment.
pub struct StoreStatus {
    servers: Vec<StoreServerState>,
    outages: OutageReport,
    gateways: u64,
    /// `None` = the store does not answer.
    nodes: Option<Vec<NodeStatus>>,
    now: Now,
}

/// One gateway that uses the store.
struct NodeStatus {
    report: NodeReport,
    is_self: bool,
    /// `None` = one of the two has no file.
    file_differs: Option<bool>,
}

impl StoreStatus {
    /// `reports` are those of all gateways, `file_hash` is that of the own file.
    pub fn read(store: &Store, reports: Option<&[NodeReport]>, file_hash: &str, now: Now) -> StoreStatus {
        let own = node_name(store);
        let node = |report: &NodeReport| NodeStatus {
            is_self: report.node == own,
            file_differs: (!report.file_hash.is_empty() && !file_hash.is_empty())
                .then(|| report.file_hash != file_hash),
            report: NodeReport { top_keys: Value::Null, ..report.clone() },
        };
        StoreStatus {
            servers: store.server_states(now),
            outages: store.outages(),
            gateways: store.nodes(),
            nodes: reports.map(|reports| reports.iter().map(node).collect()),
            now,
        }
    }

    pub fn to_json(&self) -> Value {
        let last = self.outages.last.map(
            |(start, end)| json!({ "began_at_ms": unix_ms(start), "lasted_s": seconds_between(start, end) }),
        );
        let servers = self.servers.iter().map(|server| {
            json!({
                "server": server.name,
                "role": server.is_primary.then_some("primary"),
                "up": server.breaker != BreakerState::Open,
                "breaker": server.breaker.label(),
                "calls": server.calls,
                "mean_ms": server.mean_seconds.map(|seconds| (seconds * 1e6).round() / 1e3),
                "evicts_by": server.evicts_by,
            })
        });
        let node = |node: &NodeStatus| {
            json!({
                "name": node.report.name,
                "version": node.report.version,
                "file_hash": node.report.file_hash,
                "started_at_ms": node.report.started_at_ms,
                "own": node.is_self,
                "file_differs": node.file_differs,
            })
        };
        json!({
            "reachable": self.outages.since.is_none(),
            "unreachable_since_ms": self.outages.since.map(unix_ms),
            "outages": self.outages.count,
            "last_outage": last,
            "gateways": self.gateways,
            "servers": servers.collect::<Vec<_>>(),
            "nodes": self.nodes.as_ref().map(|nodes| nodes.iter().map(node).collect::<Vec<_>>()),
        })
    }

    /// The state of the store in one line.
    pub fn summary_line(&self) -> String {
        let state = match self.outages.since {
            None => "reachable".to_owned(),
            Some(since) => format!("unreachable for {} s", seconds_between(since, self.now)),
        };
        let outages = match self.outages.count {
            1 => "1 outage".to_owned(),
            count => format!("{count} outages"),
        };
        let last = self.outages.last.map(|(start, end)| {
            let ago = seconds_between(end, self.now);
            format!(", the last lasted {} s and ended {ago} s ago", seconds_between(start, end))
        });
        format!("{:<12}{state}; {outages}{}\n", "redis", last.unwrap_or_default())
    }

    /// The servers and the gateways as tables.
    pub fn to_tables(&self) -> String {
        let servers = self.servers.iter().map(|server| {
            let role = if server.is_primary { "primary" } else { "-" };
            let state = if server.breaker == BreakerState::Open { "down" } else { "up" };
            let mean = server.mean_seconds.map_or_else(|| "-".to_owned(), |s| format!("{:.2} ms", s * 1e3));
            let (calls, breaker) = (server.calls.to_string(), server.breaker.label().to_owned());
            let evicts = server.evicts_by.clone().unwrap_or_else(|| "-".to_owned());
            [server.name.clone(), role.to_owned(), state.to_owned(), breaker, calls, mean, evicts]
        });
        let header = ["redis server", "role", "state", "breaker", "calls", "mean time", "evicts by"];
        let mut tables = render_table(header, servers, ROWS_MAX);
        let nodes = self.nodes.iter().flatten().map(|node| {
            let started = unix_ms(self.now).saturating_sub(node.report.started_at_ms) / 1_000;
            let file = Some(node.report.file_hash.clone()).filter(|hash| !hash.is_empty());
            let note = match (node.is_self, node.file_differs) {
                (true, _) => "this one",
                (false, Some(true)) => "its file differs",
                _ => "",
            };
            let file = file.unwrap_or_else(|| "-".to_owned());
            let (name, version) = (node.report.name.clone(), node.report.version.clone());
            [name, version, file, format!("{started} s"), note.to_owned()]
        });
        let nodes: Vec<_> = nodes.collect();
        tables.push_str(&render_table(["gateway", "version", "file", "up", ""], nodes.into_iter(), ROWS_MAX));
        tables
    }
}

fn unix_ms(at: Now) -> u64 {
    at.to_unix_ns() / 1_000_000
}

fn seconds_between(start: Now, end: Now) -> f64 {
    (end.ns_since(start) / 1_000_000) as f64 / 1_000.0
}
