//! The kinds of values that fields hold.

use std::path::PathBuf;
use std::time::Duration;

use super::field::{DescribeValue, OneOrMore, ParseScalar, Section, Shape};
use sluicegate_model::value::byte_rate::show_size;
use sluicegate_model::value::names::parse_file_name;
use sluicegate_model::value::scalars::{self, show_duration};
use sluicegate_model::value::statuses::parse_status_range;
use sluicegate_model::value::words::{parse_or_word, parse_word};
use sluicegate_model::{Parsed, Rate, ValueError, codes};

/// A whole number; both bounds are included.
pub struct Number<T = u64>(pub T, pub T);

/// A value with a form and a parser of its own.
pub struct Scalar<T>(pub fn() -> Shape, pub fn(&str) -> Parsed<T>);

/// A time; both bounds are included.
pub struct Span(pub Duration, pub Duration);

/// Bytes; both bounds are included.
pub struct Size(pub u64, pub u64);

/// One of several words.
pub struct Words<T: 'static>(pub &'static [(&'static str, T)]);

/// A text with a parser of its own.
pub struct Text<T> {
    /// A noun for the text, e.g. `the path of a file`.
    pub says: &'static str,
    /// The parser of one text.
    pub parse: fn(&str) -> Parsed<T>,
    /// A regular expression that each fits.
    pub pattern: Option<&'static str>,
}

/// One word that stands for no value, or a value.
pub struct OrWord<S>(pub &'static str, pub S);

/// One value, a list, or a word that stands for the empty list.
pub struct OneOrMoreOrWord<S>(pub &'static str, pub S);

/// A mapping with the fields of a section.
pub struct Nested(pub &'static Section);

/// A mapping with the fields of a section, or `none`.
pub struct NestedOrNone(pub &'static Section);

/// A value that is read by code of its own.
pub struct Special(pub fn() -> Shape);

impl<T: Copy + TryInto<u64>> Number<T> {
    fn bounds(&self) -> (u64, u64) {
        let wide = |bound: T| bound.try_into().unwrap_or(u64::MAX);
        (wide(self.0), wide(self.1))
    }
}

impl Span {
    /// A time from `least`.
    pub const fn from(least: Duration) -> Span {
        Span(least, scalars::DURATION_MAX)
    }

    fn says(&self) -> String {
        match (show_duration(self.0), self.1) {
            (least, scalars::DURATION_MAX) => format!("a duration from {least}"),
            (least, most) => format!("a duration from {least} to {}", show_duration(most)),
        }
    }
}

impl<T> Text<T> {
    /// A text without a pattern.
    pub const fn new(says: &'static str, parse: fn(&str) -> Parsed<T>) -> Text<T> {
        Text { says, parse, pattern: None }
    }

    /// The same text with a pattern for the JSON Schema, which the parser does not check.
    pub const fn matching(self, pattern: &'static str) -> Text<T> {
        Text { pattern: Some(pattern), ..self }
    }
}

/// A text with its name in the reference, and no pattern.
pub fn text(says: &str) -> Shape {
    Shape::Text(says.to_owned(), None)
}

const DURATION: &str = "^[0-9]+(ns|us|ms|s|m|h|d)$";
const SIZE: &str = "^[0-9]+(B|[KMGT]i?B)$";
const STATUSES: &str = "^([1-5]xx|[1-5][0-9][0-9]( *- *[1-5][0-9][0-9])?)$";
pub(crate) const SHARE: &str = r"^[0-9]+(\.[0-9]+)?%$";

/// A time above zero.
pub const NONZERO_TIME: Text<Duration> =
    Text::new("a duration above zero", scalars::parse_nonzero_duration).matching(DURATION);

/// A share from 0% to 100%.
pub const PERCENTAGE: Text<f64> = Text::new("a percentage", scalars::parse_percent).matching(SHARE);

/// A share from 0% to 100%, without a fraction.
pub const WHOLE_PERCENTAGE: Text<u8> =
    Text::new("a whole percentage", scalars::parse_whole_percent).matching("^[0-9]+%$");

/// `N/period`.
pub const RATE_TEXT: Text<Rate> = Text::new("a rate", scalars::parse_limit_rate).matching(
    r"^[0-9]+(\.[0-9]+)? *(B|[KMGT]i?B|[A-Z]{3})? */ *([0-9]*(ns|us|ms|s|m|h|d)|hour|day|week|month|quarter|year)$",
);

/// A number from 1 that fits into 32 bits.
pub const COUNT: Number<u32> = Number(1, u32::MAX);

/// `true` or `false`.
pub const SWITCH: Scalar<bool> = Scalar(|| Shape::Boolean, scalars::parse_bool);

/// A number from 1, or a size or money where the rate of the limit is that; only the rate tells whether it fits.
pub const NUMBER_OR_SIZE: Scalar<u64> = Scalar(
    || {
        let pattern = r"^[0-9]+(B|[KMGT]i?B)$|^[0-9]+(\.[0-9]+)? *[A-Z]{3}$";
        let size = Shape::Text("a size or money where the rate is one".to_owned(), Some(pattern));
        Shape::Either(vec![Shape::Integer(1, u64::MAX), size])
    },
    |text| scalars::parse_number(text, 1, u64::MAX),
);

/// A status, a class or a range of them, as its first and last status.
pub type StatusRange = Scalar<(u16, u16)>;

pub(crate) const STATUS_RANGE: StatusRange = Scalar(
    || {
        let says = "a class such as `5xx` or a range such as `500-504`".to_owned();
        Shape::Either(vec![Shape::Integer(100, 599), Shape::Text(says, Some(STATUSES))])
    },
    parse_status_range,
);

/// The path of a file.
pub const FILE: Text<PathBuf> = Text::new("the path of a file", parse_file_name);

// === impl ParseScalar ===

impl<T: Copy + TryFrom<u64> + TryInto<u64>> ParseScalar for Number<T> {
    type Parsed = T;

    fn form(&self) -> Shape {
        let (least, most) = self.bounds();
        Shape::Integer(least, most)
    }

    fn parse_text(&self, text: &str) -> Parsed<T> {
        let (least, most) = self.bounds();
        scalars::parse_number(text, least, most).map(|number| T::try_from(number).unwrap_or(self.1))
    }
}

impl<T> ParseScalar for Scalar<T> {
    type Parsed = T;

    fn form(&self) -> Shape {
        (self.0)()
    }

    fn parse_text(&self, text: &str) -> Parsed<T> {
        (self.1)(text)
    }
}

impl ParseScalar for Span {
    type Parsed = Duration;

    fn form(&self) -> Shape {
        Shape::Text(self.says(), Some(DURATION))
    }

    fn parse_text(&self, text: &str) -> Parsed<Duration> {
        let span = scalars::parse_duration(text)?;
        if (self.0..=self.1).contains(&span) {
            return Ok(span);
        }
        let error = ValueError::new(codes::DURATION, format!("`{text}` is out of range"));
        Err(error.with_help(format!("write {}", self.says())))
    }
}

impl ParseScalar for Size {
    type Parsed = u64;

    fn form(&self) -> Shape {
        let says = match (self.0, self.1) {
            (0, u64::MAX) => "a size".to_owned(),
            (least, most) => format!("a size from {} to {}", show_size(least), show_size(most)),
        };
        Shape::Text(says, Some(SIZE))
    }

    fn parse_text(&self, text: &str) -> Parsed<u64> {
        let bytes = scalars::parse_size(text)?;
        if (self.0..=self.1).contains(&bytes) {
            return Ok(bytes);
        }
        let range = format!("write a size from {} to {}", show_size(self.0), show_size(self.1));
        Err(ValueError::new(codes::SIZE, format!("`{text}` is out of range")).with_help(range))
    }
}

impl<T: Clone> ParseScalar for Words<T> {
    type Parsed = T;

    fn form(&self) -> Shape {
        Shape::Words(self.0.iter().map(|(word, _)| *word).collect())
    }

    fn parse_text(&self, text: &str) -> Parsed<T> {
        parse_word(self.0)(text)
    }
}

impl<T> ParseScalar for Text<T> {
    type Parsed = T;

    fn form(&self) -> Shape {
        Shape::Text(self.says.to_owned(), self.pattern)
    }

    fn parse_text(&self, text: &str) -> Parsed<T> {
        (self.parse)(text)
    }
}

impl<S: ParseScalar> ParseScalar for OrWord<S> {
    type Parsed = Option<S::Parsed>;

    fn form(&self) -> Shape {
        Shape::Either(vec![Shape::Words(vec![self.0]), self.1.form()])
    }

    fn parse_text(&self, text: &str) -> Parsed<Option<S::Parsed>> {
        parse_or_word(self.0, |text: &str| self.1.parse_text(text))(text)
    }
}

// === impl DescribeValue ===

impl<S: DescribeValue> DescribeValue for OneOrMore<S> {
    fn shape(&self) -> Shape {
        Shape::OneOrMore(Box::new(self.0.shape()))
    }
}

impl<S: DescribeValue> DescribeValue for OneOrMoreOrWord<S> {
    fn shape(&self) -> Shape {
        Shape::Either(vec![Shape::Words(vec![self.0]), Shape::OneOrMore(Box::new(self.1.shape()))])
    }
}

impl DescribeValue for Nested {
    fn shape(&self) -> Shape {
        Shape::Section(self.0)
    }
}

impl DescribeValue for NestedOrNone {
    fn shape(&self) -> Shape {
        Shape::Either(vec![Shape::Words(vec!["none"]), Shape::Section(self.0)])
    }
}

impl DescribeValue for Special {
    fn shape(&self) -> Shape {
        (self.0)()
    }
}
