//! Slots of concurrency limits: each gateway reports its number.

use sluicegate_limit::LimitOutcome;
use sluicegate_model as model;
use sluicegate_store::{GatewayTurn, ScriptOp, ScriptReply, SlotCount};

use crate::limits::{SECOND as SECOND_NS, concurrency, config as limit, leaky, token};
use crate::script::support::*;

/// A limit, and gateways that number their reports.
struct Slots {
    counters: Counters,
    shared: Shared,
    sequence: u64,
    turn: Option<GatewayTurn>,
}

impl Slots {
    fn new(configs: Vec<model::LimitConfig>) -> Slots {
        // Both halves of the number count.
        let (counters, shared) = (Counters::start(), Shared::new(configs));
        Slots { counters, shared, sequence: u64::from(u32::MAX), turn: None }
    }

    fn of(max: u32) -> Slots {
        Slots::new(vec![limit(concurrency(max))])
    }

    fn tell(&mut self, op: ScriptOp, node: u64, slots: u64, now: u64) -> ScriptReply {
        self.sequence += 1;
        let asked = u64::from(op == ScriptOp::Take || op == ScriptOp::Peek);
        self.say(
            op,
            node,
            SlotCount { slots, asked, oldest: self.sequence, sequence: self.sequence, turn: self.turn },
            now,
        )
    }

    fn say(&mut self, op: ScriptOp, node: u64, slot_count: SlotCount, now: u64) -> ScriptReply {
        self.counters.node = node;
        let mut items = self.shared.items(&[key(1)], 1);
        items.iter_mut().for_each(|item| item.slot_count = slot_count);
        self.counters.call(op, &items, START_US + now)
    }

    fn takes(&mut self, node: u64, slots: u64, now: u64) -> bool {
        self.tell(ScriptOp::Take, node, slots, now).admitted
    }
}

#[test]
fn all_gateways_together_hold_no_more_than_the_limit() {
    let mut slots = Slots::of(3);
    assert!(slots.takes(1, 1, 0) && slots.takes(2, 1, 0) && slots.takes(1, 2, 0));
    let rejected = slots.tell(ScriptOp::Take, 2, 2, 0);
    assert!(!rejected.admitted);
    assert_eq!(rejected.answers[0].decision.outcome, LimitOutcome::Reject);
    assert_eq!(rejected.answers[0].decision.retry_after_ns, u64::MAX, "the time is unknown");
    slots.tell(ScriptOp::ReportSlots, 1, 1, 0);
    assert!(slots.takes(2, 2, 0));
    assert!(!slots.takes(1, 2, 0));
    slots.tell(ScriptOp::Refund, 2, 0, 0);
    assert_eq!(
        slots.tell(ScriptOp::Peek, 1, 1, 0).answers[0].decision.remaining,
        3,
        "this gateway's own are not counted"
    );
    assert!(slots.takes(1, 3, 0));
}

#[test]
fn an_older_word_changes_nothing() {
    let mut slots = Slots::of(4);
    let at = |slots, sequence| SlotCount { slots, asked: 0, oldest: sequence, sequence, turn: None };
    assert!(slots.say(ScriptOp::Take, 1, SlotCount { asked: 1, ..at(2, 1 << 33) }, 0).admitted);
    let before = slots.counters.dump();
    for older in [at(0, 5), at(1, (1 << 33) - 1), at(3, 1 << 32 | 7)] {
        slots.say(ScriptOp::ReportSlots, 1, older, 0);
        assert_eq!(slots.counters.dump(), before);
    }
    assert!(slots.say(ScriptOp::Take, 1, SlotCount { asked: 1, ..at(3, 6) }, 0).admitted);
    assert!(!slots.takes(2, 2, 0), "what was granted counts beside what is known");
    slots.say(ScriptOp::ReportSlots, 1, at(1, (1 << 33) + 1), 0);
    assert!(slots.takes(2, 3, 0) && !slots.takes(2, 4, 0));
}

