//! The table in which one rate of a limit counts: a new one, or that of the same rate before a reload.

use std::sync::Arc;

use crate::limit::Epoch;
use crate::limit::table::{Table, TableEntry, TableParams};

/// What the meter of a rate is made with.
pub(crate) struct TableSpec<'a, M> {
    pub keys_max: usize,
    /// The limit, as warnings name it.
    pub owner: &'a Arc<str>,
    /// The meter of the same rate that goes on counting in this one.
    pub before: Option<&'a M>,
}

// === impl Make ===

impl<M> TableSpec<'_, M> {
    /// The table that counts go on in, or a new one.
    pub(crate) fn build_table<E: TableEntry, N: TableParams<E>>(
        &self,
        numbers: &Arc<N>,
        of: impl FnOnce(&M) -> &Arc<Table<E, N>>,
    ) -> Arc<Table<E, N>> {
        let fresh = || Arc::new(Table::with_params(numbers.clone(), self.keys_max, self.owner.clone()));
        self.before.map_or_else(fresh, |before| of(before).clone())
    }

    /// The epoch of new numbers, `of` being that before and whether charges of it can still be given back.
    pub(crate) fn next_epoch(&self, of: impl FnOnce(&M) -> (Epoch, bool)) -> Epoch {
        self.before.map(of).map_or(0, |(epoch, same)| epoch.wrapping_add((!same).into()))
    }
}
