//! The task that tells the store of strikes, and learns of the bans of all gateways.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::ledger::BanLedger;
use super::outbox::{ClientStrikes, StrikeOutbox, StrikesByClient, new_strike_map};
use super::{BanStart, Bans, InstallOutcome, StrikeOutcome};
use crate::base::clock::Now;
use crate::limit::table::CounterKey;
use crate::observe::metrics::{BanEvent, Metrics};
use crate::shared::script::bans;
use crate::shared::script::bans::{
    Ban, BanRules, BanUpdate, CLIENTS_PER_CALL, STRIKES_PER_CALL, StrikeAnswer, StrikeReport,
};
use crate::shared::{PackedCall, SharedKey, Store, StoreFault};

/// How long strikes are gathered.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// How often the store is asked at least, and what is added to it by chance so that gateways do not ask all at once.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const POLL_JITTER_MS: u64 = 100;
/// Between two calls that tell the store bans which it does not know of.
const REPORT_INTERVAL: Duration = Duration::from_millis(10);

struct BanSync<'a, C> {
    bans: &'a Bans,
    metrics: &'a Metrics,
    prefix: &'a str,
    rules: BanRules,
    call: C,
    ledger: &'a Mutex<BanLedger>,
    jitter_hash: RandomState,
    poll_at: Now,
    /// More was announced than one answer holds.
    is_behind: bool,
    /// The store answers, and is to be told more bans than one call holds.
    is_reporting: bool,
}

/// The place of a shared key in the table.
#[inline]
pub(super) fn local_key(id: [u8; 16]) -> CounterKey {
    let id = u128::from_le_bytes(id);
    CounterKey { id, prefix: id as u64 }
}

fn shared_key(id: u128) -> SharedKey {
    SharedKey(id.to_le_bytes())
}

/// Shares the strikes and bans of [`Bans::shared`] by `store`, whose keys begin with `prefix`; for ever. To be run
/// once, on the runtime of one thread that is no worker's.
pub async fn share_bans(bans: Arc<Bans>, metrics: Arc<Metrics>, store: Arc<Store>, prefix: String) {
    let (link, script) = (store.open_link(), bans::ban_script());
    store.load_script(&script);
    let call = async |packed: &PackedCall| link.call_script(bans::BANS_GROUP, &script, packed).await;
    share_bans_by(&bans, &metrics, &prefix, call).await;
}

/// As [`share`], by a `call` that runs [`bans::script`].
pub async fn share_bans_by<C>(bans: &Bans, metrics: &Metrics, prefix: &str, call: C)
where
    C: AsyncFn(&PackedCall) -> Result<Vec<u8>, StoreFault>,
{
    let Some(noted) = &bans.state.outbox else { return };
    let mut sharing = BanSync {
        bans,
        metrics,
        prefix,
        rules: bans.store_rules(),
        call,
        ledger: &noted.ledger,
        jitter_hash: RandomState::new(),
        poll_at: Now::read_clock(),
        is_behind: false,
        is_reporting: false,
    };
    let mut notes = new_strike_map();
    loop {
        sharing.wait_next(noted).await;
        noted.swap_strikes(&mut notes);
        sharing.flush_strikes(&mut notes).await;
        if sharing.is_behind || sharing.is_reporting || sharing.poll_at <= Now::read_clock() {
            sharing.poll_bans().await;
        }
    }
}

// === impl Sharing ===

