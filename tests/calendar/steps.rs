//! The steps of quotas, here and in Redis, beside a model of each key.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_base::calendar::CalendarUnit;
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{ChargeRecord, Limit, LimitOutcome, Units};
use sluicegate_model::LimitId;
use sluicegate_store::{CallItem, PackedCall, RateRule, ScriptOp, ScriptReply, SharedKey};
use sluicegate_testkit::Dice;

use crate::counters::config;
use crate::shared::Server;

const SECOND: u64 = 1_000_000_000;
/// A minute before 2026-03-29 in Berlin, the day on which the clocks go forward.
const START: u64 = 1_774_738_740;
const QUOTA: u64 = 205;
const LIMIT: &str = "rate: 205/day, zone: Europe/Berlin, steps: [{ at: 80.5%, then: warn }, \
    { at: 100%, then: slow, rate: 3/m }, { at: 110%, then: slow, rate: 1/m }, { at: 120%, then: reject }]";
/// The steps of [`LIMIT`]: tenths of a percent, and the requests and seconds of its pace.
const STEPS: [(u64, Option<(u64, u64)>); 4] =
    [(805, None), (1_000, Some((3, 60))), (1_100, Some((1, 60))), (1_200, Some((0, 0)))];

/// A key as the documentation describes it. Its tokens are in nanoseconds of the pace that holds.
#[derive(Default)]
struct Model {
    window: u64,
    used: u64,
    /// Used ns of the bucket above a step: it regains one each ns.
    spent: u64,
    last: u64,
    reached: BTreeSet<usize>,
}

impl Model {
    fn advance(&mut self, window: u64, now: u64) {
        if window > self.window {
            *self = Model { window, last: now, ..Model::default() };
        }
        self.spent = self.spent.saturating_sub(now - self.last);
        self.last = now;
    }

    /// The step that stands against that many used units.
    fn barrier(after: u64) -> Option<usize> {
        (0..STEPS.len()).rev().find(|step| STEPS[*step].1.is_some() && after * 1_000 > STEPS[*step].0 * QUOTA)
    }

    /// Takes units, and returns the steps that it reaches first.
    fn take(&mut self, cost: u64) -> (bool, Vec<usize>) {
        let barrier = Model::barrier(self.used + cost);
        let admitted = match barrier.and_then(|step| STEPS[step].1) {
            None => true,
            Some((0, _)) => false,
            Some((requests, seconds)) => {
                let interval = seconds * SECOND / requests;
                let fits = self.spent <= interval * (requests - 1);
                self.spent += if fits { interval } else { 0 };
                fits
            }
        };
        self.used += if admitted { cost } else { 0 };
        let mut reached: BTreeSet<usize> =
            (0..STEPS.len()).filter(|step| self.used * 1_000 >= STEPS[*step].0 * QUOTA).collect();
        reached.extend(barrier.filter(|_| !admitted));
        let new = reached.difference(&self.reached).copied().collect();
        self.reached.extend(reached);
        (admitted, new)
    }

    fn bits(&self) -> u8 {
        self.reached.iter().map(|step| 1 << step).sum()
    }
}

fn units(id: u128, cost: u64) -> Units {
    Units::new(CounterKey::new(id, 0), cost)
}

/// Milliseconds between two calls.
fn pause(dice: &mut Dice) -> u64 {
    match dice.roll() % 2_000 {
        0 => 86_400_000 * 3 / 2,
        1..200 => dice.roll() % 90_000,
        _ => dice.roll() % 100,
    }
}

