//! Reads a scenario file. All problems of a file are reported at once, in the manner of `gateway.yaml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use ipnet::IpNet;

use super::fields::{file, scenario, step};
use super::model::{Scenario, ScenarioFile, ScenarioStep, StepAnswer};
use super::{account, read_answer, read_expect};
use crate::operate::explain::{ParsedQuery, Query};
use sluicegate_base::file::read_capped;
use sluicegate_config as config;
use sluicegate_config::yaml::field_reader::FieldReader;
use sluicegate_config::yaml::field_value::FieldValue;
use sluicegate_config::yaml::tree::{NodeContent, parse_document};
use sluicegate_model::diagnostics::problem::{Position, ProblemSink, ValueError};
use sluicegate_model::diagnostics::redact::redact_lines;
use sluicegate_model::value::methods::parse_known_method;
use sluicegate_model::value::names::parse_header_value;
use sluicegate_model::value::scalars::show_duration;
use sluicegate_model::{Config, ProblemReport, codes};

/// Size limit of a scenario file, in bytes.
const FILE_MAX: u64 = 64 << 20;
/// The most requests of one scenario.
const REQUESTS_MAX: u64 = 50_000_000;

/// Reads the scenario file at `path`, and `config` or else the configuration that the file names.
///
/// # Errors
/// All problems of the scenario file, or those of its configuration.
pub fn load_file(path: &Path, config: Option<&Path>) -> Result<ScenarioFile, ProblemReport> {
    let name = path.display().to_string();
    let unreadable = |reason: String| {
        ProblemReport::for_file(
            &name,
            ValueError::new(codes::UNREADABLE, format!("the file `{name}` {reason}")),
        )
    };
    let bytes = read_capped(path, FILE_MAX).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable("is not UTF-8 text".to_owned()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = || [(String::new(), redact_lines(text))].into();
    let report = |problems| ProblemReport { file: name.clone(), problems, lines: lines() };
    let root = parse_document(text).map_err(|(position, error)| {
        let line = text.lines().nth(position.line.saturating_sub(1)).unwrap_or_default();
        // A mapping in braces ends with its brace.
        let help = "write `expect` inside the braces of its step, or the step without braces";
        let is_outside = line.trim_start().starts_with("expect:");
        report(vec![if is_outside { error.with_help(help) } else { error }.at_position(position, "")])
    })?;
    let sink = ProblemSink::default();
    let whole = FieldValue { node: &root, path: String::new(), named_at: Position::START, sink: &sink };
    let fields = whole.open_section(&file::SECTION);
    let Some(config_path) = find_config(&fields, path, config) else {
        return Err(report(sink.take_sorted().0));
    };
    let config = config::load(&config_path)?.config;
    let (start, scenarios) = read_file(&fields, &config);
    fields.report_unknown_here();
    let (problems, _) = sink.take_sorted();
    match problems.is_empty() {
        true => Ok(ScenarioFile { name, config_path, config, start, scenarios }),
        false => Err(report(problems)),
    }
}

/// The path of the configuration. One that is not there is a mistake of the scenario file, and shown in it.
fn find_config(fields: &FieldReader<'_>, path: &Path, given: Option<&Path>) -> Option<PathBuf> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let written = fields.find(&file::CONFIG);
    let named = match &written {
        Some(value) => value.parse_with(|text| Ok(folder.join(text)))?,
        None => folder.join("gateway.yaml"),
    };
    if let Some(given) = given {
        return Some(given.to_owned());
    }
    if let Some(value) = written.filter(|_| !named.is_file()) {
        let message = format!("the file `{}` does not exist", named.display());
        value.refuse(codes::UNREADABLE, message, "the path starts at the folder of the scenario file");
        return None;
    }
    Some(named)
}

fn read_file(fields: &FieldReader<'_>, config: &Config) -> (Duration, Vec<Scenario>) {
    let start = fields.read(&file::START);
    let mut scenarios: Vec<Scenario> = Vec::new();
    for value in read_items(fields.find_required(&file::SCENARIOS)) {
        let scenario = read_scenario(&value, config);
        if let Some(twice) =
            scenarios.iter().find(|known| known.name == scenario.name && !known.name.is_empty())
        {
            let message = format!("line {} has a scenario named `{}` as well", twice.line, twice.name);
            value.refuse_name(codes::NAME, message, "give each its own name");
        }
        scenarios.push(scenario);
    }
    (start, scenarios)
}

/// The items of a list that must not be empty.
fn read_items(list: Option<FieldValue<'_>>) -> Vec<FieldValue<'_>> {
    let Some(list) = list else { return Vec::new() };
    match &list.node.content {
        NodeContent::List(items) if items.is_empty() => list.report_empty("write at least one"),
        NodeContent::List(_) => return list.one_or_more(),
        _ => list.report_shape("a list"),
    }
    Vec::new()
}

fn read_scenario(value: &FieldValue<'_>, config: &Config) -> Scenario {
    let fields = value.open_section(&scenario::SECTION);
    let name = fields.read_required(&scenario::NAME).unwrap_or_default();
    let mut steps: Vec<ScenarioStep> = Vec::new();
    let mut requests = 0_u64;
    for item in read_items(fields.find_required(&scenario::STEPS)) {
        let before = steps.last().map_or(Duration::ZERO, |step| step.at);
        if let Some(step) = read_step(&item, before, config) {
            requests += step.send;
            steps.push(step);
        }
    }
    if requests > REQUESTS_MAX {
        let message = format!("the scenario sends {requests} requests; at most {REQUESTS_MAX} are allowed");
        value.report_at_name(ValueError::new(codes::NUMBER, message));
    }
    fields.report_unknown_here();
    Scenario { name, line: value.node.position.line, steps }
}

/// A step; `None` after an error.
fn read_step(value: &FieldValue<'_>, before: Duration, config: &Config) -> Option<ScenarioStep> {
    let fields = value.open_section(&step::SECTION);
    let at = read_at(&fields, before);
    let every = fields.read_written(&step::EVERY).unwrap_or_default();
    let send = fields.read(&step::SEND);
    check_length(&fields, at, every, send);
    let from = read_from(&fields);
    let read_answer = |value: FieldValue<'_>| read_answer::read_answer(&value);
    let auth = fields.find(&step::AUTH).map(read_answer);
    let query = read_request(&fields, &from, auth.as_ref(), config);
    let hold = fields.read(&step::HOLD);
    let answer = fields.find(&step::ANSWER).map(read_answer).unwrap_or_default().into();
    let expect = read_expect::read_expectation(&fields, send, config);
    fields.report_unknown_here();
    let query = query?;
    let line = value.node.position.line;
    Some(ScenarioStep { line, at, send, every, query, from, hold, answer, auth, expect })
}

/// The moment of a step, which is not before that of the step before.
fn read_at(fields: &FieldReader<'_>, before: Duration) -> Duration {
    let Some(at) = fields.read_written(&step::AT) else { return before };
    if at < before
        && let Some(value) = fields.find(&step::AT)
    {
        let message = format!("the step before is sent at {}", show_duration(before));
        value.refuse(codes::DURATION, message, "write the steps in the order of time");
    }
    at.max(before)
}

/// The last request of a step is sent within the longest scenario.
fn check_length(fields: &FieldReader<'_>, at: Duration, every: Duration, send: u64) {
    let last = u128::from(send - 1) * every.as_nanos() + at.as_nanos();
    if last > super::fields::AT_MAX.as_nanos()
        && let Some(value) = fields.find(&step::EVERY)
    {
        let message = format!("the last of {send} requests would be sent later than after 366d");
        value.refuse(codes::DURATION, message, "send fewer, or more often");
    }
}

fn read_from(fields: &FieldReader<'_>) -> Vec<IpNet> {
    if let Some(value) = fields.find(&step::FROM) {
        value.check_filled("write at least one address");
    }
    fields.read(&step::FROM)
}

/// The request of a step, as `explain` would be asked about it.
fn read_request(
    fields: &FieldReader<'_>,
    from: &[IpNet],
    auth: Option<&StepAnswer>,
    config: &Config,
) -> Option<Query> {
    let to = fields.read(&step::TO);
    let (method, url) = match to.trim().split_once(char::is_whitespace) {
        Some((method, url)) => (method.to_owned(), url.trim().to_owned()),
        None => ("GET".to_owned(), to.trim().to_owned()),
    };
    // Without an address the problem of `from` is reported already.
    // `parse_query` says that methods are written in capitals.
    let named = config.locations.iter().flat_map(|location| &location.methods);
    let named = named.chain(config.limits.iter().flat_map(|limit| &limit.methods));
    if !method.bytes().any(|byte| byte.is_ascii_lowercase())
        && let Err(error) = parse_known_method(&method, named)
        && let Some(value) = fields.find(&step::TO)
    {
        value.report_at_value(error);
        return None;
    }
    let ip = from.first().map_or_else(|| "127.0.0.1".to_owned(), |network| network.addr().to_string());
    let listener = fields.read_written(&step::LISTENER);
    let line = |(name, value): &(HeaderName, HeaderValue)| {
        format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))
    };
    let auth = auth.into_iter().flat_map(|answer| &answer.headers).map(line).collect();
    let mut query = Query { method, url, ip, listener, auth, ..Query::default() };
    if let Some(host) = fields.read_written(&step::HOST) {
        query.headers.push(format!("host: {}", String::from_utf8_lossy(host.as_bytes())));
    }
    if let Some(headers) = fields.find(&step::HEADERS) {
        let pairs = read_answer::read_headers(&headers);
        query.headers.extend(pairs.iter().map(line));
    }
    query.data = read_answer::read_body(&fields.find(&step::BODY), &fields.find(&step::JSON), &mut |kind| {
        let has_kind =
            query.headers.iter().any(|line| line.to_ascii_lowercase().starts_with("content-type:"));
        if !has_kind {
            query.headers.push(format!("content-type: {kind}"));
        }
    });
    if let Some(account) = fields.find(&step::ACCOUNT) {
        write_account(&account, &mut query, config);
    }
    if let Err(why) = ParsedQuery::parse_query(&query, &config.listen) {
        let field = if why.contains("listener") { fields.find(&step::LISTENER) } else { None };
        let place = field.or_else(|| fields.find(&step::TO)).unwrap_or_else(|| fields.whole.clone());
        place.report_at_value(ValueError::new(codes::PATH, why));
        return None;
    }
    Some(query)
}

/// Writes the account where the configuration reads it.
fn write_account(value: &FieldValue<'_>, query: &mut Query, config: &Config) {
    let Some(account) = value.parse_with(|text| parse_header_value(text).map(|_| text.to_owned())) else {
        return;
    };
    if let Err((message, help)) = account::write_account(&account, query, &config.account) {
        value.refuse(codes::NO_EFFECT, message, help);
    }
}
