//! The key of a zone: which requests it counts, and by what.

use ipnet::IpNet;

use super::pieces::{TextPart, split_variables};
use super::variables::{GeoVariable, MapVariable, Variable, VariableTable};

/// A key that the gateway knows. Requests without it, and those that are exempt, are not counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ZoneKey {
    /// Parts as in gateway.yaml; empty = one counter for all.
    pub parts: Vec<String>,
    /// What `missing_key` says; `None` where no part can be missing.
    pub missing: Option<&'static str>,
    pub bypass: Vec<IpNet>,
    /// Empty = any.
    pub methods: Vec<String>,
    /// What differs, in words.
    pub differences: Vec<String>,
    /// The key names the server, which is a constant there.
    pub by_server: bool,
    /// The key is always empty: nothing is counted.
    pub is_empty: bool,
}

/// Maps that lead to maps are followed so far.
const FOLLOWED_MAX: usize = 8;

impl ZoneKey {
    /// # Errors
    /// Why the key cannot be translated.
    pub fn read(text: &str, table: &VariableTable<'_>) -> Result<ZoneKey, String> {
        read_key(text, table, 0)
    }
}

fn read_key(text: &str, table: &VariableTable<'_>, followed: usize) -> Result<ZoneKey, String> {
    if followed > FOLLOWED_MAX {
        return Err("its maps lead to each other".to_owned());
    }
    let pieces = split_variables(text).ok_or_else(|| format!("`{text}` is no text with variables"))?;
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
            Presence::Always => always_there += 1,
            Presence::MayBeMissing => may_be_missing += 1,
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
            key.differences.push(says.to_owned());
            Some("shared")
        }
        _ => Some("shared"),
    };
    Ok(key)
}

enum Presence {
    Always,
    MayBeMissing,
}

fn read_part(name: &str, key: &mut ZoneKey) -> Result<Presence, String> {
    let mut push = |part: String| {
        if !key.parts.contains(&part) {
            key.parts.push(part);
        }
    };
    match name {
        "binary_remote_addr" | "remote_addr" => push("ip".to_owned()),
        "uri" | "document_uri" => push("uri".to_owned()),
        "host" => push("host".to_owned()),
        "request_method" => push("method".to_owned()),
        "server_name" => key.by_server = true,
        _ => {
            let (part, says) = if let Some(header) = name.strip_prefix("http_") {
                let header = header.replace('_', "-");
                let says = format!("a request with two fields {header} gets 400");
                (format!("header:{header}"), says)
            } else if let Some(cookie) = name.strip_prefix("cookie_") {
                (format!("cookie:{cookie}"), String::new())
            } else if let Some(argument) = name.strip_prefix("arg_") {
                let says =
                    "the parameter is decoded before it is counted, and its name is compared with its case";
                (format!("query:{argument}"), says.to_owned())
            } else {
                return Err(format!("the gateway does not count by ${name}"));
            };
            if part.ends_with([':', '-']) {
                return Err(format!("the gateway does not count by ${name}"));
            }
            push(part);
            if !says.is_empty() {
                key.differences.push(says);
            }
            return Ok(Presence::MayBeMissing);
        }
    }
    Ok(Presence::Always)
}

/// A key that is a value by address: empty values are exempt, and one other value is one counter.
fn read_geo_key(geo: &GeoVariable<'_>) -> Result<ZoneKey, String> {
    let mut values: Vec<&str> = geo.values().filter(|value| !value.is_empty()).collect();
    values.sort_unstable();
    values.dedup();
    match values.as_slice() {
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
    if let Some(key) = read_fallback(map, table, followed)? {
        return Ok(key);
    }
    let results = map.entries.iter().map(|(_, value)| value.as_str()).chain([map.default.as_str()]);
    let mut counted: Vec<&str> = results.filter(|value| !value.is_empty()).collect();
    counted.sort_unstable();
    counted.dedup();
    let mut key = match counted.as_slice() {
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

/// `map $http_x $key { "" $binary_remote_addr; default $http_x; }`: a header, else the address.
fn read_fallback(
    map: &MapVariable<'_>,
    table: &VariableTable<'_>,
    followed: usize,
) -> Result<Option<ZoneKey>, String> {
    let [(pattern, value)] = map.entries.as_slice() else { return Ok(None) };
    let by_address = matches!(value.as_str(), "$binary_remote_addr" | "$remote_addr");
    if !(pattern.is_empty() && by_address && map.default == map.source && !map.source.is_empty()) {
        return Ok(None);
    }
    let mut key = read_key(&map.source, table, followed + 1)?;
    if key.missing != Some("skip") {
        return Ok(None);
    }
    key.missing = Some("ip");
    Ok(Some(key))
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
    let has_regex = map.entries.iter().any(|(pattern, _)| pattern.starts_with('~'));
    let variable = map.source.strip_prefix('$').unwrap_or_default();
    if !has_regex && let Some(Variable::Geo(geo)) = table.find(variable) {
        key.bypass.extend(geo.networks_with(|value| value_for(value).is_empty())?);
        return Ok(());
    }
    if !has_regex && matches!(variable, "remote_addr") && !map.default.is_empty() {
        let exempt = map.entries.iter().filter(|(_, value)| value.is_empty());
        let nets: Option<Vec<IpNet>> =
            exempt.map(|(text, _)| text.parse::<std::net::IpAddr>().ok().map(IpNet::from)).collect();
        if let Some(nets) = nets {
            key.bypass.extend(nets);
            return Ok(());
        }
    }
    if !has_regex && variable == "request_method" && map.default.is_empty() {
        let counted = map.entries.iter().filter(|(_, value)| !value.is_empty());
        key.methods = counted.map(|(method, _)| method.to_ascii_uppercase()).collect();
        if key.methods.iter().any(|method| method == "GET")
            && !key.methods.iter().any(|method| method == "HEAD")
        {
            key.differences.push("HEAD is limited like GET".to_owned());
        }
        return Ok(());
    }
    key.differences.push(format!(
        "requests that `map {} …` exempts are limited like all others: a limit exempts by address and method only",
        map.source
    ));
    Ok(())
}

#[cfg(test)]
mod tests;
