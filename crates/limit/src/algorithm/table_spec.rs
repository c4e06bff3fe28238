//! Builds the table in which one rate of a limit counts, or takes over that of the same rate before a reload.

use std::sync::Arc;

use crate::Epoch;
use crate::algorithm::settle::SettleTerms;
use crate::table::{Table, TableEntry, TableParams};

/// The arguments that the meters of all algorithms share.
pub(crate) struct TableSpec<'a, M> {
    pub keys_max: usize,
    /// The limit, as warnings name it.
    pub owner: &'a Arc<str>,
    pub settle_terms: SettleTerms,
    /// The meter of the same rate before a reload, which the new one continues.
    pub previous: Option<&'a M>,
    /// The meter of the limit's own rate, in the table of which the rate of a view counts.
    pub counted_by: Option<&'a M>,
}

// === impl TableSpec ===

impl<M> TableSpec<'_, M> {
    /// The table that the meter counts in: that of the limit's own rate, of the previous meter, or a new one.
    pub(crate) fn build_table<E: TableEntry, N: TableParams<E>>(
        &self,
        params: &Arc<N>,
        of: impl FnOnce(&M) -> &Arc<Table<E, N>>,
    ) -> Arc<Table<E, N>> {
        let fresh = || Arc::new(Table::with_params(params.clone(), self.keys_max, self.owner.clone()));
        self.counted_by.or(self.previous).map_or_else(fresh, |known| of(known).clone())
    }

    /// The epoch of new parameters, which a view has from the limit's own rate. `of` returns the epoch of a meter, and
    /// whether its charges can still be refunded.
    pub(crate) fn next_epoch(&self, of: impl FnOnce(&M) -> (Epoch, bool)) -> Epoch {
        match (self.counted_by, self.previous) {
            (Some(counted_by), _) => of(counted_by).0,
            (None, previous) => {
                previous.map(of).map_or(0, |(epoch, same)| epoch.wrapping_add((!same).into()))
            }
        }
    }
}
