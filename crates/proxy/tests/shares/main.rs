//! `enforce`: a limit acts on a stable share of its keys, and is a dry run for the others.

#[allow(dead_code, reason = "shared with the limit tests")]
#[path = "../../../admission/tests/limits/any.rs"]
mod any;
#[allow(dead_code, reason = "shared with the limit tests")]
#[path = "../../../admission/tests/limits/support.rs"]
mod support;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Uri, Version};
use http_body::SizeHint;
use proptest::prelude::*;
use sluicegate_admission::chain::{ChainVerdict, Charge, Decisions, LimitDemand};
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_http::request::client::Client;
use sluicegate_limit::{Limit, LimitOutcome, Units};
use sluicegate_model::{self as model, Algorithm, LimitId};
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::judge::{self, JudgeMode, RequestFacts, RequestHead};

use crate::any::{any_limit, any_traffic};
use crate::support::*;

const KEYS: usize = 100_000;

struct ChargeMode;

impl JudgeMode<'_> for ChargeMode {
    type Chain = Charge;

    fn try_count_in_flight(&mut self, _: &Gateway) -> bool {
        true
    }
}

fn build(enforce: &str, previous: Option<&Gateway>) -> Gateway {
    let text = format!(
        "limits: {{ a: {{ key: header:x-key, rate: 1/h{enforce} }} }}\naccess_log: {{ output: none }}\n\
         locations: [{{ path: /, respond: {{ status: 200 }}, limits: a }}]\n"
    );
    let config = config::parse(&text, "test").unwrap_or_else(|report| panic!("{report}")).config;
    let gateway = Gateway::build(&config, previous).unwrap();
    gateway.apply_numbers(&|| Now(START));
    gateway
}

/// Whether a request with this key is admitted.
fn admits(gateway: &Gateway, key: usize) -> bool {
    let (method, uri, mut headers) = (Method::GET, Uri::from_static("/"), HeaderMap::new());
    headers.insert("host", HeaderValue::from_static("a.test"));
    headers.insert("x-key", HeaderValue::from_str(&format!("key-{key}")).unwrap());
    let head = RequestHead {
        method: &method,
        uri: &uri,
        version: Version::HTTP_11,
        headers: &headers,
        authority: None,
        client: Client { ip: [10, 0, 0, 1].into(), trusted_peer: false },
        scheme: model::Scheme::Http,
        listener: None,
        received: Now(START),
        is_websocket_connect: false,
    };
    let mut facts = RequestFacts::new(head, SizeHint::with_exact(0), None);
    let (mut decisions, mut verdict) = (Decisions::new(), None);
    judge::judge(gateway, &mut facts, &mut ChargeMode, &mut decisions, &mut verdict).unwrap();
    let Some(ChainVerdict::Admit(mut permit)) = verdict else { return false };
    permit.keep_charges();
    true
}

/// The keys that the limit acts on: those of which it rejects a second request.
fn enforced_keys(gateway: &Gateway) -> Vec<usize> {
    (0..KEYS).filter(|key| !(admits(gateway, *key) && admits(gateway, *key))).collect()
}

