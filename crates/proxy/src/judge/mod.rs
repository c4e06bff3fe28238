//! Judges requests: one sequence of steps for requests and explanations, and the phases of a request as types.
//!
//! 1. `head` judges by the head, and collects the [`RequestFacts`]. It checks the framing, finds the location,
//!    applies access rules, reads account and tier (from a token only if its signature holds), and rejects banned
//!    clients; none of this charges a limit. A preflight of `cors` is admitted after the access rules.
//!    Where the account, the tier or a limit is made of values in the body, `body_reading` reads its beginning first.
//! 2. `head` ends with the limits. `demand` finds the key and the cost for each, and the chain judges those of
//!    `server.limits` and of the location as one transaction: if one rejects, none is charged.
//! 3. `mode` is all that differs between a request, which is charged, and an explanation, which only looks.
//! 4. `phases` holds the phases of a request, from [`Received`] to [`Admitted`].
//!    Concurrency comes last: a request that waits for its turn holds no slot. A request that no location serves is
//!    rejected after its wait, so that it is charged.
//! 5. `pushback` is the last phase before slots and forwarding: while requests to the upstream pause, it holds the
//!    request in the order of its arrival, or rejects it.
//! 6. `call` judges the calls of the rate-limit service, which go through the same later phases; nothing is forwarded.
//! 7. `descriptors` judges the calls of Envoy's rate limit service: several descriptors as one transaction.
//! 8. `conclusion` is the only place where a rejection is final: it is counted, may be a strike, and is rendered or
//!    degraded.

mod body_reading;
mod call;
pub mod conclusion;
mod demand;
mod descriptors;
mod facts;
mod head;
pub mod inbound;
pub mod limit_report;
mod mode;
mod phases;
mod pushback;
mod question;
pub mod quotas;
pub mod request_state;

pub use body_reading::{find_values, read_call_body};
pub use call::{CallMode, CallTerms, StatedFacts, judge_named};
pub use conclusion::translate_rejection;
pub use demand::{Caller, ChargeFault, Exemption};
pub use descriptors::{DescriptorTerms, JudgedDescriptor, MergedPlaces, give_back_hits};
pub use facts::{BodyView, RequestFacts, RequestHead};
pub use head::{JudgeProgress, judge};
pub use mode::JudgeMode;
pub use phases::{Admitted, AskService, LookedAt, NextPhase, Received, Rejected, look_at_descriptors};
