//! `${NAME}`, `${NAME:-default}` and `${file:PATH}`, replaced in every scalar once the file is a tree.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::file;
use super::tree::{Content, Key, Node, Text, TextPiece};
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Complaint, Findings, Place, did_you_mean};
use crate::config::value::scalars::Read;

/// Where replaced text comes from.
pub(crate) struct Surroundings<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Names of variables that exist, for suggestions.
    pub variable_names: Vec<String>,
    /// Relative paths start at the configuration file, wherever the program was started.
    pub folder: PathBuf,
}

/// Replaces in all of `node`; a scalar that cannot be replaced becomes null, and keys are checked for doubles.
pub(crate) fn replace_all(node: &mut Node, around: &Surroundings<'_>, found: &Findings) {
    match &mut node.content {
        Content::Null | Content::Broken => {}
        Content::Text(text) => {
            if let Err(complaint) = replace(text, around) {
                found.add(node.place, "", complaint);
                node.content = Content::Broken;
            }
        }
        Content::List(items) => items.iter_mut().for_each(|item| replace_all(item, around, found)),
        Content::Map(entries) => {
            for (key, value) in entries.iter_mut() {
                replace_key(key, around, found);
                replace_all(value, around, found);
            }
            refuse_doubles(entries, found);
        }
    }
}

fn refuse_doubles(entries: &[(Key, Node)], found: &Findings) {
    let mut first: HashMap<&str, Place> = HashMap::new();
    for (key, _) in entries {
        match first.get(key.name.as_str()) {
            Some(before) => {
                let message = format!("the key `{}` is here twice, first in line {}", key.name, before.line);
                found.add(key.place, &key.name, Complaint::new(codes::DUPLICATE_KEY, message));
            }
            None => {
                first.insert(&key.name, key.place);
            }
        }
    }
}

fn replace_key(key: &mut Key, around: &Surroundings<'_>, found: &Findings) {
    if !key.name.contains("${") {
        return;
    }
    let mut text = Text::new(std::mem::take(&mut key.name));
    match replace(&mut text, around) {
        Err(complaint) => found.add(key.place, "", complaint),
        Ok(()) => match text.plain() {
            Some(plain) => key.name = plain.to_owned(),
            None => found.add(
                key.place,
                "",
                Complaint::new(codes::TEMPLATE, "a key cannot have template variables"),
            ),
        },
    }
}

fn replace(text: &mut Text, around: &Surroundings<'_>) -> Read<()> {
    if !text.written.contains("${") {
        return Ok(());
    }
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text.written.as_str();
    while let Some(start) = rest.find("${") {
        if let Some(before) = rest[..start].strip_suffix('$') {
            plain.push_str(before);
            plain.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        plain.push_str(&rest[..start]);
        let Some((inner, behind)) = rest[start + 2..].split_once('}') else {
            return Err(Complaint::new(codes::SUBSTITUTION, "`${` without a closing brace")
                .help("write $${ for the two characters themselves"));
        };
        rest = behind;
        if !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') {
            pieces.push(TextPiece::Plain(std::mem::take(&mut plain)));
            pieces.push(TextPiece::Variable(inner.to_owned()));
        } else {
            plain.push_str(&outside_text(inner, around)?);
            text.replaced = true;
        }
    }
    plain.push_str(rest);
    pieces.push(TextPiece::Plain(plain));
    pieces.retain(|piece| !matches!(piece, TextPiece::Plain(plain) if plain.is_empty()));
    text.pieces = pieces;
    Ok(())
}

fn outside_text(inner: &str, around: &Surroundings<'_>) -> Read<String> {
    if let Some(path) = inner.strip_prefix("file:") {
        return file_text(path, &around.folder);
    }
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let upper = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    if name.is_empty() || !name.bytes().all(upper) {
        return Err(Complaint::new(codes::SUBSTITUTION, format!("`${{{inner}}}` is not a variable"))
            .help("write ${NAME} in capitals, ${NAME:-default} or ${file:PATH}; $${ is a literal ${"));
    }
    match ((around.variable)(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => {
            let near = did_you_mean(name, around.variable_names.iter().map(String::as_str));
            let complaint =
                Complaint::new(codes::SUBSTITUTION, format!("the environment variable `{name}` is not set"));
            Err(complaint
                .help(near.unwrap_or_else(|| format!("write ${{{name}:-default}} to do without it"))))
        }
    }
}

const FILE_MAX: u64 = 64 * 1024;

fn file_text(path: &str, folder: &Path) -> Read<String> {
    let wrong = |message: String| Complaint::new(codes::SUBSTITUTION, message);
    if path.is_empty() {
        return Err(wrong("`${file:}` names no file".to_owned()));
    }
    let bytes = file::read_capped(&folder.join(path), FILE_MAX)
        .map_err(|reason| wrong(format!("the file `{path}` {reason}")))?;
    let mut text =
        String::from_utf8(bytes).map_err(|_| wrong(format!("the file `{path}` is not UTF-8 text")))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(written: &str) -> Read<Text> {
        let variable = |name: &str| match name {
            "PORT" => Some("8080".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        let around = Surroundings {
            variable: &variable,
            variable_names: vec!["PORT".to_owned()],
            folder: PathBuf::from(env!("CARGO_MANIFEST_DIR")),
        };
        let mut text = Text::new(written.to_owned());
        replace(&mut text, &around).map(|()| text)
    }

    #[track_caller]
    fn plain(written: &str) -> String {
        replaced(written).unwrap().plain().unwrap().to_owned()
    }

    #[test]
    fn variables_defaults_and_literals() {
        assert_eq!(plain("[::]:${PORT}"), "[::]:8080");
        assert_eq!(plain("${NOPE:-x:-y}/z"), "x:-y/z");
        assert_eq!(plain("${EMPTY:-x}"), "x");
        assert_eq!(plain("${EMPTY}"), "");
        assert_eq!(plain("$${PORT} $5"), "${PORT} $5");
        assert!(plain("${file:rustfmt.toml}").ends_with("\"Max\""));
    }

    #[test]
    fn lower_case_names_stay_variables() {
        let text = replaced("a ${host}${uri}$${x}").unwrap();
        let variable = |name: &str| TextPiece::Variable(name.to_owned());
        let literal = |text: &str| TextPiece::Plain(text.to_owned());
        assert_eq!(text.pieces, [literal("a "), variable("host"), variable("uri"), literal("${x}")]);
        assert!(text.plain().is_none() && !text.replaced);
    }

    #[test]
    fn what_cannot_be_replaced_says_why() {
        let message = |written: &str| replaced(written).unwrap_err();
        assert!(message("${NOPE}").message.contains("`NOPE` is not set"));
        assert_eq!(message("${PROT}").suggestion.unwrap(), "did you mean `PORT`?");
        assert!(message("${PORT").message.contains("closing brace"));
        assert!(message("${Port}").message.contains("is not a variable"));
        assert!(message("${}").message.contains("is not a variable"));
        assert!(message("${file:nowhere.txt}").message.contains("does not exist"));
        assert!(message("${file:}").message.contains("names no file"));
    }
}
