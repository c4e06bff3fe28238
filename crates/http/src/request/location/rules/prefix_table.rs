//! A sorted table of byte strings that finds all those that a text begins with.

/// Values by prefix.
#[derive(Debug)]
pub(super) struct PrefixTable<T> {
    /// Entries in byte order: the longest prefix of a text is the nearest entry before it or an ancestor of that one.
    entries: Vec<PrefixEntry<T>>,
}

#[derive(Debug)]
struct PrefixEntry<T> {
    prefix: Box<[u8]>,
    /// The longest other entry that this prefix starts with.
    parent: Option<usize>,
    value: T,
}

impl<T> PrefixTable<T> {
    /// Each prefix stands for itself: the last value of equal ones would win.
    pub(super) fn new(values: impl IntoIterator<Item = (Box<[u8]>, T)>) -> PrefixTable<T> {
        let entry = |(prefix, value)| PrefixEntry { prefix, parent: None, value };
        let mut table = PrefixTable { entries: values.into_iter().map(entry).collect() };
        table.entries.sort_by(|a, b| a.prefix.cmp(&b.prefix));
        for at in 1..table.entries.len() {
            // In byte order every entry that this one starts with is the entry before it or an ancestor of that one.
            let parent = table.ancestor_or_self(Some(at - 1), &table.entries[at].prefix);
            table.entries[at].parent = parent;
        }
        table
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All prefixes with their values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &T)> {
        self.entries.iter().map(|entry| (&*entry.prefix, &entry.value))
    }

    /// The values of the prefixes of `text`, longest first.
    #[inline]
    pub(super) fn find_prefixes<'s>(&'s self, text: &[u8]) -> impl Iterator<Item = &'s T> + use<'s, T> {
        let next = self.entries.partition_point(|entry| *entry.prefix <= *text);
        let mut at = self.ancestor_or_self(next.checked_sub(1), text);
        std::iter::from_fn(move || {
            let entry = &self.entries[at?];
            at = entry.parent;
            Some(&entry.value)
        })
    }

    /// The first entry that `text` starts with, from `at` upwards.
    #[inline]
    fn ancestor_or_self(&self, mut at: Option<usize>, text: &[u8]) -> Option<usize> {
        while let Some(index) = at {
            let entry = &self.entries[index];
            if text.starts_with(&entry.prefix) {
                break;
            }
            at = entry.parent;
        }
        at
    }
}
