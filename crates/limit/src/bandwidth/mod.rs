//! Bandwidth of bodies: the bytes of one key, paced over all its connections and all workers.
//!
//! Each key has a bucket of `burst` bytes that refills evenly, kept as the moment at which it will be full again
//! (virtual scheduling: ITU-T I.371, the generic cell rate algorithm). A body reserves one piece at a time and waits
//! until it is due, which is known at once. Pieces leave in the order of their reservations, so the connections of a
//! key take turns, however much each has to send.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Sleep;

use crate::table::{CounterKey, Table, TableEntry};
use sluicegate_base::clock::Now;
use sluicegate_model as model;

/// A piece holds the bytes of this time, so that turns are short …
const PIECE: Duration = Duration::from_millis(10);
/// … within these bounds in bytes: large enough that its overhead is small, and small enough for a short turn.
const PIECE_MIN: u64 = 1 << 10;
const PIECE_MAX: u64 = 64 << 10;

/// The bandwidth limit of one location.
pub struct Bandwidth {
    /// The rate: `bytes` …
    bytes: u64,
    /// … per `span_ns`.
    span_ns: u64,
    /// The time an empty bucket takes to fill.
    burst_ns: u64,
    piece: u64,
    table: Table<BandwidthEntry>,
}

/// The bucket of one key: the moment at which it will be full again, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct BandwidthEntry(u64);

/// A piece that may leave at `due`.
#[derive(Debug, Clone, Copy)]
struct Reservation {
    bytes: u64,
    due: Now,
    /// Taken from an overflow bucket.
    overflow: bool,
}

/// One body's share in the bandwidth of its key. Dropping it cancels a reservation that was not used.
pub struct BandwidthShare {
    bandwidth: Arc<Bandwidth>,
    key: CounterKey,
    reservation: Option<Reservation>,
    /// Created at the first wait.
    sleep: Option<Pin<Box<Sleep>>>,
    /// Received bytes that wait for their turn.
    pub pending_bytes: Bytes,
}

// === impl Bandwidth ===

impl Bandwidth {
    /// `keys_max` bounds the keys with their own bucket.
    pub fn new(config: &model::BandwidthConfig, keys_max: usize) -> Bandwidth {
        let (bytes, span_ns) = config.rate.in_lowest_terms();
        let table = Table::with_params((), keys_max, Arc::from("bandwidth"));
        let mut bandwidth = Bandwidth { bytes, span_ns, burst_ns: 0, piece: 0, table };
        let piece = config.rate.units_within(PIECE).clamp(PIECE_MIN, PIECE_MAX);
        bandwidth.piece = piece.min(config.burst).max(1);
        // Rounding up each piece must not make the last one of a burst wait.
        let rounding = config.burst.div_ceil(bandwidth.piece);
        bandwidth.burst_ns = bandwidth.transfer_ns(config.burst).saturating_add(rounding);
        bandwidth
    }

    /// The time `bytes` take, rounded up by less than a nanosecond.
    fn transfer_ns(&self, bytes: u64) -> u64 {
        let ns = (u128::from(bytes) * u128::from(self.span_ns)).div_ceil(self.bytes.into());
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    fn reserve_bytes(&self, key: &CounterKey, wanted: u64, now: Now) -> Reservation {
        let bytes = wanted.min(self.piece);
        let takes_ns = self.transfer_ns(bytes);
        self.table.update_entry(key, now, |bucket, (), (), overflow| {
            bucket.0 = bucket.0.max(now.0).saturating_add(takes_ns);
            Reservation { bytes, due: Now(bucket.0.saturating_sub(self.burst_ns)), overflow }
        })
    }
}

// === impl BandwidthEntry ===

impl TableEntry for BandwidthEntry {
    type Extra = ();

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.0 <= now.0
    }
}

// === impl BandwidthShare ===

impl BandwidthShare {
    /// The share of one body in the bandwidth of `key`, without a reservation.
    pub fn new(bandwidth: Arc<Bandwidth>, key: CounterKey) -> BandwidthShare {
        BandwidthShare { bandwidth, key, reservation: None, sleep: None, pending_bytes: Bytes::new() }
    }

    /// The number of bytes that may be sent now, at least 1, of `wanted` (at least 1, and never fewer than at the
    /// previous call).
    pub fn poll_allowance(&mut self, wanted: usize, cx: &mut Context<'_>) -> Poll<usize> {
        let reservation = match self.reservation {
            Some(reservation) => reservation,
            None => {
                let now = Now::read_clock();
                let reservation = self.bandwidth.reserve_bytes(&self.key, wanted as u64, now);
                if reservation.due <= now {
                    return Poll::Ready(reservation.bytes as usize);
                }
                self.reservation = Some(reservation);
                let due = reservation.due.to_instant();
                match &mut self.sleep {
                    Some(sleep) => sleep.as_mut().reset(due),
                    None => self.sleep = Some(Box::pin(tokio::time::sleep_until(due))),
                }
                reservation
            }
        };
        if let Some(sleep) = &mut self.sleep {
            ready!(sleep.as_mut().poll(cx));
        }
        self.reservation = None;
        Poll::Ready(reservation.bytes as usize)
    }
}

impl Drop for BandwidthShare {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            // Later ones are due sooner.
            let takes_ns = self.bandwidth.transfer_ns(reservation.bytes);
            self.bandwidth.table.update_existing(&self.key, reservation.overflow, |bucket, (), ()| {
                bucket.0 = bucket.0.saturating_sub(takes_ns)
            });
        }
    }
}

#[cfg(test)]
mod tests;
