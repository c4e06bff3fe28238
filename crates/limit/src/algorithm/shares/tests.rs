//! The laws of shares, and token buckets beside a model that refills nanosecond by nanosecond.

use proptest::prelude::*;

use crate::table::CounterKey;
use crate::{ChargeRecord, Decision, Limit, LimitOutcome, Units};
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_model::LimitId;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1 << 60;

/// The limit `x` with these fields.
pub(super) fn limit_with(fields: &str) -> Limit {
    Limit::new(LimitId(0), &config_with(fields), 100)
}

fn config_with(fields: &str) -> sluicegate_model::LimitConfig {
    let text = format!(
        "account: {{ from: header:x-account, tier: {{ from: header:x-tier, names: [gold, silver] }} }}\n\
         limits: {{ x: {{ key: global, {fields} }} }}\n\
         locations: [{{ path: /, limits: x, respond: {{ status: 200 }} }}]"
    );
    let text = text.replace(", names: [gold, silver]", "");
    config::parse(&text, "test").unwrap_or_else(|problems| panic!("{problems:?}")).config.limits.remove(0)
}

/// Gold has a half, silver 30 % and at most 80 %, the others at most 60 %.
pub(super) const CLASSES: &str = "shares: { by: tier, classes: { \
    gold: { least: 50% }, silver: { least: 30%, most: 80% }, default: { most: 60% } } }";
pub(super) const GOLD: u8 = 0;
pub(super) const SILVER: u8 = 1;
pub(super) const OTHERS: u8 = 2;

pub(super) fn units(class: u8, cost: u64) -> Units {
    Units::new(CounterKey { class, ..CounterKey::new(1, 0) }, cost)
}

pub(super) fn charge(limit: &Limit, class: u8, cost: u64, at: u64) -> Result<ChargeRecord, Decision> {
    let (decision, charge) = limit.charge_units(0, &units(class, cost), Now(START + at));
    assert_eq!(charge.is_some(), decision.outcome == LimitOutcome::Admit);
    charge.ok_or(decision)
}

fn remaining(limit: &Limit, class: u8, at: u64) -> u64 {
    limit.peek_units(0, &units(class, 1), Now(START + at)).remaining
}

/// A token bucket with shares in thousandths of a token, which refills each millisecond: exact, because all rates and
/// depths are whole there.
struct Model {
    own: [i64; 3],
    most: [i64; 3],
    common: i64,
}

/// The rate is 100/s and the burst 100: in a millisecond come 100 thousandths.
const OWN_RATE: [i64; 3] = [50, 30, 0];
const OWN_DEPTH: [i64; 3] = [25_000, 15_000, 0];
const MOST_RATE: [i64; 3] = [100, 80, 60];
const MOST_DEPTH: [i64; 3] = [100_000, 80_000, 60_000];
const COMMON_DEPTH: i64 = 60_000;

impl Model {
    fn new() -> Model {
        Model { own: OWN_DEPTH, most: MOST_DEPTH, common: COMMON_DEPTH }
    }

    fn pass_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.common += 20;
            for class in 0..3 {
                self.own[class] += OWN_RATE[class];
                self.common += (self.own[class] - OWN_DEPTH[class]).max(0);
                self.own[class] = self.own[class].min(OWN_DEPTH[class]);
                self.most[class] = (self.most[class] + MOST_RATE[class]).min(MOST_DEPTH[class]);
            }
            self.common = self.common.min(COMMON_DEPTH);
        }
    }

    fn fits(&self, class: usize, cost: i64) -> bool {
        let rest = cost - self.own[class].min(cost);
        rest == 0 || rest <= self.common && (class == 0 || cost <= self.most[class])
    }

    fn take(&mut self, class: usize, cost: i64) {
        let own = self.own[class].min(cost);
        self.own[class] -= own;
        self.common -= cost - own;
        self.most[class] -= cost;
    }
}

fn any_requests() -> impl Strategy<Value = Vec<(u64, u8, u64)>> {
    let gap = prop_oneof![6 => Just(0), 3 => 0..30u64, 1 => 0..2000u64];
    let cost = prop_oneof![4 => Just(1), 1 => 1..70u64];
    proptest::collection::vec((gap, 0..3u8, cost), 1..400)
}

