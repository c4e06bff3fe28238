//! The entries in memory, and the sharing task on virtual time with a scripted store.

use std::cell::RefCell;
use std::time::Duration;

use super::entry_set::SentChange;
use super::*;
use crate::script::operator::{
    ChangeAnswer, ChangeKind, ENTRIES_MAX, EntriesUpdate, EntryChange, EntryCursor, NAME_MAX, StoreEntry,
    VALUE_MAX,
};
use crate::{PackedCall, StoreFault};

const SECOND: u64 = 1_000_000_000;
const END: Now = Now(600 * SECOND);
const NOW: Now = Now(SECOND);

fn entry(name: &[u8], value: &[u8], until: Now) -> OperatorEntry {
    OperatorEntry { name: name.into(), value: value.into(), until }
}

fn put(set: &mut EntrySet, name: &str, value: &str) {
    set.put_all(&[entry(name.as_bytes(), value.as_bytes(), END)], NOW).unwrap();
}

/// Names, sorted.
fn living(set: &EntrySet) -> Vec<String> {
    let text = |entry: OperatorEntry| String::from_utf8(entry.name.to_vec()).unwrap();
    let mut names: Vec<String> = set.list_living(NOW).into_iter().map(text).collect();
    names.sort();
    names
}

fn stored(names: &[&str]) -> Vec<StoreEntry> {
    let one = |name: &&str| StoreEntry {
        name: name.as_bytes().to_vec(),
        value: b"v".to_vec(),
        left_us: 599_000_000,
    };
    names.iter().map(one).collect()
}

fn update(store: u64, revision: u64, whole: bool, answers: &[ChangeAnswer], names: &[&str]) -> EntriesUpdate {
    EntriesUpdate {
        answers: answers.iter().copied().collect(),
        entries: stored(names),
        cursor: EntryCursor::at_revision(revision, store),
        is_more: false,
        is_whole: whole,
    }
}

/// The changes of the next call: a letter for the kind, and the name.
fn batch(set: &EntrySet) -> (Vec<SentChange>, Vec<String>) {
    let (sent, changes) = set.next_batch(NOW);
    let text = |change: EntryChange| {
        let kind = match change.kind {
            ChangeKind::Put => "put",
            ChangeKind::Delete => "delete",
            ChangeKind::Restore => "restore",
        };
        format!("{kind} {}", String::from_utf8(change.name).unwrap())
    };
    (sent, changes.into_iter().map(text).collect())
}

/// A set that knows `names` from the store 1.
fn known(names: &[&str]) -> EntrySet {
    let mut set = EntrySet::default();
    set.apply_update(&[], update(1, 5, true, &[], names), NOW);
    assert_eq!(set.pending_count(), 0);
    set
}

#[test]
fn entries_that_are_none_are_refused() {
    let mut set = EntrySet::default();
    let mut try_put =
        |name: &[u8], value: &[u8], until: Now| set.put_all(&[entry(name, value, until)], NOW).unwrap_err();
    assert_eq!(try_put(b"", b"", END), EntryFault::Name);
    assert_eq!(try_put(&[0; NAME_MAX + 1], b"", END), EntryFault::Name);
    assert_eq!(try_put(b"a", &[0; VALUE_MAX + 1], END), EntryFault::Value);
    assert_eq!(try_put(b"a", b"", NOW), EntryFault::Ended);
    assert_eq!(set.delete_all(&[b""[..].into()], NOW), Err(EntryFault::Name));
    assert_eq!((living(&set).len(), set.pending_count()), (0, 0));
}

#[test]
fn entries_are_bounded_and_ended_ones_make_room() {
    let mut set = EntrySet::default();
    for id in 0..ENTRIES_MAX {
        let until = if id == 0 { Now(2 * SECOND) } else { END };
        set.put_all(&[entry(&id.to_le_bytes(), b"", until)], NOW).unwrap();
    }
    assert_eq!(set.put_all(&[entry(b"more", b"", END)], NOW), Err(EntryFault::Full));
    assert_eq!(set.put_all(&[entry(&1_usize.to_le_bytes(), b"other", END)], NOW), Ok(()), "a known one");
    assert_eq!(set.take_changed(Now(2 * SECOND)).map(|living| living.len()), Some(ENTRIES_MAX - 1));
    assert_eq!(set.put_all(&[entry(b"more", b"", END)], Now(2 * SECOND)), Ok(()));
    assert_eq!(
        set.delete_all(&[b"unknown"[..].into()], NOW),
        Err(EntryFault::Full),
        "so many changes wait already"
    );
    assert_eq!(set.delete_all(&[b"more"[..].into()], NOW), Ok(true));
}

