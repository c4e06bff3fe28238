//! Which server of an upstream gets the next request.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderName;

use super::server::Server;
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
    random: RandomState,
    /// Weights of all primaries, or of all backups.
    total_weight: [u64; 2],
}

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
        let weight_of =
            |backup| servers.iter().filter(|s| s.backup == backup).map(|s| u64::from(s.weight)).sum();
        Balancer {
            kind,
            spread,
            turn: AtomicU64::new(0),
            random: RandomState::new(),
            total_weight: [weight_of(false), weight_of(true)],
        }
    }

    pub(super) fn spread(&self) -> &Spread {
        &self.spread
    }

    pub(super) fn choose<'a>(&self, servers: &'a [Arc<Server>], hash: u64, tried: &[usize]) -> Choice<'a> {
        if let ([only], []) = (servers, tried) {
            return if only.has_room() { Choice::Server(only) } else { Choice::Full };
        }
        let untried = |s: &&Arc<Server>| !tried.contains(&s.index);
        let mut full = false;
        for backup in [false, true] {
            full |= servers.iter().filter(untried).any(|s| s.backup == backup && !s.has_room());
            let usable = |s: &Arc<Server>| s.backup == backup && !tried.contains(&s.index) && s.has_room();
            if let Some(server) = self.among(servers, usable, backup, hash) {
                return Choice::Server(server);
            }
        }
        if full { Choice::Full } else { Choice::Exhausted }
    }

    fn among<'a>(
        &self,
        servers: &'a [Arc<Server>],
        usable: impl Fn(&Arc<Server>) -> bool,
        backup: bool,
        hash: u64,
    ) -> Option<&'a Arc<Server>> {
        match self.kind {
            Kind::LeastConn => {
                // Of equals another one each time, or an idle upstream would use its first server alone.
                let start = self.turn.fetch_add(1, Ordering::Relaxed) as usize % servers.len().max(1);
                least(servers[start..].iter().chain(&servers[..start]).filter(|s| usable(s)))
            }
            Kind::Hash => servers.iter().filter(|s| usable(s)).max_by_key(|s| rendezvous(hash, s)),
            Kind::RoundRobin => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                at_weight(servers, &usable, backup, turn % self.total_weight[usize::from(backup)].max(1))
            }
            Kind::Random => self.drawn(servers, &usable, backup, self.draw()),
            Kind::P2c => {
                let draw = self.draw();
                let one = self.drawn(servers, &usable, backup, draw)?;
                let other = self.drawn(servers, &usable, backup, draw.rotate_left(32))?;
                least([one, other].into_iter())
            }
        }
    }

    fn drawn<'a>(
        &self,
        servers: &'a [Arc<Server>],
        usable: &impl Fn(&Arc<Server>) -> bool,
        backup: bool,
        draw: u64,
    ) -> Option<&'a Arc<Server>> {
        at_weight(servers, usable, backup, draw % self.total_weight[usize::from(backup)].max(1))
    }

    fn draw(&self) -> u64 {
        self.random.hash_one(self.turn.fetch_add(1, Ordering::Relaxed))
    }
}

/// The server whose share of the weights `point` falls into, or the next usable one after it.
fn at_weight<'a>(
    servers: &'a [Arc<Server>],
    usable: &impl Fn(&Arc<Server>) -> bool,
    backup: bool,
    mut point: u64,
) -> Option<&'a Arc<Server>> {
    let mut start = 0;
    for (place, server) in servers.iter().enumerate().filter(|(_, s)| s.backup == backup) {
        start = place;
        match point.checked_sub(u64::from(server.weight)) {
            Some(rest) => point = rest,
            None => break,
        }
    }
    servers[start..].iter().chain(&servers[..start]).find(|s| usable(s))
}

/// The server with the fewest requests in flight for its weight; the first of equals.
fn least<'a>(servers: impl Iterator<Item = &'a Arc<Server>>) -> Option<&'a Arc<Server>> {
    servers.reduce(|best, other| {
        let ahead = u64::from(other.in_flight()) * u64::from(best.weight);
        let behind = u64::from(best.in_flight()) * u64::from(other.weight);
        if ahead < behind { other } else { best }
    })
}

/// Weighted rendezvous hashing (Thaler and Ravishankar 1998; weights by the logarithm method): when a server
/// goes, only its own requests move.
fn rendezvous(hash: u64, server: &Server) -> u64 {
    let mut mixed = hash ^ fnv1a(server.name.as_bytes());
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^= mixed >> 33;
    let unit = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let score = f64::from(server.weight) / -unit.ln();
    // Positive floats order as their bits do.
    score.to_bits()
}

/// FNV-1a (Fowler, Noll, Vo): the same on every gateway, so that all of them send a value to the same server.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
