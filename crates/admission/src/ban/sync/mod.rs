//! The task that reports strikes to the store and learns the bans of all gateways.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use super::outbox::{ClientStrikes, StrikeOutbox, StrikesByClient, new_strike_map};
use super::{BanStart, Bans, InstallOutcome, StrikeOutcome};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_observe::metrics::{BanEvent, Metrics};
use sluicegate_store::script::bans::{
    self, Ban, BanRules, BanUpdate, CLIENTS_PER_CALL, STRIKES_PER_CALL, StrikeAnswer, StrikeReport,
};
use sluicegate_store::{PackedCall, SharedKey, Store, StoreFault};

/// The time for which strikes are collected before a report.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// The store is polled at least this often; a random jitter keeps gateways from polling all at once.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const POLL_JITTER_MS: u64 = 100;
/// The pause between two calls that report bans unknown to the store.
const REPORT_INTERVAL: Duration = Duration::from_millis(10);

struct BanSync<'a, C> {
    bans: &'a Bans,
    metrics: &'a Metrics,
    prefix: &'a str,
    rules: BanRules,
    call: C,
    outbox: &'a StrikeOutbox,
    jitter_hash: RandomState,
    poll_at: Now,
    /// The store announced more than one answer holds.
    is_behind: bool,
    /// The store answers, and there are more bans to report than one call holds.
    is_reporting: bool,
}

/// The local table's key for a shared key.
pub(super) fn local_key(id: u128) -> CounterKey {
    CounterKey::new(id, id as u64)
}

/// Shares the strikes and bans of shared [`Bans`] through `store`, under keys that begin with `prefix`. Never
/// returns. Run it once, on the runtime of a single thread that is not a worker's.
pub async fn share_bans(bans: Arc<Bans>, metrics: Arc<Metrics>, store: Arc<Store>, prefix: String) {
    let call = store.script_caller(bans::BANS_GROUP, bans::ban_script());
    share_bans_by(&bans, &metrics, &prefix, call).await;
}

/// [`share_bans`] through a `call` that runs [`bans::ban_script`].
pub async fn share_bans_by<C>(bans: &Bans, metrics: &Metrics, prefix: &str, call: C)
where
    C: AsyncFn(&PackedCall) -> Result<Vec<u8>, StoreFault>,
{
    let Some(outbox) = &bans.state.outbox else { return };
    let mut sync = BanSync {
        bans,
        metrics,
        prefix,
        rules: BanRules {
            after: bans.after,
            period_us: bans.period_ns.div_ceil(1000),
            first_us: bans.first_ns.div_ceil(1000),
            longest_us: bans.longest_ns.div_ceil(1000),
        },
        call,
        outbox,
        jitter_hash: RandomState::new(),
        poll_at: Now::read_clock(),
        is_behind: false,
        is_reporting: false,
    };
    let mut strikes = new_strike_map();
    loop {
        sync.wait_next().await;
        std::mem::swap(&mut *outbox.clients.lock(), &mut strikes);
        sync.flush_strikes(&mut strikes).await;
        sync.send_lifts().await;
        if sync.is_behind || sync.is_reporting || sync.poll_at <= Now::read_clock() {
            let lasts_us = |repeats| bans.ban_length_ns(repeats).div_ceil(1000);
            let unreported = outbox.ledger.lock().unreported_batch(Now::read_clock(), lasts_us);
            sync.exchange_batch(&[], &unreported).await;
        }
    }
}

// === impl BanSync ===