proptest! {
    /// Each decision is that of the model, and a rejected request passes when it is told to, and not before.
    #[test]
    fn a_token_bucket_decides_as_the_model_does(requests in any_requests()) {
        let limit = limit_with(&format!("rate: 100/s, burst: 100, {CLASSES}"));
        let (mut model, mut at_ms) = (Model::new(), 0);
        for (gap, class, cost) in requests {
            at_ms += gap;
            model.pass_ms(gap);
            let (index, cost_m) = (usize::from(class), cost as i64 * 1000);
            let peeked = limit.peek_units(0, &units(class, cost), Now(START + at_ms * 1_000_000));
            let fits = model.fits(index, cost_m);
            let judged = charge(&limit, class, cost, at_ms * 1_000_000);
            prop_assert_eq!(judged.is_ok(), fits, "{} of {} at {}", cost, class, at_ms);
            prop_assert_eq!(peeked.outcome == LimitOutcome::Admit, fits);
            match judged {
                Ok(_) => model.take(index, cost_m),
                Err(decision) if decision.retry_after_ns == u64::MAX => {
                    prop_assert!(cost > limit.max_units(0, class), "{} of {}", cost, class);
                }
                Err(decision) => {
                    let mut later = Model { ..model };
                    let ms = decision.retry_after_ns / 1_000_000;
                    later.pass_ms(ms);
                    prop_assert!(!later.fits(index, cost_m) || decision.retry_after_ns % 1_000_000 == 0);
                    later.pass_ms(1);
                    prop_assert!(later.fits(index, cost_m), "{} of {} in {} ns", cost, class, decision.retry_after_ns);
                    if ms > 0 {
                        let mut before = Model { ..model };
                        before.pass_ms(ms - 1);
                        prop_assert!(!before.fits(index, cost_m));
                    }
                }
            }
            let left = model.own[index].max((model.own[index] + model.common).min(
                if class == GOLD { i64::MAX } else { model.most[index] }));
            prop_assert_eq!(remaining(&limit, class, at_ms * 1_000_000), (left / 1000) as u64);
        }
    }

    /// However classes take turns, at most B + r·Δ units pass in any span, and a class that keeps to its own rate and
    /// depth is never refused.
    #[test]
    fn the_whole_stays_within_its_envelope_and_floors_hold(
        gaps in proptest::collection::vec((0..40_000_000u64, any::<[bool; 3]>()), 1..300)
    ) {
        let limit = limit_with(&format!("rate: 100/s, burst: 100, {CLASSES}"));
        // Gold keeps to its floor: a bucket of 25 with 50/s.
        let (mut gold, mut at, mut passed) = (25.0_f64, 0_u64, Vec::new());
        for (gap, who) in gaps {
            at += gap;
            gold = (gold + gap as f64 * 50.0 / 1e9).min(25.0);
            if who[0] && gold >= 1.000_001 {
                gold -= 1.0;
                prop_assert!(charge(&limit, GOLD, 1, at).is_ok(), "within its floor at {}", at);
                passed.push(at);
            }
            // The others ask for all that they can get.
            for class in [SILVER, OTHERS] {
                while who[usize::from(class)] && charge(&limit, class, 1, at).is_ok() {
                    passed.push(at);
                }
            }
        }
        for first in 0..passed.len() {
            for last in first..passed.len() {
                let span = u128::from(passed[last] - passed[first]);
                let most = 100 + span * 100 / u128::from(SECOND);
                prop_assert!((last - first + 1) as u128 <= most + 1);
            }
        }
    }
}

#[test]
fn an_idle_class_lends_all_and_has_its_reserve_at_once() {
    let limit = limit_with(&format!("rate: 100/s, burst: 100, {CLASSES}"));
    // The others take the common bucket, 60 of 100, and then what gold and silver do not need.
    let flood = |from: u64, until: u64| {
        (from..until).filter(|ms| charge(&limit, OTHERS, 1, ms * 1_000_000).is_ok()).count()
    };
    assert_eq!((0..200).filter(|_| charge(&limit, OTHERS, 1, 0).is_ok()).count(), 60);
    let within = flood(0, 10_000);
    assert!((595..=600).contains(&within), "at most 60 % of 1,000: {within}");
    // Gold and silver find their reserves, whole.
    let burst = |class: u8| (0..100).filter(|_| charge(&limit, class, 1, 10_000_000_000).is_ok()).count();
    assert_eq!((burst(GOLD), burst(SILVER)), (25 + 60, 15), "and gold all that the others may not use");
}

#[test]
fn what_nobody_needs_flows_on() {
    let limit =
        limit_with("rate: 100/s, burst: 100, shares: { by: tier, classes: { gold: { least: 80% } } }");
    let passed = (0..60_000).filter(|ms| charge(&limit, 1, 1, ms * 1_000_000).is_ok()).count();
    assert!((6_050..=6_061).contains(&passed), "the common bucket of 60, and 100/s for a minute: {passed}");
}

