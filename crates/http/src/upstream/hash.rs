//! FNV-1a hashes of values, and of addresses in four bytes.

use std::net::{IpAddr, SocketAddr};

/// FNV-1a (Fowler, Noll, Vo): the same on every gateway, so that all of them send a value to the same server.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// An address in four bytes, for comparisons. A collision is harmless: an obsolete connection is kept a little longer.
pub(super) fn address_tag(address: &SocketAddr) -> u32 {
    let hash = match address.ip() {
        IpAddr::V4(ip) => fnv1a(&ip.octets()),
        IpAddr::V6(ip) => fnv1a(&ip.octets()),
    };
    (hash >> 32) as u32 ^ hash as u32
}
