//! An independent reader of the fields (RFC 9651), and clients that obey them on a virtual clock.

use std::sync::Arc;

use super::*;
use sluicegate_admission::chain::{Chain, ChainVerdict, Charge, Decisions, LimitDemand, WaitingCap};
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, LimitOutcome, Units};

const SECOND: u64 = 1_000_000_000;

/// One item of a list: its name, its numbers and its texts.
#[derive(Debug, Default)]
struct Item {
    name: String,
    numbers: Vec<(String, u64)>,
    texts: Vec<(String, String)>,
}

impl Item {
    fn number(&self, key: &str) -> Option<u64> {
        self.numbers.iter().find(|(name, _)| name == key).map(|(_, number)| *number)
    }
}

/// Reads a list of strings with parameters as section 4.2 of RFC 9651 does; panics at anything else.
fn read_list(text: &str) -> Vec<Item> {
    let mut rest = text.as_bytes();
    let mut items = Vec::new();
    loop {
        let mut item = Item { name: read_string(&mut rest), ..Item::default() };
        while rest.first() == Some(&b';') {
            rest = rest[1..].trim_ascii_start();
            let length = rest
                .iter()
                .take_while(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'));
            let (key, after) = rest.split_at(length.count());
            assert!(matches!(key.first(), Some(b'a'..=b'z' | b'*')), "{text}: a key begins with a letter");
            let key = String::from_utf8(key.to_vec()).unwrap();
            assert_eq!(after.first(), Some(&b'='), "{text}");
            rest = &after[1..];
            if rest.first() == Some(&b'"') {
                item.texts.push((key, read_string(&mut rest)));
            } else {
                let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                assert!((1..=15).contains(&digits), "{text}: {digits} digits");
                item.numbers.push((key, std::str::from_utf8(&rest[..digits]).unwrap().parse().unwrap()));
                rest = &rest[digits..];
            }
        }
        items.push(item);
        let Some(next) = rest.strip_prefix(b",") else { break };
        rest = next.trim_ascii_start();
    }
    assert!(rest.is_empty(), "{text}: {:?} is left", String::from_utf8_lossy(rest));
    items
}

fn read_string(rest: &mut &[u8]) -> String {
    assert_eq!(rest.first(), Some(&b'"'));
    let mut text = String::new();
    let mut at = 1;
    loop {
        match rest[at] {
            b'"' => break,
            b'\\' => {
                at += 1;
                assert!(matches!(rest[at], b'"' | b'\\'));
                text.push(char::from(rest[at]));
            }
            plain => {
                assert!((0x20..0x7f).contains(&plain));
                text.push(char::from(plain));
            }
        }
        at += 1;
    }
    *rest = &rest[at + 1..];
    text
}

/// A chain of limits with the responses of its location.
struct Server {
    chain: Chain,
    rejecters: Rejecters,
    waiting: Arc<WaitingCap>,
}

struct Answer {
    items: Vec<Item>,
    /// The wait in a queue.
    wait_ns: u64,
    admitted: bool,
    retry_after_ns: Option<u64>,
    /// The windows of the limits that refused.
    refusing: Vec<Option<u64>>,
}

impl Server {
    fn new(limits: &str) -> Server {
        let names: Vec<&str> = limits.lines().map(|line| line.trim().split(':').next().unwrap()).collect();
        let yaml = format!(
            "limits:\n{limits}\nlocations:\n  - {{ path: /, upstream: demo, limits: [{}] }}\n",
            names.join(", ")
        );
        let (config, rejecters) = rejecters(&yaml);
        let limits = config.limits.iter().enumerate();
        let limits = limits.map(|(index, limit)| Arc::new(Limit::new(LimitId(index), limit, 1_000)));
        Server { chain: Chain::new(limits.collect()), rejecters, waiting: Arc::new(WaitingCap::new(1_000)) }
    }

    fn send(&self, at: u64, cost: u64) -> Answer {
        let key = CounterKey::new(7, 7);
        let demand = |_: &Limit| LimitDemand::Units(Units::new(key, cost));
        let mut decisions = Decisions::new();
        let verdict = self.chain.judge::<Charge>(Now(at), &self.waiting, true, demand, &mut decisions);
        let (admitted, retry_after_ns) = match verdict {
            ChainVerdict::Admit(mut permit) => {
                permit.keep_charges();
                (true, None)
            }
            ChainVerdict::Wait(queued) => {
                queued.keep_charges();
                (true, None)
            }
            ChainVerdict::Reject(rejection) => (false, rejection.retry_after_ns),
            ChainVerdict::AskStore(_) => panic!("no limit is shared"),
        };
        let judged = |judged: &sluicegate_admission::chain::RateDecision| {
            (LimitId(judged.limit_index.into()), usize::from(judged.rate), judged.decision)
        };
        let mut headers = HeaderMap::new();
        let fields = &self.rejecters.for_location(Some(LocationId(0))).rate_limit_fields;
        fields.write_fields(decisions.iter().map(judged), &mut headers);
        let read = |name: &str| read_list(headers[name].to_str().unwrap());
        let (items, policies) = (read("ratelimit"), read("ratelimit-policy"));
        assert_eq!(items.len(), policies.len());
        for (item, policy) in items.iter().zip(&policies) {
            assert_eq!(item.name, policy.name);
            assert!(item.number("r").unwrap() <= policy.number("q").unwrap(), "{item:?} {policy:?}");
            assert!(item.number("t") != Some(0) && policy.number("w").unwrap() > 0, "{item:?} {policy:?}");
        }
        let refusing = decisions
            .iter()
            .zip(&items)
            .filter(|(judged, _)| judged.decision.outcome == LimitOutcome::Reject);
        let refusing = refusing.map(|(_, item)| item.number("t")).collect();
        let wait_ns = decisions.iter().map(|judged| judged.decision.wait_ns).max().unwrap_or_default();
        Answer { items, wait_ns, admitted, retry_after_ns, refusing }
    }
}

/// Limits of one chain, with the cost that is written there; 0 = it varies.
const SERVERS: [(&str, u64); 17] = [
    ("  a: { rate: 10/s, burst: 20 }", 1),
    ("  a: { rate: 1/3s, burst: 7 }", 1),
    ("  a: { rate: 7/s, burst: 20, cost: 5 }", 5),
    ("  a: { rate: 1/7s, burst: 9, cost: 3 }", 3),
    ("  a: { rate: 3/s, burst: 30, cost: 4, warm_up: 20s }", 4),
    ("  a: { algorithm: leaky_bucket, rate: 2/s, burst: 2, queue: 5 }", 1),
    ("  a: { algorithm: leaky_bucket, rate: 1/3s, burst: 3, queue: 6, cost: 3 }", 3),
    ("  a: { algorithm: fixed_window, rate: 10/7s }", 1),
    ("  a: { algorithm: fixed_window, rate: 10/7s, align: clock, cost: 3 }", 3),
    ("  a: { algorithm: sliding_window, rate: 20/10s, buckets: 5, cost: 3 }", 3),
    ("  a: { algorithm: sliding_window, rate: 9/6s }", 1),
    ("  a: { algorithm: sliding_log, rate: 10/7s, cost: 4 }", 4),
    ("  a: { algorithm: sliding_log, rate: 5/3s }", 1),
    ("  a: { rate: [10/s, 30/20s], burst: [10, 30], cost: 2 }", 2),
    ("  a: { rate: 3/s, burst: 8 }\n  b: { algorithm: fixed_window, rate: 20/30s }", 1),
    ("  a: { rate: 5/2s, burst: 12 }", 0),
    ("  a: { algorithm: sliding_log, rate: 12/8s }\n  b: { algorithm: fixed_window, rate: 30/1m }", 0),
];

/// Numbers without a pattern that would fit a rate.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn a_client_that_obeys_the_fields_is_never_refused() {
    for (seed, (limits, fixed_cost)) in SERVERS.into_iter().enumerate() {
        let (server, mut dice) = (Server::new(limits), Dice(seed as u64));
        let mut now = SECOND * 1_000;
        let (mut cost, mut waited) = (fixed_cost.max(1), 0);
        let mut answer = server.send(now, cost);
        for _ in 0..2_000 {
            now += answer.wait_ns;
            // At times it does nothing for a while, so that all phases of a window are met.
            let pause = [0, 0, 0, 0, dice.below(300_000_000), dice.below(9 * SECOND)];
            let idle = pause[dice.below(6) as usize];
            if fixed_cost == 0 {
                cost = 1 + dice.below(5);
            }
            let left = answer.items.iter().map(|item| item.number("r").unwrap()).min().unwrap();
            let short = answer.items.iter().filter(|item| item.number("r").unwrap() < cost);
            let window = short.map(|item| item.number("t").unwrap()).max();
            match window {
                None => {
                    now += idle;
                    // All that is left may go at once, but what waits in a queue is told to wait.
                    for _ in 1..=dice.below(left / cost) {
                        answer = server.send(now, cost);
                        assert!(answer.admitted, "{limits}: one of {left}");
                    }
                }
                Some(seconds) => {
                    waited += 1;
                    now += seconds * SECOND + idle;
                    if fixed_cost == 0 && left == 0 {
                        cost = 1;
                    }
                }
            }
            answer = server.send(now, cost);
            assert!(answer.admitted, "{limits}: {cost} at {now}, after {left} and {window:?}");
        }
        assert!(waited > 20, "{limits}: it met the limit {waited} times");
    }
}

