//! Traefik's two files: entry points, and what they serve.

use crate::bench::Bench;
use crate::kinds::Kind;
use crate::rivals::{Ports, Tls, upstream};

/// The file of entry points, which names the other one.
pub fn entry_points(ports: &Ports, routes: &str) -> String {
    let points: String =
        ports.all().map(|(_, port)| format!("  p{port}: {{ address: \"127.0.0.1:{port}\" }}\n")).collect();
    format!(
        "global: {{ checkNewVersion: false, sendAnonymousUsage: false }}
log: {{ level: ERROR }}
entryPoints:
{points}providers:
  file: {{ filename: {routes:?}, watch: false }}
"
    )
}

/// The file of routers, limits and services. A plain entry point takes HTTP/2 as well.
pub fn routes(bench: &Bench, ports: &Ports, tls: &Tls) -> String {
    let routers: String = ports.all().map(|(kind, port)| router(kind, port)).collect();
    let service = |name: &str, port: u16| {
        format!(
            "    {name}:
      loadBalancer: {{ serversTransport: pooled, servers: [{{ url: \"http://127.0.0.1:{port}\" }}] }}
"
        )
    };
    format!(
        "http:
  routers:
{routers}  middlewares:
    passing: {{ rateLimit: {{ average: 1000000, burst: 100000 }} }}
    rejecting: {{ rateLimit: {{ average: 1, burst: 1 }} }}
  services:
{}{}{}  serversTransports:
    pooled: {{ maxIdleConnsPerHost: 64 }}
tls:
  certificates: [{{ certFile: {:?}, keyFile: {:?} }}]
  stores: {{ default: {{ defaultCertificate: {{ certFile: {:?}, keyFile: {:?} }} }} }}
",
        service("app", bench.backend_port),
        service("small", bench.small_port),
        service("large", bench.large_port),
        tls.cert,
        tls.key,
        tls.cert,
        tls.key,
    )
}

fn router(kind: Option<Kind>, port: u16) -> String {
    let limit = match kind {
        Some(Kind::Passing) => ", middlewares: [passing]",
        Some(Kind::Rejecting) => ", middlewares: [rejecting]",
        _ => "",
    };
    let tls = if kind.is_some_and(Kind::is_tls) { ", tls: {}" } else { "" };
    format!(
        "    r{port}: {{ entryPoints: [p{port}], rule: \"PathPrefix(`/`)\", service: {}{limit}{tls} }}\n",
        upstream(kind)
    )
}
