//! The task of one folder: it takes over what other gateways store there, and makes the orders that are due.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::directory::{DirectoryClient, RenewalWindow};
use super::keys::{challenge_certificate, test_certificate};
use super::order::{Attempt, OrderAnswers};
use super::schedule::{OrderWait, renewal_at};
use super::storage::{OrderLock, Storage};
use crate::operate::admin::status::AcmeStatus;
use sluicegate_base::certificate::identity;
use sluicegate_base::wall_clock::unix_ns;
use sluicegate_http::net::acme_challenges::{AcmeChallenges, ChallengeAnswers};
use sluicegate_http::net::tls::challenge_config;
use sluicegate_model::AcmeConfig;

/// The interval of looks at the lock, and at the certificates in rounds of it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const ROUNDS_OF_CERTIFICATES: u64 = 10;
/// The time of a lock that its owner does not renew.
const LOCK_TIME: Duration = Duration::from_secs(30);
const LOCK_RENEWAL: Duration = Duration::from_secs(10);
/// The clocks of gateways may differ by so much.
const CLOCK_SKEW_S: u64 = 60;
/// The time of one attempt with all its orders.
const ATTEMPT_MAX: Duration = Duration::from_secs(1_200);
/// The bounds of the time between two questions for a window of renewal (RFC 9773, section 4.3).
const WINDOW_MIN: Duration = Duration::from_secs(60);
const WINDOW_DEFAULT: Duration = Duration::from_secs(6 * 3600);
const WINDOW_MAX: Duration = Duration::from_secs(86_400);

/// See [`StorageTask::run`].
pub(super) struct StorageTask {
    storage: Storage,
    entries: Vec<Entry>,
    has_plain: bool,
    challenges: Arc<AcmeChallenges>,
    reports: Rc<RefCell<Vec<AcmeStatus>>>,
    /// The lock of another gateway, and when its content was seen first.
    foreign_lock: Option<(Vec<u8>, Instant)>,
}

/// One certificate.
struct Entry {
    acme: Arc<AcmeConfig>,
    client: DirectoryClient,
    /// The life of the certificate for this very entry; `None` = there is none.
    life: Option<(u64, u64)>,
    wait: OrderWait,
    window: Option<RenewalWindow>,
    window_asked_at: Option<Instant>,
    window_kept: Duration,
}

/// The lock while this process has it; dropped, it is released, and no challenge is answered.
struct OwnLock<'a> {
    storage: &'a Storage,
    challenges: &'a AcmeChallenges,
    content: Mutex<OrderLock>,
}

impl StorageTask {
    pub(super) fn new(
        certificates: &[Arc<AcmeConfig>],
        has_plain: bool,
        challenges: Arc<AcmeChallenges>,
        reports: Rc<RefCell<Vec<AcmeStatus>>>,
    ) -> StorageTask {
        let storage = Storage::new(certificates[0].storage.clone());
        let entries = certificates.iter().cloned().map(Entry::new).collect();
        StorageTask { storage, entries, has_plain, challenges, reports, foreign_lock: None }
    }

