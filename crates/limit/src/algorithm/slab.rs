//! Slabs with four-byte indices, as the entries of a table keep them.

/// The `slab` crate with four-byte indices, which stay valid until a value is removed; an empty one releases its
/// memory.
pub(crate) struct Slab<T>(::slab::Slab<T>);

/// An empty slab with a greater capacity than this is released.
const CAPACITY_KEPT: usize = 64;

// === impl Slab ===

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab(::slab::Slab::new())
    }
}

impl<T> Slab<T> {
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.0.get(index as usize)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.0.get_mut(index as usize)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.0.insert(value) as u32
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.0.try_remove(index as usize)?;
        if self.0.is_empty() && self.0.capacity() > CAPACITY_KEPT {
            *self = Slab::default();
        }
        Some(value)
    }
}
