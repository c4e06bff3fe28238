//! The tasks beside the workers that belong to the gateway in force; a new gateway updates or replaces them.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::acme::AcmeTasks;
use super::entry_sharing::{EntrySharing, PauseSharing};
use super::key_fetch::KeyFetchTasks;
use super::notify::NotifyTask;
use super::span_export::SpanExport;
use sluicegate_admission::ban;
use sluicegate_base::file::{FileContent, NamedFile};
use sluicegate_http::upstream::BackgroundTasks;
use sluicegate_limit::snapshot::{LastFault, SnapshotThread};
use sluicegate_model::{AccountConfig, Config, JwtConfig, LimitConfig, PriceList, TokenKeySource, TokenKeys};
use sluicegate_observe::metrics::values;
use sluicegate_proxy::gateway::Gateway;
use sluicegate_store::Store;

/// Time to write the last snapshot.
const LAST_SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// Must be created and changed on the local runtime of the control thread.
pub(super) struct GatewayTasks {
    current: Arc<ArcSwap<Gateway>>,
    file_watch: JoinHandle<()>,
    ban_sharing: Option<JoinSet<()>>,
    pub entry_sharing: Option<EntrySharing>,
    entries_changed: Rc<Notify>,
    pause_sharing: Option<PauseSharing>,
    store: Option<SupervisedStore>,
    snapshots: Option<(PathBuf, SnapshotThread)>,
    /// The last fault of the current snapshot thread, and later ones.
    snapshot_fault: LastFault,
    /// Health checks and DNS refresh of the upstreams, until dropped.
    upstream_tasks: BackgroundTasks,
    span_export: Option<SpanExport>,
    key_fetches: KeyFetchTasks,
    notify: NotifyTask,
    pub acme: AcmeTasks,
}

impl GatewayTasks {
    /// Starts the tasks of the current gateway. `entries_changed` is notified when changes of operators on other
    /// gateways are to be adopted.
    ///
    /// # Errors
    /// The snapshot thread cannot be started.
    pub(super) fn start_all(
        current: Arc<ArcSwap<Gateway>>,
        entries_changed: Rc<Notify>,
    ) -> io::Result<GatewayTasks> {
        let gateway = current.load_full();
        let snapshot_fault = LastFault::default();
        watch_snapshots(&gateway, &snapshot_fault);
        Ok(GatewayTasks {
            file_watch: spawn_file_watch(&gateway.config),
            ban_sharing: share_bans(&gateway),
            entry_sharing: EntrySharing::start(None, &gateway, &entries_changed),
            entries_changed,
            pause_sharing: PauseSharing::start(None, &current),
            store: supervise_store(&gateway),
            snapshots: start_snapshots(&gateway, &current, &snapshot_fault)?,
            snapshot_fault,
            upstream_tasks: BackgroundTasks::spawn_all(&gateway.upstreams),
            span_export: gateway.tracer.as_deref().and_then(SpanExport::start),
            key_fetches: KeyFetchTasks::default().continue_for(&gateway),
            notify: NotifyTask::start(&current),
            acme: AcmeTasks::default().continue_for(&gateway),
            current,
        })
    }

    /// Switches all tasks from `before` to `gateway`, which is in force now. `store` is its own, if it is another one.
    pub(super) fn switch_gateway(
        &mut self,
        before: &Arc<Gateway>,
        gateway: &Arc<Gateway>,
        store: Option<SupervisedStore>,
    ) {
        // Steps are noted by their places in the file before.
        before.tell_steps();
        self.file_watch.abort();
        self.file_watch = spawn_file_watch(&gateway.config);
        self.upstream_tasks.restart_all(&gateway.upstreams);
        self.key_fetches = std::mem::take(&mut self.key_fetches).continue_for(gateway);
        self.resume_orders(gateway);
        self.notify.use_config(gateway.config.notify.as_ref());
        let same_bans = format!("{:?}", before.config.bans) == format!("{:?}", gateway.config.bans);
        if !same_bans || !same_arc(before.store.as_ref(), gateway.store.as_ref()) {
            // The task before ends first.
            self.ban_sharing = None;
            self.ban_sharing = share_bans(gateway);
        }
        self.entry_sharing = EntrySharing::start(self.entry_sharing.take(), gateway, &self.entries_changed);
        self.pause_sharing = PauseSharing::start(self.pause_sharing.take(), &self.current);
        // The previous store stays supervised until its last gateway is gone.
        if !same_arc(before.store.as_ref(), gateway.store.as_ref()) {
            self.store = store;
        }
        self.update_snapshot(gateway);
        if !same_arc(before.tracer.as_ref(), gateway.tracer.as_ref()) {
            self.span_export = gateway.tracer.as_deref().and_then(SpanExport::start);
        }
        watch_snapshots(gateway, &self.snapshot_fault);
    }

    /// Restarts the snapshots if their file changed.
    pub(super) fn update_snapshot(&mut self, gateway: &Arc<Gateway>) {
        let path = self.snapshots.as_ref().map(|(path, _)| path);
        if path == gateway.config.state.snapshot.as_ref() {
            return;
        }
        self.release_snapshot();
        match start_snapshots(gateway, &self.current, &self.snapshot_fault) {
            Ok(snapshots) => self.snapshots = snapshots,
            Err(error) => tracing::error!(%error, "no snapshots are written: their thread cannot be started"),
        }
    }

    /// The file of the snapshots, and the reason if the last one was not written.
    pub(super) fn snapshot_status(&self) -> Option<(&Path, Option<String>)> {
        self.snapshots.as_ref().map(|(path, snapshots)| (path.as_path(), snapshots.last_fault()))
    }

