//! Packing of script calls and parsing of replies, sound or not.

use std::num::NonZeroU64;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use sluicegate_limit::LimitOutcome;
use sluicegate_model::{self as model, Algorithm, LeakyBucketRate, Rate, TokenBucketRate, WindowAlign};

const NOW: f64 = 1_700_000_000_000_000.0;

/// A limit with every default.
pub(crate) fn test_limit(name: &str, algorithm: Algorithm) -> model::LimitConfig {
    let text = "locations: [{ path: /, limits: 1/s, respond: { status: 200 } }]";
    // Cannot fail: the text is a valid file.
    let mut limit = sluicegate_config::parse(text, "test").expect("a sound file").config.limits.remove(0);
    (limit.name, limit.algorithm) = (name.into(), algorithm);
    model::LimitConfig { key: vec![model::KeyPart::Ip], ..limit }
}

fn rate(units: u64, seconds: u64) -> Rate {
    Rate::new(NonZeroU64::new(units).unwrap(), Duration::from_secs(seconds))
}

/// The rates of one limit of each algorithm.
fn rules() -> Vec<RateRule> {
    let tokens = TokenBucketRate { rate: rate(3, 1), burst: 7 };
    let queue = LeakyBucketRate { rate: rate(3, 1), burst: 2, queue: 5 };
    let (rates, max_wait) = (vec![rate(10, 60)], Some(Duration::from_millis(1_500)));
    [
        Algorithm::TokenBucket { rates: vec![tokens, tokens] },
        Algorithm::LeakyBucket { rates: vec![queue], max_wait },
        Algorithm::FixedWindow { rates: rates.clone(), align: WindowAlign::Clock },
        Algorithm::SlidingWindow { rates: rates.clone(), buckets: 4 },
        Algorithm::SlidingLog { rates },
        Algorithm::Concurrency { min: None, max: 4, queue: 0, max_wait: None },
    ]
    .into_iter()
    .flat_map(|algorithm| RateRule::rules_of(&test_limit("a", algorithm)))
    .collect()
}

fn item(rule: &RateRule, limit_index: u16, key: u8) -> CallItem<'_> {
    let slot_count = SlotCount { slots: 2, asked: 1, oldest: 5, sequence: 3 << 32 | 9, turn: None };
    CallItem { limit_index, slot_count, mark: 55, ..CallItem::new(rule, SharedKey([key; 16]), 2) }
}

/// The two rates of the token bucket belong to one limit.
fn items(rules: &[RateRule]) -> Vec<CallItem<'_>> {
    rules.iter().enumerate().map(|(index, rule)| item(rule, index.saturating_sub(1) as u16, 1)).collect()
}

