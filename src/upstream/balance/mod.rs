//! Which server of an upstream gets the next request.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderName;
use parking_lot::Mutex;

use super::server::{Offer, Server};
use crate::config;

/// What a request is spread by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// Nothing of the request matters.
    Any,
    Ip,
    Uri,
    Header(HeaderName),
}

/// The balancer's answer.
pub enum Choice<'a> {
    Server(&'a Arc<Server>),
    /// Every server left is at `max_connections`.
    Full,
    /// Every server was tried.
    Exhausted,
    /// Every server is down or draining.
    Down,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    P2c,
    RoundRobin,
    LeastConn,
    Random,
    Hash,
}

pub(super) struct Balancer {
    kind: Kind,
    spread: Spread,
    turn: AtomicU64,
    seed: u64,
    /// What each server is owed, for `round_robin` alone.
    owed: Mutex<Box<[i64]>>,
}

/// The golden ratio in 64 bits: its multiples lie as evenly as any.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Balancer {
    pub(super) fn new(config: &config::Balance, servers: &[Arc<Server>]) -> Balancer {
        use config::Balance;
        let (kind, spread) = match config {
            Balance::P2c => (Kind::P2c, Spread::Any),
            Balance::RoundRobin => (Kind::RoundRobin, Spread::Any),
            Balance::LeastConn => (Kind::LeastConn, Spread::Any),
            Balance::Random => (Kind::Random, Spread::Any),
            Balance::HashIp => (Kind::Hash, Spread::Ip),
            Balance::HashUri => (Kind::Hash, Spread::Uri),
            Balance::HashHeader(name) => (Kind::Hash, Spread::Header(name.clone())),
        };
        Balancer {
            kind,
            spread,
            turn: AtomicU64::new(0),
            seed: RandomState::new().hash_one(0),
            owed: Mutex::new(vec![0; servers.len()].into()),
        }
    }

    pub(super) fn spread(&self) -> &Spread {
        &self.spread
    }

    /// `tried` holds places in the upstream.
    pub(super) fn choose<'a>(&self, servers: &'a [Arc<Server>], hash: u64, tried: &[usize]) -> Choice<'a> {
        if let ([only], []) = (servers, tried) {
            return match only.offer() {
                Offer::Open | Offer::Ejected => Choice::Server(only),
                Offer::Full => Choice::Full,
                Offer::Closed => Choice::Down,
            };
        }
        for backup in [false, true] {
            let open =
                |s: &Server| s.backup == backup && s.offer() == Offer::Open && !tried.contains(&s.place);
            if let Some(server) = self.among(servers, open, hash) {
                return Choice::Server(server);
            }
        }
        self.last_resort(servers, hash, tried)
    }

    /// No server that was not tried is open. One that is ejected is only suspected: it is asked before nobody is.
    #[cold]
    fn last_resort<'a>(&self, servers: &'a [Arc<Server>], hash: u64, tried: &[usize]) -> Choice<'a> {
        let left = |offer| servers.iter().any(|s| s.offer() == offer && !tried.contains(&s.place));
        if left(Offer::Full) {
            return Choice::Full;
        }
        if !servers.iter().any(|s| s.is_up()) {
            let ejected = |s: &Server| s.offer() == Offer::Ejected && !tried.contains(&s.place);
            if let Some(server) = self.among(servers, ejected, hash) {
                return Choice::Server(server);
            }
        }
        if tried.is_empty() { Choice::Down } else { Choice::Exhausted }
    }

    fn among<'a>(
        &self,
        servers: &'a [Arc<Server>],
        usable: impl Fn(&Server) -> bool,
        hash: u64,
    ) -> Option<&'a Arc<Server>> {
        match self.kind {
            Kind::Hash => servers.iter().filter(|s| usable(s)).max_by_key(|s| rendezvous(hash, s)),
            Kind::RoundRobin => self.smooth(servers, usable),
            Kind::Random => at_weight(servers, usable, self.draw()),
            Kind::LeastConn => {
                let all = servers.iter().filter(|s| usable(s));
                let least = all.reduce(|best, other| if is_busier(best, other) { other } else { best })?;
                // Of equals each gets its share, or an idle upstream would use its first server alone.
                at_weight(servers, |s| usable(s) && !is_busier(s, least), self.even()).or(Some(least))
            }
            Kind::P2c => {
                let draw = self.draw();
                let one = at_weight(servers, &usable, draw)?;
                let others = |s: &Server| s.place != one.place && usable(s);
                match at_weight(servers, others, mix(draw)) {
                    Some(other) if is_busier(one, other) => Some(other),
                    _ => Some(one),
                }
            }
        }
    }

    /// Smooth weighted round robin, as nginx's: each server is owed its share with every request, and the one that is
    /// owed most gets it and pays for all; so a heavy server's requests lie between the others'.
    fn smooth<'a>(
        &self,
        servers: &'a [Arc<Server>],
        usable: impl Fn(&Server) -> bool,
    ) -> Option<&'a Arc<Server>> {
        let mut owed = self.owed.lock();
        let mut total = 0;
        let mut best: Option<&Arc<Server>> = None;
        for server in servers.iter().filter(|s| usable(s)) {
            // Shares fit: a weight has 16 bits.
            let share = server.share() as i64;
            total += share;
            owed[server.place] += share;
            if best.is_none_or(|best| owed[server.place] > owed[best.place]) {
                best = Some(server);
            }
        }
        let best = best?;
        owed[best.place] -= total;
        Some(best)
    }

    fn draw(&self) -> u64 {
        mix(self.seed ^ self.turn.fetch_add(1, Ordering::Relaxed))
    }

    /// Draws that lie as evenly as possible, each beside those before.
    fn even(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::Relaxed).wrapping_mul(GOLDEN)
    }
}

/// The usable server whose share of their weights `draw` falls into.
fn at_weight(servers: &[Arc<Server>], usable: impl Fn(&Server) -> bool, draw: u64) -> Option<&Arc<Server>> {
    let total: u64 = servers.iter().filter(|s| usable(s)).map(|s| s.share()).sum();
    let mut point = ((u128::from(draw) * u128::from(total)) >> 64) as u64;
    let mut last = None;
    for server in servers.iter().filter(|s| usable(s)) {
        last = Some(server);
        match point.checked_sub(server.share()) {
            Some(rest) => point = rest,
            None => break,
        }
    }
    last
}

/// Whether `one` has more requests in flight for its share than `other`.
fn is_busier(one: &Server, other: &Server) -> bool {
    u64::from(one.in_flight()) * other.share() > u64::from(other.in_flight()) * one.share()
}

/// Weighted rendezvous hashing (Thaler and Ravishankar 1998; weights by the logarithm method): when a server
/// goes, only its own requests move.
fn rendezvous(hash: u64, server: &Server) -> u64 {
    let mixed = mix(hash ^ fnv1a(server.name.as_bytes()));
    let unit = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let score = server.share() as f64 / -unit.ln();
    // Positive floats order as their bits do.
    score.to_bits()
}

/// The last steps of MurmurHash3 (Appleby): every bit of the input reaches every bit of the output.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

/// FNV-1a (Fowler, Noll, Vo): the same on every gateway, so that all of them send a value to the same server.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
