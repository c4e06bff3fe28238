//! Pauses of limits, and numbers in place of those of the file.

use super::*;
use crate::gateway::write_changes;
use sluicegate_model::{Algorithm, LimitChange, WrittenNumbers};
use sluicegate_store::operator_entries::OperatorEntry;

/// A limit that is used with another burst at one place, has a tier and a shadow.
const RICH: &str = "limits:\n  \
                    hourly: { rate: 2/h, tiers: { gold: { rate: 9/h, burst: 2 } }, shadow: { rate: 1/h } }\n  \
                    slots: { algorithm: concurrency, max_concurrent: 3 }\n  \
                    classes: { rate: 10/s, burst: 10, shares: { by: tier, classes: { gold: { least: 50% } } } }\n  \
                    spaced: { algorithm: leaky_bucket, rate: 9/h, burst: 5, queue: 9, cost: 5 }\n  \
                    far: 2/h\n\
                    server: { limits: [{ use: hourly, burst: 1 }, { use: slots, max_concurrent: 2 }, \
                    { use: spaced, queue: 1 }, { use: far, burst: 9 }] }";

fn change(minutes: u64, numbers: Option<&str>) -> LimitChange {
    let at_unix_ns = Now::read_clock().to_unix_ns();
    let written =
        |fields: &str| WrittenNumbers { fields: fields.to_owned(), file_said: String::new(), at_unix_ns };
    LimitChange {
        limit: String::new(),
        until_unix_ns: at_unix_ns + minutes * MINUTE,
        by: "ann".to_owned(),
        reason: "a test".to_owned(),
        numbers: numbers.map(written),
    }
}

fn changed(before: &Gateway, limit: &str, change: LimitChange) -> Gateway {
    let config = before.config_with_change(&[limit.to_owned()], change);
    next(before, &config.unwrap_or_else(|fault| panic!("{fault}")))
}

fn ended(before: &Gateway, limit: &str, is_set: bool) -> Gateway {
    next(before, &before.config_without_changes(&[limit.to_owned()], is_set, false).unwrap())
}

/// The number of a token bucket and its burst.
fn bucket(algorithm: &Algorithm) -> (u64, u64) {
    let Algorithm::TokenBucket { rates } = algorithm else { panic!("{algorithm:?}") };
    (rates[0].rate.units.get(), rates[0].burst)
}

fn in_force(gateway: &Gateway) -> (u64, u64) {
    bucket(&gateway.limits[0].config.algorithm)
}

#[test]
fn a_paused_limit_counts_and_rejects_nobody() {
    let (first, now) = (gateway(HOURLY), Now::read_clock());
    assert_eq!(admitted(&first, "192.0.2.1", now), 2);
    let second = changed(&first, "hourly", change(10, None));
    assert_eq!((admitted(&second, "192.0.2.1", now), admitted(&second, "192.0.2.2", now)), (100, 100));
    let third = ended(&second, "hourly", false);
    assert_eq!(
        [1, 2, 3].map(|ip| admitted(&third, &format!("192.0.2.{ip}"), now)),
        [0, 0, 2],
        "both were counted"
    );
    let all = ["hourly".to_owned()];
    assert!(third.config_without_changes(&all, false, false).is_err());
    assert!(third.config_without_changes(&all, false, true).is_ok(), "it has just ended");
}

