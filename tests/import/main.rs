//! `import`: what becomes of an nginx.conf, of Ingress objects and of files of envoyproxy/ratelimit, and that the
//! gateway then decides as nginx and envoyproxy/ratelimit do.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod cases;
mod differential;
mod door_cases;
mod doors;
mod exit_code;
mod expressions;
mod fuzz;
mod hostile;
mod ingress;
mod nginx_model;
mod quoting;
mod random_site;
mod ratelimit;
mod ratelimit_agrees;
mod ratelimit_model;
mod readings;
mod stock;
