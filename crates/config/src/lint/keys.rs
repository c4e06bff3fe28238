//! Warns of accounts, tiers and keys that any client can choose itself.

use super::LintContext;
use crate::describe::describe_key_part;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::{Cost, KeyPart, ListenAddress, Shares, ValueSource, codes};

const HELP: &str = "let only the proxy that sets it reach this listener, and name that proxy in \
                    server.trusted_proxies, e.g. [10.0.0.0/8]";

/// The help for a value in a body, which no proxy sets.
const BODY_HELP: &str = "take it from a token (jwt:CLAIM), or from a header that a trusted proxy sets";

/// A source that any client can write, and its uses.
struct SpoofableSource<'a> {
    source: &'a ValueSource,
    /// The first field that reads it.
    value: FieldValue<'a>,
    role: SourceRole,
    /// The names of the limits that count by it, and of those that find the classes of their shares by it.
    limits: Vec<&'a str>,
    sharing: Vec<&'a str>,
    /// A limit counts by it without the client's address, so that another client can use up its counters.
    is_alone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SourceRole {
    Account,
    Tier,
    Key,
}

pub(super) fn lint_keys(file: &LintContext<'_>) {
    // Peers on a unix socket are trusted.
    let on_unix = |address: &ListenAddress| matches!(address, ListenAddress::Unix(_));
    let only_unix = file.config.listen.iter().all(|listen| on_unix(&listen.address));
    if only_unix || !file.config.server.trusted_proxies.is_empty() {
        return;
    }
    for spoofable in find_spoofable(file) {
        let name = describe_key_part(&KeyPart::Source(spoofable.source.clone()));
        let help = if matches!(spoofable.source, ValueSource::Json(_)) { BODY_HELP } else { HELP };
        spoofable.value.warn(codes::SPOOFABLE, spoofable.render_message(&name), help);
    }
    for limit in file.used_limits() {
        if let Cost::Header { name, .. } = &file.config.limits[limit].cost {
            let message = format!(
                "a cost header counts from trusted proxies only, and there are none: header {name} is ignored, and \
                 a request costs 1"
            );
            let help = "name the proxy that sets it in server.trusted_proxies, or write a number";
            file.limit_value(limit, &["cost"]).warn(codes::COST_IGNORED, message, help);
        }
        if let Some(KeyPart::Source(ValueSource::Header(name))) =
            file.config.limits[limit].shares.as_ref().map(|shares| &shares.by)
        {
            let message = format!(
                "a header names a class from trusted proxies only, and there are none: header {name} is ignored, \
                 and every request is of the class `{}`",
                Shares::DEFAULT
            );
            let help = "name the proxy that sets it in server.trusted_proxies";
            file.limit_value(limit, &["shares", "by"]).warn(codes::NO_EFFECT, message, help);
        }
    }
}

/// Every spoofable source that a decision depends on, once.
fn find_spoofable<'a>(file: &LintContext<'a>) -> Vec<SpoofableSource<'a>> {
    let mut all: Vec<SpoofableSource<'a>> = Vec::new();
    let account = &file.config.account;
    let own = [
        (&account.from, &["account", "from"][..], SourceRole::Account),
        (&account.tier.from, &["account", "tier", "from"], SourceRole::Tier),
    ];
    for (source, path, role) in own {
        // Tokens are signed, and answers come from the service.
        let is_safe = |source: &ValueSource| matches!(source, ValueSource::Jwt(_) | ValueSource::Auth(_));
        let Some(source) = source.as_ref().filter(|source| !is_safe(source)) else {
            continue;
        };
        all.push(SpoofableSource::new(source, file.value_at(path), role));
    }
    for index in file.used_limits() {
        let limit = &file.config.limits[index];
        let is_alone = !limit.key.contains(&KeyPart::Ip);
        let turns = limit.fair_by.iter().map(|part| ("fair_by", part));
        for (field, part) in limit.key.iter().map(|part| ("key", part)).chain(turns) {
            let known = match part {
                // Clients may choose a value of a body, which states a demand, and not an identity.
                KeyPart::Source(ValueSource::Jwt(_) | ValueSource::Json(_)) => continue,
                KeyPart::Source(source) => {
                    if !all.iter().any(|known| known.source == source) {
                        let value = file.limit_value(index, &[field]);
                        all.push(SpoofableSource::new(source, value, SourceRole::Key));
                    }
                    all.iter_mut().find(|known| known.source == source)
                }
                KeyPart::Account => all.iter_mut().find(|known| known.role == SourceRole::Account),
                _ => continue,
            };
            let Some(known) = known else { continue };
            if known.limits.last() != Some(&limit.name.as_str()) {
                known.limits.push(&limit.name);
            }
            known.is_alone |= is_alone;
        }
        let role = match limit.shares.as_ref().map(|shares| &shares.by) {
            Some(KeyPart::Account) => SourceRole::Account,
            Some(KeyPart::Tier) => SourceRole::Tier,
            _ => continue,
        };
        // A tier that no source names is that of the account.
        let place = |role| all.iter().position(|known| known.role == role);
        if let Some(place) = place(role).or_else(|| place(SourceRole::Account)) {
            all[place].sharing.push(&limit.name);
        }
    }
    all
}

impl<'a> SpoofableSource<'a> {
    /// A source that nothing uses yet.
    fn new(source: &'a ValueSource, value: FieldValue<'a>, role: SourceRole) -> SpoofableSource<'a> {
        SpoofableSource { source, value, role, limits: Vec::new(), sharing: Vec::new(), is_alone: false }
    }

    fn render_message(&self, name: &str) -> String {
        let sharing: Vec<String> = self.sharing.iter().map(|limit| format!("`{limit}`")).collect();
        match sharing.is_empty() {
            true => self.render_uses(name),
            false => format!("{}, and any share of {}", self.render_uses(name), sharing.join(" and ")),
        }
    }

    fn render_uses(&self, name: &str) -> String {
        let limits: Vec<String> = self.limits.iter().map(|limit| format!("`{limit}`")).collect();
        let (noun, verb) = if limits.len() == 1 { ("limit", "counts") } else { ("limits", "count") };
        let limits = limits.join(" and ");
        match (self.role, self.limits.is_empty()) {
            (SourceRole::Tier, _) => format!("any client can choose {name}, and with it any tier"),
            (SourceRole::Account, true) => {
                format!("any client can choose {name}, and with it any account")
            }
            (SourceRole::Account, false) => format!(
                "any client can choose {name}, which names the account that {noun} {limits} {verb} by: \
                 a new name gets fresh counters{}",
                if self.is_alone { ", another client's name uses up its counters" } else { "" }
            ),
            (SourceRole::Key, _) => format!(
                "any client can choose {name}, which {noun} {limits} {verb} by: \
                 a new value gets fresh counters{}",
                if self.is_alone { ", another client's value uses up its counters" } else { "" }
            ),
        }
    }
}
