//! The typed model of the admin API.

use std::net::SocketAddr;

use crate::value::scalars::Secret;

/// The `admin` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// The address of the listener; one that is not a loopback address requires a token.
    pub listen: SocketAddr,
    /// Empty = requests from this host need none. `token: T` is one named `admin` that allows all.
    pub tokens: Vec<AdminToken>,
    /// Host names, beside addresses and `localhost`, that requests without a token may use.
    pub hosts: Vec<String>,
}

/// A token of the admin API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminToken {
    /// Unique; audit lines name the caller by it.
    pub name: String,
    /// Unique.
    pub token: Secret,
    /// The rights of its holder.
    pub allow: AdminRights,
    /// Its holder sees accounts in clear, as one does who may change something.
    pub names: bool,
}

/// The rights of the holder of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminRights {
    /// Everything, changes included.
    All,
    /// Everything that changes nothing.
    Read,
    /// The same, and the numbers of limits.
    Numbers,
}
