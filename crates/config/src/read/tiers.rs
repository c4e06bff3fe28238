//! Reads numbers that are laid over those of a limit: `tiers`, `shadow` and grants; and `enforce`, the share of keys it
//! acts on.

use std::time::Duration;

use super::algorithm::{self, NumberReader, units_per_second};
use super::rates::RateForm;
use super::state::check_shared_limit;
use super::{shares, views};
use crate::schema::tables::limits::{limit, tier_numbers};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::{self, Node, NodeContent};
use sluicegate_model::value::names;
use sluicegate_model::{
    Algorithm, Cost, EnforcedShare, KeyPart, LimitConfig, Mention, Position, Problem, ProblemSink, Rate,
    Reserve, ValueError, WindowAlign, codes,
};

/// Each tier has its own counters, and every request searches this list.
const TIERS_MAX: usize = 64;

/// Reads the tiers of `limit`; `is_sound` = the limit's own numbers are valid.
pub(crate) fn read_tiers(limit: NumberReader<'_>, is_sound: bool) -> Vec<(String, Option<Algorithm>)> {
    let mut tiers = Vec::new();
    let Some(value) = limit.fields.find(&limit::TIERS).filter(|value| !value.is_word("none")) else {
        return tiers;
    };
    let entries = value.entries();
    if entries.len() > TIERS_MAX {
        let message = format!("a limit has at most {TIERS_MAX} tiers, and this one has {}", entries.len());
        value.report_at_name(ValueError::new(codes::NUMBER, message));
        return tiers;
    }
    for (key, tier) in entries {
        tier.accept_name(names::check_tier_name(&key.name));
        tier.sink.record_mention(tier.named_at, &tier.path, Mention::Tier(key.name.clone()));
        if tier.is_word("none") {
            tiers.push((key.name.clone(), None));
        } else if let Some(numbers) = read_tier_numbers(limit, &tier, is_sound) {
            tiers.push((key.name.clone(), Some(numbers)));
        }
    }
    tiers
}

/// Reads the numbers of a tier, or of a grant, laid over those of `limit`.
pub(crate) fn read_tier_numbers(
    limit: NumberReader<'_>,
    tier: &FieldValue<'_>,
    is_sound: bool,
) -> Option<Algorithm> {
    let is_concurrency =
        limit.fields.find(&limit::ALGORITHM).is_some_and(|value| value.is_word("concurrency"));
    let slots = tier.as_text().filter(|text| is_concurrency && text.parse::<u32>().is_ok());
    if let Some(slots) = slots {
        let name = tier.path.rsplit('.').next().unwrap_or_default();
        let message = format!("`{name}` must be a mapping, not a single value");
        let help = format!("write {name}: {{ max_concurrent: {slots} }}");
        tier.refuse_name(codes::SHAPE, message, help);
        return None;
    }
    let own = tier.open_map(&tier_numbers::SECTION, "a mapping such as { rate: 50/s }, or none")?;
    own.report_unknown();
    let sink = ProblemSink::default();
    let numbers = {
        let merged = limit.fields.overlay_fields(&own, &sink);
        NumberReader { fields: &merged, ..limit }.read_algorithm()
    };
    for problem in sink.take_sorted().0 {
        let of_tier = problem.field.strip_prefix(&tier.path).is_some_and(|rest| rest.starts_with('.'));
        let (position, field) = (problem.position(), problem.field.clone());
        if of_tier {
            tier.sink.add_problem(position, &field, problem.into());
        } else if is_sound && problem.code == codes::LIMIT_NUMBERS {
            // The limit's own number is valid, but does not fit this tier.
            tier.report_at_name(problem.into());
        }
    }
    numbers.filter(|numbers| has_same_windows(limit, numbers, tier))
}

