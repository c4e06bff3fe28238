//! `limit_req` and `limit_conn` of every location, and the limits that stand for them.

use std::collections::{BTreeSet, HashSet};

use super::access::LimitsBehind;
use super::key::ZoneKey;
use super::parser::Directive;
use super::scope::Scope;
use super::zones::{Zone, ZoneTable};
use crate::ImportFault;
use crate::gateway_file::{NamedLimitPlan, PlannedField};
use crate::yaml_text::{clean_name, flow_map, numbered_names, quote, quoted_list, write_rate};

/// One use of a zone in a location.
#[derive(Debug, Clone)]
pub(super) struct LimitUse<'d> {
    directive: &'d Directive,
    group: usize,
    numbers: UseNumbers,
    pub status: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UseNumbers {
    Burst(BurstShape),
    Connections(u64),
}

/// The uses of one zone that share counters: those of one server if its name is the key, and dry runs apart.
#[derive(Debug)]
struct LimitGroup<'d> {
    zone: String,
    server: Option<String>,
    dry_run: bool,
    uses: Vec<LimitUse<'d>>,
}

/// All limits of the configuration.
#[derive(Debug)]
pub(super) struct LimitBook<'d> {
    zones: &'d ZoneTable<'d>,
    groups: Vec<LimitGroup<'d>>,
}

/// A limit of each group, with its status and its entries in chains.
#[derive(Debug)]
pub(super) struct PlannedLimits {
    pub limits: Vec<NamedLimitPlan>,
    groups: Vec<PlannedGroup>,
}

#[derive(Debug)]
struct PlannedGroup {
    name: String,
    status: u16,
    /// The numbers that are not those of the limit, with their entries in chains.
    views: Vec<(UseNumbers, String)>,
}

const DEFAULT_STATUS: u16 = 503;

