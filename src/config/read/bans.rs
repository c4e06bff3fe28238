//! Reads `bans`: the number of rejections that starts a ban, and its length.

use std::time::Duration;

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::access::{BanKey, BansConfig};
use crate::config::value::scalars;
use crate::config::value::scalars::{Parsed, Rate};
use crate::config::yaml::fields::{FieldReader, parse_or_none, parse_word};

/// Every strike within the period is kept in memory.
const STRIKES_MAX: u64 = 10_000;

const FIRST: Duration = Duration::from_secs(10 * 60);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// `None` = off.
pub(crate) fn read_bans(root: &mut FieldReader<'_>) -> Option<BansConfig> {
    if root.get_field("bans").is_some_and(|value| value.is_word("none")) {
        return None;
    }
    let mut fields = root.open_section("bans")?;
    let after = fields.read_scalar("after", None, parse_or_none(parse_strikes));
    let first = fields.read_scalar("for", FIRST, scalars::parse_nonzero_duration);
    let written = fields.get_field("max");
    let longest = written.as_ref().and_then(|value| value.parse_with(scalars::parse_nonzero_duration));
    if let (Some(value), Some(longest)) = (&written, longest)
        && longest < first
    {
        let message = format!("the first ban would be longer than `max`, {}", value.written_text());
        value.report_at_value(
            ValueError::new(codes::DURATION, message).with_help("write a `max` of at least `for`"),
        );
    }
    let key = fields.read_scalar(
        "key",
        BanKey::Ip,
        parse_word(&[("ip", BanKey::Ip), ("account", BanKey::Account)]),
    );
    fields.report_unknown();
    Some(BansConfig { after: after?, first, longest: longest.unwrap_or(LONGEST.max(first)), key })
}

fn parse_strikes(text: &str) -> Parsed<Rate> {
    let rate = scalars::parse_rate(text)?;
    if rate.units.get() > STRIKES_MAX {
        let message = format!("`{text}` is more strikes than are kept for one client");
        return Err(ValueError::new(codes::NUMBER, message)
            .with_help(format!("write at most {STRIKES_MAX}, or a shorter period")));
    }
    Ok(rate)
}
