//! Reads `locations`: matching rules, limits and actions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method};

use super::conditions::read_when;
use super::limits::{self, LimitReader};
use super::path_edits::{read_rewrite, read_strip, refuse_without_upstream};
use super::patterns::{self, PathPatterns};
use super::upstreams::UpstreamReader;
use super::{access, auth, cors, headers, keys, reject};
use crate::describe::spell_host;
use crate::schema::tables::locations::{bandwidth, location, parse_plain_path, redirect, usage};
use crate::schema::tables::root::root as root_fields;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::NodeContent;
use sluicegate_model::value::byte_rate::parse_byte_rate;
use sluicegate_model::value::scalars;
use sluicegate_model::{
    AccessConfig, ActionConfig, BandwidthConfig, CannedResponse, ConditionConfig, HostRule, ListenConfig,
    LocationConfig, Parsed, PathRule, Position, Scheme, ServerConfig, TemplatePiece, ValueError, codes,
    did_you_mean,
};

/// Reads all locations; their inline limits and upstreams are added to `limits` and `upstreams`.
pub(crate) fn read_locations(
    root: &FieldReader<'_>,
    limits: &mut LimitReader<'_>,
    upstreams: &UpstreamReader<'_>,
    access: &Arc<AccessConfig>,
    listen: &[ListenConfig],
    server: &ServerConfig,
) -> Vec<LocationConfig> {
    let Some(value) = root.find(&root_fields::LOCATIONS) else {
        let is_service_alone = listen.is_empty() && root.find(&root_fields::SERVICE).is_some();
        if is_service_alone || root.is_nested("locations") {
            return Vec::new();
        }
        root.report_missing("locations", "write e.g. locations: [{ path: /, upstream: demo }]");
        return Vec::new();
    };
    if !matches!(value.node.content, NodeContent::List(_) | NodeContent::Null | NodeContent::Invalid) {
        value.report_shape("a list, one `- path: …` for each location");
        return Vec::new();
    }
    let items = value.one_or_more();
    let paths = items.iter().filter_map(|item| item.node.find_field("path")?.as_plain());
    let fields = items.iter().flat_map(|item| item.node.entries());
    let conditions =
        fields.filter(|(key, _)| key.name == location::WHEN.name).flat_map(|(_, when)| when.entries());
    let texts = paths.chain(conditions.filter_map(|(_, value)| value.text()?.as_plain()));
    let Some(patterns) = value.accept_name(PathPatterns::compile_all(texts)) else { return Vec::new() };
    let (mut locations, mut places, mut seen) = (Vec::new(), Vec::new(), SeenLocations::default());
    let mut section = LocationSection { access, listen, server, patterns, names: HashMap::new() };
    for item in items {
        let form = "a mapping such as { path: /, upstream: demo }";
        let Some(fields) = item.open_map(&location::SECTION, form) else { continue };
        let location = fields.read_all(|fields| read_location(fields, limits, upstreams, &mut section));
        let Some(location) = location else { continue };
        if let Some(earlier) = find_or_insert(&mut seen, &location, locations.len()) {
            let line = item.sink.show_line(places[earlier], item.node.position);
            let message = format!(
                "the same host, path, methods, scheme, listener and conditions as the location in line {line}"
            );
            let help = "remove one, or let them differ in one of these";
            fields.find(&location::PATH).unwrap_or(item.clone()).refuse(codes::SAME_LOCATION, message, help);
        }
        locations.push(location);
        places.push(item.node.position);
    }
    locations
}

/// The context for reading each location.
struct LocationSection<'s> {
    access: &'s Arc<AccessConfig>,
    listen: &'s [ListenConfig],
    server: &'s ServerConfig,
    patterns: PathPatterns,
    /// The names that locations have been given so far.
    names: HashMap<String, Position>,
}

