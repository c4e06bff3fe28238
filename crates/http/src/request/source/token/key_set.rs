//! The fetched keys of one issuer, shared by the task that fetches them and by all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use aws_lc_rs::digest::{Digest, SHA256, digest};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use sluicegate_model::{KeyFetchConfig, TokenKeys};

/// The pause after a fetch: tokens with unknown keys cause at most one fetch in this time.
const REST: Duration = Duration::from_secs(10);
/// The pause after a fetch that failed while an older set serves.
const FAULT_PAUSE: Duration = Duration::from_secs(60);
/// The time for which a set serves while no other can be fetched.
const SERVES: Duration = Duration::from_secs(24 * 3600);
/// The longest wait of a request for a fetch.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Requests that may wait for a fetch.
const WAITING_MAX: usize = 1_000;

// The values of [`KeySet::phase`].
const RESTING: u8 = 0;
const READY: u8 = 1;
const FETCHING: u8 = 2;

/// The keys of an issuer, as last fetched.
pub struct KeySet {
    /// The place of the keys.
    pub config: Arc<KeyFetchConfig>,
    /// `None` = no set was fetched, or the last one is too old.
    keys: ArcSwapOption<TokenKeys>,
    phase: AtomicU8,
    /// A token named an unknown key.
    wanted: Notify,
    /// A fetch has ended.
    fetched: Notify,
    waiting: AtomicUsize,
    /// Fetches that succeeded and that failed.
    counts: [AtomicU64; 2],
    last: Mutex<LastFetch>,
}

struct LastFetch {
    /// The time of the last set; before the first, that of the first attempt.
    at: Instant,
    digest: Option<Digest>,
    fault: Option<String>,
}

/// A set that an issuer answered.
pub struct FetchedKeys {
    /// The usable keys.
    pub keys: TokenKeys,
    /// The text of the set.
    pub digest: Digest,
    /// The time after which it is fetched again.
    pub lifetime: Duration,
}

/// The state of an issuer's keys.
pub struct KeySetStatus {
    /// The usable keys.
    pub keys: usize,
    /// Seconds since the last set was fetched; since the first attempt, if there is none.
    pub age_s: u64,
    /// The reason why the last fetch failed.
    pub fault: Option<String>,
}

impl FetchedKeys {
    /// Reads the set in an answer, for these algorithms.
    ///
    /// # Errors
    /// A phrase that follows the name of the set.
    pub fn read(text: &[u8], config: &KeyFetchConfig, lifetime: Duration) -> Result<FetchedKeys, String> {
        let keys = TokenKeys::parse_fetched(text, &config.algorithms)?;
        Ok(FetchedKeys { keys, digest: digest(&SHA256, text), lifetime })
    }
}

impl KeySet {
    /// The set of an issuer that was not asked yet.
    pub fn new(config: Arc<KeyFetchConfig>) -> KeySet {
        KeySet {
            config,
            keys: ArcSwapOption::empty(),
            phase: AtomicU8::new(READY),
            wanted: Notify::new(),
            fetched: Notify::new(),
            waiting: AtomicUsize::new(0),
            counts: Default::default(),
            last: Mutex::new(LastFetch { at: Instant::now(), digest: None, fault: None }),
        }
    }

    /// The keys that verify tokens now.
    #[inline]
    pub fn keys(&self) -> Guard<Option<Arc<TokenKeys>>> {
        self.keys.load()
    }

    /// Asks for a fetch, because a token cannot be verified; false: the last one was too short ago.
    pub fn ask_for_fetch(&self) -> bool {
        let phase = self.phase.load(Ordering::Acquire);
        if phase == READY {
            self.wanted.notify_one();
        }
        phase != RESTING
    }

    /// Waits until the next fetch has ended, at most 2 seconds, and not at all if 1,000 requests are waiting.
    pub async fn wait_for_fetch(&self) {
        let Some(_place) = WaitPlace::take(&self.waiting) else { return };
        let fetched = self.fetched.notified();
        // A fetch that ends from here on is noticed; one that has ended left the phase.
        if self.phase.load(Ordering::Acquire) != RESTING {
            let _ = timeout(WAIT_MAX, fetched).await;
        }
    }

    /// Keeps the keys up to date by `fetch`, until the task is dropped.
    pub async fn keep_fetched(&self, fetch: impl AsyncFn(&KeyFetchConfig) -> Result<FetchedKeys, String>) {
        loop {
            self.phase.store(FETCHING, Ordering::Release);
            let pause = self.apply_fetch(fetch(&self.config).await);
            let next = Instant::now() + pause;
            self.phase.store(RESTING, Ordering::Release);
            self.fetched.notify_waiters();
            sleep(REST).await;
            self.phase.store(READY, Ordering::Release);
            let _ = timeout_at(next, self.wanted.notified()).await;
        }
    }

    /// Puts a fetched set in force, or notes the reason why there is none; returns the pause before the next fetch.
    fn apply_fetch(&self, fetched: Result<FetchedKeys, String>) -> Duration {
        let issuer = self.config.issuer.as_str();
        let mut last = self.last.lock();
        self.counts[usize::from(fetched.is_err())].fetch_add(1, Ordering::Relaxed);
        match fetched {
            Ok(FetchedKeys { keys, digest, lifetime }) => {
                let is_same = last.digest.as_ref().is_some_and(|known| known.as_ref() == digest.as_ref());
                if last.fault.is_some() || !is_same {
                    tracing::info!(issuer, keys = keys.count(), "the keys of an issuer were fetched");
                }
                // The same set keeps the tokens that it verified.
                if !is_same || self.keys.load().is_none() {
                    self.keys.store(Some(Arc::new(keys)));
                }
                *last = LastFetch { at: Instant::now(), digest: Some(digest), fault: None };
                lifetime
            }
            Err(reason) => {
                let left = SERVES.saturating_sub(last.at.elapsed());
                let serves = !left.is_zero() && self.keys.load().is_some();
                let outcome = if serves { "the old ones serve" } else { "its tokens cannot be verified" };
                if last.fault.as_ref() != Some(&reason) || !serves && self.keys.load().is_some() {
                    tracing::warn!(issuer, "the keys of an issuer cannot be fetched, {outcome}: {reason}");
                }
                last.fault = Some(reason);
                if !serves {
                    self.keys.store(None);
                    return REST;
                }
                FAULT_PAUSE.min(left)
            }
        }
    }

    /// Fetches that succeeded, or those that failed.
    pub fn fetch_count(&self, failed: bool) -> u64 {
        self.counts[usize::from(failed)].load(Ordering::Relaxed)
    }

    /// The state of the keys.
    pub fn status(&self) -> KeySetStatus {
        let last = self.last.lock();
        let keys = self.keys.load().as_ref().map_or(0, |keys| keys.count());
        KeySetStatus { keys, age_s: last.at.elapsed().as_secs(), fault: last.fault.clone() }
    }
}

/// The place of a request that waits.
struct WaitPlace<'s>(&'s AtomicUsize);

impl WaitPlace<'_> {
    fn take(waiting: &AtomicUsize) -> Option<WaitPlace<'_>> {
        let place = WaitPlace(waiting);
        (waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX).then_some(place)
    }
}

impl Drop for WaitPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
