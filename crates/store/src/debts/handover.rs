//! The debts of one process in the form in which its successor takes them over.

use serde::{Deserialize, Serialize};

use sluicegate_limit::Units;
use sluicegate_limit::table::CounterKey;

/// All debts of a process.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DebtsHandover {
    pub node: u64,
    pub sequence: u64,
    pub keys: Vec<KeyDebtsHandover>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeyDebtsHandover {
    pub key: [u8; 16],
    pub sequence: u64,
    pub rates: Vec<DebtHandover>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DebtHandover {
    pub limit: String,
    /// [`crate::RateRule::id`].
    pub rule: u32,
    /// The halves of the local key's id, and its prefix.
    pub id: [u64; 2],
    pub prefix: u64,
    pub variant: usize,
    pub owed: u64,
    pub sent: u64,
}

// === impl DebtHandover ===

impl DebtHandover {
    pub(crate) fn to_units(&self) -> Units {
        let id = u128::from(self.id[0]) << 64 | u128::from(self.id[1]);
        let key = CounterKey { id, prefix: self.prefix };
        Units { key, cost: 1, variant: self.variant, fair_hash: 0, unenforced: false }
    }

    /// Splits the id of a local key into its high and low half.
    pub(crate) fn split_id(id: u128) -> [u64; 2] {
        [(id >> 64) as u64, id as u64]
    }
}