#[test]
fn after_a_refusal_the_window_and_retry_after_agree_and_suffice() {
    for (seed, (limits, fixed_cost)) in SERVERS.into_iter().enumerate() {
        let (server, mut dice) = (Server::new(limits), Dice(seed as u64));
        let mut now = SECOND * 1_000;
        let mut refused = 0;
        for _ in 0..2_000 {
            now += if dice.below(16) == 0 { dice.below(9 * SECOND) } else { dice.below(30_000_000) };
            let cost = if fixed_cost == 0 { 1 + dice.below(5) } else { fixed_cost };
            let answer = server.send(now, cost);
            if answer.admitted {
                continue;
            }
            refused += 1;
            let retry_after = answer.retry_after_ns.unwrap().div_ceil(SECOND).max(1);
            assert!(!answer.refusing.is_empty());
            assert_eq!(answer.refusing.iter().map(|t| t.unwrap()).max(), Some(retry_after), "{limits}");
            now += retry_after * SECOND;
            let retried = server.send(now, cost);
            assert!(retried.admitted, "{limits}: {cost} at {now}");
            now += retried.wait_ns;
        }
        assert!(refused > 20, "{limits}: {refused}");
    }
}

#[test]
fn a_cost_that_never_fits_has_no_window() {
    for (limits, _) in SERVERS {
        let answer = Server::new(limits).send(SECOND, 1_000);
        assert!(!answer.admitted && answer.retry_after_ns.is_none(), "{limits}");
        assert!(answer.refusing.iter().all(Option::is_none) && !answer.refusing.is_empty(), "{limits}");
    }
}