#[tokio::test(start_paused = true)]
async fn changes_end_by_themselves() {
    let first = changed(&gateway(HOURLY), "hourly", change(10, None));
    let second = changed(&first, "hourly", change(20, Some(r#"{"burst": 9}"#)));
    let now = Now::read_clock();
    assert_eq!(second.next_grant_end(), Some(later(now, 10)));
    assert!(second.config_without_ended(Now(later(now, 10).0 - 1)).is_none());
    tokio::time::advance(Duration::from_secs(600)).await;
    let third = next(&second, &second.config_without_ended(later(now, 10)).unwrap());
    let limit = &third.limits[0].config;
    assert_eq!((limit.dry_run, limit.pause.is_none(), in_force(&third)), (false, true, (2, 9)));
    tokio::time::advance(Duration::from_secs(600)).await;
    let fourth = next(&third, &third.config_without_ended(later(now, 20)).unwrap());
    assert_eq!((in_force(&fourth), fourth.next_grant_end()), ((2, 2), None));
    assert!(fourth.config.limits[0].file.is_none());
}

#[test]
fn a_second_set_replaces_the_first_as_a_whole_and_counters_stay() {
    let (first, now) = (gateway(HOURLY), Now::read_clock());
    assert_eq!(admitted(&first, "192.0.2.1", now), 2);
    let second = changed(&first, "hourly", change(10, Some(r#"{"rate": "3/h", "burst": 5}"#)));
    assert_eq!(
        (in_force(&second), admitted(&second, "192.0.2.1", now)),
        ((3, 5), 3),
        "two of five were used"
    );
    let third = changed(&second, "hourly", change(10, Some(r#"{"burst": 6}"#)));
    assert_eq!(
        (in_force(&third), admitted(&third, "192.0.2.1", now)),
        ((2, 6), 1),
        "the rate is the file's again"
    );
    let fourth = ended(&third, "hourly", true);
    assert_eq!((in_force(&fourth), admitted(&fourth, "192.0.2.1", now)), ((2, 2), 0));
    assert_eq!(admitted(&fourth, "192.0.2.9", now), 2);
}

#[test]
fn tiers_places_shadows_and_grants_keep_their_numbers() {
    let (first, now) = (gateway(RICH), Now::read_clock());
    let granted = granted(&first, "192.0.2.1", "{ rate: 1/d, burst: 5 }", 10, now);
    let second = changed(&granted, "hourly", change(10, Some(r#"{"rate": "3/h", "burst": 7}"#)));
    let limit = &second.limits[0].config;
    assert_eq!(bucket(&limit.algorithm), (3, 7));
    assert_eq!(bucket(limit.tiers[0].1.as_ref().unwrap()), (9, 2));
    assert_eq!(bucket(&limit.views[0]), (3, 1), "the place has a burst of its own at the rate of the limit");
    assert_eq!(bucket(&limit.grants[0].numbers), (1, 5));
    let shadow = limit.shadow.unwrap();
    assert_eq!(bucket(&second.limits[shadow.0].config.algorithm).0, 1);
    let third = ended(&second, "hourly", true);
    let limit = &third.limits[0].config;
    assert_eq!((bucket(&limit.algorithm), bucket(&limit.views[0])), ((2, 2), (2, 1)));
}

#[test]
fn wrong_changes_leave_everything_as_it_is() {
    let first = gateway(RICH);
    for (limit, numbers, minutes, why) in [
        ("other", r#"{"rate": "3/h"}"#, 1, "there is no limit `other`"),
        ("hourly", r#"{"rate": "0/h"}"#, 1, "would let nothing pass"),
        ("hourly", r#"{"rate": "3/h", "burst": 0}"#, 1, "a burst of 0 would let nothing pass"),
        ("hourly", r#"{"rate": "3/h", "queue": 4}"#, 1, "`queue` is not a field of token_bucket"),
        ("hourly", r#"{"rate": "3/h", "key": "ip"}"#, 1, "unknown field `key`"),
        ("hourly", r#"{"algorithm": "sliding_log"}"#, 1, "unknown field `algorithm`"),
        ("hourly", r#"{"enforce": "1%"}"#, 1, "unknown field `enforce`"),
        ("hourly", r#"{"charge": {}}"#, 1, "unknown field `charge`"),
        ("hourly", r#"{"rate": ["3/h", "9/d"]}"#, 1, "places of chains have a number of their own"),
        ("hourly", "{}", 1, "other numbers are missing"),
        ("hourly", r#"{"rate": "3/h"}"#, 0, "it lasts at most 18250 days"),
        ("slots", r#"{"max_concurrent": 0}"#, 1, "is not a whole number from 1"),
        ("slots", r#"{"max_concurrent": {"min": 2, "max": 3}}"#, 1, "follows the latency of the upstream"),
        ("spaced", r#"{"burst": 1}"#, 1, "a cost of 5 can never pass: the bucket of a place is 2"),
        ("far", r#"{"rate": "1/9000d", "burst": 1}"#, 1, "146 years"),
        ("slots", r#"{"rate": "3/h"}"#, 1, "`rate` is not a field of concurrency"),
        ("classes", r#"{"burst": 1}"#, 1, "the floor of class `gold` holds less than one request"),
    ] {
        let fault =
            first.config_with_change(&[limit.to_owned()], change(minutes, Some(numbers))).unwrap_err();
        assert!(fault.to_string().contains(why), "{numbers}: {fault}");
    }
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let month = 31 * 24 * 60;
    assert!(first.config_with_change(&names(&["hourly"]), change(month, None)).is_err());
    assert!(first.config_with_change(&names(&["hourly", "other"]), change(1, None)).is_err());
    assert!(first.config_with_change(&names(&["hourly", "slots"]), change(1, None)).is_ok());
    assert!(first.config.limits.iter().all(|limit| limit.changes().next().is_none()));
}

#[test]
fn a_reload_keeps_changes_unless_the_file_says_something_else_about_that_number() {
    let paused = changed(&gateway(HOURLY), "hourly", change(10, None));
    let first = changed(&paused, "hourly", change(10, Some(r#"{"rate": "9/h"}"#)));
    let reload = |text: &str| {
        let mut config = config(text);
        let lost: Vec<String> =
            first.carry_limit_changes(&mut config).into_iter().map(|(_, why)| why).collect();
        let limit = &config.limits[0];
        (bucket(&limit.algorithm), limit.dry_run && limit.pause.is_some(), lost)
    };
    assert_eq!(reload(HOURLY), ((9, 9), true, vec![]), "a burst as great as the rate follows it");
    let burst = "limits: { hourly: { rate: 2/h, burst: 5 } }";
    assert_eq!(reload(burst), ((9, 5), true, vec![]), "another number: missing ones are the file's");
    let rate = "limits: { hourly: { rate: 3/h, burst: 2 } }";
    let ended = "the numbers set for hourly ended: the file says rate: \"3/h\" now";
    assert_eq!(reload(rate), ((3, 2), true, vec![ended.to_owned()]));
    let log = "limits: { hourly: { rate: 2/h, algorithm: sliding_window } }";
    let mut other = config(log);
    assert_eq!(first.carry_limit_changes(&mut other).len(), 0, "the same rate, and the file's algorithm");
    let gone = "limits: { other: 2/h, hourly2: 1/s }";
    let mut gone = config(&gone.replace("hourly2", "hourly").replace("other", "a"));
    gone.limits.retain(|limit| limit.name == "a");
    let lost = first.carry_limit_changes(&mut gone);
    assert_eq!(
        lost.iter().map(|(entry, _)| str::from_utf8(entry).unwrap()).collect::<Vec<_>>(),
        ["pause/hourly", "numbers/hourly"]
    );
}

#[test]
fn a_snapshot_keeps_changes_without_the_secret_of_keys() {
    let (paused, now) = (changed(&gateway(HOURLY), "hourly", change(10, None)), Now::read_clock());
    let first = changed(&paused, "hourly", change(10, Some(r#"{"rate": "9/h"}"#)));
    let state = serde_json::to_value(first.save_operator_state(now)).unwrap();
    let adopt = |text: &str| {
        let saved = serde_json::from_value(state.clone()).unwrap();
        let gateway = gateway(text).with_operator_state(saved, None, now);
        (in_force(&gateway), gateway.limits[0].config.pause.is_some())
    };
    assert_eq!(adopt(HOURLY), ((9, 9), true));
    assert_eq!(
        adopt("limits: { hourly: { rate: 5/h, burst: 2 } }"),
        ((5, 2), true),
        "the file says something else"
    );
}

fn shared(limit: &str) -> String {
    format!("state: {{ store: redis, redis: {{ url: redis://127.0.0.1:1 }} }}\nlimits: {{ hourly: {limit} }}")
}

/// Another gateway may have ended the numbers, of which this one has not heard yet.
#[test]
fn a_change_tells_other_gateways_nothing_of_others() {
    let set = changed(&gateway(&shared("2/h")), "hourly", change(10, Some(r#"{"rate": "9/h"}"#)));
    let hourly = ["hourly".to_owned()];
    let config = set.config_with_change(&hourly, change(10, None)).unwrap();
    let told = |is_set| {
        let entries = write_changes(&config, &hourly, is_set).into_iter();
        entries.map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(
        (told(false), told(true)),
        (vec!["pause/hourly".to_owned()], vec!["numbers/hourly".to_owned()])
    );
    let local = gateway(HOURLY).config_with_change(&hourly, change(10, None)).unwrap();
    assert_eq!(write_changes(&local, &hourly, false), []);
}

/// The clock of the gateway that paused the limit is an hour ahead.
#[tokio::test(start_paused = true)]
async fn a_change_ends_when_its_entry_ends() {
    let first = changed(&gateway(&shared("2/h")), "hourly", change(70, None));
    let mut entries = first.operator_entries(Now::read_clock());
    entries[0].until = later(Now::read_clock(), 10);
    let other = gateway(&shared("2/h"));
    let next = next(&other, &other.config_with_entries(&entries, 0).0.unwrap());
    let left =
        |gateway: &Gateway| gateway.config.limits[0].pause.as_ref().unwrap().left_ns().div_ceil(MINUTE);
    assert_eq!((left(&first), left(&next)), (70, 10));
    entries[0].until = Now(entries[0].until.0 + 1_000_000_000 / 2);
    assert!(next.config_with_entries(&entries, 0).0.is_none(), "the same end, told by another call");
}

/// What other gateways of a store make of the entries of one.
#[test]
fn entries_hold_where_the_limit_is_shared_and_the_file_says_the_same() {
    let paused = changed(&gateway(&shared("2/h")), "hourly", change(10, None));
    let first = changed(&paused, "hourly", change(10, Some(r#"{"rate": "9/h"}"#)));
    let entries: Vec<OperatorEntry> = first.operator_entries(Now::read_clock());
    assert_eq!(entries.len(), 2);
    let adopt = |limit: &str, read_unix_ns| {
        let (config, lost) = gateway(&shared(limit)).config_with_entries(&entries, read_unix_ns);
        let limit = config.map(|config| config.limits[0].clone());
        (limit.map(|limit| (bucket(&limit.algorithm).0, limit.dry_run)), lost.len())
    };
    assert_eq!(adopt("2/h", 0), (Some((9, true)), 0));
    assert_eq!(adopt("3/h", 0), (Some((3, true)), 0), "set after its file was read");
    assert_eq!(adopt("3/h", u64::MAX), (Some((3, true)), 1), "set before, and lost for all");
    assert_eq!(adopt("{ rate: 2/h, state: local }", 0), (None, 0));
    assert_eq!(first.config_with_entries(&entries, 0).0.map(drop), None, "its own entries are no news");
    let (ended, lost) = first.config_with_entries(&[], 0);
    assert_eq!((ended.unwrap().limits[0].file.is_none(), lost.len()), (true, 0));
}
