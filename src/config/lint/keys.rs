//! What limits count by is chosen by the very clients they are to hold back.

use super::{File, note};
use crate::config::describe::describe_key_part;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::limit::{Cost, KeyPart, Source};
use crate::config::model::listen::ListenAddress;
use crate::config::yaml::fields::Value;

const HELP: &str = "let only the proxy that sets it reach this listener, and name that proxy in \
                    server.trusted_proxies, e.g. [10.0.0.0/8]";

/// Who reads a source that any client may write.
struct Believed<'a> {
    source: &'a Source,
    /// Where it is read first.
    value: Value<'a>,
    role: Role,
    /// The names of the limits that count by it.
    limits: Vec<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Account,
    Tier,
    Key,
}

/// A claim stands in a token that its issuer has signed.
fn is_proven(source: &Source) -> bool {
    matches!(source, Source::Jwt(_))
}

pub(super) fn warn(file: &File<'_>) {
    // Peers on a unix socket are trusted.
    let on_unix = |address: &ListenAddress| matches!(address, ListenAddress::Unix(_));
    let only_unix = file.config.listen.iter().all(|listen| on_unix(&listen.address));
    if only_unix || !file.config.server.trusted_proxies.is_empty() {
        return;
    }
    for believed in believed(file) {
        let name = describe_key_part(&KeyPart::Source(believed.source.clone()));
        let complaint = Complaint::new(codes::SPOOFABLE, believed.message(&name)).help(HELP);
        note(&believed.value, complaint);
    }
    for limit in file.used_limits() {
        if let Cost::Header { name, .. } = &file.config.limits[limit].cost {
            let message = format!(
                "a cost is believed from trusted proxies alone, and there are none: whatever header {name} says, \
                 a request costs 1"
            );
            let help = "name the proxy that sets it in server.trusted_proxies, or write a number";
            note(&file.limit(limit, &["cost"]), Complaint::new(codes::COST_IGNORED, message).help(help));
        }
    }
}

/// Every source that something is decided by, once.
fn believed<'a>(file: &File<'a>) -> Vec<Believed<'a>> {
    let mut all: Vec<Believed<'a>> = Vec::new();
    let account = &file.config.account;
    if let Some(source) = account.from.as_ref().filter(|source| !is_proven(source)) {
        let value = file.at(&["account", "from"]);
        all.push(Believed { source, value, role: Role::Account, limits: Vec::new() });
    }
    if let Some(source) = account.tier.from.as_ref().filter(|source| !is_proven(source)) {
        let value = file.at(&["account", "tier", "from"]);
        all.push(Believed { source, value, role: Role::Tier, limits: Vec::new() });
    }
    for index in file.used_limits() {
        let limit = &file.config.limits[index];
        for (field, part) in limit
            .key
            .iter()
            .map(|part| ("key", part))
            .chain(limit.fair_by.iter().map(|part| ("fair_by", part)))
        {
            let known = match part {
                KeyPart::Source(source) if is_proven(source) => continue,
                KeyPart::Source(source) => all.iter_mut().find(|known| known.source == source),
                KeyPart::Account => all.iter_mut().find(|known| known.role == Role::Account),
                _ => continue,
            };
            match (known, part) {
                (Some(known), _) => {
                    if known.limits.last() != Some(&limit.name.as_str()) {
                        known.limits.push(&limit.name);
                    }
                }
                (None, KeyPart::Source(source)) => {
                    let value = file.limit(index, &[field]);
                    all.push(Believed { source, value, role: Role::Key, limits: vec![&limit.name] });
                }
                (None, _) => {}
            }
        }
    }
    all
}

impl Believed<'_> {
    fn message(&self, name: &str) -> String {
        let limits: Vec<String> = self.limits.iter().map(|limit| format!("`{limit}`")).collect();
        let (noun, verb) = if limits.len() == 1 { ("limit", "counts") } else { ("limits", "count") };
        let limits = limits.join(" and ");
        match (self.role, self.limits.is_empty()) {
            (Role::Tier, _) => format!("any client can choose {name}, and be in any tier it likes"),
            (Role::Account, true) => {
                format!("any client can choose {name}, and call under any account it likes")
            }
            (Role::Account, false) => format!(
                "any client can choose {name}, which names the account that {noun} {limits} {verb} by: \
                 a new name gets fresh counters, another's name uses up theirs"
            ),
            (Role::Key, _) => format!(
                "any client can choose {name}, which {noun} {limits} {verb} by: \
                 a new value gets fresh counters, another's value uses up theirs"
            ),
        }
    }
}
