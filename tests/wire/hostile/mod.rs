//! Files, clients and upstreams that mean harm.

mod files;
mod replies;
mod requests;
