//! The key that a limit counts a request by: a keyed 128-bit hash of the parts in the limit's `key`.

use std::hash::Hasher;
use std::net::IpAddr;

use http::{HeaderMap, Method};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::request::priority;
use crate::request::source::{BodyValues, SourceInput, SourceValue, Token, read_mcp, read_source};
use sluicegate_base::value_hash::random_secret;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{EnforcedShare, KeyPart, LimitConfig, MissingKey};

mod name;
mod shared;

pub use name::{KeyName, KeyNaming, NamedKey, ParsedKey, is_same_name};
pub use shared::hash_shared;

/// Hashes keys under a secret, which all workers share so that they agree on a key. It is saved with the counters, so
/// that a later process finds them.
#[derive(Clone)]
pub struct KeyHasher {
    secret: [u8; 16],
    /// Keyed, with no input yet.
    hasher: SipHasher13,
    prefix_mask: u64,
    prefix_factor: u64,
}

/// Prefixes among which keys without a known network are spread.
const UNKNOWN_NETWORKS: u64 = 1024;

/// The first byte of the text of a key that a caller names; no tag of a part has it.
const NAMED_BY_CALLER: u8 = 0xff;

/// The `key` and `missing_key` of one limit. Snapshots know bans by the `Debug` text of their key, so its fields keep
/// their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySpec {
    parts: Box<[KeyPart]>,
    missing: MissingKey,
    shape: KeyLayout,
}

/// The keys of one limit.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitKeys {
    /// The key it counts by.
    pub count_key: KeySpec,
    /// The key by which waiting requests take turns, where a missing part falls back to the ip; `None` = arrival order.
    pub fair_key: Option<KeySpec>,
    /// The share of the keys on which the limit acts; `None` = all.
    pub enforced: Option<EnforcedShare>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyLayout {
    /// `ip` alone: never missing, and cached per connection.
    Ip,
    Other,
}

/// The facts of a request that keys are made of.
#[derive(Debug, Clone, Copy)]
pub struct KeyInput<'a> {
    /// Masked by [`crate::request::client::ClientIp::mask_address`].
    pub ip: IpAddr,
    /// [`KeyHasher::hash_ip`] of `ip`, if the connection has cached it.
    pub ip_key: Option<CounterKey>,
    /// The name of the account; `None` if the request names none.
    pub account: Option<&'a [u8]>,
    /// Never empty: without a tier of its own a request is in the default one.
    pub tier: &'a str,
    /// Normalised.
    pub path: &'a [u8],
    /// The query as sent, without its question mark.
    pub query: Option<&'a str>,
    /// [`crate::request::location::Locations::identity_of`]; `None` if no location was found.
    pub location: Option<u64>,
    /// Canonical.
    pub host: &'a str,
    /// The method of the request.
    pub method: &'a Method,
    /// The fields of its head, which parts of keys name.
    pub headers: &'a HeaderMap,
    /// The fields come from a trusted proxy.
    pub trusted_peer: bool,
    /// The source of its claims, if tokens are verified.
    pub token: Option<&'a Token<'a>>,
    /// The values found in the body; `None` = there is none, or nothing reads it.
    pub body: Option<&'a BodyValues>,
}

/// The key of a request, or the reason why it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOutcome {
    /// The key that counts the request.
    Key(CounterKey),
    /// A part is missing, and the limit does not count such requests.
    Skip,
    /// A part is missing, and the limit rejects such requests.
    Missing,
    /// A part occurs twice: 400.
    Duplicate,
}

/// Precedes each part in the hashed text, so that parts of different kinds never collide.
#[derive(Clone, Copy)]
#[repr(u8)]
enum KeyPartTag {
    Ip = 1,
    Account,
    Uri,
    Location,
    NoLocation,
    Host,
    Method,
    Global,
    Source,
    /// The client's address in place of a missing part; an account called `10.0.0.1` has another key.
    FallbackIp,
    FallbackShared,
    Tier,
    Priority,
    BodyHash,
}

// === impl KeyInput ===

impl<'a> KeyInput<'a> {
    /// The urgency of the request; strangers have none of their own.
    pub fn urgency(&self) -> u8 {
        if self.trusted_peer { priority::urgency(self.headers) } else { priority::DEFAULT }
    }

    /// The parts of the request that have values.
    #[inline]
    pub fn sources(&self) -> SourceInput<'a> {
        SourceInput { headers: self.headers, query: self.query, token: self.token, body: self.body }
    }
}

// === impl KeyHasher ===

impl KeyHasher {
    /// A hasher with a new secret.
    pub fn random() -> KeyHasher {
        KeyHasher::from_secret(random_secret())
    }

