//! What a server's host name stands for: looked up again and again, and never forgotten because a resolver fails.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::balance::fnv1a;

/// How soon a look-up follows one that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// How often the log is told at most that a name cannot be resolved.
const WARNING_EVERY: Duration = Duration::from_secs(60);

/// A name and what it stands for. One look-up at a time for all workers: a resolver that hangs must cost neither a
/// thread for each request, nor the requests that an older answer could serve.
pub(super) struct Name {
    host: String,
    port: u16,
    resolved: Mutex<Resolved>,
    looked_up: Notify,
    /// Counts how often an address vanished.
    losses: AtomicU32,
}

#[derive(Default)]
struct Resolved {
    addresses: Vec<SocketAddr>,
    at: Option<Instant>,
    /// When the last look-up began.
    tried: Option<Instant>,
    turn: usize,
    looking_up: bool,
    /// The log was told that look-ups find nothing, and none has found something since.
    is_failing: bool,
    /// When the log was told so last.
    warned: Option<Instant>,
}

/// An address in few bytes, for those who only compare. That two are alike costs nothing but a look at the wrong one.
pub(super) fn tag(address: &SocketAddr) -> u32 {
    let hash = match address.ip() {
        IpAddr::V4(ip) => fnv1a(&ip.octets()),
        IpAddr::V6(ip) => fnv1a(&ip.octets()),
    };
    (hash >> 32) as u32 ^ hash as u32
}

/// A look-up under way; over when dropped.
struct LookUp(Arc<Name>);

impl Name {
    pub fn new(host: &str, port: u16) -> Arc<Name> {
        Arc::new(Name {
            host: host.to_owned(),
            port,
            resolved: Mutex::default(),
            looked_up: Notify::new(),
            losses: AtomicU32::new(0),
        })
    }

    /// The addresses to try. When the last answer is older than `refresh`, the name is looked up again behind the
    /// back of the requests, which take the older answer.
    ///
    /// # Errors
    /// When the name has no address, and never had one.
    pub async fn addresses(self: &Arc<Self>, refresh: Duration) -> io::Result<Vec<SocketAddr>> {
        let looked_up = {
            let looked_up = self.looked_up.notified();
            let mut resolved = self.resolved.lock();
            if !resolved.is_fresh(refresh) {
                self.start(&mut resolved);
            }
            if !resolved.addresses.is_empty() {
                return Ok(resolved.rotated());
            }
            looked_up
        };
        looked_up.await;
        let found = self.resolved.lock().rotated();
        if found.is_empty() { Err(io::Error::new(io::ErrorKind::NotFound, "no address")) } else { Ok(found) }
    }

    /// Looks the name up again and again, every `refresh`.
    pub async fn follow(self: Arc<Self>, refresh: Duration) {
        loop {
            self.start(&mut self.resolved.lock());
            tokio::time::sleep(refresh).await;
        }
    }

    /// Changes when an address vanished: then [`Name::has`] tells which connections lead nowhere.
    pub fn losses(&self) -> u32 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Whether the name still stands for the address with this [`tag`].
    pub fn has(&self, address: u32) -> bool {
        self.resolved.lock().addresses.iter().any(|known| tag(known) == address)
    }

    /// What the name stands for, as far as it is known.
    pub fn known(&self) -> Vec<SocketAddr> {
        self.resolved.lock().addresses.clone()
    }

    fn start(self: &Arc<Self>, resolved: &mut Resolved) {
        if !std::mem::replace(&mut resolved.looking_up, true) {
            resolved.tried = Some(Instant::now());
            tokio::spawn(look_up(LookUp(self.clone())));
        }
    }

    /// Takes an answer over; one without addresses changes nothing.
    pub(super) fn learn(&self, found: Vec<SocketAddr>) {
        if found.is_empty() {
            return self.missed("the answer holds no address");
        }
        let mut resolved = self.resolved.lock();
        if resolved.addresses.iter().any(|old| !found.contains(old)) {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        resolved.addresses = found;
        resolved.at = Some(Instant::now());
        resolved.is_failing = false;
    }

    /// Takes note of a look-up that found nothing. The log is told of the first in a row: at the start, and when a
    /// name goes.
    fn missed(&self, error: &str) {
        let is_news = self.resolved.lock().miss();
        let server = format_args!("{}:{}", self.host, self.port);
        if !is_news {
            return tracing::debug!(%server, error, "a server's name cannot be resolved");
        }
        tracing::warn!(%server, error, "a server's name cannot be resolved");
    }
}

async fn look_up(under_way: LookUp) {
    let name = &under_way.0;
    match tokio::net::lookup_host((name.host.as_str(), name.port)).await {
        Ok(found) => name.learn(found.collect()),
        Err(error) => name.missed(&error.to_string()),
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        self.0.resolved.lock().looking_up = false;
        self.0.looked_up.notify_waiters();
    }
}

impl Resolved {
    /// Whether there is something to go by, and no need to look the name up already.
    fn is_fresh(&self, refresh: Duration) -> bool {
        let within = |at: Option<Instant>, span| at.is_some_and(|at| at.elapsed() < span);
        !self.addresses.is_empty() && (within(self.at, refresh) || within(self.tried, refresh.min(AGAIN)))
    }

