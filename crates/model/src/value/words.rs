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
        let help = find_synonym(SYNONYMS, &text.to_lowercase(), names.iter().copied())
            .map(|name| format!("did you mean `{name}`?"))
            .or_else(|| did_you_mean(text, names.iter().copied()))
            .unwrap_or_else(|| format!("write one of {}", names.join(", ")));
        Err(ValueError::new(codes::WORD, format!("`{text}` is not a valid word here")).with_help(help))
    }
}

/// One of `words`, or a text of another form: `help` names the forms unless a word is near.
pub fn parse_word_or<T: Clone>(words: &[(&str, T)], text: &str, help: impl FnOnce() -> String) -> Parsed<T> {
    parse_word(words)(text).map_err(|error| match &error.suggestion {
        Some(near) if near.starts_with("did") => error,
        _ => error.with_help(help()),
    })
}

/// Words of this file, each with those of other programs that may mean the same.
const SYNONYMS: &[(&str, &str)] = &[
    ("account", "user $remote_user"),
    ("any", "all"),
    ("fixed_window", "fixed"),
    ("global", "all none"),
    ("hash:ip", "ip_hash source consistent_hash hash"),
    ("host", "$host"),
    ("http1", "http/1.1"),
    ("http2", "grpc h2 h2c"),
    (
        "ip",
        "client_ip remote_addr $remote_addr binary_remote_addr $binary_remote_addr address source_ip \
         remote_ip",
    ),
    ("leaky_bucket", "leaky"),
    ("least_conn", "leastconn least_request"),
    ("llm", "tokens"),
    ("local", "memory ram"),
    ("location", "route"),
    ("none", "off"),
    ("pretty", "text console"),
    ("problem", "json"),
    ("round_robin", "rr"),
    ("sliding_window", "sliding"),
    ("token_bucket", "gcra token"),
    ("uri", "path url $uri $request_uri"),
    ("warn", "warning"),
];

/// The one of `known` that `text` stands for; `synonyms` are words of this file, each with others for it.
pub fn find_synonym<'a>(
    synonyms: &[(&str, &str)],
    text: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let stands_for = |name: &str| {
        let mut rows = synonyms.iter().filter(|(own, _)| *own == name);
        rows.any(|(_, others)| others.split(' ').any(|other| other == text))
    };
    known.into_iter().find(|name| stands_for(name))
}
