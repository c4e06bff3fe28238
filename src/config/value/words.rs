//! Parses words with a meaning of their own: `none`, and one of a list.

use super::scalars::Parsed;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{ValueError, did_you_mean};

/// `none`, or a value of `parse`.
pub(crate) fn parse_or_none<T>(parse: impl Fn(&str) -> Parsed<T>) -> impl Fn(&str) -> Parsed<Option<T>> {
    parse_or_word("none", parse)
}

/// `word`, or a value of `parse`.
pub(crate) fn parse_or_word<T>(
    word: &'static str,
    parse: impl Fn(&str) -> Parsed<T>,
) -> impl Fn(&str) -> Parsed<Option<T>> {
    move |text| match text == word {
        true => Ok(None),
        false => parse(text).map(Some).map_err(|error| error.with_default_help(&format!("or write {word}"))),
    }
}

/// One of `words`.
pub(crate) fn parse_word<T: Clone>(words: &[(&str, T)]) -> impl Fn(&str) -> Parsed<T> {
    move |text| {
        if let Some((_, meaning)) = words.iter().find(|(name, _)| *name == text) {
            return Ok(meaning.clone());
        }
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let help = did_you_mean(text, names.iter().copied())
            .unwrap_or_else(|| format!("write one of {}", names.join(", ")));
        Err(ValueError::new(codes::WORD, format!("`{text}` is not a valid word here")).with_help(help))
    }
}
