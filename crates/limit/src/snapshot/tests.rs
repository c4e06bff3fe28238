//! Snapshot files: written, read, damaged, foreign, and of another configuration.

use std::hash::Hasher;
use std::io::Cursor;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use proptest::prelude::*;

use super::read::{open_snapshot, read_header};
use super::*;
use crate::table::CounterKey;
use crate::{Limit, LimitOutcome, Units};
use sluicegate_base::clock::Now;
use sluicegate_base::wall_clock::unix_ns;
use sluicegate_config as config;
use sluicegate_model::{Config, LimitId};

impl SnapshotSource for Vec<Arc<Limit>> {
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>> {
        self.as_slice().snapshot_tables()
    }
}

const SECRET: [u8; 16] = *b"sixteen secrets!";
const SECOND: u64 = 1_000_000_000;
/// The last limit becomes a tier of the first, under its own name.
const LIMITS: &str = "limits:\n  bucket: { rate: [1/m, 5/h], burst: [3, 5] }\n  \
                      line: { algorithm: leaky_bucket, rate: 1/h, burst: 4, queue: 0 }\n  \
                      slots: { algorithm: concurrency, max_concurrent: 1 }\n  \
                      pro: { rate: [1/m, 9/h], burst: [3, 9] }\n";

/// A folder of one test, removed with it.
struct SnapshotFolder(PathBuf);

impl SnapshotFolder {
    fn new() -> SnapshotFolder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("sluicegate-snapshot-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        SnapshotFolder(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("counters")
    }
}

impl Drop for SnapshotFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn parse(limits: &str, max_keys: usize) -> Config {
    let used = "locations: [{ path: /, upstream: demo, limits: [bucket, line, slots] }]\n";
    config::parse(&format!("{limits}state: {{ max_keys: {max_keys} }}\n{used}"), "test.yaml").unwrap().config
}

fn limits_of(text: &str, max_keys: usize) -> Vec<Arc<Limit>> {
    let mut config = parse(text, max_keys);
    let tier = config.limits.pop().unwrap();
    config.limits[0].tiers = vec![(tier.name, Some(tier.algorithm))];
    config
        .limits
        .iter()
        .enumerate()
        .map(|(at, limit)| Arc::new(Limit::new(LimitId(at), limit, max_keys)))
        .collect()
}

fn units(id: u64) -> Units {
    let id = u128::from(id).wrapping_mul(0xD6E8_FEB8_6659_FD93_A076_1D64_78BD_642F);
    Units::new(CounterKey::new(id, (id >> 32) as u64), 1)
}

/// Charges one unit; returns whether it was admitted.
fn charge(limit: &Limit, rate: usize, id: u64, now: Now) -> bool {
    limit.charge_units(rate, &units(id), now).0.outcome == LimitOutcome::Admit
}

fn remaining_units(limit: &Limit, rate: usize, id: u64, now: Now) -> u64 {
    limit.peek_units(rate, &units(id), now).remaining
}

/// Limits with two units of each rate used by key 1, and one by key 2.
fn used_limits() -> Vec<Arc<Limit>> {
    let limits = limits_of(LIMITS, 1000);
    let now = Now::read_clock();
    for (limit, rates) in [(0, 4), (1, 1)] {
        for (rate, id) in (0..rates).flat_map(|rate| [(rate, 1), (rate, 1), (rate, 2)]) {
            assert!(charge(&limits[limit], rate, id, now));
        }
    }
    assert_eq!(
        limits[2].acquire_slots(0, &units(1).key, 1, false, now).map(|grant| grant.overflow),
        Some(false)
    );
    limits
}

fn save(path: &Path) {
    write_snapshot(path, SECRET, &used_limits(), &mut Vec::new()).unwrap();
}

/// Restores the file `elapsed_ns` after it was written.
fn load(path: &Path, limits: &[Arc<Limit>], elapsed_ns: u64) -> (Now, Result<bool, String>) {
    let now = Now(Now::read_clock().0 + (1 << 50));
    let found = open_snapshot(path, unix_ns() + elapsed_ns, now);
    let found = found.map(|found| found.map(|found| found.restore_into(limits)).is_some());
    (now, found)
}

