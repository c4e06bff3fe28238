//! Reads `bans`: the number of rejections that starts a ban, and its length.

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::access::BansConfig;
use crate::config::schema::tables::access::bans;
use crate::config::schema::tables::root::root as root_fields;
use crate::config::yaml::field_reader::FieldReader;

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
        Some(BansConfig { after: after?, first, longest, key })
    })?
}
