//! The heaviest keys of a fleet: each gateway reports its own, and any of them adds them up by name.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::CountedLimit;
use super::report::{HeavyBy, HeavyKey, KeyRate};
use crate::gateway::Gateway;
use sluicegate_http::request::key::NamedKey;
use sluicegate_limit::table::CounterKey;
use sluicegate_store::SharedKey;

/// The heaviest keys of a limit over several gateways.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetKeys {
    /// The keys with their rates over all gateways, heaviest first.
    pub keys: Vec<HeavyKey>,
    /// The gateways that are added up, this one included.
    pub gateways: usize,
}

/// The heaviest keys of one limit, as one gateway tells them to others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedKeys {
    /// The most by which each rate may be too low.
    pub error: f64,
    /// The highest rate that a key may have which is not listed.
    pub rest: f64,
    /// Names with the units per second that were asked and refused.
    pub keys: Vec<(String, f64, f64)>,
}

/// The most keys that are taken from one report: as many as a gateway lists, half of them by either order.
pub const REPORTED_MAX: usize = 40;

// === impl ReportedKeys ===

impl ReportedKeys {
    /// The first `top` keys of each order.
    pub fn from_lists(asked: &[HeavyKey], refused: &[HeavyKey], top: usize) -> ReportedKeys {
        let (asked, refused) = (&asked[..asked.len().min(top)], &refused[..refused.len().min(top)]);
        let all = || asked.iter().chain(refused);
        let error = all().map(greatest_error).fold(0.0, f64::max);
        let last = |list: &[HeavyKey], by| list.last().filter(|_| list.len() >= top).map(|key| rate(key, by));
        let rest = [last(asked, HeavyBy::Asked), last(refused, HeavyBy::Refused)].into_iter().flatten();
        let mut keys: Vec<(String, f64, f64)> = Vec::new();
        for key in all() {
            if !keys.iter().any(|(name, ..)| *name == key.name) {
                keys.push((key.name.clone(), round(key.asked.per_s), round(key.refused.per_s)));
            }
        }
        ReportedKeys { error: round(error), rest: round(rest.fold(0.0, f64::max) + error), keys }
    }

    /// The keys of `limit` in the report of a gateway; none if it has no traffic of this limit, or another form.
    pub fn find_in(report: &Value, limit: &str) -> ReportedKeys {
        let mut found: ReportedKeys =
            report.get(limit).and_then(|keys| Deserialize::deserialize(keys).ok()).unwrap_or_default();
        found.keys.retain(|(_, asked, refused)| *asked >= 0.0 && *refused >= 0.0);
        found.keys.truncate(REPORTED_MAX);
        (found.error, found.rest) = (found.error.max(0.0), found.rest.max(0.0));
        found
    }
}

/// Adds the keys that other gateways `reported` to the own ones, and returns the heaviest `top`.
pub fn merge_fleet(
    gateway: &Gateway,
    limit: &CountedLimit,
    own: Vec<HeavyKey>,
    reported: &[ReportedKeys],
    by: HeavyBy,
    top: usize,
) -> Vec<HeavyKey> {
    // As if no gateway listed a key; each one that does corrects that.
    let rest: f64 = reported.iter().map(|part| part.rest).sum();
    let own_error = own.first().map_or(0.0, greatest_error) + rest;
    let mut merged = own;
    merged.iter_mut().for_each(|key| add_error(key, rest));
    let mut positions: HashMap<String, usize> =
        merged.iter().enumerate().map(|(position, key)| (key.name.clone(), position)).collect();
    for part in reported {
        for (name, asked, refused) in &part.keys {
            let position = match positions.get(name) {
                Some(known) => *known,
                None => {
                    let Some(key) = name_reported(gateway, limit, name, own_error) else { continue };
                    merged.push(key);
                    positions.insert(name.clone(), merged.len() - 1);
                    merged.len() - 1
                }
            };
            let key = &mut merged[position];
            key.asked.per_s += asked;
            key.refused.per_s += refused;
            add_error(key, part.error - part.rest);
        }
    }
    merged.sort_by(|one, other| {
        rate(other, by).total_cmp(&rate(one, by)).then_with(|| one.name.cmp(&other.name))
    });
    merged.truncate(top);
    merged
}

/// A key that only another gateway has seen; `None` if it is none of this limit, which is another one there.
fn name_reported(gateway: &Gateway, limit: &CountedLimit, name: &str, error_per_s: f64) -> Option<HeavyKey> {
    let (key, shared) = match gateway.key_naming().parse_name(&limit.name, &limit.spec, name).ok()? {
        NamedKey::Known(parsed) => (parsed.counter_key(&gateway.keys), Some(SharedKey(parsed.shared_key()))),
        // No key has this id, as nothing is known here of the one that the hash stands for.
        NamedKey::Hidden => (CounterKey::new(0, 0), None),
    };
    let none = KeyRate { per_s: 0.0, error_per_s };
    Some(HeavyKey { name: name.to_owned(), account_name: None, key, shared, asked: none, refused: none })
}

