//! The `slab` crate with the four-byte indices that table entries keep; an empty slab returns its memory.

/// Values at places that stay theirs until they are removed.
pub(crate) struct Slab<T>(::slab::Slab<T>);

/// More places than this are given back to the system when a slab falls empty.
const CAPACITY_KEPT: usize = 64;

// === impl Slab ===

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab(::slab::Slab::new())
    }
}

impl<T> Slab<T> {
    pub(crate) fn get(&self, place: u32) -> Option<&T> {
        self.0.get(place as usize)
    }

    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.0.get_mut(place as usize)
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.0.insert(value) as u32
    }

    pub(crate) fn remove(&mut self, place: u32) -> Option<T> {
        let value = self.0.try_remove(place as usize)?;
        if self.0.is_empty() && self.0.capacity() > CAPACITY_KEPT {
            *self = Slab::default();
        }
        Some(value)
    }
}
