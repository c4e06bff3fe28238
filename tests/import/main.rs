//! `import` and the gateway: with an imported file it decides as nginx, envoyproxy/ratelimit and OpenAPI documents do.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod canary;
mod command_line;
mod differential;
mod door_cases;
mod doors;
mod exit_code;
mod expressions;
mod hostile;
mod nginx_model;
mod openapi_agrees;
mod paths;
mod random_site;
mod ratelimit_agrees;
mod ratelimit_model;
