//! The words of other programs: the fields of this file that they stand for, and what to write instead of them.

use sluicegate_model::value::network_hint::is_every_address;
use sluicegate_model::value::scalars::{parse_duration, parse_rate};
use sluicegate_model::value::words::find_synonym;

use super::shown_text::show_text;

/// The fields of this file, each with its names in other programs, in snake case.
const SYNONYMS: &[(&str, &str)] = &[
    ("address", "bind port"),
    ("auth", "auth_request ext_authz external_auth forward_auth"),
    ("balance", "load_balancing policy"),
    ("body", "content text"),
    ("bypass", "allowlist except exclude exempt whitelist"),
    ("cert", "cert_file certificate certificate_chain chain crt fullchain ssl_certificate"),
    ("client_ip", "real_ip_header remote_ip_header"),
    ("copy", "auth_response_headers authorization_response copy_headers"),
    ("credentials", "allow_credentials"),
    ("default", "default_tier"),
    ("for", "bantime duration time"),
    ("header", "client_header_timeout read_header"),
    ("headers", "access_control_allow_headers allow_headers allowed_headers"),
    ("health", "health_check"),
    ("host", "domain server_name"),
    ("key", "by key_file keyfile private_key ssl_certificate_key tls_key zone"),
    ("include", "import imports includes"),
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
    ("send", "auth_request_headers"),
    ("server", "http"),
    (
        "servers",
        "address addresses backends endpoints hosts load_assignment load_balancer members nodes targets \
         url urls",
    ),
    ("status", "code response_code status_code"),
    ("strip", "strip_prefix"),
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

/// The help for `deny all`, which follows the allowed addresses in nginx.
pub(super) const DENY_ALL: &str =
    "leave it out: allow: [10.0.0.0/8] admits these addresses alone; or write respond: { status: 403 }";

const ERROR_PAGE: &str = "write on_reject: { body: { template: \"…\", content_type: text/html } } for the \
                          gateway's own rejections; responses of upstreams pass as they are";

/// What to write instead of a field or a text: its place, its words, and a sentence.
///
/// The place is the path of a section, or `features` of other programs, or one of a text: the `value` of a field, the
/// `form` of a section, a `tier`. Words are names, or `NAME=TEXT`, where TEXT may be a kind that [`fits_text`] knows;
/// `*` is any name, `###` a status. A row holds if each blank of its sentence, such as `<time>`, has a value; the first
/// such row counts.
#[rustfmt::skip]
const ADVICE: &[(&str, &str, &str)] = &[
    ("features", "basic_auth basicauth auth_basic auth_basic_user_file htpasswd",
        "passwords are not checked here: give out API keys, account: { keys: { file: keys.csv, from: basic } }, or let \
         a service decide, auth: { url: … } in a location"),
    ("features", "gzip brotli compress compression encode",
        "compression is not a feature; compress in the upstream"),
    ("features", "cache proxy_cache caching", "caching is not a feature; cache in the upstream or in a CDN"),
    ("features", "fastcgi_pass uwsgi_pass php_fastcgi scgi_pass",
        "only HTTP is spoken to upstreams; name a server that translates, e.g. nginx, as the upstream"),
    ("", "http", "<traefik>this is a configuration of Traefik: docs/coming-from.md has each field here"),
    ("", "http stream frontend static_resources entry_points apps",
        "write what is in it at the top of the file, as `listen`, `server`, `upstreams`, `limits` and `locations`"),
    ("", "api_version",
        "this is a manifest of Kubernetes; `sluicegate init` writes a gateway.yaml to start from"),
    ("", "worker_processes", "write server: { workers: auto }"),
    ("access_log", "format", "remove it: each line is a JSON object"),
    ("access_log", "enabled", "remove it: write access_log: none for no log"),
    ("account", "tiers", "write tier: { members: <node> }"),
    ("account.jwt", "jwks_uri jwks_url jwksuri",
        "write jwks: <written>, or discover for the set that the issuer's document names"),
    ("admin", "enabled enable", "remove it: write admin: none for no admin listener"),
    ("admin", "host address addr server hostname bind", "write listen: <address>"),
    ("headers", "*=none *=off", "write remove: [<written>]"),
    ("headers", "*", "write set: { <written>: … }, or add or remove"),
    ("limits.NAME", "window period per interval duration time_unit",
        "the period belongs to the rate: write rate: <count>/<period>"),
    ("limits.NAME", "status status_code", "write on_reject: { status: <node> }"),
    ("limits.NAME", "message body response",
        "write on_reject: { body: { template: \"…\", content_type: text/plain } }"),
    ("limits.NAME", "mode shadow_mode dryrun", "write dry_run: true to count without rejecting"),
    ("limits.NAME", "filter_enforced canary percentage",
        "write enforce: 10% to act on a share of the keys, and only count the others"),
    ("limits.NAME", "enabled enable disabled",
        "remove it: a limit works where a location names it; dry_run: true only counts"),
    ("limits.NAME", "*",
        "write rate: <named_rate> here, or define `<written>` under limits: at the top and write limits: <written>"),
    ("limits.NAME", "except exclude exempt skip", "write a location of its own for <path>, without this limit"),
    ("limits.NAME", "nodelay",
        "remove it: requests within burst pass at once; to delay them write algorithm: leaky_bucket"),
    ("limits.NAME.missing_key", "status=NUMBER", "write reject: <text>"),
    ("listen[]", "host address addr server hostname", "write address: <listen>"),
    ("locations[]", "root alias index try_files file_server static static_dir",
        "files are not served here: write upstream: NAME of a server that has them"),
    ("locations[]", "websocket websockets enable_websocket proxy_http_version",
        "remove it: WebSockets and other upgrades pass without a setting"),
    ("locations[]", "proxy_read_timeout proxy_send_timeout response_timeout",
        "write timeouts: { response: <time> } in the upstream"),
    ("locations[]", "proxy_connect_timeout connect_timeout",
        "write timeouts: { connect: <time> } in the upstream"),
    ("locations[]", "path_type=Exact path_type=exact",
        "remove it, and write an equals sign before the path, such as path: = /api"),
    ("locations[]", "path_type", "remove it: a path such as /api matches every path that begins with it"),
    ("locations[]", "rule", "<rule>"),
    ("locations[]", "timeouts",
        "write timeouts: <node> in upstreams.NAME; `timeout` here bounds the whole request"),
    ("locations[]", "client_max_body_size", "write max_body: <size>"),
    ("locations[]", "if", "write e.g. when: { \"header:X-Env\": canary }, or host, methods or scheme"),
    ("locations[]", "mirror mirrors", "remove it: requests are not copied"),
    ("locations[]", "url_rewrite",
        "write e.g. strip: /api to remove the beginning of the path, or rewrite: { from: ^/old, to: /new }"),
    ("locations[]", "error_page", ERROR_PAGE),
    ("locations[]", "limit_rate", "write e.g. bandwidth: { rate: 100KiB/s }"),
    ("locations[]", "priority order",
        "remove it: an exact path wins, then the longest prefix, then the first regular expression"),
    ("locations[]", "return", "<return>"),
    ("locations[]", "proxy_set_header request_header header_up", "<request_headers>"),
    ("locations[]", "add_header more_set_headers header header_down", "<response_headers>"),
    ("locations[]", "headers", "<response_headers>, or request_headers for what the upstream gets"),
    ("locations[].auth", "trust_forward_header trusted_proxies",
        "remove it: the service gets X-Forwarded fields of the gateway alone"),
    ("locations[].redirect", "permanent", "write status: 308, the default, or 301"),
    ("locations[].redirect", "temporary", "write status: 307 or 302"),
    ("on_reject", "###", "write on_reject: { status: <name><fields> }"),
    ("on_reject", "message text template content",
        "<text?>write body: { template: <shown>, content_type: text/plain }"),
    ("on_reject.body", "file path filename", "write template: \"${file:<text>}\""),
    ("server", "client_max_body_size", "write max_body: <size>"),
    ("server", "error_page", ERROR_PAGE),
    ("server", "ssl_certificate",
        "write listen: { address: \":443\", tls: { cert: <shown>, key: <certificate_key> } }"),
    ("server", "keepalive_timeout idle_timeout", "write timeouts: { idle: <time> }"),
    ("server.timeouts", "read", "write header: <time>, body: <time>"),
    ("state.redis", "password username user",
        "it belongs into the URL: write url: \"redis://:${REDIS_PASSWORD}@HOST:6379\""),
    ("state.redis", "password_file",
        "it belongs into the URL: write url: \"redis://:${file:<file>}@HOST:6379\""),
    ("upstreams.NAME", "limits", "write limits: in the locations of this upstream"),
    ("upstreams.NAME", "max_fails", "write eject: { errors: <fails>, for: <fail_timeout> }"),
    ("upstreams.NAME", "fail_timeout", "write e.g. eject: { errors: 5, for: 10s }"),
    ("upstreams.NAME", "ssl https scheme", "write https:// before each server"),
    ("upstreams.NAME", "idle_timeout keepalive_timeout", "write timeouts: { idle: <time> }"),
    ("upstreams.NAME", "stickiness session_affinity affinity",
        "write sticky: { cookie: sg }, or balance: hash:ip without a cookie"),
    ("upstreams.NAME", "send_proxy send-proxy send-proxy-v2", "write proxy_protocol: v2"),
    ("form", "access_log=ON", "remove it: requests are logged to stdout without it"),
    ("form", "tls=auto tls=acme tls=letsencrypt",
        "write tls: { acme: { domains: example.com, storage: /var/lib/sluicegate/acme } }"),
    ("form", "retries=OFF health=OFF eject=OFF access_log=OFF access=OFF bans=OFF tls=OFF", "write <name>: none"),
    ("form", "retries=NUMBER", "write retries: { attempts: <text> }"),
    ("form", "retries", "write retries: { attempts: 2 }"),
    ("form", "health=/*", "write health: { path: <shown> }"),
    ("form", "health", "write health: { path: /healthz }"),
    ("form", "respond=NUMBER on_reject=NUMBER", "write <name>: { status: <text> }"),
    ("form", "respond", "write respond: { body: <shown> }"),
    ("form", "redirect", "write redirect: { to: <shown> }"),
    ("form", "tls", "write tls: { cert: chain.pem, key: key.pem }"),
    ("form", "server.timeouts=TIME", "write timeouts: { header: <text>, body: <text> }"),
    ("form", "timeouts=TIME", "write timeouts: { response: <text> }"),
    ("form", "timeouts", "write timeouts: { response: 60s }"),
    ("form", "on_reject=problem on_reject=envelope on_reject=none", "write on_reject: { body: <text> }"),
    ("form", "cors=* cors=*://*", "write cors: { origins: <shown> }"),
    ("form", "bandwidth=*/*", "write bandwidth: { rate: <shown> }"),
    ("form", "account=*:*", "write account: { from: <shown> }"),
    ("form", "reload=TIME", "write reload: { watch: <text> }"),
    ("form", "state=redis", "write state: { store: redis, redis: { url: \"redis://HOST:6379\" } }"),
    ("form", "redis=*://*", "write redis: { url: <shown> }"),
    ("form", "access_log=*/* access_log=stdout", "write access_log: { output: <shown> }"),
    ("tier", "*=UNLIMITED", "write <name>: none"),
    ("tier", "*=NUMBER", "write <name>: { rate: <text>/s }"),
    ("tier", "*=RATE", "write <name>: { rate: <text> }"),
    ("value", "admin=OFF", "write admin: none"),
    ("value", "admin=ON", "remove it: the admin listener is on without it, at 127.0.0.1:9901"),
    ("value", "keepalive=TIME",
        "it is a number of connections, e.g. keepalive: 128; for their time write timeouts: { idle: <text> }"),
    ("value", "keepalive=OFF", "write keepalive: 0"),
    ("value", "burst=TIME queue=TIME", "it is a number of requests: write <name>: <digits>"),
    ("value", "weight=0", "write at least 1, or remove the server"),
    ("value", "weight=*%", "write weight: <share>; its share of the sum of all weights counts"),
    ("value", "rate=UNLIMITED",
        "leave the limit out of the chain, or write bypass for addresses and none for a tier"),
    ("value", "trusted_proxies=EVERY trusted_proxies=0.0.0.0",
        "name the proxies before the gateway, e.g. [10.0.0.0/8]; a trusted peer chooses the address of its clients"),
    ("value", "deny=EVERY", DENY_ALL),
    ("value", "strip=ON", "write the prefix to remove, e.g. strip: /api"),
    ("value", "protocol=https protocol=tls protocol=ssl", "write https:// before each server"),
    ("value", "balance=*cookie*", "write sticky: { cookie: sg } in its place, or hash:ip"),
];

/// The advice for the name of a field at `place` and its text; `blank` has the values of blanks that the text has not.
pub(super) fn find_advice(
    place: &str,
    name: &str,
    text: &str,
    blank: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let is_meant = |word: &str| {
        let (known, wanted) = word.split_once('=').map_or((word, None), |(known, text)| (known, Some(text)));
        let is_named = match known {
            "*" => true,
            "###" => is_status(name),
            _ => known == name,
        };
        is_named && wanted.is_none_or(|wanted| fits_text(wanted, text))
    };
    let value = |asked: &str| match asked {
        "name" => Some(name.to_owned()),
        "text" => Some(text.to_owned()).filter(|text| !text.is_empty()),
        "shown" => Some(show_text(text)),
        "time" => Some(show_time(text)),
        "size" => Some(show_size(text)),
        "digits" => Some(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).to_owned()),
        "share" => Some(text.trim_end_matches('%').to_owned()),
        _ => blank(asked),
    };
    // Each second piece is the name of a blank.
    let fill = |(index, piece): (usize, &str)| match index % 2 {
        0 => Some(piece.to_owned()),
        _ => value(piece),
    };
    let mut rows = ADVICE.iter().filter(|(own, words, _)| *own == place && words.split(' ').any(is_meant));
    rows.find_map(|(.., sentence)| sentence.split(['<', '>']).enumerate().map(fill).collect())
}

