//! The heaviest keys of each limit with their names, and the last refusals: counted by each worker for itself.
//!
//! A request counts its units for each limit while it is judged, and the refused units once that is final. Both
//! are an addition to a summary of bounded size ([`FrequentItems`]), without locks and, once the summary is full,
//! without allocations. Readers copy out of the summaries between two requests; [`report`] puts the copies of all
//! workers together, and [`fleet`] adds up those of several gateways.

pub mod fleet;
mod refusal_log;
pub mod report;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::gateway::Gateway;
use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::Now;
use sluicegate_base::value_hash::ValueHasher;
use sluicegate_http::request::key::{KeyInput, KeyName, KeySpec};
use sluicegate_limit::heavy_hitters::FrequentItems;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::LimitId;
use sluicegate_store::SharedKey;

pub use refusal_log::{REFUSALS_MAX, RefusalFacts, RefusalLog, RefusalRecord};

/// The counts of one worker, of all limits of one gateway.
pub struct WorkerHeavyKeys {
    /// One for each limit.
    limits: Box<[Rc<LimitHeavyKeys>]>,
    /// The units of the request that is being judged, so far.
    current: RefCell<Vec<DemandedUnits>>,
    refusals: Rc<RefusalLog>,
    hasher: Option<ValueHasher>,
}

/// The counts of one worker for one limit. They outlive reloads that change nothing of its identity.
struct LimitHeavyKeys {
    identity: Arc<CountedLimit>,
    /// `None` = the configuration switches them off.
    summaries: Option<RefCell<KeySummaries>>,
}

/// A limit, and everything that the names of its keys depend on.
#[derive(Debug, PartialEq, Eq)]
pub struct CountedLimit {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The parts that names of its keys consist of.
    pub spec: KeySpec,
    /// The prefixes of IPv4 and IPv6 clients.
    prefixes: [Option<u8>; 2],
    hasher: Option<ValueHasher>,
    error_share: Option<usize>,
}

struct KeySummaries {
    asked: FrequentItems<KeyLabel>,
    refused: FrequentItems<KeyLabel>,
    began: Now,
}

/// The memory of a key beside its id.
#[derive(Debug, Clone, Copy)]
pub struct KeyLabel {
    /// The prefix of its [`CounterKey`].
    prefix: u64,
    /// Present for a limit that is counted in the store.
    shared: Option<SharedKey>,
    /// The parts of its name, which [`Gateway::key_naming`] renders.
    pub name: KeyName,
}

/// Units that the request being judged asks of one limit.
struct DemandedUnits {
    limit: LimitId,
    /// The position of the key's counter, until the next request is judged.
    position: usize,
    cost: f64,
}

/// Units that a request asked of one limit, kept while it waits.
pub struct KeptUnits {
    limit: LimitId,
    id: u128,
    cost: f64,
    label: KeyLabel,
}

// === impl WorkerHeavyKeys ===

impl WorkerHeavyKeys {
    /// The counts for `gateway`; those of `before` go on where the limit and the form of its names are the same.
    pub fn adopt_from(before: Option<&WorkerHeavyKeys>, gateway: &Gateway, now: Now) -> WorkerHeavyKeys {
        let known: HashMap<&str, &Rc<LimitHeavyKeys>> = before
            .iter()
            .flat_map(|before| before.limits.iter().map(|limit| (&*limit.identity.name, limit)))
            .collect();
        let build = |index| {
            let identity = CountedLimit::new(gateway, LimitId(index));
            let same = known.get(&*identity.name).filter(|known| *known.identity == identity);
            same.map_or_else(|| Rc::new(LimitHeavyKeys::new(identity, now)), |known| Rc::clone(known))
        };
        let hasher = gateway.access_log.hasher().cloned();
        // Other names must not appear beside hashes, nor hashes of another secret.
        let refusals = before.filter(|before| before.hasher == hasher).map(|before| before.refusals.clone());
        WorkerHeavyKeys {
            limits: (0..gateway.limits.len()).map(build).collect(),
            current: RefCell::default(),
            refusals: refusals.unwrap_or_default(),
            hasher,
        }
    }

    /// Forgets the units of the last request.
    #[inline]
    pub fn begin_request(&self) {
        self.current.borrow_mut().clear();
    }

