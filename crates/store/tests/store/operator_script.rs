//! The script of operators' entries, at times that the test chooses.

use sluicegate_store::script::operator::{
    self, ChangeAnswer, ChangeKind, ENTRIES_MAX, EntriesUpdate, EntryChange, EntryCursor,
};

use crate::bans::support::{HOUR_US, SECOND_US, START_US};
use crate::support::Redis;

struct Script {
    redis: Redis,
    connection: redis::Connection,
}

fn put(name: &str, value: &str, lasts_us: u64) -> EntryChange {
    EntryChange { name: name.into(), value: value.into(), kind: ChangeKind::Put, lasts_us }
}

fn restore(name: &str, value: &str) -> EntryChange {
    EntryChange { name: name.into(), value: value.into(), kind: ChangeKind::Restore, lasts_us: HOUR_US }
}

fn delete(name: &str) -> EntryChange {
    EntryChange { name: name.into(), value: vec![], kind: ChangeKind::Delete, lasts_us: HOUR_US }
}

impl Script {
    fn start() -> Script {
        Script::start_with(&[])
    }

    fn start_with(options: &[&str]) -> Script {
        let redis = Redis::start_with(options);
        let mut connection = redis.connect();
        let code = operator::operator_script().code;
        redis::cmd("SCRIPT").arg("LOAD").arg(code).exec(&mut connection).unwrap();
        Script { redis, connection }
    }

    fn try_ask(
        &mut self,
        changes: &[EntryChange],
        cursor: EntryCursor,
        at_us: u64,
    ) -> redis::RedisResult<EntriesUpdate> {
        let packed = operator::pack_call("sg", changes, cursor);
        let mut command = redis::cmd("EVALSHA");
        command.arg(operator::operator_script().sha).arg(packed.keys.len());
        packed.keys.iter().for_each(|key| {
            command.arg(key);
        });
        command.arg(&packed.body).arg(START_US + at_us);
        let answer: Vec<u8> = command.query(&mut self.connection)?;
        Ok(operator::parse_reply(&answer, changes.len()).expect("a sound answer"))
    }

    #[track_caller]
    fn ask(&mut self, changes: &[EntryChange], cursor: EntryCursor, at_us: u64) -> EntriesUpdate {
        self.try_ask(changes, cursor, at_us).unwrap()
    }

    /// All entries, as a gateway that knows nothing gets them.
    #[track_caller]
    fn all(&mut self, at_us: u64) -> Vec<(String, u64)> {
        lines(&self.ask(&[], EntryCursor::default(), at_us))
    }
}

/// Names with values, and the time left in seconds.
fn lines(update: &EntriesUpdate) -> Vec<(String, u64)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let told = update.entries.iter();
    told.map(|one| (format!("{}={}", text(&one.name), text(&one.value)), one.left_us / SECOND_US)).collect()
}

fn line(text: &str, left: u64) -> (String, u64) {
    (text.to_owned(), left)
}

#[test]
fn a_gateway_is_told_what_it_does_not_know() {
    let mut script = Script::start();
    let first =
        script.ask(&[put("a", "1", HOUR_US), put("b", "1", 5 * SECOND_US)], EntryCursor::default(), 0);
    assert_eq!(first.answers[..], [ChangeAnswer::Done, ChangeAnswer::Done]);
    assert_eq!(lines(&first), [line("a=1", 3600), line("b=1", 5)]);
    assert!(first.is_whole && !first.is_more);
    let same = script.ask(&[], first.cursor, SECOND_US);
    assert!(same.entries.is_empty() && same.cursor == first.cursor && !same.is_whole);
    let news = script.ask(&[put("a", "2", HOUR_US)], first.cursor, 2 * SECOND_US);
    assert_eq!((lines(&news), news.is_whole), (vec![line("a=2", 3600)], false));
    // An end is no change, but after it the entry is gone.
    let ended = script.ask(&[], news.cursor, 5 * SECOND_US);
    assert!(ended.entries.is_empty() && !ended.is_whole);
    assert_eq!(script.all(5 * SECOND_US), [line("a=2", 3597)]);
    // A deletion makes everyone begin with the first entry.
    let deleted = script.ask(&[delete("a"), put("c", "1", HOUR_US)], ended.cursor, 6 * SECOND_US);
    assert!(deleted.is_whole && lines(&deleted) == [line("c=1", 3600)], "{deleted:?}");
    let again = script.ask(&[delete("a"), delete("never")], deleted.cursor, 7 * SECOND_US);
    assert!(!again.is_whole && again.cursor == deleted.cursor, "nothing changed: {again:?}");
}

#[test]
fn what_is_known_or_was_deleted_is_not_restored() {
    let mut script = Script::start();
    script.ask(&[put("a", "1", HOUR_US), put("b", "1", HOUR_US), delete("b")], EntryCursor::default(), 0);
    script.ask(&[delete("gone")], EntryCursor::default(), 0);
    let changes = [restore("a", "2"), restore("b", "2"), restore("gone", "2"), restore("c", "2")];
    let update = script.ask(&changes, EntryCursor::default(), SECOND_US);
    let known = ChangeAnswer::Known;
    assert_eq!(update.answers[..], [known, known, known, ChangeAnswer::Done]);
    assert_eq!(lines(&update), [line("a=1", 3599), line("c=2", 3600)]);
    // The deletion is forgotten with the time.
    let late = script.ask(&[restore("b", "3")], EntryCursor::default(), HOUR_US + 2 * SECOND_US);
    assert_eq!(late.answers[..], [ChangeAnswer::Done]);
    assert_eq!(
        script.ask(&[put("b", "4", HOUR_US)], late.cursor, 2 * HOUR_US).answers[..],
        [ChangeAnswer::Done]
    );
}

