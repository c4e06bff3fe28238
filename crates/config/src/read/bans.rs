//! Reads `bans`: the strikes that start a ban, and its length.

use crate::schema::tables::access::bans;
use crate::schema::tables::root::root as root_fields;
use crate::yaml::field_reader::FieldReader;
use sluicegate_model::access::{BansConfig, StrikeRules};
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::upstream::StatusRanges;

/// `None` = off.
pub(crate) fn read_bans(root: &FieldReader<'_>) -> Option<BansConfig> {
    root.read_section_or_none(&root_fields::BANS, |fields| {
        let (after, first) = (fields.read(&bans::AFTER), fields.read(&bans::FOR));
        let (longest, key) = (fields.read_written(&bans::MAX), fields.read(&bans::KEY));
        if let (Some(value), Some(true)) = (fields.find(&bans::MAX), longest.map(|longest| longest < first)) {
            let message = format!("the first ban would be longer than `max`, {}", value.written_text());
            value.report_at_value(
                ValueError::new(codes::DURATION, message).with_help("write a `max` of at least `for`"),
            );
        }
        let longest = longest.unwrap_or_else(|| bans::MAX.parse_default().max(first));
        let strikes = read_strikes(fields);
        if let (None, Some(value)) = (&after, fields.find(&bans::STRIKES)) {
            let message = "`strikes` has no effect without `after`";
            let error = ValueError::new(codes::NO_EFFECT, message);
            let error = error.with_help("write e.g. after: 20/1m beside it");
            value.sink.add_warning(value.named_at, &value.path, error);
        }
        Some(BansConfig { after: after?, first, longest, key, strikes })
    })?
}

fn read_strikes(fields: &FieldReader<'_>) -> StrikeRules {
    if let Some(value) = fields.find(&bans::STRIKES).filter(|value| value.is_empty()) {
        value.report_empty("write e.g. [reject, 401, 403, 404]");
    }
    let list = fields.read_list(&bans::STRIKES);
    let statuses = StatusRanges(list.iter().flatten().copied().collect());
    StrikeRules { rejections: list.contains(&None), statuses }
}