#[test]
fn floods_are_refused_by_class_and_nobody_else_is() {
    for overload in [2, 5, 10] {
        let limit = limit_with(&format!("rate: 100/s, burst: 100, {CLASSES}"));
        let (mut refused, mut passed) = ([0; 3], 0);
        // 30 s in steps of 1 ms: gold and silver ask for what they are guaranteed, the others for a multiple of all.
        for ms in 0..30_000u64 {
            for (class, every) in [(GOLD, 20), (SILVER, 34), (OTHERS, 10 / overload.min(10))] {
                if ms % every == 0 {
                    match charge(&limit, class, 1, ms * 1_000_000) {
                        Ok(_) => passed += 1,
                        Err(_) => refused[usize::from(class)] += 1,
                    }
                }
            }
        }
        assert_eq!(refused[..2], [0, 0], "under {overload} times the limit");
        assert!(refused[2] > 0 && (3_000..=3_100).contains(&passed), "{passed}");
    }
}

#[test]
fn units_that_come_back_flow_as_a_refill_does() {
    let limit = limit_with(&format!("rate: 100/s, burst: 100, {CLASSES}"));
    let taken = charge(&limit, GOLD, 40, 0).unwrap();
    assert_eq!(remaining(&limit, OTHERS, 0), 45, "15 of the common bucket are taken");
    limit.refund_charge(0, &units(GOLD, 40).key, 40, &taken, || Now(START));
    assert_eq!((remaining(&limit, GOLD, 0), remaining(&limit, OTHERS, 0)), (85, 60));
    let late = charge(&limit, GOLD, 40, 0).unwrap();
    for second in 0..30 {
        charge(&limit, GOLD, 1, second * SECOND).unwrap();
    }
    limit.refund_charge(0, &units(GOLD, 40).key, 40, &late, || Now(START + 29 * SECOND));
    assert_eq!(remaining(&limit, GOLD, 29 * SECOND), 84, "the bucket was full meanwhile");
}

#[test]
fn an_excess_is_never_paid_by_another_class() {
    let limit =
        limit_with(&format!("rate: 100/s, burst: 100, charge: {{ units: request, reserve: 1 }}, {CLASSES}"));
    let one = charge(&limit, OTHERS, 1, 0).unwrap();
    assert_eq!(limit.settle_charge(0, &units(OTHERS, 1).key, (1, 120), &one, Now(START)), 0);
    assert_eq!(
        (remaining(&limit, OTHERS, 0), remaining(&limit, GOLD, 0), remaining(&limit, SILVER, 0)),
        (0, 25, 15),
        "the reserves are untouched"
    );
    let debt = charge(&limit, OTHERS, 1, 0).unwrap_err().retry_after_ns;
    assert!(debt >= 600_000_000, "{debt}");
    let two = charge(&limit, GOLD, 1, 0).unwrap();
    assert_eq!(limit.settle_charge(0, &units(GOLD, 1).key, (1, 50), &two, Now(START)), 0);
    assert_eq!(
        limit.settle_charge(0, &units(GOLD, 1).key, (0, 1000), &two, Now(START)),
        1000 - 15,
        "forgiven"
    );
}

#[test]
fn a_reload_deals_the_rest_out_anew() {
    let before = limit_with(&format!("rate: 100/s, burst: 100, {CLASSES}"));
    charge(&before, GOLD, 50, 0).unwrap();
    let fields = "rate: 1000/s, burst: 200, shares: { by: tier, classes: { iron: { least: 20% } } }";
    let after = Limit::continue_from(Some(&before), LimitId(0), &config_with(fields), 100);
    after.apply_numbers(&|| Now(START));
    let left = |class| after.peek_units(0, &units(class, 1), Now(START)).remaining;
    // 50 of 200 are used: three quarters of 20 and of 180.
    assert_eq!((left(0), left(1)), (150, 135));
    assert_eq!(after.peek_units(0, &units(7, 1), Now(START)).remaining, 135, "a class that is gone");
}

#[test]
fn a_snapshot_keeps_the_tokens_of_all_classes() {
    use sluicegate_base::clock::ClockShift;
    let fields = format!("rate: 100/s, burst: 100, {CLASSES}");
    let (before, after) = (limit_with(&fields), limit_with(&fields));
    charge(&before, SILVER, 40, 0).unwrap();
    let [from, to] = [&before, &after].map(|limit| limit.rate_tables().remove(0));
    assert_eq!(from.fingerprint, to.fingerprint);
    let (shift, now) = (ClockShift::new(Now(START), 0, Now(START)), Now(START));
    for block in 0..from.table.block_count() {
        let mut bytes = Vec::new();
        from.table.encode_block(block, now, &mut bytes);
        assert_eq!(to.table.restore_block(&bytes, shift, now), Some(0));
        for cut in 2..bytes.len() {
            assert!(
                limit_with(&fields).rate_tables()[0].table.restore_block(&bytes[..cut], shift, now).is_none()
            );
        }
    }
    for class in [GOLD, SILVER, OTHERS] {
        assert_eq!(remaining(&before, class, 0), remaining(&after, class, 0));
    }
}

/// The used units of each class, by the moment at which they leave.
struct WindowModel {
    used: Vec<(u64, usize, u64)>,
    fixed: bool,
}

