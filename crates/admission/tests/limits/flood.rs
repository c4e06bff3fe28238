//! Floods of keys: a spent budget stays spent, and memory stays bounded.

use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_limit::Limit;
use sluicegate_model::LimitId;

use crate::support::*;

fn table_of(keys_max: usize, burst: u64) -> Gate {
    Gate::new(vec![Arc::new(Limit::new(LimitId(0), &config(token(1, DAY, burst)), keys_max))])
}

fn keys(gate: &Gate) -> usize {
    gate.chain.limits()[0].key_count()
}

/// Under a flood of a million keys, spent keys stay spent and the table keeps its cap.
#[test]
fn a_million_new_keys_refill_no_other() {
    let gate = table_of(20_000, 1);
    let spent = 0..10_000;
    for id in spent.clone() {
        assert!(gate.send(0, id, 1).is_ok());
    }
    let mut admitted = 0;
    for stranger in 0..1_000_000_u64 {
        admitted += u64::from(gate.send(stranger, 1 << 64 | u128::from(stranger), 1).is_ok());
        if stranger % 4096 == 0 {
            assert!(keys(&gate) <= 20_000);
            let again = u128::from(stranger / 4096 * 31 % 10_000);
            assert!(gate.send(stranger, again, 1).is_err(), "{again} was refilled");
        }
    }
    assert_eq!(keys(&gate), 20_000);
    assert_eq!(admitted, 10_001, "one each while there is room, then one for the whole network");
    let overflow = gate.chain.limits()[0].overflow_count();
    assert!(overflow > 900_000, "{overflow} requests were on a shared counter");
    for id in spent {
        assert!(gate.send(1_000_000, id, 1).is_err(), "{id} was refilled");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// With any table size and any traffic in between, no key gets more than its burst.
    #[test]
    fn no_key_gets_more_by_eviction(
        (keys_max, burst) in (1..40_usize, 1..4_u64),
        traffic in proptest::collection::vec((0..120_u128, 1..3_u64), 1..800),
    ) {
        let gate = table_of(keys_max, burst);
        let mut used = std::collections::HashMap::new();
        for (at, (id, cost)) in traffic.into_iter().enumerate() {
            let cost = cost.min(burst);
            if gate.send(at as u64, id, cost).is_ok() {
                *used.entry(id).or_insert(0) += cost;
            }
            prop_assert!(keys(&gate) <= keys_max);
        }
        prop_assert!(used.values().all(|units| *units <= burst), "{used:?}");
    }
}
