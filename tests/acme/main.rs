//! Certificates by ACME: the program against pebble, the certificate authority for tests.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod directory;
mod names;
mod pebble;
mod site;

mod challenges;
mod crashes;
mod directories;
mod failures;
mod fields;
mod first_start;
mod renewal;
mod several;
mod storage;
