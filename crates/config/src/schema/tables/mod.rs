//! The tables of fields, one for each section.

pub mod access;
pub mod account;
pub mod auth;
pub mod limits;
pub mod listen;
pub mod locations;
pub mod operation;
pub mod reject;
pub mod root;
pub mod server;
pub mod service;
pub mod shares;
pub mod state;
pub mod upstreams;
