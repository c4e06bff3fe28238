//! Parsers of scalar values, and their arithmetic.

pub mod byte_rate;
pub mod divide;
pub mod foreign_variables;
pub mod fraction;
pub mod https_url;
pub mod methods;
pub mod money;
pub mod names;
pub mod network_hint;
pub mod otlp_url;
pub mod path_regex;
pub mod rate_hint;
pub mod redis_url;
pub mod scalars;
pub mod server_url;
pub mod statuses;
pub mod words;
