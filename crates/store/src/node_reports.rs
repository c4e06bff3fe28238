//! Short reports of the gateways about themselves, which each of them can read.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::script::operator::OPERATOR_GROUP;
use super::{Link, LuaScript, PackedCall, Store, StoreFault};
use sluicegate_limit::table::persistent::take_bytes;

/// The longest report, in bytes.
pub const REPORT_MAX: usize = 16 * 1024;
/// The pause between two reports of one gateway; the store keeps each for ten seconds.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(2);
/// The reports that one call reads.
const READ_PER_CALL: usize = 32;
/// The bytes of a gateway's name in the store.
const NODE_BYTES: usize = 16;

const PUBLISH: u8 = 1;
const LIST: u8 = 2;
const READ: u8 = 3;

/// The report of a gateway about itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeReport {
    /// The process in the store; filled in where the report is published.
    pub node: String,
    /// The name that operators use, e.g. its host name.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// A hash of the gateway.yaml.
    pub file_hash: String,
    /// The start of the process, in ms since 1970.
    pub started_at_ms: u64,
    /// The heaviest keys of its limits; null if the report was too long with them.
    pub top_keys: serde_json::Value,
}

/// Publishes the report that `make_report` makes, every two seconds. Never returns. Run it once, on the runtime of a
/// single thread that is not a worker's.
pub async fn publish_node_reports(store: Arc<Store>, make_report: impl AsyncFn() -> NodeReport) {
    let (link, script) = (store.open_link(), report_script());
    store.load_script(&script);
    let mut is_refused = false;
    loop {
        let report = NodeReport { node: store.node_name(), ..make_report().await };
        let answer = publish_report(&link, &script, report).await;
        let refused = answer == Ok(false);
        if refused && !is_refused {
            tracing::warn!("redis holds the reports of too many gateways; this one is not listed");
        }
        is_refused = refused;
        tokio::time::sleep(PUBLISH_INTERVAL).await;
    }
}

/// The reports of all gateways that published one within ten seconds, by name; 256 at most.
///
/// # Errors
/// Any fault of the store.
pub async fn read_node_reports(link: &Link) -> Result<Vec<NodeReport>, StoreFault> {
    let script = report_script();
    let names = call_reports(link, &script, &[], vec![LIST]).await?;
    let names: Vec<&str> =
        names.chunks_exact(NODE_BYTES).filter_map(|name| str::from_utf8(name).ok()).collect();
    let mut reports = Vec::with_capacity(names.len());
    for names in names.chunks(READ_PER_CALL) {
        let bytes = call_reports(link, &script, names, vec![READ]).await?;
        let mut rest = bytes.as_slice();
        while let Some(length) = take_bytes(&mut rest).map(u32::from_le_bytes) {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let report = rest.split_off(..length).ok_or(StoreFault::Garbled)?;
            // A report of another release may have other fields; one that is none is left out.
            reports.extend(serde_json::from_slice::<NodeReport>(report).ok());
        }
    }
    reports.sort_by(|one, other| (&one.name, &one.node).cmp(&(&other.name, &other.node)));
    Ok(reports)
}

fn report_script() -> LuaScript {
    LuaScript::new(concat!(include_str!("script/log.lua"), include_str!("script/nodes.lua")))
}

/// False if there are too many gateways.
async fn publish_report(link: &Link, script: &LuaScript, report: NodeReport) -> Result<bool, StoreFault> {
    let Some(json) = encode_report(&report) else { return Ok(false) };
    let body = [&[PUBLISH], report.node.as_bytes(), &json].concat();
    Ok(call_reports(link, script, &[&report.node], body).await? == [0])
}

/// The report in JSON, without its keys if it is too long; `None` if it is too long all the same.
fn encode_report(report: &NodeReport) -> Option<Vec<u8>> {
    let fits = |json: &Vec<u8>| json.len() <= REPORT_MAX;
    serde_json::to_vec(report).ok().filter(fits).or_else(|| {
        let short = NodeReport { top_keys: serde_json::Value::Null, ..report.clone() };
        serde_json::to_vec(&short).ok().filter(fits)
    })
}

async fn call_reports(
    link: &Link,
    script: &LuaScript,
    nodes: &[&str],
    body: Vec<u8>,
) -> Result<Vec<u8>, StoreFault> {
    let prefix = link.store().prefix();
    let own = nodes.iter().map(|node| format!("{prefix}:{{operator}}:node:{node}").into_bytes());
    let all = format!("{prefix}:{{operator}}:nodes").into_bytes();
    let packed = PackedCall { keys: std::iter::once(all).chain(own).collect(), body };
    link.call_script(OPERATOR_GROUP, script, &packed).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_is_too_long_goes_without_its_keys() {
        let long = serde_json::Value::String("x".repeat(REPORT_MAX));
        let report = NodeReport { name: "a".into(), top_keys: long, ..NodeReport::default() };
        let read: NodeReport = serde_json::from_slice(&encode_report(&report).unwrap()).unwrap();
        assert_eq!(read, NodeReport { top_keys: serde_json::Value::Null, ..report.clone() });
        assert_eq!(encode_report(&NodeReport { name: "x".repeat(REPORT_MAX), ..report }), None);
    }
}
