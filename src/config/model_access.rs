//! The typed model of who may come in, and of bans.

use std::sync::Arc;

use ipnet::IpNet;

/// One of `ip_sets`.
#[derive(Debug, Clone)]
pub struct IpSet {
    pub name: String,
    pub networks: Arc<[IpNet]>,
}

/// Networks written into a field, and sets named there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks {
    pub written: Vec<IpNet>,
    /// Indices into [`super::Config::ip_sets`].
    pub sets: Vec<usize>,
}

/// The `access` section: deny beats allow beats bypass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// `None` = any.
    pub allow: Option<Networks>,
    pub deny: Networks,
    /// No limits and no bans.
    pub bypass: Networks,
}

impl Networks {
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.sets.is_empty()
    }
}
