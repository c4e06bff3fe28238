//! The rejection of a request by a chain: its cause, the limit, and when to retry.

use std::sync::Arc;

use sluicegate_limit::Limit;
use sluicegate_model::OnFailure;
use sluicegate_store::SharedLimit;

/// A rejection; if several limits reject, that of the limit with the longest retry.
#[derive(Debug, Clone)]
pub struct ChainRejection {
    /// The cause of the rejection.
    pub cause: ChainCause,
    /// `None` for [`ChainCause::Overload`].
    pub limit: Option<Arc<Limit>>,
    /// Index of the rate in the limit.
    pub rate: usize,
    /// Index of the request's class in the shares of the limit; beyond them if it is not known.
    pub class: u8,
    /// Nanoseconds after which a retry is accepted if no other request comes first, or until the turn of the request;
    /// `None` if that time is unknown or waiting does not help.
    pub retry_after_ns: Option<u64>,
    /// That is the turn of the request among the rejected ones.
    pub is_turn: bool,
    /// All rates had accepted the request; it lost its turn or lacked slots afterwards. Its decisions are those of an
    /// accepted request.
    pub late: bool,
}

/// The cause of a rejection by a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainCause {
    /// Too many for a rate.
    Rate,
    /// Too many for a queue, or too long a wait in it.
    Queue,
    /// Too many in flight.
    Concurrency,
    /// The cost of the request exceeds the limit's capacity.
    TooCostly,
    /// The request lacks the limit's key.
    MissingKey,
    /// The wait would exceed the chain's maximum.
    WaitTooLong,
    /// The store does not answer, and the limit rejects in that case.
    Unavailable,
    /// Too many requests wait in the whole process.
    Overload,
}

// === impl ChainCause ===

impl ChainCause {
    /// The cause of a rejection for lack of slots while the store does not answer.
    pub(super) fn without_store(limit: &SharedLimit) -> ChainCause {
        match limit.on_failure {
            OnFailure::Reject => ChainCause::Unavailable,
            OnFailure::Allow | OnFailure::Local => ChainCause::Concurrency,
        }
    }
}

// === impl ChainRejection ===

impl ChainRejection {
    pub(super) fn from_overload() -> ChainRejection {
        ChainRejection {
            cause: ChainCause::Overload,
            limit: None,
            rate: 0,
            class: 0,
            retry_after_ns: None,
            is_turn: false,
            late: false,
        }
    }

    pub(super) fn with_retry(self, retry_after_ns: Option<u64>) -> ChainRejection {
        ChainRejection { retry_after_ns, ..self }
    }

    /// The rejection of a request that all rates had accepted.
    pub(super) fn into_late(self) -> ChainRejection {
        ChainRejection { late: true, ..self }
    }

    /// A rejection without a time to retry.
    pub(super) fn outright(cause: ChainCause, limit: &Arc<Limit>, rate: usize, class: u8) -> ChainRejection {
        let (limit, retry_after_ns) = (Some(limit.clone()), None);
        ChainRejection { cause, limit, rate, class, retry_after_ns, is_turn: false, late: false }
    }
}
