//! The tables of fields, one for each section.

pub(crate) mod access;
pub(crate) mod account;
pub(crate) mod charge;
pub(crate) mod headers;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod locations;
pub(crate) mod operation;
pub(crate) mod reject;
pub(crate) mod root;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod state;
pub(crate) mod upstreams;
