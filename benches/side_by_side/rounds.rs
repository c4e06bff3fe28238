//! Runs in turns, and whether anybody disturbed them.

use crate::facts::{self, Core, Cpu};

/// Who runs when: each round begins elsewhere and every second one goes backwards, so that no one always runs first or
/// behind the same neighbour.
pub fn order(round: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).map(|step| (round + step) % count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Watches whether anybody else computes on the cores meanwhile: a stall of a few milliseconds is a whole p99.
pub struct Quiet {
    start: u64,
    own: Cpu,
    cores: [(usize, Core); 2],
}

impl Quiet {
    pub fn begin(cores: [usize; 2]) -> Self {
        let cores = cores.map(|core| (core, Core::of(core)));
        Self { start: facts::now(), own: Cpu::of(std::process::id()), cores }
    }

    /// The part of one core that went to other programs, or to the host.
    pub fn others(&self) -> f64 {
        let own =
            Cpu::of(std::process::id()).since(self.own).total as f64 / (facts::now() - self.start) as f64;
        let shares = self.cores.into_iter().map(|(core, then)| Core::of(core).shares(then));
        shares.map(|(busy, stolen)| busy + stolen).sum::<f64>() - own
    }
}
