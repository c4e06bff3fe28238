//! `map` and `geo`: variables with values that depend on another variable or on the address.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use super::parser::Directive;
use super::pieces::{TextPart, count_written, split_variables};
use crate::ImportFault;
use crate::networks::{all_networks, longest_match, parse_range};

/// The variables of the configuration that `map` and `geo` define.
#[derive(Debug, Default)]
pub(super) struct VariableTable<'d> {
    variables: HashMap<String, Variable<'d>>,
    /// Those that other directives write, or several of them.
    written: HashMap<String, usize>,
}

#[derive(Debug)]
pub(super) enum Variable<'d> {
    Geo(GeoVariable<'d>),
    Map(MapVariable<'d>),
}

/// A variable that depends on the client's address.
#[derive(Debug)]
pub(super) struct GeoVariable<'d> {
    pub directive: &'d Directive,
    /// Networks with their values; the longest prefix holds, and each family has one of all its addresses.
    entries: BTreeMap<IpNet, String>,
    /// Why it is not understood.
    pub obstacle: Option<String>,
}

/// A variable that depends on another one.
#[derive(Debug)]
pub(super) struct MapVariable<'d> {
    pub directive: &'d Directive,
    pub source: String,
    pub default: String,
    /// Patterns as written, and values.
    pub entries: Vec<(String, String)>,
    /// Why it is not understood.
    pub obstacle: Option<String>,
}

impl<'d> VariableTable<'d> {
    pub(super) fn read(http: &'d [Directive]) -> Result<VariableTable<'d>, ImportFault> {
        let mut table = VariableTable::default();
        count_written(http, &mut table.written);
        for directive in http {
            let variable = match directive.name.as_str() {
                "geo" => read_geo(directive)?,
                "map" => read_map(directive)?,
                _ => continue,
            };
            let name = directive.args.last().and_then(|name| name.strip_prefix('$'));
            let Some(name) = name else {
                let message = format!("`{}` names no variable", directive.text());
                return Err(directive.fault(message));
            };
            let name = name.to_ascii_lowercase();
            if table.variables.insert(name.clone(), variable).is_some() {
                table.written.insert(name, 2);
            }
        }
        Ok(table)
    }

    pub(super) fn find(&self, name: &str) -> Option<&Variable<'d>> {
        self.variables.get(name)
    }

    /// # Errors
    /// A variable of the text has values that neither its `map` or `geo` nor the request gives.
    pub(super) fn check_fixed(&self, text: &str) -> Result<(), String> {
        let is_written =
            |piece: &TextPart| matches!(piece, TextPart::Variable(name) if self.written.contains_key(name));
        match split_variables(text).is_some_and(|pieces| pieces.iter().any(is_written)) {
            true => Err(format!("a variable of `{text}` is set elsewhere")),
            false => Ok(()),
        }
    }

    pub(super) fn directives(&self) -> impl Iterator<Item = &'d Directive> {
        self.variables.values().map(|variable| match variable {
            Variable::Geo(geo) => geo.directive,
            Variable::Map(map) => map.directive,
        })
    }
}

impl GeoVariable<'_> {
    /// The networks with a value that `is_wanted` accepts.
    pub(super) fn networks_with(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<IpNet>, String> {
        if let Some(why) = &self.obstacle {
            return Err(why.clone());
        }
        let rules: Vec<(IpNet, bool)> =
            self.entries.iter().map(|(net, value)| (*net, is_wanted(value))).collect();
        longest_match(&rules, true).ok_or_else(|| "it has too many networks".to_owned())
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        self.entries.values().map(String::as_str)
    }
}

fn read_geo<'d>(directive: &'d Directive) -> Result<Variable<'d>, ImportFault> {
    let mut entries: BTreeMap<IpNet, String> = BTreeMap::new();
    let (mut default, mut obstacle) = (String::new(), None);
    let by_ranges = directive.children().iter().any(|entry| entry.name == "ranges");
    match directive.args.as_slice() {
        [_] => {}
        [address, _] if matches!(address.as_str(), "$remote_addr" | "$binary_remote_addr") => {}
        _ => obstacle = Some(format!("it depends on {}, not on the client's address", directive.arg(0))),
    }
    for entry in directive.children() {
        entry.mark();
        match (entry.name.as_str(), entry.args.as_slice()) {
            ("default", [value]) if by_ranges => default.clone_from(value),
            // It stands for the networks of all addresses; the last of its values holds.
            ("default", [value]) => entries.extend(all_networks().map(|net| (net, value.clone()))),
            ("ranges" | "include", _) => {}
            ("delete", [net]) => {
                parse_range(net).iter().flatten().for_each(|net| drop(entries.remove(net)));
            }
            ("proxy" | "proxy_recursive" | "volatile", _) => {
                obstacle = Some(format!("`{}` inside is not translated", entry.text()));
            }
            (net, [value]) => {
                let Some(nets) = parse_range(net) else {
                    return Err(entry.fault(format!("`{net}` is no network in `geo`")));
                };
                entries.extend(nets.into_iter().map(|net| (net, value.clone())));
            }
            _ => return Err(entry.fault(format!("`{}` is no entry of `geo`", entry.text()))),
        }
    }
    for whole in all_networks() {
        entries.entry(whole).or_insert_with(|| default.clone());
    }
    Ok(Variable::Geo(GeoVariable { directive, entries, obstacle }))
}

fn read_map<'d>(directive: &'d Directive) -> Result<Variable<'d>, ImportFault> {
    let [source, _] = directive.args.as_slice() else {
        return Err(directive.fault("`map` takes a text and a variable"));
    };
    let mut map = MapVariable {
        directive,
        source: source.clone(),
        default: String::new(),
        entries: Vec::new(),
        obstacle: None,
    };
    for entry in directive.children() {
        entry.mark();
        match (entry.name.as_str(), entry.args.as_slice()) {
            ("default", [value]) => map.default.clone_from(value),
            ("volatile" | "include", _) => {}
            ("hostnames", []) => map.obstacle = Some("`hostnames` inside is not translated".to_owned()),
            (pattern, [value]) => {
                // A backslash lets a pattern be one of the words above.
                let pattern = pattern.strip_prefix('\\').unwrap_or(pattern);
                map.entries.push((pattern.to_owned(), value.clone()));
            }
            _ => return Err(entry.fault(format!("`{}` is no entry of `map`", entry.text()))),
        }
    }
    Ok(Variable::Map(map))
}
