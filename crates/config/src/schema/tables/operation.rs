//! The fields of `reload`, `admin`, `log`, `access_log`, `tracing` and `notify`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;

use crate::schema::field::{OneOrMore, Shape, section};
use crate::schema::kinds::{FILE, Nested, OrWord, PERCENTAGE, SWITCH, Scalar, Span, Special, Text, Words};
use sluicegate_model::value::https_url::{HttpsUrl, parse_notify_url};
use sluicegate_model::value::names;
use sluicegate_model::value::otlp_url::parse_otlp_url;
use sluicegate_model::{
    AccessLogConfig, AccessLogOutput, AdminRights, CollectorConfig, LogConfig, LogField, LogFormat, LogLevel,
    Parsed, ReloadConfig, Secret, ValueError, codes, parse_webhook_secret,
};

use super::limits::parse_name;
use super::reject::headers;

section! {
    /// Reloading of the file without a signal. SIGHUP works in any case, `sluicegate reload`
    /// unless `admin` is `none`.
    mod reload = "reload" for ReloadConfig;
    /// The interval at which the file is read again; it is applied when its content has changed.
    watch: OrWord<Span> = OrWord("none", Span::from(Duration::from_millis(100))),
        "none", "5s";
}

section! {
    /// The admin API: health, metrics, status, limits, servers, explain and reload.
    mod admin = "admin";
    /// The address of the listener. One that is not a loopback address requires a token.
    LISTEN: Text<SocketAddr> = Text::new("an address with its port", parse_admin_address),
        "listen", "127.0.0.1:9901", "10.0.0.5:9901";
    /// The token that requests must carry as `Authorization: Bearer TOKEN`. It is short for one of `tokens` with the
    /// name `admin` that allows all.
    TOKEN: OrWord<Text<Secret>> = OrWord("none", Text::new("visible ASCII without spaces", parse_token)),
        "token", "none", "\"${ADMIN_TOKEN}\"";
    /// Several tokens, each with a name and its rights, in place of `token`.
    TOKENS: Special = Special(|| Shape::List(Box::new(Shape::Section(&admin_token::SECTION)))),
        "tokens", "[]", "[{ name: ops, token: \"${OPS_TOKEN}\" }, { name: eye, token: \"${EYE_TOKEN}\", allow: read }]";
    /// Host names that requests may use beside the address, as a protection against DNS rebinding.
    HOSTS: OneOrMore<Text<String>> = OneOrMore(Text::new("a host name", names::parse_host_name)),
        "hosts", "[]", "[admin.internal]";
}

section! {
    /// One token of the admin API. Its name and the token itself are unique.
    mod admin_token = "admin.tokens[]";
    /// The name of its holder, which audit lines show.
    NAME: Text<String> = Text::new("a name", parse_name), "name", required, "ops";
    /// The token that requests must carry as `Authorization: Bearer TOKEN`.
    TOKEN: Text<Secret> = Text::new("visible ASCII without spaces", parse_token),
        "token", required, "\"${OPS_TOKEN}\"";
    /// Whether its holder may change something, or `read` alone, or also set `numbers` of limits: other changes are
    /// answered 403.
    ALLOW: Words<AdminRights> =
        Words(&[("all", AdminRights::All), ("read", AdminRights::Read), ("numbers", AdminRights::Numbers)]),
        "allow", "all", "read";
    /// Shows accounts by name although `access_log.hash_keys` hides them. A token that allows all sees them always.
    NAMES: Scalar<bool> = SWITCH, "names", "false", "true";
}

section! {
    /// The log of the program itself, on stderr.
    mod log = "log" for LogConfig;
    /// The least severe messages that are written.
    level: Words<LogLevel> = Words(&LogLevel::WORDS), "info", "warn";
    /// The form of a message; `auto` is pretty on a terminal, else JSON.
    format: Words<LogFormat> = Words(&LogFormat::WORDS), "auto", "json";
}