    /// Looks and orders for ever.
    pub(super) async fn run(mut self) {
        for round in 0_u64.. {
            if round.is_multiple_of(ROUNDS_OF_CERTIFICATES) {
                self.look_at_files().await;
                self.ask_windows().await;
            }
            let is_locked = self.look_at_lock().await;
            // An order may take minutes.
            self.report();
            let now = unix_seconds();
            if let Some(due) = self.entries.iter().position(|entry| entry.due_at(now) <= now)
                && !is_locked
            {
                self.order(due).await;
            }
            self.report();
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Takes over certificates and waits that are stored.
    pub(super) async fn look_at_files(&mut self) {
        for entry in &mut self.entries {
            let (storage, acme, now) = (self.storage.clone(), entry.acme.clone(), unix_seconds());
            let read = move || {
                let wait: Option<OrderWait> = storage.read_json(&storage.wait_path(&acme));
                (storage.read_certificate(&acme, now), wait)
            };
            let Ok((stored, wait)) = spawn_blocking(read).await else { continue };
            if let Some(stored) = stored.filter(|stored| entry.life.is_none_or(|life| life.1 < stored.life.1))
            {
                let before = entry.acme.current.load_full();
                if before.is_none_or(|before| before.cert != stored.key.cert) {
                    tracing::info!(
                        "the certificate in {} is in use",
                        entry.acme.certificate_path().display()
                    );
                    entry.acme.current.store(Some(Arc::new(stored.key)));
                }
                (entry.life, entry.window, entry.window_asked_at) = (Some(stored.life), None, None);
                entry.wait = OrderWait::default();
            }
            // A folder that cannot be read keeps the wait that is known.
            if let Some(wait) = wait.filter(|wait| wait.failed_at >= entry.wait.failed_at) {
                entry.wait = wait;
            }
        }
    }

    /// Asks the authorities for their windows.
    async fn ask_windows(&mut self) {
        for entry in &mut self.entries {
            let is_fresh = |at: Instant| at.elapsed() < entry.window_kept;
            if entry.life.is_none() || entry.window_asked_at.is_some_and(is_fresh) {
                continue;
            }
            entry.window_asked_at = Some(Instant::now());
            let Some(name) = entry.identity() else { continue };
            let found = entry.client.fetch_window(&entry.acme.directory_text(), &name).await;
            let asked = entry.client.retry_after().unwrap_or(WINDOW_DEFAULT);
            entry.window_kept = asked.clamp(WINDOW_MIN, WINDOW_MAX);
            match found {
                Ok(window) => entry.window = window,
                Err(reason) => tracing::debug!("no window of renewal: the directory {reason}"),
            }
        }
    }

    /// True while another gateway has the lock; its answers to challenges are given here as well.
    pub(super) async fn look_at_lock(&mut self) -> bool {
        let (storage, path) = (self.storage.clone(), self.storage.lock_path());
        let Some(bytes) = spawn_blocking(move || storage.read(&path)).await.ok().flatten() else {
            if self.foreign_lock.take().is_some() {
                self.challenges.set_answers(&self.storage.folder, ChallengeAnswers::default());
                // The other gateway has made its order, or has failed.
                self.look_at_files().await;
            }
            return false;
        };
        let lock: OrderLock = serde_json::from_slice(&bytes).unwrap_or_default();
        let is_new = self.foreign_lock.as_ref().is_none_or(|(known, _)| *known != bytes);
        if is_new {
            let answers = OrderAnswers { tokens: lock.tokens, hosts: lock.hosts };
            set_answers(&self.challenges, &self.storage, answers).await;
            self.foreign_lock = Some((bytes, Instant::now()));
        }
        let is_old = lock.expires_at != 0 && lock.expires_at + CLOCK_SKEW_S < unix_seconds();
        !is_old && self.foreign_lock.as_ref().is_none_or(|(_, since)| since.elapsed() <= LOCK_TIME)
    }

    /// Makes one order, unless another gateway does or has done.
    async fn order(&mut self, index: usize) {
        let stale = self.foreign_lock.take().map(|(bytes, _)| bytes);
        let content = OrderLock { owner: self.storage.owner.clone(), ..OrderLock::default() };
        let lock = OrderLock { expires_at: lock_end(), ..content };
        let (storage, taken) = (self.storage.clone(), lock.clone());
        let had_stale = stale.is_some();
        let taken = spawn_blocking(move || storage.take_lock(&taken, stale.as_deref())).await;
        let storage = self.storage.clone();
        let challenges = self.challenges.clone();
        let held = match taken.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(false) => return,
            Err(reason) => return self.fail(index, format!("its folder {reason}"), None).await,
            Ok(true) => OwnLock { storage: &storage, challenges: &challenges, content: Mutex::new(lock) },
        };
        // Two gateways may have replaced a stale lock at once.
        if had_stale {
            sleep(LOOK_INTERVAL).await;
        }
        self.look_at_files().await;
        if !held.is_held().await || self.entries[index].due_at(unix_seconds()) > unix_seconds() {
            return;
        }
        // Counted before, so that a process that is killed meanwhile waits as well.
        if !self.fail_first(index).await {
            return;
        }
        let failures = self.entries[index].wait.failures - 1;
        let outcome = self.attempt(index, &held).await;
        let outcome = match outcome {
            Ok(pem) => self.accept(index, pem).await,
            Err(reason) => Err(reason),
        };
        let entry = &mut self.entries[index];
        match outcome {
            Ok(()) => {
                self.challenges.issued.fetch_add(1, Relaxed);
            }
            Err(reason) => {
                self.challenges.failed.fetch_add(1, Relaxed);
                let asked = entry.client.retry_after_error();
                entry.wait.failures = failures;
                self.fail(index, reason, asked).await;
            }
        }
    }

    async fn attempt(&self, index: usize, held: &OwnLock<'_>) -> Result<String, String> {
        let entry = &self.entries[index];
        let count_failed = || {
            self.challenges.failed.fetch_add(1, Relaxed);
        };
        let attempt = Attempt {
            acme: &entry.acme,
            client: &entry.client,
            storage: &self.storage,
            has_plain: self.has_plain,
            count_failed: &count_failed,
        };
        let obtained = timeout(ATTEMPT_MAX, attempt.obtain(|answers| held.publish(answers)));
        tokio::select! {
            obtained = obtained => obtained.unwrap_or_else(|_| Err("the order took too long".to_owned())),
            reason = held.keep() => Err(reason),
        }
    }

    /// Tests and stores a new certificate, and puts it in use.
    async fn accept(&mut self, index: usize, pem: String) -> Result<(), String> {
        let entry = &mut self.entries[index];
        let fault = |reason: &str| format!("the new certificate {reason}");
        let issued = test_certificate(pem.as_bytes(), unix_seconds()).map_err(fault)?;
        if let Some(missing) = entry.acme.domains.iter().find(|domain| !issued.names.contains(domain)) {
            return Err(fault(&format!("does not name {missing}")));
        }
        let (storage, acme) = (self.storage.clone(), entry.acme.clone());
        let write = move || {
            storage.write(&acme.certificate_path(), pem.as_bytes())?;
            storage.remove(&storage.wait_path(&acme));
            Ok(())
        };
        let written: Result<(), String> =
            spawn_blocking(write).await.unwrap_or_else(|error| Err(error.to_string()));
        // It is valid, wherever it is stored.
        entry.acme.current.store(Some(Arc::new(issued.key)));
        (entry.life, entry.window, entry.window_asked_at) = (Some(issued.life), None, None);
        entry.wait = OrderWait::default();
        tracing::info!("there is a new certificate for {}", entry.acme.domains.join(", "));
        if let Err(reason) = written {
            tracing::warn!(
                "{} {reason}; the new certificate is lost at the end",
                self.storage.folder.display()
            );
        }
        Ok(())
    }

    /// Stores that an order is made; false if that is not possible.
    async fn fail_first(&mut self, index: usize) -> bool {
        let reason = "the process ended during the order".to_owned();
        self.entries[index].wait = self.entries[index].wait.after_failure(unix_seconds(), reason, None);
        match self.store_wait(index).await {
            Ok(()) => true,
            Err(reason) => {
                self.entries[index].wait.reason = format!("its folder {reason}");
                self.entries[index].warn();
                false
            }
        }
    }

    async fn fail(&mut self, index: usize, reason: String, asked: Option<Duration>) {
        self.entries[index].wait = self.entries[index].wait.after_failure(unix_seconds(), reason, asked);
        self.entries[index].warn();
        if let Err(reason) = self.store_wait(index).await {
            tracing::warn!("{} {reason}", self.storage.folder.display());
        }
    }

    async fn store_wait(&self, index: usize) -> Result<(), String> {
        let Entry { acme, wait, .. } = &self.entries[index];
        let (storage, path, wait) = (self.storage.clone(), self.storage.wait_path(acme), wait.clone());
        let written = spawn_blocking(move || storage.write_json(&path, &wait)).await;
        written.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Seconds until the next order of an entry.
    #[cfg(test)]
    pub(super) fn next_order_in(&self, index: usize) -> u64 {
        let now = unix_seconds();
        self.entries[index].due_at(now).saturating_sub(now)
    }

    fn report(&self) {
        let now = unix_seconds();
        let reports = self.entries.iter().map(|entry| AcmeStatus {
            domains: entry.acme.domains.clone(),
            directory: entry.acme.directory.to_string(),
            file: entry.acme.certificate_path().display().to_string(),
            issued: entry.life.is_some(),
            next_order_at: entry.due_at(now),
            next_order_in_s: entry.due_at(now).saturating_sub(now),
            error: (entry.wait.failures > 0).then(|| entry.wait.reason.clone()),
        });
        *self.reports.borrow_mut() = reports.collect();
    }
}

impl Entry {
    fn new(acme: Arc<AcmeConfig>) -> Entry {
        let client = DirectoryClient::new(acme.roots.clone());
        let (wait, window_kept) = (OrderWait::default(), WINDOW_DEFAULT);
        Entry { acme, client, life: None, wait, window: None, window_asked_at: None, window_kept }
    }

    /// The moment of the next order.
    fn due_at(&self, now: u64) -> u64 {
        let renewal = self.life.map_or(0, |life| {
            let current = self.acme.current.load();
            let certificate = current.as_ref().and_then(|key| key.cert.first()).map_or(&[][..], |cert| cert);
            renewal_at(certificate, life, self.window)
        });
        let waits_until = if self.wait.failures > 0 { self.wait.ends_at(now) } else { 0 };
        renewal.max(waits_until)
    }

    /// The name of the certificate for its authority (RFC 9773, section 4.1).
    fn identity(&self) -> Option<String> {
        let current = self.acme.current.load();
        let (authority, serial) = identity(current.as_ref()?.cert.first()?)?;
        Some(format!("{}.{}", URL_SAFE_NO_PAD.encode(authority), URL_SAFE_NO_PAD.encode(serial)))
    }

    fn warn(&self) {
        let OrderWait { reason, wait_s, .. } = &self.wait;
        let domains = self.acme.domains.join(", ");
        let next = humantime::format_duration(Duration::from_secs(*wait_s));
        tracing::warn!("no certificate for {domains} was issued: {reason}; the next order is in {next}");
    }
}

impl OwnLock<'_> {
    async fn is_held(&self) -> bool {
        let storage = self.storage.clone();
        spawn_blocking(move || storage.has_lock()).await.unwrap_or(false)
    }

    /// Makes the answers known to this gateway and to those that share the folder.
    async fn publish(&self, answers: OrderAnswers) -> Result<(), String> {
        {
            let mut content = self.content.lock().await;
            (content.tokens, content.hosts) = (answers.tokens.clone(), answers.hosts.clone());
            self.write(&content).await?;
        }
        set_answers(self.challenges, self.storage, answers).await;
        Ok(())
    }

    /// Renews the lock until another gateway has it, or it cannot be renewed; returns the reason.
    async fn keep(&self) -> String {
        loop {
            sleep(LOCK_RENEWAL).await;
            if !self.is_held().await {
                return "another gateway has taken the lock of the folder, or it is lost".to_owned();
            }
            let mut content = self.content.lock().await;
            content.expires_at = lock_end();
            if let Err(reason) = self.write(&content).await {
                return format!("its folder {reason}");
            }
        }
    }

    async fn write(&self, content: &OrderLock) -> Result<(), String> {
        let (storage, path, content) = (self.storage.clone(), self.storage.lock_path(), content.clone());
        let written = spawn_blocking(move || storage.write_json(&path, &content)).await;
        written.unwrap_or_else(|error| Err(error.to_string()))
    }
}

impl Drop for OwnLock<'_> {
    fn drop(&mut self) {
        self.challenges.set_answers(&self.storage.folder, ChallengeAnswers::default());
        self.storage.release_lock();
    }
}

/// Gives the answers on this gateway.
async fn set_answers(challenges: &AcmeChallenges, storage: &Storage, answers: OrderAnswers) {
    let OrderAnswers { tokens, hosts } = answers;
    let make = move || {
        let config = |(host, digest): (String, Vec<u8>)| {
            let made = challenge_certificate(&host, &digest).and_then(challenge_config);
            let made =
                made.inspect_err(|reason| tracing::warn!("no challenge of {host} is answered: {reason}"));
            Some((host, made.ok()?))
        };
        hosts.into_iter().filter_map(config).collect::<HashMap<_, _>>()
    };
    let hosts = spawn_blocking(make).await.unwrap_or_default();
    let tokens = tokens.into_iter().map(|(token, answer)| (token, Bytes::from(answer))).collect();
    challenges.set_answers(&storage.folder, ChallengeAnswers { tokens, hosts });
}

fn lock_end() -> u64 {
    unix_seconds() + LOCK_TIME.as_secs()
}

fn unix_seconds() -> u64 {
    unix_ns() / 1_000_000_000
}
