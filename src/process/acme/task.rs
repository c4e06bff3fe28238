//! The task of one folder: it takes over what other gateways store there, and makes the orders that are due.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use instant_acme::CertificateIdentifier;
use tokio::time::{Instant, sleep, timeout};

use super::directory::{DirectoryClient, RenewalWindow};
use super::keys::{UsableCertificate, test_certificate};
use super::lock::{LOCK_TIME, OwnLock, set_answers};
use super::order::Attempt;
use super::schedule::{OrderWait, renewal_at};
use super::storage::{OrderLock, Storage, remove};
use crate::operate::admin::status::AcmeStatus;
use sluicegate_base::certificate::identity;
use sluicegate_base::wall_clock::unix_seconds;
use sluicegate_http::net::acme_challenges::{AcmeChallenges, ChallengeAnswers};
use sluicegate_model::AcmeConfig;

/// The interval of looks at the lock, and at the certificates in rounds of it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const ROUNDS_OF_CERTIFICATES: u64 = 10;
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
    /// The moment of the next question for it.
    ask_window_at: Instant,
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
            let (acme, now) = (entry.acme.clone(), unix_seconds());
            let read = move |storage: &Storage| {
                let wait: Option<OrderWait> = storage.read_json(&storage.wait_path(&acme));
                Ok((storage.read_certificate(&acme, now), wait))
            };
            let Ok((stored, wait)) = self.storage.run(read).await else { continue };
            if let Some(stored) = stored
                && entry.life.is_none_or(|life| life.1 < stored.life.1)
            {
                entry.adopt(stored);
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
            if entry.life.is_none() || Instant::now() < entry.ask_window_at {
                continue;
            }
            entry.ask_window_at = Instant::now() + WINDOW_DEFAULT;
            let Some(name) = entry.identity() else { continue };
            let found = entry.client.fetch_window(&entry.acme.directory_text(), &name).await;
            let asked = entry.client.retry_after.lock().unwrap_or(WINDOW_DEFAULT);
            entry.ask_window_at = Instant::now() + asked.clamp(WINDOW_MIN, WINDOW_MAX);
            match found {
                Ok(window) => entry.window = window,
                Err(reason) => tracing::debug!("no window of renewal: the directory {reason}"),
            }
        }
    }

    /// True while another gateway has the lock; its answers to challenges are given here as well.
    pub(super) async fn look_at_lock(&mut self) -> bool {
        let read = |storage: &Storage| Ok(storage.read(&storage.lock_path()));
        let Some(bytes) = self.storage.run(read).await.ok().flatten() else {
            if self.foreign_lock.take().is_some() {
                self.challenges.set_answers(&self.storage.folder, ChallengeAnswers::default());
                // The other gateway has made its order, or has failed.
                self.look_at_files().await;
            }
            return false;
        };
        let lock: OrderLock = serde_json::from_slice(&bytes).unwrap_or_default();
        if self.foreign_lock.as_ref().is_none_or(|(known, _)| *known != bytes) {
            set_answers(&self.challenges, &self.storage, lock.answers).await;
            self.foreign_lock = Some((bytes, Instant::now()));
        }
        let is_old = lock.expires_at != 0 && lock.expires_at.saturating_add(CLOCK_SKEW_S) < unix_seconds();
        !is_old && self.foreign_lock.as_ref().is_none_or(|(_, since)| since.elapsed() <= LOCK_TIME)
    }

    /// Makes one order, unless another gateway does or has done.
    async fn order(&mut self, index: usize) {
        let stale = self.foreign_lock.take().map(|(bytes, _)| bytes);
        let lock = match OwnLock::take(&self.storage, &self.challenges, stale).await {
            Ok(Some(lock)) => lock,
            Ok(None) => return,
            Err(reason) => {
                // That the wait cannot be stored either is nothing new.
                let reason = format!("its folder {} {reason}", self.storage.folder.display());
                let _ = self.count_failure(index, reason, None).await;
                return self.entries[index].warn();
            }
        };
        self.look_at_files().await;
        let Entry { wait: OrderWait { failures, .. }, .. } = self.entries[index];
        if self.entries[index].due_at(unix_seconds()) > unix_seconds() {
            return;
        }
        // Counted before, so that a process that is killed meanwhile waits as well.
        let reason = "the process ended during the order".to_owned();
        if let Err(reason) = self.count_failure(index, reason, None).await {
            let folder = self.storage.folder.display();
            self.entries[index].wait.reason = format!("its folder {folder} {reason}");
            return self.entries[index].warn();
        }
        let Err(reason) = self.attempt(index, &lock).await else {
            self.challenges.issued.fetch_add(1, Relaxed);
            return;
        };
        self.challenges.failed.fetch_add(1, Relaxed);
        let entry = &mut self.entries[index];
        entry.wait.failures = failures;
        let asked = *entry.client.retry_after.lock();
        let stored = self.count_failure(index, reason, asked).await;
        self.entries[index].warn();
        if let Err(reason) = stored {
            tracing::warn!("{} {reason}", self.storage.folder.display());
        }
    }

    async fn attempt(&mut self, index: usize, lock: &OwnLock) -> Result<(), String> {
        let Entry { acme, client, .. } = &self.entries[index];
        let attempt = Attempt { acme, client, lock, has_plain: self.has_plain };
        let obtained = tokio::select! {
            obtained = timeout(ATTEMPT_MAX, attempt.obtain()) => obtained,
            reason = lock.keep() => return Err(reason),
        };
        let pem = obtained.unwrap_or_else(|_| Err("the order took too long".to_owned()))?;
        self.accept(index, pem).await
    }

    /// Tests and stores a new certificate, and puts it in use.
    async fn accept(&mut self, index: usize, pem: String) -> Result<(), String> {
        let entry = &mut self.entries[index];
        let fault = |reason: &str| format!("the new certificate {reason}");
        let issued = test_certificate(pem.as_bytes(), unix_seconds()).map_err(fault)?;
        if let Some(missing) = entry.acme.domains.iter().find(|domain| !issued.names.contains(domain)) {
            return Err(fault(&format!("does not name {missing}")));
        }
        let acme = entry.acme.clone();
        let write = move |storage: &Storage| {
            storage.write(&acme.certificate_path(), pem.as_bytes())?;
            remove(&storage.wait_path(&acme));
            Ok(())
        };
        // It is valid, wherever it is stored.
        if let Err(reason) = self.storage.run(write).await {
            let folder = self.storage.folder.display();
            tracing::warn!("{folder} {reason}; the new certificate is lost at the end");
        }
        entry.adopt(issued);
        Ok(())
    }

    /// Counts one more failure of an entry, also in its file.
    async fn count_failure(
        &mut self,
        index: usize,
        reason: String,
        asked: Option<Duration>,
    ) -> Result<(), String> {
        let Entry { acme, wait, .. } = &mut self.entries[index];
        *wait = wait.after_failure(unix_seconds(), reason, asked);
        self.storage.write_json(self.storage.wait_path(acme), &*wait).await
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
        let client = DirectoryClient { roots: acme.roots.clone(), retry_after: Arc::default() };
        let (wait, ask_window_at) = (OrderWait::default(), Instant::now());
        Entry { acme, client, life: None, wait, window: None, ask_window_at }
    }

    /// Puts a certificate in use.
    fn adopt(&mut self, found: UsableCertificate) {
        let before = self.acme.current.load_full();
        if before.is_none_or(|before| before.cert != found.key.cert) {
            tracing::info!("the certificate in {} is in use", self.acme.certificate_path().display());
            self.acme.current.store(Some(Arc::new(found.key)));
        }
        (self.life, self.window, self.ask_window_at) = (Some(found.life), None, Instant::now());
        self.wait = OrderWait::default();
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
        Some(CertificateIdentifier::new(authority.into(), serial.into()).to_string())
    }

    fn warn(&self) {
        let OrderWait { reason, wait_s, .. } = &self.wait;
        let domains = self.acme.domains.join(", ");
        let next = humantime::format_duration(Duration::from_secs(*wait_s));
        tracing::warn!("no certificate for {domains} was issued: {reason}; the next order is in {next}");
    }
}