section! {
    /// The log of requests, one line each.
    mod access_log = "access_log" for AccessLogConfig;
    /// `stdout`, `none`, or the path of a file, which SIGUSR1 opens again; a relative one starts at the folder of this
    /// file.
    output: Text<AccessLogOutput> = Text::new("stdout, none or the path of a file", parse_output),
        "stdout", "/var/log/sluicegate/access.log";
    /// The form of a line: `json`, or `pretty`, which shows the main fields in columns and cannot be replayed; `auto`
    /// is pretty where `output` is stdout and a terminal, else JSON.
    format: Words<LogFormat> = Words(&LogFormat::WORDS), "auto", "json";
    /// The share of requests that are logged, rejections and errors included.
    sample: Text<f64> = PERCENTAGE, "100%", "1%";
    /// Request headers that each line repeats.
    headers: OneOrMore<Text<HeaderName>> = OneOrMore(Text::new("a header name", names::parse_header_name)),
        "[]", "[user-agent, referer]";
    /// Further fields of each line: the user agent, the referer without its query, the tries and the response time of
    /// the upstream, the scheme and the version of HTTP.
    fields: OneOrMore<Words<LogField>> = OneOrMore(Words(&LogField::WORDS)), "[]", "[user_agent, upstream_ms]";
    /// Writes accounts and keys as 64-bit hashes instead of their text.
    hash_keys: Scalar<bool> = SWITCH, "true", "false";
    /// The secret that hashes of accounts and keys are made with. Gateways with the same secret make the same hashes,
    /// also after a restart. With `auto`, gateways that share a Redis keep one there; any other process has its own,
    /// which `state.snapshot` keeps over restarts.
    hash_secret: OrWord<Text<Secret>> = OrWord("auto", Text::new("a text that is not empty", parse_hash_secret)),
        "auto", "\"${LOG_HASH_SECRET}\"";
}

section! {
    /// Traces: a span for each sampled request, sent to a collector by OTLP over HTTP.
    mod tracing = "tracing";
    /// The URL of the collector; without a path, `/v1/traces` is added. With `none` there are no spans, and the trace
    /// context of clients is passed on as it is.
    OTLP: OrWord<Text<CollectorConfig>> =
        OrWord("none", Text::new("a URL with http:// or https://", parse_otlp_url)),
        "otlp", "none", "\"http://127.0.0.1:4318\"";
    /// The share of requests without a `traceparent` that are sampled. The others follow the decision of their caller.
    SAMPLE: Text<f64> = PERCENTAGE, "sample", "1%", "100%";
    /// Headers that each export carries, e.g. the key of the collector.
    HEADERS: Special = Special(headers), "headers", "{}", "{ authorization: \"${OTLP_AUTHORIZATION}\" }";
}

section! {
    /// The receiver of events, e.g. of the steps of quotas. Each event is a POST as by Standard Webhooks, which is
    /// repeated for an hour until its answer is 2xx.
    mod notify = "notify";
    /// The URL of the receiver: `https://`, or `http://` to this host alone.
    URL: Text<(bool, HttpsUrl)> = Text::new("a URL with https://, or http:// to this host", parse_notify_url),
        "url", required, "\"https://hooks.example.com/quota\"";
    /// The secret of signatures: `whsec_` and base64, or another text; at least 24 bytes.
    SECRET: Text<Secret> = Text::new("a text of at least 24 bytes", parse_notify_secret),
        "secret", required, "\"${NOTIFY_SECRET}\"";
    /// TLS towards the receiver; it is always verified.
    TLS: Nested = Nested(&notify_tls::SECTION), "tls", "{}", "{ ca: authority.pem }";
}

section! {
    /// TLS towards the receiver of events.
    mod notify_tls = "notify.tls";
    /// A PEM file with the trusted authorities; `system` stands for those of the system.
    CA: OrWord<Text<PathBuf>> = OrWord("system", FILE), "ca", "system", "authority.pem";
}

fn parse_notify_secret(text: &str) -> Parsed<Secret> {
    parse_webhook_secret(text).map(|_| Secret(text.to_owned()))
}

fn parse_admin_address(text: &str) -> Parsed<SocketAddr> {
    names::parse_socket_address(text).map_err(|error| {
        let port = text.strip_prefix(':').unwrap_or(text);
        let bare = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        if bare { error.with_help(format!("write 127.0.0.1:{port}")) } else { error }
    })
}

/// The token itself never appears in a problem.
pub(super) fn parse_token(text: &str) -> Parsed<Secret> {
    let visible = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    let error =
        || ValueError::new(codes::HEADER, "the token must be visible ASCII without spaces, and not empty");
    visible.then(|| Secret(text.to_owned())).ok_or_else(error)
}

/// The secret itself never appears in a problem.
pub(super) fn parse_hash_secret(text: &str) -> Parsed<Secret> {
    let secret = names::parse_filled(text, codes::MISSING, "the secret is empty").map(Secret);
    secret.map_err(|error| error.with_help("write auto, or a text"))
}

fn parse_output(text: &str) -> Parsed<AccessLogOutput> {
    match text {
        "stdout" => Ok(AccessLogOutput::Stdout),
        "none" => Ok(AccessLogOutput::None),
        _ if text.contains(['/', '.']) && !text.contains('\0') => {
            Ok(AccessLogOutput::File(PathBuf::from(text)))
        }
        _ => Err(ValueError::new(codes::WORD, format!("`{text}` is not an output"))
            .with_help("write stdout, none or the path of a file, e.g. ./access.log")),
    }
}