#[test]
fn a_gateway_that_falls_silent_holds_nothing_after_ten_seconds() {
    let mut slots = Slots::of(2);
    assert!(slots.takes(1, 2, 0));
    assert!(!slots.takes(2, 1, 10 * SECOND_US - 1));
    slots.tell(ScriptOp::ReportSlots, 1, 2, 10 * SECOND_US - 1);
    assert!(!slots.takes(2, 1, 10 * SECOND_US), "it reported again");
    slots.counters.mortal = true;
    assert!(slots.takes(2, 2, 20 * SECOND_US - 1));
    let (ttls, dump) = (slots.counters.ttls(), slots.counters.dump());
    assert!(ttls.len() == 1 && ttls[0] > 0 && ttls[0] <= 10_000, "{ttls:?}");
    slots.tell(ScriptOp::ReportSlots, 2, 0, 20 * SECOND_US);
    assert_eq!((slots.counters.dump().len(), dump.len()), (0, 1), "no slots, no key");
    slots.tell(ScriptOp::ReportSlots, 2, 0, 20 * SECOND_US);
    assert_eq!(slots.counters.dump(), []);
    slots.tell(ScriptOp::ReportSlots, 2, 1, 20 * SECOND_US);
    assert!(!slots.takes(1, 2, 20 * SECOND_US), "reported without asking");
}

#[test]
fn a_waiting_request_takes_slots_afterwards() {
    let mut slots = Slots::new(vec![limit(concurrency(1)), limit(leaky(10, SECOND_NS, 1, 5))]);
    let first = slots.tell(ScriptOp::Take, 1, 1, 0);
    assert!(first.admitted && !first.answers[0].skipped);
    let waits = slots.tell(ScriptOp::Take, 2, 1, 0);
    assert!(waits.admitted && waits.answers[0].skipped && !waits.answers[1].skipped);
    assert_eq!(waits.answers[1].decision.wait_ns, 100_000_000);
    slots.tell(ScriptOp::ReportSlots, 1, 0, 0);
    assert_eq!(slots.counters.dump().len(), 1, "nothing was charged");
}

#[test]
fn a_rejection_by_a_rate_takes_no_slots_and_the_reverse_charges_no_rate() {
    let mut slots = Slots::new(vec![limit(concurrency(1)), limit(token(1, SECOND_NS, 2))]);
    assert!(slots.takes(1, 1, 0));
    let before = slots.counters.dump();
    let full = slots.tell(ScriptOp::Take, 2, 1, 0);
    assert!(!full.admitted && full.answers[1].mark == 0 && full.answers[1].decision.remaining == 1);
    assert_eq!(slots.counters.dump(), before);
    slots.tell(ScriptOp::ReportSlots, 1, 0, 0);
    assert!(slots.takes(2, 1, 0));
    let rejected = slots.tell(ScriptOp::Take, 2, 2, 0);
    assert!(!rejected.admitted && rejected.answers[0].skipped);
}

#[test]
fn slots_in_a_dry_run_never_reject() {
    let dry = model::LimitConfig { dry_run: true, ..limit(concurrency(1)) };
    let mut slots = Slots::new(vec![dry, limit(token(1, SECOND_NS, 9))]);
    assert!(slots.takes(1, 1, 0));
    let reply = slots.tell(ScriptOp::Take, 2, 1, 0);
    assert!(reply.admitted);
    assert_eq!(reply.answers[0].decision.outcome, LimitOutcome::Reject);
    assert_eq!(slots.tell(ScriptOp::Peek, 3, 1, 0).answers[0].decision.remaining, 0);
    slots.tell(ScriptOp::ReportSlots, 1, 0, 0);
    assert_eq!(
        slots.tell(ScriptOp::Peek, 3, 1, 0).answers[0].decision.remaining,
        1,
        "a rejection is not counted"
    );
}

