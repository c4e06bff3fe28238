//! Several calls that are sent as one.

use std::cell::RefCell;

use proptest::prelude::*;
use sluicegate_model::WindowAlign;
use sluicegate_store::{PackedCall, ScriptOp};

use crate::limits::{SECOND as SECOND_NS, concurrency, config, fixed, leaky, log, sliding, token};
use crate::script::support::*;

/// One server gets the calls one by one, the other those of a moment together: the answers and what is left in both are
/// the same, byte for byte.
#[test]
fn calls_that_are_sent_together_are_judged_one_after_the_other() {
    let limits = [
        token(5, SECOND_NS, 8),
        leaky(4, SECOND_NS, 2, 3),
        fixed(9, SECOND_NS, WindowAlign::First),
        sliding(9, SECOND_NS, 4),
        log(9, SECOND_NS),
        concurrency(7),
    ];
    let shared = Shared::new(limits.map(config).to_vec());
    let servers = (RefCell::new(Counters::start()), RefCell::new(Counters::start()));
    let one = (1..4u8, 1..3u64, 0..8u8, 1..3u64);
    let rounds = proptest::collection::vec((0..900_000u64, proptest::collection::vec(one, 1..20)), 1..8);
    let cases = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) };
    proptest!(cases, |(rounds in rounds)| {
        let (mut single, mut together) = (servers.0.borrow_mut(), servers.1.borrow_mut());
        single.flush();
        together.flush();
        let (mut now, mut sequence) = (START_US, 0);
        for (gap, calls) in rounds {
            now += gap;
            let pack = |(id, cost, kind, node): &(u8, u64, u8, u64)| {
                sequence += 1;
                let op = if *kind == 0 { ScriptOp::Peek } else { ScriptOp::Take };
                let mut items = shared.items(&[key(*id)], *cost);
                // A part of the limits, so that the calls have different keys.
                items.retain(|item| item.limit_index != u16::from(*kind));
                for item in &mut items {
                    let count = &mut item.slot_count;
                    (count.slots, count.asked, count.oldest, count.sequence) = (*cost, *cost, 1, sequence);
                }
                PackedCall::new(op, "sg", *node, now / 1_000_000, &items)
            };
            let calls: Vec<PackedCall> = calls.iter().map(pack).collect();
            let answer = |call: &PackedCall| single.send_all(std::slice::from_ref(call), Some(now));
            let alone: Vec<Vec<u8>> = calls.iter().map(answer).collect();
            let answers: Vec<Vec<u8>> = match calls.len() {
                1 => vec![together.send_all(&calls, Some(now))],
                _ => together.send_all(&calls, Some(now)),
            };
            assert_eq!(answers, alone);
        }
        assert_eq!(single.dump(), together.dump());
    });
}
