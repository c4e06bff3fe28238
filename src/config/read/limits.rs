//! `limits`: named limits, and the chains that use them or write limits of their own.

use std::collections::HashMap;

use super::access::IpSets;
use super::algorithm;
use super::reject;
use super::state::StateSection;
use super::tiers;
use super::upstreams::Upstreams;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Complaint, did_you_mean};
use crate::config::model::access::Networks;
use crate::config::model::limit::{Algorithm, Cost, InvalidCost, KeyPart, Limit, MissingKey};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::value::scalars::Read;
use crate::config::yaml::fields::{Fields, Value, word};
use crate::config::yaml::tree::Content;

/// The limits read so far; chains add those that are written inline.
pub(crate) struct Limits<'a> {
    list: Vec<Limit>,
    by_name: HashMap<String, usize>,
    defined: Vec<(usize, Value<'a>)>,
    used: Vec<usize>,
    pub sets: &'a IpSets<'a>,
    state: &'a StateSection,
}

impl<'a> Limits<'a> {
    pub fn read(
        root: &mut Fields<'a>,
        sets: &'a IpSets<'a>,
        state: &'a StateSection,
        upstreams: &mut Upstreams<'_>,
    ) -> Limits<'a> {
        let (list, defined, used) = (Vec::new(), Vec::new(), Vec::new());
        let mut limits = Limits { list, by_name: HashMap::new(), defined, used, sets, state };
        for (key, value) in root.get("limits").map(|value| value.entries()).unwrap_or_default() {
            if let Err(complaint) = names::given_name(&key.name) {
                value.complain_at_name(complaint);
            }
            let limit = match value.node.content {
                Content::Text(_) => limits.short(&key.name, &value),
                _ => limits.read_one(&key.name, &value, upstreams),
            };
            let index = limits.list.len();
            limits.list.push(limit);
            limits.by_name.entry(key.name.clone()).or_insert(index);
            limits.defined.push((index, value));
        }
        limits
    }

    /// A chain: names, inline limits and short rates, in the order they are judged.
    pub fn read_chain(
        &mut self,
        value: &Value<'_>,
        owner: &str,
        upstreams: &mut Upstreams<'_>,
    ) -> Vec<usize> {
        let mut chain = Vec::new();
        if value.is_word("none") {
            return chain;
        }
        for (place, item) in value.one_or_more().into_iter().enumerate() {
            let inline_name = format!("{owner}#{}", place + 1);
            let index = match item.node.content {
                Content::Map(_) => {
                    let limit = self.read_one(&inline_name, &item, upstreams);
                    Some(self.add(limit))
                }
                _ if item.as_text().is_some_and(|text| text.contains('/')) => {
                    let limit = self.short(&inline_name, &item);
                    Some(self.add(limit))
                }
                _ => self.resolve(&item),
            };
            let Some(index) = index else { continue };
            if chain.contains(&index) {
                item.complain(Complaint::new(
                    codes::NAME,
                    format!("the limit `{}` is in this chain twice", item.shown()),
                ));
            }
            chain.push(index);
        }
        chain
    }

    /// `10/s` is short for `{ rate: 10/s }`.
    fn short(&self, name: &str, value: &Value<'_>) -> Limit {
        let algorithm = algorithm::of_rate(value).unwrap_or(UNREADABLE);
        let limit = Limit { shared: self.state.shared_by_default(), ..bare(name, algorithm) };
        self.state.check(&limit, value, None);
        limit
    }

    fn read_one(&self, name: &str, value: &Value<'_>, upstreams: &mut Upstreams<'_>) -> Limit {
        if !matches!(value.node.content, Content::Map(_)) {
            value.complain_of_shape("a mapping such as { rate: 10/s }");
            return bare(name, UNREADABLE);
        }
        let mut fields = value.fields();
        let key = read_key(&mut fields);
        let missing_key = fields.read("missing_key", MissingKey::Ip, word(&MISSING));
        let cost_value = fields.get("cost");
        let cost = cost_value.as_ref().and_then(|value| value.read(cost)).unwrap_or(Cost::Units(1));
        let cost = read_invalid_cost(&mut fields, cost);
        let numbers = algorithm::read(&mut fields, &cost, cost_value.as_ref());
        let tiers = tiers::read(&mut fields, &cost, numbers.is_some());
        let algorithm = numbers.unwrap_or(UNREADABLE);
        let tiers_numbers = tiers.iter().filter_map(|(_, own)| own.as_ref());
        let warm_up = algorithm::read_warm_up(&mut fields, std::iter::once(&algorithm).chain(tiers_numbers));
        let limit = Limit {
            name: name.to_owned(),
            key,
            missing_key,
            algorithm,
            tiers,
            fair_by: read_key_parts(&mut fields, "fair_by").unwrap_or_default(),
            warm_up,
            cost,
            methods: read_methods(&mut fields),
            bypass: fields.get("bypass").map(|value| self.sets.networks(&value)).unwrap_or_default(),
            dry_run: fields.read("dry_run", false, scalars::boolean),
            shared: self.state.read_shared(&mut fields),
            on_reject: fields
                .get("on_reject")
                .map(|value| reject::read_patch(&value, upstreams))
                .unwrap_or_default(),
        };
        self.state.check(&limit, value, fields.get("warm_up").as_ref());
        fields.close();
        limit
    }

    fn add(&mut self, limit: Limit) -> usize {
        self.list.push(limit);
        self.list.len() - 1
    }

    fn resolve(&mut self, item: &Value<'_>) -> Option<usize> {
        let name = item.read(|text| Ok(text.to_owned()))?;
        if let Some(index) = self.by_name.get(&name) {
            self.used.push(*index);
            return Some(*index);
        }
        let shown = item.shown();
        let near = did_you_mean(&name, self.by_name.keys().map(String::as_str));
        let rate = name
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| format!("write a rate with its period: {shown}/s"));
        let help =
            rate.or(near).or_else(|| Some(format!("define it under limits: {shown}: {{ rate: 10/s }}")));
        item.complain(
            Complaint::new(codes::UNDEFINED, format!("the limit `{shown}` is not defined")).maybe_help(help),
        );
        None
    }

    /// All limits; those that no chain names are warned of.
    pub fn finish(self) -> Vec<Limit> {
        for (index, value) in &self.defined {
            if !self.used.contains(index) {
                let message = format!("the limit `{}` is defined and never used", self.list[*index].name);
                value.found.warn(value.named_at, &value.path, Complaint::new(codes::UNUSED, message));
            }
        }
        self.list
    }
}

