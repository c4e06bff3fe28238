//! `reload`, `admin`, `log` and `access_log`: how the gateway is run.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::{AccessLog, AccessLogOutput, Admin, Log, LogFormat, LogLevel, Reload};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::value::scalars::{Read, Secret};
use crate::config::yaml::fields::{Fields, Value, or_none, word};
use crate::config::yaml::tree::Content;

/// Looking more often than this would only burn time.
const WATCH_MIN: Duration = Duration::from_millis(100);

pub(crate) fn read_reload(root: &mut Fields<'_>) -> Reload {
    let mut reload = Reload { watch: None };
    let Some(mut fields) = root.section("reload") else {
        return reload;
    };
    reload.watch = fields.read("watch", reload.watch, or_none(watch));
    fields.close();
    reload
}

fn watch(text: &str) -> Read<Duration> {
    let every = scalars::span(text)?;
    if every < WATCH_MIN {
        let complaint = Complaint::new(codes::DURATION, format!("`{text}` is too short: 100ms is the least"));
        return Err(complaint.help("write 1s"));
    }
    Ok(every)
}

pub(crate) fn read_admin(root: &mut Fields<'_>) -> Option<Admin> {
    let default = Admin { listen: ([127, 0, 0, 1], 9901).into(), token: None, hosts: Vec::new() };
    let Some(value) = root.get("admin") else {
        return Some(default);
    };
    if value.is_word("none") {
        return None;
    }
    if !matches!(value.node.content, Content::Map(_)) {
        let admin = Admin { listen: value.read(admin_address)?, ..default };
        check_is_closed(&admin, &value);
        return Some(admin);
    }
    let mut fields = value.fields();
    let listen_value = fields.get("listen");
    let token_value = fields.get("token");
    let token = token_value.as_ref().and_then(read_token);
    let hosts = fields.read_list("hosts", names::host_name);
    if let Some(tokens) = fields.get("tokens") {
        let complaint = Complaint::new(codes::NOT_YET, "tokens with names are not supported yet");
        tokens.complain_at_name(complaint.help("write token: \"${ADMIN_TOKEN}\""));
    }
    fields.close();
    let listen = listen_value.as_ref().map_or(Some(default.listen), |value| value.read(admin_address))?;
    let admin = Admin { listen, token, hosts };
    if token_value.is_none() {
        check_is_closed(&admin, listen_value.as_ref().unwrap_or(&value));
    }
    Some(admin)
}

/// Without a token only this host may ask.
fn check_is_closed(admin: &Admin, value: &Value<'_>) {
    if !admin.listen.ip().is_loopback() {
        let shown = value.shown();
        let message = format!("the admin address `{shown}` is open to the network and has no token");
        value.complain(
            Complaint::new(codes::OPEN_ADMIN, message)
                .help("write { listen: …, token: \"${ADMIN_TOKEN}\" }, or an address of this host alone"),
        );
    }
}

fn admin_address(text: &str) -> Read<std::net::SocketAddr> {
    names::socket_address(text).map_err(|complaint| {
        let port = text.strip_prefix(':').unwrap_or(text);
        let bare = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        if bare { complaint.help(format!("write 127.0.0.1:{port}")) } else { complaint }
    })
}

/// The token itself never appears in a problem.
fn read_token(value: &Value<'_>) -> Option<Secret> {
    value.read(|text| {
        let visible = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        let complaint =
            || Complaint::new(codes::HEADER, "the token must be visible ASCII without spaces, and not empty");
        visible.then(|| Some(Secret(text.to_owned()))).ok_or_else(complaint)
    })?
}

pub(crate) fn read_log(root: &mut Fields<'_>) -> Log {
    let mut log = Log { level: LogLevel::Info, format: LogFormat::Auto };
    let Some(mut fields) = root.section("log") else {
        return log;
    };
    let levels = [
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];
    log.level = fields.read("level", log.level, word(&levels));
    let formats = [("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json)];
    log.format = fields.read("format", log.format, word(&formats));
    fields.close();
    log
}

pub(crate) fn read_access_log(root: &mut Fields<'_>) -> AccessLog {
    let mut log =
        AccessLog { output: AccessLogOutput::Stdout, sample: 100.0, headers: Vec::new(), hash_keys: true };
    if root.get("access_log").is_some_and(|value| value.is_word("none")) {
        log.output = AccessLogOutput::None;
        return log;
    }
    let Some(mut fields) = root.section("access_log") else {
        return log;
    };
    log.output = fields.read("output", log.output, output);
    log.sample = fields.read("sample", log.sample, scalars::percent);
    log.headers = fields.read_list("headers", names::header_name);
    log.hash_keys = fields.read("hash_keys", log.hash_keys, scalars::boolean);
    fields.close();
    log
}

fn output(text: &str) -> Read<AccessLogOutput> {
    match text {
        "stdout" => Ok(AccessLogOutput::Stdout),
        "none" => Ok(AccessLogOutput::None),
        _ if text.contains(['/', '.']) && !text.contains('\0') => {
            Ok(AccessLogOutput::File(PathBuf::from(text)))
        }
        _ => Err(Complaint::new(codes::WORD, format!("`{text}` is not an output"))
            .help("write stdout, none or the path of a file, e.g. ./access.log")),
    }
}
