//! Where a request belongs: its target, its host, its normalised path, and the location these lead to.

mod host;
mod path;
mod rules;
mod target;

pub use host::{HostError, canonical_host, host, named_host, settle_host};
pub use path::{PathError, encode, normalise, strip_prefix};
pub use rules::{Candidate, HostMatch, Located, Locations, Loss, PathMatch};
pub use target::{Target, TargetError, check_target, take_authority};
