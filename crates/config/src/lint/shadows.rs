//! Warns of shadows that tell nothing new.

use super::{LintContext, warn_at};
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;

pub(super) fn lint_shadows(file: &LintContext<'_>) {
    for (id, limit) in file.used_limits().into_iter().map(|id| (id, &file.config.limits[id])) {
        let Some(shadow) = limit.shadow.map(|shadow| &file.config.limits[shadow]) else { continue };
        let warn = |message: &str, help: &str| {
            let error = ValueError::new(codes::NO_EFFECT, message).with_help(help);
            warn_at(&file.limit_value(id, &["shadow"]), error);
        };
        let numbers = || limit.file_variants();
        if numbers().all(|numbers| *numbers == shadow.algorithm) {
            warn(
                "this shadow has the numbers of its limit, and judges every request alike",
                "write other numbers",
            );
        } else if limit.dry_run && limit.tiers.is_empty() {
            let message = "this limit is a dry run, so its shadow compares two limits that never act";
            warn(message, "write the numbers to try in the limit itself, or remove dry_run");
        }
    }
}
