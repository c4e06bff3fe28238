//! The gateways that count one limit together, as the store tells of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use aws_lc_rs::digest;

use super::RateRule;
use crate::config::{self, KeyPart, ValueSource};

/// What is known of the other gateways with a limit of this name.
pub struct Fleet {
    pub announcement: LimitAnnouncement,
    /// Gateways that count it together, this one included; 0 as long as nobody has counted them.
    nodes: AtomicU64,
    /// Gateways that are to be reckoned with, however few were counted.
    nodes_least: AtomicU64,
    differs: AtomicBool,
    collides: AtomicBool,
}

/// What a gateway tells the others of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitAnnouncement {
    pub limit: String,
    /// A hash of the name.
    pub(super) name: [u8; 8],
    /// What is counted, and by what: the key and the algorithm.
    pub(super) shape: [u8; 4],
    /// How much of it is allowed.
    pub(super) numbers: [u8; 4],
}

/// What one server knows of the gateways with a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FleetCount {
    pub nodes: u64,
    /// Some of them have other numbers.
    pub differs: bool,
    /// Others have a limit of this name that counts something else.
    pub collides: bool,
}

// === impl Fleet ===

impl Fleet {
    /// As it was `before`, if that is the fleet of the same limit, whatever its numbers were.
    pub(super) fn adopt_from(
        before: Option<&Arc<Fleet>>,
        config: &config::LimitConfig,
        rules: &[RateRule],
    ) -> Arc<Fleet> {
        let announced = LimitAnnouncement::new(config, rules);
        let before = before.filter(|before| before.announcement.shape == announced.shape);
        if let Some(same) = before.filter(|before| before.announcement == announced) {
            return same.clone();
        }
        let known = before.map_or(0, |before| before.nodes.load(Relaxed));
        Arc::new(Fleet {
            announcement: announced,
            nodes: AtomicU64::new(known),
            nodes_least: AtomicU64::new(1),
            differs: AtomicBool::new(false),
            collides: AtomicBool::new(false),
        })
    }

    /// Gateways that are to be reckoned with in an outage; at least 1.
    pub fn nodes(&self) -> u64 {
        self.nodes.load(Relaxed).max(self.nodes_least.load(Relaxed))
    }

    /// From now on it reckons with so many gateways at least; with `nodes` as long as nobody has counted them.
    pub(super) fn set_nodes_least(&self, nodes_least: u64, nodes: u64) {
        self.nodes_least.store(nodes_least.max(1), Relaxed);
        let _ = self.nodes.compare_exchange(0, nodes, Relaxed, Relaxed);
    }

    /// As another process counted them, until the store does.
    pub(super) fn raise_nodes(&self, nodes: u64) {
        self.nodes.fetch_max(nodes, Relaxed);
    }

    /// Some of them count it by other numbers.
    #[inline]
    pub fn differs(&self) -> bool {
        self.differs.load(Relaxed)
    }

    /// Other gateways use its name for a limit with another key or algorithm.
    pub fn collides(&self) -> bool {
        self.collides.load(Relaxed)
    }

    /// Takes up what the store counted. For a while after an outage (`forgetful`) it may not have heard of all again.
    pub(super) fn apply_count(&self, count: FleetCount, forgetful: bool) {
        let nodes = count.nodes.max(1);
        if forgetful {
            self.nodes.fetch_max(nodes, Relaxed);
        } else {
            self.nodes.store(nodes, Relaxed);
        }
        let limit = self.announcement.limit.as_str();
        if !self.differs.swap(count.differs, Relaxed) && count.differs {
            tracing::warn!(limit, "the numbers of this limit differ from those of other gateways");
        }
        if !self.collides.swap(count.collides, Relaxed) && count.collides {
            tracing::warn!(
                limit,
                "other gateways on this Redis use the name for a limit with another key or algorithm; \
                 give each service a state.redis.prefix of its own"
            );
        }
    }
}

// === impl FleetCount ===

impl FleetCount {
    /// Of the answer to a beat that told of `limits` limits; `None` if it is not one.
    pub(super) fn parse_reply(bytes: &[u8], limits: usize) -> Option<Vec<FleetCount>> {
        let one = |bytes: &[u8; 5]| {
            let [a, b, c, d, flags] = *bytes;
            let nodes = u32::from_le_bytes([a, b, c, d]).into();
            FleetCount { nodes, differs: flags & 1 != 0, collides: flags & 2 != 0 }
        };
        let (counts, rest) = bytes.as_chunks::<5>();
        (rest.is_empty() && counts.len() == limits).then(|| counts.iter().map(one).collect())
    }

    /// What two servers know, of which either may not have heard of all gateways.
    pub(super) fn merge_with(self, other: FleetCount) -> FleetCount {
        FleetCount {
            nodes: self.nodes.max(other.nodes),
            differs: self.differs || other.differs,
            collides: self.collides || other.collides,
        }
    }
}

// === impl Announced ===

impl LimitAnnouncement {
    fn new(config: &config::LimitConfig, rules: &[RateRule]) -> LimitAnnouncement {
        let mut shape: Vec<u8> = config.key.iter().flat_map(key_part_text).collect();
        // One kind for all variants and rates.
        shape.extend(rules.first().map(RateRule::algorithm_code));
        let numbers: Vec<u8> = rules.iter().flat_map(RateRule::encode_numbers).collect();
        LimitAnnouncement {
            limit: config.name.clone(),
            name: hash_text(config.name.as_bytes()),
            shape: hash_text(&shape),
            numbers: hash_text(&numbers),
        }
    }

    /// What the store calls it, as told by the gateway `node`.
    pub(super) fn field_name(&self, node: &str) -> Vec<u8> {
        [node.as_bytes(), &self.name].concat()
    }

    /// As the script reads it.
    pub(super) fn pack_into(&self, into: &mut Vec<u8>) {
        into.extend(self.name);
        into.extend(self.shape);
        into.extend(self.numbers);
    }
}

/// What tells a part of a key from any other, in every version.
fn key_part_text(part: &KeyPart) -> Vec<u8> {
    let (word, name) = match part {
        KeyPart::Ip => ("ip", ""),
        KeyPart::Account => ("account", ""),
        KeyPart::Tier => ("tier", ""),
        KeyPart::Uri => ("uri", ""),
        KeyPart::Location => ("location", ""),
        KeyPart::Host => ("host", ""),
        KeyPart::Method => ("method", ""),
        KeyPart::Global => ("global", ""),
        KeyPart::Source(ValueSource::Header(name)) => ("header:", name.as_str()),
        KeyPart::Source(ValueSource::Cookie(name)) => ("cookie:", name.as_str()),
        KeyPart::Source(ValueSource::Query(name)) => ("query:", name.as_str()),
        KeyPart::Source(ValueSource::Jwt(name)) => ("jwt:", name.as_str()),
    };
    [word.as_bytes(), name.as_bytes(), b"\0"].concat()
}

/// A hash that all gateways agree on.
fn hash_text<const N: usize>(text: &[u8]) -> [u8; N] {
    let digest = digest::digest(&digest::SHA256, text);
    std::array::from_fn(|place| digest.as_ref()[place])
}
