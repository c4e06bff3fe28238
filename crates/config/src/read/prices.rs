//! Reads the prices of limits in money: files of prices, and the price of a model that is in none.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::named_file::read_named_file;
use super::rates::RateForm;
use crate::schema::tables::limits::{above, charge, price};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::substitution::report_duplicate_keys;
use crate::yaml::tree::{self, Node};
use sluicegate_base::file::NamedFile;
use sluicegate_model::{
    Currency, LlmWeights, MODEL_NAME_MAX, Position, Price, PriceList, Pricing, Problem, ProblemSink, codes,
};

/// Most models of a file.
const MODELS_MAX: usize = 4_096;
/// Most problems of a file that are told.
const PROBLEMS_MAX: usize = 8;
const FORM: &str = "a mapping such as { input: 0.25, output: 2 }";

type PriceFile = Arc<NamedFile<PriceList>>;

/// The files of prices that were read for limits.
#[derive(Default)]
pub(crate) struct PriceReader {
    /// By their paths, with the currency of their prices; `None` = wrong, and reported already.
    files: RefCell<HashMap<PathBuf, (Currency, Option<PriceFile>)>>,
}

impl PriceReader {
    /// The prices of a limit with the charge in `fields`; `None` of one that counts no money, and after an error.
    pub(crate) fn read_pricing(&self, fields: &FieldReader<'_>, form: RateForm) -> Option<Arc<Pricing>> {
        let RateForm::Money(currency) = form else {
            for name in [charge::PRICES.name, charge::UNKNOWN_MODEL.name] {
                if let Some(value) = fields.find_by_name(name) {
                    let message = format!("`{name}` is for limits that count money");
                    value.refuse_name(codes::FOREIGN_FIELD, message, "write units: money, or remove it");
                }
            }
            return None;
        };
        let written = fields.find(&charge::PRICES).filter(|value| !value.is_word("none"));
        if written.is_none() {
            fields.report_missing(charge::PRICES.name, "write e.g. prices: prices.yaml");
        }
        let unknown_model = fields.find(&charge::UNKNOWN_MODEL).filter(|value| !value.is_word("reject"));
        let unknown_model =
            unknown_model.and_then(|value| Some(value.open_map(&price::SECTION, FORM)?.read_all(read_price)));
        let file = self.read_file(fields, &written?, currency)?;
        Some(Arc::new(Pricing { file, unknown_model }))
    }

    /// The file of prices, which is read once for all limits.
    fn read_file(
        &self,
        fields: &FieldReader<'_>,
        value: &FieldValue<'_>,
        currency: Currency,
    ) -> Option<PriceFile> {
        let path = value.folder().join(value.as_text().unwrap_or_default());
        let mut files = self.files.borrow_mut();
        let (known, file) = files.entry(path).or_insert_with(|| {
            let read = read_named_file(fields, &charge::PRICES, parse_prices);
            (currency, read.flatten())
        });
        if *known == Currency::NONE {
            *known = currency;
        }
        // Where the rate has no currency, that is the error.
        if *known != currency && currency != Currency::NONE {
            let message = format!("another limit reads these prices in {known}, and this one in {currency}");
            value.refuse(codes::LIMIT_NUMBERS, message, "write a file of prices for each currency");
        }
        file.clone()
    }
}

/// Parses a file of prices; an error is a phrase that follows its name.
fn parse_prices(bytes: &[u8]) -> Result<PriceList, String> {
    let text = str::from_utf8(bytes).map_err(|_| "is not UTF-8 text")?;
    let sink = ProblemSink::default();
    let mut prices = Vec::new();
    match tree::parse_document(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        Err((position, error)) => sink.add_problem(position, "", error),
        Ok(root) => {
            report_duplicates(&root, &sink);
            let whole =
                FieldValue { node: &root, path: String::new(), named_at: Position::START, sink: &sink };
            if root.entries().is_empty() {
                whole.refuse_name(
                    codes::EMPTY,
                    "there is no price",
                    "write e.g. gpt-5-mini*: { input: 0.25, output: 2 }",
                );
            }
            if root.entries().len() > MODELS_MAX {
                let message = format!("there are more than {MODELS_MAX} models");
                whole.refuse_name(codes::NUMBER, message, "write `*` for what several names have in common");
            }
            for (name, node) in root.entries() {
                let value = whole.field(name, node);
                if !(1..=MODEL_NAME_MAX).contains(&name.name.len()) {
                    let message = format!("the name of a model has 1 to {MODEL_NAME_MAX} bytes");
                    value.refuse_name(codes::NAME, message, "write e.g. gpt-5-mini*");
                }
                let Some(fields) = value.open_map(&price::SECTION, FORM) else { continue };
                prices.push((name.name.as_str().into(), read_price(&fields)));
                fields.report_unknown_here();
            }
        }
    }
    let problems = sink.take_sorted().0;
    if problems.is_empty() { Ok(PriceList::new(prices)) } else { Err(describe_problems(&problems)) }
}

fn report_duplicates(node: &Node, sink: &ProblemSink) {
    report_duplicate_keys(node.entries(), sink);
    node.entries().iter().for_each(|(_, inner)| report_duplicates(inner, sink));
}

/// "is wrong in line 3, `gpt-5`: `input` is missing (write e.g. input: 0.25); in line 7 …".
fn describe_problems(problems: &[Problem]) -> String {
    let describe = |problem: &Problem| {
        let field = if problem.field.is_empty() { String::new() } else { format!(", `{}`", problem.field) };
        let help = problem.suggestion.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        format!("in line {}{field}: {}{help}", problem.line, problem.message)
    };
    let shown: Vec<String> = problems.iter().take(PROBLEMS_MAX).map(describe).collect();
    let more = problems.len() - shown.len();
    let more = if more > 0 { format!("; and at {more} more places") } else { String::new() };
    format!("is wrong {}{more}", shown.join("; "))
}

fn read_price(fields: &FieldReader<'_>) -> Price {
    let input = fields.read_required(&price::INPUT).unwrap_or(0);
    let usual = LlmWeights {
        input,
        output: fields.read(&price::OUTPUT),
        cached: fields.read(&price::CACHED).unwrap_or(input),
        cache_write: fields.read(&price::CACHE_WRITE).unwrap_or(input),
    };
    let above = fields.read_section_or_none(&price::ABOVE, |fields| {
        let prices = LlmWeights {
            input: fields.read(&above::INPUT).unwrap_or(usual.input),
            output: fields.read(&above::OUTPUT).unwrap_or(usual.output),
            cached: fields.read(&above::CACHED).unwrap_or(usual.cached),
            cache_write: fields.read(&above::CACHE_WRITE).unwrap_or(usual.cache_write),
        };
        (fields.read_required(&above::INPUT_TOKENS).unwrap_or(0), prices)
    });
    Price { usual, above }
}