/// True unless only one of the two counts in windows of the calendar, or they differ in them: a key has one counter,
/// whatever its tier.
fn has_same_windows(limit: NumberReader<'_>, numbers: &Algorithm, tier: &FieldValue<'_>) -> bool {
    let windows =
        |rates: Vec<Rate>| rates.iter().map(|rate| (rate.calendar, rate.period)).collect::<Vec<_>>();
    let own = limit.written_rates();
    let others: Vec<Rate> = numbers.rate_quotas().into_iter().map(|(rate, _)| rate).collect();
    let has_calendar = own.iter().chain(&others).any(|rate| rate.calendar.is_some());
    let is_same = !has_calendar || own.is_empty() || windows(own) == windows(others);
    if !is_same {
        let message =
            "numbers for windows of the calendar need the units of the limit's own rates, in their order";
        tier.refuse_name(
            codes::LIMIT_NUMBERS,
            message,
            "write a number for each, such as rate: 5000000/month",
        );
    }
    is_same
}

/// Reads the numbers of the shadow of `limit`; `is_sound` = the limit's own numbers are valid.
pub(crate) fn read_shadow(limit: NumberReader<'_>, is_sound: bool) -> Option<Algorithm> {
    let value = limit.fields.find(&limit::SHADOW).filter(|value| !value.is_word("none"))?;
    if value.is_map() && value.entries().is_empty() {
        value.refuse_name(
            codes::MISSING,
            "this shadow has no numbers",
            "write e.g. shadow: { rate: 5/s }, or remove it",
        );
        return None;
    }
    read_tier_numbers(limit, &value, is_sound)
}

/// Reads the share of the keys on which the limit in `fields` acts; `None` = all.
pub(crate) fn read_enforce(fields: &FieldReader<'_>, key: &[KeyPart]) -> Option<EnforcedShare> {
    let percent = fields.read(&limit::ENFORCE);
    let value = fields.find(&limit::ENFORCE)?;
    let report = |message: &str, help: &str| {
        value.refuse_name(codes::LIMIT_NUMBERS, message, help);
    };
    if key.iter().all(|part| *part == KeyPart::Global) {
        let message = "`enforce` chooses keys, and this limit counts all requests under one";
        report(message, "count by another key, e.g. key: ip, or write dry_run: true to act on no request");
    } else if fields.read(&limit::DRY_RUN) {
        let message = "`enforce` and `dry_run: true` contradict each other: a dry run acts on no key";
        report(message, "remove one of them");
    }
    (percent < 100.0).then(|| EnforcedShare::new(percent))
}

/// The longest text of the numbers, in bytes.
const NUMBERS_MAX: usize = 4096;
/// The path of the fields while they are read, so that problems of the limit's own fields are told apart.
const PATH: &str = "grant";

/// Reads `numbers`, a mapping with the fields of a tier in YAML or JSON, as other numbers for `limit`. Those that are
/// missing are the limit's own; a burst or queue that follows from the rate there follows from it here too.
///
/// # Errors
/// All problems, with the names of fields such as `rate`.
pub fn read_grant(limit: &LimitConfig, numbers: &str) -> Result<Algorithm, Vec<Problem>> {
    let problem = |error: ValueError| vec![error.at_position(Position::START, "")];
    if numbers.len() > NUMBERS_MAX {
        return Err(problem(ValueError::new(codes::SHAPE, "the numbers are too long")));
    }
    let written =
        tree::parse_document(numbers).map_err(|(position, error)| vec![error.at_position(position, "")])?;
    if !matches!(&written.content, NodeContent::Map(entries) if !entries.is_empty()) {
        let error = ValueError::new(codes::SHAPE, "other numbers are missing");
        return Err(problem(error.with_help("write e.g. { rate: 100/s }")));
    }
    let own = written_fields(limit, None);
    // Cannot fail: the text holds words and numbers only.
    let own = tree::parse_document(&own).expect("the numbers of a limit are a mapping");
    let (own_sink, sink) = (ProblemSink::default(), ProblemSink::default());
    let own = FieldValue { node: &own, path: String::new(), named_at: Position::START, sink: &own_sink };
    let grant = FieldValue { node: &written, path: PATH.into(), named_at: Position::START, sink: &sink };
    let fields = own.open_section(&limit::SECTION);
    let own_numbers = NumberReader { fields: &fields, cost: &limit.cost, form: RateForm::of_limit(limit) };
    let read = read_tier_numbers(own_numbers, &grant, true);
    if let Some(numbers) = &read {
        algorithm::read_warm_up(&fields, std::iter::once(numbers));
        check_shared_limit(&limit.with_numbers_alone(numbers), &grant, None);
    }
    let mut problems = sink.take_sorted().0;
    problems.extend(own_sink.take_sorted().0.into_iter().filter(|problem| problem.field == "warm_up"));
    for problem in &mut problems {
        let field = problem.field.trim_start_matches(PATH).trim_start_matches('.').to_owned();
        problem.field = field;
    }
    read.filter(|_| problems.is_empty()).ok_or(problems)
}