/// Gateways whose requests have waited for so many milliseconds.
fn turn(gateway: u64, waited_ms: u64, poll_ms: u64) -> Option<GatewayTurn> {
    Some(GatewayTurn { gateway, waited_us: Some(waited_ms * 1_000), poll_us: poll_ms * 1_000, waiting: 1 })
}

impl Slots {
    /// Asks for one slot.
    fn asks_as(&mut self, op: ScriptOp, turn: Option<GatewayTurn>, now_ms: u64) -> bool {
        self.turn = turn;
        let node = turn.map_or(9, |turn| turn.gateway);
        let admitted = self.tell(op, node, 1, now_ms * 1_000).admitted;
        self.turn = None;
        admitted
    }

    fn gives_back(&mut self, node: u64, now_ms: u64) {
        self.tell(ScriptOp::ReportSlots, node, 0, now_ms * 1_000);
    }
}

#[test]
fn a_free_slot_waits_for_the_gateway_whose_request_waits_longest() {
    use ScriptOp::{Peek, Take};
    let mut slots = Slots::of(1);
    assert!(slots.takes(5, 1, 0));
    assert!(!slots.asks_as(Peek, turn(1, 500, 10), 1_000) && !slots.asks_as(Peek, turn(2, 300, 10), 1_000));
    slots.gives_back(5, 1_100);
    assert!(!slots.asks_as(Take, turn(3, 0, 0), 1_100), "one that has only come");
    assert!(!slots.asks_as(Peek, turn(2, 400, 10), 1_100) && !slots.asks_as(Take, turn(2, 400, 10), 1_100));
    assert!(slots.asks_as(Peek, turn(1, 600, 10), 1_100) && slots.asks_as(Take, turn(1, 600, 10), 1_100));
    slots.gives_back(1, 1_200);
    assert!(!slots.asks_as(Take, turn(1, 400, 10), 1_200), "the second in that gateway came later");
    assert!(slots.asks_as(Take, turn(2, 500, 10), 1_200));
    slots.gives_back(2, 1_300);
    let without = |gateway| Some(GatewayTurn { gateway, waited_us: None, poll_us: 1, waiting: 0 });
    slots.asks_as(Peek, without(1), 1_300);
    assert!(slots.asks_as(Take, turn(3, 0, 0), 1_300), "those who left hold nobody up");
    assert_eq!(slots.counters.dump().len(), 1, "no trace of any wait");
}

#[test]
fn a_gateway_may_be_passed_over_for_four_of_its_polls() {
    let mut slots = Slots::of(1);
    slots.asks_as(ScriptOp::Peek, turn(1, 500, 25), 1_000);
    assert!(!slots.asks_as(ScriptOp::Peek, turn(2, 399, 25), 1_000));
    assert!(slots.asks_as(ScriptOp::Peek, turn(2, 401, 25), 1_000));
}

/// Notes lapse, also when the clock of the store was set back; other values under the name do no harm.
#[test]
fn the_waiters_of_a_gateway_that_is_gone_are_forgotten() {
    for (later_ms, admitted) in [(1_030, false), (1_050, true), (-3_600_000, true)] {
        let mut slots = Slots::of(1);
        slots.asks_as(ScriptOp::Peek, turn(1, 500, 10), 10_000_000);
        let now = 10_000_000_u64.saturating_add_signed(later_ms);
        assert_eq!(slots.asks_as(ScriptOp::Take, turn(2, 0, 0), now), admitted, "{later_ms}");
    }
    let mut slots = Slots::of(1);
    slots.asks_as(ScriptOp::Peek, turn(1, 500, 10), 1_000);
    let name = slots.counters.dump().remove(0).0;
    for value in ["", "x", &"\u{1}".repeat(24)] {
        redis::cmd("DEL").arg(&name).exec(&mut slots.counters.connection).unwrap();
        redis::cmd("HSET")
            .arg(&name)
            .arg("12345678")
            .arg(value)
            .exec(&mut slots.counters.connection)
            .unwrap();
        assert!(slots.asks_as(ScriptOp::Peek, turn(2, 0, 10), 1_000));
    }
    redis::cmd("SET").arg(&name).arg("text").exec(&mut slots.counters.connection).unwrap();
    assert!(slots.asks_as(ScriptOp::Peek, turn(2, 500, 10), 1_000));
    assert!(!slots.asks_as(ScriptOp::Peek, turn(1, 0, 10), 1_000), "it was replaced");
}