/// A limit with every default, of the algorithm given.
fn bare(name: &str, algorithm: Algorithm) -> Limit {
    Limit {
        name: name.to_owned(),
        key: vec![KeyPart::Ip],
        missing_key: MissingKey::Ip,
        algorithm,
        tiers: Vec::new(),
        fair_by: Vec::new(),
        warm_up: None,
        cost: Cost::Units(1),
        methods: Vec::new(),
        bypass: Networks::default(),
        dry_run: false,
        shared: None,
        on_reject: Default::default(),
    }
}

const MISSING: [(&str, MissingKey); 4] = [
    ("ip", MissingKey::Ip),
    ("shared", MissingKey::Shared),
    ("reject", MissingKey::Reject),
    ("skip", MissingKey::Skip),
];

/// Stands for numbers that were complained about, so that reading can go on.
const UNREADABLE: Algorithm = Algorithm::Concurrency { min: None, max: 1 };

pub(crate) fn read_key(fields: &mut Fields<'_>) -> Vec<KeyPart> {
    read_key_parts(fields, "key").unwrap_or_else(|| vec![KeyPart::Ip])
}

/// One or more parts; `None` when the field is not there, or switched off as only `fair_by` can be.
fn read_key_parts(fields: &mut Fields<'_>, name: &'static str) -> Option<Vec<KeyPart>> {
    let value = fields.get(name).filter(|value| name == "key" || !value.is_word("none"))?;
    let items = value.one_or_more();
    if value.is_empty() {
        value.complain_of_nothing(match name {
            "key" => "write key: ip, or key: global for one counter",
            _ => "write fair_by: account, or fair_by: none for arrival order",
        });
    }
    let mut parts = Vec::new();
    for item in items {
        let Some(part) = item.read(key_part) else { continue };
        if parts.contains(&part) {
            item.complain(Complaint::new(
                codes::NAME,
                format!("the {name} has the part `{}` twice", item.shown()),
            ));
        }
        if let KeyPart::Source(source) = &part {
            item.mention_source(source);
        }
        parts.push(part);
    }
    Some(parts)
}

fn key_part(text: &str) -> Read<KeyPart> {
    if let Some(source) = names::source(text) {
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
    word(&parts)(text).map_err(|complaint| {
        let near = complaint.suggestion.clone().filter(|help| help.starts_with("did"));
        let all =
            "write ip, account, tier, uri, location, host, method, global, header:NAME, cookie:NAME, query:NAME or \
             jwt:CLAIM";
        complaint.maybe_help(near.or_else(|| Some(all.to_owned())))
    })
}

fn cost(text: &str) -> Read<Cost> {
    match text.strip_prefix("header:") {
        Some(name) => names::header_name(name).map(|name| Cost::Header { name, invalid: InvalidCost::One }),
        None => scalars::number(text, 1, u64::MAX).map(Cost::Units),
    }
}

/// What a header says that is not a number; other costs are numbers.
fn read_invalid_cost(fields: &mut Fields<'_>, cost: Cost) -> Cost {
    let Some(value) = fields.get("invalid_cost") else { return cost };
    let words = [("one", InvalidCost::One), ("reject", InvalidCost::Reject)];
    let read = value.read(word(&words));
    match (cost, read) {
        (Cost::Header { name, .. }, Some(invalid)) => Cost::Header { name, invalid },
        (cost @ Cost::Units(_), Some(InvalidCost::Reject)) => {
            let message = "`invalid_cost` is only for a cost that a header says";
            let help = "write cost: header:NAME, or leave it out";
            value.complain_at_name(Complaint::new(codes::NOT_OF_ALGORITHM, message).help(help));
            cost
        }
        (cost, _) => cost,
    }
}

/// `any`, or one or more methods.
pub(crate) fn read_methods(fields: &mut Fields<'_>) -> Vec<http::Method> {
    let Some(value) = fields.get("methods").filter(|value| !value.is_word("any")) else {
        return Vec::new();
    };
    if value.is_empty() {
        value.complain_of_nothing("write any, or methods such as [GET, HEAD]");
    }
    let mut methods = value.read_list(names::method);
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
    use crate::config::model::limit::Source;

    #[test]
    fn key_parts_and_costs() {
        assert_eq!(key_part("account").unwrap(), KeyPart::Account);
        assert!(matches!(key_part("header:X-A").unwrap(), KeyPart::Source(_)));
        assert_eq!(key_part("tier").unwrap(), KeyPart::Tier);
        assert!(matches!(key_part("jwt:sub").unwrap(), KeyPart::Source(Source::Jwt(_))));
        assert_eq!(key_part("acount").unwrap_err().suggestion.unwrap(), "did you mean `account`?");
        assert!(key_part("client").unwrap_err().suggestion.unwrap().contains("header:NAME"));
        assert_eq!(cost("3").unwrap(), Cost::Units(3));
        assert!(cost("0").is_err() && cost("header:a b").is_err());
    }
}
