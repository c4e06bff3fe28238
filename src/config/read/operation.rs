//! Reads `reload`, `admin`, `log` and `access_log`.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::{
    AccessLogConfig, AccessLogOutput, AdminConfig, LogConfig, LogFormat, LogLevel, ReloadConfig,
};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::value::scalars::{Parsed, Secret};
use crate::config::yaml::fields::{FieldReader, FieldValue, parse_or_none, parse_word};
use crate::config::yaml::tree::NodeContent;

/// Shorter intervals would only waste time.
const WATCH_MIN: Duration = Duration::from_millis(100);

pub(crate) fn read_reload(root: &mut FieldReader<'_>) -> ReloadConfig {
    let mut reload = ReloadConfig { watch: None };
    let Some(mut fields) = root.open_section("reload") else {
        return reload;
    };
    reload.watch = fields.read_scalar("watch", reload.watch, parse_or_none(parse_watch));
    fields.report_unknown();
    reload
}

fn parse_watch(text: &str) -> Parsed<Duration> {
    let every = scalars::parse_nonzero_duration(text)?;
    if every < WATCH_MIN {
        let error = ValueError::new(codes::DURATION, format!("`{text}` is too short: 100ms is the least"));
        return Err(error.with_help("write 1s"));
    }
    Ok(every)
}

pub(crate) fn read_admin(root: &mut FieldReader<'_>) -> Option<AdminConfig> {
    let default = AdminConfig { listen: ([127, 0, 0, 1], 9901).into(), token: None, hosts: Vec::new() };
    let Some(value) = root.get_field("admin") else {
        return Some(default);
    };
    if value.is_word("none") {
        return None;
    }
    if !matches!(value.node.content, NodeContent::Map(_)) {
        let admin = AdminConfig { listen: value.parse_with(parse_admin_address)?, ..default };
        check_admin_exposure(&admin, &value);
        return Some(admin);
    }
    let mut fields = value.field_reader();
    let listen_value = fields.get_field("listen");
    let token_value = fields.get_field("token");
    let token = token_value.as_ref().and_then(read_token);
    let hosts = fields.read_list("hosts", names::parse_host_name);
    if let Some(tokens) = fields.get_field("tokens") {
        let error = ValueError::new(codes::UNSUPPORTED, "tokens with names are not supported yet");
        tokens.report_at_name(error.with_help("write token: \"${ADMIN_TOKEN}\""));
    }
    fields.report_unknown();
    let listen =
        listen_value.as_ref().map_or(Some(default.listen), |value| value.parse_with(parse_admin_address))?;
    let admin = AdminConfig { listen, token, hosts };
    if token_value.is_none() {
        check_admin_exposure(&admin, listen_value.as_ref().unwrap_or(&value));
    }
    Some(admin)
}

/// Without a token, the admin listener must be on a loopback address.
fn check_admin_exposure(admin: &AdminConfig, value: &FieldValue<'_>) {
    if !admin.listen.ip().is_loopback() {
        let shown = value.written_text();
        let message = format!("the admin address `{shown}` is open to the network and has no token");
        value.report_at_value(
            ValueError::new(codes::OPEN_ADMIN, message).with_help(
                "write { listen: …, token: \"${ADMIN_TOKEN}\" }, or an address of this host alone",
            ),
        );
    }
}

fn parse_admin_address(text: &str) -> Parsed<std::net::SocketAddr> {
    names::parse_socket_address(text).map_err(|error| {
        let port = text.strip_prefix(':').unwrap_or(text);
        let bare = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        if bare { error.with_help(format!("write 127.0.0.1:{port}")) } else { error }
    })
}

/// The token itself never appears in a problem.
fn read_token(value: &FieldValue<'_>) -> Option<Secret> {
    value.parse_with(|text| {
        let visible = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        let error = || {
            ValueError::new(codes::HEADER, "the token must be visible ASCII without spaces, and not empty")
        };
        visible.then(|| Some(Secret(text.to_owned()))).ok_or_else(error)
    })?
}

pub(crate) fn read_log(root: &mut FieldReader<'_>) -> LogConfig {
    let mut log = LogConfig { level: LogLevel::Info, format: LogFormat::Auto };
    let Some(mut fields) = root.open_section("log") else {
        return log;
    };
    let levels = [
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];
    log.level = fields.read_scalar("level", log.level, parse_word(&levels));
    let formats = [("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json)];
    log.format = fields.read_scalar("format", log.format, parse_word(&formats));
    fields.report_unknown();
    log
}

pub(crate) fn read_access_log(root: &mut FieldReader<'_>) -> AccessLogConfig {
    let mut log = AccessLogConfig {
        output: AccessLogOutput::Stdout,
        sample: 100.0,
        headers: Vec::new(),
        hash_keys: true,
    };
    if root.get_field("access_log").is_some_and(|value| value.is_word("none")) {
        log.output = AccessLogOutput::None;
        return log;
    }
    let Some(mut fields) = root.open_section("access_log") else {
        return log;
    };
    log.output = fields.read_scalar("output", log.output, parse_output);
    log.sample = fields.read_scalar("sample", log.sample, scalars::parse_percent);
    log.headers = fields.read_list("headers", names::parse_header_name);
    log.hash_keys = fields.read_scalar("hash_keys", log.hash_keys, scalars::parse_bool);
    fields.report_unknown();
    log
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
