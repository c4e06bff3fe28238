//! Cuts of an input that depend on its bytes alone, so that a seed is an ordinary file and a finding repeats itself.

/// The input in two pieces, in three pieces, and, if it is short, byte by byte.
pub fn cuts(input: &[u8]) -> Vec<Vec<&[u8]>> {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let place = |hash: u64| (hash % (input.len() as u64 + 1)) as usize;
    let (first, second) = (place(hash >> 32), place(hash & 0xffff_ffff));
    let (low, high) = (first.min(second), first.max(second));
    let mut ways =
        vec![vec![&input[..first], &input[first..]], vec![&input[..low], &input[low..high], &input[high..]]];
    if input.len() <= BYTEWISE_MAX {
        ways.push(input.chunks(1).collect());
    }
    ways
}

/// Longer inputs would take too long byte by byte.
const BYTEWISE_MAX: usize = 1024;
