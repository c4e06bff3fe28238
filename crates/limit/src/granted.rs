//! The keys that a limit judges by other numbers, because an operator granted them.

use sluicegate_base::clock::Now;
use sluicegate_model as model;

#[derive(Debug)]
pub(super) struct GrantedKeys(Box<[GrantedKey]>);

#[derive(Debug)]
struct GrantedKey {
    /// The id of the local counter, or of that in the store where the limit is counted there.
    id: u128,
    until: Now,
    variant: usize,
}

// === impl GrantedKeys ===

impl GrantedKeys {
    pub(super) fn new(config: &model::LimitConfig) -> GrantedKeys {
        let first = config.file_variants().count();
        let granted = |(index, grant): (usize, &model::GrantConfig)| GrantedKey {
            id: grant.key.id_in(config),
            until: Now(grant.until_ns),
            variant: first + index,
        };
        let mut keys: Box<[GrantedKey]> = config.grants.iter().enumerate().map(granted).collect();
        keys.sort_unstable_by_key(|key| key.id);
        GrantedKeys(keys)
    }

    /// The variant that judges the key with this id, until its grant ends.
    #[inline]
    pub(super) fn find_variant(&self, id: u128, now: Now) -> Option<usize> {
        if self.0.is_empty() {
            return None;
        }
        let index = self.0.binary_search_by_key(&id, |granted| granted.id).ok()?;
        Some(&self.0[index]).filter(|granted| now < granted.until).map(|granted| granted.variant)
    }
}
