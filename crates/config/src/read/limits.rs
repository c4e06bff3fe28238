//! Reads `limits`: named limits, and chains of named and inline limits.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::access::IpSetReader;
use super::algorithm::{self, NumberReader};
use super::prices::PriceReader;
use super::rates::RateForm;
use super::state::{StateReader, check_shared_limit};
use super::upstreams::UpstreamReader;
use super::{calendar, charge, keys, reject, shares, steps, tiers, views};
use crate::schema::field::Field;
use crate::schema::kinds::{OneOrMoreOrWord, Text};
use crate::schema::tables::limits::{LIMIT_KEY_PART, chain_view, limit};
use crate::schema::tables::root::root as root_fields;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::NodeContent;
use sluicegate_model::value::names;
use sluicegate_model::value::rate_hint::suggest_rate;
use sluicegate_model::{
    Algorithm, Cost, InvalidCost, KeyPart, LimitConfig, LimitId, Position, ValueError, ViewId, codes,
    did_you_mean,
};

/// A chain: its limits, and those of them that it uses with other numbers.
#[derive(Default)]
pub(crate) struct ReadChain {
    pub limits: Vec<LimitId>,
    pub views: Vec<(LimitId, ViewId)>,
}

/// The limits read so far; chains add inline limits and views.
pub(crate) struct LimitReader<'a> {
    list: Vec<LimitConfig>,
    /// The limits with a shadow, and its numbers.
    shadows: Vec<(LimitId, Algorithm)>,
    by_name: BTreeMap<String, LimitId>,
    /// Names that inline limits were given.
    inline_names: HashMap<String, Position>,
    defined: Vec<(LimitId, FieldValue<'a>)>,
    used: HashSet<LimitId>,
    /// The limits that are leased if they can be.
    leased_by_default: Vec<LimitId>,
    pub sets: &'a IpSetReader<'a>,
    state: &'a StateReader,
    upstreams: &'a UpstreamReader<'a>,
    prices: PriceReader,
}

