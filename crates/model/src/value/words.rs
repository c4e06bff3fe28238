//! Parses words with a meaning of their own: `none`, and one of a list.

use super::scalars::Parsed;
use crate::diagnostics::codes;
use crate::diagnostics::problem::{ValueError, did_you_mean};

/// `none`, or a value of `parse`.
pub fn parse_or_none<T>(parse: impl Fn(&str) -> Parsed<T>) -> impl Fn(&str) -> Parsed<Option<T>> {
    parse_or_word("none", parse)
}

/// `word`, or a value of `parse`.
pub fn parse_or_word<T>(
    word: &'static str,
    parse: impl Fn(&str) -> Parsed<T>,
) -> impl Fn(&str) -> Parsed<Option<T>> {
    move |text| match text == word {
        true => Ok(None),
        false => parse(text).map(Some).map_err(|error| error.with_default_help(&format!("or write {word}"))),
    }
}

/// One of `words`.
pub fn parse_word<T: Clone>(words: &[(&str, T)]) -> impl Fn(&str) -> Parsed<T> {
    move |text| {
        if let Some((_, meaning)) = words.iter().find(|(name, _)| *name == text) {
            return Ok(meaning.clone());
        }
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let help = find_synonym(&SYNONYMS, &text.to_lowercase(), names.iter().copied())
            .map(|name| format!("did you mean `{name}`?"))
            .or_else(|| did_you_mean(text, names.iter().copied()))
            .unwrap_or_else(|| format!("write one of {}", names.join(", ")));
        Err(ValueError::new(codes::WORD, format!("`{text}` is not a valid word here")).with_help(help))
    }
}

/// Words of other programs, each with the words of this file that may mean the same.
const SYNONYMS: [(&str, &[&str]); 42] = [
    ("client_ip", &["ip"]),
    ("remote_addr", &["ip"]),
    ("$remote_addr", &["ip"]),
    ("binary_remote_addr", &["ip"]),
    ("$binary_remote_addr", &["ip"]),
    ("address", &["ip"]),
    ("source_ip", &["ip"]),
    ("remote_ip", &["ip"]),
    ("path", &["uri"]),
    ("url", &["uri"]),
    ("$uri", &["uri"]),
    ("$request_uri", &["uri"]),
    ("route", &["location"]),
    ("user", &["account"]),
    ("$remote_user", &["account"]),
    ("$host", &["host"]),
    ("all", &["global", "any"]),
    ("ip_hash", &["hash:ip"]),
    ("source", &["hash:ip"]),
    ("consistent_hash", &["hash:ip"]),
    ("hash", &["hash:ip"]),
    ("leastconn", &["least_conn"]),
    ("least_request", &["least_conn"]),
    ("rr", &["round_robin"]),
    ("gcra", &["token_bucket"]),
    ("token", &["token_bucket"]),
    ("leaky", &["leaky_bucket"]),
    ("fixed", &["fixed_window"]),
    ("sliding", &["sliding_window"]),
    ("text", &["pretty"]),
    ("console", &["pretty"]),
    ("warning", &["warn"]),
    ("off", &["none"]),
    ("none", &["global"]),
    ("json", &["problem"]),
    ("memory", &["local"]),
    ("ram", &["local"]),
    ("grpc", &["http2"]),
    ("h2", &["http2"]),
    ("h2c", &["http2"]),
    ("http/1.1", &["http1"]),
    ("tokens", &["llm"]),
];

/// The one of `known` that `synonyms` gives as a meaning of `text`.
pub fn find_synonym<'a>(
    synonyms: &[(&str, &[&str])],
    text: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let (_, meanings) = synonyms.iter().find(|(word, _)| *word == text)?;
    known.into_iter().find(|name| meanings.contains(name))
}
