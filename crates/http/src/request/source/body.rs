//! Values in the JSON of a request body, read before the request is judged.

use std::rc::Rc;
use std::sync::Arc;

use super::body_texts::BodyTexts;
use sluicegate_base::json::{JsonNumber, JsonPaths, JsonScanner, JsonValue, JsonVisitor, PATHS_MAX, PathSet};
use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_base::value_hash::sha256;
use sluicegate_model::{BodyUse, EchoedValue};

/// The values that are read from the bodies of a location's requests.
#[derive(Debug)]
pub struct BodyPlan {
    /// The bytes that are read of a body.
    pub peek_bytes: u64,
    /// The values to find, each once.
    pointers: Vec<JsonPointer>,
    /// The same, [`PATHS_MAX`] in each set; at least one set.
    path_sets: Vec<JsonPaths>,
    /// A request with a longer body is refused, whatever limits apply to it.
    pub must_fit: bool,
    /// The account or the tier is a value in the body.
    pub identifies_caller: bool,
    /// A key is the hash of the body.
    pub hashes_body: bool,
    /// The purpose of a body of which no limit asks for anything.
    pub least_use: BodyUse,
    /// The values that responses contain; each of the JSON is a pointer as well.
    echoed: Vec<EchoedValue>,
}

/// The values found in the body of one request.
#[derive(Debug)]
pub struct BodyValues {
    /// `None` = nothing was looked for.
    plan: Option<Arc<BodyPlan>>,
    /// One for each pointer of the plan.
    values: Vec<BodyValue>,
    /// Elements of the array that the document is; `None`: it is another value.
    elements: Option<u64>,
    bytes: u64,
    hash: Option<[u8; 32]>,
    /// No byte of the JSON is beyond ASCII.
    pub is_ascii: bool,
    /// The form that the body was found to have.
    pub form: BodyForm,
}

/// A body, as far as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyForm {
    /// There is not a byte.
    Empty,
    /// The body is one JSON document.
    Json,
    /// The body is no JSON.
    NotJson,
    /// The body is longer than the part that is read.
    TooLong,
    /// The bytes of the body are not those of its text.
    Encoded,
}

/// The value at one pointer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BodyValue {
    /// Not there, or null.
    #[default]
    Absent,
    /// A member on its way is there twice, or in another spelling: the gateway and the upstream might read different
    /// ones.
    Repeated,
    /// A text, decoded.
    Text(Box<str>),
    /// A number.
    Number {
        /// The same for all ways to write it; `None` = too long to be kept.
        text: Option<Box<str>>,
        /// `None` of a negative number, or of one above the largest `u64`.
        millionths: Option<u128>,
    },
    /// The literal `true` or `false`.
    Bool(bool),
    /// An object, an array, or a text that is too long to be kept.
    Other,
}

/// The reason why a request tells no cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostFault {
    /// The value is of another type, or the body is no JSON.
    NotANumber,
    /// The value occurs twice: the gateway and the upstream might read different ones.
    Repeated,
}

/// The values of a body that is certainly no JSON.
pub static NOT_JSON: BodyValues = BodyValues::without_values(BodyForm::NotJson, 0);
/// The values of a body that is certainly too long.
pub static TOO_LONG: BodyValues = BodyValues::without_values(BodyForm::TooLong, 0);
/// The values of an encoded body.
pub static ENCODED: BodyValues = BodyValues::without_values(BodyForm::Encoded, 0);

const MILLION: u128 = 1_000_000;

// === impl BodyPlan ===

impl BodyPlan {
    /// A plan that reads `peek_bytes` of a body; it looks for no value until pointers are added.
    pub fn new(peek_bytes: u64, must_fit: bool, identifies_caller: bool) -> BodyPlan {
        let path_sets = vec![JsonPaths::default()];
        BodyPlan {
            peek_bytes,
            pointers: Vec::new(),
            path_sets,
            must_fit,
            identifies_caller,
            hashes_body: false,
            least_use: BodyUse::Unused,
            echoed: Vec::new(),
        }
    }

    /// Adds a value that responses contain.
    pub fn add_echoed(&mut self, value: EchoedValue) {
        if let EchoedValue::At(pointer) = &value {
            self.add_pointer(pointer);
        }
        if !self.echoed.contains(&value) {
            self.echoed.push(value);
        }
    }

    /// True if responses contain the `id` of a message.
    pub fn tells_id(&self) -> bool {
        self.echoed.contains(&EchoedValue::RpcId)
    }

    /// Adds a value to find.
    pub fn add_pointer(&mut self, pointer: &JsonPointer) {
        if self.pointers.contains(pointer) {
            return;
        }
        if self.pointers.len() == self.path_sets.len() * PATHS_MAX {
            self.path_sets.push(JsonPaths::default());
        }
        let added = self.path_sets.last_mut().and_then(|paths| paths.add_pointer(pointer));
        if added.is_some() {
            self.pointers.push(pointer.clone());
        }
    }
}

// === impl BodyValues ===