impl<'a> LimitReader<'a> {
    pub(crate) fn read_limits(
        root: &FieldReader<'a>,
        sets: &'a IpSetReader<'a>,
        state: &'a StateReader,
        upstreams: &'a UpstreamReader<'a>,
    ) -> LimitReader<'a> {
        let mut limits = LimitReader {
            list: Vec::new(),
            shadows: Vec::new(),
            by_name: BTreeMap::new(),
            inline_names: HashMap::new(),
            defined: Vec::new(),
            used: HashSet::new(),
            leased_by_default: Vec::new(),
            sets,
            state,
            upstreams,
            prices: PriceReader::default(),
        };
        for (key, value) in root.find(&root_fields::LIMITS).map(|value| value.entries()).unwrap_or_default() {
            value.accept_name(names::check_name(&key.name));
            let read = match value.node.content {
                NodeContent::Text(_) => limits.read_short(&key.name, &value),
                _ => limits.read_named(&key.name, &value),
            };
            let index = LimitId(limits.list.len());
            limits.list.push(read);
            limits.by_name.entry(key.name.clone()).or_insert(index);
            limits.defined.push((index, value));
        }
        limits
    }

    /// A chain of names, views, inline limits and short rates, in the order of evaluation.
    pub(crate) fn read_chain(&mut self, value: &FieldValue<'_>, owner: &str) -> ReadChain {
        let mut chain = ReadChain::default();
        if value.is_word("none") {
            return chain;
        }
        for (index, item) in value.one_or_more().into_iter().enumerate() {
            let inline_name = format!("{owner}#{}", index + 1);
            let index = match item.node.content {
                NodeContent::Map(_) if views::is_view(&item) => self.read_view(&item, &mut chain),
                NodeContent::Map(_) => {
                    let limit = self.read_inline(inline_name, &item);
                    Some(self.add_limit(limit))
                }
                _ if item.as_text().is_some_and(|text| text.contains('/')) => {
                    let limit = self.read_short(&inline_name, &item);
                    Some(self.add_limit(limit))
                }
                _ => self.resolve_name(&item),
            };
            let Some(index) = index else { continue };
            if chain.limits.contains(&index) {
                let message = format!("the limit `{}` is in this chain twice", self.list[index].name);
                item.report_at_value(ValueError::new(codes::NAME, message));
            }
            chain.limits.push(index);
        }
        chain
    }

    /// The limits that callers are told of, in the order of the file. That is no use of a limit, which judges nothing
    /// by it.
    pub(crate) fn read_shown(&mut self, value: &FieldValue<'_>) -> Vec<LimitId> {
        value.check_filled("write all, or names of limits such as [plan]");
        let (used, mut shown) = (self.used.clone(), Vec::new());
        for item in value.one_or_more() {
            let Some(id) = self.resolve_name(&item) else { continue };
            let name = &self.list[id].name;
            if !KeyPart::count_callers(&self.list[id].key) {
                let message = format!("the counters of limit `{name}` are not those of one caller");
                let help = "name limits with key: ip, account or both; tier may stand beside them";
                item.refuse(codes::FOREIGN_FIELD, message, help);
            } else if shown.contains(&id) {
                let message = format!("the limit `{name}` is listed twice");
                item.report_at_value(ValueError::new(codes::NAME, message));
            }
            shown.push(id);
        }
        shown.sort_unstable();
        self.used = used;
        shown
    }

    /// A limit of the top with other numbers, which are added to the views of `chain`.
    fn read_view(&mut self, item: &FieldValue<'_>, chain: &mut ReadChain) -> Option<LimitId> {
        let fields = item.open_section(&chain_view::SECTION);
        if views::report_limit_fields(&fields) {
            fields.report_unknown();
        }
        let name = fields.find_required(&chain_view::USE)?;
        let id = self.resolve_name(&name)?;
        let config = &self.list[id];
        if !self.has_numbers(id) || !views::check_viewed_limit(&name, config) {
            return Some(id);
        }
        if let Some(numbers) = views::read_view_numbers(&fields, config) {
            check_shared_limit(&config.with_numbers_alone(&numbers), item, None);
            let added = views::add_view(item, &mut self.list[id.0], numbers);
            chain.views.extend(added.map(|view| (id, view)));
        }
        Some(id)
    }

    /// True if the numbers of a named limit were read: placeholders stand for wrong ones.
    fn has_numbers(&self, id: LimitId) -> bool {
        let is_slots = |value: &FieldValue<'_>| {
            value.is_map() && {
                let fields = value.entries();
                fields.iter().any(|(key, _)| key.name == limit::MAX_CONCURRENT.name)
            }
        };
        let defined = self.defined.iter().find(|(defined, _)| *defined == id);
        self.list[id].algorithm != PLACEHOLDER || defined.is_some_and(|(_, value)| is_slots(value))
    }

    /// `10/s` is short for `{ rate: 10/s }`.
    fn read_short(&mut self, name: &str, value: &FieldValue<'_>) -> LimitConfig {
        let algorithm = algorithm::read_short_rate(value).unwrap_or(PLACEHOLDER);
        let config = self.read_common(name, &value.absent_section(&limit::SECTION));
        let fields = value.absent_section(&limit::SECTION);
        let calendar = calendar::read_calendar(&fields, &algorithm, &config.key);
        let config = LimitConfig { algorithm, calendar, ..config };
        check_shared_limit(&config, value, None);
        config
    }

    fn read_named(&mut self, name: &str, value: &FieldValue<'_>) -> LimitConfig {
        let Some(fields) = value.open_map(&limit::SECTION, "a mapping such as { rate: 10/s }") else {
            return self.read_common(name, &value.absent_section(&limit::SECTION));
        };
        fields.read_all(|fields| {
            if let Some(value) = fields.find(&limit::NAME) {
                let message = "`name` is for a limit that is written in a chain";
                let help = "remove it: the key is the name of this limit";
                value.refuse_name(codes::FOREIGN_FIELD, message, help);
            }
            self.read_limit(name, fields)
        })
    }

    /// A limit written in a chain, under the name that it gives itself or under `default_name`.
    fn read_inline(&mut self, default_name: String, value: &FieldValue<'_>) -> LimitConfig {
        value.open_section(&limit::SECTION).read_all(|fields| {
            let help = "a limit under limits: can be used in several chains by its name";
            let take = |name: &str, place| {
                let defined = self.by_name.get(name).and_then(|id| self.defined.get(id.0));
                let inline = self.inline_names.insert(name.to_owned(), place);
                defined.map(|(_, value)| value.named_at).or(inline)
            };
            let name = fields.read_unique_name(&limit::NAME, "limits", Some(help), take);
            let name = name.unwrap_or(default_name);
            self.read_limit(&name, fields)
        })
    }

    /// Reads the limit that comes next in the list.
    fn read_limit(&mut self, name: &str, fields: &FieldReader<'_>) -> LimitConfig {
        let config = self.read_common(name, fields);
        let own = NumberReader { fields, cost: &config.cost, form: RateForm::find_form(fields) };
        let numbers = own.read_algorithm();
        let tiers = tiers::read_tiers(own, numbers.is_some());
        let shadow = tiers::read_shadow(own, numbers.is_some());
        let others = || tiers.iter().filter_map(|(_, own)| own.as_ref()).chain(&shadow);
        let charge = charge::read_charge(own, &self.prices, numbers.iter().chain(others()));
        let algorithm = numbers.clone().unwrap_or(PLACEHOLDER);
        let warm_up = algorithm::read_warm_up(fields, std::iter::once(&algorithm).chain(others()));
        let enforce = tiers::read_enforce(fields, &config.key);
        let read_calendar = |numbers| calendar::read_calendar(fields, numbers, &config.key);
        let calendar = numbers.as_ref().and_then(read_calendar);
        let steps = numbers.as_ref().map(|numbers| steps::read_steps(fields, numbers)).unwrap_or_default();
        steps::check_cut(fields, &steps, charge.as_ref());
        let config = LimitConfig { algorithm, tiers, warm_up, charge, enforce, calendar, steps, ..config };
        if numbers.is_some() {
            let variants: Vec<&Algorithm> = config.file_variants().chain(&shadow).collect();
            shares::check_shares(fields, &config, &variants);
        }
        reject::refuse_turns(fields, &config);
        let warm_up = fields.find(&limit::WARM_UP);
        check_shared_limit(&config, &fields.whole, warm_up.as_ref());
        self.state.check_home(&config, &fields.whole);
        if let (Some(numbers), Some(value)) = (shadow, fields.find(&limit::SHADOW)) {
            let id = LimitId(self.list.len());
            check_shared_limit(&config.to_shadow(id, numbers.clone()), &value, warm_up.as_ref());
            self.shadows.push((id, numbers));
        }
        config
    }

    /// The fields that every algorithm has, of the limit that comes next in the list.
    fn read_common(&mut self, name: &str, fields: &FieldReader<'_>) -> LimitConfig {
        let (missing_key, missing_key_status) = keys::read_missing_key(fields);
        let fair_by = fields.find(&limit::FAIR_BY).filter(|value| !value.is_word("none"));
        let bypass = fields.find(&limit::BYPASS);
        if self.state.is_leased_by_default(fields) {
            self.leased_by_default.push(LimitId(self.list.len()));
        }
        LimitConfig {
            name: name.to_owned(),
            owner: fields.whole.owner(),
            key: keys::read_key(fields, &limit::KEY),
            missing_key,
            missing_key_status,
            algorithm: PLACEHOLDER,
            tiers: Vec::new(),
            views: Vec::new(),
            grants: Vec::new(),
            fair_by: fair_by
                .map(|value| keys::read_key_parts(&value, &LIMIT_KEY_PART, "fair_by"))
                .unwrap_or_default(),
            warm_up: None,
            calendar: None,
            steps: Vec::new(),
            shares: shares::read_shares(fields),
            anchors: None,
            cost: read_invalid_cost(fields),
            charge: None,
            methods: read_methods(fields, &limit::METHODS),
            bypass: bypass.map(|value| self.sets.read_networks(&value)).unwrap_or_default(),
            dry_run: fields.read(&limit::DRY_RUN),
            pause: None,
            set: None,
            file: None,
            enforce: None,
            shadow: None,
            shadow_of: None,
            shared: self.state.read_shared(fields),
            leased: fields.find(&limit::STATE).is_some_and(|value| value.is_word("leased")),
            on_reject: reject::read_patch(fields.find(&limit::ON_REJECT).as_ref(), self.upstreams),
        }
    }

    fn add_limit(&mut self, limit: LimitConfig) -> LimitId {
        self.list.push(limit);
        LimitId(self.list.len() - 1)
    }

    /// Reports the limits of a chain that count money, or requests in flight, for a place where nothing names models or
    /// gives slots back.
    pub(crate) fn refuse_for_calls(&self, chain: &ReadChain, value: &FieldValue<'_>) {
        for id in &chain.limits {
            let config = &self.list[*id];
            if config.pricing().is_some() {
                let message = format!("the limit `{}` counts the price of a model", config.name);
                value.refuse(
                    codes::FOREIGN_FIELD,
                    message,
                    "no call of Envoy names one: write another limit",
                );
            }
            let is_inline = self.defined.iter().all(|(defined, _)| defined != id);
            if matches!(config.algorithm, Algorithm::Concurrency { .. })
                && (is_inline || self.has_numbers(*id))
            {
                let message = format!("the limit `{}` counts requests in flight", config.name);
                let help = "no call of Envoy gives a slot back: write a limit with a rate";
                value.refuse(codes::FOREIGN_FIELD, message, help);
            }
        }
    }

    /// Reports the limits of a chain that cannot judge before the caller is known, or that charge later.
    pub(crate) fn refuse_unfit(&self, chain: &ReadChain, value: &FieldValue<'_>) {
        let by_caller = |part: &KeyPart| matches!(part, KeyPart::Account | KeyPart::Tier);
        for id in &chain.limits {
            let config = &self.list[*id];
            let is_by_caller = !config.tiers.is_empty() || config.parts().any(by_caller);
            let is_slots = matches!(config.algorithm, Algorithm::Concurrency { .. });
            if is_by_caller || is_slots || config.reads_body() || config.charge.is_some() {
                let message =
                    format!("the limit `{}` cannot judge before the service has answered", config.name);
                let help = "write one with a rate, and without account, tier, json:, json-rpc and charge";
                value.refuse(codes::LIMIT_NUMBERS, message, help);
            }
        }
    }

    fn resolve_name(&mut self, item: &FieldValue<'_>) -> Option<LimitId> {
        let name = item.parse_with(|text| Ok(text.to_owned()))?;
        if let Some(index) = self.by_name.get(&name) {
            self.used.insert(*index);
            return Some(*index);
        }
        let shown = item.written_text();
        let near = did_you_mean(&name, self.by_name.keys().map(String::as_str));
        let rate = match name.bytes().all(|b| b.is_ascii_digit()) {
            true => Some(format!("write a rate with its period: {shown}/s")),
            false => suggest_rate(&name).map(|rate| format!("write {rate}")),
        };
        let (zone, words) =
            (find_zone(&name), name.split([',', ' ', ';', '|']).filter(|word| !word.is_empty()));
        let list = words.clone().count() > 1;
        let list = list.then(|| format!("write a list: limits: [{}]", words.collect::<Vec<_>>().join(", ")));
        let help = rate.or(near).or(zone).or(list);
        let help = help.or_else(|| Some(format!("define it under limits: {shown}: {{ rate: 10/s }}")));
        item.report_at_value(
            ValueError::new(codes::UNDEFINED, format!("the limit `{shown}` is not defined"))
                .with_optional_help(help),
        );
        None
    }

    /// All limits, followed by the shadows; unused ones get a warning, unless calls may name them.
    pub(crate) fn into_limits(mut self, has_service: bool) -> Vec<LimitConfig> {
        for (index, value) in &self.defined {
            if !has_service && !self.used.contains(index) {
                let name = &self.list[*index].name;
                let error =
                    ValueError::new(codes::UNUSED, format!("the limit `{name}` is defined and never used"));
                let help = format!("write limits: {name} in a location or under server, or remove it");
                value.warn_at_name(error.with_help(help));
            }
        }
        for (live, numbers) in self.shadows {
            let shadow = self.list[live].to_shadow(live, numbers);
            self.list[live.0].shadow = Some(LimitId(self.list.len()));
            self.list.push(shadow);
        }
        for id in &self.leased_by_default {
            let shadow = self.list.get(id.0).and_then(|limit| limit.shadow);
            for id in std::iter::once(*id).chain(shadow) {
                if let Some(limit) = self.list.get_mut(id.0) {
                    limit.leased = self.state.can_lease(limit);
                }
            }
        }
        self.list
    }
}

