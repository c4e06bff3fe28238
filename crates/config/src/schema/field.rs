//! The description of a field, from which come reading, the JSON Schema and the reference.

use sluicegate_model::Parsed;

/// One field of one section: its name, its value and its meaning.
pub struct Field<S> {
    /// The name in the file.
    pub name: &'static str,
    /// The kind of its value.
    pub value: S,
    /// The value of a field that is not written, as it would be written; `None` for one that must be.
    pub default: Option<&'static str>,
    /// A valid value as it would be written; suggestions quote it.
    pub example: &'static str,
    /// One sentence or a few, in Markdown.
    pub sentence: &'static str,
}

/// The fields of one mapping.
pub struct Section {
    /// The path in the file, e.g. `state.redis`; a part in capitals stands for a name that the user chooses.
    pub path: &'static str,
    /// The meaning of the mapping, in Markdown.
    pub sentence: &'static str,
    /// The fields in the order of the reference.
    pub fields: &'static [&'static dyn DescribeField],
}

/// The values that a field accepts, for the JSON Schema and the reference.
pub trait DescribeValue {
    /// The form of all values of this kind.
    fn shape(&self) -> Shape;
}

/// A value that one scalar holds.
pub trait ParseScalar {
    /// The value that a text is parsed into.
    type Parsed;

    /// The form of the scalar, for the JSON Schema and the reference.
    fn form(&self) -> Shape;

    /// Parses the text of a scalar; the error says nothing about its position.
    fn parse_text(&self, text: &str) -> Parsed<Self::Parsed>;
}

impl<S: ParseScalar> DescribeValue for S {
    fn shape(&self) -> Shape {
        self.form()
    }
}

/// One value or a list of them.
pub struct OneOrMore<S>(pub S);

/// The written fields of one mapping.
pub trait FieldSource {
    /// The value, or the default if it is absent or wrong.
    fn read_scalar<S: ParseScalar>(&self, field: &Field<S>) -> S::Parsed;

    /// The values, or the default if the field is absent; wrong items are left out.
    fn read_list<S: ParseScalar>(&self, field: &Field<OneOrMore<S>>) -> Vec<S::Parsed>;
}

/// A kind of values that no rule but its own holds for.
pub trait PlainValue: Sized {
    /// The value that the field is read into.
    type Value;

    /// The value of the field in `source`, or its default.
    fn read_from(field: &Field<Self>, source: &impl FieldSource) -> Self::Value;
}

impl<S: ParseScalar> PlainValue for S {
    type Value = S::Parsed;

    fn read_from(field: &Field<S>, source: &impl FieldSource) -> S::Parsed {
        source.read_scalar(field)
    }
}

impl<S: ParseScalar> PlainValue for OneOrMore<S> {
    type Value = Vec<S::Parsed>;

    fn read_from(field: &Field<OneOrMore<S>>, source: &impl FieldSource) -> Vec<S::Parsed> {
        source.read_list(field)
    }
}

/// A field of any kind.
pub trait DescribeField: Sync {
    /// The name in the file.
    fn name(&self) -> &'static str;

    /// The description of the field, whatever its kind.
    fn describe(&self) -> FieldDescription;
}

/// The description of a field without its type.
pub struct FieldDescription {
    /// The name in the file.
    pub name: &'static str,
    /// The form of the value.
    pub shape: Shape,
    /// The default as it would be written; `None` = the field must be written.
    pub default: Option<&'static str>,
    /// A valid value as it would be written.
    pub example: &'static str,
    /// The meaning in Markdown, without spaces around it.
    pub sentence: &'static str,
}

/// The form of a value.
pub enum Shape {
    /// Both bounds are included.
    Integer(u64, u64),
    /// The words `true` and `false`.
    Boolean,
    /// A noun for the text, and the regular expression that it fits, if there is a plain one.
    Text(String, Option<&'static str>),
    /// One of these words.
    Words(Vec<&'static str>),
    /// One value or a list of them.
    OneOrMore(Box<Shape>),
    /// A list, also for a single item.
    List(Box<Shape>),
    /// A noun for the keys, and the form of each value.
    Map(&'static str, Box<Shape>),
    /// A mapping with the fields of a section.
    Section(&'static Section),
    /// Any one of these forms.
    Either(Vec<Shape>),
}

impl<S: DescribeValue + Sync> DescribeField for Field<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self) -> FieldDescription {
        let Field { name, default, example, sentence, .. } = *self;
        FieldDescription { name, shape: self.value.shape(), default, example, sentence: sentence.trim() }
    }
}

impl<S: ParseScalar> Field<S> {
    /// The value of the field if it is not written.
    pub fn parse_default(&self) -> S::Parsed {
        // Cannot fail: each load parses it.
        self.value.parse_text(self.default.unwrap_or_default()).expect("a valid default")
    }
}

impl<S: ParseScalar> Field<OneOrMore<S>> {
    /// The values of the field if it is not written.
    pub fn parse_default_list(&self) -> Vec<S::Parsed> {
        let items = self
            .default
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .split(", ")
            .filter(|item| !item.is_empty());
        // Cannot fail: each load parses them.
        items.map(|item| self.value.0.parse_text(item).expect("a valid default")).collect()
    }
}

impl Section {
    pub(crate) fn has_field(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name() == name)
    }

    pub(crate) fn find_field(&self, name: &str) -> Option<FieldDescription> {
        self.fields.iter().find(|field| field.name() == name).map(|field| field.describe())
    }

    pub(crate) fn descriptions(&self) -> impl Iterator<Item = FieldDescription> {
        self.fields.iter().map(|field| field.describe())
    }
}

/// Defines a module with the statics of a section: its fields, each with its sentence, kind, default and example. With
/// `for RECORD` the fields are the members of that type, which the module then reads.
#[macro_export]
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        mod $module:ident = $path:literal for $record:ident;
        $(
            $(#[doc = $sentence:literal])+
            $field:ident $(as $name:literal)?: $kind:ty = $value:expr, $default:tt, $example:literal;
        )*
    ) => {
        section! {
            $(#[doc = $about])+
            mod $module = $path {
                /// The section as a record; wrong fields have their defaults.
                pub fn read(source: &impl $crate::schema::field::FieldSource) -> $record {
                    use $crate::schema::field::PlainValue;
                    $record { $($field: PlainValue::read_from(&$field, source).into()),* }
                }
            };
            $(
                $(#[doc = $sentence])+
                $field: $kind = $value, section!(@name $field $($name)?), $default, $example;
            )*
        }
    };
    (
        $(#[doc = $about:literal])+
        mod $module:ident = $path:literal $({ $($item:item)* })?;
        $(
            $(#[doc = $sentence:literal])+
            $field:ident: $kind:ty = $value:expr, $name:expr, $default:tt, $example:literal;
        )*
    ) => {
        $(#[doc = $about])+
        #[allow(non_upper_case_globals, reason = "a static may have the name of the member that it describes")]
        pub mod $module {
            #[allow(unused_imports, reason = "a section of switches needs none of them")]
            use super::*;
            use $crate::schema::field::{Field, Section};

            $(
                $(#[doc = $sentence])+
                pub static $field: Field<$kind> = Field {
                    name: $name,
                    value: $value,
                    default: section!(@default $default),
                    example: $example,
                    sentence: concat!($($sentence),+),
                };
            )*

            $(#[doc = $about])+
            pub static SECTION: Section =
                Section { path: $path, sentence: concat!($($about),+), fields: &[$(&$field),*] };

            $($($item)*)?
        }
    };
    (@default required) => { None };
    (@default $text:literal) => { Some($text) };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
}

pub use section;
