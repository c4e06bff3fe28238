//! Bandwidth of bodies: bytes of one key, paced over all its connections and all workers.
//!
//! Each key has a bucket of `burst` bytes that is refilled evenly, kept as the moment when it will be full again
//! (virtual scheduling: ITU-T I.371, the generic cell rate algorithm). A body books one piece at a time and waits for
//! its moment, which is known at once; pieces leave in the order in which they were booked, so that the connections
//! of a key take turns, whoever has more to send.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Sleep;

use crate::base::clock::Now;
use crate::config;
use crate::limit::table::{CounterKey, Table, TableEntry};

/// A piece is what leaves within this time, so that turns are short …
const PIECE: Duration = Duration::from_millis(10);
/// … but not so small that its costs show, nor so large that it is more than a turn.
const PIECE_MIN: u64 = 1 << 10;
const PIECE_MAX: u64 = 64 << 10;

/// The bodies of one location.
pub struct Bandwidth {
    /// So many bytes …
    bytes: u64,
    /// … in so many nanoseconds.
    span_ns: u64,
    /// How long an empty bucket takes to fill.
    burst_ns: u64,
    piece: u64,
    table: Table<BandwidthEntry>,
}

/// One key's: the moment when it will be full again, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct BandwidthEntry(u64);

/// A piece that may leave at `due`.
#[derive(Debug, Clone, Copy)]
struct Reservation {
    bytes: u64,
    due: Now,
    /// Taken from a shared overflow bucket.
    shared: bool,
}

/// One body's part in the bandwidth of its key. Dropped, it gives back what it has booked and not sent.
pub struct BandwidthShare {
    bandwidth: Arc<Bandwidth>,
    key: CounterKey,
    reservation: Option<Reservation>,
    /// Made at the first wait.
    sleep: Option<Pin<Box<Sleep>>>,
    /// What came and waits for its turn.
    pub pending_bytes: Bytes,
}

// === impl Bandwidth ===

impl Bandwidth {
    /// `keys_max` bounds the keys that have a bucket of their own.
    pub fn new(config: &config::BandwidthConfig, keys_max: usize) -> Bandwidth {
        let (bytes, span_ns) = config.rate.in_lowest_terms();
        let table = Table::with_params((), keys_max, Arc::from("bandwidth"));
        let mut bandwidth = Bandwidth { bytes, span_ns, burst_ns: 0, piece: 0, table };
        let piece = config.bytes_within(PIECE).clamp(PIECE_MIN, PIECE_MAX);
        bandwidth.piece = piece.min(config.burst).max(1);
        // That each piece is rounded up must not make the last one of a burst wait.
        let rounding = config.burst.div_ceil(bandwidth.piece);
        bandwidth.burst_ns = bandwidth.transfer_ns(config.burst).saturating_add(rounding);
        bandwidth
    }

    /// Rounded up: at most a nanosecond for each piece.
    fn transfer_ns(&self, bytes: u64) -> u64 {
        let ns = (u128::from(bytes) * u128::from(self.span_ns)).div_ceil(self.bytes.into());
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    fn reserve_bytes(&self, key: &CounterKey, wanted: u64, now: Now) -> Reservation {
        let bytes = wanted.min(self.piece);
        let takes_ns = self.transfer_ns(bytes);
        self.table.update_entry(key, now, |bucket, (), (), shared| {
            bucket.0 = bucket.0.max(now.0).saturating_add(takes_ns);
            Reservation { bytes, due: Now(bucket.0.saturating_sub(self.burst_ns)), shared }
        })
    }

    /// The piece is not sent: those who book next go sooner.
    fn cancel_reservation(&self, key: &CounterKey, booking: Reservation) {
        let takes_ns = self.transfer_ns(booking.bytes);
        self.table.update_existing(key, booking.shared, |bucket, (), ()| {
            bucket.0 = bucket.0.saturating_sub(takes_ns)
        });
    }
}

// === impl Bucket ===

impl TableEntry for BandwidthEntry {
    type Extra = ();

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.0 <= now.0
    }

    fn inherit_overflow(&self) -> Option<BandwidthEntry> {
        Some(*self)
    }
}

// === impl Share ===

impl BandwidthShare {
    pub fn new(bandwidth: Arc<Bandwidth>, key: CounterKey) -> BandwidthShare {
        BandwidthShare { bandwidth, key, reservation: None, sleep: None, pending_bytes: Bytes::new() }
    }

    /// How many of `wanted` bytes (at least 1, and never fewer than at the call before) may be sent now: at least 1.
    pub fn poll_allowance(&mut self, wanted: usize, cx: &mut Context<'_>) -> Poll<usize> {
        let booking = match self.reservation {
            Some(booking) => booking,
            None => {
                let now = Now::read_clock();
                let booking = self.bandwidth.reserve_bytes(&self.key, wanted as u64, now);
                if booking.due <= now {
                    return Poll::Ready(booking.bytes as usize);
                }
                self.reservation = Some(booking);
                let due = booking.due.to_instant();
                match &mut self.sleep {
                    Some(sleep) => sleep.as_mut().reset(due),
                    None => self.sleep = Some(Box::pin(tokio::time::sleep_until(due))),
                }
                booking
            }
        };
        if let Some(sleep) = &mut self.sleep {
            ready!(sleep.as_mut().poll(cx));
        }
        self.reservation = None;
        Poll::Ready(booking.bytes as usize)
    }
}

impl Drop for BandwidthShare {
    fn drop(&mut self) {
        if let Some(booking) = self.reservation.take() {
            self.bandwidth.cancel_reservation(&self.key, booking);
        }
    }
}

#[cfg(test)]
mod tests;
