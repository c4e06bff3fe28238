//! How one zone that is used with several bursts becomes a limit.

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
    /// The limit for `uses`, which are not empty. A bucket is used with other bursts, a queue with other lengths; where
    /// both differ, all uses get the smallest numbers, so that none admits more than before.
    pub fn build_group(uses: &[BurstShape]) -> BurstPlan {
        let first = uses.first().copied().unwrap_or(BurstShape { burst: 1, queue: 0 });
        let leaky = uses.iter().any(|shape| shape.queue > 0);
        if !leaky || uses.iter().all(|shape| shape.burst == first.burst) {
            let views = uses.iter().map(|shape| (*shape != first).then_some(*shape)).collect();
            return BurstPlan { leaky, base: first, views, is_stricter: false };
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
        let plan = BurstPlan::build_group(&[shape(6, 0), shape(6, 0)]);
        assert_eq!((plan.leaky, plan.base, plan.is_stricter), (false, shape(6, 0), false));
        assert!(BurstPlan::build_group(&[shape(1, 5)]).leaky);
    }

    #[test]
    fn the_strictest_numbers_hold_where_burst_and_queue_differ() {
        let plan = BurstPlan::build_group(&[shape(1, 20), shape(6, 0)]);
        assert_eq!((plan.leaky, plan.base, plan.is_stricter), (true, shape(1, 5), true));
        assert_eq!(plan.views, [None, None]);
    }

    #[test]
    fn every_use_keeps_its_numbers_where_one_of_them_differs() {
        let plan = BurstPlan::build_group(&[shape(1, 20), shape(1, 5)]);
        assert_eq!((plan.leaky, plan.base, plan.is_stricter), (true, shape(1, 20), false));
        assert_eq!(plan.views, [None, Some(shape(1, 5))]);
        let plan = BurstPlan::build_group(&[shape(1, 0), shape(6, 0), shape(1, 0)]);
        assert_eq!((plan.leaky, plan.base, plan.is_stricter), (false, shape(1, 0), false));
        assert_eq!(plan.views, [None, Some(shape(6, 0)), None]);
    }
}
