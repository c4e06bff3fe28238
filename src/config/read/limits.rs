//! Reads `limits`: named limits, and chains of named and inline limits.

use std::collections::{HashMap, HashSet};

use super::access::IpSetReader;
use super::algorithm;
use super::missing_key;
use super::reject;
use super::state::StateReader;
use super::tiers;
use super::upstreams::UpstreamReader;
use crate::config::LimitId;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{ValueError, did_you_mean};
use crate::config::model::access::NetworkList;
use crate::config::model::limit::{Algorithm, Cost, InvalidCost, KeyPart, LimitConfig, MissingKey};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::value::scalars::Parsed;
use crate::config::yaml::fields::{FieldReader, FieldValue, parse_word};
use crate::config::yaml::tree::NodeContent;

/// The limits read so far; chains add inline limits.
pub(crate) struct LimitReader<'a> {
    list: Vec<LimitConfig>,
    by_name: HashMap<String, LimitId>,
    /// Names that inline limits were given.
    inline_names: HashSet<String>,
    defined: Vec<(LimitId, FieldValue<'a>)>,
    used: HashSet<LimitId>,
    pub sets: &'a IpSetReader<'a>,
    state: &'a StateReader,
}

impl<'a> LimitReader<'a> {
    pub fn read_limits(
        root: &mut FieldReader<'a>,
        sets: &'a IpSetReader<'a>,
        state: &'a StateReader,
        upstreams: &mut UpstreamReader<'_>,
    ) -> LimitReader<'a> {
        let (list, defined, used) = (Vec::new(), Vec::new(), HashSet::new());
        let mut limits = LimitReader {
            list,
            by_name: HashMap::new(),
            inline_names: HashSet::new(),
            defined,
            used,
            sets,
            state,
        };
        for (key, value) in root.get_field("limits").map(|value| value.entries()).unwrap_or_default() {
            if let Err(error) = names::check_name(&key.name) {
                value.report_at_name(error);
            }
            let limit = match value.node.content {
                NodeContent::Text(_) => limits.read_short(&key.name, &value),
                _ => limits.read_named(&key.name, &value, upstreams),
            };
            let index = LimitId(limits.list.len());
            limits.list.push(limit);
            limits.by_name.entry(key.name.clone()).or_insert(index);
            limits.defined.push((index, value));
        }
        limits
    }

    /// A chain of names, inline limits and short rates, in the order of evaluation.
    pub fn read_chain(
        &mut self,
        value: &FieldValue<'_>,
        owner: &str,
        upstreams: &mut UpstreamReader<'_>,
    ) -> Vec<LimitId> {
        let mut chain = Vec::new();
        if value.is_word("none") {
            return chain;
        }
        for (index, item) in value.one_or_more().into_iter().enumerate() {
            let inline_name = format!("{owner}#{}", index + 1);
            let index = match item.node.content {
                NodeContent::Map(_) => {
                    let limit = self.read_inline(inline_name, &item, upstreams);
                    Some(self.add_limit(limit))
                }
                _ if item.as_text().is_some_and(|text| text.contains('/')) => {
                    let limit = self.read_short(&inline_name, &item);
                    Some(self.add_limit(limit))
                }
                _ => self.resolve_name(&item),
            };
            let Some(index) = index else { continue };
            if chain.contains(&index) {
                item.report_at_value(ValueError::new(
                    codes::NAME,
                    format!("the limit `{}` is in this chain twice", item.written_text()),
                ));
            }
            chain.push(index);
        }
        chain
    }

    /// `10/s` is short for `{ rate: 10/s }`.
    fn read_short(&self, name: &str, value: &FieldValue<'_>) -> LimitConfig {
        let algorithm = algorithm::read_short_rate(value).unwrap_or(PLACEHOLDER);
        let limit = LimitConfig { shared: self.state.shared_by_default(), ..default_limit(name, algorithm) };
        self.state.check_shared_limit(&limit, value, None);
        limit
    }

    fn read_named(
        &self,
        name: &str,
        value: &FieldValue<'_>,
        upstreams: &mut UpstreamReader<'_>,
    ) -> LimitConfig {
        if !matches!(value.node.content, NodeContent::Map(_)) {
            value.report_shape("a mapping such as { rate: 10/s }");
            return default_limit(name, PLACEHOLDER);
        }
        self.read_limit(name, value.field_reader(), upstreams)
    }

    /// A limit written in a chain, under the name that it gives itself or under `default_name`.
    fn read_inline(
        &mut self,
        default_name: String,
        value: &FieldValue<'_>,
        upstreams: &mut UpstreamReader<'_>,
    ) -> LimitConfig {
        let mut fields = value.field_reader();
        let name = self.read_inline_name(&mut fields).unwrap_or(default_name);
        self.read_limit(&name, fields, upstreams)
    }

    /// `name` of an inline limit; `None` = auto.
    fn read_inline_name(&mut self, fields: &mut FieldReader<'_>) -> Option<String> {
        let value = fields.get_field("name").filter(|value| !value.is_word("auto"))?;
        let name = value.parse_with(|text| names::check_name(text).map(|()| text.to_owned()))?;
        if self.by_name.contains_key(&name) || !self.inline_names.insert(name.clone()) {
            let message = format!("two limits are named `{}`", value.written_text());
            let help = "a limit under limits: can be used in several chains by its name";
            value.report_at_value(ValueError::new(codes::NAME, message).with_help(help));
        }
        Some(name)
    }

    fn read_limit(
        &self,
        name: &str,
        mut fields: FieldReader<'_>,
        upstreams: &mut UpstreamReader<'_>,
    ) -> LimitConfig {
        let whole = fields.whole.clone();
        let key = read_key(&mut fields);
        let (missing_key, missing_key_status) = missing_key::read_missing_key(&mut fields);
        let cost_value = fields.get_field("cost");
        let cost =
            cost_value.as_ref().and_then(|value| value.parse_with(parse_cost)).unwrap_or(Cost::Units(1));
        let cost = read_invalid_cost(&mut fields, cost);
        let numbers = algorithm::read_algorithm(&mut fields, &cost, cost_value.as_ref());
        let tiers = tiers::read_tiers(&mut fields, &cost, numbers.is_some());
        let algorithm = numbers.unwrap_or(PLACEHOLDER);
        let tiers_numbers = tiers.iter().filter_map(|(_, own)| own.as_ref());
        let warm_up = algorithm::read_warm_up(&mut fields, std::iter::once(&algorithm).chain(tiers_numbers));
        let limit = LimitConfig {
            name: name.to_owned(),
            key,
            missing_key,
            missing_key_status,
            algorithm,
            tiers,
            fair_by: read_key_parts(&mut fields, "fair_by").unwrap_or_default(),
            warm_up,
            cost,
            methods: read_methods(&mut fields),
            bypass: fields
                .get_field("bypass")
                .map(|value| self.sets.read_networks(&value))
                .unwrap_or_default(),
            dry_run: fields.read_scalar("dry_run", false, scalars::parse_bool),
            shared: self.state.read_shared(&mut fields),
            on_reject: fields
                .get_field("on_reject")
                .map(|value| reject::read_patch(&value, upstreams))
                .unwrap_or_default(),
        };
        self.state.check_shared_limit(&limit, &whole, fields.get_field("warm_up").as_ref());
        fields.report_unknown();
        limit
    }

    fn add_limit(&mut self, limit: LimitConfig) -> LimitId {
        self.list.push(limit);
        LimitId(self.list.len() - 1)
    }

    fn resolve_name(&mut self, item: &FieldValue<'_>) -> Option<LimitId> {
        let name = item.parse_with(|text| Ok(text.to_owned()))?;
        if let Some(index) = self.by_name.get(&name) {
            self.used.insert(*index);
            return Some(*index);
        }
        let shown = item.written_text();
        let near = did_you_mean(&name, self.by_name.keys().map(String::as_str));
        let rate = name
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| format!("write a rate with its period: {shown}/s"));
        let help =
            rate.or(near).or_else(|| Some(format!("define it under limits: {shown}: {{ rate: 10/s }}")));
        item.report_at_value(
            ValueError::new(codes::UNDEFINED, format!("the limit `{shown}` is not defined"))
                .with_optional_help(help),
        );
        None
    }

    /// All limits; unused ones get a warning.
    pub fn into_limits(self) -> Vec<LimitConfig> {
        for (index, value) in &self.defined {
            if !self.used.contains(index) {
                let message = format!("the limit `{}` is defined and never used", self.list[*index].name);
                value.sink.add_warning(value.named_at, &value.path, ValueError::new(codes::UNUSED, message));
            }
        }
        self.list
    }
}

