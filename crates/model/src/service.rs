//! The typed model of the rate-limit service.

use std::time::Duration;

use crate::domain::DomainConfig;
use crate::listen::ListenConfig;
use crate::value::scalars::Secret;

/// The time of a lease if its call names none.
pub const LEASE_TIME: Duration = Duration::from_secs(10);
/// The longest time of a lease; a holder that needs more renews it.
pub const LEASE_TIME_MAX: Duration = Duration::from_secs(3_600);

/// The service has one listener or more, of either kind.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Listeners for HTTP; each is for [`ListenerPurpose::Calls`](super::listen::ListenerPurpose).
    pub listen: Vec<ListenConfig>,
    /// Listeners for the protocol of Redis; each is for [`ListenerPurpose::Resp`](super::listen::ListenerPurpose).
    pub resp: Vec<ListenConfig>,
    /// Any of them opens the service. Empty = callers need none.
    pub tokens: Vec<Secret>,
    /// The order is that of the file; each name occurs once.
    pub domains: Vec<DomainConfig>,
}
