//! Turns: what rejected requests are told where `on_reject.retry_after` is `turns`.

use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_admission::chain::{Chain, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, LimitOutcome};
use sluicegate_model::{self as model, Algorithm, LimitId, Rate, WindowAlign};

use crate::crowd::{Crowd, CrowdReport};
use crate::support::*;

const AT_MOST: u64 = 10 * SECOND;

fn at(id: usize, algorithm: Algorithm) -> Arc<Limit> {
    let config = model::LimitConfig { name: format!("limit {id}"), ..config(algorithm) };
    Arc::new(Limit::new(LimitId(id), &config, 10_000))
}

/// A chain of which the last limit tells turns up to `at_most`; 0 = all tell the exact time.
fn gate(limits: Vec<Arc<Limit>>, at_most: u64) -> Gate {
    let last = limits.len() - 1;
    let chain = Chain::new(limits).with_turns(|limit| if limit.id.0 == last { at_most } else { 0 });
    Gate { chain, waiting: Arc::new(WaitingCap::new(100_000)) }
}

/// The time that a rejected request is told, and whether it is a turn.
fn refused(judgement: &Judgement) -> (u64, bool) {
    match &judgement.verdict {
        Verdict::Reject(rejection) => (rejection.retry_after_ns.unwrap(), rejection.is_turn),
        Verdict::Admit(_) => panic!("admitted"),
    }
}

/// Every turn that was handed out to one key: when, for when, when it would have fit, and the time that the rate takes
/// for its units.
#[derive(Default)]
struct History(Vec<(u64, u64, u64, u64)>);

impl History {
    /// The law, from the history alone.
    fn next(&mut self, now: u64, fits: u64, span: u64, at_most: u64) -> Result<Option<u64>, TestCaseError> {
        let open = self.0.iter().map(|(_, due, ..)| *due).filter(|due| *due > now).max();
        let due = open.map_or(now + fits, |last| (last + span).max(now + fits));
        prop_assert!(open.is_none_or(|last| due > last), "turns never go back");
        if due - now > at_most {
            return Ok(None);
        }
        let within = || self.0.iter().filter(|(handed_out, ..)| now - handed_out <= at_most);
        let refused: u64 = within().map(|(.., span)| span).sum();
        // Requests of different cost fit at different times, and keep their order.
        let fits_at = within().map(|(_, _, fits_at, _)| *fits_at).max().unwrap_or(0).max(now + fits);
        prop_assert!(due - fits_at <= refused + span, "not ahead of what was refused, itself included");
        self.0.push((now, due, now + fits, span));
        Ok(Some(due - now))
    }
}

fn algorithms() -> Vec<Algorithm> {
    let mut all = all_windows(5, 2 * SECOND);
    all.extend([
        token(5, SECOND, 10),
        token(3, 100 * MS, 3),
        leaky(5, SECOND, 2, 2),
        fixed(3, SECOND, WindowAlign::First),
    ]);
    all
}

fn rate_of(algorithm: &Algorithm) -> Rate {
    algorithm.rate_quotas()[0].0
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    /// Beside the same limit without turns, each rejection tells what the history of turns says, and nothing else
    /// differs.
    #[test]
    fn turns_follow_the_law(
        kind in 0..9usize,
        at_most in 1..12u64,
        traffic in proptest::collection::vec((0..400u64, 0..4u128, 1..4u64, any::<bool>()), 1..120),
    ) {
        let (algorithm, at_most) = (algorithms()[kind].clone(), at_most * SECOND);
        let (turns, exact) = (gate(vec![at(0, algorithm.clone())], at_most), gate(vec![at(0, algorithm.clone())], 0));
        let mut histories: [History; 4] = Default::default();
        let mut now = 0;
        for (gap, key, cost, looks) in traffic {
            now += gap * MS;
            if looks {
                let ask = |_: &Limit| LimitDemand::Units(units(key, cost));
                turns.chain.look(Now(START + now), &turns.waiting, ask);
            }
            let (told, plain) = (turns.judge(now, key, cost), exact.judge(now, key, cost));
            let (decision, expected) = (told.decisions[0].decision, plain.decisions[0].decision);
            if expected.outcome != LimitOutcome::Reject {
                prop_assert_eq!(decision, expected);
                // A place in the queue stays.
                for judgement in [told, plain] {
                    admitted(judgement).keep_charges();
                }
                continue;
            }
            let fits = expected.retry_after_ns;
            let span = rate_of(&algorithm).span_ns(cost);
            let turn = histories[key as usize].next(now, fits, span, at_most)?;
            prop_assert_eq!(refused(&told), (turn.unwrap_or(fits), turn.is_some()));
            prop_assert_eq!(decision, sluicegate_limit::Decision { retry_after_ns: turn.unwrap_or(fits), ..expected });
        }
    }
}

