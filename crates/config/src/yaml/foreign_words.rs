//! The words of other programs for the fields of this file, and for its variables.

use sluicegate_model::value::words::find_synonym;

/// The fields of this file, each with its names in other programs, in snake case.
const SYNONYMS: &[(&str, &str)] = &[
    ("address", "bind port"),
    ("balance", "load_balancing policy"),
    ("body", "content text"),
    ("bypass", "allowlist except exclude exempt whitelist"),
    ("cert", "cert_file certificate certificate_chain chain crt fullchain ssl_certificate"),
    ("client_ip", "real_ip_header remote_ip_header"),
    ("credentials", "allow_credentials"),
    ("default", "default_tier"),
    ("for", "bantime duration time"),
    ("header", "client_header_timeout read_header"),
    ("headers", "access_control_allow_headers allow_headers allowed_headers"),
    ("health", "health_check"),
    ("host", "domain server_name"),
    ("key", "by key_file keyfile private_key ssl_certificate_key tls_key zone"),
    ("limits", "limit_req limit_req_zone rate_limit rate_limits ratelimit throttle"),
    ("listen", "bind port"),
    ("llm", "tokens"),
    ("locations", "routes"),
    ("max_body", "client_max_body_size"),
    (
        "max_concurrent",
        "amount connections limit limit_conn max max_connections max_in_flight max_requests maxconn \
         requests slots",
    ),
    ("methods", "access_control_allow_methods allow_methods allowed_methods"),
    ("origins", "access_control_allow_origin allow_origin allow_origins allowed_origins"),
    ("output", "file file_path path"),
    ("path", "location match matcher path_prefix pathprefix prefix route rule uri url"),
    ("queue", "delay"),
    (
        "rate",
        "average events limit rate_limit requests requests_per_minute requests_per_second \
         requests_per_unit rpm rps",
    ),
    ("request_headers", "proxy_set_header"),
    ("respond", "response return"),
    ("response_headers", "add_header headers"),
    ("retries", "retry"),
    ("server", "http"),
    (
        "servers",
        "address addresses backends endpoints hosts load_assignment load_balancer members nodes targets \
         url urls",
    ),
    ("status", "code response_code status_code"),
    ("strip", "rewrite strip_prefix"),
    ("template", "body content format html message text"),
    ("tls", "ssl"),
    ("to", "destination location target uri url"),
    ("trusted_proxies", "set_real_ip_from trusted_ips"),
    (
        "upstream",
        "backend backend_refs cluster default_backend destination forward forward_to grpc_pass handle \
         proxy proxy_pass proxy_to reverse_proxy service target to use_backend",
    ),
    ("upstreams", "backends clusters services"),
    ("url", "addr address endpoint host server target uri"),
];

/// The field that another program's name for it stands for, if it is one of `known`.
pub(super) fn find_field_synonym<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    find_synonym(SYNONYMS, &to_snake_case(name), known)
}

/// `pathPrefix` and `path-prefix` as `path_prefix`.
pub(super) fn to_snake_case(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && out.ends_with(|before: char| before.is_ascii_lowercase()) {
            out.push('_');
        }
        out.push(if c == '-' { '_' } else { c.to_ascii_lowercase() });
    }
    out
}
