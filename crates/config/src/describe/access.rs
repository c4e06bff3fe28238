//! Access rules and bans in one line each.

use super::{format_count, format_full_period, format_period, join_names, list_statuses};
use sluicegate_model::{AccessConfig, BanKey, Config, NetworkList, StoreConfig, StrikeRules};

/// More networks would hide the rest of the line.
const NETWORKS_MAX: usize = 5;
const STATUSES_MAX: usize = 8;

/// "5 rejections per 60 seconds ban a client IP for 10 minutes, each time twice as long, at most 1 day"; `None`
/// without bans.
pub fn describe_bans(config: &Config) -> Option<String> {
    let bans = config.bans.as_ref()?;
    let subject = match bans.key {
        BanKey::Ip => "a client IP",
        BanKey::Account => "an account",
    };
    let after = describe_strikes(bans.after.units.get(), &bans.strikes);
    let ban = if bans.after.units.get() == 1 { "bans" } else { "ban" };
    let mut described = format!(
        "{after} per {} {ban} {subject} for {}",
        format_period(bans.after.period),
        format_full_period(bans.first)
    );
    if bans.longest > bans.first {
        described += &format!(", each time twice as long, at most {}", format_full_period(bans.longest));
    }
    if config.state.store != StoreConfig::Local {
        described += ", at all gateways together";
    }
    Some(described)
}

/// "5 rejections", "5 rejections or responses with 401, 403".
fn describe_strikes(count: u64, strikes: &StrikeRules) -> String {
    let statuses = list_statuses(&strikes.statuses);
    let responses = || join_names(&statuses, STATUSES_MAX);
    match (strikes.rejections, statuses.is_empty()) {
        (_, true) => format_count(count, "rejection"),
        (true, false) => {
            let response = if count == 1 { "response" } else { "responses" };
            format!("{} or {response} with {}", format_count(count, "rejection"), responses())
        }
        (false, false) => format!("{} with {}", format_count(count, "response"), responses()),
    }
}

/// "403 for bad and for all but office; no limits and no bans for 10.0.0.0/8"; `None` if all clients are treated alike.
pub fn describe_access(config: &Config, access: &AccessConfig) -> Option<String> {
    let mut refused = Vec::new();
    if !access.deny.is_empty() {
        refused.push(format!("for {}", list_networks(config, &access.deny)));
    }
    if let Some(allow) = &access.allow {
        refused.push(format!("for all but {}", list_networks(config, allow)));
    }
    let mut described = Vec::new();
    if !refused.is_empty() {
        described.push(format!("403 {}", refused.join(" and ")));
    }
    if !access.bypass.is_empty() {
        described.push(format!("no limits and no bans for {}", list_networks(config, &access.bypass)));
    }
    (!described.is_empty()).then(|| described.join("; "))
}

/// Networks and sets by their names in the file.
pub(super) fn list_networks(config: &Config, networks: &NetworkList) -> String {
    let sets = networks.sets.iter().filter_map(|set| config.ip_sets.get(*set)).map(|set| set.name.clone());
    let names: Vec<String> = networks.written.iter().map(ToString::to_string).chain(sets).collect();
    join_names(&names, NETWORKS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let text =
            format!("{text}\nip_sets: {{ office: 192.0.2.0/24, bad: [198.51.100.0/24, 203.0.113.0/24] }}\n");
        let text = text + "locations: [{ path: /, upstream: demo, limits: 1/s }]\n";
        crate::parse(&text, "x").unwrap_or_else(|report| panic!("{report}")).config
    }

    #[test]
    fn bans() {
        let described = |bans: &str| describe_bans(&config(&format!("bans: {{ {bans} }}")));
        assert_eq!(
            described("after: 5/1m, for: 10m").unwrap(),
            "5 rejections per 60 seconds ban a client IP for 10 minutes, each time twice as long, at most 1 day"
        );
        let account = described("after: 1/1h, for: 1h, max: 1h, key: account");
        assert_eq!(account.unwrap(), "1 rejection per hour bans an account for 1 hour");
        assert_eq!(described("after: none"), None);
        let statuses = described("after: 20/1m, strikes: [reject, 401, 5xx, 403-404]").unwrap();
        assert!(
            statuses
                .starts_with("20 rejections or responses with 401, 5xx, 403-404 per 60 seconds ban a client")
        );
        let alone = described("after: 1/1m, strikes: 404").unwrap();
        assert!(alone.starts_with("1 response with 404 per 60 seconds bans a client IP for 10 minutes"));
    }

    #[test]
    fn access() {
        let described = |access: &str| {
            let config = config(&format!("access: {{ {access} }}"));
            describe_access(&config, &config.access)
        };
        assert_eq!(described("allow: any"), None);
        assert_eq!(described("deny: [bad, 10.0.0.0/8]").unwrap(), "403 for 10.0.0.0/8, bad");
        assert_eq!(
            described("deny: bad, allow: office, bypass: 10.0.0.1").unwrap(),
            "403 for bad and for all but office; no limits and no bans for 10.0.0.1/32"
        );
        let many: Vec<String> = (0..8).map(|net| format!("10.{net}.0.0/16")).collect();
        assert!(described(&format!("deny: [{}]", many.join(", "))).unwrap().ends_with("10.4.0.0/16, 3 more"));
    }
}
