//! Reads `reload`, `admin`, `log`, `access_log`, `tracing` and `notify`.

use super::headers;
use super::tls_files::UpstreamTlsReader;
use crate::schema::field::ParseScalar;
use crate::schema::tables::operation::{access_log, admin, admin_token, notify, notify_tls, tracing};
use crate::schema::tables::root::root;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::value::names;
use sluicegate_model::{
    AccessLogConfig, AccessLogOutput, AdminConfig, AdminRights, AdminToken, NotifyConfig, Secret,
    TracingConfig, ValueError, codes,
};

/// `None` = there is none, or its address is wrong.
pub(crate) fn read_admin(root: &FieldReader<'_>) -> Option<AdminConfig> {
    let default =
        AdminConfig { listen: admin::LISTEN.parse_default(), tokens: Vec::new(), hosts: Vec::new() };
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
        let (tokens, hosts) = (read_tokens(fields), fields.read(&admin::HOSTS));
        let token = fields.find(&admin::TOKEN).filter(|token| !token.is_word("none"));
        let has_tokens = token.is_some() || fields.find(&admin::TOKENS).is_some();
        let exposed = fields.find(&admin::LISTEN).filter(|_| !has_tokens);
        (exposed, listen.map(|listen| AdminConfig { listen, tokens, hosts }))
    });
    if let (Some(listen), Some(admin)) = (named, &admin) {
        check_admin_exposure(admin, &listen);
    }
    admin
}

/// `tokens`, or the one that `token` stands for.
fn read_tokens(fields: &FieldReader<'_>) -> Vec<AdminToken> {
    let single = fields.read(&admin::TOKEN);
    let Some(value) = fields.find(&admin::TOKENS) else {
        let (name, allow, names) = ("admin".to_owned(), AdminRights::All, false);
        return single.map(|token| AdminToken { name, token, allow, names }).into_iter().collect();
    };
    if let Some(single) = fields.find(&admin::TOKEN) {
        let message = "`token` and `tokens` are both written";
        single.refuse_name(codes::NAME, message, "move it into tokens");
    }
    value.check_filled(&format!("write e.g. tokens: {}", admin::TOKENS.example));
    let mut tokens: Vec<AdminToken> = Vec::new();
    for item in value.one_or_more() {
        tokens.extend(read_token(&item, &tokens));
    }
    tokens
}

/// One token, with a name and a value that none of `known` has.
fn read_token(item: &FieldValue<'_>, known: &[AdminToken]) -> Option<AdminToken> {
    let form = "a mapping such as { name: ops, token: \"${OPS_TOKEN}\" }";
    item.open_map(&admin_token::SECTION, form)?.read_all(|fields| {
        let (name, token) =
            (fields.read_required(&admin_token::NAME), fields.read_required(&admin_token::TOKEN));
        let (allow, names) = (fields.read(&admin_token::ALLOW), fields.read(&admin_token::NAMES));
        if known.iter().any(|other| Some(&other.name) == name.as_ref())
            && let Some(value) = fields.find(&admin_token::NAME)
        {
            let message = format!("two tokens are named `{}`", value.written_text());
            value.report_at_value(ValueError::new(codes::NAME, message));
        }
        if known.iter().any(|other| Some(&other.token) == token.as_ref())
            && let Some(value) = fields.find(&admin_token::TOKEN)
        {
            value.report_at_value(ValueError::new(codes::NAME, "another entry has the same token"));
        }
        Some(AdminToken { name: name?, token: token?, allow, names })
    })
}

/// Rejects an admin listener without a token that is not on a loopback address.
fn check_admin_exposure(admin: &AdminConfig, value: &FieldValue<'_>) {
    if !admin.listen.ip().is_loopback() {
        let shown = value.written_text();
        let message = format!("the admin address `{shown}` is open to the network and has no token");
        value.refuse(
            codes::OPEN_ADMIN,
            message,
            "write { listen: …, token: \"${ADMIN_TOKEN}\" }, or an address of this host alone",
        );
    }
}

pub(crate) fn read_access_log(root: &FieldReader<'_>) -> AccessLogConfig {
    let read = |fields: &FieldReader<'_>| {
        let mut log = access_log::read(fields);
        if let AccessLogOutput::File(name) = &mut log.output {
            *name = root.whole.folder().join(&*name);
        }
        log
    };
    root.read_section_or_none(&root::ACCESS_LOG, read).unwrap_or_else(|| {
        let defaults = access_log::read(&root.whole.absent_section(&access_log::SECTION));
        AccessLogConfig { output: AccessLogOutput::None, ..defaults }
    })
}

pub(crate) fn read_tracing(root: &FieldReader<'_>) -> TracingConfig {
    root.read_section(&root::TRACING, |fields| {
        let mut otlp = fields.read(&tracing::OTLP);
        // The values are secrets.
        let secret = |text: &str| names::parse_header_value(text).map(|_| Secret(text.to_owned()));
        let pairs = |value| headers::read_pairs(&value, |value| value.parse_with(secret));
        let headers = fields.find(&tracing::HEADERS).map(pairs);
        if let Some(collector) = &mut otlp {
            collector.headers = headers.unwrap_or_default();
        }
        TracingConfig { otlp, sample: fields.read(&tracing::SAMPLE) }
    })
}

/// Reads `notify`.
pub(crate) fn read_notify(root: &FieldReader<'_>) -> Option<NotifyConfig> {
    let config = root.read_section_or_none(&root::NOTIFY, |fields| {
        let (url, secret) = (fields.read_required(&notify::URL), fields.read_required(&notify::SECRET));
        let is_plain = matches!(url, Some((false, _)));
        if let Some(tls) = fields.find(&notify::TLS).filter(|_| is_plain) {
            tls.refuse_name(codes::TLS, "`tls` is for a URL with https://", "remove tls");
        }
        let authorities = UpstreamTlsReader::default();
        let read = |tls: &FieldReader<'_>| authorities.read_roots(tls, &notify_tls::CA);
        let roots = if is_plain { None } else { Some(fields.read_section(&notify::TLS, read)?.0) };
        Some(NotifyConfig { url: url?.1, secret: secret?, roots })
    });
    config.flatten()
}
