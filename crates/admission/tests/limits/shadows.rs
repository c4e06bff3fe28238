//! Shadows judge each request as their limit would with their numbers, whatever that limit decides itself.

use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_admission::chain::{LimitDemand, RateDecision};
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_limit::{Limit, LimitOutcome};
use sluicegate_model::{self as model, LimitId};

use crate::any::{RandomRequest, any_limit, any_rates, any_traffic, with_rates};
use crate::model::TokenModel;
use crate::support::*;

fn at(id: usize, config: &model::LimitConfig) -> Arc<Limit> {
    Arc::new(Limit::new(LimitId(id), config, 1000))
}

/// A limit at `id` and its shadow behind it.
fn pair(id: usize, live: &model::LimitConfig, shadow: model::LimitConfig) -> [Arc<Limit>; 2] {
    let live = model::LimitConfig { shadow: Some(LimitId(id + 1)), ..live.clone() };
    let shadow = model::LimitConfig { dry_run: true, shadow_of: Some(LimitId(id)), ..shadow };
    [at(id, &live), at(id + 1, &shadow)]
}

/// Forwards the request if it was accepted, and returns its decisions.
fn settle(judgement: Judgement) -> Vec<RateDecision> {
    let decisions = judgement.decisions.to_vec();
    if let Verdict::Admit(mut accepted) = judgement.verdict {
        accepted.keep_charges();
    }
    decisions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The decisions of a shadow, with every number in them, are those of a dry run that is alone.
    #[test]
    fn a_shadow_is_not_disturbed_by_its_limit(
        live in any_limit(),
        rates in any_rates(),
        traffic in any_traffic(),
    ) {
        let live = model::LimitConfig { dry_run: false, tiers: vec![], ..live };
        let shadow = model::LimitConfig { algorithm: with_rates(&live.algorithm, rates), ..live.clone() };
        let alone = Gate::new(vec![at(0, &model::LimitConfig { dry_run: true, ..shadow.clone() })]);
        let both = Gate::new(pair(0, &live, shadow).into());
        let concurrency = matches!(live.algorithm, model::Algorithm::Concurrency { .. });
        let mut now = START;
        for request in traffic.iter().filter(|_| !concurrency) {
            now += request.gap;
            let ask = |gate: &Gate| {
                let ask = |limit: &Limit| LimitDemand::Units(request.units(limit));
                settle(gate.chain.judge_request(Now(now), &gate.waiting, ask))
            };
            let expected: Vec<_> = ask(&alone).iter().map(|judged| (judged.rate, judged.decision)).collect();
            let beside = ask(&both).into_iter().filter(|judged| judged.limit_index == 1);
            let beside: Vec<_> = beside.map(|judged| (judged.rate, judged.decision)).collect();
            prop_assert_eq!(beside, expected);
        }
    }

    /// Between other limits, of which each may have a shadow: only a rejection by another limit keeps a shadow from
    /// being charged. Checked with models that know nothing of chains.
    #[test]
    fn rejections_by_others_cost_a_shadow_nothing(
        sizes in proptest::collection::vec((1..6u64, proptest::option::of(1..6u64)), 1..4),
        traffic in any_traffic(),
    ) {
        let model = |burst: u64| TokenModel::new(burst, SECOND, burst);
        let (mut limits, mut models, mut owners) = (vec![], vec![], vec![]);
        for (own, &(burst, shadow)) in sizes.iter().enumerate() {
            let live = config(token(burst, SECOND, burst));
            match shadow {
                Some(shadow) => limits.extend(pair(limits.len(), &live, config(token(shadow, SECOND, shadow)))),
                None => limits.push(at(limits.len(), &live)),
            }
            for burst in [Some(burst), shadow].into_iter().flatten() {
                models.push(model(burst));
                owners.push((own, models.len() > 1 && owners.last().is_some_and(|(last, _)| *last == own)));
            }
        }
        let gate = Gate::new(limits);
        let mut now = 0;
        for RandomRequest { gap, cost, .. } in traffic {
            now += gap;
            let mut fits = Vec::new();
            for model in &mut models {
                model.take(now, 0);
                fits.push(model.left() >= cost);
            }
            let judgement = gate.judge(now, 1, cost);
            let admits = |judged: &RateDecision| judged.decision.outcome == LimitOutcome::Admit;
            prop_assert_eq!(judgement.decisions.iter().map(admits).collect::<Vec<_>>(), fits.clone());
            settle(judgement);
            for (index, (own, is_shadow)) in owners.iter().enumerate() {
                let others_admit = (0..owners.len()).all(|other| {
                    let (owner, shadow) = owners[other];
                    shadow || owner == *own || fits[other]
                });
                let own_admits = *is_shadow || fits[index];
                if others_admit && own_admits && fits[index] {
                    models[index].take(now, cost);
                }
            }
        }
    }
}