/// Reads `numbers` as [`read_grant`] does, in place of those of a `limit` as the file has it. Returns its views as
/// well, which keep their own numbers.
///
/// # Errors
/// As [`read_grant`], and if a view, a share, the reservation or Redis does not fit.
pub fn read_set(limit: &LimitConfig, numbers: &str) -> Result<(Algorithm, Vec<Algorithm>), Vec<Problem>> {
    let numbers = read_grant(limit, numbers)?;
    let refuse = |message: &str, help: &str| {
        let error = ValueError::new(codes::LIMIT_NUMBERS, message.to_owned()).with_help(help);
        vec![error.at_position(Position::START, "")]
    };
    let views: Option<Vec<_>> = limit.views.iter().map(|view| views::follow_limit(view, &numbers)).collect();
    let Some(views) = views else {
        let message = "places of chains have a number of their own for each of its rates";
        return Err(refuse(message, "write as many rates as the file has"));
    };
    if let Some(Reserve::Units(units)) = limit.charge.as_ref().map(|charge| &charge.reserve)
        && numbers.rate_quotas().iter().any(|(_, quota)| quota < units)
    {
        return Err(refuse("the reservation of a request can never pass", "write greater numbers"));
    }
    let changed = LimitConfig { algorithm: numbers, views, ..limit.clone() };
    if let Some(error) = shares::find_small_part(&changed, &[&changed.algorithm]) {
        return Err(vec![error.at_position(Position::START, "")]);
    }
    let (sink, node) =
        (ProblemSink::default(), Node { position: Position::START, content: NodeContent::Null });
    let place = FieldValue { node: &node, path: String::new(), named_at: Position::START, sink: &sink };
    views::check_views(&place, &changed);
    check_shared_limit(&changed, &place, None);
    let problems = sink.take_sorted().0;
    if problems.is_empty() { Ok((changed.algorithm, changed.views)) } else { Err(problems) }
}

/// The numbers of a limit as the file could have them, one field a line; of `numbers`, a mapping, only its fields.
pub fn written_fields(limit: &LimitConfig, numbers: Option<&str>) -> String {
    let written = numbers.and_then(|numbers| tree::parse_document(numbers).ok());
    let has = |name: &str| written.as_ref().is_none_or(|written| written.has_field(name));
    let fields = list_numbers(limit).into_iter().filter(|(name, _)| has(name));
    fields.map(|(name, value)| format!("{name}: {value}\n")).collect()
}

