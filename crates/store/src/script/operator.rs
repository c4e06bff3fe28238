//! Calls of the script of operators' entries: how changes are packed, and how the reply is parsed.

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use smallvec::SmallVec;

use super::{encode_whole, read_whole, take_bytes};
use crate::{KeyGroup, LuaScript, PackedCall};

/// The longest name of an entry, in bytes.
pub const NAME_MAX: usize = 512;
/// The longest value of an entry, in bytes.
pub const VALUE_MAX: usize = 2048;
/// Maximum number of living entries.
pub const ENTRIES_MAX: usize = 12_000;
/// Maximum number of changes in one call.
pub const CHANGES_PER_CALL: usize = 50;
/// The hash slot of all keys of operators: their names share one tag.
pub const OPERATOR_GROUP: KeyGroup = KeyGroup(15_208);

/// A change of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryChange {
    /// The name of the entry.
    pub name: Vec<u8>,
    /// Empty for a deletion.
    pub value: Vec<u8>,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The time that the entry lasts; of a deletion, the time that gateways may still know the entry.
    pub lasts_us: u64,
}

/// The kind of a change, by its number in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Puts the entry, or replaces the one of its name.
    Put = 1,
    /// Deletes the entry.
    Delete,
    /// Puts the value unless the store knows the name: it has lost its memory, or the entry was changed since.
    Restore,
}

/// The store's answer to one change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeAnswer {
    /// The change was made.
    Done,
    /// The store holds [`ENTRIES_MAX`] other entries.
    Full,
    /// Nothing was restored: the store knows the name.
    Known,
}

/// An entry from a reply of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEntry {
    /// The name of the entry.
    pub name: Vec<u8>,
    /// The value of the entry.
    pub value: Vec<u8>,
    /// Microseconds left when the store answered.
    pub left_us: u64,
}

/// The position of a gateway in the store's entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntryCursor {
    /// The revision at the time of the last answer.
    as_of: u64,
    /// The revision up to which entries were received.
    position: u64,
    /// Names the memory of the store; 0 if unknown.
    store: u64,
}

/// The reply of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntriesUpdate {
    /// One answer per change, in their order.
    pub answers: SmallVec<[ChangeAnswer; 4]>,
    /// Entries that were put after the known ones, in their order.
    pub entries: Vec<StoreEntry>,
    /// The cursor for the next call.
    pub cursor: EntryCursor,
    /// More entries follow.
    pub is_more: bool,
    /// The entries are complete from the first on: names that are not among them were deleted.
    pub is_whole: bool,
}

/// The script of all calls about entries.
pub fn operator_script() -> LuaScript {
    LuaScript::new(concat!(include_str!("log.lua"), include_str!("operator.lua")))
}

/// Packs a call with at most [`CHANGES_PER_CALL`] changes; their names and values have at most [`NAME_MAX`] and
/// [`VALUE_MAX`] bytes. A call without any only fetches entries.
pub fn pack_call(prefix: &str, changes: &[EntryChange], cursor: EntryCursor) -> PackedCall {
    let name = |rest: &str| format!("{prefix}:{{operator}}{rest}").into_bytes();
    let mut keys: SmallVec<[Vec<u8>; 2]> = [name(""), name(":ends"), name(":clock")].into_iter().collect();
    let mut body = Vec::with_capacity(24 + changes.len() * 128);
    body.extend([cursor.as_of, cursor.position, cursor.store].into_iter().flat_map(encode_whole));
    for EntryChange { name: entry, value, kind, lasts_us } in changes {
        keys.push(name(&format!(":e:{}", record_id(entry))));
        body.push(*kind as u8);
        body.extend(encode_whole(*lasts_us));
        // The lengths fit: see above.
        body.extend((entry.len() as u16).to_le_bytes());
        body.extend((value.len() as u16).to_le_bytes());
        body.extend(entry);
        body.extend(value);
    }
    PackedCall { keys, body }
}

/// Parses the reply to a call with `changes` changes; `None` if it is malformed.
pub fn parse_reply(mut bytes: &[u8], changes: usize) -> Option<EntriesUpdate> {
    let bytes = &mut bytes;
    let cursor =
        EntryCursor { as_of: read_whole(bytes)?, position: read_whole(bytes)?, store: read_whole(bytes)? };
    let [flags @ 0..=3] = take_bytes::<1>(bytes)? else { return None };
    let mut answers = SmallVec::with_capacity(changes);
    for _ in 0..changes {
        answers.push(match take_bytes::<1>(bytes)? {
            [0] => ChangeAnswer::Done,
            [1] => ChangeAnswer::Full,
            [2] => ChangeAnswer::Known,
            _ => return None,
        });
    }
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let left_us = read_whole(bytes)?;
        let name_bytes = usize::from(u16::from_le_bytes(take_bytes(bytes)?));
        let value_bytes = usize::from(u16::from_le_bytes(take_bytes(bytes)?));
        if name_bytes > NAME_MAX || value_bytes > VALUE_MAX {
            return None;
        }
        let name = bytes.split_off(..name_bytes)?.to_vec();
        entries.push(StoreEntry { name, value: bytes.split_off(..value_bytes)?.to_vec(), left_us });
    }
    Some(EntriesUpdate { answers, entries, cursor, is_more: flags & 1 == 1, is_whole: flags & 2 == 2 })
}

