//! The task that tells the store of strikes, and learns of the bans of all gateways.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::ledger::Ledger;
use super::outbox::{Clients, Note, Noted, room};
use super::{Bans, Installed, Started, Strike};
use crate::base::clock::Now;
use crate::limit::table::Key;
use crate::observe::metrics::{Banning, Metrics};
use crate::shared::script::bans;
use crate::shared::script::bans::{Ban, CLIENTS_PER_CALL, Judgement, News, Offence, Rules, STRIKES_PER_CALL};
use crate::shared::{Failure, Packed, SharedKey, Store};

/// How long strikes are gathered.
const FLUSH: Duration = Duration::from_millis(100);
/// How often the store is asked at least, and what is added to it by chance so that gateways do not ask all at once.
const POLL: Duration = Duration::from_millis(200);
const POLL_JITTER_MS: u64 = 100;
/// Between two calls that tell the store bans which it does not know of.
const TELL: Duration = Duration::from_millis(10);

struct Sharing<'a, C> {
    bans: &'a Bans,
    metrics: &'a Metrics,
    prefix: &'a str,
    rules: Rules,
    call: C,
    ledger: &'a Mutex<Ledger>,
    dice: RandomState,
    poll_at: Now,
    /// More was announced than one answer holds.
    is_behind: bool,
    /// The store answers, and is to be told more bans than one call holds.
    is_telling: bool,
}

/// The place of a shared key in the table.
#[inline]
pub(super) fn local(id: [u8; 16]) -> Key {
    let id = u128::from_le_bytes(id);
    Key { id, prefix: id as u64 }
}

fn shared(id: u128) -> SharedKey {
    SharedKey(id.to_le_bytes())
}

/// Shares the strikes and bans of [`Bans::shared`] by `store`, whose keys begin with `prefix`; for ever. To be run
/// once, on the runtime of one thread that is no worker's.
pub async fn share(bans: Arc<Bans>, metrics: Arc<Metrics>, store: Arc<Store>, prefix: String) {
    let (link, script) = (store.link(), bans::script());
    store.load(&script);
    let call = async |packed: &Packed| link.call(bans::GROUP, &script, packed).await;
    share_by(&bans, &metrics, &prefix, call).await;
}

/// As [`share`], by a `call` that runs [`bans::script`].
pub async fn share_by<C>(bans: &Bans, metrics: &Metrics, prefix: &str, call: C)
where
    C: AsyncFn(&Packed) -> Result<Vec<u8>, Failure>,
{
    let Some(noted) = &bans.known.noted else { return };
    let mut sharing = Sharing {
        bans,
        metrics,
        prefix,
        rules: bans.rules(),
        call,
        ledger: &noted.ledger,
        dice: RandomState::new(),
        poll_at: Now::read(),
        is_behind: false,
        is_telling: false,
    };
    let mut notes = room();
    loop {
        sharing.rest(noted).await;
        noted.take(&mut notes);
        sharing.flush(&mut notes).await;
        if sharing.is_behind || sharing.is_telling || sharing.poll_at <= Now::read() {
            sharing.poll().await;
        }
    }
}

// === impl Sharing ===

