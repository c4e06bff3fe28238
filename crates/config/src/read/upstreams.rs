//! Reads `upstreams`: the groups of servers that requests are forwarded to.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use super::keys;
use super::tls_files::UpstreamTlsReader;
use crate::schema::tables::root::root;
use crate::schema::tables::upstreams::{
    eject, health, obey, retries, server, server_queue, sticky, timeouts, upstream,
};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::value::names;
use sluicegate_model::value::server_url::{is_server_url, parse_server};
use sluicegate_model::{
    HealthConfig, ObeyConfig, RetryConfig, RetryReasons, StatusRanges, StickyConfig, UpstreamConfig,
    UpstreamId, UpstreamKind, UpstreamServerConfig, UpstreamTlsConfig, ValueError, codes, did_you_mean,
};

/// The name of the built-in echo backend.
const DEMO: &str = "demo";

/// The upstreams read so far; locations and `degrade` add `demo` and those that they name by URL.
pub(crate) struct UpstreamReader<'a> {
    known: RefCell<NamedUpstreams>,
    /// The defined ones, for warnings about unused ones.
    defined: Vec<(UpstreamId, FieldValue<'a>)>,
    tls_reader: UpstreamTlsReader,
    /// `upstreams` is no mapping, which is reported, so none of its names is known.
    is_misshapen: bool,
}

#[derive(Default)]
struct NamedUpstreams {
    list: Vec<UpstreamConfig>,
    by_name: BTreeMap<String, UpstreamId>,
    used: HashSet<UpstreamId>,
}

impl NamedUpstreams {
    fn add_upstream(&mut self, upstream: UpstreamConfig) -> UpstreamId {
        let index = UpstreamId(self.list.len());
        self.by_name.entry(upstream.name.clone()).or_insert(index);
        self.list.push(upstream);
        index
    }
}

