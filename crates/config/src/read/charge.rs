//! Reads `charge` of a limit, and checks that it fits the limit's numbers.

use super::algorithm::NumberReader;
use super::prices::PriceReader;
use super::rates::RateForm;
use crate::schema::field::{Field, ParseScalar};
use crate::schema::kinds::{OneOrMoreOrWord, Scalar};
use crate::schema::tables::limits::{
    CHARGE_LIST_MAX, CHARGED_UNITS, ResponseItem, charge, limit, llm, reserve, units,
};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::NodeContent;
use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_model::value::scalars;
use sluicegate_model::{
    Algorithm, BodyReserve, ChargeConfig, ChargedUnits, Cost, LlmWeights, OverrunAction, Reserve,
    ResponseSet, codes,
};

/// Where a request for a model says the most tokens of output.
const MONEY_CLAIMS: [&str; 3] = ["/max_completion_tokens", "/max_output_tokens", "/max_tokens"];

/// Reads `charge` of a limit; `variants` are the numbers of the limit and of its tiers.
pub(crate) fn read_charge<'n>(
    limit: NumberReader<'_>,
    prices: &PriceReader,
    variants: impl Iterator<Item = &'n Algorithm>,
) -> Option<ChargeConfig> {
    let config = limit.fields.read_section_or_none(&limit::CHARGE, |fields| ChargeConfig {
        when: Some(read_responses(fields, &charge::WHEN)).filter(|when| !when.is_empty()),
        clear: read_responses(fields, &charge::CLEAR),
        units: read_units(fields, limit.form),
        reserve: read_reserve(fields, limit, variants),
        missing: fields.read(&charge::MISSING),
        over: read_overrun(fields),
        counts_kib: limit.form == RateForm::Kib,
        pricing: prices.read_pricing(fields, limit.form),
    })?;
    check_cost(limit);
    Some(config)
}

fn read_responses(
    fields: &FieldReader<'_>,
    field: &Field<OneOrMoreOrWord<Scalar<ResponseItem>>>,
) -> ResponseSet {
    let mut set = ResponseSet::default();
    for item in fields.read_list_or_word(field) {
        match item {
            ResponseItem::Statuses(first, last) => set.statuses.0.push((first, last)),
            ResponseItem::GrpcCode(code) if set.grpc_codes.contains(&code) => {}
            ResponseItem::GrpcCode(code) => set.grpc_codes.push(code),
        }
    }
    set
}

/// One or more kinds of units, each once; the cost of the request after an error.
fn read_units(fields: &FieldReader<'_>, form: RateForm) -> Vec<ChargedUnits> {
    let default = || vec![ChargedUnits::Request];
    let Some(value) = fields.find(&charge::UNITS) else { return default() };
    value.check_filled("write e.g. units: bytes");
    let items = value.one_or_more();
    check_length(&value, items.len());
    if let RateForm::Money(currency) = form {
        if items.len() > 1 {
            let message = "money is not added to other units";
            value.refuse_name(
                codes::LIMIT_NUMBERS,
                message,
                "write units: money, and a limit for the others",
            );
        }
        return vec![ChargedUnits::Money(currency)];
    }
    let mut list: Vec<ChargedUnits> = Vec::new();
    for item in items {
        let Some(units) = read_one_units(&item) else { continue };
        let is_same = |known: &ChargedUnits| match (known, &units) {
            (ChargedUnits::Llm(_), ChargedUnits::Llm(_)) => true,
            (known, units) => known == units,
        };
        if list.iter().any(is_same) {
            let message = match item.as_text() {
                Some(text) => format!("the units `{text}` are in this sum twice"),
                None => "the units `llm` are in this sum twice".to_owned(),
            };
            item.refuse(codes::NAME, message, "remove one of them");
        }
        list.push(units);
    }
    if list.is_empty() { default() } else { list }
}

