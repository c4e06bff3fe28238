//! `bans`: after how many refusals a client is not judged any more, and for how long.

use std::time::Duration;

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::access::{BanKey, Bans};
use crate::config::value::scalars;
use crate::config::value::scalars::{Rate, Read};
use crate::config::yaml::fields::{Fields, or_none, word};

/// Every strike within the period is remembered.
const STRIKES_MAX: u64 = 10_000;

const FIRST: Duration = Duration::from_secs(10 * 60);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// `None` = off.
pub(crate) fn read(root: &mut Fields<'_>) -> Option<Bans> {
    if root.get("bans").is_some_and(|value| value.is_word("none")) {
        return None;
    }
    let mut fields = root.section("bans")?;
    let after = fields.read("after", None, or_none(strikes));
    let first = fields.read("for", FIRST, scalars::span);
    let written = fields.get("max");
    let longest = written.as_ref().and_then(|value| value.read(scalars::span));
    if let (Some(value), Some(longest)) = (&written, longest)
        && longest < first
    {
        let message = format!("no ban could last its first span: `max` is {}", value.shown());
        value.complain(Complaint::new(codes::DURATION, message).help("write a `max` that `for` fits into"));
    }
    let key = fields.read("key", BanKey::Ip, word(&[("ip", BanKey::Ip), ("account", BanKey::Account)]));
    fields.close();
    Some(Bans { after: after?, first, longest: longest.unwrap_or(LONGEST.max(first)), key })
}

fn strikes(text: &str) -> Read<Rate> {
    let rate = scalars::rate(text)?;
    if rate.units.get() > STRIKES_MAX {
        let message = format!("`{text}` is more strikes than are remembered of one client");
        return Err(Complaint::new(codes::NUMBER, message)
            .help(format!("write at most {STRIKES_MAX}, or a shorter period")));
    }
    Ok(rate)
}
