//! Parsers of scalar values, and their arithmetic.

pub(crate) mod byte_rate;
pub(crate) mod divide;
pub(crate) mod foreign_variables;
pub(crate) mod fraction;
pub(crate) mod grpc_codes;
pub(crate) mod json_pointer;
pub(crate) mod methods;
pub(crate) mod names;
pub(crate) mod network_hint;
pub(crate) mod otlp_url;
pub(crate) mod path_regex;
pub(crate) mod rate_hint;
pub(crate) mod redis_url;
pub(crate) mod scalars;
pub(crate) mod server_url;
pub(crate) mod statuses;
pub(crate) mod words;