/// The fields of the numbers of a limit, and what stands beside them in the file.
pub fn list_numbers(limit: &LimitConfig) -> Vec<(&'static str, String)> {
    let form = RateForm::of_limit(limit);
    let mut fields = Vec::new();
    let mut line = |name: &'static str, value: String| fields.push((name, value));
    line("algorithm", limit.algorithm.word().to_owned());
    let rates: Vec<Rate> = limit.algorithm.rate_quotas().into_iter().map(|(rate, _)| rate).collect();
    if !rates.is_empty() {
        line("rate", list(rates.iter().map(|rate| format!("{:?}", rate_text(*rate, form)))));
    }
    let wait_text = |max_wait: &Option<Duration>| max_wait.map_or("none".to_owned(), span_text);
    match &limit.algorithm {
        Algorithm::TokenBucket { rates } => {
            line("burst", amounts(rates.iter().map(|one| (one.burst, one.rate.units.get())), form));
        }
        Algorithm::LeakyBucket { rates, max_wait } => {
            line("burst", amounts(rates.iter().map(|one| (one.burst, 1)), form));
            let queues = rates.iter().map(|one| (one.queue, units_per_second(one.rate)));
            line("queue", amounts(queues, RateForm::Units));
            line("max_wait", wait_text(max_wait));
        }
        // Their steps tell windows without a unit of the calendar from others.
        Algorithm::FixedWindow { align: WindowAlign::Calendar, .. } => line("steps", "[]".to_owned()),
        Algorithm::FixedWindow { align, .. } => {
            line("align", if *align == WindowAlign::Clock { "clock" } else { "first" }.to_owned());
        }
        Algorithm::SlidingWindow { buckets, .. } => line("buckets", buckets.to_string()),
        Algorithm::SlidingLog { .. } => {}
        Algorithm::Concurrency { min, max, queue, max_wait } => {
            let slots = min.map_or(max.to_string(), |min| format!("{{ min: {min}, max: {max} }}"));
            line("max_concurrent", slots);
            line("queue", queue.to_string());
            line("max_wait", wait_text(max_wait));
        }
    }
    if let Some(warm_up) = limit.warm_up {
        line("warm_up", span_text(warm_up));
    }
    if let Cost::Units(units @ 2..) = limit.cost {
        line("cost", units.to_string());
    }
    fields
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if let [one] = items.as_slice() { one.clone() } else { format!("[{}]", items.join(", ")) }
}

/// `auto`, if all amounts are those that follow from the rates.
fn amounts(items: impl Iterator<Item = (u64, u64)> + Clone, form: RateForm) -> String {
    match items.clone().all(|(amount, auto)| amount == auto) {
        true => "auto".to_owned(),
        false => list(items.map(|(amount, _)| form.show_amount(amount))),
    }
}

fn rate_text(rate: Rate, form: RateForm) -> String {
    let period = rate.calendar.map_or_else(|| span_text(rate.period), |unit| unit.as_str().to_owned());
    let unit = period.strip_prefix('1').filter(|unit| !unit.starts_with(|c: char| c.is_ascii_digit()));
    format!("{}/{}", form.show_amount(rate.units.get()), unit.unwrap_or(&period))
}

