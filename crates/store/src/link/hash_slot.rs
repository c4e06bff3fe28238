//! Hash slots of a Cluster.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::SharedKey;

pub(super) const SLOTS: u16 = 16384;

/// The slot of all keys with `{tag}` in their names: CRC-16/XMODEM modulo 16384, as in the Redis Cluster
/// specification.
pub(super) fn slot_of_tag(tag: &[u8]) -> u16 {
    let step = |crc: u16, &byte: &u8| {
        (0..8).fold(
            crc ^ u16::from(byte) << 8,
            |crc, _| if crc >> 15 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 },
        )
    };
    tag.iter().fold(0, step) % SLOTS
}

/// The slot of all names of `key`; their tag is the key in 22 letters.
pub(super) fn slot_of_key(key: &SharedKey) -> u16 {
    let mut tag = [0; 22];
    // Cannot fail: 16 bytes are 22 letters.
    let letters = URL_SAFE_NO_PAD.encode_slice(key.0, &mut tag).expect("the tag fits");
    slot_of_tag(&tag[..letters])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // `CLUSTER KEYSLOT` of Redis 7.0; the first is the check value of the CRC.
        for (tag, slot) in [("123456789", 0x31C3 % SLOTS), ("", 0), ("foo", 12182), ("user1000", 3443)] {
            assert_eq!(slot_of_tag(tag.as_bytes()), slot, "{tag}");
        }
        assert_eq!(slot_of_key(&SharedKey([0; 16])), slot_of_tag(b"AAAAAAAAAAAAAAAAAAAAAA"));
    }
}
