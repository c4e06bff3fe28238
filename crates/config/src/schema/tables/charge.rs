//! The fields of `charge` of a limit.

use crate::schema::field::{DescribeValue, OneOrMore, Shape, section};
use crate::schema::kinds::{
    Nested, Number, OneOrMoreOrWord, OrWord, PERCENTAGE, STATUS_RANGE, Scalar, Special, Text, Words, text,
};
use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_model::value::names;
use sluicegate_model::value::names::parse_pointer;
use sluicegate_model::value::scalars;
use sluicegate_model::value::statuses::parse_grpc_code;
use sluicegate_model::value::statuses::parse_status_range;
use sluicegate_model::value::words::parse_word_or;
use sluicegate_model::{ChargedUnits, LlmWeights, MissingUnits, OverrunAction, Parsed, ValueError, codes};

section! {
    /// A limit whose responses settle what a request costs: each request reserves units, and at the end of its
    /// response the counter is corrected by what that used.
    mod charge = "limits.NAME.charge";
    /// The responses that cost anything: statuses, classes, ranges, and codes of gRPC. A request without a response
    /// counts as one of them once it was sent.
    WHEN: OneOrMoreOrWord<Scalar<ResponseItem>> = OneOrMoreOrWord("any", RESPONSE), "when", "any", "[401, 403]";
    /// The responses that forget what the key has used; the reservations of open requests stay. A response that is in
    /// `when` too is charged first, and then forgotten with the rest.
    CLEAR: OneOrMoreOrWord<Scalar<ResponseItem>> = OneOrMoreOrWord("none", RESPONSE), "clear", "none", "[2xx]";
    /// What a response costs, the sum of a list: `request` is the cost of the request, `bytes` the body that was
    /// delivered, `header:NAME` and `json:/POINTER` a number in the response, `llm` the tokens that it reports.
    UNITS: Special = Special(units_shape), "units", "request", "bytes";
    /// The units that a request takes until its response settles them: a number, or one in its JSON body. `cost` is
    /// the cost of the limit.
    RESERVE: Special = Special(reserve_shape), "reserve", "cost", "100";
    /// The cost of a response that does not say it, or whose end nobody awaited: an estimate by what was delivered, of
    /// tokens after an early end or without a known text at least what was reserved; what was reserved; or nothing.
    MISSING: Words<MissingUnits> = Words(&MissingUnits::WORDS), "missing", "estimate", "reserved";
    /// What happens to a response that uses more than was reserved while nothing is left: it is finished, or cut.
    OVER: Words<OverrunAction> = Words(&OverrunAction::WORDS), "over", "finish", "cut";
}

section! {
    /// Units that need numbers.
    mod units = "limits.NAME.charge.units";
    /// The units of one token of a language model.
    LLM: Nested = Nested(&llm::SECTION), "llm", "{}", "{ input: 1, output: 4, cached: 0.1 }";
}

section! {
    /// The units of one token, with up to six decimals. Their sum is rounded up once for each request.
    mod llm = "limits.NAME.charge.units.llm";
    /// Of a token of input that was not read from a cache.
    INPUT: Text<u64> = WEIGHT, "input", "1", "1";
    /// Of a token of output, reasoning included.
    OUTPUT: Text<u64> = WEIGHT, "output", "1", "4";
    /// Of a token of input that was read from a cache; `auto` is `input`.
    CACHED: OrWord<Text<u64>> = OrWord("auto", WEIGHT), "cached", "auto", "0.1";
}

section! {
    /// Units that the JSON body of a request claims.
    mod reserve = "limits.NAME.charge.reserve";
    /// Where the body says how much it may use; the first that is a number counts.
    FROM: OneOrMore<Text<JsonPointer>> = OneOrMore(JSON_POINTER),
        "from", required, "[json:/max_completion_tokens, json:/max_tokens]";
    /// Added to the claim: one unit for each N bytes of the body, rounded up.
    PLUS: OrWord<Text<u64>> = OrWord("none", Text::new("json_bytes/N", parse_plus).matching("^json_bytes/[0-9]+$")),
        "plus", "none", "json_bytes/4";
    /// The units of a body that claims none, is no JSON or is longer than the part that is read. `cost` is the cost
    /// of the limit, or 1 if that comes from a header.
    DEFAULT: OrWord<Number> = OrWord("cost", Number(1, u64::MAX)), "default", "cost", "2000";
    /// The most that one request may claim, as a share of the smallest burst or window of the limit; larger claims
    /// count as this.
    AT_MOST: Text<f64> = PERCENTAGE, "at_most", "100%", "25%";
}

/// The most pointers, units or codes in one list.
pub const CHARGE_LIST_MAX: usize = 8;

/// One item of a list of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseItem {
    /// The first and the last status.
    Statuses(u16, u16),
    GrpcCode(u8),
}

/// A status, a class or a range of them, or a code of gRPC.
const RESPONSE: Scalar<ResponseItem> = Scalar(
    || {
        let says = "a code of gRPC such as `grpc:RESOURCE_EXHAUSTED`".to_owned();
        Shape::Either(vec![STATUS_RANGE.shape(), Shape::Text(says, Some("^grpc:([0-9]+|[A-Z_]+)$"))])
    },
    |text| match text.strip_prefix("grpc:") {
        Some(code) => parse_grpc_code(code).map(ResponseItem::GrpcCode),
        None => parse_status_range(text).map(|(first, last)| ResponseItem::Statuses(first, last)),
    },
);

/// `json:/POINTER`.
const JSON_POINTER: Text<JsonPointer> = Text::new("json:/POINTER", parse_json_source).matching("^json:/.+$");

