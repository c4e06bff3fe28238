//! Views: places of chains that use a limit with other numbers, and count in its counters.

use super::id::{LimitId, ViewId};
use super::limit::{Algorithm, LimitConfig};
use super::reject::{OnReject, OnRejectPatch};
use super::{Config, LocationConfig};

// === impl Config ===

impl Config {
    /// The treatment of requests that a limit rejects at a place with the section `place`.
    pub fn on_reject_at(&self, limit: &LimitConfig, place: Option<&OnRejectPatch>) -> OnReject {
        let own = self.on_reject.merge_patch(&limit.on_reject);
        match place {
            Some(place) => own.merge_patch(place),
            None => own,
        }
    }

    /// The view by which a limit judges requests of a location, or of none; `None` = the limit's own numbers. An entry
    /// of the location's chain comes before one of `server.limits`.
    pub fn view_at(&self, location: Option<&LocationConfig>, limit: LimitId) -> Option<ViewId> {
        let own = location.filter(|location| location.limits.contains(&limit));
        let views = own.map_or(&self.server.views, |location| &location.views);
        views.iter().find(|(viewed, _)| *viewed == limit).map(|(_, view)| *view)
    }
}

// === impl LimitConfig ===

impl LimitConfig {
    /// The variant of a view.
    pub fn view_variant(&self, view: ViewId) -> usize {
        1 + self.tiers.iter().filter(|(_, own)| own.is_some()).count() + view.0
    }

    /// True if a variant belongs to a view.
    pub fn is_view(&self, variant: usize) -> bool {
        let first = self.view_variant(ViewId(0));
        (first..first + self.views.len()).contains(&variant)
    }

    /// True if a variant counts in the counters of the limit's own numbers: it belongs to a view, or the windows are
    /// those of a calendar.
    pub fn counts_as_own(&self, variant: usize) -> bool {
        self.is_view(variant) || self.shares_counters() && variant > 0
    }

    /// The rate that owns the counters of a rate: that of the limit's own numbers if they count for it, else itself.
    /// Rates count in a row, as for [`LimitConfig::locate_rate`].
    pub fn counter_rate(&self, rate: usize) -> usize {
        match self.locate_rate(rate) {
            Some((variant, _, position)) if self.counts_as_own(variant) => position,
            _ => rate,
        }
    }

    /// The variants that judge at the place of a chain where `own` stands for the limit's own.
    pub fn variants_at(&self, own: usize) -> impl Iterator<Item = &Algorithm> {
        let is_here = move |(variant, _): &(usize, &Algorithm)| match self.is_view(*variant) || *variant == 0
        {
            true => *variant == own,
            false => true,
        };
        self.algorithm_variants().enumerate().filter(is_here).map(|(_, numbers)| numbers)
    }

    /// The most units that a bucket accepts at once, at any of the places that count in the counters of a rate.
    pub fn deepest_bucket(&self, rate: usize) -> u64 {
        let size = |rate| {
            let (_, numbers, position) = self.locate_rate(rate)?;
            numbers.rate_quotas().get(position).map(|(_, units)| *units)
        };
        let counted_by = self.counter_rate(rate);
        let rates = 0..self.file_rate_count();
        let places = rates.filter(|other| *other != rate && self.counter_rate(*other) == counted_by);
        places.chain([rate]).filter_map(size).max().unwrap_or(1)
    }
}
