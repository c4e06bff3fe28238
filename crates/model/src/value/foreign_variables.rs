//! Variables in the spelling of other programs, such as `$remote_addr`, and those of this file with the same meaning.

use super::words::find_synonym;
use crate::template::TemplateVar;

/// The variables of header values and redirects: facts about the request, known before it is forwarded.
pub const VARIABLES: [&str; 10] = [
    "client_ip",
    "request_id",
    "account",
    "tier",
    "host",
    "path",
    "request_uri",
    "scheme",
    "location",
    "upstream",
];

const SYNONYMS: &[(&str, &str)] = &[
    ("account", "remote_user"),
    (
        "client_ip",
        "binary_remote_addr http_x_forwarded_for http_x_real_ip proxy_add_x_forwarded_for \
         realip_remote_addr remote_addr remote_host src",
    ),
    ("host", "hostname http_host server_name"),
    ("path", "document_uri uri"),
    ("request_id", "http_x_request_id"),
    ("scheme", "http_x_forwarded_proto"),
    ("upstream", "upstream_addr"),
];

/// The variable of this file that `name` stands for.
pub fn find_variable(name: &str) -> Option<&'static str> {
    VARIABLES.into_iter().find(|own| *own == name).or_else(|| find_synonym(SYNONYMS, name, VARIABLES))
}

/// True for every variable: bodies have all of them.
pub fn is_body_variable(name: &str) -> bool {
    TemplateVar::LABELS.contains(&name)
}

/// The first known name in braces without a dollar sign, as Caddy writes variables, and the variable of this file.
pub fn find_braced_name(text: &str) -> Option<(&str, &'static str)> {
    text.match_indices('{').find_map(|(at, _)| {
        let name = text[at + 1..].split('}').next().filter(|_| !text[..at].ends_with(['$', '{']))?;
        let own = match name.rsplit('.').next().unwrap_or(name) {
            // In Caddy it has the query.
            "uri" => "request_uri",
            bare => find_variable(bare)?,
        };
        Some((name, own))
    })
}

/// The names behind each `$` that a letter follows.
pub fn find_dollar_names(text: &str) -> impl Iterator<Item = &str> {
    text.split('$').skip(1).map(split_name).map(|(name, _)| name).filter(|name| is_name(name))
}

/// True if `name` is spelled like a variable of the environment.
pub fn is_environment_name(name: &str) -> bool {
    name.len() > 1
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// `text` with each `$name` as a variable of this file; `None` if one is unknown or there is none.
pub fn replace_variables(text: &str) -> Option<String> {
    let (first, rest) = text.split_once('$')?;
    let mut out = first.to_owned();
    let mut is_changed = false;
    for part in rest.split('$') {
        let (name, behind) = split_name(part);
        match is_name(name) {
            true => out += &format!("${{{}}}{behind}", find_variable(name)?),
            false => out += &format!("${part}"),
        }
        is_changed |= is_name(name);
    }
    is_changed.then_some(out)
}

fn split_name(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len()))
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_nginx_become_those_of_this_file() {
        let all = |text: &str| find_dollar_names(text).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(all("$5, $host and ${path} at $uri."), ["host", "uri"]);
        for (text, own) in [
            ("$remote_addr", Some("${client_ip}")),
            ("https://$host$request_uri", Some("https://${host}${request_uri}")),
            ("$5 at $http_host:80", Some("$5 at ${host}:80")),
            ("$http_x_foo", None),
            ("$5", None),
            ("no", None),
        ] {
            assert_eq!(replace_variables(text).as_deref(), own, "{text}");
        }
    }
}
