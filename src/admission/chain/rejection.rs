//! Why a request may not pass.

use std::sync::Arc;

use crate::limit::Limit;

/// Why not: of several that refuse, the limit with the longest retry.
#[derive(Clone)]
pub struct ChainRejection {
    pub cause: ChainCause,
    /// `None` for [`ChainCause::Overload`].
    pub limit: Option<Arc<Limit>>,
    /// Place of the rate in the limit.
    pub rate: usize,
    /// A request sent after this many nanoseconds is accepted if nobody else came; `None` where no such time is
    /// known or waiting does not help.
    pub retry_after_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainCause {
    /// Too many for a rate.
    Rate,
    /// Too many for a queue, or too long a wait in it.
    Queue,
    /// Too many in flight.
    Concurrency,
    /// One request's cost exceeds what the limit can ever hold.
    TooCostly,
    /// The request lacks the limit's key.
    MissingKey,
    /// The wait would be longer than the chain's patience.
    QueuedTooLong,
    /// The store does not answer, and the limit says to reject then.
    Unavailable,
    /// Too many requests wait in the whole process.
    Overload,
}

// === impl Refusal ===

impl ChainRejection {
    pub(super) fn from_overload() -> ChainRejection {
        ChainRejection { cause: ChainCause::Overload, limit: None, rate: 0, retry_after_ns: None }
    }

    pub(super) fn queued_too_long(limit: &Arc<Limit>) -> ChainRejection {
        ChainRejection {
            cause: ChainCause::QueuedTooLong,
            limit: Some(limit.clone()),
            rate: 0,
            retry_after_ns: None,
        }
    }
}

impl std::fmt::Debug for ChainRejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refusal")
            .field("cause", &self.cause)
            .field("limit", &self.limit.as_ref().map(|limit| &limit.name))
            .field("rate", &self.rate)
            .field("retry_after_ns", &self.retry_after_ns)
            .finish()
    }
}