impl<'d> LimitBook<'d> {
    pub(super) fn new(zones: &'d ZoneTable<'d>) -> LimitBook<'d> {
        LimitBook { zones, groups: Vec::new() }
    }

    /// `None` = the chain is empty.
    pub(super) fn limits_behind(&self, chain: &[LimitUse<'d>]) -> Option<LimitsBehind> {
        let by_address = |limit: &LimitUse<'_>| {
            let key = self.zones.get(&self.groups[limit.group].zone).map(|zone| &zone.key);
            matches!(key, Some(Ok(key)) if key.parts.iter().any(|part| part == "ip"))
        };
        let behind =
            if chain.iter().all(by_address) { LimitsBehind::PerAddress } else { LimitsBehind::Shared };
        (!chain.is_empty()).then_some(behind)
    }

    /// Adds the limits of a scope to the chain of a location, in nginx's order: rates before connections. A kind that
    /// it has already stays as it is.
    pub(super) fn collect(
        &mut self,
        chain: &mut Vec<LimitUse<'d>>,
        scope: &Scope<'d>,
        server_name: &str,
    ) -> Result<(), ImportFault> {
        let before = chain.len();
        for name in ["limit_req", "limit_conn"] {
            if chain[..before].iter().any(|limit| limit.directive.name == name) {
                continue;
            }
            let status = read_status(scope, name)?;
            let dry_run = scope.is_on(&format!("{name}_dry_run"));
            let mut zones = BTreeSet::new();
            for directive in scope.nearest(name) {
                let (zone_name, numbers) = read_use(directive)?;
                let found =
                    self.zones.get(&zone_name).filter(|zone| zone.rate.is_some() == (name == "limit_req"));
                let zone = found
                    .ok_or_else(|| directive.fault(format!("there is no zone `{zone_name}` for `{name}`")))?;
                if !zones.insert(zone_name.clone()) {
                    let message = format!("`{name}` names the zone `{zone_name}` twice");
                    return Err(directive.fault(message));
                }
                let Some(key) = self.usable_key(directive, zone) else { continue };
                if key.parts.iter().any(|part| part == "uri") && scope.own("rewrite").is_some() {
                    directive.loses("nginx counts by the path that `rewrite` makes");
                }
                if key.by_server && server_name.is_empty() {
                    directive.loses("the server has no name, and nginx counts nothing by an empty key");
                }
                let server = key.by_server.then(|| server_name.to_owned());
                let group = self.find_group(zone_name, server, dry_run);
                let limit_use = LimitUse { directive, group, numbers, status };
                self.groups[group].uses.push(limit_use.clone());
                chain.push(limit_use);
            }
        }
        self.note_both_kinds(chain);
        Ok(())
    }

    /// The key of a zone that counts something the gateway can count.
    fn usable_key(&self, directive: &Directive, zone: &'d Zone<'d>) -> Option<&'d ZoneKey> {
        match &zone.key {
            Err(why) => {
                zone.directive.loses(why.clone());
                directive.loses(format!("its zone cannot be translated: {why}"));
                None
            }
            Ok(key) if key.is_empty => {
                zone.directive.exact("the key is always empty, so nothing is limited");
                directive.exact("the key is always empty, so nothing is limited");
                None
            }
            Ok(key) => Some(key),
        }
    }

    fn find_group(&mut self, zone: String, server: Option<String>, dry_run: bool) -> usize {
        let is_same =
            |group: &LimitGroup<'_>| (&group.zone, &group.server, group.dry_run) == (&zone, &server, dry_run);
        let known = self.groups.iter().position(is_same);
        known.unwrap_or_else(|| {
            self.groups.push(LimitGroup { zone, server, dry_run, uses: Vec::new() });
            self.groups.len() - 1
        })
    }

    fn note_both_kinds(&self, chain: &[LimitUse<'d>]) {
        let is_rate = |limit: &&LimitUse<'_>| matches!(limit.numbers, UseNumbers::Burst(_));
        if chain.iter().any(|limit| is_rate(&limit)) {
            for limit in chain.iter().filter(|limit| !is_rate(limit) && !self.groups[limit.group].dry_run) {
                let says =
                    "a request that it refuses is not charged to the rates of its chain, as it is in nginx";
                limit.directive.loses(says);
            }
        }
    }

    /// Builds the limits, once every location has been collected.
    pub(super) fn build_limits(&self) -> PlannedLimits {
        let mut planned = PlannedLimits { limits: Vec::new(), groups: Vec::new() };
        let mut names = HashSet::new();
        for group in &self.groups {
            let name = unique_name(group, &mut names);
            // Groups are made from zones that were found, with keys that are understood.
            let Some((zone, key)) =
                self.zones.get(&group.zone).and_then(|zone| Some((zone, zone.key.as_ref().ok()?)))
            else {
                continue;
            };
            let mut fields =
                vec![PlannedField::new("key", write_key(key), format!("nginx: {}", zone.directive.arg(0)))];
            if let Some(missing) = key.missing {
                fields.push(PlannedField::plain("missing_key", missing));
            }
            let views = self.plan_numbers(group, zone, &name, &mut fields);
            let status = group.uses.first().map_or(DEFAULT_STATUS, |first| first.status);
            self.finish_fields(group, key, status, &mut fields);
            self.tell(group, zone, key, &name);
            planned.limits.push(NamedLimitPlan {
                name: name.clone(),
                fields,
                source: zone.directive.at.clone(),
            });
            planned.groups.push(PlannedGroup { name, status, views });
        }
        planned
    }

    /// Adds the algorithm and its numbers; returns the entries of chains with other numbers.
    fn plan_numbers(
        &self,
        group: &LimitGroup<'d>,
        zone: &Zone<'d>,
        name: &str,
        fields: &mut Vec<PlannedField>,
    ) -> Vec<(UseNumbers, String)> {
        let mut push =
            |name: &str, value: String, note: &str| fields.push(PlannedField::new(name, value, note));
        let entry = |field: &str, number: u64| flow_map(&[("use", quote(name)), (field, number.to_string())]);
        let Some(rate) = zone.rate else {
            let count = |limit: &LimitUse<'_>| match limit.numbers {
                UseNumbers::Connections(count) => Some(count),
                UseNumbers::Burst(_) => None,
            };
            let counts: Vec<u64> = group.uses.iter().filter_map(count).collect();
            let most = counts.iter().max().copied().unwrap_or(1);
            push("algorithm", "concurrency".to_owned(), "");
            push("max_concurrent", most.to_string(), "");
            let other = counts.iter().filter(|count| **count != most);
            return other
                .map(|&count| (UseNumbers::Connections(count), entry("max_concurrent", count)))
                .collect();
        };
        let shapes: Vec<BurstShape> = group.uses.iter().filter_map(LimitUse::shape).collect();
        let plan = BurstPlan::build_group(&shapes);
        let BurstShape { burst, queue } = plan.base;
        push("algorithm", if plan.leaky { "leaky_bucket" } else { "token_bucket" }.to_owned(), "");
        push(
            "rate",
            write_rate(rate),
            zone.directive.args.iter().find(|arg| arg.starts_with("rate=")).map_or("", |r| r),
        );
        push("burst", burst.to_string(), "at once from idle, the first request included");
        if plan.leaky {
            push("queue", queue.to_string(), "");
            push("max_wait", "none".to_owned(), "");
        }
        let waits = |limit: &&LimitUse<'_>| limit.shape().is_some_and(|shape| shape.burst != burst);
        for limit in group.uses.iter().filter(|limit| plan.leaky && waits(limit)) {
            let says = format!(
                "the zone `{}` is used with several delays: as many pass as in nginx, but beyond {burst} they wait",
                group.zone
            );
            limit.directive.loses(says);
        }
        let views = shapes.iter().zip(&plan.views).filter_map(|(shape, view)| {
            let BurstShape { burst, queue } = (*view)?;
            let text = if plan.leaky { entry("queue", queue) } else { entry("burst", burst) };
            Some((UseNumbers::Burst(*shape), text))
        });
        views.collect()
    }

    fn finish_fields(
        &self,
        group: &LimitGroup<'d>,
        key: &ZoneKey,
        status: u16,
        fields: &mut Vec<PlannedField>,
    ) {
        let mut push = |name: &str, value: String| fields.push(PlannedField::plain(name, value));
        if !key.methods.is_empty() {
            push("methods", quoted_list(&key.methods));
        }
        if !key.bypass.is_empty() {
            push("bypass", quoted_list(&key.bypass));
        }
        if group.dry_run {
            push("dry_run", "true".to_owned());
        }
        let is_rate = group.uses.first().is_some_and(|limit| limit.shape().is_some());
        if status != if is_rate { 429 } else { 503 } {
            push("on_reject", format!("{{ status: {status} }}"));
        }
    }

    fn tell(&self, group: &LimitGroup<'d>, zone: &Zone<'d>, key: &ZoneKey, name: &str) {
        match (key.losses.as_slice(), key.differences.as_slice()) {
            ([], []) => zone.directive.exact(format!("limit {name}")),
            ([], differences) => zone.directive.differs(format!("limit {name}: {}", differences.join("; "))),
            (losses, _) => zone.directive.loses(format!("limit {name}: {}", losses.join("; "))),
        }
        let live = |other: &LimitGroup<'_>| other.zone == group.zone && !other.dry_run;
        for limit in &group.uses {
            if group.dry_run && self.groups.iter().any(live) {
                let says =
                    "the dry run has counters of its own; in nginx it also counts for the enforced limit";
                limit.directive.loses(says);
            } else if !limit.directive.is_told() {
                limit.directive.exact(format!("limit {name}"));
            }
        }
    }
}