    /// Whether the log is to be told of a look-up that found nothing.
    fn miss(&mut self) -> bool {
        let is_told = self.warned.is_some_and(|at| at.elapsed() < WARNING_EVERY);
        if self.is_failing || is_told {
            return false;
        }
        (self.is_failing, self.warned) = (true, Some(Instant::now()));
        true
    }

    /// Each caller starts with another address, so that all of a name's addresses get connections.
    fn rotated(&mut self) -> Vec<SocketAddr> {
        let mut addresses = self.addresses.clone();
        if !addresses.is_empty() {
            self.turn = (self.turn + 1) % addresses.len();
            addresses.rotate_left(self.turn);
        }
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, port], 80))
    }

    #[tokio::test(start_paused = true)]
    async fn callers_start_with_addresses_in_turn() {
        let name = Name::new("a.test", 80);
        name.learn(vec![at(1), at(2), at(3)]);
        let mut firsts = Vec::new();
        for _ in 0..6 {
            firsts.push(name.addresses(Duration::from_secs(30)).await.unwrap()[0].ip());
        }
        firsts.sort_unstable();
        assert_eq!(firsts, [1, 1, 2, 2, 3, 3].map(|last| at(last).ip()));
    }

    #[test]
    fn an_address_that_vanished_is_told() {
        let name = Name::new("a.test", 80);
        name.learn(vec![at(1), at(2)]);
        assert_eq!(name.losses(), 0);
        name.learn(vec![at(2), at(1), at(3)]);
        assert_eq!(name.losses(), 0, "only newcomers");
        name.learn(vec![at(1), at(3)]);
        assert_eq!(name.losses(), 1);
        assert!(name.has(tag(&at(1))) && !name.has(tag(&at(2))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_is_told_of_a_row_of_failed_look_ups_once() {
        let name = Name::new("a.test", 80);
        let miss = || name.resolved.lock().miss();
        assert_eq!((miss(), miss()), (true, false));
        name.learn(vec![at(1)]);
        assert!(!miss(), "a name that comes and goes is told once a minute");
        tokio::time::sleep(WARNING_EVERY).await;
        assert_eq!((miss(), miss()), (true, false), "it fails for good");
        tokio::time::sleep(WARNING_EVERY).await;
        assert!(!miss(), "it is known");
        name.learn(vec![at(1)]);
        assert!(miss());
    }

    #[test]
    fn an_empty_answer_changes_nothing() {
        let name = Name::new("a.test", 80);
        name.learn(vec![at(1)]);
        name.learn(Vec::new());
        assert_eq!((name.known(), name.losses()), (vec![at(1)], 0));
    }

    #[tokio::test]
    async fn a_failed_look_up_keeps_the_old_answer() {
        let name = Name::new("does-not-exist.invalid", 80);
        name.learn(vec![at(1)]);
        // Older than this in any case: a look-up begins, and fails.
        assert_eq!(name.addresses(Duration::ZERO).await.unwrap(), [at(1)]);
        while name.resolved.lock().looking_up {
            tokio::task::yield_now().await;
        }
        assert_eq!(name.known(), [at(1)]);
        // A resolver that fails at once is not asked by every request.
        let refresh = Duration::from_secs(30);
        name.resolved.lock().at = None;
        assert_eq!(name.addresses(refresh).await.unwrap(), [at(1)]);
        assert!(!name.resolved.lock().looking_up);
        name.resolved.lock().tried = None;
        assert_eq!(name.addresses(refresh).await.unwrap(), [at(1)]);
        assert!(name.resolved.lock().looking_up);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_followed_whenever_its_answers_come() {
        let name = Name::new("does-not-exist.invalid", 80);
        name.learn(vec![at(1)]);
        let refresh = Duration::from_secs(10);
        let following = tokio::spawn(name.clone().follow(refresh));
        tokio::time::sleep(Duration::from_secs(5)).await;
        // The answer to the last look-up took its time.
        name.learn(vec![at(1)]);
        tokio::time::sleep(Duration::from_secs(6)).await;
        let tried = name.resolved.lock().tried;
        assert!(tried.is_some_and(|tried| tried.elapsed() < Duration::from_secs(2)));
        following.abort();
    }
}
