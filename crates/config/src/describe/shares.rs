//! Describes the guaranteed shares of a limit, class by class.

use super::charge::format_amount;
use super::{describe_key_part, format_period, show_percent};
use sluicegate_model::{Algorithm, LimitConfig, Rate, ShareClass, Shares, format_millionths};

/// "shares by tier", and then each class: "gold: never below 500 per second, up to 1000 while others are idle".
pub(super) fn describe_shares(limit: &LimitConfig) -> Vec<String> {
    let Some(shares) = &limit.shares else { return Vec::new() };
    let mut parts = vec![format!("shares by {}", describe_key_part(&shares.by))];
    parts.extend(shares.classes.iter().map(|class| {
        let words = describe_class(limit, class, shares.lend);
        format!("{}: {words}", class.name)
    }));
    parts.extend(is_window(limit).then(|| "of a window nothing is lent".to_owned()));
    parts
}

/// "never below 500 per second, up to 1000 while others are idle"; `lend`: the part of its slots that it lends.
pub fn describe_class(limit: &LimitConfig, class: &ShareClass, lend: u32) -> String {
    let part = |is_floor, with_unit| show_part(limit, class, is_floor, with_unit);
    if class.least == 0 {
        let at_most = || format!(", at most {}", part(false, true));
        let at_most = (class.most < Shares::WHOLE).then(at_most);
        return format!("what is left{}", at_most.unwrap_or_default());
    }
    let floor = part(true, true);
    let floor = match &limit.algorithm {
        Algorithm::Concurrency { min: None, max, .. } if lend < Shares::WHOLE => {
            let kept = class.least_of((*max).into());
            let lent = u128::from(kept) * u128::from(lend) / u128::from(Shares::WHOLE);
            format!("keeps {floor}, {} of them never lent", u128::from(kept) - lent)
        }
        Algorithm::Concurrency { .. } if lend < Shares::WHOLE => {
            format!("keeps {floor}, of which {} are lent at most", show_percent(lend.into()))
        }
        Algorithm::Concurrency { .. } => format!("keeps {floor}"),
        _ if is_window(limit) => format!("{floor} of its own"),
        _ => format!("never below {floor}"),
    };
    let most = part(false, false);
    match is_window(limit) {
        _ if most == part(true, false) => format!("{floor}, and never more"),
        true => format!("{floor}, up to {most} with the common part"),
        false => format!("{floor}, up to {most} while others are idle"),
    }
}

/// The floor of a class or its `most`, and the unit if wanted: "500 per second", "50 slots", "50% of the slots".
fn show_part(limit: &LimitConfig, class: &ShareClass, is_floor: bool, with_unit: bool) -> String {
    let part = if is_floor { class.least } else { class.most };
    let unit = |number: String, unit: &str| if with_unit { format!("{number} {unit}") } else { number };
    match &limit.algorithm {
        Algorithm::Concurrency { min: Some(_), .. } => unit(show_percent(part.into()), "of the slots"),
        Algorithm::Concurrency { max, .. } => {
            let slots = whole_part(class, is_floor, (*max).into());
            unit(slots.to_string(), if slots == 1 { "slot" } else { "slots" })
        }
        numbers => {
            let one = |(rate, _): &(Rate, u64)| {
                let units = show_units(limit, class, is_floor, rate.units.get());
                unit(units, &format!("per {}", format_period(rate.period)))
            };
            numbers.rate_quotas().iter().map(one).collect::<Vec<String>>().join(" and ")
        }
    }
}

/// A part of the units of a rate: exact for a rate, and whole for a window.
fn show_units(limit: &LimitConfig, class: &ShareClass, is_floor: bool, units: u64) -> String {
    let part = if is_floor { class.least } else { class.most };
    match is_window(limit) || limit.counts_kib() || limit.currency().is_some() {
        true => format_amount(limit, whole_part(class, is_floor, units)),
        false => format_millionths(u128::from(units) * u128::from(part)),
    }
}

fn whole_part(class: &ShareClass, is_floor: bool, number: u64) -> u64 {
    if is_floor { class.least_of(number) } else { class.most_of(number) }
}

fn is_window(limit: &LimitConfig) -> bool {
    matches!(limit.algorithm, Algorithm::FixedWindow { .. } | Algorithm::SlidingWindow { .. })
}
