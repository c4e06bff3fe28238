//! Builds the table in which one rate of a limit counts, or takes over that of the same rate before a reload.

use std::sync::Arc;

use crate::limit::Epoch;
use crate::limit::algorithm::settle::SettleTerms;
use crate::limit::table::{Table, TableEntry, TableParams};

/// The arguments that the meters of all algorithms share.
pub(crate) struct TableSpec<'a, M> {
    pub keys_max: usize,
    /// The limit, as warnings name it.
    pub owner: &'a Arc<str>,
    pub settle_terms: SettleTerms,
    /// The meter of the same rate before a reload, which the new one continues.
    pub previous: Option<&'a M>,
}

// === impl TableSpec ===

impl<M> TableSpec<'_, M> {
    /// The table of the previous meter, or a new one.
    pub(crate) fn build_table<E: TableEntry, N: TableParams<E>>(
        &self,
        params: &Arc<N>,
        of: impl FnOnce(&M) -> &Arc<Table<E, N>>,
    ) -> Arc<Table<E, N>> {
        let fresh = || Arc::new(Table::with_params(params.clone(), self.keys_max, self.owner.clone()));
        self.previous.map_or_else(fresh, |previous| of(previous).clone())
    }

    /// The epoch of new parameters; `of` returns the previous epoch and whether its charges can still be refunded.
    pub(crate) fn next_epoch(&self, of: impl FnOnce(&M) -> (Epoch, bool)) -> Epoch {
        self.previous.map(of).map_or(0, |(epoch, same)| epoch.wrapping_add((!same).into()))
    }
}