#[test]
fn steps_are_those_of_a_model_and_each_is_told_once() {
    let config = config(LIMIT);
    let limit = Limit::new(LimitId(0), &config, 1_000);
    let calendar = config.calendar.clone().unwrap();
    let (mut dice, mut now) = (Dice(7), START * SECOND);
    let mut models: BTreeMap<u128, Model> = BTreeMap::new();
    let (mut slowed, mut told) = (0, 0);
    let mut open: Option<(u64, Units, ChargeRecord)> = None;
    for call in 0..100_000 {
        now += pause(&mut dice) * 1_000_000;
        let window = calendar.window_at(CalendarUnit::Day, now / SECOND, None).begins;
        let asked = units(u128::from(dice.roll() % 4), 1 + dice.roll() % 3);
        let model = models.entry(asked.key.id).or_default();
        model.advance(window, now);
        if let Some((charged_in, units, charge)) = open.take().filter(|(_, units, _)| units.key == asked.key)
        {
            // The use of a request that was below all steps is given back.
            limit.refund_charge(0, &units.key, units.cost, &charge, || Now(now));
            model.used -= if charged_in == window { units.cost } else { 0 };
        }
        let below = Model::barrier(model.used + asked.cost).is_none();
        let (admitted, new) = model.take(asked.cost);
        let (decision, charge) = limit.charge_units(0, &asked, Now(now));
        assert_eq!(decision.outcome == LimitOutcome::Admit, admitted, "call {call}");
        open = charge.filter(|_| below && call % 5 == 0).map(|charge| (window, asked, charge));
        let reached = limit.note_steps(0, &asked, Some("account=a"), !admitted);
        assert_eq!(reached, model.bits(), "call {call}");
        let notes: Vec<_> = limit.step_notes.take().into();
        let fired: Vec<u8> = notes.iter().map(|note| note.fired).collect();
        let bits: u8 = new.iter().map(|step| 1_u8 << step).sum();
        assert_eq!(fired, if bits > 0 { vec![bits] } else { Vec::new() }, "call {call}");
        if let [note] = &notes[..] {
            let usage = note.usage;
            assert_eq!((usage.quota, usage.used, usage.begins), (QUOTA, model.used, window));
        }
        told += fired.len();
        slowed += usize::from(admitted && model.used > QUOTA);
        let then = now + decision.retry_after_ns;
        let ends = calendar.window_at(CalendarUnit::Day, now / SECOND, None).ends * SECOND;
        if !admitted && then < ends {
            let judge_at = |at: u64| limit.peek_units(0, &asked, Now(at)).outcome;
            assert_eq!((judge_at(then - 1), judge_at(then)), (LimitOutcome::Reject, LimitOutcome::Admit));
        }
        assert!(then <= ends, "call {call}");
    }
    assert!(slowed > 500 && told > 100, "{slowed} slowed, {told} told");
}

#[test]
fn gateways_share_the_steps_of_a_key() {
    let config = config(LIMIT);
    let rules = RateRule::rules_of(&config);
    let calendar = config.calendar.clone().unwrap();
    let (mut server, mut dice, mut now) = (Server::start(), Dice(9), START * 1_000);
    let mut models: BTreeMap<u8, Model> = BTreeMap::new();
    let (mut slowed, mut told) = (0, 0);
    for call in 0..10_000 {
        now += pause(&mut dice);
        let seconds = now / 1_000;
        // One gateway is 40 s ahead of the server, the other one behind.
        let at = if dice.roll() % 2 == 0 { seconds + 40 } else { seconds - 40 };
        let (id, cost) = ((dice.roll() % 2) as u8, 1 + dice.roll() % 3);
        let item = CallItem { name: "account=a", ..CallItem::new(&rules[0], SharedKey([id; 16]), cost) };
        let window = calendar.window_at(CalendarUnit::Day, seconds, None).begins;
        let model = models.entry(id).or_default();
        model.advance(window, now * 1_000_000);
        let peeked = dice.roll() % 4 == 0;
        let op = if peeked { ScriptOp::Peek } else { ScriptOp::Take };
        let taken = (!peeked).then(|| model.take(cost));
        let new: u8 = taken.iter().flat_map(|(_, new)| new).map(|step| 1_u8 << step).sum();
        let bytes = server.send_us(&PackedCall::new(op, "sg", 1, at, &[item]), now * 1_000);
        let reply = ScriptReply::parse_reply(op, &[item], &bytes).expect("a sound reply");
        let answer = reply.answers[0];
        let usage = answer.window.unwrap();
        if let Some((admitted, _)) = taken {
            assert_eq!(reply.admitted, admitted, "call {call}");
            slowed += usize::from(admitted && model.used > QUOTA);
        }
        assert_eq!((answer.fired, answer.decision.reached, usage.reached), (new, model.bits(), model.bits()));
        assert_eq!((usage.used, usage.quota, usage.begins), (model.used, QUOTA, window), "call {call}");
        told += usize::from(new > 0);
    }
    assert!(slowed > 50 && told > 20, "{slowed} slowed, {told} told");
    let kept = server.values();
    assert!(kept.iter().all(|value| value.ends_with(b"account=a")), "the name of the key stands there");
}

fn note(limit: &Limit, asked: &Units, now: u64) -> (LimitOutcome, u8, u8) {
    let (decision, _) = limit.charge_units(0, asked, Now(now));
    let refused = decision.outcome == LimitOutcome::Reject;
    let reached = limit.note_steps(0, asked, Some("account=a"), refused);
    let fired = limit.step_notes.take().iter().map(|note| note.fired).sum();
    (decision.outcome, reached, fired)
}

