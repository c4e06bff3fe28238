//! The plan of a call: the rule of each descriptor, and the chain of all of them.

use smallvec::SmallVec;

use super::messages::{RateLimitDescriptor, RateLimitRequest};
use super::wire::RlsFault;
use crate::gateway::{Domain, Gateway, RuleList};
use crate::judge::{DescriptorTerms, JudgedDescriptor};
use sluicegate_http::request::descriptor::{DescriptorFacts, Entries};

/// The most descriptors of a call, and the most entries of a descriptor.
const DESCRIPTORS_MAX: usize = 64;
const ENTRIES_MAX: usize = 64;
/// The most limits that judge one call, counted once for each descriptor.
const PLACES_MAX: usize = 1_024;

/// A call that is understood.
pub(super) struct CallPlan<'c> {
    /// The rule of each descriptor of the call.
    rules: SmallVec<[Option<u16>; 4]>,
    domain: Option<&'c Domain>,
    request: &'c RateLimitRequest,
    entries: SmallVec<[Entries<'c>; 2]>,
}

/// Some descriptors of a call, with one chain for all of them.
pub(super) struct PlannedPart<'c> {
    pub terms: DescriptorTerms<'c>,
    /// The hits are given back.
    pub gives_back: bool,
    /// The index of each of them in the call.
    pub indices: SmallVec<[usize; 4]>,
}

/// The use that a descriptor makes of its hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HitsUse {
    /// Takes them; `None` = as many as the limit costs.
    Charge(Option<u64>),
    /// Only looks.
    Peek,
    GiveBack(u64),
}

// === impl CallPlan ===

impl<'c> CallPlan<'c> {
    /// # Errors
    /// A field of the call is not valid.
    pub(super) fn new(request: &'c RateLimitRequest, gateway: &'c Gateway) -> Result<CallPlan<'c>, RlsFault> {
        check_request(request)?;
        let domain = gateway.calls.domains.find(&request.domain);
        let entries: SmallVec<[Entries<'c>; 2]> = request.descriptors.iter().map(list_entries).collect();
        let rules = entries.iter().map(|entries| domain.and_then(|domain| domain.find_rule(entries)));
        let mut plan = CallPlan { rules: rules.collect(), domain, request, entries };
        plan.drop_replaced();
        Ok(plan)
    }

    /// Drops the rules that rules of other descriptors replace.
    fn drop_replaced(&mut self) {
        let Some(domain) = self.domain.filter(|_| self.rules.len() > 1) else { return };
        let replaced: Vec<u16> = self
            .rules
            .iter()
            .flatten()
            .flat_map(|&rule| domain.rule(rule).replaces.iter().copied())
            .collect();
        for rule in self.rules.iter_mut().filter(|rule| rule.is_some_and(|rule| replaced.contains(&rule))) {
            *rule = None;
        }
    }

    pub(super) fn hits_use(&self, index: usize) -> HitsUse {
        let RateLimitDescriptor { hits_addend, is_negative_hits, .. } = &self.request.descriptors[index];
        let hits = match (hits_addend, self.request.hits_addend) {
            (Some(own), _) => Some(own.value),
            (None, 0) => None,
            (None, hits) => Some(u64::from(hits)),
        };
        match (hits, is_negative_hits) {
            (Some(0), _) => HitsUse::Peek,
            (hits, false) => HitsUse::Charge(hits),
            (hits, true) => HitsUse::GiveBack(hits.unwrap_or(1)),
        }
    }

    /// The descriptors with a rule for which `selects` holds.
    ///
    /// # Errors
    /// A value cannot be counted by, or too many limits judge the call.
    pub(super) fn select(
        &self,
        gateway: &Gateway,
        max_wait_ns: u64,
        selects: impl Fn(HitsUse) -> bool,
    ) -> Result<Option<PlannedPart<'c>>, RlsFault> {
        let Some(domain) = self.domain else { return Ok(None) };
        let (mut list, mut indices) = (RuleList::new(), SmallVec::new());
        let mut descriptors = SmallVec::new();
        let (mut first, mut gives_back) = (0, false);
        for (index, rule) in self.rules.iter().enumerate() {
            let Some(position) = *rule else { continue };
            let hits_use = self.hits_use(index);
            if !selects(hits_use) {
                continue;
            }
            let rule = domain.rule(position);
            let facts = DescriptorFacts::read(&self.entries[index], &rule.read_headers).map_err(|entry| {
                let place = format!("descriptors[{index}].entries[{}].value", entry.index);
                RlsFault::invalid(format!("{place}: a value that is counted by has no control characters"))
            })?;
            let places = first..first + rule.chain.places.len();
            first = places.end;
            if first > PLACES_MAX {
                return Err(RlsFault::invalid(format!(
                    "descriptors: more than {PLACES_MAX} limits judge the call"
                )));
            }
            let hits = match hits_use {
                HitsUse::Charge(hits) => hits,
                HitsUse::Peek => None,
                HitsUse::GiveBack(hits) => {
                    gives_back = true;
                    Some(hits)
                }
            };
            list.push(position);
            indices.push(index);
            descriptors.push(JudgedDescriptor { facts, places, hits });
        }
        if list.is_empty() {
            return Ok(None);
        }
        let chain = domain.chain_of(gateway, &list);
        let terms = DescriptorTerms { chain, descriptors, max_wait_ns };
        Ok(Some(PlannedPart { terms, gives_back, indices }))
    }
}

fn list_entries(descriptor: &RateLimitDescriptor) -> Entries<'_> {
    descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str())).collect()
}

fn check_request(request: &RateLimitRequest) -> Result<(), RlsFault> {
    let RateLimitRequest { domain, descriptors, .. } = request;
    if domain.is_empty() {
        return Err(RlsFault::invalid("domain: it must not be empty"));
    }
    if descriptors.is_empty() || descriptors.len() > DESCRIPTORS_MAX {
        return Err(RlsFault::invalid(format!("descriptors: a call has 1 to {DESCRIPTORS_MAX} of them")));
    }
    for (index, descriptor) in descriptors.iter().enumerate() {
        let entries = &descriptor.entries;
        if entries.is_empty() || entries.len() > ENTRIES_MAX {
            let message =
                format!("descriptors[{index}].entries: a descriptor has 1 to {ENTRIES_MAX} of them");
            return Err(RlsFault::invalid(message));
        }
        if let Some(place) = entries.iter().position(|entry| entry.key.is_empty()) {
            let message = format!("descriptors[{index}].entries[{place}].key: it must not be empty");
            return Err(RlsFault::invalid(message));
        }
    }
    Ok(())
}
