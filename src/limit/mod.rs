//! One limit's answer to one request.

/// What a limit says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Admit,
    Wait,
    Reject,
}

/// One rate's answer, with all the numbers that headers, logs and metrics tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub outcome: Outcome,
    /// Units that still fit now.
    pub remaining: u64,
    /// Nanoseconds until one more unit fits; 0 = now.
    pub reset_ns: u64,
    /// When rejected: nanoseconds after which the same request is accepted if nobody else came. Else 0.
    pub retry_after_ns: u64,
    /// Nanoseconds the request waits in the queue.
    pub wait_ns: u64,
}
