//! Scalars of the file that have a grammar of their own.

pub(crate) mod divide;
pub(crate) mod names;
pub(crate) mod pem;
pub(crate) mod redis_url;
pub(crate) mod scalars;
pub(crate) mod statuses;