/// A shadow with a smaller number counts the requests in flight that it would have admitted; with a greater one it
/// tells that it has room, but a rejected request is never in flight.
#[test]
fn shadows_of_slots_count_only_what_is_in_flight() {
    let outcome = |decisions: &[RateDecision]| {
        let own = decisions.iter().filter(|judged| judged.limit_index == 1);
        own.map(|judged| (judged.dry_run, judged.decision.outcome)).collect::<Vec<_>>()
    };
    let [less, more] = [(3, 1), (1, 3)].map(|(live, shadow)| {
        Gate::new(pair(0, &config(concurrency(live)), config(concurrency(shadow))).into())
    });
    let held: Vec<Accepted> = (0..3).map(|_| admitted(less.judge(0, 1, 1))).collect();
    let seen: Vec<_> =
        held.iter().map(|held| outcome(&held.permit().slot_decisions().collect::<Vec<_>>())).collect();
    let rejects = (true, LimitOutcome::Reject);
    assert_eq!(seen, [vec![(true, LimitOutcome::Admit)], vec![rejects], vec![rejects]]);
    let judgement = less.judge(0, 1, 1);
    assert_eq!(outcome(&judgement.decisions), [rejects], "both reject");
    rejected(judgement);

    let held = admitted(more.judge(0, 1, 1));
    for _ in 0..5 {
        let judgement = more.judge(0, 1, 1);
        assert_eq!(outcome(&judgement.decisions), [(true, LimitOutcome::Admit)]);
        rejected(judgement);
    }
    drop(held);
    assert_eq!(admitted(more.judge(0, 1, 1)).permit().slot_decisions().count(), 2);
}

/// What the response settles is unknown of a rejected request, so its shadow is not charged.
#[test]
fn a_shadow_that_responses_settle_counts_forwarded_requests() {
    let text = "limits: { login: { rate: 2/h, charge: { when: 401 }, shadow: { rate: 9/h } } }\n\
                locations: [{ path: /, respond: { status: 401 }, limits: login }]\n";
    let loaded = config::parse(text, "test").unwrap_or_else(|report| panic!("{report}"));
    let [live, shadow] = [0, 1].map(|id| at(id, &loaded.config.limits[id]));
    let gate = Gate::new(vec![live, shadow]);
    let left = || {
        let judgement = gate.judge(0, 1, 1);
        let left = judgement.decisions[1].decision.remaining;
        settle(judgement);
        left
    };
    let seen: Vec<u64> = (0..5).map(|_| left()).collect();
    assert_eq!(seen, [8, 7, 7, 7, 7]);
}

/// A reload keeps the counters of a shadow whose numbers stay, and the limit's own whatever becomes of the shadow.
#[test]
fn reloads_keep_the_counters_of_shadows() {
    let file = |own: &str, shadow: &str| {
        let text = format!(
            "limits: {{ a: {{ rate: {own}{shadow} }} }}\n\
             locations: [{{ path: /, respond: {{ status: 200 }}, limits: a }}]\n"
        );
        config::parse(&text, "test").unwrap_or_else(|report| panic!("{report}")).config.limits
    };
    let mut before: Vec<Arc<Limit>> = Vec::new();
    let mut reload = |own: &str, shadow: &str| {
        let next = file(own, shadow).into_iter().enumerate().map(|(id, config)| {
            let known = before.iter().find(|limit| *limit.name == config.name).map(|limit| &**limit);
            let limit = Limit::continue_from(known, LimitId(id), &config, 1000);
            limit.apply_numbers(&|| Now(START));
            Arc::new(limit)
        });
        before = next.collect();
        let gate = Gate::new(before.clone());
        let judgement = gate.judge(0, 1, 1);
        let left = judgement.decisions.iter().map(|judged| judged.decision.remaining).collect::<Vec<_>>();
        settle(judgement);
        left
    };
    assert_eq!(reload("1/h", ", shadow: { rate: 9/h }"), [0, 8]);
    assert_eq!(reload("5/h", ", shadow: { rate: 9/h }"), [3, 7], "the limit changes, the shadow stays");
    assert_eq!(reload("5/h", ", shadow: { rate: 12/h }"), [2, 9], "and the other way round");
    assert_eq!(reload("5/h", ""), [1]);
    assert_eq!(reload("5/h", ", shadow: { rate: 9/h }"), [0, 8], "a new shadow is fresh");
}