impl<C: AsyncFn(&PackedCall) -> Result<Vec<u8>, StoreFault>> BanSync<'_, C> {
    /// Waits until the next report or poll may be due.
    async fn wait_next(&self) {
        if self.is_behind {
            return tokio::task::yield_now().await;
        }
        let pause = if self.is_reporting { REPORT_INTERVAL } else { FLUSH_INTERVAL };
        let next = (Now::read_clock().to_instant() + pause).min(self.poll_at.to_instant());
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = self.outbox.batch_ready.notified() => {}
        }
    }

    /// Reports `strikes` to the store and empties the map.
    async fn flush_strikes(&mut self, strikes: &mut StrikesByClient) {
        let (mut batch, mut count) = (Vec::new(), 0);
        for (id, entry) in strikes.drain() {
            count += u64::from(entry.strikes);
            batch.push((id, entry));
            if batch.len() == CLIENTS_PER_CALL || count >= STRIKES_PER_CALL {
                self.exchange_batch(&batch, &[]).await;
                (batch, count) = (Vec::new(), 0);
            }
        }
        if !batch.is_empty() {
            self.exchange_batch(&batch, &[]).await;
        }
    }

    /// Tells the store which bans were lifted; it may be told again.
    async fn send_lifts(&mut self) {
        let lifts = self.outbox.take_lifts(Now::read_clock());
        if lifts.is_empty() {
            return;
        }
        if let Ok(update) = self.call_store(&lifts, &[]).await {
            self.outbox.finish_lifts(&lifts);
            self.apply_update(&[], &update);
        }
    }

    /// One call. Moves on to the cursor of the reply.
    async fn call_store(
        &self,
        reports: &[StrikeReport],
        unknown: &[(SharedKey, Ban)],
    ) -> Result<BanUpdate, StoreFault> {
        let cursor = self.outbox.ledger.lock().cursor;
        let packed = bans::pack_call(self.prefix, &self.rules, reports, unknown, cursor);
        let bytes = (self.call)(&packed).await?;
        let update = bans::parse_reply(&bytes, reports.len()).ok_or(StoreFault::Garbled)?;
        self.outbox.ledger.lock().advance_cursor(update.cursor);
        Ok(update)
    }

    /// One call: reports strikes and bans, and fetches announcements.
    async fn exchange_batch(&mut self, batch: &[(u128, ClientStrikes)], unreported: &[(u128, Ban)]) {
        let now = Now::read_clock();
        let jitter = self.jitter_hash.hash_one(now) % POLL_JITTER_MS;
        let pause = POLL_INTERVAL + Duration::from_millis(jitter);
        self.poll_at = Now(now.0 + pause.as_nanos() as u64);
        (self.is_behind, self.is_reporting) = (false, false);
        let report = |(id, entry): &(u128, ClientStrikes)| StrikeReport {
            client: SharedKey(id.to_le_bytes()),
            strikes: entry.strikes,
            age_us: now.ns_since(entry.newest).div_ceil(1000),
        };
        let reports: Vec<StrikeReport> = batch.iter().map(report).collect();
        let bans: Vec<_> = unreported.iter().map(|(id, ban)| (SharedKey(id.to_le_bytes()), *ban)).collect();
        match self.call_store(&reports, &bans).await {
            Ok(update) => {
                self.outbox.ledger.lock().mark_reported(unreported);
                self.apply_update(batch, &update);
            }
            // The store may have counted the strikes.
            Err(StoreFault::Timeout | StoreFault::Broken | StoreFault::Garbled) => {}
            Err(_) => batch.iter().for_each(|(id, entry)| self.count_locally(*id, entry)),
        }
    }

    /// Applies the reply of the store: the bans of this batch, and those that other gateways announced.
    fn apply_update(&mut self, batch: &[(u128, ClientStrikes)], update: &BanUpdate) {
        let now = Now::read_clock();
        self.is_behind = update.is_more;
        for ((id, entry), answer) in batch.iter().zip(&update.answers) {
            match answer {
                StrikeAnswer::NotBanned => {}
                StrikeAnswer::Banned(ban) => self.install_announced(*id, ban, now),
                StrikeAnswer::Started(ban) => {
                    self.record_ban(*id, ban, now);
                    let log_skipped = self.bans.state.active.try_log(now);
                    let lasts_ns = ban.lasts_us.saturating_mul(1000);
                    let started = BanStart { lasts_ns, repeats: ban.repeats, log_skipped };
                    self.record_start(*id, &started, ban_end(ban, now), entry);
                }
            }
        }
        for (client, ban) in &update.announced {
            self.install_announced(u128::from_le_bytes(client.0), ban, now);
        }
        self.is_reporting = self.outbox.ledger.lock().has_unreported();
    }

    /// Installs a ban that another gateway started, or ends one that it lifted.
    fn install_announced(&self, id: u128, ban: &Ban, now: Now) {
        if ban.is_lifted() {
            self.outbox.ledger.lock().forget_ban(id);
            self.bans.lift_ban(&local_key(id), now);
            return;
        }
        // The answer is older than the end of the ban here.
        if self.outbox.is_lifting(&SharedKey(id.to_le_bytes())) {
            return;
        }
        if self.record_ban(id, ban, now) == InstallOutcome::New {
            self.metrics.count_shared_ban_event(BanEvent::Learned);
        }
    }

    /// Records a ban that the store knows.
    fn record_ban(&self, id: u128, ban: &Ban, now: Now) -> InstallOutcome {
        let until = ban_end(ban, now);
        self.outbox.ledger.lock().record_known(id, (until, ban.repeats), now);
        self.bans.install_ban(&local_key(id), until, ban.repeats, now)
    }

    /// Counts strikes here that could not be reported to the store.
    fn count_locally(&self, id: u128, entry: &ClientStrikes) {
        let key = local_key(id);
        for _ in 0..entry.strikes {
            match self.bans.count_strike(&key, entry.newest) {
                StrikeOutcome::Counted => {}
                StrikeOutcome::Started(started) => {
                    let until = Now(entry.newest.0.saturating_add(started.lasts_ns));
                    let ban = (until, started.repeats);
                    self.outbox.ledger.lock().record_unreported(id, ban, Now::read_clock());
                    return self.record_start(id, &started, until, entry);
                }
                StrikeOutcome::Banned => return,
                StrikeOutcome::Uncounted => return self.metrics.count_shared_ban_event(BanEvent::Uncounted),
            }
        }
    }

    fn record_start(&self, id: u128, started: &BanStart, until: Now, entry: &ClientStrikes) {
        self.metrics.count_shared_ban_event(BanEvent::Started);
        let key = local_key(id);
        self.bans.name_ban(&key, &entry.client, until, started.repeats, Now::read_clock());
        started.log_start(&entry.client);
    }
}

fn ban_end(ban: &Ban, now: Now) -> Now {
    Now(now.0.saturating_add(ban.left_us.saturating_mul(1000)))
}

#[cfg(test)]
mod tests;