    /// The hasher of an earlier process, by its [`KeyHasher::secret`].
    pub fn from_secret(secret: [u8; 16]) -> KeyHasher {
        let hasher = SipHasher13::new_with_key(&secret);
        // No key's text is empty, so no key has this hash.
        let prefix = hasher.finish128();
        KeyHasher { secret, hasher, prefix_mask: prefix.h1, prefix_factor: prefix.h2 | 1 }
    }

    /// Confidential: a client that knows it can aim at the counters of others.
    pub fn secret(&self) -> [u8; 16] {
        self.secret
    }

    /// A number by which two processes with the same secret recognise each other.
    pub fn secret_check(&self) -> u64 {
        self.hash_ip(IpAddr::from([0, 0, 0, 0])).id as u64
    }

    /// The key of a limit by `ip` alone; `ip` is masked. Connections cache it.
    #[inline]
    pub fn hash_ip(&self, ip: IpAddr) -> CounterKey {
        let mut text = KeyText(self.hasher);
        text.write_ip(KeyPartTag::Ip, ip);
        CounterKey::new(text.0.finish128().as_u128(), self.hash_prefix(ip))
    }

    /// The key that a caller names by itself.
    pub fn hash_name(&self, name: &[u8]) -> CounterKey {
        let mut hasher = self.hasher;
        // An empty name has a hash of its own, too.
        hasher.write(&[NAMED_BY_CALLER]);
        hasher.write(name);
        let id = hasher.finish128().as_u128();
        CounterKey::new(id, id as u64)
    }

    /// The key of `subject` by `spec`.
    #[inline]
    pub fn hash_key(&self, spec: &KeySpec, subject: &KeyInput<'_>) -> KeyOutcome {
        match spec.shape {
            KeyLayout::Ip => KeyOutcome::Key(subject.ip_key.unwrap_or_else(|| self.hash_ip(subject.ip))),
            KeyLayout::Other => {
                self.hash_parts(spec, subject).map_or_else(|outcome| outcome, KeyOutcome::Key)
            }
        }
    }

    fn hash_parts(&self, spec: &KeySpec, subject: &KeyInput<'_>) -> Result<CounterKey, KeyOutcome> {
        let mut text = KeyText(self.hasher);
        text.write_parts(spec, subject)?;
        let id = text.0.finish128().as_u128();
        Ok(CounterKey::new(id, self.prefix_of(subject, id)))
    }

    /// The client's network, whatever the key is made of: a flood of invented keys shares a counter with itself.
    #[inline]
    fn prefix_of(&self, subject: &KeyInput<'_>, id: u128) -> u64 {
        match subject.ip_key {
            // An application's call, or a client behind a unix socket.
            _ if subject.ip.is_unspecified() => id as u64 % UNKNOWN_NETWORKS,
            Some(ip_key) => ip_key.prefix,
            None => self.hash_prefix(subject.ip),
        }
    }

    /// Keyed, so that no client can aim at a neighbour; not cryptographic, because a collision merely shares an
    /// overflow counter.
    #[inline]
    fn hash_prefix(&self, ip: IpAddr) -> u64 {
        let network = match ip {
            IpAddr::V4(v4) => u64::from(v4.to_bits() >> 16),
            IpAddr::V6(v6) => (v6.to_bits() >> 96) as u64 | 1 << 32,
        };
        let product = u128::from(network ^ self.prefix_mask) * u128::from(self.prefix_factor);
        (product >> 64) as u64 ^ product as u64
    }
}

// === impl KeyOutcome ===

impl KeyOutcome {
    /// The key of a [`KeySpec`] whose missing parts fall back to the ip; `None` = a part occurs twice.
    #[inline]
    pub fn key_or_repeated(self) -> Option<CounterKey> {
        match self {
            KeyOutcome::Key(key) => Some(key),
            KeyOutcome::Duplicate => None,
            KeyOutcome::Skip | KeyOutcome::Missing => unreachable!("a missing part falls back to the ip"),
        }
    }
}

// === impl LimitKeys ===

impl LimitKeys {
    /// The keys of a limit as it is configured.
    pub fn from_limit(limit: &LimitConfig) -> LimitKeys {
        let fair_key = (!limit.fair_by.is_empty()).then(|| KeySpec::new(&limit.fair_by, MissingKey::Ip));
        let count_key = KeySpec::new(&limit.key, limit.missing_key);
        LimitKeys { count_key, fair_key, enforced: limit.enforce }
    }
}

// === impl KeySpec ===

impl KeySpec {
    /// A key of these parts; `missing` says how a request without one of them counts.
    pub fn new(parts: &[KeyPart], missing: MissingKey) -> KeySpec {
        let shape = if *parts == [KeyPart::Ip] { KeyLayout::Ip } else { KeyLayout::Other };
        KeySpec { parts: parts.into(), missing, shape }
    }
}