#[test]
fn each_gets_the_next_turn_until_the_last_has_passed() {
    let gate = gate(vec![at(0, token(10, SECOND, 1))], SECOND);
    assert!(gate.passes(0));
    let told: Vec<(u64, bool)> = (0..12).map(|_| refused(&gate.judge(0, 1, 1))).collect();
    let turns: Vec<(u64, bool)> = (1..=10).map(|turn| (turn * 100 * MS, true)).collect();
    assert_eq!(
        (&told[..10], &told[10..]),
        (&turns[..], &[(100 * MS, false); 2][..]),
        "the furthest turn is 1 s"
    );
    assert!(gate.send(0, 2, 1).is_ok());
    assert_eq!(refused(&gate.judge(0, 2, 1)), (100 * MS, true), "a key has a row of its own");
    let late = SECOND + 1;
    assert!(gate.passes(late));
    assert_eq!(
        refused(&gate.judge(late, 1, 1)),
        (100 * MS, true),
        "nobody took the turns, and they have passed"
    );
}

#[test]
fn a_look_and_a_request_that_another_limit_rejects_too_take_no_turn() {
    let gate = gate(vec![at(0, token(1, SECOND, 1)), at(1, token(10, SECOND, 1))], AT_MOST);
    let ask = |client: u128| {
        move |limit: &Limit| LimitDemand::Units(units(if limit.id.0 == 0 { client } else { 0 }, 1))
    };
    let judge = |client| gate.chain.judge_request(Now(START), &gate.waiting, ask(client));
    admitted(judge(1)).keep_charges();
    for _ in 0..20 {
        assert_eq!(refused(&judge(1)), (SECOND, false), "its own limit rejects it, too");
        assert_eq!(refused(&gate.chain.look(Now(START), &gate.waiting, ask(2))), (100 * MS, true));
    }
    assert_eq!(refused(&judge(2)), (100 * MS, true));
    assert_eq!(refused(&judge(3)), (200 * MS, true));
}

#[test]
fn a_reload_keeps_the_turns() {
    let before = at(0, token(10, SECOND, 1));
    let gate_before = gate(vec![before.clone()], AT_MOST);
    assert!(gate_before.passes(0));
    assert_eq!(refused(&gate_before.judge(0, 1, 1)), (100 * MS, true));
    let config = model::LimitConfig { name: "limit 0".into(), ..config(token(20, SECOND, 1)) };
    let after = Limit::continue_from(Some(&before), LimitId(0), &config, 10_000);
    after.apply_numbers(&|| Now(START));
    assert_eq!(refused(&gate(vec![Arc::new(after)], AT_MOST).judge(0, 1, 1)), (150 * MS, true));
}

fn run(crowd: Crowd, per_client: Option<Algorithm>, at_most: u64) -> CrowdReport {
    let all = token(100, SECOND, 100);
    let limits = per_client.into_iter().chain([all]).enumerate().map(|(id, numbers)| at(id, numbers));
    let gate = gate(limits.collect(), at_most);
    let last = gate.chain.limits().len() - 1;
    crowd.run(|now, client| {
        let ask = |limit: &Limit| {
            LimitDemand::Units(units(if limit.id.0 == last { 0 } else { u128::from(client) + 1 }, 1))
        };
        match gate.chain.judge_request(Now(START + now), &gate.waiting, ask).verdict {
            Verdict::Admit(mut accepted) => {
                accepted.keep_charges();
                Ok(())
            }
            Verdict::Reject(rejection) => Err(rejection.retry_after_ns.unwrap()),
        }
    })
}

#[test]
fn a_crowd_that_obeys_is_refused_once() {
    for whole_seconds in [true, false] {
        let crowd = Crowd { clients: 1_000, whole_seconds, hasty_gap: None };
        let (turns, exact) = (run(crowd, None, AT_MOST), run(crowd, None, 0));
        println!("whole seconds: {whole_seconds}; turns: {turns:?}; exact: {exact:?}");
        assert!(turns.refusals_per_client <= 1.05, "{turns:?}");
        // The bucket has 100 at once, and 100 each second.
        assert!(turns.last_ns <= 10 * SECOND, "{turns:?}");
        assert!(exact.refusals_per_client >= 3.0, "{exact:?}");
    }
}

#[test]
fn a_hasty_client_behind_a_limit_of_its_own_takes_nothing_from_the_others() {
    for (clients, whole_seconds) in [(100, true), (1_000, true), (1_000, false)] {
        let crowd = Crowd { clients, whole_seconds, hasty_gap: Some(MS) };
        let own = || Some(token(5, SECOND, 5));
        let (turns, exact) = (run(crowd, own(), AT_MOST), run(crowd, own(), 0));
        println!("{clients} clients, whole seconds: {whole_seconds}; turns: {turns:?}; exact: {exact:?}");
        assert!(turns.last_ns <= exact.last_ns + SECOND / 2, "{turns:?} {exact:?}");
        assert!(turns.refusals_per_client <= exact.refusals_per_client, "{turns:?} {exact:?}");
    }
}
