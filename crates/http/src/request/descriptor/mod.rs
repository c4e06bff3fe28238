//! Descriptors of Envoy's rate limit service: the rule that one matches, and the facts that its entries state.

mod facts;
mod rules;

use smallvec::SmallVec;

pub use facts::{DescriptorFacts, UnusableEntry};
pub use rules::DescriptorRules;

/// The entries of a descriptor, names and values, in the order of the call.
pub type Entries<'d> = SmallVec<[(&'d str, &'d str); 4]>;
