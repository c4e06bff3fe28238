//! The lock of a folder, with the answers to challenges of the order that its owner makes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::keys::sign_here;
use super::storage::{OrderAnswers, OrderLock, Storage};
use sluicegate_base::wall_clock::unix_seconds;
use sluicegate_http::net::acme_challenges::{AcmeChallenges, ChallengeAnswers};
use sluicegate_http::net::tls::challenge_config;

/// The time of a lock that its owner does not renew.
pub(super) const LOCK_TIME: Duration = Duration::from_secs(30);
const LOCK_RENEWAL: Duration = Duration::from_secs(10);
/// Two gateways that replace a stale lock at once see after this time who has it.
const STALE_WAIT: Duration = Duration::from_secs(1);

/// The lock while this process has it; dropped, it is released, and no challenge is answered.
pub(super) struct OwnLock {
    pub storage: Storage,
    pub challenges: Arc<AcmeChallenges>,
    content: Mutex<OrderLock>,
}

impl OwnLock {
    /// Takes the lock, in place of one with the `stale` content; `None` if another gateway has it.
    ///
    /// # Errors
    /// A phrase that follows the name of the folder.
    pub(super) async fn take(
        storage: &Storage,
        challenges: &Arc<AcmeChallenges>,
        stale: Option<Vec<u8>>,
    ) -> Result<Option<OwnLock>, String> {
        let lock = OrderLock { owner: storage.owner.clone(), expires_at: lock_end(), ..OrderLock::default() };
        let (content, had_stale) = (lock.clone(), stale.is_some());
        if !storage.run(move |storage| storage.take_lock(&content, stale.as_deref())).await? {
            return Ok(None);
        }
        let (storage, challenges) = (storage.clone(), challenges.clone());
        let own = OwnLock { storage, challenges, content: Mutex::new(lock) };
        if had_stale {
            sleep(STALE_WAIT).await;
        }
        Ok(own.is_held().await.then_some(own))
    }

    pub(super) async fn is_held(&self) -> bool {
        self.storage.run(|storage| Ok(storage.has_lock())).await.unwrap_or(false)
    }

    /// Makes the answers known to this gateway and to those that share the folder.
    pub(super) async fn publish(&self, answers: OrderAnswers) -> Result<(), String> {
        self.content.lock().await.answers = answers.clone();
        self.renew().await?;
        set_answers(&self.challenges, &self.storage, answers).await;
        Ok(())
    }

    /// Renews the lock until another gateway has it, or it cannot be renewed; returns the reason.
    pub(super) async fn keep(&self) -> String {
        loop {
            sleep(LOCK_RENEWAL).await;
            if !self.is_held().await {
                return "another gateway has taken the lock of the folder, or it is lost".to_owned();
            }
            if let Err(reason) = self.renew().await {
                return format!("its folder {reason}");
            }
        }
    }

    async fn renew(&self) -> Result<(), String> {
        let mut content = self.content.lock().await;
        content.expires_at = lock_end();
        self.storage.write_json(self.storage.lock_path(), &*content).await
    }
}

impl Drop for OwnLock {
    fn drop(&mut self) {
        self.challenges.set_answers(&self.storage.folder, ChallengeAnswers::default());
        self.storage.release_lock();
    }
}

/// Gives the answers on this gateway.
pub(super) async fn set_answers(challenges: &AcmeChallenges, storage: &Storage, answers: OrderAnswers) {
    let OrderAnswers { tokens, hosts } = answers;
    let make = move || {
        let config = |(host, digest): (String, Vec<u8>)| {
            let made = sign_here(std::slice::from_ref(&host), Some(&digest)).and_then(challenge_config);
            let refused = |reason: &String| tracing::warn!("no challenge of {host} is answered: {reason}");
            made.inspect_err(refused).ok().map(|made| (host, made))
        };
        hosts.into_iter().filter_map(config).collect()
    };
    let hosts = spawn_blocking(make).await.unwrap_or_default();
    challenges.set_answers(&storage.folder, ChallengeAnswers { tokens, hosts });
}

fn lock_end() -> u64 {
    unix_seconds() + LOCK_TIME.as_secs()
}