#[test]
fn a_clock_that_is_set_back_lengthens_nothing() {
    let mut script = Script::start();
    let first = script.ask(&[put("a", "1", 60 * SECOND_US)], EntryCursor::default(), HOUR_US);
    let back = script.ask(&[put("b", "1", 60 * SECOND_US)], first.cursor, 0);
    assert_eq!((lines(&back), back.is_whole), (vec![line("b=1", 60)], false), "revisions go on");
    assert_eq!(script.all(30 * SECOND_US), [line("a=1", 30), line("b=1", 30)]);
    assert!(script.all(60 * SECOND_US).is_empty());
}

#[test]
fn a_store_without_its_memory_has_another_name() {
    let mut script = Script::start();
    let mut cursor = script.ask(&[put("a", "1", HOUR_US)], EntryCursor::default(), 0).cursor;
    for (turn, words) in [
        &["FLUSHALL"][..],
        &["DEL", "sg:{operator}"],
        &["DEL", "sg:{operator}:ends"],
        &["DEL", "sg:{operator}:clock"],
        &["SET", "sg:{operator}", "foreign"],
        &["SET", "sg:{operator}:clock", "foreign"],
        &["SET", "sg:{operator}:clock", "forty bytes that are not a clock at all."],
    ]
    .into_iter()
    .enumerate()
    {
        script.redis.command(words);
        let at = (1 + turn as u64) * SECOND_US;
        let update = script.ask(&[], cursor, at);
        assert!(
            cursor.is_lost_in(update.cursor) && update.is_whole && update.entries.is_empty(),
            "{words:?}"
        );
        let restored = script.ask(&[restore("a", "1")], update.cursor, at);
        assert_eq!(restored.answers[..], [ChangeAnswer::Done], "{words:?}");
        assert_eq!(lines(&restored), [line("a=1", 3600)]);
        cursor = restored.cursor;
    }
}

#[test]
fn entries_are_bounded_and_told_in_pages() {
    let mut script = Script::start();
    let all: Vec<EntryChange> = (0..ENTRIES_MAX).map(|id| put(&id.to_string(), "x", HOUR_US)).collect();
    for changes in all.chunks(operator::CHANGES_PER_CALL) {
        let update = script.ask(changes, EntryCursor::default(), 0);
        assert!(update.answers.iter().all(|answer| *answer == ChangeAnswer::Done));
    }
    let full = script.ask(
        &[put("more", "x", HOUR_US), put("7", "y", HOUR_US), delete("8"), put("more", "x", HOUR_US)],
        EntryCursor::default(),
        SECOND_US,
    );
    let done = ChangeAnswer::Done;
    assert_eq!(full.answers[..], [ChangeAnswer::Full, done, done, done]);
    let (mut cursor, mut told, mut calls) = (EntryCursor::default(), Vec::new(), 0);
    loop {
        let page = script.ask(&[], cursor, 2 * SECOND_US);
        assert_eq!(page.is_whole, calls == 0);
        told.extend(page.entries.into_iter().map(|entry| entry.name));
        (cursor, calls) = (page.cursor, calls + 1);
        if !page.is_more {
            break;
        }
    }
    told.sort();
    told.dedup();
    assert_eq!((told.len(), calls), (ENTRIES_MAX, ENTRIES_MAX / 200 + 1));
    assert!(script.all(2 * HOUR_US).is_empty(), "they end a thousand at a time, and none is told");
    (0..12).for_each(|_| drop(script.all(2 * HOUR_US)));
    let size: u64 = script.redis.ask(&["ZCARD", "sg:{operator}"]);
    assert_eq!(size, 0);
}

#[test]
fn a_deletion_during_the_pages_begins_them_again() {
    let mut script = Script::start();
    let all: Vec<EntryChange> = (0..450).map(|id| put(&id.to_string(), "x", HOUR_US)).collect();
    all.chunks(50).for_each(|changes| drop(script.ask(changes, EntryCursor::default(), 0)));
    let first = script.ask(&[], EntryCursor::default(), 1);
    let second = script.ask(&[], first.cursor, 2);
    assert!(first.is_whole && first.is_more && !second.is_whole && second.is_more);
    script.ask(&[delete("3")], EntryCursor::default(), 3);
    let again = script.ask(&[], second.cursor, 4);
    assert!(again.is_whole && again.is_more && again.entries.len() == 200);
}

#[test]
fn entries_are_told_while_the_memory_is_full() {
    let mut script = Script::start();
    let first = script.ask(&[put("a", "1", HOUR_US)], EntryCursor::default(), 0);
    script.redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let told = script.ask(&[], EntryCursor::default(), 10 * SECOND_US);
    assert_eq!(lines(&told), [line("a=1", 3590)]);
    assert!(!first.cursor.is_lost_in(told.cursor));
    let refused = script.try_ask(&[put("b", "1", HOUR_US)], first.cursor, 11 * SECOND_US);
    assert_eq!(refused.unwrap_err().code(), Some("OOM"));
}
