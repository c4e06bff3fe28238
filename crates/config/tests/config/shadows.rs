//! `shadow` and `enforce` in valid files, with the sentences about them.

use sluicegate_config::describe::describe_limit;
use sluicegate_model::{Algorithm, LimitId};

use super::limits::token_bursts;
use super::values::{limit, read};

#[test]
fn a_shadow_is_a_limit_behind_all_others() {
    let config = read("shadow");
    let names: Vec<&str> = config.limits.iter().map(|limit| limit.name.as_str()).collect();
    let expected = [
        ["per-ip", "tiered", "line", "slots", "all", "nobody", "/#6"].as_slice(),
        &["per-ip:shadow", "tiered:shadow", "line:shadow", "slots:shadow", "/#6:shadow"],
    ];
    assert_eq!(names, expected.concat());
    let shadow = limit(&config, "per-ip:shadow");
    assert!(shadow.dry_run && shadow.enforce.is_none() && shadow.shadow.is_none());
    assert_eq!((shadow.shadow_of, limit(&config, "per-ip").shadow), (Some(LimitId(0)), Some(LimitId(7))));
    assert_eq!(
        (token_bursts(shadow), token_bursts(limit(&config, "per-ip"))),
        (vec![(5, 10)], vec![(10, 20)])
    );
    assert_eq!(limit(&config, "per-ip").key, shadow.key);
    let Algorithm::LeakyBucket { rates, max_wait } = &limit(&config, "line:shadow").algorithm else {
        panic!("a shadow has the algorithm of its limit")
    };
    assert_eq!((rates[0].queue, rates[0].rate.units.get(), *max_wait), (50, 10, None));
    let tiered = limit(&config, "tiered:shadow");
    assert_eq!(tiered.tiers, [("staff".to_owned(), None)], "its numbers hold for all tiers that are limited");
    let chain = |ids: &[LimitId]| config.with_shadows(ids).map(|id| names[id.0]).collect::<Vec<_>>();
    assert_eq!(chain(&config.server.limits), ["per-ip", "per-ip:shadow"]);
    assert_eq!(
        chain(&config.locations[0].limits),
        [
            "tiered",
            "tiered:shadow",
            "line",
            "line:shadow",
            "slots",
            "slots:shadow",
            "all",
            "nobody",
            "/#6",
            "/#6:shadow"
        ]
    );
}

#[test]
fn shares_are_percentages_with_decimals() {
    let config = read("shadow");
    let share = |name: &str| limit(&config, name).enforce.map(|share| share.to_string());
    assert_eq!(share("per-ip").as_deref(), Some("10%"));
    assert_eq!(share("tiered").as_deref(), Some("0.5%"));
    assert_eq!(share("nobody").as_deref(), Some("0%"));
    assert_eq!((share("all"), share("line")), (None, None), "100% is the default");
}

#[test]
fn sentences_say_what_acts() {
    let config = read("shadow");
    let sentence = |id| describe_limit(&config, LimitId(id), None);
    assert!(
        sentence(0).ends_with("; acts on 10% of its keys, and is a dry run for the others"),
        "{}",
        sentence(0)
    );
    assert!(
        sentence(7).ends_with(" (shadow of per-ip: judged beside it, never rejected)"),
        "{}",
        sentence(7)
    );
    assert!(
        sentence(7).contains("5 requests per second per client IP, 10 at once; the 11th would be rejected")
    );
}
