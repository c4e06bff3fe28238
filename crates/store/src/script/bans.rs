//! Calls of the ban script: how strikes and bans are packed, and how the reply is parsed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use smallvec::SmallVec;

use super::{encode_whole, read_whole, take_bytes};
use crate::{KeyGroup, LuaScript, PackedCall, SharedKey};

/// Maximum number of clients in one call.
pub const CLIENTS_PER_CALL: usize = 100;
/// Maximum number of strikes in one call, unless a single client has more.
pub const STRIKES_PER_CALL: u64 = 10_000;
/// The hash slot of all ban keys: their names share one tag.
pub const BANS_GROUP: KeyGroup = KeyGroup(15_920);

/// The start and the length of a ban.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BanRules {
    /// Strikes that start a ban, within `period_us`.
    pub after: u32,
    /// The span within which strikes count together, in microseconds.
    pub period_us: u64,
    /// The length of a first ban, in microseconds.
    pub first_us: u64,
    /// The longest length of a ban, in microseconds.
    pub longest_us: u64,
}

/// Strikes of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StrikeReport {
    /// The client that the strikes count against.
    pub client: SharedKey,
    /// The number of strikes.
    pub strikes: u32,
    /// Microseconds since the newest of them; all of them count from then.
    pub age_us: u64,
}

/// An active ban; without a length, the end of one before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ban {
    /// Microseconds left when the store answered.
    pub left_us: u64,
    /// The whole length of the ban in microseconds.
    pub lasts_us: u64,
    /// The number of consecutive bans before this one.
    pub repeats: u32,
}

/// The store's answer about the strikes of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrikeAnswer {
    /// The strikes were counted, or too old to be.
    NotBanned,
    /// The client was banned before: nothing was counted.
    Banned(Ban),
    /// The strikes started this ban.
    Started(Ban),
}

/// The reply of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BanUpdate {
    /// One answer per report, in their order.
    pub answers: SmallVec<[StrikeAnswer; 4]>,
    /// Active and lifted bans that were announced after the known ones; the oldest first.
    pub announced: Vec<(SharedKey, Ban)>,
    /// The cursor for the next call.
    pub cursor: BanCursor,
    /// The store announced more.
    pub is_more: bool,
}

/// The position of a gateway in the announcements of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BanCursor {
    /// The number of the last announcement received; 0 = unknown.
    pub number: u64,
    /// Names the memory of the store, which is another one after it was emptied; 0 if unknown.
    pub store: u64,
}

const ANNOUNCED_BYTES: usize = 36;

/// The script of all calls about bans.
pub fn ban_script() -> LuaScript {
    LuaScript::new(concat!(include_str!("log.lua"), include_str!("ban.lua")))
}

/// Packs a call with at most [`CLIENTS_PER_CALL`] reports and as many bans that the store does not know. A call
/// without either only fetches announcements.
pub fn pack_call(
    prefix: &str,
    rules: &BanRules,
    reports: &[StrikeReport],
    unreported: &[(SharedKey, Ban)],
    cursor: BanCursor,
) -> PackedCall {
    let name = |rest: &[&str]| [&[prefix, ":{bans}"], rest].concat().concat().into_bytes();
    let mut keys: SmallVec<[Vec<u8>; 2]> =
        [name(&[]), name(&[":ends"]), name(&[":clock"]), name(&[":store"])].into_iter().collect();
    let mut body = Vec::with_capacity(48 + reports.len() * 28 + unreported.len() * ANNOUNCED_BYTES);
    body.extend([rules.period_us, rules.first_us, rules.longest_us].into_iter().flat_map(encode_whole));
    body.extend(rules.after.to_le_bytes());
    body.extend(encode_whole(cursor.number));
    body.extend(encode_whole(cursor.store));
    // The count fits: it is bounded by the size of a call.
    body.extend((unreported.len() as u32).to_le_bytes());
    for report in reports {
        let id = URL_SAFE_NO_PAD.encode(report.client.0);
        keys.extend([name(&[":", &id]), name(&[":", &id, ":L"])]);
        body.extend(report.client.0);
        body.extend(encode_whole(report.age_us));
        body.extend(report.strikes.to_le_bytes());
    }
    for (client, ban) in unreported {
        keys.push(name(&[":", &URL_SAFE_NO_PAD.encode(client.0)]));
        body.extend(client.0);
        body.extend(encode_whole(ban.left_us));
        body.extend(encode_whole(ban.lasts_us));
        body.extend(ban.repeats.to_le_bytes());
    }
    PackedCall { keys, body }
}

