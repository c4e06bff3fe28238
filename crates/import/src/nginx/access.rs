//! `allow` and `deny`, and conditions that deny by address.

use std::net::IpAddr;

use ipnet::IpNet;

use super::parser::Directive;
use super::variables::{Variable, VariableTable};
use crate::gateway_file::PlannedField;
use crate::networks::{all_networks, first_match, parse_networks, parse_range};
use crate::yaml_text::quoted_list;
use crate::{FindingKind, ImportFault};

/// The addresses that may come in.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct AccessPlan {
    /// `None` = any.
    pub allow: Option<Vec<IpNet>>,
    pub deny: Vec<IpNet>,
}

impl AccessPlan {
    pub(super) fn into_field(self) -> Option<PlannedField> {
        let mut fields = Vec::new();
        if let Some(allow) = &self.allow {
            fields.push(("allow", quoted_list(allow)));
        }
        if !self.deny.is_empty() {
            fields.push(("deny", quoted_list(&self.deny)));
        }
        PlannedField::map("access", &fields)
    }

    pub(super) fn nobody() -> AccessPlan {
        AccessPlan { allow: None, deny: all_networks().to_vec() }
    }
}

/// The limits of a place with access rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitsBehind {
    /// Each counts every address apart.
    PerAddress,
    Shared,
}

/// The rules of `allow` and `deny` at a level; the first one that matches decides.
pub(super) fn read_access(
    rules: &[&Directive],
    behind: Option<LimitsBehind>,
) -> Result<AccessPlan, ImportFault> {
    let mut ordered: Vec<(IpNet, bool)> = Vec::new();
    for directive in rules {
        let allowed = directive.name == "allow";
        let nets = match directive.arg(0) {
            "all" => all_networks().to_vec(),
            "unix:" => {
                let kind = if allowed { FindingKind::NotTranslated } else { FindingKind::Lost };
                directive.tell(kind, "peers on unix sockets have no address here");
                continue;
            }
            text => parse_networks(text).map_err(|why| directive.fault(why))?,
        };
        ordered.extend(nets.into_iter().map(|net| (net, allowed)));
        if let Some(behind) = behind {
            let says =
                "the gateway judges addresses before limits: a denied client gets 403 and is not counted";
            match behind == LimitsBehind::Shared && !allowed {
                true => directive.loses(format!("{says}; its limits count several clients together")),
                false => directive.differs(says),
            }
        } else {
            directive.exact("access");
        }
    }
    let too_many = || {
        let at = rules.first().map(|directive| directive.at.clone());
        ImportFault::new(&at.unwrap_or(super::nowhere()), "these rules become too many networks")
    };
    let denied = first_match(&ordered, false).ok_or_else(too_many)?;
    if denied.is_empty() {
        return Ok(AccessPlan::default());
    }
    let closes = all_networks().iter().all(|all| ordered.iter().any(|(net, allowed)| net == all && !allowed));
    if !closes {
        return Ok(AccessPlan { allow: None, deny: denied });
    }
    let allowed = first_match(&ordered, true).ok_or_else(too_many)?;
    if allowed.is_empty() {
        return Ok(AccessPlan::nobody());
    }
    Ok(AccessPlan { allow: Some(allowed), deny: Vec::new() })
}

type DeniedNetworks = Result<(Vec<IpNet>, u16), String>;

/// The networks and the status of a condition on a `geo` variable with a block that refuses.
pub(super) fn denied_by(directive: &Directive, variables: &VariableTable<'_>) -> Option<DeniedNetworks> {
    let [only] = directive.children() else { return None };
    let status = Some(only).filter(|only| only.name == "return")?.arg(0).parse::<u16>().ok()?;
    if !(400..=599).contains(&status) {
        return None;
    }
    let mut words: Vec<&str> = directive.args.iter().map(String::as_str).collect();
    *words.first_mut()? = words.first()?.strip_prefix('(')?;
    *words.last_mut()? = words.last()?.strip_suffix(')')?;
    words.retain(|word| !word.is_empty());
    let (name, expected, equal) = match words.as_slice() {
        [name] => (*name, None, true),
        [name, "=", value] => (*name, Some(*value), true),
        [name, "!=", value] => (*name, Some(*value), false),
        _ => return None,
    };
    let name = name.strip_prefix('$')?;
    if variables.check_fixed(&format!("${name}")).is_err()
        || expected.is_some_and(|value| value.contains('$'))
    {
        return None;
    }
    let is_wanted = |value: &str| match expected {
        None => !value.is_empty() && value != "0",
        Some(expected) => (value == expected) == equal,
    };
    // nginx compares texts, so that only the usual one is ever found.
    let is_usual = |text: &str| text.parse::<IpAddr>().is_ok_and(|address| address.to_string() == text);
    let found = match (variables.find(name), expected) {
        (Some(Variable::Geo(geo)), _) => geo.networks_with(is_wanted),
        (None, Some(text)) if name == "remote_addr" && equal && is_usual(text) => Ok(parse_range(text)?),
        _ => return None,
    };
    Some(found.map(|nets| (nets, status)))
}
