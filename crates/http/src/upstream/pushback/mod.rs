//! Pushback: a response that refuses, or that says that nothing is left, pauses the requests behind it.
//!
//! [`pause_time`] reads how long; [`sluicegate_limit::pushback`] holds the requests and paces them afterwards. The
//! response itself goes to its client as it is. Gateways of one store tell each other their pauses; each of them
//! resumes at a third of its own pace, and so all of them at a third of theirs together.

mod pause_time;

use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::{HeaderMap, StatusCode};
use siphasher::sip::SipHasher13;

use super::Upstream;
use crate::request::key::{KeyHasher, KeyInput, KeyOutcome, KeySpec};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_limit::pushback::Pauses;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::table::persistent::SnapshotTable;
use sluicegate_model::{KeyPart, MissingKey, ObeyConfig, StatusRanges};

/// The shortest time between two warnings of pauses, in nanoseconds.
const WARNING_INTERVAL_NS: u64 = 60_000_000_000;
/// A pause that grows by less is not told to other gateways again.
const TOLD_GAIN_NS: u64 = 100_000_000;
/// The key of all requests together, and of those that come here in place of a rejection.
pub const WHOLE_UPSTREAM: CounterKey = CounterKey::new(0, 0);

/// The pauses of one upstream, and the responses that begin them.
pub struct Pushback {
    status: StatusRanges,
    at_most_ns: u64,
    /// `None` = all requests pause together.
    key: Option<KeySpec>,
    /// Other gateways know the same keys.
    is_shared: bool,
    /// Tells whether another process pauses the same keys.
    fingerprint: u64,
    state: Arc<PushbackState>,
}

/// A pause as gateways tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamPause {
    /// [`CounterKey::id`] of its key.
    pub key_id: u128,
    /// The moment at which it began.
    pub began: Now,
    /// The moment at which it ends.
    pub until: Now,
    /// The status that began it; 0 = a field about rates.
    pub status: u16,
}

/// The part that survives a reload.
pub(super) struct PushbackState {
    pauses: Arc<Pauses>,
    warned_at: AtomicU64,
}

json_object! {
    /// The pauses of an upstream for the operator.
    #[derive(Debug)]
    pub struct PauseStatus as "UpstreamStops" {
        pub stopped_s: f64 = "Seconds left of the longest stop; 0 = nothing is stopped.",
        pub stops: u64 = "Stops since the start.",
        pub held: u64 = "Requests that waited for the end of a stop.",
        pub rejected: u64 = "Requests that a stop rejected.",
    }
}

// === impl PushbackState ===

impl PushbackState {
    /// The state of an upstream in which at most `keys_max` keys pause apart.
    pub(super) fn new(keys_max: usize, upstream: &str) -> PushbackState {
        let owner = format!("upstreams.{upstream}.obey");
        PushbackState { pauses: Arc::new(Pauses::new(keys_max, owner.into())), warned_at: AtomicU64::new(0) }
    }
}

// === impl Pushback ===

impl Pushback {
    /// `is_shared`: other gateways learn the pauses.
    pub(super) fn new(config: &ObeyConfig, is_shared: bool, state: &Arc<PushbackState>) -> Pushback {
        let is_whole = config.key == [KeyPart::Global];
        let mut fingerprint = SipHasher13::new();
        fingerprint.write(format!("obey {:?} {}", config.key, is_shared && !is_whole).as_bytes());
        Pushback {
            status: config.status.clone(),
            at_most_ns: u64::try_from(config.at_most.as_nanos()).unwrap_or(u64::MAX),
            key: (!is_whole).then(|| KeySpec::new(&config.key, MissingKey::Ip)),
            is_shared,
            fingerprint: fingerprint.finish(),
            state: state.clone(),
        }
    }

    /// The pauses and the requests that they hold, which survive a reload.
    pub fn pauses(&self) -> &Arc<Pauses> {
        &self.state.pauses
    }

    /// The key that a request pauses with. A missing part falls back to the ip.
    pub fn hash_key(&self, keys: &KeyHasher, subject: &KeyInput<'_>) -> KeyOutcome {
        match &self.key {
            None => KeyOutcome::Key(WHOLE_UPSTREAM),
            Some(key) if self.is_shared => keys.hash_agreed_key(key, subject),
            Some(key) => keys.hash_key(key, subject),
        }
    }

