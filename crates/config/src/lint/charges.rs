//! Warns of charges that settle nothing, or that one request can use to shut the others out.

use super::LintContext;
use sluicegate_model::{
    ActionConfig, ChargeConfig, ChargedUnits, Cost, LimitId, Reserve, ResponseSet, codes,
};

/// The only response below 200 that ends a request.
const SWITCHING_PROTOCOLS: u16 = 101;

pub(super) fn lint_charges(file: &LintContext<'_>) {
    for (index, limit) in file.config.limits.iter().enumerate() {
        let Some(charge) = limit.charge.as_ref().filter(|_| limit.shadow_of.is_none()) else { continue };
        let id = LimitId(index);
        warn_of_responses(file, id, charge);
        warn_of_claims(file, id, charge);
        if limit.cost != Cost::Units(1)
            && charge.reserve != Reserve::Cost
            && !charge.units.contains(&ChargedUnits::Request)
        {
            let message =
                "`cost` has no effect: requests reserve by `charge.reserve`, and responses settle it";
            let help = "remove it, or write units: [request, …] to charge it too";
            file.limit_value(id, &["cost"]).warn(codes::NO_EFFECT, message, help);
        }
    }
    for location in 0..file.config.locations.len() {
        warn_of_own_responses(file, location);
    }
}

/// `when` without a response that could be charged, and a `clear` that forgets all of them.
fn warn_of_responses(file: &LintContext<'_>, id: LimitId, charge: &ChargeConfig) {
    if let Some(when) = charge.when.as_ref().filter(|when| !has_final_response(when)) {
        let statuses = when.statuses.0.len();
        let these = if statuses == 1 { "this status" } else { "one of these statuses" };
        let message = format!("no final response has {these}, so that responses never cost anything");
        let help = "write e.g. when: [401, 403], or leave it out for any response";
        file.limit_value(id, &["charge", "when"]).warn(codes::NO_EFFECT, message, help);
    } else if forgets_all(charge) {
        let message = "every response that costs anything is forgotten at once, so that this limit counts \
                       only open requests";
        let help = "write the responses of success, e.g. clear: [2xx] with when: [401, 403]";
        file.limit_value(id, &["charge", "clear"]).warn(codes::NO_EFFECT, message, help);
    }
}

fn has_final_response(set: &ResponseSet) -> bool {
    let is_final = |range: &(u16, u16)| (range.0..=range.1).contains(&SWITCHING_PROTOCOLS) || range.1 >= 200;
    !set.grpc_codes.is_empty() || set.statuses.0.iter().any(is_final)
}

/// True if each response in `when` is in `clear` too.
fn forgets_all(charge: &ChargeConfig) -> bool {
    let is_charged = |status: u16| charge.when.as_ref().is_none_or(|when| when.statuses.contains(status));
    let is_cleared = |code: &u8| charge.clear.grpc_codes.contains(code);
    // Without `when` most readers forget that a tunnel is a response too.
    let tunnel = charge.when.as_ref().map(|_| SWITCHING_PROTOCOLS);
    let mut statuses = (200..=599).chain(tunnel).filter(|status| is_charged(*status));
    !charge.clear.is_empty()
        && statuses.all(|status| charge.clear.statuses.contains(status))
        && charge.when.as_ref().is_none_or(|when| when.grpc_codes.iter().all(is_cleared))
}

/// Claims of bodies that nothing settles, or that may be as large as the limit.
fn warn_of_claims(file: &LintContext<'_>, id: LimitId, charge: &ChargeConfig) {
    let Reserve::Body(_) = &charge.reserve else { return };
    let value = file.limit_value(id, &["charge", "reserve"]);
    if charge.units == [ChargedUnits::Request] {
        let message =
            "the claim of a body is only held until the response, which then costs what any request does";
        let help = "write units that say what was used, e.g. units: llm, or remove reserve";
        value.warn(codes::NO_EFFECT, message, help);
    }
    let share = file.limit_value(id, &["charge", "reserve", "at_most"]);
    let is_usual = charge.pricing.is_some() && !value.path.ends_with(".reserve");
    if share.path == value.path && !is_usual {
        let message =
            "one request may claim the whole limit, and shut out the others of its key until its response";
        let help = "write the share that one request may claim, e.g. at_most: 25%";
        value.warn(codes::WHOLE_CLAIM, message, help);
    }
}

/// A location that answers itself reports no usage.
fn warn_of_own_responses(file: &LintContext<'_>, index: usize) {
    let location = &file.config.locations[index];
    if let ActionConfig::Upstream(_) = location.action {
        return;
    }
    let is_vain = |id: &&LimitId| {
        let charge = file.config.limits[**id].charge.as_ref();
        charge.is_some_and(|charge| charge.units.iter().any(ChargedUnits::is_in_body))
    };
    if let Some(id) = location.limits.iter().find(is_vain) {
        let message = format!(
            "limit `{}` charges what an upstream reports, and this location has no upstream",
            file.config.limits[*id].name
        );
        let help = "use a limit that counts requests here";
        file.location_value(index, &["limits"]).warn(codes::NO_EFFECT, message, help);
    }
}
