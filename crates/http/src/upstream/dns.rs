//! The addresses of a server's host name: refreshed regularly, and kept when the resolver fails.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::address_tag;

/// The pause after a look-up that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two warnings about a name.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A name and its addresses. All workers share one look-up at a time: a resolver that hangs must cost neither a thread
/// per request nor the requests that the known addresses can serve.
pub(super) struct DnsName {
    host: String,
    port: u16,
    resolved: Mutex<Resolution>,
    lookup_done: Notify,
    /// The number of addresses that disappeared.
    loss_count: AtomicU32,
}

#[derive(Default)]
struct Resolution {
    addresses: Vec<SocketAddr>,
    resolved_at: Option<Instant>,
    /// The beginning of the last look-up.
    tried_at: Option<Instant>,
    rotation: usize,
    is_looking_up: bool,
    /// The log has a warning that look-ups fail, and none has succeeded since.
    is_failing: bool,
    warned_at: Option<Instant>,
}

/// A look-up in progress; it ends when this is dropped.
struct LookupGuard(Arc<DnsName>);

impl DnsName {
    pub(super) fn new(host: &str, port: u16) -> Arc<DnsName> {
        Arc::new(DnsName {
            host: host.to_owned(),
            port,
            resolved: Mutex::default(),
            lookup_done: Notify::new(),
            loss_count: AtomicU32::new(0),
        })
    }

    /// The addresses to try. When the last result is older than `refresh`, a look-up starts in the background while
    /// requests use the old addresses.
    ///
    /// # Errors
    /// The name has no address and never had one.
    pub(super) async fn addresses(self: &Arc<Self>, refresh: Duration) -> io::Result<Vec<SocketAddr>> {
        let lookup_done = {
            let lookup_done = self.lookup_done.notified();
            let mut resolved = self.resolved.lock();
            if !resolved.is_fresh(refresh) {
                self.start_lookup(&mut resolved);
            }
            if !resolved.addresses.is_empty() {
                return Ok(resolved.rotate_addresses());
            }
            lookup_done
        };
        lookup_done.await;
        let found = self.resolved.lock().rotate_addresses();
        if found.is_empty() { Err(io::Error::new(io::ErrorKind::NotFound, "no address")) } else { Ok(found) }
    }

    /// Looks the name up every `refresh`.
    pub(super) async fn refresh_forever(self: Arc<Self>, refresh: Duration) {
        loop {
            self.start_lookup(&mut self.resolved.lock());
            tokio::time::sleep(refresh).await;
        }
    }

    /// Changes when an address disappears: then [`DnsName::has_address`] tells which connections are obsolete.
    pub(super) fn loss_count(&self) -> u32 {
        self.loss_count.load(Ordering::Relaxed)
    }

    /// True if the name still has the address with this [`address_tag`].
    pub(super) fn has_address(&self, tag: u32) -> bool {
        self.resolved.lock().addresses.iter().any(|known| address_tag(known) == tag)
    }

    pub(super) fn known_addresses(&self) -> Vec<SocketAddr> {
        self.resolved.lock().addresses.clone()
    }

    fn start_lookup(self: &Arc<Self>, resolved: &mut Resolution) {
        if !std::mem::replace(&mut resolved.is_looking_up, true) {
            resolved.tried_at = Some(Instant::now());
            tokio::spawn(look_up(LookupGuard(self.clone())));
        }
    }

    /// Stores the result of a look-up; an empty one keeps the old addresses.
    pub(super) fn record_addresses(&self, found: Vec<SocketAddr>) {
        if found.is_empty() {
            return self.record_fault("the answer contains no address");
        }
        let mut resolved = self.resolved.lock();
        if resolved.addresses.iter().any(|old| !found.contains(old)) {
            self.loss_count.fetch_add(1, Ordering::Relaxed);
        }
        resolved.addresses = found;
        resolved.resolved_at = Some(Instant::now());
        resolved.is_failing = false;
    }

    /// Records a failed look-up. Only the first of a row is a warning: at the start, and when a name disappears.
    fn record_fault(&self, error: &str) {
        let is_news = self.resolved.lock().mark_failing();
        let server = format_args!("{}:{}", self.host, self.port);
        if !is_news {
            return tracing::debug!(%server, error, "a server's name cannot be resolved");
        }
        tracing::warn!(%server, error, "a server's name cannot be resolved");
    }
}

async fn look_up(guard: LookupGuard) {
    let name = &guard.0;
    match tokio::net::lookup_host((name.host.as_str(), name.port)).await {
        Ok(found) => name.record_addresses(found.collect()),
        Err(error) => name.record_fault(&error.to_string()),
    }
}

impl Drop for LookupGuard {
    fn drop(&mut self) {
        self.0.resolved.lock().is_looking_up = false;
        self.0.lookup_done.notify_waiters();
    }
}

