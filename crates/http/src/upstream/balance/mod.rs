//! The balancer chooses the server that gets the next request of an upstream.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::fnv1a;
use super::server::{Availability, Server};
use sluicegate_model::{BalancePolicy, ServerId};

/// The reason why an upstream has no server for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoServer {
    /// Every untried server is at `max_connections`, or the queue is full.
    Full,
    /// Every server is down, draining or tried already.
    Down,
}

pub(super) struct Balancer {
    policy: BalancePolicy,
    /// In place of a hash, requests have 1 + the position of the server that their cookie names, or 0.
    is_sticky: bool,
    counter: AtomicU64,
    seed: u64,
    /// The credit of each server; only `round_robin` uses it.
    credits: Mutex<Box<[i64]>>,
}

/// The golden ratio in 64 bits: its multiples are spread most evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Balancer {
    pub(super) fn new(policy: BalancePolicy, is_sticky: bool, servers: &[Arc<Server>]) -> Balancer {
        Balancer {
            policy,
            is_sticky,
            counter: AtomicU64::new(0),
            seed: RandomState::new().hash_one(0),
            credits: Mutex::new(vec![0; servers.len()].into()),
        }
    }

    /// `tried` contains positions in the upstream.
    pub(super) fn choose_server<'a>(
        &self,
        servers: &'a [Arc<Server>],
        hash: u64,
        tried: &[ServerId],
    ) -> Result<&'a Arc<Server>, NoServer> {
        if let ([only], []) = (servers, tried) {
            return match only.check_availability() {
                Availability::Available => Ok(only),
                Availability::Ejected if only.has_capacity() => Ok(only),
                Availability::Ejected | Availability::Full => Err(NoServer::Full),
                Availability::Unavailable => Err(NoServer::Down),
            };
        }
        for backup in [false, true] {
            let available = |s: &Server| {
                s.backup == backup
                    && s.check_availability() == Availability::Available
                    && !tried.contains(&s.position)
            };
            if let Some(server) = self.pick_among(servers, available, hash) {
                return Ok(server);
            }
        }
        self.choose_last_resort(servers, hash, tried)
    }

    /// The choice when no untried server is available. An ejected server is only suspected, so it is better than none.
    #[cold]
    fn choose_last_resort<'a>(
        &self,
        servers: &'a [Arc<Server>],
        hash: u64,
        tried: &[ServerId],
    ) -> Result<&'a Arc<Server>, NoServer> {
        let has_untried = |availability| {
            servers.iter().any(|s| s.check_availability() == availability && !tried.contains(&s.position))
        };
        if has_untried(Availability::Full) {
            return Err(NoServer::Full);
        }
        if !servers.iter().any(|s| s.is_up()) {
            let ejected =
                |s: &Server| s.check_availability() == Availability::Ejected && !tried.contains(&s.position);
            if let Some(server) = self.pick_among(servers, |s| ejected(s) && s.has_capacity(), hash) {
                return Ok(server);
            }
            if servers.iter().any(|s| ejected(s)) {
                return Err(NoServer::Full);
            }
        }
        Err(NoServer::Down)
    }

    fn pick_among<'a>(
        &self,
        servers: &'a [Arc<Server>],
        usable: impl Fn(&Server) -> bool,
        hash: u64,
    ) -> Option<&'a Arc<Server>> {
        if self.is_sticky
            && let Some(named) = (hash as usize).checked_sub(1).and_then(|position| servers.get(position))
            && usable(named)
        {
            return Some(named);
        }
        match self.policy {
            BalancePolicy::HashIp | BalancePolicy::HashUri | BalancePolicy::HashHeader(_) => {
                servers.iter().filter(|s| usable(s)).max_by_key(|s| rendezvous_score(hash, s))
            }
            BalancePolicy::RoundRobin => self.pick_round_robin(servers, usable),
            BalancePolicy::Random => pick_by_weight(servers, usable, self.next_random()),
            BalancePolicy::LeastConn => {
                let all = servers.iter().filter(|s| usable(s));
                let least = all.reduce(|best, other| if is_busier(best, other) { other } else { best })?;
                // Ties are shared by weight, or an idle upstream would use its first server alone.
                pick_by_weight(servers, |s| usable(s) && !is_busier(s, least), self.next_even())
                    .or(Some(least))
            }
            BalancePolicy::P2c => {
                let draw = self.next_random();
                let one = pick_by_weight(servers, &usable, draw)?;
                let others = |s: &Server| s.position != one.position && usable(s);
                match pick_by_weight(servers, others, mix_bits(draw)) {
                    Some(other) if is_busier(one, other) => Some(other),
                    _ => Some(one),
                }
            }
        }
    }

    /// Smooth weighted round robin, as in nginx: every request adds each server's weight to its credit; the server with
    /// the most credit gets the request and pays the total. So a heavy server's requests alternate with the others'.
    fn pick_round_robin<'a>(
        &self,
        servers: &'a [Arc<Server>],
        usable: impl Fn(&Server) -> bool,
    ) -> Option<&'a Arc<Server>> {
        let mut credits = self.credits.lock();
        let mut total = 0;
        let mut best: Option<&Arc<Server>> = None;
        for server in servers.iter().filter(|s| usable(s)) {
            // It fits: a weight has 16 bits.
            let weight = server.effective_weight() as i64;
            total += weight;
            credits[server.position.0] += weight;
            if best.is_none_or(|best| credits[server.position.0] > credits[best.position.0]) {
                best = Some(server);
            }
        }
        let best = best?;
        credits[best.position.0] -= total;
        Some(best)
    }

    fn next_random(&self) -> u64 {
        mix_bits(self.seed ^ self.counter.fetch_add(1, Ordering::Relaxed))
    }

    /// Successive draws are spread as evenly as possible.
    fn next_even(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed).wrapping_mul(GOLDEN)
    }
}

/// The usable server that `draw` selects in proportion to the weights.
fn pick_by_weight(
    servers: &[Arc<Server>],
    usable: impl Fn(&Server) -> bool,
    draw: u64,
) -> Option<&Arc<Server>> {
    let total: u64 = servers.iter().filter(|s| usable(s)).map(|s| s.effective_weight()).sum();
    let mut point = ((u128::from(draw) * u128::from(total)) >> 64) as u64;
    let mut last = None;
    for server in servers.iter().filter(|s| usable(s)) {
        last = Some(server);
        match point.checked_sub(server.effective_weight()) {
            Some(rest) => point = rest,
            None => break,
        }
    }
    last
}

/// True if `one` has more requests in flight per weight than `other`.
fn is_busier(one: &Server, other: &Server) -> bool {
    u64::from(one.in_flight()) * other.effective_weight()
        > u64::from(other.in_flight()) * one.effective_weight()
}

/// Weighted rendezvous hashing (Thaler and Ravishankar 1998; weights by the logarithm method): when a server goes away,
/// only its own requests move.
fn rendezvous_score(hash: u64, server: &Server) -> u64 {
    let mixed = mix_bits(hash ^ fnv1a(server.name.as_bytes()));
    let unit = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let score = server.effective_weight() as f64 / -unit.ln();
    // The bits of positive floats order as the floats do.
    score.to_bits()
}

/// The last steps of MurmurHash3 (Appleby): every bit of the input reaches every bit of the output.
fn mix_bits(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

#[cfg(test)]
mod tests;
