//! Reads the sections of `gateway.yaml`, about one file per section.

pub(crate) mod access;
pub(crate) mod account;
pub(crate) mod acme;
pub(crate) mod algorithm;
pub(crate) mod auth;
pub(crate) mod calendar;
pub(crate) mod charge;
pub(crate) mod cors;
pub(crate) mod domains;
pub(crate) mod headers;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod listen_tls;
pub(crate) mod locations;
pub(crate) mod operation;
pub(crate) mod patterns;
pub(crate) mod rates;
pub(crate) mod reject;
pub(crate) mod sections;
pub(crate) mod service;
pub(crate) mod state;
pub(crate) mod tiers;
pub(crate) mod tls_files;
pub(crate) mod upstreams;
pub(crate) mod views;
