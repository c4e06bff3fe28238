//! The prices of language models, by which limits charge money.

use std::cmp::Reverse;
use std::sync::{Arc, LazyLock};

use sluicegate_base::file::{FileContent, NamedFile};
use sluicegate_base::json_pointer::JsonPointer;

/// Units per token of a language model, in millionths; of a price, units of money per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LlmWeights {
    /// Input that was neither read from a cache nor written to one.
    pub input: u64,
    /// Output, reasoning included.
    pub output: u64,
    /// Input that was read from a cache.
    pub cached: u64,
    /// Input that was written to a cache.
    pub cache_write: u64,
}

/// The price of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// The prices of the kinds of tokens.
    pub usual: LlmWeights,
    /// Tokens of input, and the prices of a request with more.
    pub above: Option<(u64, LlmWeights)>,
}

/// The prices of models by their names, in which `*` stands for any text.
#[derive(Debug)]
pub struct PriceList(Vec<(Box<str>, Price)>);

/// The prices of a limit.
#[derive(Debug)]
pub struct Pricing {
    /// The file of the prices, which limits may share.
    pub file: Arc<NamedFile<PriceList>>,
    /// The price of a model without one; `None` = its requests are rejected.
    pub unknown_model: Option<Price>,
}

/// The price of a request, with the list that was in force when it was judged.
#[derive(Debug)]
pub struct RequestPrice {
    pricing: Arc<Pricing>,
    list: Arc<PriceList>,
    price: Price,
}

/// The longest name of a model, in bytes.
pub const MODEL_NAME_MAX: usize = 256;

/// The place of the model in the body of a request.
pub fn model_pointer() -> &'static JsonPointer {
    static POINTER: LazyLock<JsonPointer> = LazyLock::new(|| {
        // Cannot fail: the text begins with a slash.
        JsonPointer::parse("/model").expect("the text is a pointer")
    });
    &POINTER
}

// === impl LlmWeights ===

impl LlmWeights {
    /// Millionths in a whole.
    pub const ONE: u64 = 1_000_000;

    /// Each token is one unit.
    pub const EQUAL: LlmWeights = LlmWeights {
        input: LlmWeights::ONE,
        output: LlmWeights::ONE,
        cached: LlmWeights::ONE,
        cache_write: LlmWeights::ONE,
    };
}

// === impl Price ===

impl Price {
    /// The prices for a request with so many tokens of input, cached and written ones included.
    pub fn for_input(&self, tokens: u64) -> &LlmWeights {
        match &self.above {
            Some((most, above)) if tokens > *most => above,
            _ => &self.usual,
        }
    }
}

// === impl PriceList ===

impl PriceList {
    /// `prices` in the order of the file, which decides between names with as many literal characters.
    pub fn new(mut prices: Vec<(Box<str>, Price)>) -> PriceList {
        prices.sort_by_key(|(name, _)| Reverse(name.chars().filter(|letter| *letter != '*').count()));
        PriceList(prices)
    }

    /// The price of a model.
    pub fn find(&self, model: &str) -> Option<Price> {
        let is_short = model.len() <= MODEL_NAME_MAX;
        let found = self.0.iter().find(|(name, _)| is_short && is_name_of(name, model));
        found.map(|(_, price)| *price)
    }
}

impl FileContent for PriceList {
    const BYTES_MAX: u64 = 1 << 20;

    fn suggest_content(reason: &str, _: &str) -> Option<String> {
        reason.starts_with("is ").then(|| {
            "write one line for each model, such as gpt-5-mini*: { input: 0.25, output: 2 }".to_owned()
        })
    }
}

/// True if `name` is that of the model; each `*` in it stands for any text.
fn is_name_of(name: &str, model: &str) -> bool {
    let Some((first, rest)) = name.split_once('*') else { return name == model };
    let Some(mut left) = model.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

// === impl Pricing ===

/// Equal only to itself.
impl PartialEq for Pricing {
    fn eq(&self, other: &Pricing) -> bool {
        std::ptr::eq(self, other)
    }
}

// === impl RequestPrice ===

impl RequestPrice {
    /// The price of a request for this model; `None`: there is none.
    pub fn find(pricing: &Arc<Pricing>, model: Option<&str>) -> Option<RequestPrice> {
        let list = pricing.file.content().clone();
        let price = model.and_then(|model| list.find(model)).or(pricing.unknown_model)?;
        Some(RequestPrice { pricing: pricing.clone(), list, price })
    }

    /// True if it is by the prices of this limit.
    pub fn is_by(&self, pricing: &Arc<Pricing>) -> bool {
        Arc::ptr_eq(&self.pricing, pricing)
    }

    /// The price once the response names this model: that of the request, if the list has none for it.
    pub fn of_response(&self, model: Option<&str>) -> Price {
        model.and_then(|model| self.list.find(model)).unwrap_or(self.price)
    }

    /// The units of money that a request reserves for these tokens.
    pub fn reserve(&self, input: u64, output: u128) -> u128 {
        let price = self.price.for_input(input);
        let millionths = u128::from(input) * u128::from(price.input) + output * u128::from(price.output);
        millionths.div_ceil(LlmWeights::ONE.into())
    }
}