fn span_text(span: Duration) -> String {
    let units =
        [("d", 86_400_000_000_000), ("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000)];
    let ns = span.as_nanos();
    let whole = units.into_iter().find(|(_, unit)| ns > 0 && ns.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{ns}ns"), |(name, unit)| format!("{}{name}", ns / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(fields: &str) -> LimitConfig {
        let text = format!("locations: [{{ path: /, limits: {{ {fields} }}, respond: {{ status: 200 }} }}]");
        let loaded = crate::parse(&text, "test").unwrap_or_else(|report| panic!("{report}"));
        loaded.config.limits.into_iter().next().unwrap()
    }

    /// The numbers of a tier with the same fields in the file.
    fn tier(fields: &str, numbers: &str) -> Algorithm {
        limit(&format!("{fields}, tiers: {{ gold: {numbers} }}")).tiers.remove(0).1.unwrap()
    }

    #[test]
    fn a_grant_is_read_as_a_tier_is() {
        for (fields, numbers) in [
            ("rate: 10/s", "{ rate: 100/s, burst: 50 }"),
            ("rate: 10/s", "{ rate: 100/s }"),
            ("rate: 10/s, burst: 30", "{ burst: 50 }"),
            ("rate: 10/s, burst: 30, cost: 7", "{ rate: 100/s }"),
            ("rate: [10/s, 300/m], burst: [20, 30]", "{ rate: [20/s, 600/m] }"),
            ("rate: 10/s, warm_up: 30s", "{ rate: 20/s }"),
            ("algorithm: leaky_bucket, rate: 10/s", "{ rate: 20/s }"),
            ("algorithm: leaky_bucket, rate: 10/s, queue: 3, max_wait: none", "{ burst: 2 }"),
            ("algorithm: leaky_bucket, rate: 1/3s, burst: 4, max_wait: 9s", "{ queue: 7, max_wait: 1s }"),
            ("algorithm: fixed_window, rate: 10/m, align: clock", "{ rate: 20/m }"),
            ("algorithm: sliding_window, rate: 10/m, buckets: 7", "{ rate: [20/m, 100/h] }"),
            ("algorithm: sliding_log, rate: 10/m", "{ rate: 20/m }"),
            ("algorithm: concurrency, max_concurrent: 10", "{ max_concurrent: 20 }"),
            ("algorithm: concurrency, max_concurrent: auto", "{ max_concurrent: { min: 7 } }"),
            ("algorithm: concurrency, max_concurrent: 9, queue: 4, max_wait: none", "{ max_concurrent: 20 }"),
            ("algorithm: concurrency, max_concurrent: 9, max_wait: 7s", "{ queue: 5 }"),
        ] {
            assert_eq!(read_grant(&limit(fields), numbers), Ok(tier(fields, numbers)), "{fields} {numbers}");
        }
        let bytes = "charge: { units: bytes }, rate: 1GiB/d, burst: 1MB";
        for numbers in ["{ rate: 2GiB/d }", "{ burst: 64KiB }"] {
            assert_eq!(read_grant(&limit(bytes), numbers), Ok(tier(bytes, numbers)), "{numbers}");
        }
        let json = r#"{"rate":"100/s","burst":50}"#;
        assert_eq!(
            read_grant(&limit("rate: 1/s"), json),
            Ok(tier("rate: 1/s", "{ rate: 100/s, burst: 50 }"))
        );
    }

    #[test]
    fn wrong_numbers_get_the_errors_of_a_tier() {
        let shared = LimitConfig { shared: Some(sluicegate_model::OnFailure::Local), ..limit("rate: 1/s") };
        let queue = "algorithm: leaky_bucket, rate: 1/s, burst: 2, queue: 3, cost: 5";
        for (limit, numbers, field, message) in [
            (limit("rate: 1/s"), "{ rate: 0/s }", "rate", "the rate `0/s` would let nothing pass"),
            (limit("rate: 1/s"), "{ rate: \"${HOME}\" }", "rate", "the rate `${HOME}` has no period"),
            (limit("rate: 1/s"), "{ rates: 2/s }", "rates", "unknown field `rates`"),
            (limit("rate: 1/s"), "{ queue: 2 }", "queue", "`queue` is not a field of token_bucket"),
            (limit("rate: 1/s"), "{ for: 1h }", "for", "unknown field `for`"),
            (limit("rate: 1/s"), "{}", "", "other numbers are missing"),
            (limit("rate: 1/s"), "100/s", "", "other numbers are missing"),
            (limit("rate: 1/s"), "{ rate: [", "", ""),
            (limit(queue), "{ queue: 1 }", "", "a cost of 5 can never pass: burst + queue is 3"),
            (limit("rate: 1/s, warm_up: 30s"), "{ rate: 999999937/999999999ns }", "warm_up", ""),
            (shared, "{ rate: 1/1500ns }", "", ""),
        ] {
            let problems = read_grant(&limit, numbers).expect_err(numbers);
            assert_eq!(problems[0].field, field, "{numbers}: {problems:?}");
            assert!(problems[0].message.starts_with(message), "{numbers}: {problems:?}");
        }
        assert!(read_grant(&limit("rate: 1/s"), &format!("{{ rate: 1/s{} }}", " ".repeat(5000))).is_err());
    }
}