#[test]
fn counters_are_restored() {
    let folder = SnapshotFolder::new();
    save(&folder.file());
    let limits = limits_of(LIMITS, 50);
    assert_eq!(open_snapshot(&folder.file(), unix_ns(), Now::read_clock()).unwrap().unwrap().secret, SECRET);
    let (now, _) = load(&folder.file(), &limits, 0);
    let seen = |id| [0, 1, 2, 3].map(|rate| remaining_units(&limits[0], rate, id, now));
    assert_eq!((seen(1), remaining_units(&limits[1], 0, 1, now)), ([1, 3, 1, 7], 2));
    assert_eq!((seen(2), remaining_units(&limits[1], 0, 2, now)), ([2, 4, 2, 8], 3));
    assert_eq!((seen(3), remaining_units(&limits[1], 0, 3, now)), ([3, 5, 3, 9], 4));
    let grant = limits[2].acquire_slots(0, &units(1).key, 1, false, now);
    assert_eq!(grant.map(|grant| grant.overflow), Some(false), "nothing is in flight");
}

#[test]
fn the_time_in_between_counts() {
    let folder = SnapshotFolder::new();
    save(&folder.file());
    let limits = limits_of(LIMITS, 50);
    let (now, _) = load(&folder.file(), &limits, 725 * SECOND);
    assert_eq!(
        [0, 1].map(|rate| remaining_units(&limits[0], rate, 1, now)),
        [3, 4],
        "1/m is full again, 5/h got one more"
    );
    assert_eq!([1, 2].map(|id| remaining_units(&limits[1], 0, id, now)), [2, 3], "1/h got none");
    assert_eq!((limits[0].key_count(), limits[1].key_count()), (1, 2), "idle entries take no room");
}

/// If the file is from the future, or the clock was set back, no time has passed.
#[test]
fn a_clock_set_back_gives_nothing() {
    let folder = SnapshotFolder::new();
    save(&folder.file());
    let limits = limits_of(LIMITS, 50);
    let now = Now::read_clock();
    open_snapshot(&folder.file(), 5, now).unwrap().unwrap().restore_into(&limits);
    assert_eq!([0, 1].map(|rate| remaining_units(&limits[0], rate, 1, now)), [1, 3]);
}

#[test]
fn changed_parts_start_fresh_and_nothing_else() {
    let folder = SnapshotFolder::new();
    save(&folder.file());
    let seen = |from: &str, to: &str| {
        let text = LIMITS.replace(from, to);
        assert_ne!(text, LIMITS);
        let limits = limits_of(&text, 50);
        let (now, loaded) = load(&folder.file(), &limits, 0);
        assert_eq!(loaded, Ok(true));
        let keys = |limit: usize, rate: usize| {
            limits[limit].max_units(rate, 0) - limits[limit].peek_units(rate, &units(1), now).remaining
        };
        [keys(0, 0), keys(0, 1), keys(0, 2), keys(1, 0)]
    };
    assert_eq!(seen("5/h", "6/h"), [0, 0, 2, 2], "numbers, of this variant alone");
    assert_eq!(seen("9/h], burst: [3, 9]", "8/h], burst: [3, 9]"), [2, 2, 0, 2], "numbers of a tier");
    assert_eq!(seen("pro:", "vip:"), [2, 2, 0, 2], "another tier");
    assert_eq!(seen("line: {", "line: { key: global,"), [2, 2, 2, 0], "a key");
    assert_eq!(seen("queue: 0", "queue: 0, missing_key: skip"), [2, 2, 2, 0], "a fallback");
    assert_eq!(
        seen("algorithm: leaky_bucket, rate: 1/h, burst: 4, queue: 0", "rate: 1/h, burst: 4"),
        [2, 2, 2, 0]
    );
    assert_eq!(seen("queue: 0", "queue: 0, dry_run: true"), [2; 4], "a dry run counts the same");
}

#[test]
fn a_limit_that_is_gone_or_new_does_not_matter() {
    let folder = SnapshotFolder::new();
    let old = used_limits();
    write_snapshot(&folder.file(), SECRET, &old[..1], &mut Vec::new()).unwrap();
    let limits = limits_of(LIMITS, 50);
    assert_eq!(load(&folder.file(), &limits[1..], 0).1, Ok(true));
    let (now, _) = load(&folder.file(), &limits, 0);
    assert_eq!((remaining_units(&limits[0], 0, 1, now), remaining_units(&limits[1], 0, 1, now)), (1, 4));
}

