//! How one zone that is used with several bursts becomes limits: the one place that decides it.

/// Whether a chain may name a limit with another burst and queue, `{ use: NAME, burst, queue }`.
pub(super) const CHAIN_VIEWS: bool = false;

/// One way to use a rate: how many requests pass at once, and how many more wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct BurstShape {
    /// Requests that pass at once from idle, the first one included.
    pub burst: u64,
    /// Requests that wait beyond them.
    pub queue: u64,
}

/// The numbers of a limit that stands for all uses of a zone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BurstPlan {
    /// Whether it is a leaky bucket; else a token bucket.
    pub leaky: bool,
    pub base: BurstShape,
    /// For each use its own numbers, if they are not those of the limit.
    pub views: Vec<Option<BurstShape>>,
    /// All uses have the numbers of the strictest one.
    pub is_stricter: bool,
}

impl BurstPlan {
    /// The limit for `uses`, which are not empty. Without `views` all of them get the smallest numbers, so that no use
    /// of the zone admits more than before.
    pub fn build_group(uses: &[BurstShape], views: bool) -> BurstPlan {
        let first = uses.first().copied().unwrap_or(BurstShape { burst: 1, queue: 0 });
        let same = uses.iter().all(|shape| *shape == first);
        if same {
            let views = vec![None; uses.len()];
            return BurstPlan { leaky: first.queue > 0, base: first, views, is_stricter: false };
        }
        if views {
            let views = uses.iter().map(|shape| (*shape != first).then_some(*shape)).collect();
            return BurstPlan { leaky: true, base: first, views, is_stricter: false };
        }
        let burst = uses.iter().map(|shape| shape.burst).min().unwrap_or(1);
        let total = uses.iter().map(|shape| shape.burst.saturating_add(shape.queue)).min().unwrap_or(1);
        let base = BurstShape { burst, queue: total.saturating_sub(burst) };
        BurstPlan { leaky: base.queue > 0, base, views: vec![None; uses.len()], is_stricter: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn shape(burst: u64, queue: u64) -> BurstShape {
        BurstShape { burst, queue }
    }

    #[test]
    fn one_way_to_use_a_zone_is_one_limit() {
        let plan = BurstPlan::build_group(&[shape(6, 0), shape(6, 0)], false);
        assert_eq!((plan.leaky, plan.base, plan.is_stricter), (false, shape(6, 0), false));
        assert!(BurstPlan::build_group(&[shape(1, 5)], false).leaky);
    }

    #[test]
    fn without_views_the_strictest_numbers_hold_for_all() {
        let plan = BurstPlan::build_group(&[shape(1, 20), shape(6, 0)], false);
        assert_eq!((plan.leaky, plan.base, plan.is_stricter), (true, shape(1, 5), true));
        assert_eq!(plan.views, [None, None]);
    }

    #[test]
    fn with_views_every_use_keeps_its_numbers() {
        let plan = BurstPlan::build_group(&[shape(1, 20), shape(6, 0)], true);
        assert_eq!((plan.leaky, plan.base, plan.is_stricter), (true, shape(1, 20), false));
        assert_eq!(plan.views, [None, Some(shape(6, 0))]);
    }
}