fn doubles(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn keys_are_named_once_and_share_a_hash_tag() {
    let rules = rules();
    let mut items = items(&rules);
    items.push(item(&rules[0], 9, 2));
    let keys = PackedCall::new(ScriptOp::Take, "sg", 7, 0, &items).keys;
    let names: Vec<&str> = keys.iter().map(|key| std::str::from_utf8(key).unwrap()).collect();
    let tag = "sg:{AQEBAQEBAQEBAQEBAQEBAQ}";
    let log = format!("{tag}:L:{:08x}", rules[5].id);
    let slots = format!("{tag}:C:{:08x}", rules[6].id);
    assert_eq!(names, [tag, "sg:{AgICAgICAgICAgICAgICAg}", &log, &slots]);
    assert_eq!(
        PackedCall::new(ScriptOp::ReportSlots, "sg", 7, 0, &items).keys.len(),
        1,
        "only slots are held"
    );
}

#[test]
fn the_body_of_a_call() {
    let rules = rules();
    let tokens = item(&rules[0], 0, 1);
    let body = |op| PackedCall::new(op, "sg", 7, 0, &[tokens]).body;
    let mut expected = vec![1, 0, 1, 0, 1, 0];
    expected.extend(rules[0].id.to_le_bytes());
    expected.extend([0, 2]);
    let head = expected.clone();
    let pace = (3.0 / 1_000_000.0_f64) as f32;
    let numbers = |ends: f64| [doubles(&[3.0, 2_000_000.0, ends]), pace.to_le_bytes().to_vec()].concat();
    expected.extend(numbers(5_000_000.0));
    assert_eq!(body(ScriptOp::Take), expected);
    let refund = [&[3], &head[1..], &numbers(55.0)].concat();
    assert_eq!(body(ScriptOp::Refund), refund);
    let owing = PackedCall::new(ScriptOp::Take, "sg", 7, 0, &[CallItem { owed: 4, ..tokens }]).body;
    assert_eq!(owing, [head, numbers(1_000_000.0)].concat(), "as if so many more had been used");

    let slots = item(&rules[6], 0, 1);
    let mut expected = vec![4, 2, 1, 0, 1, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0];
    expected.extend(doubles(&[1.0, 5.0, 2.0, 4.0]));
    expected.extend([0, 0]);
    assert_eq!(PackedCall::new(ScriptOp::ReportSlots, "sg", 7, 0, &[slots]).body, expected);
}

#[test]
fn an_answer_is_given_to_the_item_it_is_about() {
    let rules = rules();
    // Slots, a log, and buckets of two keys: the script receives them in another order.
    let items = [
        item(&rules[6], 0, 1),
        item(&rules[5], 1, 1),
        item(&rules[0], 2, 2),
        item(&rules[2], 3, 1),
        item(&rules[1], 4, 2),
    ];
    let mut bytes = doubles(&[NOW]);
    bytes.push(1);
    bytes.extend(doubles(&[5_000_000.0, 1_000_000.0, 0.0]));
    bytes.extend(doubles(&[7.0, NOW, NOW - 1e6, NOW - 1e6]));
    bytes.extend(doubles(&[3.0]));
    let reply = ScriptReply::parse_reply(ScriptOp::Take, &items, &bytes).unwrap();
    assert_eq!((reply.now_us, reply.admitted), (NOW as u64, true));
    let remaining: Vec<u64> = reply.answers.iter().map(|answer| answer.decision.remaining).collect();
    assert_eq!(remaining, [1, 1, 4, 0, 5]);
    let leaky = &reply.answers[3];
    assert_eq!((leaky.decision.outcome, leaky.decision.wait_ns), (LimitOutcome::Wait, 1_333_334_000));
}

#[test]
fn impossible_answers_are_none() {
    let rules = rules();
    let tokens = [item(&rules[0], 0, 1)];
    let read = |now: f64, admitted: u8, level: f64| {
        let bytes = [doubles(&[now]), vec![admitted], doubles(&[level])].concat();
        ScriptReply::parse_reply(ScriptOp::Take, &tokens, &bytes)
    };
    assert!(read(NOW, 1, 5_000_000.0).is_some());
    assert!(read(NOW, 0, 5_000_001.0).is_some());
    assert_eq!(read(NOW, 0, 5_000_000.0), None, "no item rejects");
    assert_eq!(read(NOW, 1, 5_000_001.0), None, "an item rejects");
    assert_eq!(read(NOW, 2, 0.0), None);
    for wrong in [f64::NAN, f64::INFINITY, -1.0, 9_007_199_254_740_992.0] {
        assert_eq!((read(wrong, 1, 0.0), read(NOW, 1, wrong)), (None, None), "{wrong}");
    }
    let whole = [doubles(&[NOW]), vec![1], doubles(&[0.0])].concat();
    assert!(
        (0..whole.len())
            .all(|cut| ScriptReply::parse_reply(ScriptOp::Take, &tokens, &whole[..cut]).is_none())
    );
    assert_eq!(ScriptReply::parse_reply(ScriptOp::Take, &tokens, &[whole, vec![0]].concat()), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn no_bytes_make_it_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..160),
        numbers in proptest::collection::vec(prop_oneof![any::<f64>(), 0.0..2e15f64, Just(9e15)], 17),
        flag in 0..3u8,
        op in 0..4usize,
    ) {
        let rules = rules();
        let items = items(&rules);
        let op = [ScriptOp::Take, ScriptOp::Peek, ScriptOp::Refund, ScriptOp::ReportSlots][op];
        let _ = ScriptReply::parse_reply(op, &items, &bytes);
        // Long enough, and mostly plausible numbers.
        let mut long = doubles(&numbers);
        long.insert(8, flag);
        for length in 0..long.len() {
            let _ = ScriptReply::parse_reply(op, &items, &long[..length]);
        }
    }
}

#[test]
fn a_rule_of_numbers_that_do_not_fit_does_no_harm() {
    let units = NonZeroU64::MAX;
    let rate = Rate::new(units, Duration::from_nanos(1));
    let one = LeakyBucketRate { rate, burst: u64::MAX, queue: u64::MAX };
    let numbers = Algorithm::LeakyBucket { rates: vec![one], max_wait: Some(Duration::MAX) };
    let limit: model::LimitConfig = test_limit("a", numbers);
    assert!(model::check_redis_range(&limit).is_err());
    let rules = RateRule::rules_of(&limit);
    let items = [item(&rules[0], 0, 1)];
    PackedCall::new(ScriptOp::Take, "sg", 1, 0, &items);
    let bytes = [doubles(&[NOW]), vec![1], doubles(&[9e15])].concat();
    ScriptReply::parse_reply(ScriptOp::Take, &items, &bytes);
}

proptest! {
    /// Whatever a server answers about shares, it is a reply or none.
    #[test]
    fn replies_about_shares_are_sound_or_none(
        numbers in proptest::collection::vec(prop_oneof![any::<f64>(), Just(NOW), 0.0..1e7f64], 0..40),
        kind in 0..3usize,
        admitted in 0..2u8,
    ) {
        let class = |name: &str, least| model::ShareClass { name: name.into(), least, most: 800_000 };
        let classes = vec![class("gold", 500_000), class("default", 0)];
        let shares = model::Shares { by: model::KeyPart::Tier, classes, lend: model::Shares::WHOLE };
        let algorithm = match kind {
            0 => Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate: rate(3, 1), burst: 7 }] },
            1 => Algorithm::FixedWindow { rates: vec![rate(10, 60)], align: WindowAlign::Clock },
            _ => Algorithm::SlidingWindow { rates: vec![rate(10, 60)], buckets: 3 },
        };
        let limit = model::LimitConfig { shares: Some(std::sync::Arc::new(shares)), ..test_limit("a", algorithm) };
        let rules = RateRule::rules_of(&limit);
        let items = [CallItem { owed: u64::MAX, owed_by_others: 9, ..item(&rules[0], 0, 1) }];
        let bytes = [&doubles(&[NOW])[..], &[admitted], &doubles(&numbers)].concat();
        let reply = ScriptReply::parse_reply(ScriptOp::Take, &items, &bytes);
        prop_assert!(reply.is_none_or(|reply| reply.answers.len() == 1));
    }
}