fn read_one_units(item: &FieldValue<'_>) -> Option<ChargedUnits> {
    match item.node.content {
        NodeContent::Map(_) => item.open_section(&units::SECTION).read_all(|fields| {
            let value = fields.find_required(&units::LLM)?;
            let weights = fields.read_section(&units::LLM, read_weights);
            let is_free = [weights.input, weights.output, weights.cached, weights.cache_write] == [0; 4];
            if is_free {
                let message = "every weight is 0, so that no token costs anything";
                value.refuse_name(codes::NUMBER, message, "write at least one weight above 0");
            }
            Some(ChargedUnits::Llm(weights))
        }),
        NodeContent::Text(_) => item.parse_with(|text| CHARGED_UNITS.parse_text(text)),
        _ => {
            item.report_shape("one of request, bytes, header:NAME, json:/POINTER, llm and money");
            None
        }
    }
}

fn read_weights(fields: &FieldReader<'_>) -> LlmWeights {
    let input = fields.read(&llm::INPUT);
    LlmWeights {
        input,
        output: fields.read(&llm::OUTPUT),
        cached: fields.read(&llm::CACHED).unwrap_or(input),
        cache_write: fields.read(&llm::CACHE_WRITE).unwrap_or(input),
    }
}

fn read_reserve<'n>(
    fields: &FieldReader<'_>,
    limit: NumberReader<'_>,
    variants: impl Iterator<Item = &'n Algorithm>,
) -> Reserve {
    let value = fields.find(&charge::RESERVE);
    if let RateForm::Money(_) = limit.form {
        let section = match value.filter(|value| !value.is_null()) {
            Some(value) if !value.is_map() => {
                let message = "what a request reserves of money is a mapping, in tokens";
                let help = "write e.g. reserve: { from: json:/max_tokens, plus: json_bytes/4 }";
                value.refuse_name(codes::LIMIT_NUMBERS, message, help);
                return Reserve::Cost;
            }
            Some(value) => value.open_section(&reserve::SECTION),
            None => fields.whole.absent_section(&reserve::SECTION),
        };
        return Reserve::Body(section.read_all(read_money_reserve));
    }
    let Some(value) = value.filter(|value| !value.is_word("cost")) else { return Reserve::Cost };
    if value.is_map() {
        return read_body_reserve(&value, limit, variants).map_or(Reserve::Cost, Reserve::Body);
    }
    let units = value.parse_with(|text| {
        let parsed = limit.form.parse_amount(text, |text| scalars::parse_number(text, 1, u64::MAX));
        parsed.map_err(|error| error.with_default_help("or write cost, or e.g. { from: json:/max_tokens }"))
    });
    let Some(units) = units else { return Reserve::Cost };
    check_reserve(&value, "reserve", units, limit.form, variants);
    Reserve::Units(units)
}

fn read_body_reserve<'n>(
    value: &FieldValue<'_>,
    limit: NumberReader<'_>,
    variants: impl Iterator<Item = &'n Algorithm>,
) -> Option<BodyReserve> {
    if limit.form == RateForm::Kib {
        let message = "a body claims numbers, and the rate of this limit is a size";
        let help = "write the rate as a number of bytes, or reserve a size, e.g. reserve: 64KiB";
        value.refuse_name(codes::LIMIT_NUMBERS, message, help);
    }
    value.open_section(&reserve::SECTION).read_all(|fields| {
        let from = fields.find_required(&reserve::FROM);
        if let Some(from) = &from {
            from.check_filled("write e.g. from: json:/max_tokens");
            check_length(from, from.one_or_more().len());
        }
        let default = fields.read(&reserve::DEFAULT).unwrap_or(match limit.cost {
            Cost::Units(units) => *units,
            Cost::Header { .. } | Cost::Json { .. } | Cost::JsonRpc { .. } => 1,
        });
        if let Some(value) = fields.find(&reserve::DEFAULT) {
            check_reserve(&value, "default", default, limit.form, variants);
        }
        let from = from.map(|_| fields.read(&reserve::FROM))?;
        let (bytes_per_unit, at_most) = (fields.read(&reserve::PLUS), read_share(fields));
        Some(BodyReserve { from, bytes_per_unit, default, at_most })
    })
}