fn read_location(
    fields: &FieldReader<'_>,
    limits: &mut LimitReader<'_>,
    upstreams: &UpstreamReader<'_>,
    section: &mut LocationSection<'_>,
) -> Option<LocationConfig> {
    let path_value = fields.find_required(&location::PATH);
    let parse_path = |text: &str| parse_path_rule(text, &section.patterns);
    let path = path_value.as_ref().and_then(|value| value.parse_with(parse_path));
    let written_path = path_value.as_ref().and_then(FieldValue::as_text).unwrap_or_default().to_owned();
    let hosts = fields.read_list_or_word(&location::HOST);
    let methods = limits::read_methods(fields, &location::METHODS);
    let scheme = fields.read(&location::SCHEME);
    let listeners = read_listeners(fields, section.listen);
    let take = |name: &str, place| section.names.insert(name.to_owned(), place);
    let given_name = fields.read_unique_name(&location::NAME, "locations", None, take);
    let action = read_action(fields, limits, upstreams);
    refuse_without_upstream(fields, action.as_ref());
    let when = read_when(fields, &section.patterns);
    let owner = given_name.clone().unwrap_or_else(|| {
        let (hosts, methods) = (hosts.iter().map(spell_host), methods.iter().map(Method::to_string));
        let lists =
            [hosts.collect(), methods.collect(), when.iter().map(ConditionConfig::to_string).collect()];
        name_owner(&listeners, scheme, lists, &written_path)
    });
    let chain = fields.find(&location::LIMITS);
    let chain = chain.map(|value| limits.read_chain(&value, &owner)).unwrap_or_default();
    let location = LocationConfig {
        owner: fields.whole.owner(),
        name: given_name.unwrap_or_else(|| written_path.clone()),
        written_path,
        hosts,
        methods,
        scheme,
        listeners,
        when,
        limits: chain.limits,
        views: chain.views,
        strip: read_strip(fields, path.as_ref()),
        rewrite: read_rewrite(fields),
        add_prefix: fields.read(&location::ADD_PREFIX),
        host_header: fields.read(&location::HOST_HEADER),
        request_headers: headers::read_edits(fields, &location::REQUEST_HEADERS),
        response_headers: headers::read_edits(fields, &location::RESPONSE_HEADERS),
        access: access::read_access_over(
            fields.find(&location::ACCESS).as_ref(),
            limits.sets,
            section.access,
        ),
        on_reject: reject::read_patch(fields.find(&location::ON_REJECT).as_ref(), upstreams),
        reads_account: fields.read(&location::ACCOUNT),
        timeout: fields.read(&location::TIMEOUT),
        bandwidth: read_bandwidth(fields),
        body_peek: read_body_peek(fields, section.server.body_memory),
        max_body: fields.read(&location::MAX_BODY).unwrap_or(section.server.max_body),
        cors: cors::read_cors(fields),
        auth: auth::read_auth(fields, limits, upstreams, &owner),
        path: path?,
        action: action?,
    };
    Some(location)
}

