//! Replaces `${NAME}`, `${NAME:-default}` and `${file:PATH}` in every scalar and key of the tree.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::tree::{MapKey, Node, NodeContent, ScalarText, TextPiece};
use sluicegate_base::file;
use sluicegate_model::diagnostics::redact::may_hold_secret;
use sluicegate_model::value::foreign_variables::{find_variable, is_body_variable, is_environment_name};
use sluicegate_model::{Parsed, Position, ProblemSink, ValueError, codes, did_you_mean};

/// The sources of replaced text.
pub struct Environment<'a> {
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Names of existing variables, for suggestions.
    pub variable_names: Vec<String>,
    /// Relative paths start here, at the folder of the configuration file.
    pub folder: PathBuf,
}

/// Replaces in all of `node`. A scalar that fails becomes `Invalid`, and duplicate keys are reported.
pub fn substitute_all(node: &mut Node, environment: &Environment<'_>, sink: &ProblemSink) {
    match &mut node.content {
        NodeContent::Null | NodeContent::Invalid => {}
        NodeContent::Text(text) => {
            if let Err(error) = substitute_text(text, environment) {
                sink.add_problem(node.position, "", error);
                node.content = NodeContent::Invalid;
            }
        }
        NodeContent::List(items) => items.iter_mut().for_each(|item| substitute_all(item, environment, sink)),
        NodeContent::Map(entries) => {
            for (key, value) in entries.iter_mut() {
                substitute_key(key, environment, sink);
                substitute_all(value, environment, sink);
            }
            report_duplicate_keys(entries, sink);
        }
    }
}

/// Reports each key of a mapping that is there before.
pub fn report_duplicate_keys(entries: &[(MapKey, Node)], sink: &ProblemSink) {
    let mut first: HashMap<&str, Position> = HashMap::new();
    for (key, _) in entries {
        match first.get(key.name.as_str()) {
            Some(before) => {
                let line = sink.show_line(*before, key.position);
                let message = format!("the key `{}` appears twice, first on line {line}", key.name);
                let error = ValueError::new(codes::DUPLICATE_KEY, message);
                sink.add_problem(key.position, &key.name, error.with_help("write both values under one key"));
            }
            None => {
                first.insert(&key.name, key.position);
            }
        }
    }
}

fn substitute_key(key: &mut MapKey, environment: &Environment<'_>, sink: &ProblemSink) {
    if !key.name.contains("${") {
        return;
    }
    let mut text = ScalarText::new(std::mem::take(&mut key.name));
    match substitute_text(&mut text, environment) {
        Err(error) => sink.add_problem(key.position, "", error),
        Ok(()) => match text.as_plain() {
            Some(plain) => key.name = plain.to_owned(),
            None => sink.add_problem(
                key.position,
                "",
                ValueError::new(codes::TEMPLATE, "a key cannot have template variables"),
            ),
        },
    }
}

fn substitute_text(text: &mut ScalarText, environment: &Environment<'_>) -> Parsed<()> {
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
            return Err(ValueError::new(codes::SUBSTITUTION, "`${` without a closing brace")
                .with_help("write $${ for the two characters themselves"));
        };
        rest = behind;
        let is_variable = !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        if is_variable || inner.len() > 4 && inner.starts_with("key:") || inner.starts_with("json:/") {
            pieces.push(TextPiece::Plain(std::mem::take(&mut plain)));
            pieces.push(TextPiece::Variable(inner.to_owned()));
        } else {
            plain.push_str(&resolve_variable(inner, environment)?);
            text.replaced = true;
        }
    }
    plain.push_str(rest);
    pieces.push(TextPiece::Plain(plain));
    pieces.retain(|piece| !matches!(piece, TextPiece::Plain(plain) if plain.is_empty()));
    text.pieces = pieces;
    Ok(())
}

fn resolve_variable(inner: &str, environment: &Environment<'_>) -> Parsed<String> {
    if let Some(path) = inner.strip_prefix("file:") {
        return read_file_text(path, &environment.folder);
    }
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let upper = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    if name.is_empty() || !name.bytes().all(upper) {
        let own = inner.replace('-', "_").to_ascii_lowercase();
        let near = match find_variable(&own) {
            Some(own) => Some(own.to_owned()),
            None if is_body_variable(&own) => Some(own),
            None => environment.variable_names.iter().find(|name| name.eq_ignore_ascii_case(&own)).cloned(),
        };
        let near = near.map(|near| format!("did you mean `${{{near}}}`?")).or_else(|| {
            // `${NAME:default}` of other programs.
            let (name, default) = inner.split_once(':').filter(|(name, _)| is_environment_name(name))?;
            Some(format!("write ${{{name}:-{}}}", default.trim_start_matches('=')))
        });
        return Err(ValueError::new(codes::SUBSTITUTION, format!("`${{{inner}}}` is not a variable"))
            .with_optional_help(near)
            .with_default_help(
                "write ${NAME} in capitals, ${NAME:-default} or ${file:PATH}; $${ is a literal ${",
            ));
    }
    match ((environment.variable)(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => {
            let near = did_you_mean(name, environment.variable_names.iter().map(String::as_str));
            let error =
                ValueError::new(codes::SUBSTITUTION, format!("the environment variable `{name}` is not set"));
            let own = find_variable(&name.to_ascii_lowercase());
            let near = near
                .or_else(|| own.map(|own| format!("did you mean `${{{own}}}`, a variable of each request?")));
            // A default for a secret would be known to every reader of the file.
            let advice = match may_hold_secret(name) || name.ends_with("_KEY") {
                true => {
                    "set it in the environment of the gateway, e.g. of its service, or write ${file:PATH}"
                        .to_owned()
                }
                false => format!("write ${{{name}:-default}} to give a default"),
            };
            Err(error.with_help(near.unwrap_or(advice)))
        }
    }
}

const FILE_MAX: u64 = 64 * 1024;

fn read_file_text(path: &str, folder: &Path) -> Parsed<String> {
    let wrong = |message: String| ValueError::new(codes::SUBSTITUTION, message);
    if path.is_empty() {
        return Err(wrong("`${file:}` names no file".to_owned()));
    }
    let bytes = file::read_capped(&folder.join(path), FILE_MAX).map_err(|reason| {
        wrong(format!("the file `{path}` {reason}")).with_help(file::explain_path(folder, Path::new(path)))
    })?;
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

    fn replaced(written: &str) -> Parsed<ScalarText> {
        let variable = |name: &str| match name {
            "PORT" => Some("8080".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        let environment = Environment {
            variable: &variable,
            variable_names: vec!["PORT".to_owned()],
            folder: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.."),
        };
        let mut text = ScalarText::new(written.to_owned());
        substitute_text(&mut text, &environment).map(|()| text)
    }

    #[track_caller]
    fn plain(written: &str) -> String {
        replaced(written).unwrap().as_plain().unwrap().to_owned()
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
        assert!(text.as_plain().is_none() && !text.replaced);
    }

    #[test]
    fn failed_substitutions_get_a_message() {
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
