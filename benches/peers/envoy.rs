//! Envoy's bootstrap file.

use crate::bench::Bench;
use crate::kinds::Kind;
use crate::rivals::{Ports, Tls, upstream};

const NETWORK: &str = "type.googleapis.com/envoy.extensions.filters.network";
const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters.http";
const TLS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls";

/// The whole file. Request ids are on by default, as the gateway's are.
pub fn bootstrap(bench: &Bench, ports: &Ports, tls: &Tls) -> String {
    let listeners: String = ports.all().map(|(kind, port)| listener(kind, port, tls)).collect();
    let cluster = |name: &str, port: u16| {
        format!(
            "  - name: {name}
    type: STATIC
    connect_timeout: 5s
    load_assignment:
      cluster_name: {name}
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {} }} }}] }}]
",
            address(port)
        )
    };
    format!(
        "static_resources:
  listeners:
{listeners}  clusters:
{}{}{}",
        cluster("app", bench.backend_port),
        cluster("small", bench.small_port),
        cluster("large", bench.large_port),
    )
}

fn address(port: u16) -> String {
    format!("{{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}")
}

fn listener(kind: Option<Kind>, port: u16, tls: &Tls) -> String {
    let codec = if matches!(kind, Some(Kind::H2c | Kind::TlsH2)) { "HTTP2" } else { "HTTP1" };
    let transport = if kind.is_some_and(Kind::is_tls) { transport(codec, tls) } else { String::new() };
    format!(
        "  - name: l{port}
    address: {}
    tcp_backlog_size: 4096
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": {NETWORK}.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: s{port}
          codec_type: {codec}
          use_remote_address: true
          route_config:
            virtual_hosts:
            - name: all
              domains: [\"*\"]
              routes: [{{ match: {{ prefix: / }}, route: {{ cluster: {} }} }}]
          http_filters:
{}          - name: envoy.filters.http.router
            typed_config: {{ \"@type\": {FILTERS}.router.v3.Router }}
{transport}",
        address(port),
        upstream(kind),
        limit(kind),
    )
}

fn transport(codec: &str, tls: &Tls) -> String {
    let protocol = if codec == "HTTP2" { "h2" } else { "http/1.1" };
    format!(
        "      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          \"@type\": {TLS}.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [{protocol}]
            tls_certificates:
            - certificate_chain: {{ filename: {:?} }}
              private_key: {{ filename: {:?} }}
",
        tls.cert, tls.key
    )
}

/// A local limit with a bucket for each client address; the bucket of all clients, which is required, never rejects.
fn limit(kind: Option<Kind>) -> String {
    const NEVER: &str = "{ max_tokens: 4000000000, tokens_per_fill: 4000000000, fill_interval: 1s }";
    let bucket = match kind {
        Some(Kind::Passing) => "{ max_tokens: 1000000, tokens_per_fill: 1000000, fill_interval: 1s }",
        Some(Kind::Rejecting) => "{ max_tokens: 1, tokens_per_fill: 1, fill_interval: 1s }",
        _ => return String::new(),
    };
    format!(
        "          - name: envoy.filters.http.local_ratelimit
            typed_config:
              \"@type\": {FILTERS}.local_ratelimit.v3.LocalRateLimit
              stat_prefix: limit
              token_bucket: {NEVER}
              always_consume_default_token_bucket: false
              max_dynamic_descriptors: 10000
              filter_enabled: {{ default_value: {{ numerator: 100, denominator: HUNDRED }} }}
              filter_enforced: {{ default_value: {{ numerator: 100, denominator: HUNDRED }} }}
              rate_limits: [{{ actions: [{{ remote_address: {{}} }}] }}]
              descriptors: [{{ entries: [{{ key: remote_address }}], token_bucket: {bucket} }}]
"
    )
}
