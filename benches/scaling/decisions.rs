//! Decisions in process: the limits of a chain, and the keys of a limit.

use std::hint::black_box;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_admission::chain::{Chain, ChainVerdict, Charge, Decisions, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{
    Algorithm, Cost, KeyPart, LimitConfig, LimitId, MissingKey, NetworkList, OnRejectPatch, Rate,
    TokenBucketRate,
};

use crate::child;
use crate::child::Result;
use crate::keys::{key, next};
use crate::report::Table;
use crate::{Bench, Plan, Series, facts, grouped, median_of, spent_ns};

const START: u64 = 1 << 60;
const CHAINS: [usize; 3] = [1, 8, 64];
const KEYS: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
const KEYS_TIMEOUT: Duration = Duration::from_secs(300);
/// With fewer, the fixed part of the table would count.
const MEASURED_KEYS_MIN: u64 = 10_000;

/// A chain of token buckets that always admit.
struct Judge {
    chain: Chain,
    waiting: Arc<WaitingCap>,
    now: u64,
}

impl Judge {
    fn new(limits: usize) -> Judge {
        let limit = |index| Arc::new(Limit::new(LimitId(index), &token_bucket(), 1_000_000));
        let chain = Chain::new((0..limits).map(limit).collect());
        Judge { chain, waiting: Arc::new(WaitingCap::new(1000)), now: START }
    }

    /// One whole request: judged, given its slots, forwarded, dropped.
    #[inline]
    fn admits(&mut self, number: u64) -> bool {
        let key = key(number);
        let ask = |_: &Limit| LimitDemand::Units(Units::new(key, 1));
        let mut decisions = Decisions::new();
        let verdict = self.chain.judge::<Charge>(Now(self.now), &self.waiting, true, ask, &mut decisions);
        black_box(&decisions);
        let ChainVerdict::Admit(mut permit) = verdict else { return false };
        permit.keep_charges();
        true
    }

    /// ns per decision over `keys` known keys.
    fn measure(&mut self, keys: u64, count: u64, rounds: usize) -> Result<f64> {
        // At one moment, so that no key becomes idle and gives its slot away.
        if !(0..keys).all(|number| self.admits(number)) {
            return Err("a decision was no admission".into());
        }
        let mut number = 1;
        median_of(rounds, || {
            let began = spent_ns();
            for _ in 0..count {
                self.now += 100;
                black_box(self.admits(next(&mut number, keys)));
            }
            Ok((spent_ns() - began) as f64 / count as f64)
        })
    }
}

fn token_bucket() -> LimitConfig {
    let units = NonZeroU64::MIN.saturating_add(4_000_000_000);
    let rate = Rate::new(units, Duration::from_secs(3600));
    let rates = vec![TokenBucketRate { rate, burst: units.get() }];
    LimitConfig {
        name: "bench".into(),
        owner: None,
        key: vec![KeyPart::Ip],
        missing_key: MissingKey::Ip,
        missing_key_status: http::StatusCode::FORBIDDEN,
        algorithm: Algorithm::TokenBucket { rates },
        tiers: vec![],
        grants: vec![],
        views: vec![],
        fair_by: vec![],
        warm_up: None,
        calendar: None,
        steps: Vec::new(),
        shares: None,
        anchors: None,
        cost: Cost::Units(1),
        charge: None,
        methods: vec![],
        bypass: NetworkList::default(),
        dry_run: false,
        enforce: None,
        shadow: None,
        shadow_of: None,
        pause: None,
        set: None,
        file: None,
        shared: None,
        leased: false,
        on_reject: OnRejectPatch::default(),
    }
}

pub fn measure_limits(_bench: &Bench, plan: &Plan) -> Result<(Table, Vec<Series>)> {
    let mut table = Table::new(&["limits", "ns per decision", "ns per limit"]);
    let mut points = Vec::new();
    for limits in CHAINS {
        let count = if plan.quick { 50_000 } else { 500_000 } / limits as u64;
        let ns = Judge::new(limits).measure(1_000, count, plan.rounds)?;
        table.row([limits.to_string(), format!("{ns:.0}"), format!("{:.1}", ns / limits as f64)]);
        points.push((limits as f64, ns / limits as f64));
    }
    Ok((table, vec![Series { name: "decision, per limit of its chain", points }]))
}

pub fn measure_keys(bench: &Bench, plan: &Plan) -> Result<(Table, Vec<Series>)> {
    let mut table = Table::new(&["keys", "ns per decision", "bytes per key"]);
    let mut points = Vec::new();
    let itself = std::env::current_exe()?.display().to_string();
    let count = if plan.quick { 200_000 } else { 2_000_000 };
    for keys in KEYS {
        // A process of its own: memory that was used and freed before would hide what the keys take.
        let words =
            [itself.clone(), "keys".to_owned(), keys.to_string(), count.to_string(), plan.rounds.to_string()];
        let output = child::run(bench.gateway_core, &words.each_ref().map(String::as_str), KEYS_TIMEOUT)?;
        let output = String::from_utf8(output.stdout)?;
        let (ns, bytes) = output.trim().split_once(' ').ok_or("the measurement of keys printed nothing")?;
        let ns: f64 = ns.parse()?;
        let each = bytes.parse::<f64>()? / keys as f64;
        let each = if keys < MEASURED_KEYS_MIN { "–".to_owned() } else { format!("{each:.0}") };
        table.row([grouped(keys as usize), format!("{ns:.0}"), each]);
        points.push((keys as f64, ns));
    }
    Ok((table, vec![Series { name: "decision, by keys", points }]))
}

/// The `keys` command: prints ns per decision, and the bytes of all keys.
pub fn print_keys(words: &[String]) -> Result<()> {
    let [keys, count, rounds] = words else { return Err("keys KEYS DECISIONS ROUNDS".into()) };
    let mut judge = Judge::new(1);
    let before = facts::resident_kib(std::process::id());
    let ns = judge.measure(keys.parse()?, count.parse()?, rounds.parse()?)?;
    let used = facts::resident_kib(std::process::id()).saturating_sub(before) * 1024;
    println!("{ns} {used}");
    Ok(())
}
