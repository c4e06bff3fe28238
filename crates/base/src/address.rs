//! Addresses as text.

use std::io::Write;
use std::net::IpAddr;

/// Appends an address. IPv4 bypasses the formatting machinery, which costs more than the rest of a connection's setup.
pub fn write_address(out: &mut Vec<u8>, ip: IpAddr) {
    let IpAddr::V4(v4) = ip else {
        // Writing to a Vec cannot fail.
        return drop(write!(out, "{ip}"));
    };
    for (index, octet) in v4.octets().iter().enumerate() {
        if index > 0 {
            out.push(b'.');
        }
        out.extend_from_slice(itoa::Buffer::new().format(*octet).as_bytes());
    }
}
