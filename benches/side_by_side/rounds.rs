//! The order of interleaved runs, and the detection of disturbances.

use crate::facts::{self, Core, Cpu};

/// The order of a round: each round starts at another run and every second one is reversed, so that no run is always
/// first or always behind the same neighbour.
pub fn order(round: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).map(|step| (round + step) % count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Detects other programs on the cores during a run: a stall of a few milliseconds makes up a whole p99.
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

    /// The share of one core used by other programs or the host.
    pub fn others(&self) -> f64 {
        let own =
            Cpu::of(std::process::id()).since(self.own).total as f64 / (facts::now() - self.start) as f64;
        let shares = self.cores.into_iter().map(|(core, then)| Core::of(core).shares(then));
        shares.map(|(busy, stolen)| busy + stolen).sum::<f64>() - own
    }
}
