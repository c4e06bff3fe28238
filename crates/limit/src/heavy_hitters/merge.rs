//! Counts copied out of summaries, and their sum over several summaries.

use std::collections::HashMap;

/// The counted items of one summary, or of several together.
#[derive(Debug, Clone)]
pub struct ItemCounts<L> {
    pub items: Vec<ItemCount<L>>,
    /// The most by which each count may be too low, also that of an item which is absent.
    pub error: f64,
}

/// One item with the lower bound of its count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemCount<L> {
    pub id: u128,
    pub count: f64,
    pub label: L,
}

impl<L> Default for ItemCounts<L> {
    fn default() -> ItemCounts<L> {
        ItemCounts { items: Vec::new(), error: 0.0 }
    }
}

impl<L> ItemCounts<L> {
    /// The sum of several summaries: counts of equal ids add up, and so do the errors.
    pub fn merge_all(parts: impl IntoIterator<Item = ItemCounts<L>>) -> ItemCounts<L> {
        let mut merged = ItemCounts::default();
        let mut positions: HashMap<u128, usize> = HashMap::new();
        for part in parts {
            merged.error += part.error;
            for item in part.items {
                match positions.get(&item.id) {
                    Some(&known) => {
                        let known: &mut ItemCount<L> = &mut merged.items[known];
                        known.count += item.count;
                    }
                    None => {
                        positions.insert(item.id, merged.items.len());
                        merged.items.push(item);
                    }
                }
            }
        }
        merged
    }

    /// Keeps the `top` items with the greatest counts, the greatest first.
    pub fn keep_top(&mut self, top: usize) {
        self.items.sort_unstable_by(|one, other| {
            other.count.total_cmp(&one.count).then_with(|| one.id.cmp(&other.id))
        });
        self.items.truncate(top);
    }
}
