//! Request ids: 26 characters that sort by time, as ULIDs do.

use std::cell::Cell;

use http::HeaderValue;

use sluicegate_base::clock::Now;
use sluicegate_base::random::RandomNumbers;
use sluicegate_base::wall_clock::WallClock;

/// The id of one request.
#[derive(Debug, Clone)]
pub enum RequestId {
    /// Made here. It is copied rather than allocated, because a rejection needs it only for a moment.
    Made([u8; ID_LENGTH]),
    /// Sent by a trusted proxy.
    Sent(HeaderValue),
}

impl RequestId {
    /// ASCII letters, digits and `-_.:+/=@`.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            RequestId::Made(id) => id,
            RequestId::Sent(id) => id.as_bytes(),
        }
    }

    /// The id as text, of the same characters.
    pub fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The id as the value of a field.
    #[inline]
    pub fn to_value(&self) -> HeaderValue {
        match self {
            RequestId::Made(id) => HeaderValue::from_bytes(id).unwrap_or(HeaderValue::from_static("0")),
            RequestId::Sent(id) => id.clone(),
        }
    }
}

/// Makes request ids. One per worker: nothing is shared, and each starts from its own random seed.
#[derive(Debug)]
pub struct RequestIds {
    wall_clock: WallClock,
    random: RandomNumbers,
    /// The millisecond of the last id, and its ten characters.
    stamp: Cell<(u64, [u8; STAMP_LENGTH])>,
}

/// Ten characters of time (48 of 50 bits) and sixteen random ones (80 bits).
const STAMP_LENGTH: usize = 10;
const ID_LENGTH: usize = 26;
/// Crockford's base 32: no I, L, O or U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// The two characters of each ten bits: half as many steps as one after the other.
static PAIRS: [[u8; 2]; 1024] = {
    let mut pairs = [[0; 2]; 1024];
    let mut bits = 0;
    while bits < pairs.len() {
        pairs[bits] = [ALPHABET[bits >> 5], ALPHABET[bits & 31]];
        bits += 1;
    }
    pairs
};

impl Default for RequestIds {
    fn default() -> RequestIds {
        RequestIds {
            wall_clock: WallClock::new(Now::read_clock()),
            random: RandomNumbers::seeded("request id"),
            stamp: Cell::new((0, [b'0'; STAMP_LENGTH])),
        }
    }
}

impl RequestIds {
    /// A new id for a request that came at `now`.
    #[inline]
    pub fn next_id(&self, now: Now) -> RequestId {
        let ms = self.wall_clock.unix_ms(now);
        let (last_ms, mut stamp) = self.stamp.get();
        if last_ms != ms {
            stamp = encode_base32(ms);
            self.stamp.set((ms, stamp));
        }
        let mut id = [0; ID_LENGTH];
        id[..STAMP_LENGTH].copy_from_slice(&stamp);
        id[STAMP_LENGTH..STAMP_LENGTH + 8].copy_from_slice(&encode_base32::<8>(self.random.next()));
        id[STAMP_LENGTH + 8..].copy_from_slice(&encode_base32::<8>(self.random.next()));
        RequestId::Made(id)
    }
}

/// The lowest `5 * N` bits of `number`, highest first; `N` is even.
#[inline]
fn encode_base32<const N: usize>(number: u64) -> [u8; N] {
    let mut out = [0; N];
    for (index, pair) in out.chunks_exact_mut(2).enumerate() {
        pair.copy_from_slice(&PAIRS[(number >> (5 * (N - 2 - 2 * index)) & 0x3ff) as usize]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_26_letters_and_all_differ() {
        let ids = RequestIds::default();
        let made: std::collections::HashSet<String> =
            (0..10_000).map(|_| ids.next_id(Now(7_000_000_000)).as_str().to_owned()).collect();
        assert_eq!(made.len(), 10_000);
        assert!(made.iter().all(|id| id.len() == 26 && id.bytes().all(|b| ALPHABET.contains(&b))));
    }

    #[test]
    fn ids_sort_by_time() {
        let ids = RequestIds::default();
        let start = Now::read_clock().0;
        let mut last = String::new();
        for ms in [0, 1, 40, 900] {
            let id = ids.next_id(Now(start + ms * 1_000_000)).as_str()[..STAMP_LENGTH].to_owned();
            assert!(id > last, "{id} after {last}");
            last = id;
        }
    }

    #[test]
    fn the_time_is_spelt_as_ulids_spell_it() {
        assert_eq!(&encode_base32::<10>(1_469_922_850_259), b"01ARZ3NDEK");
    }
}
