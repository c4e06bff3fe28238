//! The names of keys, which operators read and type in place of a hash.
//!
//! A [`KeyName`] keeps the text of a key in bounded space, `render` writes it as `part=value`, and `parse` finds the
//! key of such a text again.

mod parse;
mod render;

use std::net::IpAddr;

use super::{KeyInput, KeyPartTag, KeySink, KeySpec, KeyText};
use crate::request::client::ClientIp;
use crate::request::location::Locations;
use sluicegate_base::value_hash::ValueHasher;
use sluicegate_model::LocationConfig;

pub use parse::{NamedKey, ParsedKey};
pub use render::is_same_name;

/// Bytes of a name; a longer one is cut off.
const NAME_MAX: usize = 47;
/// Marks the tag of a value that is kept as a hash.
const HASHED: u8 = 0x80;

/// The text of a key, up to a length.
///
/// Each part is its tag and its value: of an address the version and the octets, of a hashed value 8 bytes, of any
/// other its length up to 255 and as many bytes as fit. A hashed account follows the parts once more, in clear.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyName {
    len: u8,
    bytes: [u8; NAME_MAX],
}

/// Everything that names of keys refer to.
#[derive(Clone, Copy)]
pub struct KeyNaming<'g> {
    /// The rules by which addresses are masked.
    pub clients: &'g ClientIp,
    /// The locations of the configuration, which names of keys show.
    pub locations: &'g [LocationConfig],
    /// The identities of the same locations.
    pub identities: &'g Locations,
    /// Accounts and the values of headers, cookies, parameters and claims are shown as hashes.
    pub hashes_values: bool,
}

/// One part of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamePart<'n> {
    Address(IpAddr),
    /// The client's address, because the request lacked the part.
    FallbackAddress(IpAddr),
    /// The request lacked the part.
    FallbackShared,
    Value {
        bytes: &'n [u8],
        is_cut: bool,
    },
    Hash(u64),
    NoLocation,
    Global,
    /// Cut off.
    Lost,
}

// === impl KeyName ===

impl KeyName {
    /// The name of the key of `subject` by `spec`. With a `hasher`, accounts and values that clients choose are kept
    /// as hashes, because some are passwords; only [`KeyNaming::render_account`] shows the account then.
    #[inline(never)]
    pub fn capture(spec: &KeySpec, subject: &KeyInput<'_>, hasher: Option<&ValueHasher>) -> KeyName {
        let mut text = KeyText(NameSink { name: KeyName::EMPTY, hasher, account: KeyName::EMPTY });
        // A key without a name was not counted.
        let _ = text.write_parts(spec, subject);
        let account = text.0.account;
        text.0.write_bytes(&account.bytes[..usize::from(account.len)]);
        text.0.name
    }

    const EMPTY: KeyName = KeyName { len: 0, bytes: [0; NAME_MAX] };

    /// The parts of the name, without an end: those after the last one are lost.
    fn parts(&self) -> impl Iterator<Item = NamePart<'_>> {
        take_parts(&self.bytes[..usize::from(self.len)])
    }
}

/// The parts of a text, then lost ones without an end.
fn take_parts(mut rest: &[u8]) -> impl Iterator<Item = NamePart<'_>> {
    std::iter::from_fn(move || {
        let part = take_part(&mut rest);
        Some(part.unwrap_or_else(|| {
            rest = &[];
            NamePart::Lost
        }))
    })
}

impl std::fmt::Debug for KeyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyName(MASKED)")
    }
}

