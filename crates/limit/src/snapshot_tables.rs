//! The tables of a limit that a snapshot keeps, and the fingerprints by which a later process recognises them.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::Limit;
use super::counters::each_rated;
use crate::table::persistent::{PersistentTable, SnapshotTable};
use sluicegate_model::{Algorithm, ChargeConfig, WindowAlign};

impl Limit {
    /// The tables of its rates, all variants in a row; views have none of their own. Concurrency has none at all:
    /// nothing is in flight after a restart.
    pub fn rate_tables(&self) -> Vec<SnapshotTable<'_>> {
        let tables: Vec<&dyn PersistentTable> = each_rated!(&self.meters, rates => {
            rates.iter().map(|rate| &*rate.table as &dyn PersistentTable).collect()
        }, else Vec::new());
        let to_snapshot = |(rate, table)| SnapshotTable {
            name: &self.name,
            fingerprint: self.rate_fingerprint(rate),
            table,
        };
        let counted = tables.into_iter().enumerate().filter(|(rate, _)| !self.is_view_rate(*rate));
        counted.map(to_snapshot).collect()
    }

    /// The same for a limit that is the local share of a shared one; its fingerprints differ.
    pub fn local_share_tables(&self) -> Vec<SnapshotTable<'_>> {
        let mut tables = self.rate_tables();
        tables.iter_mut().for_each(|table| table.fingerprint = !table.fingerprint);
        tables
    }

    fn rate_fingerprint(&self, rate: usize) -> u64 {
        let (key, missing) = (&self.config.key, self.config.missing_key);
        let located = self.config.locate_rate(rate);
        let numbers = located
            .map(|(variant, algorithm, position)| (self.config.variant_tier(variant), algorithm, position));
        let mut hasher = SipHasher13::new();
        // The debug text holds every number; a version that formats it differently merely starts fresh.
        let warm_up = self.config.warm_up;
        let text = match &self.config.algorithm {
            // The window of a counter says where it belongs, and a quota that changes is not forgotten.
            Algorithm::FixedWindow { rates, align: WindowAlign::Calendar } => {
                let position = self.config.counter_rate(rate);
                format!("{key:?} {missing:?} {:?} {position}", rates.get(position).map(|rate| rate.calendar))
            }
            _ => format!("{key:?} {missing:?} {numbers:?} {warm_up:?}"),
        };
        hasher.write(text.as_bytes());
        if let Some(shares) = &self.config.shares {
            hasher.write(format!("{shares:?}").as_bytes());
        }
        let units = ChargeConfig::counted_units(self.config.charge.as_ref());
        if units != ChargeConfig::counted_units(None) {
            hasher.write(format!("{units:?}").as_bytes());
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithm::calendar_window::CalendarEntry;
    use crate::algorithm::fixed_window::FixedWindowEntry;
    use crate::algorithm::leaky_bucket::LeakyBucketEntry;
    use crate::algorithm::rate::Level;
    use crate::algorithm::sliding_log::SlidingLogEntry;
    use crate::algorithm::sliding_window::SlidingWindowEntry;
    use crate::algorithm::warm_up::WarmLevel;
    use crate::table::persistent::PersistentEntry;
    use sluicegate_base::calendar::Anchor;
    use sluicegate_base::clock::{ClockShift, Now};

    const SHIFT: u64 = 1_000_000;

    /// The bytes of an entry after a translation to another clock and back.
    fn translate_and_back<E: PersistentEntry>(bytes: &[u8]) -> Option<Vec<u8>> {
        let (mut extra, mut there, mut back) = (E::Extra::default(), Vec::new(), Vec::new());
        let (ahead, behind) =
            (ClockShift::new(Now(0), 0, Now(SHIFT)), ClockShift::new(Now(SHIFT), 0, Now(0)));
        let mut rest = bytes;
        E::decode_entry(&mut rest, ahead, &mut extra)?.encode_entry(&extra, &mut there);
        if !rest.is_empty() {
            return None;
        }
        assert_ne!(there, bytes, "its moments move");
        E::decode_entry(&mut there.as_slice(), behind, &mut extra)?.encode_entry(&extra, &mut back);
        Some(back)
    }

    /// Checks that an encoded entry survives a round trip, and that no other length of it is accepted.
    fn assert_round_trip<E: PersistentEntry>(bytes: &[u8]) {
        assert_eq!(translate_and_back::<E>(bytes).as_deref(), Some(bytes));
        for length in 0..bytes.len() {
            assert_eq!(translate_and_back::<E>(&bytes[..length]), None, "cut to {length}");
        }
        assert_eq!(translate_and_back::<E>(&[bytes, &[0]].concat()), None, "one byte too many");
    }

    #[test]
    fn a_window_of_a_calendar_is_restored_with_its_name() {
        // The present window begins before the one that is kept beside it, because a clock was set back; none of its
        // moments moves.
        let window = |numbers: [u64; 3], reached: u8| {
            [&numbers.map(u64::to_le_bytes).concat()[..], &[reached]].concat()
        };
        let bytes = [
            &window([5, 4, 10], 1)[..],
            &window([7, 3, 9], 3),
            &[8_u64, 6].map(u64::to_le_bytes).concat(),
            &Anchor::to_bits(Anchor::parse(b"2024-01-31")).to_le_bytes(),
            &[4, 0],
            b"ip=1",
        ]
        .concat();
        let shift = ClockShift::new(Now(0), 0, Now(SHIFT));
        let (mut shard, mut restored) = (Default::default(), Vec::new());
        let mut rest = &bytes[..];
        let entry = CalendarEntry::decode_entry(&mut rest, shift, &mut shard).unwrap();
        entry.encode_entry(&shard, &mut restored);
        assert_eq!((restored, rest), (bytes.clone(), &[][..]));
        let decode =
            |mut bytes: &[u8]| CalendarEntry::decode_entry(&mut bytes, shift, &mut Default::default());
        assert!((0..bytes.len()).all(|length| decode(&bytes[..length]).is_none()));
        let mut long = bytes[..bytes.len() - 6].to_vec();
        long.extend(257_u16.to_le_bytes());
        long.extend([b'a'; 257]);
        assert!(decode(&long).is_none(), "no name is that long");
    }

    #[test]
    fn entries_are_restored_unchanged() {
        let bucket: Vec<u8> =
            [&0x1122_3344_5566_u64.to_le_bytes()[..], &0x1111_u64.to_le_bytes(), &77_u32.to_le_bytes()]
                .concat();
        assert_round_trip::<Level>(&bucket);
        assert_round_trip::<LeakyBucketEntry<Level>>(&bucket);
        let warm = [&bucket[..], &0x55_u128.to_le_bytes(), &0x66_u64.to_le_bytes()].concat();
        assert_round_trip::<WarmLevel>(&warm);
        assert_round_trip::<LeakyBucketEntry<WarmLevel>>(&warm);
        let moment = 0x1122_3344_5566_u64.to_le_bytes();
        assert_round_trip::<FixedWindowEntry>(&[moment, 9_u64.to_le_bytes()].concat());
        let counts: Vec<u8> = (1..12_u32).flat_map(u32::to_le_bytes).collect();
        assert_round_trip::<SlidingWindowEntry<11>>(&[&moment[..], &counts].concat());
        assert_round_trip::<SlidingLogEntry>(&[&moment[..], &3_u32.to_le_bytes()].concat());
    }

    #[test]
    fn a_log_is_restored_with_its_runs_or_not_at_all() {
        let run = |at: u64, units: u32| [&at.to_le_bytes()[..], &units.to_le_bytes()].concat();
        let log = |used: u32, runs: &[(u64, u32)]| {
            let head = run(0x1122_3344_5566, used);
            runs.iter().fold(head, |bytes, (at, units)| [bytes, run(*at, *units)].concat())
        };
        let whole = log(6, &[(0x1000, 1), (0x2000, 2), (0x2001, 3)]);
        assert_eq!(translate_and_back::<SlidingLogEntry>(&whole), Some(whole));
        for wrong in [
            log(7, &[(0x1000, 1), (0x2000, 2)]),
            log(3, &[(0x2000, 1), (0x1000, 2)]),
            log(1, &[(0x1000, 1), (0x2000, 0)]),
            log(1, &[(1 << 60, 1)]),
            log(1, &[(0x1000, u32::MAX), (0x1001, 2)]),
        ] {
            assert_eq!(translate_and_back::<SlidingLogEntry>(&wrong), None);
        }
    }
}
