//! The location of a request, by its host, its normalised path and its method.

mod host;
mod path;
mod rules;
mod target;

pub use host::{HostError, canonical_host, named_host, request_host, set_host_header};
pub use path::{PathEdits, PathError, encode_path, normalise_path};
pub use rules::{
    Arrival, HostMatch, LocationCandidate, LocationLookup, Locations, LossReason, PathMatch, UnmetCondition,
};
pub use target::{RequestTarget, TargetError, check_target, take_authority};
