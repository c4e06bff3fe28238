//! The typed model of the rate-limit service.

use crate::config::model::domain::DomainConfig;
use crate::config::model::listen::ListenConfig;
use crate::config::value::scalars::Secret;

#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// At least one; each is [`ListenConfig::for_service`].
    pub listen: Vec<ListenConfig>,
    /// Any of them opens the service. Empty = callers need none.
    pub tokens: Vec<Secret>,
    /// In file order; each name once.
    pub domains: Vec<DomainConfig>,
}