/// Parses the reply to a call with `reports` reports; `None` if it is malformed.
pub fn parse_reply(mut bytes: &[u8], reports: usize) -> Option<BanUpdate> {
    let bytes = &mut bytes;
    let cursor = BanCursor { number: read_whole(bytes)?, store: read_whole(bytes)? };
    let is_more = take_bytes::<1>(bytes)? == [1];
    let mut answers = SmallVec::with_capacity(reports);
    for _ in 0..reports {
        answers.push(match take_bytes::<1>(bytes)? {
            [0] => StrikeAnswer::NotBanned,
            [1] => StrikeAnswer::Banned(read_ban(bytes)?),
            [2] => StrikeAnswer::Started(read_ban(bytes)?),
            _ => return None,
        });
    }
    let mut announced = Vec::with_capacity(bytes.len() / ANNOUNCED_BYTES);
    while !bytes.is_empty() {
        announced.push((SharedKey(take_bytes(bytes)?), read_ban(bytes)?));
    }
    Some(BanUpdate { answers, announced, cursor, is_more })
}

fn read_ban(bytes: &mut &[u8]) -> Option<Ban> {
    let (left_us, lasts_us) = (read_whole(bytes)?, read_whole(bytes)?);
    Some(Ban { left_us, lasts_us, repeats: u32::from_le_bytes(take_bytes(bytes)?) })
}

// === impl StrikeReport ===

impl StrikeReport {
    /// Instead of strikes: the ban of `client`, which gateways may know for `left_us`, is lifted, and its strikes are
    /// forgotten.
    pub fn lift_ban(client: SharedKey, left_us: u64) -> StrikeReport {
        StrikeReport { client, strikes: 0, age_us: left_us }
    }
}

// === impl Ban ===

impl Ban {
    /// True for an announcement that the client's ban was lifted.
    pub fn is_lifted(&self) -> bool {
        self.lasts_us == 0
    }
}

// === impl BanCursor ===

impl BanCursor {
    /// True if the store lost its memory before it came to `next`.
    pub fn is_lost_in(self, next: BanCursor) -> bool {
        let is_known = self.store != 0 && next.store != 0;
        is_known && self.store != next.store || next.number < self.number
    }

    /// The cursor to keep after `before`: this one, with the known store name if it has none.
    pub fn merge_after(self, before: BanCursor) -> BanCursor {
        BanCursor { store: if self.store == 0 { before.store } else { self.store }, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAN: Ban = Ban { left_us: 5, lasts_us: 6, repeats: 7 };

    fn encode_ban(ban: &Ban) -> Vec<u8> {
        [&encode_whole(ban.left_us)[..], &encode_whole(ban.lasts_us), &ban.repeats.to_le_bytes()].concat()
    }

    fn answer(pieces: &[&[u8]]) -> Vec<u8> {
        [&encode_whole(9)[..], &encode_whole(4), &[1], &pieces.concat()].concat()
    }

    #[test]
    fn names_share_one_tag_and_cannot_meet() {
        let rules = BanRules { after: 3, period_us: 1, first_us: 2, longest_us: 3 };
        let report = StrikeReport { client: SharedKey([0xff; 16]), strikes: 1, age_us: 0 };
        let other = (SharedKey([0; 16]), BAN);
        let names = pack_call("sg", &rules, &[report], &[other], BanCursor::default()).keys;
        let names: Vec<_> = names.iter().map(|name| str::from_utf8(name).unwrap()).collect();
        let id = "_____________________w";
        let own = [format!("sg:{{bans}}:{id}"), format!("sg:{{bans}}:{id}:L")];
        let other = "sg:{bans}:AAAAAAAAAAAAAAAAAAAAAA";
        assert_eq!(names[..4], ["sg:{bans}", "sg:{bans}:ends", "sg:{bans}:clock", "sg:{bans}:store"]);
        assert_eq!(names[4..], [&own[0], &own[1], other]);
    }

    #[test]
    fn an_answer_is_read() {
        let client = [3; 16];
        let bytes =
            answer(&[&[0], &[2], &encode_ban(&BAN), &[1], &encode_ban(&BAN), &client, &encode_ban(&BAN)]);
        let update = parse_reply(&bytes, 3).unwrap();
        assert_eq!(
            update.answers[..],
            [StrikeAnswer::NotBanned, StrikeAnswer::Started(BAN), StrikeAnswer::Banned(BAN)]
        );
        assert_eq!(update.announced, [(SharedKey(client), BAN)]);
        assert_eq!((update.cursor, update.is_more), (BanCursor { number: 9, store: 4 }, true));
        for length in 0..bytes.len() - ANNOUNCED_BYTES {
            assert_eq!(parse_reply(&bytes[..length], 3), None, "{length} bytes");
        }
    }

    #[test]
    fn an_answer_that_is_none_is_refused() {
        for number in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            let bytes = answer(&[&[1], &f64::to_le_bytes(number), &encode_whole(1), &[0; 4]]);
            assert_eq!(parse_reply(&bytes, 1), None, "{number}");
        }
        assert_eq!(parse_reply(&answer(&[&[3]]), 1), None);
        assert_eq!(parse_reply(&answer(&[&[0], &[0; 35]]), 1), None);
        assert_eq!(parse_reply(b"", 0), None);
    }
}
