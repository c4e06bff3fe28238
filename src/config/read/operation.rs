//! Reads `reload`, `admin`, `log` and `access_log`.

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::{AccessLogConfig, AccessLogOutput, AdminConfig, LogConfig, ReloadConfig};
use crate::config::schema::field::ParseScalar;
use crate::config::schema::tables::operation::{access_log, admin, log, reload};
use crate::config::schema::tables::root::root;
use crate::config::yaml::field_reader::FieldReader;
use crate::config::yaml::field_value::FieldValue;

pub(crate) fn read_reload(root: &FieldReader<'_>) -> ReloadConfig {
    root.read_section(&root::RELOAD, |fields| ReloadConfig { watch: fields.read(&reload::WATCH) })
}

/// `None` = there is none, or its address is wrong.
pub(crate) fn read_admin(root: &FieldReader<'_>) -> Option<AdminConfig> {
    let default = AdminConfig { listen: admin::LISTEN.parse_default(), token: None, hosts: Vec::new() };
    let Some(value) = root.find(&root::ADMIN) else { return Some(default) };
    if value.is_word("none") {
        return None;
    }
    if !value.is_map() {
        let listen = value.parse_with(|text| admin::LISTEN.value.parse_text(text))?;
        let admin = AdminConfig { listen, ..default };
        check_admin_exposure(&admin, &value);
        return Some(admin);
    }
    let (named, admin) = value.open_section(&admin::SECTION).read_all(|fields| {
        let listen = fields.read_valid(&admin::LISTEN);
        let (token, hosts) = (fields.read(&admin::TOKEN), fields.read_list(&admin::HOSTS));
        let exposed = fields.find(&admin::LISTEN).filter(|_| fields.find(&admin::TOKEN).is_none());
        (exposed, listen.map(|listen| AdminConfig { listen, token, hosts }))
    });
    if let (Some(listen), Some(admin)) = (named, &admin) {
        check_admin_exposure(admin, &listen);
    }
    admin
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

pub(crate) fn read_log(root: &FieldReader<'_>) -> LogConfig {
    root.read_section(&root::LOG, |fields| LogConfig {
        level: fields.read(&log::LEVEL),
        format: fields.read(&log::FORMAT),
    })
}

pub(crate) fn read_access_log(root: &FieldReader<'_>) -> AccessLogConfig {
    let read = |fields: &FieldReader<'_>| AccessLogConfig {
        output: fields.read(&access_log::OUTPUT),
        sample: fields.read(&access_log::SAMPLE),
        headers: fields.read_list(&access_log::HEADERS),
        fields: fields.read_list(&access_log::FIELDS),
        hash_keys: fields.read(&access_log::HASH_KEYS),
        hash_secret: fields.read(&access_log::HASH_SECRET),
    };
    root.read_section_or_none(&root::ACCESS_LOG, read).unwrap_or(AccessLogConfig {
        output: AccessLogOutput::None,
        sample: 100.0,
        headers: Vec::new(),
        fields: Vec::new(),
        hash_keys: true,
        hash_secret: None,
    })
}