/// Of 20 units gold has 10, silver 6 and at most 16; the others at most 12, of the 4 that are common.
const PARTS: [(u64, u64); 3] = [(10, 20), (6, 16), (0, 12)];

impl WindowModel {
    fn fits(&self, class: usize, cost: u64, at: u64) -> bool {
        let mut used = [0; 3];
        self.used.iter().filter(|one| one.0 > at).for_each(|(_, class, units)| used[*class] += units);
        used[class] += cost;
        let common: u64 = (0..3).map(|one| used[one].saturating_sub(PARTS[one].0)).sum();
        used[class] <= PARTS[class].0 || used[class] <= PARTS[class].1 && common <= 4
    }

    fn take(&mut self, class: usize, cost: u64, at: u64) {
        let running = self.used.iter().map(|one| one.0).filter(|until| *until > at).max();
        let until = match (self.fixed, running) {
            (true, Some(until)) => until,
            (true, None) => at + SECOND,
            // A unit leaves a second after the end of its tenth of a second.
            (false, _) => ((START + at) / 100_000_000 + 1) * 100_000_000 - START + SECOND,
        };
        self.used.push((until, class, cost));
    }
}

proptest! {
    /// Each decision is that of the model, and a rejected request passes when it is told to, and not before.
    #[test]
    fn windows_decide_as_the_model_does(
        fixed in any::<bool>(),
        requests in proptest::collection::vec(
            (prop_oneof![3 => Just(0), 3 => 0..300_000_000u64, 1 => 0..3 * SECOND], 0..3u8, 1..8u64, 0..5u8), 1..200)
    ) {
        let limit = limit_with(&format!("rate: 20/s, algorithm: {}, {CLASSES}",
            if fixed { "fixed_window" } else { "sliding_window" }));
        let (mut model, mut at) = (WindowModel { used: Vec::new(), fixed }, 0);
        for (gap, class, cost, fate) in requests {
            at += gap;
            let index = usize::from(class);
            let fits = model.fits(index, cost, at);
            match charge(&limit, class, cost, at) {
                Ok(_) if !fits => prop_assert!(false, "{} of {} at {}", cost, class, at),
                Ok(taken) if fate == 0 => {
                    limit.refund_charge(0, &units(class, cost).key, cost, &taken, || Now(START + at));
                }
                Ok(_) => model.take(index, cost, at),
                Err(decision) => {
                    prop_assert!(!fits, "{} of {} at {}", cost, class, at);
                    if decision.retry_after_ns == u64::MAX {
                        prop_assert!(cost > limit.max_units(0, class));
                        continue;
                    }
                    let passes = at + decision.retry_after_ns;
                    prop_assert!(model.fits(index, cost, passes) && !model.fits(index, cost, passes - 1));
                }
            }
            let mut left = 0;
            while model.fits(index, left + 1, at) {
                left += 1;
            }
            prop_assert_eq!(remaining(&limit, class, at), left);
        }
    }
}

#[test]
fn a_window_keeps_its_classes_over_a_reload_and_a_restart() {
    let fields = format!("rate: 20/s, algorithm: fixed_window, {CLASSES}");
    let before = limit_with(&fields);
    charge(&before, GOLD, 4, 0).unwrap();
    charge(&before, SILVER, 3, 0).unwrap();
    let restored = limit_with(&fields);
    let [from, to] = [&before, &restored].map(|limit| limit.rate_tables().remove(0));
    let shift = sluicegate_base::clock::ClockShift::new(Now(START), 0, Now(START));
    for block in 0..from.table.block_count() {
        let mut bytes = Vec::new();
        from.table.encode_block(block, Now(START), &mut bytes);
        assert_eq!(to.table.restore_block(&bytes, shift, Now(START)), Some(0));
    }
    let fewer =
        "rate: 40/s, algorithm: fixed_window, shares: { by: tier, classes: { gold: { least: 50% } } }";
    let after = Limit::continue_from(Some(&restored), LimitId(0), &config_with(fewer), 100);
    after.apply_numbers(&|| Now(START));
    let left = |class| after.peek_units(0, &units(class, 1), Now(START)).remaining;
    assert_eq!((left(0), left(1)), (20 - 4 + 20 - 3, 20 - 3), "silver is among the others now");
    let others =
        "rate: 20/s, algorithm: fixed_window, shares: { by: tier, classes: { iron: { least: 90% } } }";
    let dealt = Limit::continue_from(Some(&after), LimitId(0), &config_with(others), 100);
    dealt.apply_numbers(&|| Now(START));
    let left = |class| dealt.peek_units(0, &units(class, 1), Now(START)).remaining;
    assert_eq!((left(0), left(1)), (20 - 7, 0), "what the common part does not hold is used of the other's");
}