impl<C: AsyncFn(&PackedCall) -> Result<Vec<u8>, StoreFault>> BanSync<'_, C> {
    /// Waits until something may have to be told or asked.
    async fn wait_next(&self, noted: &StrikeOutbox) {
        if self.is_behind {
            return tokio::task::yield_now().await;
        }
        let pause = if self.is_reporting { REPORT_INTERVAL } else { FLUSH_INTERVAL };
        let next = (Now::read_clock().to_instant() + pause).min(self.poll_at.to_instant());
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = noted.wait_batch() => {}
        }
    }

    /// Tells the store of `notes`, which are empty afterwards.
    async fn flush_strikes(&mut self, notes: &mut StrikesByClient) {
        let (mut batch, mut strikes) = (Vec::new(), 0);
        for (id, note) in notes.drain() {
            strikes += u64::from(note.strikes);
            batch.push((id, note));
            if batch.len() == CLIENTS_PER_CALL || strikes >= STRIKES_PER_CALL {
                self.exchange_batch(&batch, &[]).await;
                (batch, strikes) = (Vec::new(), 0);
            }
        }
        if !batch.is_empty() {
            self.exchange_batch(&batch, &[]).await;
        }
    }

    /// Asks for what was announced, and tells bans that the store does not know of.
    async fn poll_bans(&mut self) {
        let untold = self
            .ledger
            .lock()
            .unreported_batch(Now::read_clock(), |repeats| self.rules.ban_length_us(repeats));
        self.exchange_batch(&[], &untold).await;
    }

    /// One call: tells of strikes and bans, and asks for what was announced.
    async fn exchange_batch(&mut self, batch: &[(u128, ClientStrikes)], untold: &[(u128, Ban)]) {
        let now = Now::read_clock();
        let jitter = self.jitter_hash.hash_one(now) % POLL_JITTER_MS;
        let pause = POLL_INTERVAL + Duration::from_millis(jitter);
        self.poll_at = Now(now.0 + pause.as_nanos() as u64);
        (self.is_behind, self.is_reporting) = (false, false);
        let offence = |(id, note): &(u128, ClientStrikes)| StrikeReport {
            client: shared_key(*id),
            strikes: note.strikes,
            age_us: now.ns_since(note.newest).div_ceil(1000),
        };
        let offences: Vec<StrikeReport> = batch.iter().map(offence).collect();
        let bans: Vec<_> = untold.iter().map(|(id, ban)| (shared_key(*id), *ban)).collect();
        let known = self.ledger.lock().cursor();
        let packed = bans::pack_call(self.prefix, &self.rules, &offences, &bans, known);
        let answer = (self.call)(&packed).await;
        match answer.and_then(|bytes| bans::parse_reply(&bytes, batch.len()).ok_or(StoreFault::Garbled)) {
            Ok(news) => {
                self.ledger.lock().advance_cursor(news.cursor);
                self.ledger.lock().mark_reported(untold);
                self.apply_update(batch, &news);
            }
            // The strikes may have been counted.
            Err(StoreFault::Timeout | StoreFault::Broken | StoreFault::Garbled) => {}
            Err(_) => batch.iter().for_each(|(id, note)| self.count_locally(*id, note)),
        }
    }

    fn apply_update(&mut self, batch: &[(u128, ClientStrikes)], news: &BanUpdate) {
        let now = Now::read_clock();
        self.is_behind = news.is_more;
        for ((id, note), judgement) in batch.iter().zip(&news.answers) {
            match judgement {
                StrikeAnswer::NotBanned => {}
                StrikeAnswer::Banned(ban) => self.install_announced(shared_key(*id), ban, now),
                StrikeAnswer::Started(ban) => {
                    self.record_ban(shared_key(*id), ban, now);
                    let told = self.bans.state.active.try_log(now);
                    let lasts_ns = ban.lasts_us.saturating_mul(1000);
                    self.record_start(&BanStart { lasts_ns, repeats: ban.repeats, log_skipped: told }, note);
                }
            }
        }
        for (client, ban) in &news.announced {
            self.install_announced(*client, ban, now);
        }
        self.is_reporting = self.ledger.lock().has_unreported();
    }

    /// Takes over a ban that another gateway started.
    fn install_announced(&self, client: SharedKey, ban: &Ban, now: Now) {
        if self.record_ban(client, ban, now) == InstallOutcome::New {
            self.metrics.count_shared_ban_event(BanEvent::Learned);
        }
    }

    /// Notes a ban that the store knows of.
    fn record_ban(&self, client: SharedKey, ban: &Ban, now: Now) -> InstallOutcome {
        let until = ban_end(ban, now);
        self.ledger.lock().record_known(u128::from_le_bytes(client.0), until, ban.repeats, now);
        self.bans.install_ban(&local_key(client.0), until, ban.repeats, now)
    }

    /// Counts what the store could not be told.
    fn count_locally(&self, id: u128, note: &ClientStrikes) {
        let key = local_key(id.to_le_bytes());
        for _ in 0..note.strikes {
            match self.bans.count_strike(&key, note.newest) {
                StrikeOutcome::Counted => {}
                StrikeOutcome::Started(started) => {
                    let until = Now(note.newest.0.saturating_add(started.lasts_ns));
                    self.ledger.lock().record_unreported(id, until, started.repeats, Now::read_clock());
                    return self.record_start(&started, note);
                }
                StrikeOutcome::Banned => return,
                StrikeOutcome::Uncounted => return self.metrics.count_shared_ban_event(BanEvent::Uncounted),
            }
        }
    }

    fn record_start(&self, started: &BanStart, note: &ClientStrikes) {
        self.metrics.count_shared_ban_event(BanEvent::Started);
        started.log_start(&note.client);
    }
}

fn ban_end(ban: &Ban, now: Now) -> Now {
    Now(now.0.saturating_add(ban.left_us.saturating_mul(1000)))
}

// === impl Bans ===

impl Bans {
    fn store_rules(&self) -> BanRules {
        BanRules {
            after: self.after,
            period_us: self.period_ns.div_ceil(1000),
            first_us: self.first_ns.div_ceil(1000),
            longest_us: self.longest_ns.div_ceil(1000),
        }
    }
}

#[cfg(test)]
mod tests;
