//! Warns of settings that `obey` of an upstream overrules, and of keys that it cannot apply.

use super::{LintContext, warn_at};
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::key::KeyPart;
use sluicegate_model::reject::Degrade;
use sluicegate_model::upstream::{ObeyConfig, RetryReason, StatusRanges};
use sluicegate_model::{Config, UpstreamConfig};

pub(super) fn lint_obeyed(file: &LintContext<'_>) {
    for (index, upstream) in file.config.upstreams.iter().enumerate() {
        let Some(obey) = &upstream.obey else { continue };
        let field = |names: &[&str]| {
            let path: Vec<&str> = ["upstreams", &upstream.name].iter().chain(names).copied().collect();
            file.value_at(&path)
        };
        if let Some(status) = shared_status(upstream, obey) {
            let message = format!("{status} is obeyed, so it never counts as an error of a server");
            let help = "leave it out of eject.status, or of obey.status";
            let error = ValueError::new(codes::NO_EFFECT, message).with_help(help);
            warn_at(&field(&["eject", "status"]), error);
        }
        let is_obeyed = |status: &u16| obey.status.contains(*status);
        let is_retried = |status: &u16| {
            let reason = RetryReason::from_status(*status);
            upstream.retries.attempts > 0 && reason.is_some_and(|own| upstream.retries.when.contains(own))
        };
        if let Some(status) = (502..=504).filter(is_obeyed).find(is_retried) {
            let message = format!("{status} is obeyed, so it is never tried again");
            let help = "leave it out of retries.when, or of obey.status";
            let error = ValueError::new(codes::NO_EFFECT, message).with_help(help);
            warn_at(&field(&["retries", "when"]), error);
        }
        if obey.key != [KeyPart::Global] && is_degraded_to(file.config, index) {
            let message = "requests that come here by `degrade` stop together, whatever their key";
            let help = "write key: global, or degrade to another upstream";
            warn_at(&field(&["obey", "key"]), ValueError::new(codes::NO_EFFECT, message).with_help(help));
        }
    }
}

/// A status that is obeyed and would also count as an error.
fn shared_status(upstream: &UpstreamConfig, obey: &ObeyConfig) -> Option<u16> {
    let StatusRanges(ranges) = &upstream.eject.as_ref()?.status;
    let mut statuses = ranges.iter().flat_map(|(first, last)| *first..=*last);
    statuses.find(|status| obey.status.contains(*status))
}

/// True if rejected requests are sent to this upstream.
fn is_degraded_to(config: &Config, upstream: usize) -> bool {
    let is_target = |degrade: Option<&Degrade>| match degrade {
        Some(Degrade::Upstream(target)) => target.0 == upstream,
        _ => false,
    };
    let limits = config.limits.iter().map(|limit| &limit.on_reject);
    let locations = config.locations.iter().map(|location| &location.on_reject);
    is_target(config.on_reject.degrade.as_ref())
        || limits.chain(locations).any(|patch| is_target(patch.degrade.as_ref().and_then(Option::as_ref)))
}
