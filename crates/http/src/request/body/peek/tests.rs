//! The buffer of a body that comes in pieces.

use super::*;

/// The buffer is never larger than the room that is taken for it, and what is kept is exact.
#[test]
fn a_buffer_is_as_large_as_its_room() {
    for (size, most) in [(700, 10_000), (1, 3_000), (4_096, 65_536), (5_000, 5_001)] {
        let mut read = ReadBytes::One(Bytes::new());
        let mut copied = 0;
        while read.len() + size <= most {
            let piece = Bytes::from(vec![b'x'; size as usize]);
            let (before, capacity) = (capacity_of(&read), read.capacity_with(&piece).min(most));
            read.push(piece, capacity);
            assert!(capacity_of(&read) <= capacity && capacity <= most, "{size} {most}");
            copied += if capacity_of(&read) > before { read.len() } else { 0 };
        }
        assert!(copied <= 4 * most, "{copied} bytes were copied for {most}");
        let bytes = read.into_bytes();
        assert_eq!(bytes.try_into_mut().map_or(0, |bytes| bytes.capacity()) as u64, most / size * size);
    }
}

fn capacity_of(read: &ReadBytes) -> u64 {
    match read {
        ReadBytes::One(bytes) => bytes.len() as u64,
        ReadBytes::Joined(bytes) => bytes.capacity() as u64,
    }
}
