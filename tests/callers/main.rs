//! Callers from outside: API keys, tokens of identity providers, and a service that decides.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod api_keys;
mod auth_service;
mod identity_providers;
