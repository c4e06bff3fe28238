//! The fields of `ip_sets`, `access` and `bans`.

use crate::schema::field::{OneOrMore, Shape, section};
use crate::schema::kinds::{NONZERO_TIME, OrWord, STATUS_RANGE, Special, StatusRange, Text, Words, text};
use sluicegate_model::value::scalars;
use sluicegate_model::{BanKey, Parsed, Rate, ValueError, codes};
use std::time::Duration;

/// Every strike within the period is kept in memory.
const STRIKES_MAX: u64 = 10_000;

/// Addresses, networks and names of sets.
pub fn networks() -> Shape {
    Shape::OneOrMore(Box::new(text("an address, a network or the name of a set")))
}

section! {
    /// A list of networks in a file, one per line; `#` begins a comment.
    mod ip_set = "ip_sets.NAME[]";
    /// The path of the file; a relative one starts at the folder of `gateway.yaml`.
    FILE: Text<String> = Text::new("the path of a file", |text| Ok(text.to_owned())),
        "file", required, "list.txt";
}

section! {
    /// Rules for clients by address: `deny` beats `allow`, and `allow` beats `bypass`.
    mod access = "access";
    /// The only clients that may come in; others get 403.
    ALLOW: Special = Special(|| Shape::Either(vec![Shape::Words(vec!["any"]), networks()])),
        "allow", "any", "[10.0.0.0/8, office]";
    /// Clients that get 403.
    DENY: Special = Special(networks), "deny", "[]", "[192.0.2.7]";
    /// Clients without limits, and without bans except those that operators set.
    BYPASS: Special = Special(networks), "bypass", "[]", "[10.1.0.0/16]";
}

section! {
    /// Bans of clients that are rejected, or refused otherwise, too often: 429, with the rest of the ban as
    /// Retry-After.
    mod bans = "bans";
    /// The number of strikes within a period that starts a ban.
    AFTER: OrWord<Text<Rate>> = OrWord("none", Text::new("a rate", parse_strikes)), "after", "none", "20/1m";
    /// What is a strike: `reject` is a rejection by a rate or a queue; a status, a class or a range stands for the
    /// responses of upstreams, and for those of the gateway that the client caused. A response counts once.
    STRIKES: OneOrMore<OrWord<StatusRange>> = OneOrMore(OrWord("reject", STATUS_RANGE)),
        "strikes", "[reject]", "[reject, 401, 403, 404]";
    /// The length of the first ban. Each repetition doubles it.
    FOR: Text<Duration> = NONZERO_TIME, "for", "10m", "1h";
    /// The length of the longest ban.
    MAX: Text<Duration> = NONZERO_TIME, "max", "1d", "7d";
    /// Bans an address, or an account wherever it comes from.
    KEY: Words<BanKey> = Words(&[("ip", BanKey::Ip), ("account", BanKey::Account)]), "key", "ip", "account";
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
