//! Snapshots with a garbled or missing state of operators.

use super::Judged::Admitted;
use super::*;
use sluicegate_base::clock::ClockShift;
use sluicegate_limit::table::persistent::PersistentTable;

/// A snapshot with a first table that has the name of the state, and other bytes.
struct GarbledState<'a>(&'a Gateway, &'static [u8]);

impl snapshot::SnapshotSource for GarbledState<'_> {
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>> {
        let mut tables = self.0.snapshot_tables();
        tables[0].table = self;
        tables
    }
}

impl PersistentTable for GarbledState<'_> {
    fn block_count(&self) -> usize {
        1
    }

    fn encode_block(&self, _: usize, _: Now, out: &mut Vec<u8>) {
        out.extend(self.1);
    }

    fn restore_block(&self, _: &[u8], _: ClockShift, _: Now) -> Option<usize> {
        None
    }
}

#[test]
fn counters_are_restored_beside_a_garbled_state() {
    let now = Now::read_clock();
    for bytes in [&b""[..], b"{", b"7", &[0xFF; 100]] {
        let first = gateway(HOURLY);
        assert_eq!(ask(&first, "192.0.2.1", "", now), Admitted);
        let mut found = snapshot_of(&first, &GarbledState(&first, bytes));
        assert!(SavedOperatorState::from_snapshot(&mut found).is_none());
        let mut other = gateway(HOURLY);
        other.restore_counters(found, &SavedNumbers::default());
        assert_eq!(admitted(&other, "192.0.2.1", now), 1, "{bytes:?}");
    }
}

#[test]
fn a_snapshot_of_an_earlier_release_has_no_state() {
    let (first, now) = (gateway(HOURLY), Now::read_clock());
    assert_eq!(ask(&first, "192.0.2.1", "", now), Admitted);
    let mut found = snapshot_of(&first, &first.limits[..]);
    assert!(SavedOperatorState::from_snapshot(&mut found).is_none());
    let mut other = gateway(HOURLY);
    other.restore_counters(found, &SavedNumbers::default());
    assert_eq!(admitted(&other, "192.0.2.1", now), 1);
}