/// The beginning of the names of inline limits: all by which locations of the same path differ, and the path. Marks
/// keep listeners and schemes from being read as hosts.
fn name_owner(listeners: &[String], scheme: Option<Scheme>, lists: [Vec<String>; 3], path: &str) -> String {
    let listeners = if listeners.is_empty() { String::new() } else { format!("@{}", listeners.join(",")) };
    let scheme = scheme.map_or_else(String::new, |scheme| format!("{}:", scheme.as_str()));
    let [hosts, methods, when] = lists.map(|list| list.join(","));
    let parts = [listeners, scheme, hosts, methods, when, path.to_owned()].into_iter();
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The bytes that are read of a body, which must fit into the room of one network.
fn read_body_peek(fields: &FieldReader<'_>, body_memory: u64) -> Option<u64> {
    let peek = fields.read(&location::BODY_PEEK);
    if let (Some(value), Some(bytes)) = (fields.find(&location::BODY_PEEK), peek)
        && bytes > body_memory / 4
    {
        let message = "`body_peek` is more than a quarter of `server.body_memory`, the room of one network";
        let help = "write a larger body_memory or a smaller body_peek";
        value.refuse(codes::SIZE, message, help);
    }
    peek
}

fn parse_path_rule(text: &str, patterns: &PathPatterns) -> Parsed<PathRule> {
    if patterns::is_regex(text) {
        return patterns.find_compiled(text).map(PathRule::Regex);
    }
    if let Some(path) = text.strip_prefix("^~") {
        return parse_plain_path(path.trim_start()).map(|path| PathRule::Prefix { path, no_regex: true });
    }
    if let Some(path) = text.strip_prefix('=') {
        return parse_plain_path(path.trim_start()).map(PathRule::Exact);
    }
    parse_plain_path(text).map(|path| PathRule::Prefix { path, no_regex: false })
}

fn read_action(
    fields: &FieldReader<'_>,
    limits: &mut LimitReader<'_>,
    upstreams: &UpstreamReader<'_>,
) -> Option<ActionConfig> {
    let actions = [&location::UPSTREAM, &location::RESPOND, &location::REDIRECT, &location::USAGE];
    let written = actions.map(|field| fields.find(field));
    let given: Vec<&FieldValue<'_>> = written.iter().flatten().collect();
    if let [_, second, ..] = given.as_slice() {
        second.refuse_name(
            codes::ACTION,
            "a location has only one of `upstream`, `respond`, `redirect` and `usage`",
            "remove the others, or give them a location of their own with another path",
        );
    }
    match &written {
        [Some(upstream), ..] => upstreams.resolve_name(upstream).map(ActionConfig::Upstream),
        [None, Some(respond), ..] => read_respond(respond),
        [None, None, Some(redirect), _] => read_redirect(redirect),
        [None, None, None, Some(usage)] => read_usage(usage, limits),
        [None, None, None, None] if actions.iter().any(|field| fields.is_misnamed(field.name)) => None,
        [None, None, None, None] => {
            fields.whole.refuse_name(
                codes::ACTION,
                "the location does nothing",
                "add upstream: NAME, respond: { status: 200 }, redirect: { to: URL } or usage: {}",
            );
            None
        }
    }
}

fn read_respond(value: &FieldValue<'_>) -> Option<ActionConfig> {
    if !value.is_map() {
        value.report_shape("a mapping such as { status: 200, body: \"ok\" }");
        return None;
    }
    let CannedResponse { status, body, content_type } = reject::read_canned(value)?;
    Some(ActionConfig::Respond { status, body, content_type })
}

fn read_redirect(value: &FieldValue<'_>) -> Option<ActionConfig> {
    let (to, status) = value
        .open_map(&redirect::SECTION, "a mapping such as { to: \"https://example.com/\" }")?
        .read_all(|fields| (fields.find_required(&redirect::TO), fields.read(&redirect::STATUS)));
    let to = to?;
    let template = headers::read_template(&to, |_| true, false)?;
    let unsendable = template
        .0
        .iter()
        .any(|piece| matches!(piece, TemplatePiece::Text(text) if HeaderValue::from_str(text).is_err()));
    if template.0.is_empty() || unsendable {
        to.report_at_value(ValueError::new(
            codes::HEADER,
            "a redirect needs a target that fits into one header line",
        ));
        return None;
    }
    Some(ActionConfig::Redirect { to: template, status })
}

fn read_usage(value: &FieldValue<'_>, limits: &mut LimitReader<'_>) -> Option<ActionConfig> {
    let fields = value.open_map(&usage::SECTION, "a mapping such as {} or { limits: [plan] }")?;
    let shown = fields.read_all(|fields| fields.find(&usage::LIMITS).filter(|value| !value.is_word("all")));
    Some(ActionConfig::Usage { limits: shown.map(|shown| limits.read_shown(&shown)) })
}

/// The default of `burst` is the bytes of this time …
const BURST: Duration = Duration::from_secs(1);
/// … but at least the head of a small page.
const BURST_LEAST: u64 = 16 << 10;

/// The least burst is the bytes of this time: timers count milliseconds, and a smaller bucket would refill before one
/// fires.
const BURST_SPAN: Duration = Duration::from_millis(10);

/// A bound on the time in which a bucket fills, in nanoseconds, that leaves room for the arithmetic on it.
const FILL_MAX_NS: u128 = 1 << 62;

/// Reads `bandwidth`; `None` = bodies are not paced.
pub(crate) fn read_bandwidth(fields: &FieldReader<'_>) -> Option<BandwidthConfig> {
    let value = fields.find(&location::BANDWIDTH).filter(|value| !value.is_word("none"))?;
    let (key, rate, burst) = fields.read_section_or_none(&location::BANDWIDTH, |fields| {
        let burst = fields.find(&bandwidth::BURST).filter(|value| !value.is_word("auto"));
        (keys::read_key(fields, &bandwidth::KEY), fields.find_required(&bandwidth::RATE), burst)
    })?;
    let rate = rate?.parse_with(parse_byte_rate)?;
    let mut pace = BandwidthConfig { rate, burst: 0, key };
    pace.burst = match &burst {
        Some(value) => value.parse_with(scalars::parse_size)?,
        None => rate.units_within(BURST).max(BURST_LEAST),
    };
    let least = rate.units_within(BURST_SPAN).max(1);
    let burst_value = burst.as_ref().unwrap_or(&value);
    if pace.burst < least {
        let message = format!("a burst of {} bytes is too small for this rate", pace.burst);
        let help = format!("write at least the bytes of 10 ms, {least}B, or leave it out");
        burst_value.refuse(codes::LIMIT_NUMBERS, message, help);
    }
    let fill_ns =
        u128::from(pace.burst).saturating_mul(rate.period.as_nanos()) / u128::from(rate.units.get());
    if fill_ns >= FILL_MAX_NS {
        let message = "this burst would take more than 146 years to fill at this rate";
        burst_value.refuse(codes::LIMIT_NUMBERS, message, "write a smaller burst, or a faster rate");
    }
    Some(pace)
}

/// `listener`: names of `listen` entries; empty = any.
fn read_listeners(fields: &FieldReader<'_>, listen: &[ListenConfig]) -> Vec<String> {
    let Some(value) = fields.find(&location::LISTENER).filter(|value| !value.is_word("any")) else {
        return Vec::new();
    };
    value.check_filled("write any, or names of listeners such as [plain, secure]");
    let mut listeners: Vec<String> = Vec::new();
    for item in value.one_or_more() {
        let Some(name) = item.parse_with(|text| Ok(text.to_owned())) else { continue };
        if !listen.iter().any(|entry| entry.name.as_ref() == Some(&name)) {
            report_unknown_listener(&item, &name, listen);
        } else if !listeners.contains(&name) {
            listeners.push(name);
        }
    }
    listeners
}

fn report_unknown_listener(item: &FieldValue<'_>, name: &str, listen: &[ListenConfig]) {
    let shown = item.written_text();
    let known: Vec<&str> = listen.iter().filter_map(|entry| entry.name.as_deref()).collect();
    let help = did_you_mean(name, known.iter().copied()).unwrap_or_else(|| match known.as_slice() {
        [] => format!("name it: listen: [{{ address: \":80\", name: {shown} }}]"),
        known => format!("the listeners are {}", known.join(", ")),
    });
    let message = format!("no listener is named `{shown}`");
    item.refuse(codes::UNDEFINED, message, help);
}

/// The locations read so far, by each host with all that narrows them.
type SeenLocations = HashMap<MatchedRequests, usize>;

/// What a location takes of one host (`None` = any): its path, methods, scheme, listeners and conditions; lists are
/// sorted.
type MatchedRequests = (String, Option<HostRule>, Vec<String>, Option<Scheme>, Vec<String>, Vec<String>);

/// The first earlier location that takes the same requests of a common host. `location` gets `index`.
fn find_or_insert(seen: &mut SeenLocations, location: &LocationConfig, index: usize) -> Option<usize> {
    let mut methods: Vec<String> = location.methods.iter().map(ToString::to_string).collect();
    methods.sort_unstable();
    let mut listeners = location.listeners.clone();
    listeners.sort_unstable();
    let hosts: Vec<Option<HostRule>> = match location.hosts.as_slice() {
        [] => vec![None],
        hosts => hosts.iter().cloned().map(Some).collect(),
    };
    let (path, when) = (location.path_identity(), location.when_identity());
    let entries = hosts.into_iter().map(|host| {
        let (methods, listeners, when) = (methods.clone(), listeners.clone(), when.clone());
        *seen.entry((path.clone(), host, methods, location.scheme, listeners, when)).or_insert(index)
    });
    entries.filter(|&first| first != index).min()
}