impl<C: AsyncFn(&Packed) -> Result<Vec<u8>, Failure>> Sharing<'_, C> {
    /// Waits until something may have to be told or asked.
    async fn rest(&self, noted: &Noted) {
        if self.is_behind {
            return tokio::task::yield_now().await;
        }
        let pause = if self.is_telling { TELL } else { FLUSH };
        let next = (Now::read().instant() + pause).min(self.poll_at.instant());
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = noted.enough() => {}
        }
    }

    /// Tells the store of `notes`, which are empty afterwards.
    async fn flush(&mut self, notes: &mut Clients) {
        let (mut batch, mut strikes) = (Vec::new(), 0);
        for (id, note) in notes.drain() {
            strikes += u64::from(note.strikes);
            batch.push((id, note));
            if batch.len() == CLIENTS_PER_CALL || strikes >= STRIKES_PER_CALL {
                self.exchange(&batch, &[]).await;
                (batch, strikes) = (Vec::new(), 0);
            }
        }
        if !batch.is_empty() {
            self.exchange(&batch, &[]).await;
        }
    }

    /// Asks for what was announced, and tells bans that the store does not know of.
    async fn poll(&mut self) {
        let untold = self.ledger.lock().untold(Now::read(), |repeats| self.rules.lasts_us(repeats));
        self.exchange(&[], &untold).await;
    }

    /// One call: tells of strikes and bans, and asks for what was announced.
    async fn exchange(&mut self, batch: &[(u128, Note)], untold: &[(u128, Ban)]) {
        let now = Now::read();
        let jitter = self.dice.hash_one(now) % POLL_JITTER_MS;
        let pause = POLL + Duration::from_millis(jitter);
        self.poll_at = Now(now.0 + pause.as_nanos() as u64);
        (self.is_behind, self.is_telling) = (false, false);
        let offence = |(id, note): &(u128, Note)| Offence {
            client: shared(*id),
            strikes: note.strikes,
            age_us: now.since(note.newest).div_ceil(1000),
        };
        let offences: Vec<Offence> = batch.iter().map(offence).collect();
        let bans: Vec<_> = untold.iter().map(|(id, ban)| (shared(*id), *ban)).collect();
        let known = self.ledger.lock().known();
        let packed = bans::pack(self.prefix, &self.rules, &offences, &bans, known);
        let answer = (self.call)(&packed).await;
        match answer.and_then(|bytes| bans::read(&bytes, batch.len()).ok_or(Failure::Garbled)) {
            Ok(news) => {
                self.ledger.lock().follow(news.known);
                self.ledger.lock().told(untold);
                self.learn(batch, &news);
            }
            // The strikes may have been counted.
            Err(Failure::Timeout | Failure::Broken | Failure::Garbled) => {}
            Err(_) => batch.iter().for_each(|(id, note)| self.count_here(*id, note)),
        }
    }

    fn learn(&mut self, batch: &[(u128, Note)], news: &News) {
        let now = Now::read();
        self.is_behind = news.is_more;
        for ((id, note), judgement) in batch.iter().zip(&news.judgements) {
            match judgement {
                Judgement::Free => {}
                Judgement::Banned(ban) => self.install(shared(*id), ban, now),
                Judgement::Started(ban) => {
                    self.hear(shared(*id), ban, now);
                    let told = self.bans.known.running.tell(now);
                    let lasts_ns = ban.lasts_us.saturating_mul(1000);
                    self.started(&Started { lasts_ns, repeats: ban.repeats, told }, note);
                }
            }
        }
        for (client, ban) in &news.announced {
            self.install(*client, ban, now);
        }
        self.is_telling = self.ledger.lock().has_untold();
    }

    /// Takes over a ban that another gateway started.
    fn install(&self, client: SharedKey, ban: &Ban, now: Now) {
        if self.hear(client, ban, now) == Installed::New {
            self.metrics.banned_beside(Banning::Learned);
        }
    }

    /// Notes a ban that the store knows of.
    fn hear(&self, client: SharedKey, ban: &Ban, now: Now) -> Installed {
        let until = end(ban, now);
        self.ledger.lock().hear(u128::from_le_bytes(client.0), until, ban.repeats, now);
        self.bans.install(&local(client.0), until, ban.repeats, now)
    }

    /// Counts what the store could not be told.
    fn count_here(&self, id: u128, note: &Note) {
        let key = local(id.to_le_bytes());
        for _ in 0..note.strikes {
            match self.bans.strike(&key, note.newest) {
                Strike::Counted => {}
                Strike::Started(started) => {
                    let until = Now(note.newest.0.saturating_add(started.lasts_ns));
                    self.ledger.lock().add(id, until, started.repeats, Now::read());
                    return self.started(&started, note);
                }
                Strike::Banned => return,
                Strike::Uncounted => return self.metrics.banned_beside(Banning::Uncounted),
            }
        }
    }

    fn started(&self, started: &Started, note: &Note) {
        self.metrics.banned_beside(Banning::Started);
        started.tell(&note.who);
    }
}

fn end(ban: &Ban, now: Now) -> Now {
    Now(now.0.saturating_add(ban.left_us.saturating_mul(1000)))
}

// === impl Bans ===

impl Bans {
    fn rules(&self) -> Rules {
        Rules {
            after: self.after,
            period_us: self.period_ns.div_ceil(1000),
            first_us: self.first_ns.div_ceil(1000),
            longest_us: self.longest_ns.div_ceil(1000),
        }
    }
}

#[cfg(test)]
mod tests;
