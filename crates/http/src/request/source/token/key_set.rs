//! The fetched keys of one issuer, shared by the task that fetches them and by all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use aws_lc_rs::digest::{Digest, SHA256, digest};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
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
    waiting: Semaphore,
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
            waiting: Semaphore::new(WAITING_MAX),
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
        let Ok(_place) = self.waiting.try_acquire() else { return };
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::task::LocalSet;

    use super::*;
    use sluicegate_config as config;
    use sluicegate_model::TokenKeySource;

    const SET: &str =
        r#"{"keys":[{"kty":"EC","crv":"P-256","x":"u1W3mF9Y0s8x","y":"u1W3mF9Y0s8x","kid":"1"}]}"#;

    impl KeySet {
        pub(in crate::request::source::token) fn apply_text(&self, text: &[u8]) {
            let fetched = FetchedKeys::read(text, &self.config, Duration::from_secs(600));
            self.apply_fetch(fetched);
        }
    }

    fn key_set() -> Rc<KeySet> {
        let yaml = "account: { from: jwt:sub, jwt: { issuer: a, jwks: \"https://a.test/\", \
                    tls: { ca: keys/upstream.pem } } }\nlocations: [{ path: /, upstream: demo }]\n";
        let loaded =
            config::parse(yaml, "../../tests/gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
        let Some(TokenKeySource::Issuer(source)) = loaded.config.account.jwt.unwrap().entries.remove(0).keys
        else {
            panic!("not fetched")
        };
        Rc::new(KeySet::new(source))
    }

    /// Starts to fetch; the issuer answers as long as `answers` is true, after a second.
    fn start(set: &Rc<KeySet>, lifetime: u64) -> (Rc<Cell<u64>>, Rc<Cell<bool>>) {
        let (count, answers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(true)));
        let (set, counted, answering) = (set.clone(), count.clone(), answers.clone());
        tokio::task::spawn_local(async move {
            let fetch = async |config: &KeyFetchConfig| {
                counted.set(counted.get() + 1);
                sleep(Duration::from_secs(1)).await;
                match answering.get() {
                    true => FetchedKeys::read(SET.as_bytes(), config, Duration::from_secs(lifetime)),
                    false => Err("gone".to_owned()),
                }
            };
            set.keep_fetched(fetch).await;
        });
        (count, answers)
    }

    async fn seconds(number: u64) {
        sleep(Duration::from_secs(number)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_unknown_keys_makes_one_fetch_in_ten_seconds() {
        let within = async {
            let set = key_set();
            let (count, _) = start(&set, 600);
            seconds(2).await;
            assert_eq!((count.get(), set.keys().is_some()), (1, true));
            assert!(!set.ask_for_fetch(), "it was fetched a second ago");
            seconds(10).await;
            for _ in 0..10_000 {
                assert!(set.ask_for_fetch());
            }
            let before = Instant::now();
            set.wait_for_fetch().await;
            assert_eq!((count.get(), before.elapsed().as_secs()), (2, 1), "the wait ends with the fetch");
            for _ in 0..100 {
                set.ask_for_fetch();
                sleep(Duration::from_millis(90)).await;
            }
            assert_eq!(count.get(), 2);
            seconds(600).await;
            assert_eq!(count.get(), 3, "by the lifetime");
        };
        LocalSet::new().run_until(within).await;
    }

    #[tokio::test(start_paused = true)]
    async fn waits_are_bounded_in_time_and_number() {
        let within = async {
            let set = key_set();
            let before = Instant::now();
            set.wait_for_fetch().await;
            assert_eq!(before.elapsed().as_secs(), 2, "nobody fetches");
            let waits = (0..WAITING_MAX).map(|_| {
                let set = set.clone();
                tokio::task::spawn_local(async move { set.wait_for_fetch().await })
            });
            let waits: Vec<_> = waits.collect();
            sleep(Duration::from_millis(1)).await;
            let before = Instant::now();
            set.wait_for_fetch().await;
            assert_eq!(before.elapsed().as_secs(), 0, "one too many");
            for wait in waits {
                wait.await.unwrap();
            }
            set.wait_for_fetch().await;
            let waited = before.elapsed().as_millis();
            assert!((3_900..4_100).contains(&waited), "the places are free again: {waited}");
        };
        LocalSet::new().run_until(within).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_set_serves_a_day_while_its_issuer_is_away() {
        let within = async {
            let set = key_set();
            let (count, answers) = start(&set, 600);
            seconds(2).await;
            answers.set(false);
            seconds(24 * 3600 - 10).await;
            assert!(set.keys().is_some() && set.status().fault.as_deref() == Some("gone"));
            assert!((1380..1450).contains(&count.get()), "{} fetches", count.get());
            seconds(20).await;
            assert!(set.keys().is_none(), "a day later");
            answers.set(true);
            seconds(15).await;
            assert_eq!((set.keys().is_some(), set.status().fault), (true, None));
            set.apply_text(b"{\"keys\":[]}");
            assert!(set.keys().is_some(), "an empty set replaces nothing");
            assert!(set.status().fault.unwrap().contains("no key"));
        };
        LocalSet::new().run_until(within).await;
    }

    #[test]
    fn an_unchanged_issuer_keeps_its_set() {
        let set = key_set();
        assert!(KeySet::new(set.config.clone()).config == set.config && key_set().config == set.config);
    }
}