/// The share of 100,000 keys is what it says; three gateways with secrets of their own and a reload choose the same
/// ones, and a greater share only adds keys.
#[test]
fn gateways_agree_on_a_stable_share_of_the_keys() {
    let first = build(", enforce: 10%", None);
    let tenth = enforced_keys(&first);
    let percent = tenth.len() as f64 * 100.0 / KEYS as f64;
    assert!((9.5..10.5).contains(&percent), "{percent} %");
    for gateway in
        [build(", enforce: 10%", None), build(", enforce: 10%", None), build(", enforce: 10%", Some(&first))]
    {
        assert_eq!(enforced_keys(&gateway), tenth);
    }
    let fifth = enforced_keys(&build(", enforce: 20%", Some(&first)));
    assert!((19_000..21_000).contains(&fifth.len()), "{}", fifth.len());
    assert!(tenth.iter().all(|key| fifth.binary_search(key).is_ok()), "10% → 20% only adds keys");
    let some = enforced_keys(&build(", enforce: 0.5%", Some(&first)));
    assert!((400..600).contains(&some.len()) && some.iter().all(|key| tenth.binary_search(key).is_ok()));
    assert_eq!(enforced_keys(&build(", enforce: 0%", Some(&first))).len(), 0);
    for all in [", enforce: 100%", ""] {
        assert_eq!(enforced_keys(&build(all, Some(&first))).len(), KEYS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// For keys that it does not act on, a limit of any kind is a dry run, number by number; between them stand keys
    /// that it acts on.
    #[test]
    fn unenforced_keys_are_judged_as_by_a_dry_run(limit in any_limit(), traffic in any_traffic()) {
        let limit = model::LimitConfig { dry_run: false, ..limit };
        let build = |config: &model::LimitConfig| Gate::new(vec![Arc::new(Limit::new(LimitId(0), config, 1000))]);
        let (mixed, dry) = (build(&limit), build(&model::LimitConfig { dry_run: true, ..limit.clone() }));
        let mut now = START;
        let mut held = Vec::new();
        for request in traffic {
            now += request.gap;
            let unenforced = request.id == 1;
            let judge = |gate: &Gate, unenforced: bool| {
                let ask = |limit: &Limit| LimitDemand::Units(Units { unenforced, ..request.units(limit) });
                gate.chain.judge_request(Now(now), &gate.waiting, ask)
            };
            let seen = judge(&mixed, unenforced);
            if !unenforced {
                if let Verdict::Admit(mut accepted) = seen.verdict {
                    accepted.keep_charges();
                }
                continue;
            }
            let expected = judge(&dry, false);
            prop_assert_eq!(&seen.decisions[..], &expected.decisions[..]);
            let [mut seen, mut expected] = [seen, expected].map(admitted);
            prop_assert!(!seen.must_wait());
            let slots = |accepted: &Accepted| accepted.permit().slot_decisions().collect::<Vec<_>>();
            prop_assert_eq!(slots(&seen), slots(&expected));
            match request.fate {
                0 => held.clear(),
                1..4 => {
                    seen.keep_charges();
                    expected.keep_charges();
                }
                _ => {}
            }
            held.push((seen, expected));
        }
    }
}

/// A key that a queue does not act on neither waits nor is rejected, beside one that does.
#[test]
fn unenforced_keys_never_wait() {
    for algorithm in [leaky(1, SECOND, 1, 1), slots(1, 1, None)] {
        let gate = Gate::one(algorithm.clone());
        let judge = |id: u128, unenforced: bool| {
            let ask = |_: &Limit| LimitDemand::Units(Units { unenforced, ..units(id, 1) });
            gate.chain.judge_request(Now(START), &gate.waiting, ask)
        };
        let acted: Vec<_> = (0..3).map(|_| judge(1, false).verdict).collect();
        let [Verdict::Admit(first), Verdict::Admit(second), Verdict::Reject(_)] = &acted[..] else {
            panic!("an enforced key passes, waits and is rejected")
        };
        assert!(!first.must_wait() && second.must_wait());
        let is_slots = matches!(algorithm, Algorithm::Concurrency { .. });
        let mut held = Vec::new();
        for outcome in [LimitOutcome::Admit, LimitOutcome::Wait, LimitOutcome::Reject] {
            let judgement = judge(2, true);
            let decisions = judgement.decisions.to_vec();
            let accepted = admitted(judgement);
            assert!(!accepted.must_wait());
            let seen = match is_slots {
                true => accepted.permit().slot_decisions().next().unwrap(),
                false => decisions[0],
            };
            assert_eq!((seen.decision.outcome, seen.dry_run), (outcome, true));
            held.push(accepted);
        }
    }
}