/// True if `text` is the `wanted` one, or of the kind that it names: `EVERY` address, `/*` for a beginning, …
fn fits_text(wanted: &str, text: &str) -> bool {
    let (start, end) = (wanted.strip_suffix('*'), wanted.strip_prefix('*'));
    match (wanted, start, end) {
        ("EVERY", ..) => is_every_address(text),
        ("NUMBER", ..) => is_number(text),
        ("OFF", ..) => is_off(text),
        ("ON", ..) => is_on(text),
        ("RATE", ..) => parse_rate(text).is_ok(),
        ("TIME", ..) => parse_duration(text).is_ok(),
        ("UNLIMITED", ..) => is_unlimited(text),
        ("*", ..) | (_, None, None) => wanted == text,
        (_, Some(_), Some(_)) => text.contains(wanted.trim_matches('*')),
        (_, Some(start), None) => text.starts_with(start),
        (_, None, Some(end)) => text.ends_with(end),
    }
}

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

pub(super) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// True for three digits.
pub(super) fn is_status(text: &str) -> bool {
    text.len() == 3 && is_number(text)
}

fn is_on(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "on" | "true" | "yes" | "enabled")
}

/// True if the text switches something off in other programs.
fn is_off(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "off" | "false" | "no" | "disabled")
}

/// True if the text stands for no bound in other programs.
pub(super) fn is_unlimited(text: &str) -> bool {
    let word = text.to_ascii_lowercase();
    is_off(text) || matches!(word.as_str(), "0" | "-1" | "unlimited" | "infinite" | "infinity" | "never")
}

/// A duration; one without a unit means seconds in most programs.
pub(super) fn show_time(text: &str) -> String {
    match text {
        "" => "60s".to_owned(),
        text if is_number(text) => format!("{text}s"),
        text => show_text(text),
    }
}

/// A size such as `10m`, with the units of this file.
fn show_size(text: &str) -> String {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" => "B",
        "k" => "KiB",
        "m" => "MiB",
        "g" => "GiB",
        _ => return show_text(text),
    };
    if digits.is_empty() { "10MiB".to_owned() } else { format!("{digits}{unit}") }
}