impl BodyValues {
    /// A body without values.
    const fn without_values(form: BodyForm, bytes: u64) -> BodyValues {
        BodyValues { plan: None, values: Vec::new(), elements: None, bytes, hash: None, is_ascii: true, form }
    }

    /// Finds the values of `plan` in a body, of which `bytes` are the beginning if it is not `is_whole`.
    pub fn read(plan: &Arc<BodyPlan>, bytes: &[u8], is_whole: bool) -> BodyValues {
        let length = bytes.len() as u64;
        if !is_whole || length > plan.peek_bytes {
            return BodyValues::without_values(BodyForm::TooLong, length);
        }
        if bytes.is_empty() {
            return BodyValues::without_values(BodyForm::Empty, length);
        }
        let hash = plan.hashes_body.then(|| sha256(bytes));
        let mut values = Vec::with_capacity(plan.pointers.len());
        let mut elements = None;
        for (paths, pointers) in plan.path_sets.iter().zip(plan.pointers.chunks(PATHS_MAX).chain([&[][..]])) {
            let (mut scanner, mut found) = (JsonScanner::default(), PointedValues::new(pointers));
            scanner.scan(paths, bytes, &mut found);
            if !scanner.is_whole() {
                return BodyValues { hash, ..BodyValues::without_values(BodyForm::NotJson, length) };
            }
            elements = scanner.count_elements();
            values.append(&mut found.values);
        }
        let (plan, is_ascii) = (Some(plan.clone()), bytes.is_ascii());
        BodyValues { plan, values, elements, bytes: length, hash, is_ascii, form: BodyForm::Json }
    }

    /// The same body without the values that were found in it, because its text is another one.
    pub fn into_form(self, form: BodyForm) -> BodyValues {
        BodyValues { hash: self.hash, ..BodyValues::without_values(form, self.bytes) }
    }

    /// The SHA-256 of the whole body; `None` of an empty one, of one that is too long, and if no key is made of it.
    pub fn hash(&self) -> Option<&[u8; 32]> {
        self.hash.as_ref()
    }

    /// The values of the plan that responses contain, of a body that begins with `bytes`; `None` = they contain none.
    pub fn told_texts(&self, plan: &BodyPlan, bytes: &[u8]) -> Option<Rc<BodyTexts>> {
        if plan.echoed.is_empty() {
            return None;
        }
        let mut texts = BodyTexts::default();
        for value in &plan.echoed {
            match value {
                EchoedValue::RpcId => texts.read_rpc_id(bytes),
                EchoedValue::At(pointer) => texts.add_value(pointer, self.find(pointer).key_text()),
            }
        }
        Some(Rc::new(texts))
    }

    /// The values of a body that a trusted caller states.
    pub fn from_texts(texts: Vec<(JsonPointer, String)>) -> BodyValues {
        let mut plan = BodyPlan::new(0, false, false);
        let mut values = Vec::with_capacity(texts.len());
        for (pointer, text) in texts {
            plan.pointers.push(pointer);
            values.push(BodyValue::Text(text.into()));
        }
        BodyValues { plan: Some(Arc::new(plan)), values, ..BodyValues::without_values(BodyForm::Json, 0) }
    }

    /// The value at a pointer of the plan.
    pub fn find(&self, pointer: &JsonPointer) -> &BodyValue {
        const ABSENT: &BodyValue = &BodyValue::Absent;
        let Some(plan) = &self.plan else { return ABSENT };
        let index = plan.pointers.iter().position(|known| known == pointer);
        index.and_then(|index| self.values.get(index)).unwrap_or(ABSENT)
    }

    /// The cost that the number at `pointer` says: at least 1, and fractions rounded up. Without a value it is 1.
    ///
    /// # Errors
    /// There is another value or more than one, or the body is no JSON.
    pub fn read_cost(&self, pointer: &JsonPointer) -> Result<u64, CostFault> {
        match (self.form, self.find(pointer)) {
            (BodyForm::Json | BodyForm::Empty, BodyValue::Absent) => Ok(1),
            (_, BodyValue::Repeated) => Err(CostFault::Repeated),
            (_, number @ BodyValue::Number { .. }) => {
                let units = number.millionths().unwrap_or(0).div_ceil(MILLION);
                Ok(u64::try_from(units).unwrap_or(u64::MAX).max(1))
            }
            _ => Err(CostFault::NotANumber),
        }
    }

    /// The calls of a JSON-RPC batch; 1 of any other document.
    ///
    /// # Errors
    /// The body is no JSON, but its upstream may read calls in it nevertheless.
    pub fn count_calls(&self) -> Result<u64, CostFault> {
        match self.form {
            BodyForm::Json | BodyForm::Empty => Ok(self.elements.unwrap_or(1).max(1)),
            BodyForm::NotJson | BodyForm::TooLong | BodyForm::Encoded => Err(CostFault::NotANumber),
        }
    }

    /// The bytes of a body that is JSON; `None` of any other.
    pub fn json_bytes(&self) -> Option<u64> {
        (self.form == BodyForm::Json).then_some(self.bytes)
    }
}

