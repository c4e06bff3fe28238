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
    /// A leaky bucket; else a token bucket.
    pub leaky: bool,
    pub base: BurstShape,
    /// The numbers of each use in the chain, if they are not those of the limit.
    pub views: Vec<Option<BurstShape>>,
}

impl BurstPlan {
    /// The limit for `uses`, which are not empty. A bucket is used with other bursts, a queue with other lengths; where
    /// both differ, the smallest burst holds for all, and each queue is as much longer: every use admits as many.
    pub fn build_group(uses: &[BurstShape]) -> BurstPlan {
        let leaky = uses.iter().any(|shape| shape.queue > 0);
        let least = uses.iter().map(|shape| shape.burst).min().unwrap_or(1);
        let written = uses.iter().map(|&BurstShape { burst, queue }| match leaky {
            true => BurstShape { burst: least, queue: burst.saturating_add(queue) - least },
            false => BurstShape { burst, queue },
        });
        let base = written.clone().next().unwrap_or(BurstShape { burst: 1, queue: 0 });
        let views = written.map(|shape| (shape != base).then_some(shape)).collect();
        BurstPlan { leaky, base, views }
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
        assert_eq!((plan.leaky, plan.base), (false, shape(6, 0)));
        assert!(BurstPlan::build_group(&[shape(1, 5)]).leaky);
    }

    #[test]
    fn every_use_admits_as_many_where_burst_and_queue_differ() {
        let plan = BurstPlan::build_group(&[shape(6, 0), shape(1, 20), shape(3, 2)]);
        assert_eq!((plan.leaky, plan.base), (true, shape(1, 5)));
        assert_eq!(plan.views, [None, Some(shape(1, 20)), Some(shape(1, 4))]);
    }

    #[test]
    fn every_use_keeps_its_numbers_where_one_of_them_differs() {
        let plan = BurstPlan::build_group(&[shape(1, 20), shape(1, 5)]);
        assert_eq!((plan.leaky, plan.base), (true, shape(1, 20)));
        assert_eq!(plan.views, [None, Some(shape(1, 5))]);
        let plan = BurstPlan::build_group(&[shape(1, 0), shape(6, 0), shape(1, 0)]);
        assert_eq!((plan.leaky, plan.base), (false, shape(1, 0)));
        assert_eq!(plan.views, [None, Some(shape(6, 0)), None]);
    }
}
