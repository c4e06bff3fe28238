//! The purpose of a directive that no reader translates: if it may limit or deny, and why it is left out.

/// Directives inside an `if` that leave its requests where they are.
pub(super) const IDLE_IN_IF: [&str; 8] =
    ["add_header", "add_trailer", "set", "access_log", "log_not_found", "expires", "gzip", "charset"];

/// The reason why directives that do not limit or deny have no effect, if the gateway has nothing like them.
pub(super) const NOT_DONE: &str = "the gateway does not do this";

/// Why directives are left out that say how a check is made.
pub(super) const PART_OF_CHECK: &str = "part of a check that is not made";

/// Directives that neither limit nor deny, or that the gateway replaces by itself. An asterisk ends the name of a
/// family.
const HARMLESS: &[(&str, &str)] = &[
    (
        "the gateway has settings of its own for this",
        "user worker_* working_directory events pid daemon master_process error_log access_log log_* \
         multi_accept use accept_mutex* sendfile sendfile_max_chunk tcp_nopush tcp_nodelay aio directio* \
         output_buffers postpone_output reset_timedout_connection lingering_* keepalive_disable \
         keepalive_time client_body_buffer_size client_body_in_file_only client_body_in_single_buffer \
         client_body_temp_path client_header_buffer_size connection_pool_size request_pool_size \
         server_names_hash_* types_hash_* variables_hash_* map_hash_* server_tokens resolver resolver_timeout \
         pcre_jit env debug_* lock_file thread_pool timer_resolution ssl_engine limit_req_log_level \
         limit_conn_log_level recursive_error_pages read_ahead max_ranges open_file_cache* \
         open_log_file_cache port_in_redirect server_name_in_redirect absolute_redirect \
         subrequest_output_buffer_size chunked_transfer_encoding msie_* etag if_modified_since rewrite_log \
         uninitialized_variable_warn real_ip_recursive proxy_headers_hash_* load_module vhost_traffic_status* \
         status_zone quic_* http3* init_by_lua* init_worker_by_lua* lua_package_path lua_package_cpath \
         lua_shared_dict lua_code_cache keepalive_min_timeout ssl_key_log otel_* opentelemetry*",
    ),
    (
        NOT_DONE,
        "gzip* gunzip* brotli* charset* override_charset source_charset default_type types expires \
         add_trailer sub_filter* ssi* image_filter* mirror* autoindex* index root alias try_files \
         random_index dav_* flv mp4* hls* memcached_* stub_status empty_gif split_clients match grpc_* xslt_* \
         health_check* userid* perl_modules proxy_cache* proxy_no_cache proxy_store* proxy_redirect \
         proxy_cookie_* fastcgi_* uwsgi_* scgi_* auth_delay proxy_intercept_errors proxy_method \
         disable_symlinks set ssl_stapling* ssl_early_data ssl_trusted_certificate proxy_force_ranges \
         proxy_pass_trailers ssl_certificate_compression subs_filter* pagespeed* \
         ancient_browser modern_browser more_set_headers more_clear_headers geoip* early_hints \
         add_header_inherit slice js_import js_path js_set js_var header_filter_by_lua* body_filter_by_lua* \
         log_by_lua* set_by_lua* add_before_body add_after_body addition_types post_action min_delete_depth \
         create_full_put_path referer_hash_* ancient_browser_value modern_browser_value",
    ),
    (
        "the gateway streams bodies and decides about buffers itself",
        "proxy_buffering proxy_buffers proxy_buffer_size proxy_busy_buffers_size proxy_request_buffering \
         proxy_max_temp_file_size proxy_temp_file_write_size proxy_temp_path proxy_limit_rate",
    ),
    (
        "the gateway does this by itself",
        "merge_slashes proxy_http_version proxy_socket_keepalive proxy_pass_request_headers \
         proxy_pass_request_body proxy_pass_header proxy_ignore_headers proxy_ignore_client_abort \
         proxy_set_body proxy_send_lowat send_lowat http2* keepalive_requests ssl_ciphers \
         ssl_prefer_server_ciphers ssl_session_cache ssl_session_timeout ssl_session_tickets \
         ssl_session_ticket_key ssl_dhparam ssl_ecdh_curve ssl_buffer_size ssl_conf_command ssl \
         ssl_password_file proxy_ssl_session_reuse proxy_ssl_protocols proxy_ssl_ciphers \
         proxy_ssl_verify_depth ssl_verify_depth proxy_bind zone keepalive_timeout send_timeout ntlm \
         client_header_timeout client_body_timeout ignore_invalid_headers",
    ),
    (
        PART_OF_CHECK,
        "auth_basic_user_file auth_request_set auth_digest_* auth_gss_* auth_ldap_* auth_pam_* auth_jwt_key* \
         auth_jwt_leeway auth_jwt_type auth_jwt_claim_set auth_jwt_header_set ssl_ocsp_responder \
         ssl_ocsp_cache",
    ),
];

