//! The data and actions behind the endpoints of the admin API.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use arc_swap::ArcSwap;

use super::answer::AdminResponse;
use super::event_streams::EventStreams;
use super::operator_control::{OperatorControl, StoppedControl};
use crate::operate::explain::{Explanation, Query};
use crate::operate::traffic::TrafficSampler;
use sluicegate_observe::metrics::{Metrics, values};
use sluicegate_proxy::gateway::Gateway;

/// The data and actions behind the endpoints; cheap to clone.
#[derive(Clone)]
pub struct AdminState {
    /// False while the gateway starts or drains.
    ready: Arc<AtomicBool>,
    /// The gateway in force.
    current: Arc<ArcSwap<Gateway>>,
    traffic: Rc<TrafficSampler>,
    events: Rc<EventStreams>,
    changes: Arc<ChangeCounts>,
    explain: Rc<ExplainFn>,
    status: Rc<ResponseFn>,
    reload: Rc<ResponseFn>,
    operator: Rc<dyn OperatorControl>,
}

/// Shows the status, or reloads the configuration and returns the result.
type ResponseFn = dyn Fn() -> Pin<Box<dyn Future<Output = AdminResponse>>>;

/// Explains a request from the running counters; the error is a fault of the query.
type ExplainFn = dyn Fn(Query) -> Pin<Box<dyn Future<Output = Result<Explanation, String>>>>;

impl AdminState {
    /// `changes` counts the endpoints that change.
    pub(super) fn with_counts(
        ready: Arc<AtomicBool>,
        current: Arc<ArcSwap<Gateway>>,
        traffic: Rc<TrafficSampler>,
        explain: impl AsyncFn(Query) -> Result<Explanation, String> + 'static,
        changes: ChangeCounts,
    ) -> AdminState {
        let explain = Rc::new(explain);
        AdminState {
            ready,
            current,
            traffic,
            events: Rc::default(),
            changes: Arc::new(changes),
            explain: Rc::new(move |query| {
                let explain = explain.clone();
                Box::pin(async move { explain(query).await })
            }),
            status: share_action(async || AdminResponse::shutting_down()),
            reload: share_action(async || AdminResponse::shutting_down()),
            operator: Rc::new(StoppedControl),
        }
    }

    /// Sets the actions of `/status` and `/reload`.
    pub fn with_control(
        self,
        status: impl AsyncFn() -> AdminResponse + 'static,
        reload: impl AsyncFn() -> AdminResponse + 'static,
    ) -> AdminState {
        AdminState { status: share_action(status), reload: share_action(reload), ..self }
    }

    /// Sets the actions of the endpoints about keys, grants and bans.
    pub fn with_operator(self, operator: impl OperatorControl + 'static) -> AdminState {
        AdminState { operator: Rc::new(operator), ..self }
    }

    /// Registers the counts of changes with `metrics`. Call it once.
    pub fn register_metrics(&self, metrics: &Metrics) {
        self.changes.register_metrics(metrics);
    }

    /// The gateway in force.
    pub(super) fn gateway(&self) -> Arc<Gateway> {
        self.current.load_full()
    }

    pub(super) fn traffic(&self) -> &TrafficSampler {
        &self.traffic
    }

    pub(super) fn events(&self) -> &Rc<EventStreams> {
        &self.events
    }

    pub(super) fn changes(&self) -> &ChangeCounts {
        &self.changes
    }

    pub(super) fn operator(&self) -> &dyn OperatorControl {
        &*self.operator
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    pub(super) fn show_status(&self) -> Pin<Box<dyn Future<Output = AdminResponse>>> {
        (self.status)()
    }

    pub(super) fn reload(&self) -> Pin<Box<dyn Future<Output = AdminResponse>>> {
        (self.reload)()
    }

    pub(super) fn explain(&self, query: Query) -> Pin<Box<dyn Future<Output = Result<Explanation, String>>>> {
        (self.explain)(query)
    }
}

fn share_action(action: impl AsyncFn() -> AdminResponse + 'static) -> Rc<ResponseFn> {
    let action = Rc::new(action);
    Rc::new(move || {
        let action = action.clone();
        Box::pin(async move { action().await })
    })
}

/// The results of changes, as the metric names them.
const RESULTS: [&str; 2] = ["ok", "refused"];

/// The changes so far, by the name of the endpoint and by result.
#[derive(Debug)]
pub(super) struct ChangeCounts(Vec<(&'static str, [AtomicU64; RESULTS.len()])>);

impl ChangeCounts {
    pub fn new(endpoints: impl Iterator<Item = &'static str>) -> ChangeCounts {
        ChangeCounts(endpoints.map(|name| (name, Default::default())).collect())
    }

    pub fn count_change(&self, name: &str, is_ok: bool) {
        if let Some((_, counts)) = self.0.iter().find(|(known, _)| *known == name) {
            counts[usize::from(!is_ok)].fetch_add(1, Relaxed);
        }
    }

    /// Registers all counts with `metrics`, and with the metrics that continue them. Call it once.
    pub fn register_metrics(self: &Arc<ChangeCounts>, metrics: &Metrics) {
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
