//! Writes the name of a key: `part=value`, the parts of a compound key joined by commas.

use std::fmt::Write;
use std::net::IpAddr;

use percent_encoding::{AsciiSet, percent_encode};

use super::{CUT, FullSink, KeyName, KeyNaming, MISSING, NamePart, take_parts};
use crate::request::key::{KeyInput, KeySpec, KeyText};
use sluicegate_base::escape::RESERVED;
use sluicegate_model::{KeyPart, LocationId};

/// The percent-encoded characters of values: with them a name is one line of ASCII that neither an URL nor a page nor a
/// shell reads in another way.
const ENCODED: &AsciiSet = &RESERVED.remove(b'/').remove(b':').remove(b'@').remove(b'+');

impl KeyNaming<'_> {
    /// The name of a key of `spec`.
    pub fn render_name(&self, spec: &KeySpec, name: &KeyName) -> String {
        self.render_parts(spec, name.parts())
    }

    /// The name of the key of `subject` in clear; one beyond `max` bytes is a hash of the key, of which
    /// `id` is one.
    pub fn render_full(&self, spec: &KeySpec, subject: &KeyInput<'_>, id: u128, max: usize) -> String {
        let mut text = KeyText(FullSink(Vec::new()));
        // A key without a name was not counted.
        let _ = text.write_parts(spec, subject);
        let name = self.render_parts(spec, take_parts(&text.0.0));
        match name.len() <= max {
            true => name,
            false => format!("#{:016x}", id as u64),
        }
    }

    /// The name with its account in clear; `None` if it contains no hashed account.
    pub fn render_account(&self, spec: &KeySpec, name: &KeyName) -> Option<String> {
        let mut parts: Vec<NamePart<'_>> = name.parts().take(spec.parts.len() + 1).collect();
        let account = parts.pop().filter(|part| matches!(part, NamePart::Value { .. }))?;
        *parts.get_mut(spec.parts.iter().position(|part| *part == KeyPart::Account)?)? = account;
        Some(self.render_parts(spec, parts.into_iter()))
    }

    fn render_parts<'n>(&self, spec: &KeySpec, parts: impl Iterator<Item = NamePart<'n>>) -> String {
        let mut out = String::new();
        for (part, value) in spec.parts.iter().zip(parts) {
            if !out.is_empty() {
                out.push(',');
            }
            self.render_part(&mut out, part, value);
        }
        out
    }

    fn render_part(&self, out: &mut String, part: &KeyPart, value: NamePart<'_>) {
        if matches!(value, NamePart::FallbackAddress(_) | NamePart::FallbackShared) {
            out.push_str(MISSING);
        }
        push_part_name(out, part);
        if matches!(value, NamePart::FallbackShared | NamePart::Global) {
            return;
        }
        out.push('=');
        match value {
            NamePart::Address(ip) | NamePart::FallbackAddress(ip) => self.push_address(out, ip),
            NamePart::Value { bytes, .. } if *part == KeyPart::Location => self.push_location(out, bytes),
            NamePart::Value { bytes, is_cut } => {
                push_encoded(out, bytes);
                out.push_str(if is_cut { CUT } else { "" });
            }
            NamePart::Hash(hash) => push_hash(out, hash),
            NamePart::NoLocation => out.push_str("none"),
            NamePart::Lost => out.push_str(CUT),
            NamePart::FallbackShared | NamePart::Global => {}
        }
    }

    fn push_address(&self, out: &mut String, ip: IpAddr) {
        // Writing into a String cannot fail.
        let _ = write!(out, "{ip}");
        if let Some(prefix) = self.clients.network_prefix(ip) {
            let _ = write!(out, "/{prefix}");
        }
    }

    /// A location by its name; if others are called the same, or it is gone, with a hash of its rules.
    fn push_location(&self, out: &mut String, identity: &[u8]) {
        let Ok(identity) = identity.try_into().map(u64::from_le_bytes) else { return out.push_str(CUT) };
        let name = self.location_names().find(|(known, _)| *known == identity).map(|(_, name)| name);
        if let Some(name) = name {
            push_encoded(out, name.as_bytes());
        }
        let namesakes =
            self.location_names().filter(|(known, other)| Some(*other) == name && *known != identity);
        if name.is_none() || namesakes.count() > 0 {
            push_hash(out, identity);
        }
    }

    /// The identity and the name of each location.
    pub(super) fn location_names(&self) -> impl Iterator<Item = (u64, &str)> {
        let identity = |index| self.identities.identity_of(LocationId(index));
        self.locations
            .iter()
            .enumerate()
            .map(move |(index, location)| (identity(index), location.name.as_str()))
    }
}

/// The name of a part as names of keys contain it.
pub(super) fn push_part_name(out: &mut String, part: &KeyPart) {
    let (kind, source) = part.words();
    out.push_str(kind);
    push_encoded(out, source.as_bytes());
}

fn push_encoded(out: &mut String, bytes: &[u8]) {
    out.extend(percent_encode(bytes, ENCODED));
}

fn push_hash(out: &mut String, hash: u64) {
    let _ = write!(out, "#{hash:016x}");
}

/// True if `typed` is the name `rendered`, although an URL may have encoded more of it.
pub fn is_same_name(typed: &str, rendered: &str) -> bool {
    let plain = |text: &str| text.replace("%23", "#").replace("%E2%80%A6", CUT).replace("%e2%80%a6", CUT);
    typed == rendered || plain(typed) == plain(rendered)
}