/// `None` = the rest is not a whole part.
fn take_part<'n>(rest: &mut &'n [u8]) -> Option<NamePart<'n>> {
    let tag = take_bytes::<1>(rest)?[0];
    if tag & HASHED != 0 {
        return Some(NamePart::Hash(u64::from_le_bytes(take_bytes(rest)?)));
    }
    const IP: u8 = KeyPartTag::Ip as u8;
    const FALLBACK_IP: u8 = KeyPartTag::FallbackIp as u8;
    const FALLBACK_SHARED: u8 = KeyPartTag::FallbackShared as u8;
    const NO_LOCATION: u8 = KeyPartTag::NoLocation as u8;
    const GLOBAL: u8 = KeyPartTag::Global as u8;
    Some(match tag {
        IP => NamePart::Address(take_address(rest)?),
        FALLBACK_IP => NamePart::FallbackAddress(take_address(rest)?),
        FALLBACK_SHARED => NamePart::FallbackShared,
        NO_LOCATION => NamePart::NoLocation,
        GLOBAL => NamePart::Global,
        _ => {
            let len = usize::from(take_bytes::<1>(rest)?[0]);
            let (bytes, after) = rest.split_at(len.min(rest.len()));
            *rest = after;
            NamePart::Value { bytes, is_cut: bytes.len() < len }
        }
    })
}

fn take_address(rest: &mut &[u8]) -> Option<IpAddr> {
    Some(match take_bytes::<1>(rest)?[0] {
        4 => IpAddr::from(take_bytes::<4>(rest)?),
        _ => IpAddr::from(take_bytes::<16>(rest)?),
    })
}

fn take_bytes<const LEN: usize>(rest: &mut &[u8]) -> Option<[u8; LEN]> {
    let (bytes, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*bytes)
}

// === NameSink ===

/// Keeps the text of a key.
struct NameSink<'h> {
    name: KeyName,
    hasher: Option<&'h ValueHasher>,
    /// The part of an account that is hashed, in clear.
    account: KeyName,
}

impl KeySink for NameSink<'_> {
    fn write_bytes(&mut self, bytes: &[u8]) {
        let name = &mut self.name;
        let start = usize::from(name.len);
        let fits = bytes.len().min(NAME_MAX - start);
        name.bytes[start..start + fits].copy_from_slice(&bytes[..fits]);
        name.len += fits as u8;
    }

    fn write_value(&mut self, tag: KeyPartTag, bytes: &[u8]) {
        match (tag, self.hasher) {
            (KeyPartTag::Account | KeyPartTag::Source, Some(hasher)) => {
                if matches!(tag, KeyPartTag::Account) {
                    let (name, account) = (KeyName::EMPTY, KeyName::EMPTY);
                    let mut clear = NameSink { name, hasher: None, account };
                    clear.write_value(tag, bytes);
                    self.account = clear.name;
                }
                self.write_bytes(&[tag as u8 | HASHED]);
                self.write_bytes(&hasher.hash_value(bytes).to_le_bytes());
            }
            // The first digits, as tools show them.
            (KeyPartTag::BodyHash, _) => {
                let digits = bytes.first_chunk().copied().map_or(0, u64::from_be_bytes);
                self.write_bytes(&[tag as u8 | HASHED]);
                self.write_bytes(&digits.to_le_bytes());
            }
            _ => {
                self.write_bytes(&[tag as u8, bytes.len().min(255) as u8]);
                self.write_bytes(bytes);
            }
        }
    }
}

// === FullSink ===

/// Keeps the text of a key in clear; a value beyond 255 bytes is longer than any name that is kept.
struct FullSink(Vec<u8>);

impl KeySink for FullSink {
    fn write_bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn write_value(&mut self, tag: KeyPartTag, bytes: &[u8]) {
        match tag {
            KeyPartTag::BodyHash => {
                self.0.push(tag as u8 | HASHED);
                self.0
                    .extend(bytes.first_chunk().map_or(0, |first| u64::from_be_bytes(*first)).to_le_bytes());
            }
            _ => {
                let kept = &bytes[..bytes.len().min(255)];
                self.0.extend([tag as u8, kept.len() as u8]);
                self.0.extend_from_slice(kept);
            }
        }
    }
}

/// Precedes the name of a part that the request lacked.
const MISSING: &str = "missing:";
/// Follows a value that was cut.
const CUT: &str = "…";

#[cfg(test)]
mod tests;