/// A gateway with a lower limit holds none of the slots up that only others may use.
#[test]
fn a_lower_limit_elsewhere_holds_nobody_up() {
    let mut slots = Slots::of(1);
    slots.asks_as(ScriptOp::Peek, turn(1, 500, 10), 1_000);
    slots.shared = Shared::new(vec![limit(concurrency(2))]);
    assert!(slots.asks_as(ScriptOp::Peek, turn(2, 0, 10), 1_000));
    slots.asks_as(ScriptOp::Peek, turn(3, 500, 10), 1_000);
    slots.shared = Shared::new(vec![limit(concurrency(1))]);
    assert!(!slots.asks_as(ScriptOp::Peek, turn(4, 0, 10), 1_000), "a higher or equal one does");
}

/// What a gateway asks for while it gives slots back is not taken until it is granted, and not after it is given up.
#[test]
fn slots_that_are_asked_for_are_free_until_they_are_granted() {
    let mut slots = Slots::of(12);
    let say = |slots: &mut Slots, op, node, (held, asked, oldest), sequence| {
        let slot_count = SlotCount { slots: held + asked, asked, oldest, sequence, turn: None };
        slots.say(op, node, slot_count, 0)
    };
    // One holds 5 and the other 7.
    (0..5).for_each(|n| assert!(say(&mut slots, ScriptOp::Take, 1, (n, 1, n + 1), n + 1).admitted));
    (0..7).for_each(|n| assert!(say(&mut slots, ScriptOp::Take, 2, (n, 1, n + 1), n + 1).admitted));
    // Eight questions, of which none is answered, while all five requests end.
    (0..8).for_each(|n| assert!(!say(&mut slots, ScriptOp::Take, 1, (5, n + 1, 11), 11 + n).admitted));
    say(&mut slots, ScriptOp::ReportSlots, 1, (0, 8, 11), 20);
    let free =
        |slots: &mut Slots| say(slots, ScriptOp::Peek, 2, (7, 1, 30), 30).answers[0].decision.remaining;
    assert_eq!(free(&mut slots), 5);
    // Two are granted, and it hears of the first.
    assert!(say(&mut slots, ScriptOp::Take, 1, (0, 9, 11), 21).admitted);
    assert!(say(&mut slots, ScriptOp::Take, 1, (0, 10, 11), 22).admitted);
    assert_eq!(free(&mut slots), 3);
    say(&mut slots, ScriptOp::ReportSlots, 1, (1, 1, 22), 23);
    assert_eq!(free(&mut slots), 3);
    // It waits no longer for the answer to the second; if that came late, it would count until the next word.
    say(&mut slots, ScriptOp::ReportSlots, 1, (1, 0, 24), 24);
    assert_eq!(free(&mut slots), 4);
    assert!(say(&mut slots, ScriptOp::Take, 1, (1, 1, 22), 22).admitted);
    assert_eq!(free(&mut slots), 3);
    // One that was overtaken by a report counts beside it.
    say(&mut slots, ScriptOp::ReportSlots, 1, (1, 1, 25), 26);
    assert!(say(&mut slots, ScriptOp::Take, 1, (1, 1, 25), 25).admitted);
    assert_eq!(free(&mut slots), 3);
    say(&mut slots, ScriptOp::ReportSlots, 1, (2, 0, 27), 27);
    assert_eq!((free(&mut slots), slots.counters.dump().len()), (3, 1));
}