/// A limit of the given algorithm, with every default.
fn default_limit(name: &str, algorithm: Algorithm) -> LimitConfig {
    LimitConfig {
        name: name.to_owned(),
        key: vec![KeyPart::Ip],
        missing_key: MissingKey::Ip,
        missing_key_status: missing_key::DEFAULT_STATUS,
        algorithm,
        tiers: Vec::new(),
        fair_by: Vec::new(),
        warm_up: None,
        cost: Cost::Units(1),
        methods: Vec::new(),
        bypass: NetworkList::default(),
        dry_run: false,
        shared: None,
        on_reject: Default::default(),
    }
}

/// Replaces wrong numbers, so that reading can go on.
const PLACEHOLDER: Algorithm = Algorithm::Concurrency { min: None, max: 1 };

pub(crate) fn read_key(fields: &mut FieldReader<'_>) -> Vec<KeyPart> {
    read_key_parts(fields, "key").unwrap_or_else(|| vec![KeyPart::Ip])
}

/// One or more parts; `None` if the field is absent, or `none`, which only `fair_by` can be.
fn read_key_parts(fields: &mut FieldReader<'_>, name: &'static str) -> Option<Vec<KeyPart>> {
    let value = fields.get_field(name).filter(|value| name == "key" || !value.is_word("none"))?;
    let items = value.one_or_more();
    if value.is_empty() {
        value.report_empty(match name {
            "key" => "write key: ip, or key: global for one counter",
            _ => "write fair_by: account, or fair_by: none for arrival order",
        });
    }
    let mut parts = Vec::new();
    for item in items {
        let Some(part) = item.parse_with(parse_key_part) else { continue };
        if parts.contains(&part) {
            item.report_at_value(ValueError::new(
                codes::NAME,
                format!("the {name} has the part `{}` twice", item.written_text()),
            ));
        }
        if let KeyPart::Source(source) = &part {
            item.mention_source(source);
        }
        parts.push(part);
    }
    Some(parts)
}

