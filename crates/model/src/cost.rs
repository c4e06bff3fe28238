//! The cost of a request to a limit.

use http::HeaderName;

use sluicegate_base::json_pointer::JsonPointer;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cost {
    /// The minimum is 1.
    Units(u64),
    /// Read from trusted proxies only; otherwise the cost is 1.
    Header { name: HeaderName, invalid: InvalidCost },
    /// A number in the JSON of the body, of any client; 1 without it.
    Json { pointer: JsonPointer, invalid: InvalidCost },
    /// The number of calls in a batch of JSON-RPC; 1 for any other document, and without a body.
    JsonRpc { invalid: InvalidCost },
}

/// The treatment of a request if its cost cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidCost {
    /// The request costs 1.
    One,
    /// The request is bad (400).
    Reject,
}