impl LimitUse<'_> {
    fn shape(&self) -> Option<BurstShape> {
        match self.numbers {
            UseNumbers::Burst(shape) => Some(shape),
            UseNumbers::Connections(_) => None,
        }
    }
}

impl PlannedLimits {
    /// The entries of a chain, and the status for the location if those of its limits do not hold there.
    pub(super) fn write_chain(&self, chain: &[LimitUse<'_>]) -> (Vec<String>, Option<u16>) {
        let mut entries: Vec<String> = Vec::new();
        for limit in chain {
            let Some(group) = self.groups.get(limit.group) else { continue };
            let view = group.views.iter().find(|(numbers, _)| *numbers == limit.numbers);
            entries.push(view.map_or_else(|| quote(&group.name), |(_, entry)| entry.clone()));
        }
        let fits = |limit: &&LimitUse<'_>| {
            self.groups.get(limit.group).is_some_and(|group| group.status == limit.status)
        };
        let Some(first) = chain.first().filter(|_| !chain.iter().all(|limit| fits(&limit))) else {
            return (entries, None);
        };
        if chain.iter().all(|limit| limit.status == first.status) {
            return (entries, Some(first.status));
        }
        for limit in chain.iter().filter(|limit| !fits(limit)) {
            let says = format!("its status here is not {}: it has another one elsewhere", limit.status);
            limit.directive.differs(says);
        }
        (entries, None)
    }
}

fn unique_name(group: &LimitGroup<'_>, known: &mut HashSet<String>) -> String {
    let parts = [Some(group.zone.as_str()), group.server.as_deref(), group.dry_run.then_some("dry-run")];
    let name: String =
        parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
    let mut name: String = clean_name(&name).chars().take(56).collect();
    if matches!(name.as_str(), "none" | "any" | "auto") {
        name.push_str("-zone");
    }
    numbered_names(&name).find(|name| known.insert(name.clone())).unwrap_or_default()
}

fn write_key(key: &ZoneKey) -> String {
    match key.parts.as_slice() {
        [] => "global".to_owned(),
        parts => quoted_list(parts),
    }
}

fn read_status(scope: &Scope<'_>, name: &str) -> Result<u16, ImportFault> {
    let Some(directive) = scope.value_of(&format!("{name}_status")) else { return Ok(DEFAULT_STATUS) };
    let status = directive.arg(0).parse::<u16>().ok().filter(|status| (400..=599).contains(status));
    status.ok_or_else(|| directive.fault(format!("`{}` is not a status", directive.arg(0))))
}