impl<'a> UpstreamReader<'a> {
    pub(crate) fn read_upstreams(root: &FieldReader<'a>) -> UpstreamReader<'a> {
        let mut upstreams = UpstreamReader {
            known: RefCell::default(),
            defined: Vec::new(),
            tls_reader: UpstreamTlsReader::default(),
            is_misshapen: root
                .find(&root::UPSTREAMS)
                .is_some_and(|value| !value.is_map() && !value.is_null()),
        };
        for (key, value) in root.find(&root::UPSTREAMS).map(|value| value.entries()).unwrap_or_default() {
            if key.name == DEMO {
                value.refuse_name(
                    codes::NAME,
                    "the name `demo` belongs to the built-in echo backend",
                    "use another name; upstream: demo works without a definition",
                );
                continue;
            }
            value.accept_name(names::check_name(&key.name));
            let upstream = read_upstream(&key.name, &value, &upstreams.tls_reader);
            let upstream = UpstreamConfig { owner: value.owner(), ..upstream };
            let index = upstreams.known.get_mut().add_upstream(upstream);
            upstreams.defined.push((index, value));
        }
        upstreams
    }

    /// The upstream that a value names by its name, a URL or a unix socket.
    pub(crate) fn resolve_name(&self, value: &FieldValue<'_>) -> Option<UpstreamId> {
        let text = value.parse_with(|text| Ok(text.to_owned()))?;
        self.resolve_text(value, text)
    }

    /// The upstream that `text`, a part of `value`, names.
    pub(crate) fn resolve_text(&self, value: &FieldValue<'_>, text: String) -> Option<UpstreamId> {
        let mut named = self.known.borrow_mut();
        let index = match named.by_name.get(&text) {
            Some(index) => *index,
            None if text == DEMO => {
                let fields = value.absent_section(&upstream::SECTION);
                named.add_upstream(read_settings(DEMO, UpstreamKind::Demo, None, &fields))
            }
            None if is_server_url(&text) => {
                let servers = vec![value.parse_with(|_| parse_server(&text))?];
                let fields = value.absent_section(&upstream::SECTION);
                let tls = self.tls_reader.read_tls(&servers, &fields, value);
                named.add_upstream(read_settings(&text, UpstreamKind::Servers(servers), tls, &fields))
            }
            None => {
                let shown = value.written_text();
                if self.is_misshapen {
                    return None;
                }
                let known = named.by_name.keys().map(String::as_str).chain([DEMO]);
                let help = if text.contains(':') || text.parse::<IpAddr>().is_ok() || text == "localhost" {
                    Some(format!("a server written here needs its scheme: http://{shown}"))
                } else {
                    did_you_mean(&text, known)
                        .or_else(|| Some(format!("define it under upstreams: {shown}: [127.0.0.1:9000]")))
                };
                value.report_at_value(
                    ValueError::new(codes::UNDEFINED, format!("the upstream `{shown}` is not defined"))
                        .with_optional_help(help),
                );
                return None;
            }
        };
        named.used.insert(index);
        Some(index)
    }

    /// All upstreams; unused ones get a warning.
    pub(crate) fn into_upstreams(self) -> Vec<UpstreamConfig> {
        let named = self.known.into_inner();
        for (index, value) in &self.defined {
            if !named.used.contains(index) {
                let message = format!("the upstream `{}` is defined and never used", named.list[*index].name);
                value.warn_at_name(ValueError::new(codes::UNUSED, message));
            }
        }
        named.list
    }
}

fn read_upstream(name: &str, value: &FieldValue<'_>, tls_reader: &UpstreamTlsReader) -> UpstreamConfig {
    let is_map = value.is_map();
    let section = &upstream::SECTION;
    let fields = if is_map { value.open_section(section) } else { value.absent_section(section) };
    fields.read_all(|fields| {
        let named = if is_map { fields.find_required(&upstream::SERVERS) } else { Some(value.clone()) };
        let servers = named.as_ref().map(read_servers).unwrap_or_default();
        let tls = named.and_then(|named| tls_reader.read_tls(&servers, fields, &named));
        read_settings(name, UpstreamKind::Servers(servers), tls, fields)
    })
}

/// All fields except the servers and their TLS.
fn read_settings(
    name: &str,
    kind: UpstreamKind,
    tls: Option<UpstreamTlsConfig>,
    fields: &FieldReader<'_>,
) -> UpstreamConfig {
    UpstreamConfig {
        name: name.to_owned(),
        owner: None,
        kind,
        balance: fields.read(&upstream::BALANCE),
        sticky: read_sticky(fields),
        protocol: fields.read(&upstream::PROTOCOL),
        proxy_protocol: fields.read(&upstream::PROXY_PROTOCOL),
        tls,
        keepalive: fields.read(&upstream::KEEPALIVE),
        max_connections: fields.read(&upstream::MAX_CONNECTIONS),
        queue: fields.read_section_or_none(&upstream::QUEUE, server_queue::read),
        dns_refresh: fields.read(&upstream::DNS_REFRESH),
        timeouts: fields.read_section(&upstream::TIMEOUTS, timeouts::read),
        retries: read_retries(fields),
        slow_start: fields.read(&upstream::SLOW_START),
        health: read_health(fields),
        eject: fields.read_section_or_none(&upstream::EJECT, eject::read),
        obey: read_obey(fields),
    }
}

fn read_servers(value: &FieldValue<'_>) -> Vec<UpstreamServerConfig> {
    let items = value.one_or_more();
    let servers: Vec<UpstreamServerConfig> = items.iter().filter_map(read_server).collect();
    value.check_filled("write e.g. [10.0.0.1:9000, 10.0.0.2:9000]");
    if servers.len() == items.len() && !servers.is_empty() && servers.iter().all(|server| server.backup) {
        value.refuse_name(
            codes::MISSING,
            "every server is a backup",
            "leave at least one without backup: true",
        );
    }
    servers
}

fn read_server(item: &FieldValue<'_>) -> Option<UpstreamServerConfig> {
    if !item.is_map() {
        return item.parse_with(parse_server);
    }
    item.open_section(&server::SECTION).read_all(|fields| {
        let server = fields.read_required(&server::URL);
        let (weight, backup) = (fields.read(&server::WEIGHT), fields.read(&server::BACKUP));
        Some(UpstreamServerConfig { weight, backup, ..server? })
    })
}

fn read_sticky(upstream: &FieldReader<'_>) -> Option<StickyConfig> {
    let sticky = upstream.read_section_or_none(&upstream::STICKY, sticky::read)?;
    if let Some(value) = upstream.find(&upstream::STICKY)
        && upstream.read(&upstream::BALANCE).hashes()
    {
        let message = "`balance: hash:…` chooses the server of each request, so a cookie cannot";
        value.refuse_name(codes::WORD, message, "leave out sticky, or write another balance, e.g. p2c");
    }
    Some(sticky)
}

fn read_retries(upstream: &FieldReader<'_>) -> RetryConfig {
    let retries = upstream.read_section_or_none(&upstream::RETRIES, |fields| {
        let when = fields.find(&retries::WHEN);
        RetryConfig {
            attempts: fields.read(&retries::ATTEMPTS),
            when: match when {
                Some(when) if when.is_word("none") => RetryReasons::default(),
                _ => RetryReasons::from_reasons(&fields.read(&retries::WHEN).concat()),
            },
            budget: fields.read(&retries::BUDGET),
            per_try: fields.read(&retries::PER_TRY),
            total: fields.read(&retries::TOTAL),
        }
    });
    retries.unwrap_or(RetryConfig::OFF)
}

fn read_health(upstream: &FieldReader<'_>) -> Option<HealthConfig> {
    upstream.read_section_or_none(&upstream::HEALTH, |fields| {
        if let Some(status) = fields.find(&health::status).filter(|status| status.is_empty()) {
            status.report_empty("write e.g. 200-399");
        }
        health::read(fields)
    })
}

fn read_obey(upstream: &FieldReader<'_>) -> Option<ObeyConfig> {
    upstream.read_section_or_none(&upstream::OBEY, |fields| {
        let status = StatusRanges(fields.read(&obey::STATUS));
        if let Some(value) = fields.find(&obey::STATUS)
            && status.0.iter().any(|(first, _)| *first < 400)
        {
            let message = "a response below 400 is no refusal: it would stop the requests behind it";
            let help = "write statuses of 400 to 599; RateLimit fields are read in every response";
            value.refuse(codes::STATUS, message, help);
        }
        ObeyConfig { status, at_most: fields.read(&obey::AT_MOST), key: keys::read_key(fields, &obey::KEY) }
    })
}
