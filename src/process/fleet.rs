//! The exchange of gateways through the store: the secret of hashes, and a report about each gateway with its
//! heaviest keys, which any of them adds up.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{Notify, mpsc};

use super::control_thread::{ControlCommand, ControlThread};
use super::heavy_keys::TOP_MAX;
use crate::operate::traffic::LimitTraffic;
use sluicegate_base::clock::Now;
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::gateway::heavy_keys::fleet::{FleetKeys, REPORTED_MAX, ReportedKeys, merge_fleet};
use sluicegate_proxy::gateway::heavy_keys::report::{HeavyBy, HeavyKey, KeyLookupError, find_counted_limit};
use sluicegate_store::node_reports::{NodeReport, REPORT_MAX, publish_node_reports};
use sluicegate_store::{Store, share_secret};

/// Limits in a report, those with most refusals first: reading their keys takes time of the workers.
const LIMITS_MAX: usize = 16;
/// The keys of each order, and fewer where the report would be too long.
const KEYS_EACH: [usize; 5] = [REPORTED_MAX / 2, 10, 5, 2, 1];
/// The bytes for keys; the rest of the report needs less than the other eighth.
const KEYS_BYTES_MAX: usize = REPORT_MAX / 8 * 7;

/// Workers that are too busy to tell their keys do not delay the rest of the report.
const KEYS_TIMEOUT: Duration = Duration::from_secs(1);

/// The store that the tasks serve, and true if they share the secret of hashes.
type StoreUse = (Option<Arc<Store>>, bool);

fn store_use(gateway: &Gateway) -> StoreUse {
    (gateway.store.clone(), gateway.uses_shared_secret())
}

/// Shares the secret of hashes and publishes reports through the store of the gateway in force. Returns when the
/// control thread ends.
pub(super) async fn run_store_tasks(control: Rc<ControlThread>, commands: mpsc::Sender<ControlCommand>) {
    loop {
        let used = store_use(&control.current.load());
        tokio::select! {
            () = serve_store(&control, &commands, &used) => return,
            () = wait_other_use(&control, &used) => {}
        }
    }
}

