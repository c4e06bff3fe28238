//! What runs beside the workers and belongs to the gateway in force: each follows a new one, or makes way.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::task::JoinHandle;

use super::watched_files;
use crate::admission::ban;
use crate::limit::snapshot::Keeper;
use crate::proxy::gateway::Gateway;
use crate::shared::Store;
use crate::upstream::Care;

/// How long the last snapshot may take.
const LAST_SNAPSHOT: Duration = Duration::from_secs(10);

/// Must be made and changed on the local runtime of the control thread.
pub struct Followers {
    current: Arc<ArcSwap<Gateway>>,
    files: JoinHandle<()>,
    sharing: Option<JoinHandle<()>>,
    store: Option<Supervised>,
    keeper: Option<(PathBuf, Keeper)>,
    /// Looks after the upstreams until it is dropped.
    care: Care,
}

impl Followers {
    /// # Errors
    /// When the snapshot thread cannot be started.
    pub fn start(current: Arc<ArcSwap<Gateway>>) -> io::Result<Followers> {
        let gateway = current.load_full();
        Ok(Followers {
            files: tokio::spawn(watched_files::follow(gateway.config.account.clone())),
            sharing: share_bans(&gateway),
            store: supervise(&gateway),
            keeper: keep_snapshot(&gateway, &current)?,
            care: Care::of(&gateway.upstreams),
            current,
        })
    }

    /// Belongs to `gateway`, which is in force now, and no longer to `before`.
    pub fn follow(&mut self, before: &Arc<Gateway>, gateway: &Arc<Gateway>) {
        self.files.abort();
        self.files = tokio::spawn(watched_files::follow(gateway.config.account.clone()));
        self.care.follow(&gateway.upstreams);
        self.follow_bans(before, gateway);
        self.follow_store(before, gateway);
        self.follow_snapshot(gateway);
    }

    /// Goes on with the sharing, unless it is of other bans or with another store.
    fn follow_bans(&mut self, before: &Gateway, gateway: &Arc<Gateway>) {
        let same_bans = format!("{:?}", before.config.bans) == format!("{:?}", gateway.config.bans);
        if same_bans && same(before.store.as_ref(), gateway.store.as_ref()) {
            return;
        }
        if let Some(sharing) = self.sharing.take() {
            sharing.abort();
        }
        self.sharing = share_bans(gateway);
    }

    /// The store before is supervised until its last gateway is gone.
    fn follow_store(&mut self, before: &Arc<Gateway>, gateway: &Arc<Gateway>) {
        if !same(before.store.as_ref(), gateway.store.as_ref()) {
            self.store = supervise(gateway);
        }
    }

    /// Keeps the snapshot that `gateway` has, or goes on.
    pub fn follow_snapshot(&mut self, gateway: &Arc<Gateway>) {
        let path = self.keeper.as_ref().map(|(path, _)| path);
        if path == gateway.config.state.snapshot.as_ref() {
            return;
        }
        if let Some((_, keeper)) = self.keeper.take() {
            keeper.leave();
        }
        match keep_snapshot(gateway, &self.current) {
            Ok(keeper) => self.keeper = keeper,
            Err(error) => tracing::error!(%error, "no snapshots are written: their thread cannot be started"),
        }
    }

    /// The snapshot that is kept, and why the last one was not written.
    pub fn snapshot(&self) -> Option<(&Path, Option<String>)> {
        self.keeper.as_ref().map(|(path, keeper)| (path.as_path(), keeper.failure()))
    }

    /// Leaves the snapshot to another process.
    pub fn leave_snapshot(&mut self) {
        if let Some((_, keeper)) = self.keeper.take() {
            keeper.leave();
        }
    }

    /// Says farewell, and writes the last snapshot.
    pub async fn finish(self) {
        if let Some(Supervised { store, task }) = self.store {
            task.abort();
            // It holds the supervision, which must be gone before the farewell.
            let _ = task.await;
            store.farewell().await;
        }
        if self.keeper.is_some_and(|(_, keeper)| !keeper.finish(LAST_SNAPSHOT)) {
            tracing::warn!("the last snapshot was not written");
        }
    }
}

fn same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

struct Supervised {
    store: Arc<Store>,
    task: JoinHandle<()>,
}

fn supervise(gateway: &Gateway) -> Option<Supervised> {
    let (store, users) = gateway.store.clone().zip(gateway.store_users.as_ref())?;
    let task = tokio::spawn(store.clone().supervise_for(Arc::downgrade(users)));
    Some(Supervised { store, task })
}

/// Shares strikes and bans with other gateways, where there are both.
fn share_bans(gateway: &Gateway) -> Option<JoinHandle<()>> {
    let redis = gateway.config.state.redis.as_ref()?;
    let (bans, store) = (gateway.bans.clone()?, gateway.store.clone()?);
    let (metrics, prefix) = (gateway.metrics.clone(), redis.prefix.clone());
    Some(tokio::task::spawn_local(ban::share(bans, metrics, store, prefix)))
}

fn keep_snapshot(
    gateway: &Gateway,
    current: &Arc<ArcSwap<Gateway>>,
) -> io::Result<Option<(PathBuf, Keeper)>> {
    let Some(path) = gateway.config.state.snapshot.clone() else { return Ok(None) };
    let current = current.clone();
    let keeper = Keeper::start(path.clone(), gateway.keys.secret(), move || current.load_full())?;
    Ok(Some((path, keeper)))
}
