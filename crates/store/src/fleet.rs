//! The gateways that count one limit together, as the store reports them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use aws_lc_rs::digest;

use super::RateRule;
use sluicegate_model::{self as model, KeyPart};

/// The state of the gateways with a limit of this name.
pub struct Fleet {
    /// The announcement of this gateway's limit.
    pub announcement: LimitAnnouncement,
    /// Gateways that count it together, this one included; 0 before the first count.
    nodes: AtomicU64,
    /// Lower bound for the number of gateways, however few were counted.
    nodes_least: AtomicU64,
    differs: AtomicBool,
    collides: AtomicBool,
}

/// The announcement of a limit to other gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitAnnouncement {
    pub limit: String,
    /// A hash of the name.
    pub(super) name: [u8; 8],
    /// A hash of the key and the algorithm.
    pub(super) shape: [u8; 4],
    /// A hash of the numbers.
    pub(super) numbers: [u8; 4],
}

/// One server's count of the gateways with a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FleetCount {
    pub nodes: u64,
    /// Some of them have other numbers.
    pub differs: bool,
    /// Others have a limit of this name with another key or algorithm.
    pub collides: bool,
}

// === impl Fleet ===

impl Fleet {
    /// Continues `before` if it belongs to the same limit, whatever its numbers were.
    pub(super) fn adopt_from(
        before: Option<&Arc<Fleet>>,
        config: &model::LimitConfig,
        rules: &[RateRule],
    ) -> Arc<Fleet> {
        let announcement = LimitAnnouncement::new(config, rules);
        let before = before.filter(|before| before.announcement.shape == announcement.shape);
        if let Some(same) = before.filter(|before| before.announcement == announcement) {
            return same.clone();
        }
        let known = before.map_or(0, |before| before.nodes.load(Relaxed));
        let (nodes, nodes_least) = (known.into(), 1.into());
        Arc::new(Fleet { announcement, nodes, nodes_least, differs: false.into(), collides: false.into() })
    }

    /// The number of gateways to assume in an outage; at least 1.
    pub fn nodes(&self) -> u64 {
        self.nodes.load(Relaxed).max(self.nodes_least.load(Relaxed))
    }

    /// Sets the lower bound, and assumes `nodes` gateways until the first count.
    pub(super) fn set_nodes_least(&self, nodes_least: u64, nodes: u64) {
        self.nodes_least.store(nodes_least.max(1), Relaxed);
        let _ = self.nodes.compare_exchange(0, nodes, Relaxed, Relaxed);
    }

    /// Raises the count to that of another process, until the store reports its own.
    pub(super) fn raise_nodes(&self, nodes: u64) {
        self.nodes.fetch_max(nodes, Relaxed);
    }

    /// True if some of them count it by other numbers.
    pub fn differs(&self) -> bool {
        self.differs.load(Relaxed)
    }

    /// True if other gateways use its name for a limit with another key or algorithm.
    pub fn collides(&self) -> bool {
        self.collides.load(Relaxed)
    }

    /// Applies the store's count. For a while after an outage (`forgetful`) the store may not know all gateways
    /// again.
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
    /// Parses the reply to a heartbeat with `limits` limits; `None` if it is malformed.
    pub(super) fn parse_reply(bytes: &[u8], limits: usize) -> Option<Vec<FleetCount>> {
        let one = |bytes: &[u8; 5]| {
            let [a, b, c, d, flags] = *bytes;
            let nodes = u32::from_le_bytes([a, b, c, d]).into();
            FleetCount { nodes, differs: flags & 1 != 0, collides: flags & 2 != 0 }
        };
        let (counts, rest) = bytes.as_chunks::<5>();
        (rest.is_empty() && counts.len() == limits).then(|| counts.iter().map(one).collect())
    }

    /// Merges the counts of two servers, either of which may not know all gateways.
    pub(super) fn merge_with(self, other: FleetCount) -> FleetCount {
        FleetCount {
            nodes: self.nodes.max(other.nodes),
            differs: self.differs || other.differs,
            collides: self.collides || other.collides,
        }
    }
}

// === impl LimitAnnouncement ===

impl LimitAnnouncement {
    fn new(config: &model::LimitConfig, rules: &[RateRule]) -> LimitAnnouncement {
        // The words of the parts are the same in every version.
        let words = config.key.iter().map(KeyPart::words);
        let mut shape: Vec<u8> =
            words.flat_map(|(word, name)| format!("{word}{name}\0").into_bytes()).collect();
        // All variants and rates have the same algorithm.
        shape.extend(rules.first().map(|rule| rule.shape.algorithm_code()));
        let (own, mut viewed): (Vec<usize>, Vec<usize>) =
            (0..rules.len()).partition(|rate| config.counter_rate(*rate) == *rate);
        // The order of the places in the file does not matter.
        viewed
            .sort_by_key(|rate| (rules[*rate].id, rules[*rate].capacity(), rules[*rate].shape.recovery_us()));
        let numbers = own.iter().chain(&viewed).flat_map(|rate| rules[*rate].encode_numbers());
        let numbers: Vec<u8> = numbers.collect();
        LimitAnnouncement {
            limit: config.name.clone(),
            name: hash_text(config.name.as_bytes()),
            shape: hash_text(&shape),
            numbers: hash_text(&numbers),
        }
    }

    /// The field name of the limit in the store, for the gateway `node`.
    pub(super) fn field_name(&self, node: &str) -> Vec<u8> {
        [node.as_bytes(), &self.name].concat()
    }

    /// Appends the announcement in the format of the script.
    pub(super) fn pack_into(&self, into: &mut Vec<u8>) {
        into.extend(self.name);
        into.extend(self.shape);
        into.extend(self.numbers);
    }
}

/// A hash that is the same in all gateways.
fn hash_text<const N: usize>(text: &[u8]) -> [u8; N] {
    let digest = digest::digest(&digest::SHA256, text);
    std::array::from_fn(|index| digest.as_ref()[index])
}
