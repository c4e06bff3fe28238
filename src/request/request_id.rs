//! Names for requests: 26 characters that sort by time, as ULIDs do.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

use http::HeaderValue;

use crate::base::clock::Now;
use crate::base::wall_clock::Wall;

/// Makes request ids. One per worker: nothing is shared, and each starts from its own random seed.
#[derive(Debug)]
pub struct RequestIds {
    wall: Wall,
    dice: Cell<u64>,
    /// The millisecond last told, and its ten characters.
    stamp: Cell<(u64, [u8; STAMP])>,
}

/// Characters of the time and of chance: 48 bits (of 50) and 80 bits.
const STAMP: usize = 10;
const LENGTH: usize = 26;
/// Crockford's base 32: no I, L, O or U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl RequestIds {
    pub fn new() -> RequestIds {
        let seed = RandomState::new().hash_one("request id");
        RequestIds {
            wall: Wall::new(Now::read()),
            dice: Cell::new(seed),
            stamp: Cell::new((0, [b'0'; STAMP])),
        }
    }

    /// A new id for a request that came at `now`.
    #[inline]
    pub fn next(&self, now: Now) -> HeaderValue {
        let ms = self.wall.unix_ms(now);
        let (mut told, mut stamp) = self.stamp.get();
        if told != ms {
            told = ms;
            stamp = spell(ms);
            self.stamp.set((told, stamp));
        }
        let mut id = [0; LENGTH];
        id[..STAMP].copy_from_slice(&stamp);
        id[STAMP..STAMP + 8].copy_from_slice(&spell::<8>(self.roll()));
        id[STAMP + 8..].copy_from_slice(&spell::<8>(self.roll()));
        HeaderValue::from_bytes(&id).unwrap_or_else(|_| HeaderValue::from_static("0"))
    }

    /// SplitMix64: ids must differ, they need not be secret.
    fn roll(&self) -> u64 {
        let state = self.dice.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.dice.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

impl Default for RequestIds {
    fn default() -> RequestIds {
        RequestIds::new()
    }
}

/// The lowest `5 * N` bits of `number`, highest first.
fn spell<const N: usize>(number: u64) -> [u8; N] {
    let mut out = [0; N];
    for (place, letter) in out.iter_mut().enumerate() {
        *letter = ALPHABET[(number >> (5 * (N - 1 - place)) & 31) as usize];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_26_letters_and_all_differ() {
        let ids = RequestIds::new();
        let made: std::collections::HashSet<String> =
            (0..10_000).map(|_| ids.next(Now(7_000_000_000)).to_str().unwrap().to_owned()).collect();
        assert_eq!(made.len(), 10_000);
        assert!(made.iter().all(|id| id.len() == 26 && id.bytes().all(|b| ALPHABET.contains(&b))));
    }

    #[test]
    fn ids_sort_by_time() {
        let ids = RequestIds::new();
        let start = Now::read().0;
        let mut last = String::new();
        for ms in [0, 1, 40, 900] {
            let id = ids.next(Now(start + ms * 1_000_000)).to_str().unwrap()[..STAMP].to_owned();
            assert!(id > last, "{id} after {last}");
            last = id;
        }
    }

    #[test]
    fn the_time_is_spelt_as_ulids_spell_it() {
        assert_eq!(&spell::<10>(1_469_922_850_259), b"01ARZ3NDEK");
    }
}