    /// Counts the units that the request being judged asks of a limit.
    #[inline]
    pub fn count_asked(&self, limit: LimitId, demand: &LimitDemand, subject: &KeyInput<'_>, now: Now) {
        let (units, shared) = match demand {
            LimitDemand::Units(units) => (units, None),
            LimitDemand::Shared(units, key) => (units, Some(*key)),
            LimitDemand::Skip | LimitDemand::MissingKey => return,
        };
        let counted = &self.limits[limit.0];
        let Some(summaries) = &counted.summaries else { return };
        let cost = units.cost.max(1) as f64;
        let label = || {
            let name = KeyName::capture(&counted.identity.spec, subject, self.hasher.as_ref());
            KeyLabel { prefix: units.key.prefix, shared, name }
        };
        let position = summaries.borrow_mut().asked.count_units(units.key.id, cost, now, label);
        self.current.borrow_mut().push(DemandedUnits { limit, position, cost });
    }

    /// The parts that names of the keys of a limit consist of.
    pub fn spec_of(&self, limit: LimitId) -> &KeySpec {
        &self.limits[limit.0].identity.spec
    }

    /// The units of the request that was just judged, to be kept while it waits.
    #[cold]
    pub fn keep_units(&self) -> Box<[KeptUnits]> {
        let current = self.current.borrow();
        let keep = |asked: &DemandedUnits| {
            let summaries = self.limits[asked.limit.0].summaries.as_ref()?.borrow();
            let (id, &label) = summaries.asked.item_at(asked.position)?;
            Some(KeptUnits { limit: asked.limit, id, cost: asked.cost, label })
        };
        current.iter().filter_map(keep).collect()
    }

    /// The name of the key that a request asked `limit` under, from its kept units.
    pub fn name_key(&self, gateway: &Gateway, limit: LimitId, kept: &[KeptUnits]) -> Option<String> {
        let own = kept.iter().find(|own| own.limit == limit)?;
        Some(gateway.key_naming().render_name(&self.limits[limit.0].identity.spec, &own.label.name))
    }

    /// Counts the units that a limit refuses finally, and adds a `refusal` with its location to the last ones. `kept`
    /// is for a request that has waited; `None` = it is the one that was just judged.
    pub fn count_refused(
        &self,
        limit: LimitId,
        kept: Option<&[KeptUnits]>,
        now: Now,
        refusal: Option<(Option<&Arc<str>>, RefusalFacts)>,
    ) {
        let counted = &self.limits[limit.0];
        let mut summaries = counted.summaries.as_ref().map(RefCell::borrow_mut);
        let label = summaries.as_mut().and_then(|summaries| {
            let KeySummaries { asked, refused, .. } = &mut **summaries;
            let position = match kept {
                Some(kept) => {
                    let own = kept.iter().find(|own| own.limit == limit)?;
                    refused.count_units(own.id, own.cost, now, || own.label)
                }
                None => {
                    let current = self.current.borrow();
                    let own = current.iter().find(|own| own.limit == limit)?;
                    let (id, label) = asked.item_at(own.position)?;
                    refused.count_units(id, own.cost, now, || *label)
                }
            };
            refused.item_at(position).map(|(_, label)| label)
        });
        if let Some((location, facts)) = refusal {
            self.refusals.push(&counted.identity, label.map(|label| &label.name), location, facts);
        }
    }
}

// === impl LimitHeavyKeys ===

impl LimitHeavyKeys {
    fn new(identity: CountedLimit, now: Now) -> LimitHeavyKeys {
        let summaries = identity.error_share.map(|error_share| {
            RefCell::new(KeySummaries {
                asked: FrequentItems::new(error_share, now),
                refused: FrequentItems::new(error_share, now),
                began: now,
            })
        });
        LimitHeavyKeys { identity: Arc::new(identity), summaries }
    }
}

// === impl CountedLimit ===

impl CountedLimit {
    /// The identity of a limit of `gateway`, which must be the same for counts to go on.
    pub fn new(gateway: &Gateway, limit: LimitId) -> CountedLimit {
        let limit = &gateway.limits[limit.0];
        let prefixes = [[0; 4].into(), [0_u16; 8].into()].map(|ip| gateway.clients.network_prefix(ip));
        CountedLimit {
            name: limit.name.clone(),
            spec: KeySpec::new(&limit.config.key, limit.config.missing_key),
            prefixes,
            hasher: gateway.access_log.hasher().cloned(),
            error_share: gateway.config.state.heavy_hitters,
        }
    }

    /// True if names are kept at all.
    pub fn is_counted(&self) -> bool {
        self.error_share.is_some()
    }
}

// === impl KeyLabel ===

impl KeyLabel {
    /// The key of the counters in this process, by the item's `id`.
    pub fn counter_key(&self, id: u128) -> CounterKey {
        CounterKey::new(id, self.prefix)
    }
}

#[cfg(test)]
mod tests;