fn is_one_of(names: &str, name: &str) -> bool {
    let is_meant =
        |known: &str| known.strip_suffix('*').map_or(known == name, |family| name.starts_with(family));
    names.split(' ').any(is_meant)
}

/// Why a directive is left out, if it is known to neither limit nor deny.
pub(super) fn find_harmless(name: &str) -> Option<&'static str> {
    let (why, _) = HARMLESS.iter().find(|(_, names)| is_one_of(names, name))?;
    Some(why)
}

const PASSWORDS: &str =
    "the gateway checks no passwords: give out API keys (account.keys), or ask a service (auth)";
const TOKENS: &str = "write account.jwt, and a limit by account with `missing_key: reject`";
const SCRIPTS: &str = "the gateway runs no scripts; let the upstream decide";

/// Directives that let in some clients alone unless they are `off`, and how to go on.
const CHECKS: &[(&str, &str)] = &[
    ("auth_basic auth_digest auth_gss auth_ldap auth_pam", PASSWORDS),
    ("auth_jwt auth_oidc", TOKENS),
    ("auth_request", "write auth, the service that decides"),
    ("access_by_lua* rewrite_by_lua* js_access", SCRIPTS),
    ("ssl_reject_handshake", "the gateway refuses no handshakes by name"),
    ("ssl_crl ssl_ocsp", "the gateway does not ask whether a certificate is revoked"),
];

/// Directives that answer with something other than a response to HTTP that is forwarded.
const OTHER_HANDLERS: &str = "fastcgi_pass uwsgi_pass scgi_pass grpc_pass memcached_pass stub_status empty_gif \
     content_by_lua_block js_content";

pub(super) fn is_other_handler(name: &str) -> bool {
    is_one_of(OTHER_HANDLERS, name)
}

/// Why a directive closes its place that is not known at all.
pub(super) const UNKNOWN: &str = "this directive is unknown; it may limit or deny";

/// Why a directive of this name lets in some clients alone, or may do so, unless it is `off`.
pub(super) fn find_check(name: &str) -> Option<&'static str> {
    let known = || find_harmless(name).is_some() || is_translated(name) || describe_guard(name).is_some();
    let check = CHECKS.iter().find(|(names, _)| is_one_of(names, name)).map(|(_, why)| *why);
    check.or_else(|| (!known()).then_some(UNKNOWN))
}

/// Directives that a reader translates where they have an effect. An asterisk ends the name of a family.
const TRANSLATED: &str = "limit_req* limit_conn* limit_rate* allow deny error_page add_header proxy_set_header \
     proxy_hide_header proxy_connect_timeout proxy_read_timeout proxy_send_timeout proxy_next_upstream* \
     client_max_body_size ssl_certificate ssl_certificate_key ssl_protocols ssl_client_certificate \
     proxy_ssl_* set_real_ip_from real_ip_header upstream map geo http server location listen server_name \
     include proxy_pass return satisfy underscores_in_headers internal break";

/// True if a directive without a finding is one in which its reader found no effect.
pub(super) fn is_translated(name: &str) -> bool {
    is_one_of(TRANSLATED, name)
}

/// The missing effect of a directive that may limit or deny.
pub(super) fn describe_guard(name: &str) -> Option<&'static str> {
    Some(match name {
        "valid_referers" => "the gateway does not judge referers",
        "secure_link" | "secure_link_md5" | "secure_link_secret" => "the gateway does not verify links",
        "if" => "conditions are not translated; this one limits or denies, or may do so",
        "rewrite" => "the path is not rewritten, so that other limits may hold for it",
        "satisfy" => "only `satisfy all` is translated",
        "ssl_verify_client" => "only `on` and `off` are translated",
        "limit_except" => "it is translated only with `allow`, `deny` inside and names of methods",
        "large_client_header_buffers" | "max_headers" => "the gateway has one size for the head of a request",
        "perl" | "js_content" => "the gateway runs no scripts",
        "stream" | "mail" => "the gateway forwards HTTP only",
        _ => return None,
    })
}
