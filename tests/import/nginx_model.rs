//! nginx's arithmetic of limits, written out: what it says of each arrival, and how near that is to another answer.

use std::collections::HashMap;

/// Numbers of a `limit_req` zone and its use.
#[derive(Debug, Clone, Copy)]
pub struct RateNumbers {
    /// Thousandths of a request per second.
    pub rate: u64,
    pub burst: u64,
}

#[derive(Debug, Clone, Copy)]
pub enum ZoneNumbers {
    Rate(RateNumbers),
    Connections(u64),
}

/// One limit of a request's chain: the zone, the key, the numbers.
#[derive(Debug, Clone)]
pub struct Link {
    pub zone: usize,
    pub key: String,
    pub numbers: ZoneNumbers,
    pub dry_run: bool,
}

/// What nginx does, and the least distance to another decision in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    pub passes: bool,
    pub margin_ms: u64,
}

#[derive(Default)]
pub struct NginxModel {
    /// Excess in thousandths of a request, and the time of the last charge.
    rates: HashMap<(usize, String), (u64, u64)>,
    /// The ends of the requests in flight.
    slots: HashMap<(usize, String), Vec<u64>>,
}

impl NginxModel {
    /// The verdict on an arrival, without charging it.
    pub fn judge(&self, chain: &[Link], now: u64) -> Verdict {
        let mut verdict = Verdict { passes: true, margin_ms: u64::MAX };
        for link in chain {
            let key = (link.zone, link.key.clone());
            let (passes, margin) = match link.numbers {
                ZoneNumbers::Rate(numbers) => {
                    let most = numbers.burst as i64 * 1000;
                    match self.rates.get(&key) {
                        None => (true, u64::MAX),
                        Some(&state) => {
                            let excess = raw_excess(numbers.rate, state, now);
                            // A rate of one thousandth per second leaks one thousandth in a second.
                            (excess <= most, excess.abs_diff(most) * 1000 / numbers.rate)
                        }
                    }
                }
                ZoneNumbers::Connections(most) => {
                    let ends = self.slots.get(&key).map_or(&[][..], Vec::as_slice);
                    let open = ends.iter().filter(|end| **end > now).count() as u64;
                    let near = ends.iter().map(|end| end.abs_diff(now)).min().unwrap_or(u64::MAX);
                    // Ends come later than planned, never earlier.
                    (open < most, near / 4)
                }
            };
            verdict.passes &= passes || link.dry_run;
            verdict.margin_ms = verdict.margin_ms.min(margin);
        }
        verdict
    }

    /// Charges an admitted arrival that stays at the upstream until `end`.
    pub fn charge(&mut self, chain: &[Link], now: u64, end: u64) {
        let fits = |link: &Link| match link.numbers {
            ZoneNumbers::Rate(numbers) => {
                let state = self.rates.get(&(link.zone, link.key.clone()));
                state.map_or(0, |&state| excess_at(numbers.rate, state, now)) <= numbers.burst * 1000
            }
            ZoneNumbers::Connections(_) => true,
        };
        // A dry run that would reject charges nothing.
        if !chain.iter().all(fits) {
            return;
        }
        for link in chain {
            let key = (link.zone, link.key.clone());
            match link.numbers {
                ZoneNumbers::Rate(numbers) => {
                    let state = self.rates.entry(key).or_insert((0, u64::MAX));
                    let excess = if state.1 == u64::MAX { 0 } else { excess_at(numbers.rate, *state, now) };
                    *state = (excess, now);
                }
                ZoneNumbers::Connections(_) => self.slots.entry(key).or_default().push(end),
            }
        }
    }
}

/// `excess - rate * ms / 1000 + 1000`.
fn raw_excess(rate: u64, (excess, last): (u64, u64), now: u64) -> i64 {
    (excess + 1000) as i64 - (rate * now.saturating_sub(last) / 1000) as i64
}

/// The same, at least 0.
fn excess_at(rate: u64, state: (u64, u64), now: u64) -> u64 {
    raw_excess(rate, state, now).max(0) as u64
}