impl Resolution {
    /// True if addresses are known and no look-up is due.
    fn is_fresh(&self, refresh: Duration) -> bool {
        let within = |at: Option<Instant>, span| at.is_some_and(|at| at.elapsed() < span);
        !self.addresses.is_empty()
            && (within(self.resolved_at, refresh) || within(self.tried_at, refresh.min(RETRY_INTERVAL)))
    }

    /// True if this failed look-up deserves a warning.
    fn mark_failing(&mut self) -> bool {
        let warned_lately = self.warned_at.is_some_and(|at| at.elapsed() < WARNING_INTERVAL);
        if self.is_failing || warned_lately {
            return false;
        }
        (self.is_failing, self.warned_at) = (true, Some(Instant::now()));
        true
    }

    /// Each call starts with another address, so that all of them get connections.
    fn rotate_addresses(&mut self) -> Vec<SocketAddr> {
        let mut addresses = self.addresses.clone();
        if !addresses.is_empty() {
            self.rotation = (self.rotation + 1) % addresses.len();
            addresses.rotate_left(self.rotation);
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
        let name = DnsName::new("a.test", 80);
        name.record_addresses(vec![at(1), at(2), at(3)]);
        let mut firsts = Vec::new();
        for _ in 0..6 {
            firsts.push(name.addresses(Duration::from_secs(30)).await.unwrap()[0].ip());
        }
        firsts.sort_unstable();
        assert_eq!(firsts, [1, 1, 2, 2, 3, 3].map(|last| at(last).ip()));
    }

    #[test]
    fn a_lost_address_is_counted() {
        let name = DnsName::new("a.test", 80);
        name.record_addresses(vec![at(1), at(2)]);
        assert_eq!(name.loss_count(), 0);
        name.record_addresses(vec![at(2), at(1), at(3)]);
        assert_eq!(name.loss_count(), 0, "only newcomers");
        name.record_addresses(vec![at(1), at(3)]);
        assert_eq!(name.loss_count(), 1);
        assert!(name.has_address(address_tag(&at(1))) && !name.has_address(address_tag(&at(2))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_row_of_failed_look_ups_is_one_warning() {
        let name = DnsName::new("a.test", 80);
        let miss = || name.resolved.lock().mark_failing();
        assert_eq!((miss(), miss()), (true, false));
        name.record_addresses(vec![at(1)]);
        assert!(!miss(), "a name that comes and goes is one warning a minute");
        tokio::time::sleep(WARNING_INTERVAL).await;
        assert_eq!((miss(), miss()), (true, false), "it fails for good");
        tokio::time::sleep(WARNING_INTERVAL).await;
        assert!(!miss(), "it is known");
        name.record_addresses(vec![at(1)]);
        assert!(miss());
    }

    #[test]
    fn an_empty_result_changes_nothing() {
        let name = DnsName::new("a.test", 80);
        name.record_addresses(vec![at(1)]);
        name.record_addresses(Vec::new());
        assert_eq!((name.known_addresses(), name.loss_count()), (vec![at(1)], 0));
    }

    #[tokio::test]
    async fn a_failed_look_up_keeps_the_old_addresses() {
        let name = DnsName::new("does-not-exist.invalid", 80);
        name.record_addresses(vec![at(1)]);
        // Always older than this: a look-up starts, and fails.
        assert_eq!(name.addresses(Duration::ZERO).await.unwrap(), [at(1)]);
        while name.resolved.lock().is_looking_up {
            tokio::task::yield_now().await;
        }
        assert_eq!(name.known_addresses(), [at(1)]);
        // Requests do not each query a resolver that fails at once.
        let refresh = Duration::from_secs(30);
        name.resolved.lock().resolved_at = None;
        assert_eq!(name.addresses(refresh).await.unwrap(), [at(1)]);
        assert!(!name.resolved.lock().is_looking_up);
        name.resolved.lock().tried_at = None;
        assert_eq!(name.addresses(refresh).await.unwrap(), [at(1)]);
        assert!(name.resolved.lock().is_looking_up);
    }

    #[tokio::test(start_paused = true)]
    async fn refreshes_start_on_time_after_a_slow_look_up() {
        let name = DnsName::new("does-not-exist.invalid", 80);
        name.record_addresses(vec![at(1)]);
        let refresh = Duration::from_secs(10);
        let refreshing = tokio::spawn(name.clone().refresh_forever(refresh));
        tokio::time::sleep(Duration::from_secs(5)).await;
        // The last look-up was slow.
        name.record_addresses(vec![at(1)]);
        tokio::time::sleep(Duration::from_secs(6)).await;
        let tried = name.resolved.lock().tried_at;
        assert!(tried.is_some_and(|tried| tried.elapsed() < Duration::from_secs(2)));
        refreshing.abort();
    }
}
