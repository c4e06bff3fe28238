//! Warns of quotas that a restart forgets.

use super::LintContext;
use sluicegate_base::calendar::CalendarUnit;
use sluicegate_model::codes;

pub(super) fn lint_calendars(file: &LintContext<'_>) {
    for limit in file.used_limits() {
        let config = &file.config.limits[limit];
        let units = config.algorithm.rate_quotas().into_iter().filter_map(|(rate, _)| rate.calendar);
        let longest = units.filter(|unit| *unit != CalendarUnit::Hour).max_by_key(|unit| unit.longest());
        if let Some(unit) = longest
            && config.shared.is_none()
            && file.config.state.snapshot.is_none()
        {
            let message =
                format!("a restart forgets what the keys of this limit have used in the {}", unit.as_str());
            let help = "write state: { snapshot: /var/lib/sluicegate/state }, or count it in Redis";
            file.limit_value(limit, &["rate"]).warn(codes::FORGOTTEN, message, help);
        }
    }
}