/// One summand of the cost of a response, without numbers.
pub const CHARGED_UNITS: Text<ChargedUnits> =
    Text::new("`request`, `bytes`, `header:NAME`, `json:/POINTER` or `llm`", parse_units)
        .matching("^(request|bytes|llm|header:.+|json:/.+)$");

/// Millionths of a unit.
const WEIGHT: Text<u64> = Text::new("a number with up to six decimals", parse_weight);

/// A token that takes more units than this is certainly a mistake.
const WEIGHT_MAX: u64 = 1_000_000;

fn units_shape() -> Shape {
    let one = Shape::Either(vec![CHARGED_UNITS.shape(), Shape::Section(&units::SECTION)]);
    Shape::OneOrMore(Box::new(one))
}

fn reserve_shape() -> Shape {
    let number = vec![Shape::Words(vec!["cost"]), Shape::Integer(1, u64::MAX)];
    let size = text("a size, where the rate is one");
    Shape::Either(number.into_iter().chain([size, Shape::Section(&reserve::SECTION)]).collect())
}

fn parse_units(text: &str) -> Parsed<ChargedUnits> {
    if let Some(name) = text.strip_prefix("header:") {
        return names::parse_header_name(name).map(ChargedUnits::Header);
    }
    if let Some(pointer) = text.strip_prefix("json:") {
        return parse_pointer(pointer).map(ChargedUnits::Json);
    }
    let words = [
        ("request", ChargedUnits::Request),
        ("bytes", ChargedUnits::Bytes),
        ("llm", ChargedUnits::Llm(LlmWeights::EQUAL)),
    ];
    parse_word_or(&words, text, || format!("write {}", CHARGED_UNITS.says.replace('`', "")))
}

fn parse_json_source(text: &str) -> Parsed<JsonPointer> {
    match text.strip_prefix("json:") {
        Some(pointer) => parse_pointer(pointer),
        None => {
            let pointer = if text.starts_with('/') { text } else { "/max_tokens" };
            Err(ValueError::new(codes::WORD, format!("`{text}` is not a place in a JSON body"))
                .with_help(format!("write json:{pointer}")))
        }
    }
}

/// `json_bytes/4` as the bytes of one unit.
fn parse_plus(text: &str) -> Parsed<u64> {
    let wrong = || {
        ValueError::new(codes::WORD, format!("`{text}` is not a part of the bytes of a body"))
            .with_help("write json_bytes/N, e.g. json_bytes/4")
    };
    let bytes = text.strip_prefix("json_bytes/").ok_or_else(wrong)?;
    scalars::parse_number(bytes, 1, u64::from(u32::MAX)).map_err(|_| wrong())
}

/// A number with up to six decimals, in millionths.
fn parse_weight(text: &str) -> Parsed<u64> {
    let wrong = |why: &str| {
        ValueError::new(codes::NUMBER, format!("`{text}` {why}"))
            .with_help(format!("write a number from 0 to {WEIGHT_MAX} with up to six decimals, e.g. 0.1"))
    };
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_plain = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if text.starts_with('-') {
        return Err(wrong("is negative, and a token cannot give units back"));
    }
    if !is_plain(whole) || !is_plain(decimals) {
        return Err(wrong("is not the weight of a token"));
    }
    let decimals = decimals.trim_end_matches('0');
    if decimals.len() > 6 {
        return Err(wrong("has more than six decimals"));
    }
    let millionths = format!("{whole}{decimals:0<6}").parse::<u64>().ok();
    millionths
        .filter(|millionths| *millionths <= WEIGHT_MAX * LlmWeights::ONE)
        .ok_or_else(|| wrong("is more than one token can cost"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::field::ParseScalar;

    #[test]
    fn weights_are_decimals_of_six_places() {
        for (text, millionths) in [
            ("0", 0),
            ("1", 1_000_000),
            ("0.1", 100_000),
            ("4.25", 4_250_000),
            ("0.000001", 1),
            ("0.1000000", 100_000),
            ("1000000", 1_000_000_000_000),
        ] {
            assert_eq!(parse_weight(text).unwrap(), millionths, "{text}");
        }
        for wrong in
            ["", "-1", "-0.1", "+1", ".5", "5.", "1e3", "0.0000001", "1000000.1", "1_000", "x", "1,5"]
        {
            assert_eq!(parse_weight(wrong).unwrap_err().code, codes::NUMBER, "{wrong}");
        }
    }

    #[test]
    fn responses_are_statuses_and_codes_of_grpc() {
        let read = |text| RESPONSE.parse_text(text).unwrap();
        assert_eq!(read("401"), ResponseItem::Statuses(401, 401));
        assert_eq!(read("4xx"), ResponseItem::Statuses(400, 499));
        assert_eq!(read("500-504"), ResponseItem::Statuses(500, 504));
        assert_eq!(read("grpc:8"), ResponseItem::GrpcCode(8));
        assert_eq!(read("grpc:RESOURCE_EXHAUSTED"), ResponseItem::GrpcCode(8));
        for wrong in ["", "grpc", "grpc:", "grpc:17", "grpc:resource_exhausted", "GRPC:8", "ok", "600"] {
            assert!(RESPONSE.parse_text(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_of_a_body_per_unit() {
        assert_eq!(parse_plus("json_bytes/4").unwrap(), 4);
        for wrong in [
            "",
            "4",
            "json_bytes",
            "json_bytes/",
            "json_bytes/0",
            "json_bytes/-1",
            "bytes/4",
            "json_bytes/1.5",
        ] {
            assert_eq!(parse_plus(wrong).unwrap_err().code, codes::WORD, "{wrong}");
        }
    }
}
