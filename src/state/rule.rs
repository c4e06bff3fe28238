//! One rate of a limit, as the script judges it.

use crate::config;

/// The numbers of one rate (of a concurrency limit: of its slots) in the store's units.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Tells the entries of one key apart: a hash of the limit's name, the tier, the rate's place and its shape.
    pub id: u32,
}

// === impl Rule ===

impl Rule {
    /// The rates of all variants in a row, as [`crate::limit::Limit`] counts them.
    pub fn of(limit: &config::Limit) -> Vec<Rule> {
        limit.variants().flat_map(|numbers| (0..numbers.places()).map(|_| Rule { id: 0 })).collect()
    }
}
