//! Changes of the configuration and of the program under a running gateway: nothing is lost, and errors change nothing.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod command_line;
mod follows;
mod handover;
mod known;
mod listeners;
mod load;
mod operators;
mod refused;
mod requests;
mod sets;
mod signals;
mod stops;
mod upgrade;
mod views;
mod watched;