/// `zone=one burst=5` of nginx: the numbers belong to the definition.
fn find_zone(text: &str) -> Option<String> {
    let zone = text.split_once("zone=")?.1.split([' ', ':']).next().filter(|zone| !zone.is_empty())?;
    Some(format!("write limits: {zone}, and its rate and burst under limits: {{ {zone}: … }} at the top"))
}

/// Replaces wrong numbers, so that reading can go on.
const PLACEHOLDER: Algorithm = Algorithm::Concurrency { min: None, max: 1, queue: 0, max_wait: None };

/// The cost, with the treatment of one that cannot be read.
fn read_invalid_cost(fields: &FieldReader<'_>) -> Cost {
    let mut cost = fields.read(&limit::COST);
    match (&mut cost, fields.read(&limit::INVALID_COST)) {
        (
            Cost::Header { invalid, .. } | Cost::Json { invalid, .. } | Cost::JsonRpc { invalid },
            Some(written),
        ) => *invalid = written,
        (Cost::Units(_), Some(InvalidCost::Reject)) => {
            if let Some(value) = fields.find(&limit::INVALID_COST) {
                let message = "`invalid_cost` is only for a cost from a header or from the body";
                let help = "write cost: header:NAME, json:/POINTER or json-rpc, or leave it out";
                value.refuse_name(codes::FOREIGN_FIELD, message, help);
            }
        }
        _ => {}
    }
    cost
}

/// Each method once; empty = any.
pub(crate) fn read_methods(
    fields: &FieldReader<'_>,
    field: &Field<OneOrMoreOrWord<Text<http::Method>>>,
) -> Vec<http::Method> {
    let mut seen = Vec::new();
    let mut methods = fields.read_list_or_word(field);
    methods.retain(|method| {
        let new = !seen.contains(method);
        seen.push(method.clone());
        new
    });
    methods
}