impl BodyValue {
    /// The bytes that a key is made of: texts and booleans as they are, numbers by their value. `None`, also for an
    /// empty text, counts as absent.
    pub fn key_text(&self) -> Option<&[u8]> {
        let text = match self {
            BodyValue::Text(text) => text,
            BodyValue::Number { text, .. } => text.as_deref()?,
            BodyValue::Bool(true) => "true",
            BodyValue::Bool(false) => "false",
            BodyValue::Absent | BodyValue::Repeated | BodyValue::Other => return None,
        };
        (!text.is_empty()).then_some(text.as_bytes())
    }

    /// The number in millionths, rounded up, if it is one from 0; one that overflows counts as the largest `u64`.
    pub fn millionths(&self) -> Option<u128> {
        match self {
            BodyValue::Number { millionths: None, text: Some(text) } if text.starts_with('-') => None,
            BodyValue::Number { millionths, .. } => millionths.or(Some(u128::from(u64::MAX) * MILLION)),
            _ => None,
        }
    }
}

// === PointedValues ===

/// Keeps the values that a scanner finds.
struct PointedValues<'a> {
    /// The pointers by path.
    pointers: &'a [JsonPointer],
    values: Vec<BodyValue>,
    /// The part of the way that has been found, for each path, as bits.
    found_segments: Vec<u64>,
}

impl PointedValues<'_> {
    fn new(pointers: &[JsonPointer]) -> PointedValues<'_> {
        let paths = pointers.len();
        PointedValues { pointers, values: vec![BodyValue::Absent; paths], found_segments: vec![0; paths] }
    }

    /// True if so much of the way of a path was found already.
    fn has_begun(&self, path: usize, segments: usize) -> bool {
        self.found_segments[path] & 1 << segments != 0
    }
}

/// True if names differ, but not to a server that ignores case as Go does, which reads `ſ` as `s` and the sign for
/// kelvins as `k`, or to one of Protocol Buffers. Most names are told apart by their first letter.
fn is_in_other_spelling(name: &str, other: &str) -> bool {
    let fold = |character: char| match character {
        'ſ' => 's',
        _ => character.to_lowercase().next().unwrap_or(character),
    };
    let is_same_in_camel_case = || camel_case(name).eq(camel_case(other));
    name != other && (name.chars().map(fold).eq(other.chars().map(fold)) || is_same_in_camel_case())
}

/// The name that Protocol Buffers give a field in JSON beside its own.
fn camel_case(name: &str) -> impl Iterator<Item = char> {
    let mut before = ' ';
    name.chars().filter_map(move |character| {
        let begins_word = std::mem::replace(&mut before, character) == '_';
        let cased = if begins_word { character.to_ascii_uppercase() } else { character };
        (character != '_').then_some(cased)
    })
}

impl JsonVisitor for PointedValues<'_> {
    fn read_name(&mut self, name: &[u8], live: PathSet, segments: usize) {
        let Ok(name) = str::from_utf8(name) else { return };
        let segment = |path: usize| self.pointers[path].segments()[segments - 1].as_str();
        for path in live.iter().filter(|path| is_in_other_spelling(name, segment(*path))) {
            // A name that is looked for itself is a second one only beside the first.
            if self.has_begun(path, segments) || !live.iter().any(|other| segment(other) == name) {
                self.values[path] = BodyValue::Repeated;
            }
        }
    }

    fn begin_member(&mut self, paths: PathSet, segments: usize) {
        for path in paths.iter() {
            if self.has_begun(path, segments) {
                self.values[path] = BodyValue::Repeated;
            }
            self.found_segments[path] |= 1 << segments;
        }
    }

    fn find_value(&mut self, paths: PathSet, value: JsonValue<'_>) {
        for path in paths.iter() {
            if self.values[path] != BodyValue::Repeated {
                self.values[path] = value.into();
            }
        }
    }
}

impl From<JsonValue<'_>> for BodyValue {
    fn from(value: JsonValue<'_>) -> BodyValue {
        match value {
            JsonValue::Text(text) => BodyValue::Text(text.into()),
            JsonValue::Number(number) => {
                BodyValue::Number { text: number_key(number).map(Into::into), millionths: number.millionths }
            }
            JsonValue::Bool(value) => BodyValue::Bool(value),
            JsonValue::Null => BodyValue::Absent,
            JsonValue::LongText | JsonValue::Container => BodyValue::Other,
        }
    }
}

/// Integers as they are written; other numbers as the nearest double, because servers read that.
fn number_key(number: JsonNumber<'_>) -> Option<String> {
    let is_integer = |text: &&str| *text != "-0" && !text.contains(['.', 'e', 'E']);
    if let Some(text) = number.text.filter(is_integer) {
        return Some(text.to_owned());
    }
    let double = match (number.text, number.millionths) {
        (Some(text), _) => text.parse::<f64>().ok()?,
        (None, millionths) => millionths? as f64 / 1e6,
    };
    // The sum has no negative zero.
    Some((double + 0.0).to_string())
}

#[cfg(test)]
mod tests;