/// The tokens of a call that are reserved at their prices.
fn read_money_reserve(fields: &FieldReader<'_>) -> BodyReserve {
    let is_written = |name| fields.find_by_name(name).is_some();
    // Cannot fail: each begins with a slash.
    let usual = || MONEY_CLAIMS.iter().filter_map(|pointer| JsonPointer::parse(pointer).ok()).collect();
    BodyReserve {
        from: if is_written(reserve::FROM.name) { fields.read(&reserve::FROM) } else { usual() },
        bytes_per_unit: if is_written(reserve::PLUS.name) { fields.read(&reserve::PLUS) } else { Some(4) },
        default: fields.read(&reserve::DEFAULT).unwrap_or(2_000),
        at_most: read_share(fields),
    }
}

/// `at_most` in millionths, above 0.
fn read_share(fields: &FieldReader<'_>) -> u64 {
    let millionths = (fields.read(&reserve::AT_MOST) * 10_000.0).round() as u64;
    if let (0, Some(value)) = (millionths, fields.find(&reserve::AT_MOST)) {
        value.refuse(codes::PERCENT, "no request could claim anything", "write a share above 0, e.g. 25%");
    }
    millionths
}

/// Reports a number of units that never fits into a burst or window.
fn check_reserve<'n>(
    value: &FieldValue<'_>,
    name: &str,
    units: u64,
    form: RateForm,
    variants: impl Iterator<Item = &'n Algorithm>,
) {
    let quotas = variants.flat_map(|variant| variant.rate_quotas()).map(|(_, quota)| quota);
    if let Some(least) = quotas.min().filter(|least| *least < units) {
        let (units, least) = (form.show_amount(units), form.show_amount(least));
        let message = format!(
            "a {name} of {units} can never pass: the smallest burst or window of this limit is {least}"
        );
        let help = format!("write at most {least}, or a larger rate or burst");
        value.refuse(codes::LIMIT_NUMBERS, message, help);
    }
}

/// Reads `over`; only units that are counted while a response streams can cut it.
fn read_overrun(fields: &FieldReader<'_>) -> OverrunAction {
    let over = fields.read(&charge::OVER);
    if let (OverrunAction::Cut, Some(value)) = (over, fields.find(&charge::OVER)) {
        let units = fields.find(&charge::UNITS);
        let items = units.map(|units| units.one_or_more()).unwrap_or_default();
        let is_counted =
            |item: &FieldValue<'_>| ["bytes", "llm", "money"].iter().any(|word| item.is_word(word));
        if !items.iter().any(|item| is_counted(item) || item.is_map()) {
            let message = "`over: cut` needs units that are counted while the response streams";
            let help = "write units: bytes or units: llm, or over: finish";
            value.refuse(codes::LIMIT_NUMBERS, message, help);
        }
    }
    over
}

/// Rejects a cost where the rate is a size or money: a cost is a number, and its unit would be unclear.
fn check_cost(limit: NumberReader<'_>) {
    let value = limit.fields.find(&limit::COST).filter(|value| !value.is_word("1"));
    let (rate, help) = match limit.form {
        RateForm::Kib => {
            ("a size", "write what a request reserves as a size, e.g. charge: { reserve: 64KiB }")
        }
        RateForm::Money(_) => ("money", "remove it: a request costs the price of its tokens"),
        RateForm::Units | RateForm::Bytes => return,
    };
    if let Some(value) = value {
        let message = format!("a cost is a number, and the rate of this limit is {rate}");
        value.refuse_name(codes::LIMIT_NUMBERS, message, help);
    }
}

fn check_length(value: &FieldValue<'_>, length: usize) {
    if length > CHARGE_LIST_MAX {
        let message = format!("this list has {length} entries, and at most {CHARGE_LIST_MAX} are read");
        value.refuse_name(codes::NUMBER, message, "remove some of them");
    }
}