/// The zone and the numbers of a `limit_req` or a `limit_conn`.
fn read_use(directive: &Directive) -> Result<(String, UseNumbers), ImportFault> {
    let wrong = |message: String| directive.fault(message);
    if directive.name == "limit_conn" {
        let [zone, count] = directive.args.as_slice() else {
            return Err(wrong("`limit_conn` takes a zone and a number".to_owned()));
        };
        let count = count.parse::<u64>().ok().filter(|count| (1..=65_535).contains(count));
        let count =
            count.ok_or_else(|| wrong(format!("`{}` is not a number from 1 to 65535", directive.arg(1))))?;
        return Ok((zone.clone(), UseNumbers::Connections(count)));
    }
    let (mut zone, mut burst, mut delay) = (None, 0_u64, 0_u64);
    for parameter in &directive.args {
        let number = |text: &str| {
            let number = text.parse::<u64>().ok().filter(|number| (1..=2_000_000_000).contains(number));
            number.ok_or_else(|| wrong(format!("`{parameter}` has no number from 1")))
        };
        match parameter.split_once('=') {
            Some(("zone", name)) => zone = Some(name.to_owned()),
            Some(("burst", text)) => burst = number(text)?,
            Some(("delay", text)) => delay = number(text)?,
            None if parameter == "nodelay" => delay = u64::MAX,
            _ => return Err(wrong(format!("`{parameter}` is no parameter of `limit_req`"))),
        }
    }
    let zone = zone.ok_or_else(|| wrong("`limit_req` names no zone".to_owned()))?;
    let at_once = delay.min(burst);
    Ok((zone, UseNumbers::Burst(BurstShape { burst: at_once + 1, queue: burst - at_once })))
}

/// One way to use a rate: how many requests pass at once, and how many more wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct BurstShape {
    /// Requests that pass at once from idle, the first one included.
    burst: u64,
    /// Requests that wait beyond them.
    queue: u64,
}

/// The numbers of a limit that stands for all uses of a zone.
#[derive(Debug, PartialEq, Eq)]
struct BurstPlan {
    /// A leaky bucket; else a token bucket.
    leaky: bool,
    base: BurstShape,
    /// The numbers of each use in the chain, if they are not those of the limit.
    views: Vec<Option<BurstShape>>,
}

impl BurstPlan {
    /// The limit for `uses`, which are not empty. A bucket is used with other bursts, a queue with other lengths; where
    /// both differ, the smallest burst holds for all, and each queue is as much longer: every use admits as many.
    fn build_group(uses: &[BurstShape]) -> BurstPlan {
        let leaky = uses.iter().any(|shape| shape.queue > 0);
        let least = uses.iter().map(|shape| shape.burst).min().unwrap_or(1);
        let written = uses.iter().map(|&BurstShape { burst, queue }| match leaky {
            true => BurstShape { burst: least, queue: burst.saturating_add(queue) - least },
            false => BurstShape { burst, queue },
        });
        let base = written.clone().next().unwrap_or(BurstShape { burst: 1, queue: 0 });
        let views = written.map(|shape| (shape != base).then_some(shape)).collect();
        BurstPlan { leaky, base, views }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn shape(burst: u64, queue: u64) -> BurstShape {
        BurstShape { burst, queue }
    }

    #[test]
    fn one_way_to_use_a_zone_is_one_limit() {
        let plan = BurstPlan::build_group(&[shape(6, 0), shape(6, 0)]);
        assert_eq!((plan.leaky, plan.base), (false, shape(6, 0)));
        assert!(BurstPlan::build_group(&[shape(1, 5)]).leaky);
    }

    #[test]
    fn every_use_admits_as_many_where_burst_and_queue_differ() {
        let plan = BurstPlan::build_group(&[shape(6, 0), shape(1, 20), shape(3, 2)]);
        assert_eq!((plan.leaky, plan.base), (true, shape(1, 5)));
        assert_eq!(plan.views, [None, Some(shape(1, 20)), Some(shape(1, 4))]);
    }

    #[test]
    fn every_use_keeps_its_numbers_where_one_of_them_differs() {
        let plan = BurstPlan::build_group(&[shape(1, 20), shape(1, 5)]);
        assert_eq!((plan.leaky, plan.base), (true, shape(1, 20)));
        assert_eq!(plan.views, [None, Some(shape(1, 5))]);
        let plan = BurstPlan::build_group(&[shape(1, 0), shape(6, 0), shape(1, 0)]);
        assert_eq!((plan.leaky, plan.base), (false, shape(1, 0)));
        assert_eq!(plan.views, [None, Some(shape(6, 0)), None]);
    }
}