/// The part of the record's name that stands for the entry: a hash, because names may be long.
fn record_id(name: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, name);
    URL_SAFE_NO_PAD.encode(&digest.as_ref()[..16])
}

// === impl EntryCursor ===

impl EntryCursor {
    #[cfg(test)]
    pub(crate) fn at_revision(revision: u64, store: u64) -> EntryCursor {
        EntryCursor { as_of: revision, position: revision, store }
    }

    /// True if the store could name its memory.
    pub fn is_named(self) -> bool {
        self.store != 0
    }

    /// True if the store lost its memory, or a part of it, before it came to `next`.
    pub fn is_lost_in(self, next: EntryCursor) -> bool {
        self.is_named() && (self.store != next.store || next.as_of < self.as_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &[u8], kind: ChangeKind) -> EntryChange {
        EntryChange { name: name.to_vec(), value: vec![], kind, lasts_us: 7 }
    }

    fn answer(flags: u8, answers: &[u8], told: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut bytes = [9, 8, 4].map(encode_whole).concat();
        bytes.push(flags);
        bytes.extend(answers);
        for (name, value) in told {
            bytes.extend(encode_whole(5));
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend((value.len() as u16).to_le_bytes());
            bytes.extend([*name, *value].concat());
        }
        bytes
    }

    #[test]
    fn names_share_one_slot_and_do_not_show_the_entry() {
        let changes = [change(b"a", ChangeKind::Delete), change(&[0xff; NAME_MAX], ChangeKind::Delete)];
        let names = pack_call("sg", &changes, EntryCursor::default()).keys;
        let names: Vec<_> = names.iter().map(|name| str::from_utf8(name).unwrap()).collect();
        assert_eq!(names[..3], ["sg:{operator}", "sg:{operator}:ends", "sg:{operator}:clock"]);
        assert_eq!(names[3], "sg:{operator}:e:ypeBEsobvcr6wjGzmiPcTQ");
        assert_eq!(names[4].len(), names[3].len());
    }

    #[test]
    fn an_answer_is_read() {
        let bytes = answer(3, &[0, 1, 2], &[(b"a", b"1"), (b"", b"")]);
        let update = parse_reply(&bytes, 3).unwrap();
        assert_eq!(update.answers[..], [ChangeAnswer::Done, ChangeAnswer::Full, ChangeAnswer::Known]);
        let entry =
            |name: &[u8], value: &[u8]| StoreEntry { name: name.into(), value: value.into(), left_us: 5 };
        assert_eq!(update.entries, [entry(b"a", b"1"), entry(b"", b"")]);
        assert_eq!(update.cursor, EntryCursor { as_of: 9, position: 8, store: 4 });
        assert!(update.is_more && update.is_whole);
        for length in (0..bytes.len()).filter(|length| ![28, 42].contains(length)) {
            assert_eq!(parse_reply(&bytes[..length], 3), None, "{length} bytes");
        }
    }

    #[test]
    fn an_answer_that_is_none_is_refused() {
        assert_eq!(parse_reply(&answer(4, &[], &[]), 0), None);
        assert_eq!(parse_reply(&answer(0, &[3], &[]), 1), None);
        assert_eq!(parse_reply(&answer(0, &[], &[(&[0; NAME_MAX + 1], b"")]), 0), None);
        assert_eq!(parse_reply(&answer(0, &[], &[(b"", &[0; VALUE_MAX + 1])]), 0), None);
        assert_eq!(parse_reply(b"", 0), None);
        for number in [-1.0, f64::NAN, f64::INFINITY, 1e300_f64] {
            let bytes = [&number.to_le_bytes()[..], &answer(0, &[], &[])[8..]].concat();
            assert_eq!(parse_reply(&bytes, 0), None, "{number}");
        }
    }

    #[test]
    fn a_store_that_lost_its_memory_is_noticed() {
        let at = EntryCursor::at_revision;
        for (known, next, is_lost) in [
            (at(0, 0), at(5, 1), false),
            (at(5, 1), at(6, 1), false),
            (at(5, 1), at(4, 1), true),
            (at(5, 1), at(9, 2), true),
        ] {
            assert_eq!(known.is_lost_in(next), is_lost, "{known:?} {next:?}");
        }
    }
}
