//! Checks `Cargo.lock` and its licences against `deny.toml`, without the network.

/// The only allowed source of crates, as Cargo.lock writes it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The lists of `deny.toml` that are checked here.
pub struct Rules {
    pub licences: Vec<String>,
    pub banned: Vec<String>,
}

/// One package of `Cargo.lock`. Our own has no source.
pub struct Package {
    pub name: String,
    pub source: Option<String>,
}

/// Reads `[licenses] allow` and `[bans] deny`, one entry per line.
pub fn rules(deny_toml: &str) -> Rules {
    Rules {
        licences: parse_list(deny_toml, "licenses", "allow"),
        banned: parse_list(deny_toml, "bans", "deny"),
    }
}

/// The first quoted text on each line of `name = [ … ]` in `[section]`.
fn parse_list(toml: &str, section: &str, name: &str) -> Vec<String> {
    let header = format!("[{section}]");
    let body = toml.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    let body = body.take_while(|line| !(line.starts_with('[') && line.ends_with(']')));
    let entries = body.skip_while(|line| *line != format!("{name} = [")).skip(1);
    entries
        .take_while(|line| *line != "]")
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split('"').nth(1).map(str::to_owned))
        .collect()
}

pub fn packages(lock: &str) -> Vec<Package> {
    let value = |entry: &str, field: &str| {
        let start = format!("{field} = \"");
        let line = entry.lines().find(|line| line.starts_with(&start))?;
        Some(line[start.len()..].trim_end_matches('"').to_owned())
    };
    let entries = lock.split("[[package]]").skip(1);
    entries
        .filter_map(|entry| Some(Package { name: value(entry, "name")?, source: value(entry, "source") }))
        .collect()
}

/// Banned crates and crates from other sources.
pub fn lock_problems(packages: &[Package], rules: &Rules, ours: &str) -> Vec<String> {
    let mut found = Vec::new();
    for Package { name, source } in packages {
        if rules.banned.contains(name) {
            found.push(format!("{name}: banned by deny.toml"));
        }
        match source.as_deref() {
            Some(REGISTRY) => {}
            None if name.strip_prefix(ours).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) => {}
            Some(other) => found.push(format!("{name}: comes from {other}, not from the registry")),
            None => found.push(format!("{name}: comes from a path, not from the registry")),
        }
    }
    found
}

/// A licence that the rules do not allow. `expression` is the manifest's SPDX text.
pub fn licence_problem(name: &str, expression: Option<&str>, rules: &Rules) -> Option<String> {
    let Some(expression) = expression.filter(|text| !text.trim().is_empty()) else {
        return Some(format!("{name}: no licence"));
    };
    let mut words = words(expression);
    words.reverse();
    match parse_or(&mut words, rules) {
        Some(true) if words.is_empty() => None,
        Some(false) if words.is_empty() => Some(format!("{name}: licence {expression} is not in deny.toml")),
        _ => Some(format!("{name}: licence {expression} cannot be read")),
    }
}

/// Splits an SPDX expression; the old form `MIT/Apache-2.0` means OR.
fn words(expression: &str) -> Vec<String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// The rest of an expression, its next word last.
type Words = Vec<String>;

/// `a OR b`: allowed if one side is. `None` if it makes no sense.
fn parse_or(words: &mut Words, rules: &Rules) -> Option<bool> {
    let mut allowed = parse_and(words, rules)?;
    while words.pop_if(|word| word == "OR").is_some() {
        allowed |= parse_and(words, rules)?;
    }
    Some(allowed)
}

/// `a AND b`: allowed if both sides are.
fn parse_and(words: &mut Words, rules: &Rules) -> Option<bool> {
    let mut allowed = parse_term(words, rules)?;
    while words.pop_if(|word| word == "AND").is_some() {
        allowed &= parse_term(words, rules)?;
    }
    Some(allowed)
}

/// A licence, perhaps with an exception (which must be listed with it), or an expression in brackets.
fn parse_term(words: &mut Words, rules: &Rules) -> Option<bool> {
    let mut name = words.pop()?;
    if name == "(" {
        let allowed = parse_or(words, rules)?;
        return words.pop_if(|word| word == ")").map(|_| allowed);
    }
    if ["OR", "AND", "WITH", ")"].contains(&name.as_str()) {
        return None;
    }
    if words.pop_if(|word| word == "WITH").is_some() {
        name = format!("{name} WITH {}", words.pop()?);
    }
    Some(rules.licences.contains(&name))
}