async fn serve_store(control: &ControlThread, commands: &mpsc::Sender<ControlCommand>, used: &StoreUse) {
    let (Some(store), shares_secret) = used else { return std::future::pending().await };
    let told = Notify::new();
    let secret = async {
        match shares_secret {
            true => share_secret(store.clone(), |_| told.notify_one()).await,
            false => std::future::pending().await,
        }
    };
    let reports = publish_node_reports(store.clone(), async || control.make_report().await);
    let adoption = async {
        loop {
            told.notified().await;
            if commands.send(ControlCommand::AdoptSecret).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = secret => {}
        () = reports => {}
        () = adoption => {}
    }
}

async fn wait_other_use(control: &ControlThread, used: &StoreUse) {
    let identify = |(store, shares): &StoreUse| (store.as_ref().map(Arc::as_ptr), *shares);
    loop {
        let changed = control.gateway_changed.notified();
        if identify(&store_use(&control.current.load())) != identify(used) {
            return;
        }
        changed.await;
    }
}

// === impl ControlThread ===

impl ControlThread {
    /// Puts the gateway in force again with the secret that the store told, for which requests then need no lock.
    pub(super) async fn use_shared_secret(&self) {
        let before = self.current.load_full();
        let told = before.store.as_ref().and_then(|store| store.shared_secret());
        if !before.uses_shared_secret() || told.is_none_or(|told| told == before.secret) {
            return;
        }
        match Gateway::build(&before.config, Some(&before)) {
            Ok(gateway) => self.put_in_force(&Arc::new(gateway)).await,
            Err(error) => {
                tracing::warn!(%error, "hashes of accounts and cookies of `sticky` differ from those of other gateways")
            }
        }
    }

    /// The heaviest keys of a limit: over all gateways if it is counted in the store and the store answers.
    ///
    /// # Errors
    /// There is no such limit, or names are not kept.
    pub(super) async fn fleet_keys(
        &self,
        limit: &str,
        by: HeavyBy,
        top: usize,
    ) -> Result<FleetKeys, KeyLookupError> {
        let gateway = self.current.load_full();
        let counted = find_counted_limit(&gateway, limit).filter(|(_, is_shared)| *is_shared);
        let Some((counted, _)) = counted.filter(|(counted, _)| counted.is_counted()) else {
            return Ok(FleetKeys { keys: self.heavy_keys(limit, by, top).await?, gateways: 1 });
        };
        let reports = self.other_reports(&gateway).await;
        let lists = reports.iter().map(|report| &report.top_keys).filter(|keys| keys.is_object());
        let reported: Vec<_> = lists.map(|keys| ReportedKeys::find_in(keys, limit)).collect();
        let own = self.heavy_keys(limit, by, TOP_MAX).await?;
        let keys = merge_fleet(&gateway, &counted, own, &reported, by, top);
        Ok(FleetKeys { keys, gateways: 1 + reported.len() })
    }

    /// The reports of other gateways; none if the store does not answer.
    async fn other_reports(&self, gateway: &Gateway) -> Vec<NodeReport> {
        let Some(store) = &gateway.store else { return Vec::new() };
        let all = self.fleet.read_reports(store).await.unwrap_or_default();
        let own = store.node_name();
        all.iter().filter(|report| report.node != own).cloned().collect()
    }

    async fn make_report(&self) -> NodeReport {
        let top_keys = tokio::time::timeout(KEYS_TIMEOUT, self.report_keys()).await;
        NodeReport {
            node: String::new(),
            name: host_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            file_hash: self.file_hash.borrow().clone(),
            started_at_ms: self.history.started_at_ms(),
            top_keys: top_keys.unwrap_or_default(),
        }
    }

    /// The heaviest keys of the limits that are counted in the store, as [`ReportedKeys`] by limit.
    async fn report_keys(&self) -> Value {
        let gateway = self.current.load_full();
        let look = self.traffic.look_at(&gateway, Now::read_clock());
        let has_traffic =
            |limit: &LimitTraffic| limit.admitted.total + limit.waited.total + limit.rejected.total > 0;
        let is_shared = |limit: &LimitTraffic| gateway.shared[limit.limit.0].is_some();
        let mut busiest: Vec<&LimitTraffic> =
            look.limits.iter().filter(|limit| is_shared(limit) && has_traffic(limit)).collect();
        let weight =
            |limit: &LimitTraffic| (limit.rejected.per_s_1m, limit.admitted.per_s_1m + limit.waited.per_s_1m);
        busiest.sort_by(|one, other| {
            weight(other).partial_cmp(&weight(one)).unwrap_or(std::cmp::Ordering::Equal)
        });
        busiest.truncate(LIMITS_MAX);
        let mut lists = Vec::with_capacity(busiest.len());
        for limit in busiest {
            let name = gateway.limits[limit.limit.0].name.clone();
            let asked = self.heavy_keys(&name, HeavyBy::Asked, KEYS_EACH[0]).await;
            let refused = self.heavy_keys(&name, HeavyBy::Refused, KEYS_EACH[0]).await;
            // A reload may have removed it, or the names of its keys.
            if let (Ok(asked), Ok(refused)) = (asked, refused) {
                lists.push((name, asked, refused));
            }
        }
        encode_keys(&lists)
    }
}

/// The most keys of each limit that fit; null if not even one does.
fn encode_keys(lists: &[(Arc<str>, Vec<HeavyKey>, Vec<HeavyKey>)]) -> Value {
    let encode = |top: usize| {
        let limits = lists.iter().filter_map(|(name, asked, refused)| {
            let keys = ReportedKeys::from_lists(asked, refused, top);
            Some((name.to_string(), serde_json::to_value(keys).ok()?))
        });
        Value::Object(limits.collect::<Map<String, Value>>())
    };
    let fits = |keys: &Value| keys.to_string().len() <= KEYS_BYTES_MAX;
    KEYS_EACH.into_iter().map(encode).find(fits).unwrap_or_default()
}

/// The name of this host, or `unknown`.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_limit::table::CounterKey;
    use sluicegate_proxy::gateway::heavy_keys::report::KeyRate;

    #[test]
    fn a_report_holds_fewer_keys_where_many_would_be_too_long() {
        let key = |at: usize, length: usize| {
            let rate = KeyRate { per_s: at as f64, error_per_s: 0.0 };
            let name = format!("header:x={at}{}", "y".repeat(length));
            let (account_name, key) = (None, CounterKey::new(1, 0));
            HeavyKey { name, account_name, key, shared: None, asked: rate, refused: rate }
        };
        let limit = |name: String, length: usize| {
            let keys: Vec<_> = (0..20).map(|at| key(at, length)).collect();
            (Arc::from(name), keys.clone(), keys)
        };
        let keys_of = |limits: usize, length: usize| {
            let lists: Vec<_> = (0..limits).map(|at| limit(format!("limit-{at}"), length)).collect();
            let encoded = encode_keys(&lists);
            assert!(encoded.to_string().len() <= KEYS_BYTES_MAX);
            encoded["limit-0"]["keys"].as_array().map(Vec::len)
        };
        assert_eq!(keys_of(1, 10), Some(20));
        assert_eq!(keys_of(LIMITS_MAX, 30), Some(10));
        assert_eq!(keys_of(LIMITS_MAX, 120), Some(5));
        assert_eq!(keys_of(LIMITS_MAX, 9_000), None);
    }
}
