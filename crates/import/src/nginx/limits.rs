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
    shape: BurstShape,
    pub status: u16,
}

impl LimitUse<'_> {
    pub(super) fn is_rate(&self) -> bool {
        self.directive.name == "limit_req"
    }
}

/// The uses of one zone that share counters: those of one server if its name is the key, and dry runs apart. They
/// become one limit.
#[derive(Debug)]
struct LimitGroup<'d> {
    /// The name of the limit.
    name: String,
    zone_name: String,
    zone: &'d Zone<'d>,
    key: &'d ZoneKey,
    server: Option<String>,
    dry_run: bool,
    /// The status of its first use, which the limit has.
    status: u16,
    uses: Vec<LimitUse<'d>>,
}

/// The numbers of uses that are not those of their limit, with their entries in chains.
type UseViews = Vec<(BurstShape, String)>;

/// All limits of the configuration.
#[derive(Debug)]
pub(super) struct LimitBook<'d> {
    zones: &'d ZoneTable<'d>,
    groups: Vec<LimitGroup<'d>>,
    names: HashSet<String>,
    /// Those of each group, once the limits are built.
    views: Vec<UseViews>,
}

const DEFAULT_STATUS: u16 = 503;

impl<'d> LimitBook<'d> {
    pub(super) fn new(zones: &'d ZoneTable<'d>) -> LimitBook<'d> {
        LimitBook { zones, groups: Vec::new(), names: HashSet::new(), views: Vec::new() }
    }

    /// `None` = the chain is empty.
    pub(super) fn limits_behind(&self, chain: &[LimitUse<'d>]) -> Option<LimitsBehind> {
        let by_address =
            |limit: &LimitUse<'_>| self.groups[limit.group].key.parts.iter().any(|part| part == "ip");
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
                let (zone_name, shape) = read_use(directive)?;
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
                let is_same = |group: &LimitGroup<'_>| {
                    (&group.zone_name, &group.server, group.dry_run) == (&zone_name, &server, dry_run)
                };
                let group = self.groups.iter().position(is_same).unwrap_or(self.groups.len());
                if group == self.groups.len() {
                    let name = unique_name(&zone_name, server.as_deref(), dry_run, &mut self.names);
                    let uses = Vec::new();
                    self.groups.push(LimitGroup {
                        name,
                        zone_name,
                        zone,
                        key,
                        server,
                        dry_run,
                        status,
                        uses,
                    });
                }
                let limit_use = LimitUse { directive, group, shape, status };
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

    fn note_both_kinds(&self, chain: &[LimitUse<'d>]) {
        let group = |limit: &LimitUse<'_>| &self.groups[limit.group];
        if chain.iter().any(|limit| group(limit).zone.rate.is_some()) {
            let counts = |group: &LimitGroup<'_>| group.zone.rate.is_none() && !group.dry_run;
            for limit in chain.iter().filter(|limit| counts(group(limit))) {
                let says =
                    "a request that it refuses is not charged to the rates of its chain, as it is in nginx";
                limit.directive.loses(says);
            }
        }
    }

    /// Builds the limits, once every location has been collected.
    pub(super) fn build_limits(&mut self) -> Vec<NamedLimitPlan> {
        let (limits, views) = self.groups.iter().map(|group| self.build_limit(group)).unzip();
        self.views = views;
        limits
    }

    fn build_limit(&self, group: &LimitGroup<'d>) -> (NamedLimitPlan, UseViews) {
        let LimitGroup { zone, key, .. } = group;
        let parts = if key.parts.is_empty() { "global".to_owned() } else { quoted_list(&key.parts) };
        let mut fields = vec![PlannedField::new("key", parts, format!("nginx: {}", zone.directive.arg(0)))];
        fields.extend(key.missing.map(|missing| PlannedField::plain("missing_key", missing)));
        let (numbers, views) = plan_numbers(group);
        fields.extend(numbers);
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
        if group.status != if zone.rate.is_some() { 429 } else { 503 } {
            push("on_reject", format!("{{ status: {} }}", group.status));
        }
        self.tell(group);
        (NamedLimitPlan { name: group.name.clone(), fields, source: zone.directive.at.clone() }, views)
    }

    fn tell(&self, group: &LimitGroup<'d>) {
        let LimitGroup { name, zone, key, .. } = group;
        match key.losses.as_slice() {
            [] => zone.directive.becomes(&format!("limit {name}"), &key.differences),
            losses => zone.directive.loses(format!("limit {name}: {}", losses.join("; "))),
        }
        let live = |other: &LimitGroup<'_>| other.zone_name == group.zone_name && !other.dry_run;
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

    /// The entries of a chain, and the status for the location if those of its limits do not hold there.
    pub(super) fn write_chain(&self, chain: &[LimitUse<'_>]) -> (Vec<String>, Option<u16>) {
        let mut entries: Vec<String> = Vec::new();
        for limit in chain {
            let view = self.views[limit.group].iter().find(|(shape, _)| *shape == limit.shape);
            let name = || quote(&self.groups[limit.group].name);
            entries.push(view.map_or_else(name, |(_, entry)| entry.clone()));
        }
        let fits = |limit: &&LimitUse<'_>| self.groups[limit.group].status == limit.status;
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

/// The algorithm of a limit and its numbers, and the entries of chains with other numbers.
fn plan_numbers(group: &LimitGroup<'_>) -> (Vec<PlannedField>, UseViews) {
    let entry =
        |field: &str, number: u64| flow_map(&[("use", quote(&group.name)), (field, number.to_string())]);
    let shapes: Vec<BurstShape> = group.uses.iter().map(|limit| limit.shape).collect();
    let Some(rate) = group.zone.rate else {
        let most = shapes.iter().map(|shape| shape.burst).max().unwrap_or(1);
        let fields = vec![
            PlannedField::plain("algorithm", "concurrency"),
            PlannedField::plain("max_concurrent", most.to_string()),
        ];
        let other = shapes.iter().filter(|shape| shape.burst != most);
        return (fields, other.map(|shape| (*shape, entry("max_concurrent", shape.burst))).collect());
    };
    let plan = BurstPlan::build_group(&shapes);
    let BurstShape { burst, queue } = plan.base;
    let rate_note = group.zone.directive.args.iter().find(|arg| arg.starts_with("rate="));
    let burst_note = "at once from idle, the first request included";
    let mut fields = vec![
        PlannedField::plain("algorithm", if plan.leaky { "leaky_bucket" } else { "token_bucket" }),
        PlannedField::new("rate", write_rate(rate), rate_note.map_or("", String::as_str)),
        PlannedField::new("burst", burst.to_string(), burst_note),
    ];
    if plan.leaky {
        fields.push(PlannedField::plain("queue", queue.to_string()));
        fields.push(PlannedField::plain("max_wait", "none"));
        for limit in group.uses.iter().filter(|limit| limit.shape.burst != burst) {
            let says = format!(
                "the zone `{}` is used with several delays: as many pass as in nginx, but beyond {burst} they wait",
                group.zone_name
            );
            limit.directive.loses(says);
        }
    }
    let views = shapes.iter().zip(&plan.views).filter_map(|(shape, view)| {
        let BurstShape { burst, queue } = (*view)?;
        let text = if plan.leaky { entry("queue", queue) } else { entry("burst", burst) };
        Some((*shape, text))
    });
    (fields, views.collect())
}

fn unique_name(zone: &str, server: Option<&str>, dry_run: bool, known: &mut HashSet<String>) -> String {
    let parts = [Some(zone), server, dry_run.then_some("dry-run")];
    let name: String =
        parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
    let mut name: String = clean_name(&name).chars().take(56).collect();
    if matches!(name.as_str(), "none" | "any" | "auto") {
        name.push_str("-zone");
    }
    numbered_names(&name).find(|name| known.insert(name.clone())).unwrap_or_default()
}

fn read_status(scope: &Scope<'_>, name: &str) -> Result<u16, ImportFault> {
    let Some(directive) = scope.value_of(&format!("{name}_status")) else { return Ok(DEFAULT_STATUS) };
    let status = directive.arg(0).parse::<u16>().ok().filter(|status| (400..=599).contains(status));
    status.ok_or_else(|| directive.fault(format!("`{}` is not a status", directive.arg(0))))
}

/// The zone and the numbers of a `limit_req` or a `limit_conn`.
fn read_use(directive: &Directive) -> Result<(String, BurstShape), ImportFault> {
    let wrong = |message: String| directive.fault(message);
    if directive.name == "limit_conn" {
        let [zone, count] = directive.args.as_slice() else {
            return Err(wrong("`limit_conn` takes a zone and a number".to_owned()));
        };
        let count = count.parse::<u64>().ok().filter(|count| (1..=65_535).contains(count));
        let count =
            count.ok_or_else(|| wrong(format!("`{}` is not a number from 1 to 65535", directive.arg(1))))?;
        return Ok((zone.clone(), BurstShape { burst: count, queue: 0 }));
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
    Ok((zone, BurstShape { burst: at_once + 1, queue: burst - at_once }))
}

/// One way to use a zone: how many requests pass at once, and how many more wait; or the connections at a time.
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