    /// Stops the snapshots, which another process writes from now on.
    pub(super) fn release_snapshot(&mut self) {
        if let Some((_, snapshots)) = self.snapshots.take() {
            snapshots.stop_unsaved();
        }
    }

    /// Orders the certificates of `gateway` from now on.
    pub(super) fn resume_orders(&mut self, gateway: &Gateway) {
        self.acme = std::mem::take(&mut self.acme).continue_for(gateway);
    }

    /// Sends the last spans and events, deregisters the gateway from the store, and writes the last snapshot.
    pub(super) async fn shut_down(self) {
        if let Some(export) = self.span_export {
            export.flush_and_end().await;
        }
        self.notify.flush_and_end().await;
        if let Some((store, task)) = self.store {
            task.abort();
            // It owns the supervision, which must end before the gateway is deregistered.
            let _ = task.await;
            store.deregister_gateway().await;
        }
        if self.snapshots.is_some_and(|(_, snapshots)| !snapshots.finish_writing(LAST_SNAPSHOT_TIMEOUT)) {
            tracing::warn!("the last snapshot was not written");
        }
    }
}

fn same_arc<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
}

/// A store, and the task that supervises it.
pub(super) type SupervisedStore = (Arc<Store>, JoinHandle<()>);

/// The store of `gateway`, unless it is that of `before`, with the task that supervises it from now on.
pub(super) fn supervise_new_store(before: &Gateway, gateway: &Gateway) -> Option<SupervisedStore> {
    if same_arc(before.store.as_ref(), gateway.store.as_ref()) { None } else { supervise_store(gateway) }
}

fn supervise_store(gateway: &Gateway) -> Option<SupervisedStore> {
    let (store, users) = gateway.store.clone().zip(gateway.sharing.store_usage.as_ref())?;
    let task = tokio::spawn(store.clone().supervise_for(Arc::downgrade(users)));
    Some((store, task))
}

/// Shares strikes and bans with other gateways, if bans and a store are configured.
fn share_bans(gateway: &Gateway) -> Option<JoinSet<()>> {
    let redis = gateway.config.state.redis.as_ref()?;
    let (bans, store) = (gateway.bans.clone()?, gateway.store.clone()?);
    let (metrics, prefix) = (gateway.metrics.clone(), redis.prefix.clone());
    let mut task = JoinSet::new();
    task.spawn_local(ban::share_bans(bans, metrics, store, prefix));
    Some(task)
}

/// Registers the state of the snapshots with the metrics of `gateway`, if it has any.
fn watch_snapshots(gateway: &Gateway, last_fault: &LastFault) {
    if gateway.config.state.snapshot.is_some() {
        let last_fault = last_fault.clone();
        let failing = move || u64::from(last_fault.lock().is_some());
        gateway.metrics.watch_value(values::SNAPSHOT_FAILING, Vec::new(), failing);
    }
}

fn start_snapshots(
    gateway: &Gateway,
    current: &Arc<ArcSwap<Gateway>>,
    last_fault: &LastFault,
) -> io::Result<Option<(PathBuf, SnapshotThread)>> {
    let Some(path) = gateway.config.state.snapshot.clone() else { return Ok(None) };
    let current = current.clone();
    let source = move || current.load_full();
    let snapshots = SnapshotThread::start(path.clone(), gateway.keys.secret(), source, last_fault.clone())?;
    Ok(Some((path, snapshots)))
}

/// Interval between checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the files of a configuration that are read again by themselves.
fn spawn_file_watch(config: &Config) -> JoinHandle<()> {
    tokio::spawn(watch_files(config.account.clone(), price_files(config)))
}

/// Watches these files, and those of `account`, until the task is dropped.
async fn watch_files(account: AccountConfig, prices: Vec<Arc<NamedFile<PriceList>>>) {
    let AccountConfig { tier, jwt, keys, .. } = &account;
    let has_keys = keys.is_some() || key_files(jwt.as_ref()).next().is_some();
    if tier.file.is_none() && prices.is_empty() && !has_keys {
        return;
    }
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let (account, prices) = (account.clone(), prices.clone());
        let refresh = move || {
            prices.iter().for_each(|file| refresh_file(file));
            account.tier.file.iter().for_each(|file| refresh_file(file));
            key_files(account.jwt.as_ref()).for_each(refresh_file);
            account.keys.iter().for_each(|keys| refresh_file(&keys.file));
        };
        // Reading blocks, and this thread also serves the admin listener.
        let _ = tokio::task::spawn_blocking(refresh).await;
    }
}

pub(super) fn key_files(jwt: Option<&JwtConfig>) -> impl Iterator<Item = &NamedFile<TokenKeys>> {
    jwt.into_iter().flat_map(|jwt| &jwt.entries).filter_map(|rules| match &rules.keys {
        Some(TokenKeySource::File(file)) => Some(&**file),
        _ => None,
    })
}

/// The files of prices, each once.
pub(super) fn price_files(config: &Config) -> Vec<Arc<NamedFile<PriceList>>> {
    let mut files: Vec<Arc<NamedFile<PriceList>>> = Vec::new();
    for pricing in config.limits.iter().filter_map(LimitConfig::pricing) {
        if !files.iter().any(|known| Arc::ptr_eq(known, &pricing.file)) {
            files.push(pricing.file.clone());
        }
    }
    files
}

fn refresh_file<T: FileContent>(file: &NamedFile<T>) {
    let path = file.path.display();
    match file.reload_if_changed() {
        Ok(true) => match file.content().warning() {
            Some(warning) => tracing::warn!("the file {path} was read again, and {warning}"),
            None => tracing::info!("the file {path} was read again"),
        },
        Ok(false) => {}
        Err(reason) => tracing::warn!("the file {path} {reason}; its previous content stays in force"),
    }
}
