//! Finds the key that an operator names.

use std::borrow::Cow;
use std::hash::Hasher;
use std::net::IpAddr;

use http::Method;
use percent_encoding::percent_decode_str;
use siphasher::sip128::Hasher128;

use super::render::push_part_name;
use super::{CUT, KeyNaming, MISSING};
use crate::request::key::{KeyHasher, KeyPartTag, KeySink, KeySpec, KeyText};
use crate::request::location;
use sluicegate_base::value_hash::sha256;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{KeyPart, MissingKey};

/// The key that a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedKey {
    /// The name shows the whole text of the key.
    Known(ParsedKey),
    /// The name shows a hash, or only the beginning of a value: only those that remember the key know it.
    Hidden,
}

/// A key by its whole text, from which come the hashes that limits count by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedKey {
    text: Vec<u8>,
    address: Option<IpAddr>,
}

impl ParsedKey {
    /// The key by which one process, or several with the same secret, count.
    pub fn counter_key(&self, keys: &KeyHasher) -> CounterKey {
        let mut hasher = keys.hasher;
        hasher.write(&self.text);
        let id = hasher.finish128().as_u128();
        // The network of other keys is not known; it matters only while the table is full.
        CounterKey::new(id, self.address.map_or(id as u64, |ip| keys.hash_prefix(ip)))
    }

    /// The key by which all gateways count, as of [`hash_shared`](crate::request::key::hash_shared).
    pub fn shared_key(&self) -> [u8; 16] {
        sha256(&self.text)
    }
}

impl KeySink for ParsedKey {
    fn write_bytes(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }
}

/// The subject of the parser's messages.
struct NamedBy<'a> {
    limit: &'a str,
    spec: &'a KeySpec,
}