// === KeyText ===

/// Writes the text of a key to a sink. Every part is its tag, its length and its bytes, so that different lists of
/// parts have different texts.
struct KeyText<H>(H);

/// Consumes the text of a key.
trait KeySink {
    fn write_bytes(&mut self, bytes: &[u8]);
    /// Called with the whole value of a part.
    #[inline]
    fn write_value(&mut self, tag: KeyPartTag, bytes: &[u8]) {
        let mut head = [tag as u8; 9];
        head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.write_bytes(&head);
        self.write_bytes(bytes);
    }
}

impl<H: KeySink> KeyText<H> {
    /// Writes all parts, and replaces missing ones by `missing_key`.
    #[inline]
    fn write_parts(&mut self, spec: &KeySpec, subject: &KeyInput<'_>) -> Result<(), KeyOutcome> {
        for part in &spec.parts {
            if !self.write_part(part, subject)? {
                match spec.missing {
                    MissingKey::Ip => self.write_ip(KeyPartTag::FallbackIp, subject.ip),
                    MissingKey::Shared => self.write_tag(KeyPartTag::FallbackShared),
                    MissingKey::Reject => return Err(KeyOutcome::Missing),
                    MissingKey::Skip => return Err(KeyOutcome::Skip),
                }
            }
        }
        Ok(())
    }

    /// Writes one part; `false` if the request does not have it.
    fn write_part(&mut self, part: &KeyPart, subject: &KeyInput<'_>) -> Result<bool, KeyOutcome> {
        match part {
            KeyPart::Ip => self.write_ip(KeyPartTag::Ip, subject.ip),
            KeyPart::Account => {
                return Ok(self.write_unless_empty(KeyPartTag::Account, subject.account.unwrap_or_default()));
            }
            KeyPart::Tier => self.0.write_value(KeyPartTag::Tier, subject.tier.as_bytes()),
            KeyPart::Uri => self.0.write_value(KeyPartTag::Uri, subject.path),
            KeyPart::Location => match subject.location {
                Some(identity) => self.0.write_value(KeyPartTag::Location, &identity.to_le_bytes()),
                None => self.write_tag(KeyPartTag::NoLocation),
            },
            KeyPart::Host => return Ok(self.write_unless_empty(KeyPartTag::Host, subject.host.as_bytes())),
            KeyPart::Method => self.0.write_value(KeyPartTag::Method, subject.method.as_str().as_bytes()),
            KeyPart::Priority => {
                self.0.write_value(KeyPartTag::Priority, &[b'0'.saturating_add(subject.urgency())]);
            }
            KeyPart::Global => self.write_tag(KeyPartTag::Global),
            KeyPart::Source(source) => return self.write_source(read_source(source, &subject.sources())),
            KeyPart::Mcp(part) => return self.write_source(read_mcp(*part, subject.body)),
            KeyPart::BodyHash => match subject.body.and_then(BodyValues::hash) {
                Some(hash) => self.0.write_value(KeyPartTag::BodyHash, hash),
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    #[inline]
    fn write_source(&mut self, value: SourceValue<'_>) -> Result<bool, KeyOutcome> {
        match value {
            SourceValue::One(found) => self.0.write_value(KeyPartTag::Source, &found),
            SourceValue::Absent => return Ok(false),
            SourceValue::Repeated => return Err(KeyOutcome::Duplicate),
        }
        Ok(true)
    }

    fn write_unless_empty(&mut self, tag: KeyPartTag, bytes: &[u8]) -> bool {
        if !bytes.is_empty() {
            self.0.write_value(tag, bytes);
        }
        !bytes.is_empty()
    }

    /// One write of fixed length; the byte after the tag is the version of the address.
    #[inline]
    fn write_ip(&mut self, tag: KeyPartTag, ip: IpAddr) {
        match ip {
            IpAddr::V4(v4) => {
                let [a, b, c, d] = v4.octets();
                self.0.write_bytes(&[tag as u8, 4, a, b, c, d]);
            }
            IpAddr::V6(v6) => {
                let mut text = [0; 18];
                text[0] = tag as u8;
                text[1] = 6;
                text[2..].copy_from_slice(&v6.octets());
                self.0.write_bytes(&text);
            }
        }
    }

    fn write_tag(&mut self, tag: KeyPartTag) {
        self.0.write_bytes(&[tag as u8]);
    }
}

/// Hashes the text under the secret of this process without storing it.
impl KeySink for SipHasher13 {
    #[inline]
    fn write_bytes(&mut self, bytes: &[u8]) {
        self.write(bytes);
    }
}

#[cfg(test)]
mod tests;