#[test]
fn several_changes_are_made_together_or_not_at_all() {
    let mut set = EntrySet::default();
    for (wrong, fault) in [
        (entry(b"b", &[0; VALUE_MAX + 1], END), EntryFault::Value),
        (entry(&[0; NAME_MAX + 1], b"", END), EntryFault::Name),
        (entry(b"b", b"", NOW), EntryFault::Ended),
    ] {
        assert_eq!(set.put_all(&[entry(b"a", b"", END), wrong], NOW), Err(fault));
    }
    let all: Vec<OperatorEntry> = (0..=ENTRIES_MAX).map(|id| entry(&id.to_le_bytes(), b"", END)).collect();
    assert_eq!(set.put_all(&all, NOW), Err(EntryFault::Full));
    assert_eq!((living(&set).len(), set.pending_count()), (0, 0));
    set.put_all(&all[..ENTRIES_MAX], NOW).unwrap();
    let names = [&all[0], &all[ENTRIES_MAX]].map(|entry| entry.name.clone());
    assert_eq!(set.delete_all(&names, NOW), Err(EntryFault::Full), "one is not known");
    assert_eq!(set.living_count(NOW), ENTRIES_MAX);
    assert_eq!(set.delete_all(&names[..1], NOW), Ok(true));
}

#[test]
fn a_change_is_pending_until_its_own_answer() {
    let mut set = EntrySet::default();
    put(&mut set, "a", "1");
    let (sent, changes) = batch(&set);
    assert_eq!(changes, ["put a"]);
    // Changed again while the call was on its way.
    set.delete_all(&[b"a"[..].into()], NOW).unwrap();
    set.apply_update(&sent, update(1, 5, true, &[ChangeAnswer::Done], &["a"]), NOW);
    assert_eq!((living(&set).len(), set.pending_count()), (0, 1), "the store's entry does not come back");
    let (sent, changes) = batch(&set);
    assert_eq!(changes, ["delete a"]);
    set.apply_update(&sent, update(1, 6, true, &[ChangeAnswer::Done], &[]), NOW);
    assert_eq!((living(&set).len(), set.pending_count()), (0, 0));
}

#[test]
fn an_entry_that_the_store_has_no_room_for_is_dropped() {
    let mut set = EntrySet::default();
    put(&mut set, "a", "1");
    let (sent, _) = batch(&set);
    assert_eq!(set.apply_update(&sent, update(1, 5, false, &[ChangeAnswer::Full], &[]), NOW), 1);
    assert_eq!((living(&set).len(), set.pending_count()), (0, 0));
}

#[test]
fn a_whole_answer_drops_what_it_does_not_hold() {
    let mut set = known(&["a", "b"]);
    put(&mut set, "c", "mine");
    set.apply_update(&[], update(1, 7, true, &[], &["b"]), NOW);
    assert_eq!(living(&set), ["b", "c"]);
    set.apply_update(&[], update(1, 8, false, &[], &["d"]), NOW);
    assert_eq!(living(&set), ["b", "c", "d"], "an answer with news only adds");
}

#[test]
fn a_whole_answer_may_take_several_calls_and_begin_again() {
    let mut set = known(&["a", "b", "c"]);
    let page = |whole: bool, more: bool, names: &[&str]| EntriesUpdate {
        is_more: more,
        ..update(1, 9, whole, &[], names)
    };
    set.apply_update(&[], page(true, true, &["a"]), NOW);
    assert_eq!(living(&set), ["a", "b", "c"]);
    set.apply_update(&[], page(true, true, &["b"]), NOW);
    set.apply_update(&[], page(false, false, &["d"]), NOW);
    assert_eq!(living(&set), ["b", "d"]);
}

#[test]
fn a_store_that_lost_its_memory_gets_the_entries_back_but_not_deleted_ones() {
    for (store, revision) in [(2, 9), (1, 4)] {
        let mut set = known(&["a", "b", "c"]);
        set.delete_all(&[b"c"[..].into()], NOW).unwrap();
        // It could not name its memory.
        set.apply_update(&[], update(0, 9, true, &[], &[]), NOW);
        assert_eq!(
            (living(&set), batch(&set).1),
            (vec!["a".to_owned(), "b".into()], vec!["delete c".into()])
        );
        let first = EntriesUpdate { is_more: true, ..update(store, revision, true, &[], &["d"]) };
        set.apply_update(&[], first, NOW);
        assert_eq!(batch(&set).1, ["delete c"], "not before all that it has is known");
        set.apply_update(&[], update(store, revision, false, &[], &[]), NOW);
        assert_eq!(living(&set), ["a", "b", "d"]);
        let (sent, changes) = batch(&set);
        assert_eq!(changes, ["restore a", "restore b", "delete c"]);
        // Another gateway has deleted b since.
        let answers = [ChangeAnswer::Done, ChangeAnswer::Known, ChangeAnswer::Done];
        set.apply_update(&sent, update(store, revision + 1, false, &answers, &["a"]), NOW);
        assert_eq!((living(&set), set.pending_count()), (vec!["a".to_owned(), "d".into()], 0));
    }
}

