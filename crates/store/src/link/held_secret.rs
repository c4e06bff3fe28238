//! The secret that the gateways of a store share, as this process knows it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Store;

/// The secret, once the store told it; the same after a reload.
#[derive(Clone, Default)]
pub(super) struct HeldSecret(Arc<Mutex<Option<[u8; 16]>>>);

// === impl Store ===

impl Store {
    /// The secret that the gateways of this store share, for hashes that agree; `None` before the store told it. It may
    /// change when the store lost its memory.
    pub fn shared_secret(&self) -> Option<[u8; 16]> {
        *self.secret.0.lock()
    }

    pub(crate) fn hold_secret(&self, secret: [u8; 16]) {
        *self.secret.0.lock() = Some(secret);
    }
}
