//! Caddy's file. Caddy has no limit without a plugin.

use std::path::Path;

use crate::bench::Bench;
use crate::kinds::Kind;
use crate::rivals::{Ports, Tls, upstream};

pub fn caddyfile(bench: &Bench, ports: &Ports, tls: &Tls, folder: &Path) -> String {
    let sites: String = ports.all().map(|(kind, port)| site(bench, kind, port, tls)).collect();
    format!(
        "{{
    admin off
    persist_config off
    auto_https off
    storage file_system {}
    log {{
        output discard
    }}
    servers {{
        protocols h1 h2 h2c
    }}
}}
{sites}",
        folder.display()
    )
}

fn site(bench: &Bench, kind: Option<Kind>, port: u16, tls: &Tls) -> String {
    let backend = match upstream(kind) {
        "large" => bench.large_port,
        "small" => bench.small_port,
        _ => bench.backend_port,
    };
    let (scheme, certificate) = if kind.is_some_and(Kind::is_tls) {
        ("https", format!("    tls {} {}\n", tls.cert, tls.key))
    } else {
        ("http", String::new())
    };
    format!(
        "{scheme}://:{port} {{
    bind 127.0.0.1
{certificate}    reverse_proxy 127.0.0.1:{backend} {{
        transport http {{
            keepalive_idle_conns_per_host 64
        }}
    }}
}}
"
    )
}