#[test]
fn a_step_is_told_once_also_after_all_came_back_and_others_needed_the_room() {
    let config = config("rate: 10/month, steps: [{ at: 80%, then: warn }]");
    let limit = Limit::new(LimitId(0), &config, 1);
    let (now, asked) = (START * SECOND, units(1, 8));
    let (_, charge) = limit.charge_units(0, &asked, Now(now));
    assert_eq!(limit.note_steps(0, &asked, Some("account=a"), false), 1);
    assert_eq!(limit.step_notes.take().len(), 1);
    limit.refund_charge(0, &asked.key, 8, &charge.unwrap(), || Now(now));
    for other in 2..200 {
        limit.charge_units(0, &units(other, 1), Now(now + 1));
    }
    assert_eq!(note(&limit, &asked, now + 2), (LimitOutcome::Admit, 1, 0));
}

#[test]
fn a_slowed_request_that_is_refused_elsewhere_keeps_no_place_in_the_pace() {
    let config =
        config("rate: 10/month, steps: [{ at: 100%, then: slow, rate: 1/h }], charge: { units: bytes }");
    let limit = Limit::new(LimitId(0), &config, 10);
    let (now, asked) = (START * SECOND, units(1, 1));
    limit.charge_units(0, &units(1, 10), Now(now));
    let (_, charge) = limit.charge_units(0, &asked, Now(now));
    limit.refund_charge(0, &asked.key, 1, &charge.unwrap(), || Now(now));
    let (decision, charge) = limit.charge_units(0, &asked, Now(now + 1));
    assert_eq!(decision.outcome, LimitOutcome::Admit, "another request has its place");
    limit.settle_charge(0, &asked.key, (1, 0), &charge.unwrap(), Now(now + 2));
    assert_eq!(note(&limit, &asked, now + 3).0, LimitOutcome::Reject, "one that was served keeps it");
}

#[test]
fn nobody_waits_for_a_pace_that_was_slower_or_a_clock_that_was_ahead() {
    let slow =
        |rate: &str| config(&format!("rate: 10/year, steps: [{{ at: 100%, then: slow, rate: {rate} }}]"));
    let before = Limit::new(LimitId(0), &slow("1/h"), 10);
    let (now, asked) = (START * SECOND, units(1, 1));
    before.charge_units(0, &units(1, 10), Now(now));
    assert_eq!(note(&before, &asked, now).0, LimitOutcome::Admit);
    let after = Limit::continue_from(Some(&before), LimitId(0), &slow("1/s"), 10);
    after.apply_numbers(&|| Now(now + 1));
    assert_eq!(note(&after, &asked, now + 2).0, LimitOutcome::Admit);
    assert_eq!(note(&after, &asked, now + 3).0, LimitOutcome::Reject);
    let day = 86_400 * SECOND;
    assert_eq!(note(&after, &asked, now - day).0, LimitOutcome::Admit, "the clock was set back");
}

#[test]
fn an_excess_counts_where_its_reservation_is_also_after_the_clock_was_set_back() {
    let limit = Limit::new(LimitId(0), &config("rate: 10/month, charge: { units: bytes }"), 10);
    let (january, february) = (1_768_867_200 * SECOND, 1_770_000_000 * SECOND);
    limit.charge_units(0, &units(1, 1), Now(january));
    limit.charge_units(0, &units(1, 1), Now(february));
    let (_, charge) = limit.charge_units(0, &units(1, 1), Now(january));
    limit.settle_charge(0, &units(1, 1).key, (1, 9), &charge.unwrap(), Now(january));
    assert_eq!(limit.charge_units(0, &units(1, 1), Now(january)).0.outcome, LimitOutcome::Reject);
}

#[test]
fn steps_that_are_inserted_by_a_reload_leave_the_others_told() {
    let steps = |text: &str| config(&format!("rate: 10/month, steps: [{text}{{ at: 80%, then: warn }}]"));
    let before = Limit::new(LimitId(0), &steps(""), 10);
    let now = START * SECOND;
    assert_eq!(note(&before, &units(1, 8), now), (LimitOutcome::Admit, 1, 1));
    let after = Limit::continue_from(Some(&before), LimitId(0), &steps("{ at: 50%, then: warn }, "), 10);
    after.apply_numbers(&|| Now(now));
    assert_eq!(note(&after, &units(1, 1), now), (LimitOutcome::Admit, 3, 1), "50% is new, and 80% was told");
}