fn parse_key_part(text: &str) -> Parsed<KeyPart> {
    if let Some(source) = names::parse_source(text) {
        return source.map(KeyPart::Source);
    }
    let parts = [
        ("ip", KeyPart::Ip),
        ("account", KeyPart::Account),
        ("tier", KeyPart::Tier),
        ("uri", KeyPart::Uri),
        ("location", KeyPart::Location),
        ("host", KeyPart::Host),
        ("method", KeyPart::Method),
        ("global", KeyPart::Global),
    ];
    parse_word(&parts)(text).map_err(|error| {
        let near = error.suggestion.clone().filter(|help| help.starts_with("did"));
        let all =
            "write ip, account, tier, uri, location, host, method, global, header:NAME, cookie:NAME, query:NAME or \
             jwt:CLAIM";
        error.with_optional_help(near.or_else(|| Some(all.to_owned())))
    })
}

fn parse_cost(text: &str) -> Parsed<Cost> {
    match text.strip_prefix("header:") {
        Some(name) => {
            names::parse_header_name(name).map(|name| Cost::Header { name, invalid: InvalidCost::One })
        }
        None => scalars::parse_number(text, 1, u64::MAX).map(Cost::Units),
    }
}

/// Reads `invalid_cost`, the treatment of a cost header that is not a number.
fn read_invalid_cost(fields: &mut FieldReader<'_>, cost: Cost) -> Cost {
    let Some(value) = fields.get_field("invalid_cost") else { return cost };
    let words = [("one", InvalidCost::One), ("reject", InvalidCost::Reject)];
    let read = value.parse_with(parse_word(&words));
    match (cost, read) {
        (Cost::Header { name, .. }, Some(invalid)) => Cost::Header { name, invalid },
        (cost @ Cost::Units(_), Some(InvalidCost::Reject)) => {
            let message = "`invalid_cost` is only for a cost from a header";
            let help = "write cost: header:NAME, or leave it out";
            value.report_at_name(ValueError::new(codes::FOREIGN_FIELD, message).with_help(help));
            cost
        }
        (cost, _) => cost,
    }
}

/// `any`, or one or more methods.
pub(crate) fn read_methods(fields: &mut FieldReader<'_>) -> Vec<http::Method> {
    let Some(value) = fields.get_field("methods").filter(|value| !value.is_word("any")) else {
        return Vec::new();
    };
    if value.is_empty() {
        value.report_empty("write any, or methods such as [GET, HEAD]");
    }
    let mut methods = value.parse_list(names::parse_method);
    let mut seen = Vec::new();
    methods.retain(|method| {
        let new = !seen.contains(method);
        seen.push(method.clone());
        new
    });
    methods
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::limit::ValueSource;

    #[test]
    fn key_parts_and_costs() {
        assert_eq!(parse_key_part("account").unwrap(), KeyPart::Account);
        assert!(matches!(parse_key_part("header:X-A").unwrap(), KeyPart::Source(_)));
        assert_eq!(parse_key_part("tier").unwrap(), KeyPart::Tier);
        assert!(matches!(parse_key_part("jwt:sub").unwrap(), KeyPart::Source(ValueSource::Jwt(_))));
        assert_eq!(parse_key_part("acount").unwrap_err().suggestion.unwrap(), "did you mean `account`?");
        assert!(parse_key_part("client").unwrap_err().suggestion.unwrap().contains("header:NAME"));
        assert_eq!(parse_cost("3").unwrap(), Cost::Units(3));
        assert!(parse_cost("0").is_err() && parse_cost("header:a b").is_err());
    }
}