    /// True if a warning of a pause that begins now is due.
    fn is_warning_due(&self, now: Now) -> bool {
        let warned_at = self.state.warned_at.load(Relaxed);
        let is_due = warned_at == 0 || now.ns_since(Now(warned_at)) >= WARNING_INTERVAL_NS;
        if is_due {
            self.state.warned_at.store(now.0, Relaxed);
        }
        is_due
    }

    /// The state of the pauses at `now`.
    pub fn status_at(&self, now: Now) -> PauseStatus {
        let counts = self.state.pauses.counts();
        let left_ms = self.state.pauses.pause_left_ns(now) / 1_000_000;
        PauseStatus {
            stopped_s: left_ms as f64 / 1_000.0,
            stops: counts.pauses,
            held: counts.waits,
            rejected: counts.refused,
        }
    }
}

impl Upstream {
    /// The pauses that another process takes over.
    pub fn saved_pauses(&self) -> Option<SnapshotTable<'_>> {
        self.pushback
            .as_ref()
            .map(|pushback| pushback.state.pauses.saved_table(&self.name, pushback.fingerprint))
    }

    /// True if a response with this status pauses the requests behind it.
    #[cold]
    pub fn pushes_back(&self, status: StatusCode) -> bool {
        self.pushback.as_ref().is_some_and(|pushback| pushback.status.contains(status.as_u16()))
    }

    /// Pauses the requests of `key` if a response to a request of the moment `sent` asks for it. `unix_s` is the time
    /// of day. Returns a pause that other gateways have to know.
    pub fn hear_pushback(
        &self,
        key: &CounterKey,
        sent: Now,
        (status, headers): (StatusCode, &HeaderMap),
        unix_s: impl FnOnce() -> u64,
    ) -> Option<UpstreamPause> {
        let pushback = self.pushback.as_ref()?;
        let refuses = pushback.status.contains(status.as_u16());
        let span_ns = match refuses {
            true => Some(pause_time::read_refusal(headers, unix_s())),
            false if pause_time::mentions_rates(status, headers) => {
                pause_time::read_exhausted(headers, unix_s())
            }
            false => None,
        };
        let span_ns = span_ns?.min(pushback.at_most_ns);
        let now = Now::read_clock();
        let code = if refuses { status.as_u16() } else { 0 };
        let change = pushback.state.pauses.record_pause(key, sent, now, span_ns, code);
        if change.began && pushback.is_warning_due(now) {
            let (upstream, seconds) = (&*self.name, span_ns as f64 / 1e9);
            match refuses {
                true => tracing::warn!(
                    upstream,
                    status = code,
                    seconds,
                    "the upstream refuses requests and is obeyed"
                ),
                false => tracing::warn!(upstream, seconds, "the upstream has no requests left and is obeyed"),
            }
        }
        let until = Now(now.0.saturating_add(span_ns));
        let pause = UpstreamPause { key_id: key.id, began: now, until, status: code };
        (pushback.is_shared && (change.began || change.gained_ns >= TOLD_GAIN_NS)).then_some(pause)
    }

    /// Pauses the requests of a key because another gateway says so; it may be told again and again.
    pub fn adopt_pause(&self, pause: &UpstreamPause, now: Now) {
        let Some(pushback) = &self.pushback else { return };
        let until = pause.until.min(Now(pause.began.0.saturating_add(pushback.at_most_ns)));
        if until <= now {
            return;
        }
        // The prefix of a told key is unknown, and only keys without an entry of their own have a use for it.
        let key = CounterKey::new(pause.key_id, pause.key_id as u64);
        let change = pushback.state.pauses.adopt_pause(&key, pause.began, now, until, pause.status);
        if change.began && pushback.is_warning_due(now) {
            let (upstream, seconds) = (&*self.name, until.ns_since(now) as f64 / 1e9);
            tracing::warn!(
                upstream,
                seconds,
                "the upstream stops the requests of another gateway and is obeyed"
            );
        }
    }
}