#[test]
fn entries_of_an_earlier_process_yield_to_those_of_the_store() {
    let mut set = EntrySet::default();
    set.restore(&entry(b"a", b"old", END), NOW).unwrap();
    set.restore(&entry(b"b", b"old", END), NOW).unwrap();
    set.apply_update(&[], update(1, 5, true, &[], &["a"]), NOW);
    let living = set.list_living(NOW);
    assert_eq!(&*living.iter().find(|entry| *entry.name == *b"a").unwrap().value, b"v");
    assert_eq!(batch(&set).1, ["restore b"]);
}

#[test]
fn only_real_changes_are_reported() {
    let mut set = known(&["a"]);
    assert!(set.take_changed(NOW).is_some() && set.take_changed(NOW).is_none());
    set.apply_update(&[], update(1, 6, true, &[], &["a"]), NOW);
    assert!(set.take_changed(NOW).is_none(), "the same entry, a moment later");
    set.delete_all(&[b"unknown"[..].into()], NOW).unwrap();
    let _ = set.take_changed(NOW);
    assert_eq!(set.take_changed(END).map(|living| living.len()), Some(0), "it ended");
}

/// Runs the task for `seconds` and returns the time of each call, in ms.
async fn run(
    entries: &OperatorEntries,
    seconds: f64,
    say: impl Fn(&PackedCall) -> Result<Vec<u8>, StoreFault>,
    on_change: impl Fn(&[OperatorEntry]),
) -> Vec<u128> {
    let (calls, start) = (RefCell::new(Vec::new()), tokio::time::Instant::now());
    let call = async |packed: &PackedCall| {
        calls.borrow_mut().push(start.elapsed().as_millis());
        say(packed)
    };
    let task = share_entries_by(entries, "sg", call, on_change);
    tokio::time::timeout(Duration::from_secs_f64(seconds), task).await.unwrap_err();
    calls.into_inner()
}

/// The reply of a store that acknowledges all changes and tells nothing.
fn nothing(packed: &PackedCall) -> Result<Vec<u8>, StoreFault> {
    let numbers = [1.0_f64, 1.0, 1.0].map(f64::to_le_bytes).concat();
    Ok([numbers, vec![0; 1 + packed.keys.len() - 3]].concat())
}

#[tokio::test(start_paused = true)]
async fn the_store_is_polled_and_not_too_often() {
    let calls = run(&OperatorEntries::default(), 30.0, nothing, |_| {}).await;
    assert!((95..=155).contains(&calls.len()), "{} calls in 30 s", calls.len());
    let down = run(&OperatorEntries::default(), 30.0, |_| Err(StoreFault::Down), |_| {}).await;
    assert!((95..=155).contains(&down.len()), "{} calls in 30 s", down.len());
    let asked = std::cell::Cell::new(0);
    let more_of_nothing = |packed: &PackedCall| {
        asked.set(asked.get() + 1);
        assert!(asked.get() < 1_000, "it asks on and on");
        let mut reply = nothing(packed)?;
        reply[24] = 1;
        Ok(reply)
    };
    let calls = run(&OperatorEntries::default(), 30.0, more_of_nothing, |_| {}).await;
    assert!((95..=156).contains(&calls.len()), "{} calls in 30 s", calls.len());
}

#[tokio::test(start_paused = true)]
async fn a_change_acts_at_once_and_is_sent_until_the_store_has_it() {
    let entries = OperatorEntries::default();
    let until = Now(Now::read_clock().0 + 600 * SECOND);
    let (reports, sent) = (RefCell::new(Vec::new()), RefCell::new(0));
    let report = |living: &[OperatorEntry]| reports.borrow_mut().push(living.len());
    entries.put(b"first", b"1", until).unwrap();
    let count = |packed: &PackedCall| *sent.borrow_mut() += packed.keys.len() - 3;
    run(
        &entries,
        2.0,
        |packed| {
            count(packed);
            Err(StoreFault::Timeout)
        },
        report,
    )
    .await;
    assert_eq!(*reports.borrow(), [1], "without the store");
    assert!(*sent.borrow() > 4 && entries.pending_count() == 1);
    // Many changes are sent soon, with as many as fit into each call.
    (0..120_u8).for_each(|id| entries.put(&[id], b"1", until).unwrap());
    let calls = run(
        &entries,
        0.1,
        |packed| {
            count(packed);
            nothing(packed)
        },
        report,
    )
    .await;
    assert!(calls.len() <= 4 && calls[2] < 50, "{calls:?}");
    assert_eq!((entries.pending_count(), reports.borrow().last()), (0, Some(&121)));
    assert_eq!(entries.list_living().len(), 121);
}

#[tokio::test(start_paused = true)]
async fn a_change_does_not_wait_for_the_next_poll() {
    let entries = OperatorEntries::default();
    let until = Now(Now::read_clock().0 + 600 * SECOND);
    let later = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        entries.put(b"a", b"1", until).unwrap();
        std::future::pending::<()>().await;
    };
    let calls = tokio::select! {
        calls = run(&entries, 0.15, nothing, |_| {}) => calls,
        () = later => unreachable!("it never ends"),
    };
    assert_eq!(calls, [0, 50]);
}
