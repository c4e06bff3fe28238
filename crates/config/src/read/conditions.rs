//! Reads `when`: conditions on headers, cookies and query parameters.

use http::HeaderValue;
use http::header::{COOKIE, HOST};

use super::patterns::{self, PathPatterns};
use crate::schema::tables::locations::location;
use crate::yaml::field_reader::FieldReader;
use sluicegate_model::value::names;
use sluicegate_model::{
    ConditionConfig, Mention, Parsed, Position, ValueError, ValueSource, ValueTest, codes,
};

const CONDITIONS_MAX: usize = 16;

/// Empty = none.
pub(super) fn read_when(fields: &FieldReader<'_>, patterns: &PathPatterns) -> Vec<ConditionConfig> {
    let Some(when) = fields.find(&location::WHEN).filter(|value| !value.is_word("none")) else {
        return Vec::new();
    };
    let entries = when.entries();
    if entries.is_empty() && (when.is_map() || when.is_empty()) {
        when.report_empty("write none, or e.g. when: { \"header:X-Env\": canary }");
    }
    if entries.len() > CONDITIONS_MAX {
        let message = format!("{} conditions are too many for one location", entries.len());
        when.refuse_name(codes::NUMBER, message, format!("write at most {CONDITIONS_MAX}"));
    }
    let mut conditions: Vec<(ConditionConfig, Position)> = Vec::new();
    for (key, value) in entries {
        let Some(source) = value.accept_name(parse_condition_source(&key.name)) else { continue };
        value.mention(Mention::Source(source.clone()));
        let Some(test) = value.parse_with(|text| parse_test(text, &source, patterns)) else { continue };
        let is_same = |other: &ConditionConfig| other.source.folded_words() == source.folded_words();
        if let Some((_, first)) = conditions.iter().find(|(other, _)| is_same(other)) {
            let line = value.sink.show_line(*first, key.position);
            let message = format!("`{}` is read as the same value as the condition in line {line}", key.name);
            value.refuse_name(codes::DUPLICATE_KEY, message, "write one condition for each value");
        }
        if let ValueTest::Equals(text) = &test
            && text.starts_with('!')
        {
            let help = "write a location for that value, and another one without `when` for all others";
            value.warn(codes::MISREAD, "a `!` before a value is a part of it, and negates nothing", help);
        }
        let written = value.written_text().to_owned();
        conditions.push((ConditionConfig { source, test, written }, key.position));
    }
    conditions.into_iter().map(|(condition, _)| condition).collect()
}

fn parse_condition_source(text: &str) -> Parsed<ValueSource> {
    const HELP: &str = "write e.g. header:X-Env, cookie:beta or query:v";
    let Some(source) = names::parse_source(text) else {
        let error = ValueError::new(codes::WORD, format!("`{text}` is no header, cookie or query parameter"));
        return Err(error.with_optional_help(names::suggest_source(text)).with_default_help(HELP));
    };
    let help = match source? {
        ValueSource::Header(name) if name == HOST => "write host: NAME in the location",
        ValueSource::Header(name) if name == COOKIE => "write cookie: and the name of the cookie",
        ValueSource::Header(name) if names::parse_editable_header(name.as_str()).is_err() => {
            "choose by another header"
        }
        source @ (ValueSource::Header(_) | ValueSource::Cookie(_) | ValueSource::Query(_)) => {
            return Ok(source);
        }
        ValueSource::Jwt(_) | ValueSource::Json(_) | ValueSource::Auth(_) => {
            let message = format!("`{text}` is read after the location is chosen");
            return Err(ValueError::new(codes::WORD, message).with_help(HELP));
        }
    };
    let message = format!("`{text}` is not the same over HTTP/1 and HTTP/2");
    Err(ValueError::new(codes::PROTECTED_HEADER, message).with_help(help))
}

fn parse_test(text: &str, source: &ValueSource, patterns: &PathPatterns) -> Parsed<ValueTest> {
    let test = match text {
        "*" => ValueTest::Present,
        "!" => ValueTest::Absent,
        _ if patterns::is_regex(text) => ValueTest::Matches(patterns.find_compiled(text)?),
        _ => ValueTest::Equals(text.to_owned()),
    };
    let (reason, help) = match &test {
        ValueTest::Matches(regex) if regex.is_empty_alone() => {
            ("an empty value counts as absent", "write \"!\" for absent")
        }
        ValueTest::Equals(text) if text.is_empty() => {
            ("an empty value counts as absent", "write \"!\" for absent")
        }
        ValueTest::Equals(text) if !is_possible(text, source) => (
            "no request has this value there",
            "leave out spaces around it and control characters, and in a cookie semicolons",
        ),
        _ => return Ok(test),
    };
    Err(ValueError::new(codes::WORD, format!("the condition cannot hold: {reason}")).with_help(help))
}

/// True if the value can be read from some request.
fn is_possible(text: &str, source: &ValueSource) -> bool {
    let is_header = HeaderValue::from_bytes(text.as_bytes()).is_ok();
    match source {
        ValueSource::Header(_) => is_header && text.trim_matches([' ', '\t']) == text,
        // The last bytes of some letters are spaces in Latin-1, which are removed from the ends of cookies.
        ValueSource::Cookie(_) => {
            let ends_in_space = matches!(text.as_bytes().last(), Some(0x85 | 0xa0));
            is_header && !text.contains(';') && text.trim() == text && !ends_in_space
        }
        _ => true,
    }
}