#[test]
fn the_file_is_for_its_owner_alone_and_replaced_whole() {
    let folder = SnapshotFolder::new();
    std::fs::write(folder.file(), "old").unwrap();
    std::fs::set_permissions(folder.file(), std::fs::Permissions::from_mode(0o666)).unwrap();
    std::fs::write(folder.0.join(".counters.new"), "left over").unwrap();
    save(&folder.file());
    let mode = std::fs::metadata(folder.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    let before = std::fs::read(folder.file()).unwrap();
    std::fs::create_dir(folder.0.join(".counters.new")).unwrap();
    assert!(write_snapshot(&folder.file(), SECRET, &Vec::<Arc<Limit>>::new(), &mut Vec::new()).is_err());
    assert_eq!(std::fs::read(folder.file()).unwrap(), before);
}

#[track_caller]
fn assert_rejected(path: &Path, reason: &str) {
    let limits = limits_of(LIMITS, 50);
    let fault = load(path, &limits, 0).1.expect_err("it was restored");
    assert!(fault.contains(reason), "{fault}");
    assert!(limits.iter().all(|limit| limit.key_count() == 0));
}

#[test]
fn a_foreign_file_is_rejected() {
    let folder = SnapshotFolder::new();
    let file = folder.file();
    assert_eq!(load(&file, &[], 0).1, Ok(false), "there is none");
    for (bytes, reason) in [
        (&b""[..], "not a snapshot"),
        (b"sluice", "not a snapshot"),
        (b"%PDF-1.7 and much more of it", "not a snapshot"),
        (b"sluicegt", "cut off"),
        (b"sluicegt\x01\0\0\0", "damaged"),
        (b"sluicegt\x02\0\0\0", "version 2"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        assert_rejected(&file, reason);
    }
    std::fs::File::create(&file).unwrap().set_len(FILE_MAX + 1).unwrap();
    assert_rejected(&file, "larger");
    assert_rejected(&folder.0, "not a file");
}

/// Every byte is changed in several ways, and the file is cut to every length.
#[test]
fn any_damage_is_detected() {
    let folder = SnapshotFolder::new();
    save(&folder.file());
    let whole = std::fs::read(folder.file()).unwrap();
    let unusable = |bytes: &[u8]| {
        read_header(Path::new(""), Cursor::new(bytes), bytes.len() as u64, 0, Now::read_clock()).is_err()
    };
    assert!(!unusable(&whole));
    for at in 0..whole.len() {
        for flip in [1, 0x80, 0xFF] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            assert!(unusable(&bytes), "byte {at}");
        }
        assert!(unusable(&whole[..at]), "cut to {at}");
    }
    assert!(unusable(&[&whole[..], &[0]].concat()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Even a file with a valid checksum causes no panic and breaks no bound.
    #[test]
    fn any_file_with_a_good_checksum_is_survived(
        noise in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
        let mut bytes = WHOLE.get_or_init(|| {
            let folder = SnapshotFolder::new();
            save(&folder.file());
            std::fs::read(folder.file()).unwrap()
        }).clone();
        bytes.truncate(bytes.len() - CHECKSUM_LEN);
        let head = MAGIC.len() + 4;
        for (at, byte) in noise {
            let at = head + at.index(bytes.len() - head);
            bytes[at] = byte;
        }
        bytes.truncate(head + cut.index((bytes.len() - head) * 4).min(bytes.len() - head));
        let mut checksum = Checksum::new();
        checksum.write(&bytes);
        bytes.extend(checksum.finish().to_le_bytes());
        let (limits, now, length) = (limits_of(LIMITS, 2), Now::read_clock(), bytes.len() as u64);
        if let Ok(found) = read_header(Path::new(""), Cursor::new(bytes), length, unix_ns(), now) {
            found.restore_into(&limits);
        }
        for (limit, rates) in [(0, 4), (1, 1)] {
            prop_assert!(limits[limit].key_count() <= 2);
            for rate in 0..rates {
                charge(&limits[limit], rate, 1, now);
                prop_assert!(remaining_units(&limits[limit], rate, 1, now) <= limits[limit].max_units(rate, 0));
            }
        }
    }
}

#[test]
fn the_thread_writes_at_the_end() {
    let folder = SnapshotFolder::new();
    let limits = Arc::new(used_limits());
    let thread =
        SnapshotThread::start(folder.file(), SECRET, move || limits.clone(), LastFault::default()).unwrap();
    assert!(!folder.file().exists());
    assert!(thread.finish_writing(std::time::Duration::from_secs(10)));
    let limits = limits_of(LIMITS, 50);
    let (now, _) = load(&folder.file(), &limits, 0);
    assert_eq!(remaining_units(&limits[0], 0, 1, now), 1);
    let nothing = || Arc::new(Vec::<Arc<Limit>>::new());
    let nowhere =
        SnapshotThread::start(folder.0.join("none/counters"), SECRET, nothing, LastFault::default()).unwrap();
    assert!(!nowhere.finish_writing(std::time::Duration::from_secs(10)));
}
