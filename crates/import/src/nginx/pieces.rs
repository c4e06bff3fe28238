//! Texts with variables, and the variables of the gateway that stand for those of nginx.

use std::collections::HashMap;

use super::parser::Directive;

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TextPart {
    Text(String),
    /// A variable in lower case, without its dollar sign.
    Variable(String),
}

/// Splits a text as nginx does. `None` = a dollar sign without a name.
pub(super) fn split_variables(text: &str) -> Option<Vec<TextPart>> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some(dollar) = rest.find('$') {
        if dollar > 0 {
            pieces.push(TextPart::Text(rest[..dollar].to_owned()));
        }
        let behind = &rest[dollar + 1..];
        let (name, after) = match behind.strip_prefix('{') {
            Some(braced) => braced.split_once('}')?,
            None => {
                let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                behind.split_at(end.unwrap_or(behind.len()))
            }
        };
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            return None;
        }
        pieces.push(TextPart::Variable(name.to_ascii_lowercase()));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(TextPart::Text(rest.to_owned()));
    }
    Some(pieces)
}

/// Counts how often variables are written by `set`, its like and the groups of expressions.
pub(super) fn count_written(directives: &[Directive], counts: &mut HashMap<String, usize>) {
    for directive in directives {
        let target = match directive.name.as_str() {
            "split_clients" => directive.args.last(),
            name if name.starts_with("set") || name.ends_with("_set") => directive.args.first(),
            _ => None,
        };
        let set = target.and_then(|target| target.strip_prefix('$'));
        let words = std::iter::once(&directive.name).chain(&directive.args);
        let groups = words.flat_map(|word| word.split("(?").skip(1)).filter_map(|group| {
            group.trim_start_matches('P').strip_prefix(['<', '\''])?.split(['>', '\'']).next()
        });
        for name in set.into_iter().chain(groups) {
            *counts.entry(name.to_ascii_lowercase()).or_default() += 1;
        }
        count_written(directive.children(), counts);
    }
}

/// A text for gateway.yaml, and how its variables differ.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TranslatedText {
    pub template: String,
    pub differences: Vec<String>,
}

/// # Errors
/// The variable that the gateway does not have.
pub(super) fn translate_text(text: &str, server_name: &str) -> Result<TranslatedText, String> {
    let pieces = split_variables(text).ok_or_else(|| format!("`{text}` has a dollar sign without a name"))?;
    let mut out = TranslatedText { template: String::new(), differences: Vec::new() };
    for piece in pieces {
        let name = match piece {
            TextPart::Text(text) => {
                out.template.push_str(&text.replace("${", "$${"));
                continue;
            }
            TextPart::Variable(name) => name,
        };
        let own = match name.as_str() {
            "remote_addr" => "${client_ip}",
            "host" => "${host}",
            "http_host" => {
                out.differences.push("${host} has no port".to_owned());
                "${host}"
            }
            "request_uri" => "${request_uri}",
            "uri" | "document_uri" => "${path}",
            "scheme" => "${scheme}",
            "request_id" => "${request_id}",
            // nginx puts the name of its machine in the place of `$hostname`.
            "server_name" if server_name != "$hostname" => {
                out.template.push_str(&server_name.replace("${", "$${"));
                continue;
            }
            _ => return Err(format!("the gateway has no variable for ${name}")),
        };
        out.template.push_str(own);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_at_their_variables() {
        let text = |text: &str| TextPart::Text(text.to_owned());
        let variable = |name: &str| TextPart::Variable(name.to_owned());
        assert_eq!(
            split_variables("$a:${b}c").unwrap(),
            [variable("a"), text(":"), variable("b"), text("c")]
        );
        assert_eq!(split_variables(""), Some(vec![]));
        assert_eq!(split_variables("a$"), None);
        assert_eq!(split_variables("${a"), None);
    }

    #[test]
    fn variables_have_names_of_the_gateway() {
        let translated = translate_text("https://$host$request_uri", "a").unwrap();
        assert_eq!(translated.template, "https://${host}${request_uri}");
        assert!(translate_text("$ssl_client_s_dn", "a").unwrap_err().contains("ssl_client_s_dn"));
    }
}
