//! The data and actions behind the endpoints of the admin API.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use arc_swap::ArcSwap;

use super::answer::AdminError;
use super::event_streams::EventStreams;
use super::status::{Reloaded, Status, StatusToken};
use crate::operate::traffic::TrafficSampler;
use sluicegate_observe::metrics::{Metrics, values};
use sluicegate_proxy::gateway::heavy_keys::fleet::FleetKeys;
use sluicegate_proxy::gateway::heavy_keys::report::{HeavyBy, HeavyKey, KeyLookupError, RecentRefusal};
use sluicegate_proxy::gateway::{Gateway, OperatorChange, OperatorFault, OperatorOutcome};
use sluicegate_store::Session;

/// The result of an action, when it is there.
pub type ActionFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The actions of the running gateway that the endpoints ask for.
pub trait GatewayActions {
    /// Reads the state of the gateway for this caller; fails while the process shuts down.
    fn show_status(&self, caller: StatusToken) -> ActionFuture<Result<Status, AdminError>>;

    /// Reloads the configuration; the error is the answer that tells why the old one stays.
    fn reload(&self) -> ActionFuture<Result<Reloaded, AdminError>>;

    /// The gateway in force and, if it has a store, a session with that; `None` = the process is shutting down.
    fn open_session(&self) -> Option<(Arc<Gateway>, Option<Rc<Session>>)>;

    /// The keys of a limit that ask most or are refused most, the heaviest first; those of all gateways that count it
    /// together.
    fn list_heavy_keys(
        &self,
        limit: String,
        by: HeavyBy,
        top: usize,
    ) -> ActionFuture<Result<FleetKeys, KeyLookupError>>;

    /// The key of a limit with this name.
    fn find_key(&self, limit: String, name: String) -> ActionFuture<Result<HeavyKey, KeyLookupError>>;

    /// The last refusals, the latest first.
    fn list_refusals(&self) -> ActionFuture<Vec<RecentRefusal>>;

    /// Makes a change that an operator asks for.
    fn make_change(&self, change: OperatorChange) -> ActionFuture<Result<OperatorOutcome, OperatorFault>>;
}

/// The data and actions behind the endpoints; cheap to clone.
#[derive(Clone)]
pub struct AdminState {
    /// False while the gateway starts or drains.
    pub(super) ready: Arc<AtomicBool>,
    /// The gateway in force.
    pub(super) current: Arc<ArcSwap<Gateway>>,
    pub(super) traffic: Rc<TrafficSampler>,
    pub(super) events: Rc<EventStreams>,
    /// Counts the requests that change something.
    pub(super) changes: Arc<ChangeCounts>,
    pub(super) actions: Rc<dyn GatewayActions>,
}

impl AdminState {
    /// Registers the counts of changes with `metrics`. Call it once.
    pub fn register_metrics(&self, metrics: &Metrics) {
        self.changes.register_metrics(metrics);
    }

    /// The gateway in force.
    pub(super) fn gateway(&self) -> Arc<Gateway> {
        self.current.load_full()
    }
}

/// The results of changes, as the metric names them.
const RESULTS: [&str; 2] = ["ok", "refused"];

/// The changes so far, by the name of the endpoint and by result.
#[derive(Debug)]
pub(super) struct ChangeCounts(Vec<(&'static str, [AtomicU64; RESULTS.len()])>);

impl ChangeCounts {
    pub(super) fn new(endpoints: impl Iterator<Item = &'static str>) -> ChangeCounts {
        ChangeCounts(endpoints.map(|name| (name, Default::default())).collect())
    }

    pub(super) fn count_change(&self, name: &str, is_ok: bool) {
        if let Some((_, counts)) = self.0.iter().find(|(known, _)| *known == name) {
            counts[usize::from(!is_ok)].fetch_add(1, Relaxed);
        }
    }

    /// Registers all counts with `metrics`, and with the metrics that continue them. Call it once.
    pub(super) fn register_metrics(self: &Arc<ChangeCounts>, metrics: &Metrics) {
        for (at, (name, _)) in self.0.iter().enumerate() {
            for (result, word) in RESULTS.into_iter().enumerate() {
                let counts = self.clone();
                let labels = vec![("call", name.to_string()), ("result", word.to_owned())];
                let read = move || counts.0[at].1[result].load(Relaxed);
                metrics.watch_process(values::ADMIN_CHANGES, labels, read);
            }
        }
    }
}
