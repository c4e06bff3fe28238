//! `import`: what becomes of an nginx.conf and of Ingress objects, and that the gateway then decides as nginx does.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

#[allow(dead_code, unused_imports, reason = "shared by several test binaries")]
#[path = "../support/mod.rs"]
mod support;

mod cases;
mod differential;
mod fuzz;
mod ingress;
mod nginx_model;
mod random_site;
