//! Certificates that the gateway orders: one task for each folder of them, on the control thread.
//!
//! [`task`] looks at the folder once a second and makes the orders that are due, under a [`lock`] that gateways share;
//! [`schedule`] says when. [`order`] asks the [`directory`], [`keys`] makes and tests keys and certificates, and
//! [`storage`] keeps everything in files.

mod directory;
mod keys;
mod lock;
mod order;
mod schedule;
mod storage;
mod task;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::operate::admin::status::AcmeStatus;
use sluicegate_base::wall_clock::unix_seconds;
use sluicegate_http::net::acme_challenges::ChallengeAnswers;
use sluicegate_model::{AcmeConfig, Config};
use sluicegate_proxy::gateway::Gateway;
use storage::Storage;
use task::StorageTask;

/// The tasks of the gateway in force; they end when this is dropped.
#[derive(Default)]
pub(super) struct AcmeTasks(Vec<AcmeTask>);

struct AcmeTask {
    folder: PathBuf,
    /// The settings of its orders.
    digest: (bool, Vec<u64>),
    reports: Rc<RefCell<Vec<AcmeStatus>>>,
    /// Owns the task.
    _task: JoinSet<()>,
}

impl AcmeTasks {
    /// Continues the tasks of folders for which nothing changed, and starts those of the others.
    pub(super) fn continue_for(self, gateway: &Gateway) -> AcmeTasks {
        let AcmeTasks(mut before) = self;
        let Some(challenges) = &gateway.acme else { return AcmeTasks::default() };
        let has_plain = gateway.config.has_plain_listener();
        let mut folders: Vec<Vec<Arc<AcmeConfig>>> = Vec::new();
        for (_, acme) in gateway.config.acme_certificates() {
            match folders.iter_mut().find(|known| known[0].storage == acme.storage) {
                Some(known) => known.push(acme.clone()),
                None => folders.push(vec![acme.clone()]),
            }
        }
        let task = |certificates: Vec<Arc<AcmeConfig>>| {
            let digest = (has_plain, certificates.iter().map(|one| one.digest()).collect());
            if let Some(index) = before.iter().position(|known| known.digest == digest) {
                return before.swap_remove(index);
            }
            let (reports, mut running) = (Rc::default(), JoinSet::new());
            let task = StorageTask::new(&certificates, has_plain, challenges.clone(), Rc::clone(&reports));
            running.spawn_local(task.run());
            AcmeTask { folder: certificates[0].storage.clone(), digest, reports, _task: running }
        };
        let tasks = AcmeTasks(folders.into_iter().map(task).collect());
        for ended in &before {
            challenges.set_answers(&ended.folder, ChallengeAnswers::default());
        }
        tasks
    }

    /// The state of all certificates.
    pub(super) fn statuses(&self) -> Vec<AcmeStatus> {
        self.0.iter().flat_map(|task| task.reports.borrow().clone()).collect()
    }
}

/// Gives each certificate that is ordered a first content: from its folder, else one that is signed here. Blocks on the
/// disk.
pub(super) fn fill_certificates(config: &Config) {
    for (_, acme) in config.acme_certificates() {
        if acme.current.load().is_some() {
            continue;
        }
        let (storage, now) = (Storage::new(acme.storage.clone()), unix_seconds());
        let stored = storage.read_certificate(acme, now).or_else(|| storage.find_certificate(acme, now));
        let domain = &acme.domains[0];
        let key = stored.map(|stored| Ok(stored.key)).unwrap_or_else(|| {
            tracing::warn!("there is no certificate for {domain} yet; clients get a self-signed one");
            keys::sign_here(&acme.domains, None)
        });
        match key {
            Ok(key) => acme.current.store(Some(Arc::new(key))),
            Err(error) => tracing::error!(%error, "no certificate for {domain} can be made"),
        }
    }
}
