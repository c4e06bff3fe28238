//! The key of a zone: the requests that it counts, and their parts that it counts by.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::pieces::{TextPart, split_variables};
use super::variables::{GeoVariable, MapVariable, Variable, VariableTable};
use sluicegate_model::value::methods::parse_method;

/// A key that the gateway knows. Requests without it, and those that are exempt, are not counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ZoneKey {
    /// Parts as in gateway.yaml; empty = one counter for all.
    pub parts: Vec<String>,
    /// The value of `missing_key`; `None` where no part can be missing.
    pub missing: Option<&'static str>,
    pub bypass: Vec<IpNet>,
    /// Empty = any.
    pub methods: Vec<String>,
    /// Differences without another decision, in words.
    pub differences: Vec<String>,
    /// Why some requests are counted otherwise than by nginx.
    pub losses: Vec<String>,
    /// The key names the server, which is a constant there.
    pub by_server: bool,
    /// The key is always empty: nothing is counted.
    pub is_empty: bool,
}

/// Maps that lead to maps are followed so far.
const FOLLOWED_MAX: usize = 8;

/// The key behind as many maps as `followed`.
///
/// # Errors
/// Why the key cannot be translated.
pub(super) fn read_key(text: &str, table: &VariableTable<'_>, followed: usize) -> Result<ZoneKey, String> {
    if followed > FOLLOWED_MAX {
        return Err("its maps lead to each other".to_owned());
    }
    let pieces = split_variables(text).ok_or_else(|| format!("`{text}` is no text with variables"))?;
    table.check_fixed(text)?;
    if let [TextPart::Variable(name)] = pieces.as_slice()
        && let Some(variable) = table.find(name)
    {
        return match variable {
            Variable::Geo(geo) => read_geo_key(geo),
            Variable::Map(map) => read_map_key(map, table, followed),
        };
    }
    let mut key = ZoneKey::default();
    let (mut may_be_missing, mut always_there) = (0, 0);
    for piece in &pieces {
        let name = match piece {
            TextPart::Text(_) => {
                always_there += 1;
                continue;
            }
            TextPart::Variable(name) => name,
        };
        match read_part(name, &mut key)? {
            true => may_be_missing += 1,
            false => always_there += 1,
        }
    }
    key.is_empty = pieces.is_empty();
    key.missing = match (may_be_missing, always_there) {
        (0, _) => None,
        // nginx counts nothing only if the whole key is empty.
        (1, 0) => Some("skip"),
        (_, 0) => {
            let says =
                "requests that lack all parts of the key are counted together; nginx does not count them";
            key.losses.push(says.to_owned());
            Some("shared")
        }
        _ => Some("shared"),
    };
    if runs_together(&pieces) {
        let says = "nginx joins the parts of the key, so that `a` and `bc` count together with `ab` and `c`";
        key.losses.push(says.to_owned());
    }
    Ok(key)
}

/// Whether different values of two variables can make the same text.
fn runs_together(pieces: &[TextPart]) -> bool {
    let is_fixed = |name: &str| matches!(name, "binary_remote_addr" | "server_name");
    let is_loose = |piece: &TextPart| matches!(piece, TextPart::Variable(name) if !is_fixed(name));
    pieces.iter().enumerate().any(|(place, piece)| {
        let behind = &pieces[place + 1..];
        let TextPart::Variable(name) = piece else { return false };
        let is_word = matches!(name.as_str(), "remote_addr" | "host" | "request_method");
        let ends_word = match behind.first() {
            Some(TextPart::Text(text)) => {
                !text.starts_with(|c: char| c.is_ascii_alphanumeric() || "-._:".contains(c))
            }
            Some(TextPart::Variable(next)) => matches!(next.as_str(), "uri" | "document_uri"),
            None => true,
        };
        is_loose(piece) && behind.iter().any(is_loose) && !(is_word && ends_word)
    })
}

/// Adds a variable to the key; true if requests may lack it.
fn read_part(name: &str, key: &mut ZoneKey) -> Result<bool, String> {
    let part = match name {
        "binary_remote_addr" | "remote_addr" => "ip".to_owned(),
        "uri" | "document_uri" => "uri".to_owned(),
        "host" => "host".to_owned(),
        "http_host" => {
            key.losses.push("the host is counted in lower case and without its port".to_owned());
            "host".to_owned()
        }
        "request_method" => "method".to_owned(),
        "server_name" => {
            key.by_server = true;
            return Ok(false);
        }
        _ => read_source(name, key)
            .filter(|part| !part.ends_with([':', '-']))
            .ok_or_else(|| format!("the gateway does not count by ${name}"))?,
    };
    let may_be_missing = part.contains(':');
    if !key.parts.contains(&part) {
        key.parts.push(part);
    }
    Ok(may_be_missing)
}