fn rate(key: &HeavyKey, by: HeavyBy) -> f64 {
    match by {
        HeavyBy::Asked => key.asked.per_s,
        HeavyBy::Refused => key.refused.per_s,
    }
}

fn greatest_error(key: &HeavyKey) -> f64 {
    key.asked.error_per_s.max(key.refused.error_per_s)
}

fn add_error(key: &mut HeavyKey, error: f64) {
    for rate in [&mut key.asked, &mut key.refused] {
        rate.error_per_s = (rate.error_per_s + error).max(0.0);
    }
}

/// Reports are short.
fn round(rate: f64) -> f64 {
    (rate * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::heavy_keys::report::find_counted_limit;
    use sluicegate_config as config;

    fn gateway() -> Gateway {
        let yaml = "access_log: { output: none }
account: { from: header:x-account }
locations: [{ path: /, upstream: demo, limits: { name: one, key: account, rate: 1/s } }]";
        let loaded = config::parse(yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
        Gateway::build(&loaded.config, None).unwrap()
    }

    fn key(name: &str, asked: f64, refused: f64) -> HeavyKey {
        let rate = |per_s| KeyRate { per_s, error_per_s: 0.5 };
        let key = CounterKey::new(7, 0);
        let (name, account_name) = (name.into(), None);
        HeavyKey { name, account_name, key, shared: None, asked: rate(asked), refused: rate(refused) }
    }

    fn names(keys: &[HeavyKey]) -> Vec<(&str, f64, f64)> {
        keys.iter().map(|key| (key.name.as_str(), key.asked.per_s, key.asked.error_per_s)).collect()
    }

    #[test]
    fn a_report_lists_the_first_of_each_order_and_bounds_the_others() {
        let asked = [key("a", 9.0, 0.0), key("b", 8.0, 3.0), key("c", 7.0, 1.0)];
        let refused = [key("b", 8.0, 3.0), key("c", 7.0, 1.0)];
        let reported = ReportedKeys::from_lists(&asked, &refused, 2);
        let listed = [("a", 9.0, 0.0), ("b", 8.0, 3.0), ("c", 7.0, 1.0)];
        assert_eq!(reported.keys, listed.map(|(name, asked, refused)| (name.to_owned(), asked, refused)));
        assert_eq!((reported.error, reported.rest), (0.5, 8.5));
        let all = ReportedKeys::from_lists(&asked, &refused, 20);
        assert_eq!((all.keys.len(), all.error, all.rest), (3, 0.5, 0.5), "no other key was seen");
        let report = serde_json::json!({ "one": all });
        assert_eq!(ReportedKeys::find_in(&report, "one"), all);
        for wrong in [serde_json::json!(null), serde_json::json!({ "one": 1 }), serde_json::json!({})] {
            assert_eq!(ReportedKeys::find_in(&wrong, "one"), ReportedKeys::default());
        }
        let negative = serde_json::json!({ "one": { "error": -1.0, "keys": [["a", -1.0, 0.0]] } });
        assert_eq!(ReportedKeys::find_in(&negative, "one"), ReportedKeys::default());
    }

    #[tokio::test]
    async fn rates_of_equal_names_are_added_up_with_their_errors() {
        let gateway = gateway();
        let (limit, _) = find_counted_limit(&gateway, "one").unwrap();
        let own = vec![key("account=a", 10.0, 5.0), key("account=b", 8.0, 6.0)];
        let listed = |keys: &[(&str, f64, f64)]| {
            keys.iter().map(|(name, asked, refused)| ((*name).to_owned(), *asked, *refused)).collect()
        };
        let reported = [
            ReportedKeys {
                error: 0.25,
                rest: 2.0,
                keys: listed(&[
                    ("account=b", 4.0, 1.0),
                    ("account=%23", 3.0, 3.0),
                    ("ip=192.0.2.1", 99.0, 9.0),
                ]),
            },
            ReportedKeys { error: 0.0, rest: 0.0, keys: listed(&[("account=#00000000000000aa", 11.0, 0.0)]) },
        ];
        let merged = merge_fleet(&gateway, &limit, own.clone(), &reported, HeavyBy::Asked, 9);
        let expected = [
            ("account=b", 12.0, 0.75),
            ("account=#00000000000000aa", 11.0, 2.5),
            ("account=a", 10.0, 2.5),
            ("account=%23", 3.0, 0.75),
        ];
        assert_eq!(names(&merged), expected, "a key of another limit of this name is left out");
        assert!(merged[1].shared.is_none() && merged[3].shared.is_some());
        let refused = merge_fleet(&gateway, &limit, own, &reported, HeavyBy::Refused, 2);
        assert_eq!(names(&refused), [expected[0], expected[2]]);
        assert_eq!(refused[0].refused.per_s, 7.0);
    }
}
