//! `import`: what becomes of an nginx.conf, of Ingress objects, of OpenAPI documents and of files of envoyproxy/ratelimit.

use sluicegate_testkit as support;

mod cases;
mod fuzz;
mod ingress;
mod openapi;
mod quoting;
mod ratelimit;
mod readings;
mod stock;