impl KeyNaming<'_> {
    /// The key that `text` names among those of a limit: `part=value`, several parts in the limit's order with commas
    /// between them, values percent-encoded where they contain a comma or a percent sign.
    ///
    /// # Errors
    /// The text is no name of a key of this limit.
    pub fn parse_name(&self, limit: &str, spec: &KeySpec, text: &str) -> Result<NamedKey, String> {
        let named_by = NamedBy { limit, spec };
        let pieces: Vec<&str> = match spec.parts.len() {
            // The comma of a value needs no escape then.
            1 => vec![text],
            _ => text.split(',').collect(),
        };
        if pieces.len() != spec.parts.len() {
            return Err(named_by.wrong_shape());
        }
        let mut key = KeyText(ParsedKey::default());
        let mut is_hidden = false;
        for (part, piece) in spec.parts.iter().zip(pieces) {
            is_hidden |= !self.parse_part(&mut key, &named_by, part, piece)?;
        }
        Ok(if is_hidden { NamedKey::Hidden } else { NamedKey::Known(key.0) })
    }

    /// Adds the text of one part to the key; false if its value is hidden.
    fn parse_part(
        &self,
        key: &mut KeyText<ParsedKey>,
        named_by: &NamedBy<'_>,
        part: &KeyPart,
        piece: &str,
    ) -> Result<bool, String> {
        let (name, value) = match piece.split_once('=') {
            Some((name, value)) => (decode(name), Some(value)),
            None => (decode(piece), None),
        };
        let own_name = part_name(part);
        if let Some(missing) = name.strip_prefix(MISSING.as_bytes()) {
            return match named_by.spec.missing {
                _ if *missing != *decode(&own_name) => Err(named_by.wrong_shape()),
                MissingKey::Ip => {
                    let ip = self.parse_address(named_by, &own_name, value.unwrap_or_default())?;
                    key.write_ip(KeyPartTag::FallbackIp, ip);
                    key.0.address = Some(ip);
                    Ok(true)
                }
                MissingKey::Shared if value.is_none() => {
                    key.write_tag(KeyPartTag::FallbackShared);
                    Ok(true)
                }
                _ => Err(named_by.wrong_shape()),
            };
        }
        if *name != *decode(&own_name) || value.is_none() != (*part == KeyPart::Global) {
            return Err(named_by.wrong_shape());
        }
        let value = value.unwrap_or_default();
        if value.is_empty() && *part != KeyPart::Global {
            return Err(format!("`{own_name}` has no value: write {}", part_template(part)));
        }
        if self.is_hidden(part, value) {
            return Ok(false);
        }
        self.write_value(key, named_by, part, value)?;
        Ok(true)
    }

    fn write_value(
        &self,
        key: &mut KeyText<ParsedKey>,
        named_by: &NamedBy<'_>,
        part: &KeyPart,
        value: &str,
    ) -> Result<(), String> {
        let bytes = decode(value);
        match part {
            KeyPart::Ip => {
                let ip = self.parse_address(named_by, "ip", value)?;
                key.write_ip(KeyPartTag::Ip, ip);
                key.0.address = Some(ip);
            }
            KeyPart::Global => key.write_tag(KeyPartTag::Global),
            KeyPart::Account => key.0.write_value(KeyPartTag::Account, &bytes),
            KeyPart::Priority => key.0.write_value(KeyPartTag::Priority, &bytes),
            KeyPart::Tier => key.0.write_value(KeyPartTag::Tier, &bytes),
            KeyPart::Uri => key.0.write_value(KeyPartTag::Uri, &bytes),
            KeyPart::Source(_) | KeyPart::Mcp(_) => key.0.write_value(KeyPartTag::Source, &bytes),
            // Always hidden.
            KeyPart::BodyHash => {}
            KeyPart::Host => {
                let host = str::from_utf8(&bytes).ok().and_then(|host| location::canonical_host(host).ok());
                let Some(host) = host else { return Err(format!("`{value}` is not a host")) };
                key.0.write_value(KeyPartTag::Host, host.as_bytes());
            }
            KeyPart::Method => {
                let Ok(method) = Method::from_bytes(&bytes.to_ascii_uppercase()) else {
                    return Err(format!("`{value}` is not a method"));
                };
                key.0.write_value(KeyPartTag::Method, method.as_str().as_bytes());
            }
            KeyPart::Location if *bytes == *b"none" => key.write_tag(KeyPartTag::NoLocation),
            KeyPart::Location => {
                let identity = self.find_identity(&bytes)?;
                key.0.write_value(KeyPartTag::Location, &identity.to_le_bytes());
            }
        }
        Ok(())
    }

    /// True if the value is shown as a hash or cut.
    fn is_hidden(&self, part: &KeyPart, value: &str) -> bool {
        let bytes = decode(value);
        let is_value = matches!(part, KeyPart::Account | KeyPart::Source(_) | KeyPart::Mcp(_));
        let may_be_hashed = is_value && self.hashes_values && parse_hash(&bytes).is_some();
        may_be_hashed || *part == KeyPart::BodyHash || bytes.ends_with(CUT.as_bytes())
    }

    /// An address, masked as a client's; the network as it is shown is accepted too.
    fn parse_address(&self, named_by: &NamedBy<'_>, part: &str, value: &str) -> Result<IpAddr, String> {
        let text = String::from_utf8_lossy(&decode(value)).into_owned();
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (&*text, None),
        };
        let Ok(ip) = address.parse::<IpAddr>() else {
            return Err(format!("`{text}` is not an address: write {part}=ADDRESS"));
        };
        let masked = self.clients.mask_address(ip);
        let counted = self.clients.network_prefix(masked).unwrap_or(if masked.is_ipv4() { 32 } else { 128 });
        match prefix {
            Some(prefix) if prefix.parse() != Ok(counted) => Err(format!(
                "limit {} counts such clients by /{counted}, not by /{prefix}: write {part}={masked}",
                named_by.limit
            )),
            _ => Ok(masked),
        }
    }

    /// A location by its name, or by the hash that is shown where the name is not enough.
    fn find_identity(&self, value: &[u8]) -> Result<u64, String> {
        let named: Vec<u64> = self
            .location_names()
            .filter_map(|(identity, name)| (name.as_bytes() == value).then_some(identity))
            .collect();
        let shown = String::from_utf8_lossy(value);
        if let [identity] = named[..] {
            return Ok(identity);
        }
        if !named.is_empty() {
            let all: Vec<String> =
                named.iter().map(|identity| format!("location={shown}#{identity:016x}")).collect();
            return Err(format!("several locations are called `{shown}`: write {}", all.join(" or ")));
        }
        let hash = value.iter().rposition(|&byte| byte == b'#').and_then(|start| parse_hash(&value[start..]));
        hash.ok_or_else(|| format!("no location is called `{shown}`"))
    }
}

impl NamedBy<'_> {
    fn wrong_shape(&self) -> String {
        let names: Vec<String> = self.spec.parts.iter().map(part_name).collect();
        let templates: Vec<String> = self.spec.parts.iter().map(part_template).collect();
        format!("limit {} counts by {}: write {}", self.limit, names.join(" and "), templates.join(","))
    }
}

fn part_name(part: &KeyPart) -> String {
    let mut name = String::new();
    push_part_name(&mut name, part);
    name
}

fn part_template(part: &KeyPart) -> String {
    let value = match part {
        KeyPart::Ip => "ADDRESS",
        KeyPart::Account | KeyPart::Location => "NAME",
        KeyPart::Tier => "TIER",
        KeyPart::Priority => "URGENCY",
        KeyPart::Uri => "PATH",
        KeyPart::Host => "HOST",
        KeyPart::Method => "METHOD",
        KeyPart::Source(_) | KeyPart::Mcp(_) => "VALUE",
        KeyPart::BodyHash => "#HASH",
        KeyPart::Global => return part_name(part),
    };
    format!("{}={value}", part_name(part))
}

fn decode(text: &str) -> Cow<'_, [u8]> {
    percent_decode_str(text).into()
}

/// `#` and sixteen digits.
fn parse_hash(bytes: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(bytes).ok()?.strip_prefix('#')?;
    let is_hash = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| is_hash)
}