/// A header, cookie or parameter, as a part of the key.
fn read_source(name: &str, key: &mut ZoneKey) -> Option<String> {
    if let Some(header) = name.strip_prefix("http_") {
        let header = header.replace('_', "-");
        let says =
            format!("a request with two fields {header} gets 400; nginx joins them, or takes the first");
        // Clients of HTTP/2 may send each cookie in a field of its own, and proxies add fields of their own.
        match header.as_str() {
            "cookie" | "x-forwarded-for" | "via" => key.losses.push(says),
            _ => key.differences.push(says),
        }
        return Some(format!("header:{header}"));
    }
    if let Some(cookie) = name.strip_prefix("cookie_") {
        key.losses.push("nginx takes the first of two cookies, and tells `.` and `_` apart".to_owned());
        return Some(format!("cookie:{cookie}"));
    }
    let argument = name.strip_prefix("arg_")?;
    let says = "nginx takes the first of two parameters, tells `.` and `_` apart, and decodes nothing";
    key.losses.push(says.to_owned());
    Some(format!("query:{argument}"))
}

/// The values that are not empty, each once.
fn distinct<'v>(values: impl Iterator<Item = &'v str>) -> Vec<&'v str> {
    values.filter(|value| !value.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// A key that is a value by address: empty values are exempt, and one other value is one counter.
fn read_geo_key(geo: &GeoVariable<'_>) -> Result<ZoneKey, String> {
    match distinct(geo.values()).as_slice() {
        [] => Ok(ZoneKey { is_empty: true, ..ZoneKey::default() }),
        [value] if !value.contains('$') => {
            Ok(ZoneKey { bypass: geo.networks_with(str::is_empty)?, ..ZoneKey::default() })
        }
        _ => Err("its `geo` gives several values, each of which would be a limit of its own".to_owned()),
    }
}

fn read_map_key(
    map: &MapVariable<'_>,
    table: &VariableTable<'_>,
    followed: usize,
) -> Result<ZoneKey, String> {
    if let Some(why) = &map.obstacle {
        return Err(format!("its `map`: {why}"));
    }
    table.check_fixed(&map.source)?;
    // `map $http_x $key { "" $binary_remote_addr; default $http_x; }`: a header, else the address.
    if let [(pattern, value)] = map.entries.as_slice()
        && pattern.is_empty()
        && matches!(value.as_str(), "$binary_remote_addr" | "$remote_addr")
        && map.default == map.source
        && !map.source.is_empty()
    {
        let mut key = read_key(&map.source, table, followed + 1)?;
        if key.missing == Some("skip") {
            key.missing = Some("ip");
            return Ok(key);
        }
    }
    let results = map.entries.iter().map(|(_, value)| value.as_str()).chain([map.default.as_str()]);
    let mut key = match distinct(results).as_slice() {
        [] => return Ok(ZoneKey { is_empty: true, ..ZoneKey::default() }),
        [one] => read_key(one, table, followed + 1)?,
        _ => return Err("its `map` gives several keys, each of which would be a limit of its own".to_owned()),
    };
    if map.entries.iter().all(|(_, value)| !value.is_empty()) && !map.default.is_empty() {
        return Ok(key);
    }
    exempt_by_source(map, table, &mut key)?;
    Ok(key)
}

/// Exempts the requests for which the map gives nothing; where that cannot be written, they are counted.
fn exempt_by_source(
    map: &MapVariable<'_>,
    table: &VariableTable<'_>,
    key: &mut ZoneKey,
) -> Result<(), String> {
    let value_for = |text: &str| {
        let found = map.entries.iter().find(|(pattern, _)| pattern.eq_ignore_ascii_case(text));
        found.map_or(map.default.as_str(), |(_, value)| value.as_str())
    };
    let is_text = map.entries.iter().all(|(pattern, _)| !pattern.starts_with('~'));
    let variable = map.source.strip_prefix('$').unwrap_or_default();
    if is_text && let Some(Variable::Geo(geo)) = table.find(variable) {
        key.bypass.extend(geo.networks_with(|value| value_for(value).is_empty())?);
        return Ok(());
    }
    if is_text && variable == "remote_addr" && !map.default.is_empty() {
        let exempt = map.entries.iter().filter(|(_, value)| value.is_empty());
        // nginx compares texts, so that only the usual one is ever found.
        let address =
            |text: &str| text.parse().ok().filter(|ip: &IpAddr| ip.to_string().eq_ignore_ascii_case(text));
        key.bypass.extend(exempt.filter_map(|(text, _)| address(text)).map(IpNet::from));
        return Ok(());
    }
    if is_text && variable == "request_method" && map.default.is_empty() && key.methods.is_empty() {
        let counted = map.entries.iter().filter(|(_, value)| !value.is_empty());
        let methods: Vec<String> = counted.map(|(method, _)| method.to_ascii_uppercase()).collect();
        if methods.iter().all(|method| parse_method(method).is_ok()) {
            if methods.contains(&"GET".to_owned()) && !methods.contains(&"HEAD".to_owned()) {
                key.losses.push("HEAD is limited like GET".to_owned());
            }
            key.methods = methods;
            return Ok(());
        }
    }
    // Without a value of its own key nothing is counted in any case.
    let by_source = read_key(&map.source, table, FOLLOWED_MAX).is_ok_and(|source| source.parts == key.parts);
    let exempts_missing = map.entries.iter().all(|(pattern, value)| pattern.is_empty() || !value.is_empty());
    if is_text && by_source && key.missing == Some("skip") && exempts_missing && !map.default.is_empty() {
        return Ok(());
    }
    key.losses.push(format!(
        "requests that `map {} …` exempts are limited like all others: a limit exempts by address and method only",
        map.source
    ));
    Ok(())
}

#[cfg(test)]
mod tests;
