//! The limits of the modes, in the words of nginx and of the gateway, and the body of a rejection.

/// About as long as the gateway's default response, also with an id.
pub const PROBLEM: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","#,
    r#""status":429,"detail":"limit per-ip: 1 request per second, burst 1","limit":"per-ip","#,
    r#""retry_after_ms":1000,"violated-policies":["per-ip"],"request_id":"$request_id"}"#
);
pub const PROBLEM_TYPE: &str = "application/problem+json";

pub const NGINX_ZONES: &str = "limit_req_zone $binary_remote_addr zone=pass:10m rate=1000000r/s;
    limit_req_zone $binary_remote_addr zone=reject:10m rate=1r/s;
    limit_req_status 429;
    limit_req_log_level info;";
pub const NGINX_PASS: &str = "limit_req zone=pass burst=100000 nodelay;";
pub const NGINX_REJECT: &str = "error_page 429 @refused; limit_req zone=reject;";

pub const GATEWAY_PASS: &str = "{ key: ip, rate: 1000000/s, burst: 100000 }";
pub const GATEWAY_REJECT: &str = "{ key: ip, rate: 1/s }";

/// nginx's location that answers what `NGINX_REJECT` rejects.
pub fn nginx_refusal(kind: &str, body: &str) -> String {
    format!(
        "location @refused {{ default_type {kind}; add_header Retry-After 1 always; return 429 '{body}'; }}"
    )
}
