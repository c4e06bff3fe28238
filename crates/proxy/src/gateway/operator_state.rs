//! The bans, grants and changes of limits by operators in a snapshot, or on the way to the next process.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Gateway;
use super::grants::{SavedGrant, restore_grants};
use super::limit_changes::{adopt_change, list_changes};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_http::request::key::KeyHasher;
use sluicegate_limit::snapshot::SnapshotReader;
use sluicegate_limit::table::persistent::{PersistentTable, SnapshotTable};
use sluicegate_model::LimitChange;

/// The bans, grants and changes of limits by operators, and the names of banned clients. Each part is read for itself,
/// so that one that another version wrote differently is left out alone.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedOperatorState {
    bans: Value,
    grants: Value,
    limits: Value,
    names: Value,
    /// Tells whether the keys of grants and names are hashed with the same secret.
    secret_check: u64,
}

/// The first table of a snapshot. No limit has a space in its name.
const TABLE_NAME: &str = "operator state";
/// Has to be raised when the content changes its meaning.
const TABLE_VERSION: u64 = 1;

// === impl SavedOperatorState ===

impl SavedOperatorState {
    /// The state in a snapshot. One that cannot be read is logged and ignored.
    pub fn from_snapshot(snapshot: &mut SnapshotReader) -> Option<SavedOperatorState> {
        let block = snapshot.peek_first_table(TABLE_NAME, TABLE_VERSION)?;
        serde_json::from_slice(&block).inspect_err(|error| log_unreadable("state", error)).ok()
    }
}

fn log_unreadable(part: &str, error: &serde_json::Error) {
    tracing::warn!(part, %error, "changes of operators cannot be read, and are lost");
}

/// Writes a part; one that cannot be written is left out.
fn write_part(part: impl Serialize) -> Value {
    serde_json::to_value(part).unwrap_or_default()
}

fn read_part<T: DeserializeOwned + Default>(part: Value, name: &str) -> T {
    if part.is_null() {
        return T::default();
    }
    serde_json::from_value(part).inspect_err(|error| log_unreadable(name, error)).unwrap_or_default()
}

// === impl Gateway ===

impl Gateway {
    /// The bans and grants of operators, for another process.
    pub fn save_operator_state(&self, now: Now) -> SavedOperatorState {
        SavedOperatorState {
            bans: write_part(self.operator_bans.save_bans(now)),
            grants: write_part(self.save_grants(now)),
            limits: write_part(list_changes(&self.config).collect::<Vec<_>>()),
            names: write_part(self.bans.as_ref().map(|bans| bans.save_names(now)).unwrap_or_default()),
            secret_check: self.keys.secret_check(),
        }
    }

    /// Adopts the bans and grants of another process, before the gateway is used and before
    /// [`Gateway::restore_counters`]. `secret`: that of the counters of the other process.
    pub fn with_operator_state(
        self,
        saved: SavedOperatorState,
        secret: Option<[u8; 16]>,
        now: Now,
    ) -> Gateway {
        self.operator_bans.restore_bans(read_part(saved.bans, "bans"), now);
        let is_known =
            secret.is_some_and(|secret| KeyHasher::from_secret(secret).secret_check() == saved.secret_check);
        let grants: Vec<SavedGrant> = read_part(saved.grants, "grants");
        let changes: Vec<LimitChange> = read_part(saved.limits, "changes of limits");
        let mut config = self.config.clone();
        for change in changes.iter().filter(|change| change.left_ns() > 0) {
            if let Some((_, why)) = adopt_change(change, &mut config) {
                tracing::warn!("{why}");
            }
        }
        if is_known {
            if let Some(bans) = &self.bans {
                bans.restore_names(read_part(saved.names, "names"), now);
            }
            restore_grants(&mut config, grants, now);
        } else if !grants.is_empty() {
            tracing::warn!(grants = grants.len(), "grants are lost with the counters of their keys");
        }
        if config.limits.iter().all(|limit| limit.grants.is_empty() && limit.file.is_none()) {
            return self;
        }
        match Gateway::build(&config, Some(&self)) {
            Ok(gateway) => {
                gateway.apply_numbers(&Now::read_clock);
                gateway
            }
            Err(error) => {
                tracing::warn!(%error, "grants and changes of limits are lost");
                self
            }
        }
    }

    /// The table of a snapshot with the bans and grants of operators.
    pub(super) fn operator_table(&self) -> SnapshotTable<'_> {
        SnapshotTable { name: TABLE_NAME, fingerprint: TABLE_VERSION, table: self }
    }
}

impl PersistentTable for Gateway {
    fn block_count(&self) -> usize {
        1
    }

    fn encode_block(&self, _: usize, now: Now, out: &mut Vec<u8>) {
        let start = out.len();
        if serde_json::to_writer(&mut *out, &self.save_operator_state(now)).is_err() {
            out.truncate(start);
        }
    }

    /// Does nothing: [`SavedOperatorState::from_snapshot`] read it, because counters can be restored only after it.
    fn restore_block(&self, _: &[u8], _: ClockShift, _: Now) -> Option<usize> {
        Some(0)
    }
}
