//! Describes the counted units of a limit, and how responses settle its charges.

use super::{format_bytes, format_count, join_names, list_statuses, show_percent};
use sluicegate_model::value::byte_rate::KIB;
use sluicegate_model::value::statuses::grpc_code_name;
use sluicegate_model::{
    BodyReserve, ChargeConfig, ChargedUnits, Cost, LimitConfig, LlmWeights, MissingUnits, OverrunAction,
    Price, Reserve, ResponseSet, format_millionths,
};

/// More responses would hide the rest of the sentence.
const RESPONSES_MAX: usize = 8;

/// The noun for the counted units of a limit, unless it counts requests.
pub(super) fn charged_noun(limit: &LimitConfig) -> Option<&'static str> {
    match limit.charge.as_ref()?.units.as_slice() {
        [ChargedUnits::Request] => None,
        [ChargedUnits::Bytes] => Some("byte"),
        [ChargedUnits::Llm(LlmWeights::EQUAL)] => Some("token"),
        _ => Some("unit"),
    }
}

/// "10 requests", "100000 tokens", "50 GiB", "50 USD"; `noun` is for a limit that counts requests.
pub(super) fn format_units(limit: &LimitConfig, number: u64, noun: &str) -> String {
    if limit.counts_kib() || limit.currency().is_some() {
        return format_amount(limit, number);
    }
    format_count(number, charged_noun(limit).unwrap_or(noun))
}

/// An amount beside a rate: "20", "1 GiB", "5 USD".
pub(super) fn format_amount(limit: &LimitConfig, number: u64) -> String {
    if limit.counts_kib() { format_bytes(number.saturating_mul(KIB)) } else { limit.show_units(number) }
}

/// The reservation of a request, the cost of its response, and the responses that cost anything or clear a key.
pub(super) fn describe_charge(limit: &LimitConfig) -> Vec<String> {
    let Some(charge) = &limit.charge else { return Vec::new() };
    let mut parts = Vec::new();
    let is_plain = charge.units == [ChargedUnits::Request];
    if !is_plain || charge.reserve != Reserve::Cost {
        parts.push(format!(
            "each request reserves {}, settled by {}",
            describe_reserve(limit, charge),
            describe_units(charge)
        ));
    }
    if let Some(when) = &charge.when {
        parts.push(format!("only responses with {} cost anything", list_responses(when)));
    }
    if !charge.clear.is_empty() {
        parts
            .push(format!("a response with {} forgets what the key has used", list_responses(&charge.clear)));
    }
    parts.extend(match charge.missing {
        MissingUnits::Estimate => None,
        MissingUnits::Reserved => {
            Some("a response that does not say its cost keeps what was reserved".to_owned())
        }
        MissingUnits::Nothing => Some("a response that does not say its cost is free".to_owned()),
    });
    if charge.over == OverrunAction::Cut {
        parts.push("a response that uses more than is left is cut".to_owned());
    }
    // The body of a response tells its cost.
    if charge.units.iter().any(ChargedUnits::is_in_body) {
        parts.push(
            "the upstream is asked for bodies without compression (Accept-Encoding: identity)".to_owned(),
        );
    }
    parts
}

fn describe_reserve(limit: &LimitConfig, charge: &ChargeConfig) -> String {
    match (&charge.reserve, &limit.cost) {
        (Reserve::Units(units), _) | (Reserve::Cost, Cost::Units(units)) => format_amount(limit, *units),
        (Reserve::Cost, Cost::Header { name, .. }) => {
            format!("the number in header {name} of a trusted proxy, else 1")
        }
        (Reserve::Cost, Cost::Json { pointer, .. }) => format!("{} of its JSON body", pointer.as_str()),
        (Reserve::Cost, Cost::JsonRpc { .. }) => "1 for each call of a JSON-RPC batch".to_owned(),
        (Reserve::Body(body), _) => describe_claim(body, limit.currency().is_some()),
    }
}

/// "the first of /max_tokens and /n in its JSON body, and 1 per 4 bytes of it, else 2000, at most 25% of the limit".
fn describe_claim(body: &BodyReserve, is_money: bool) -> String {
    let (output, input) = if is_money { (" tokens of output", " token of input") } else { ("", "") };
    let pointers: Vec<&str> = body.from.iter().map(|pointer| pointer.as_str()).collect();
    let mut text = match pointers.as_slice() {
        [only] => format!("{only} of its JSON body"),
        several => format!("the first of {} in its JSON body", several.join(", ")),
    };
    if let Some(bytes) = body.bytes_per_unit {
        text += &format!(" and 1{input} for each {} of it", format_count(bytes, "byte"));
    }
    text += &format!(", else {}{output}", body.default);
    if body.at_most < LlmWeights::ONE {
        text += &format!(", at most {} of the limit", show_percent(body.at_most));
    }
    text
}

fn describe_units(charge: &ChargeConfig) -> String {
    let one = |units: &ChargedUnits| match units {
        ChargedUnits::Request => "its cost".to_owned(),
        ChargedUnits::Bytes => "the bytes of the response body".to_owned(),
        ChargedUnits::Header(name) => format!("the number in header {name} of the response"),
        ChargedUnits::Json(pointer) => format!("{} of the response body", pointer.as_str()),
        ChargedUnits::Llm(LlmWeights::EQUAL) => "the tokens that the response reports".to_owned(),
        ChargedUnits::Llm(weights) => {
            let kinds =
                [("input", weights.input), ("output", weights.output), ("cached input", weights.cached)];
            let written =
                (weights.cache_write != weights.input).then_some(("written input", weights.cache_write));
            let shown =
                |(kind, weight): (&str, u64)| format!("{kind} × {}", format_millionths(weight.into()));
            let shown: Vec<String> = kinds.into_iter().chain(written).map(shown).collect();
            format!("the tokens that the response reports ({})", shown.join(", "))
        }
        ChargedUnits::Money(_) => {
            let pricing = charge.pricing.as_ref();
            let file = pricing.and_then(|pricing| pricing.file.path.file_name()).unwrap_or_default();
            let others = match pricing.and_then(|pricing| pricing.unknown_model) {
                None => "a model without a price gets 400".to_owned(),
                Some(Price { usual: LlmWeights { input, output, .. }, .. }) => format!(
                    "other models cost {} for a million tokens of input and {} of output",
                    format_millionths(input.into()),
                    format_millionths(output.into())
                ),
            };
            format!("the price in {} of the tokens that the response reports; {others}", file.display())
        }
    };
    charge.units.iter().map(one).collect::<Vec<String>>().join(" + ")
}

/// "401, 4xx, grpc:RESOURCE_EXHAUSTED".
fn list_responses(set: &ResponseSet) -> String {
    let mut names = list_statuses(&set.statuses);
    names.extend(set.grpc_codes.iter().map(|code| format!("grpc:{}", grpc_code_name(*code))));
    join_names(&names, RESPONSES_MAX)
}
