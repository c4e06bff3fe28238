//! `GET /limits`: every limit with its numbers, its size and its traffic.

use serde::Serialize;

use super::answer::Answer;
use super::call::CallRequest;
use crate::base::clock::Now;
use crate::config::Algorithm;
use crate::config::LimitConfig;
use crate::config::describe::{describe_key, describe_limit, describe_rates};
use crate::operate::text_table::render_table;
use crate::operate::traffic::{LimitSize, LimitSizes, LimitTraffic, Traffic};
use crate::proxy::gateway::Gateway;

#[derive(Serialize)]
struct LimitList {
    limits: Vec<LimitStatus>,
}

#[derive(Serialize)]
struct LimitStatus {
    limit: String,
    algorithm: &'static str,
    /// The key by which it counts.
    key: String,
    sentence: String,
    /// The numbers in words.
    numbers: String,
    rates: Vec<RateNumbers>,
    max_concurrent: Option<u32>,
    tiers: Vec<TierNumbers>,
    dry_run: bool,
    /// The share of its keys on which it acts.
    enforce: Option<String>,
    /// The limit that this one is the shadow of.
    shadow_of: Option<String>,
    shared: bool,
    keys: Option<usize>,
    waiting: usize,
    admitted: Traffic,
    waited: Traffic,
    rejected: Traffic,
    dry_run_rejected: Traffic,
}

#[derive(Serialize)]
struct RateNumbers {
    units: u64,
    period_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<u64>,
}

#[derive(Serialize)]
struct TierNumbers {
    tier: String,
    /// In words; null for a tier without a limit.
    numbers: Option<String>,
}

pub(super) fn list_limits(request: &CallRequest) -> Answer {
    let gateway = request.state.gateway();
    let look = request.state.traffic().look_at(&gateway, Now::read_clock());
    let sizes = LimitSizes::read(&gateway);
    let mut found: Vec<&LimitTraffic> = look.limits.iter().collect();
    if request.query_value("by") == "rejected" {
        found.sort_by(|a, b| b.rejected.per_s.total_cmp(&a.rejected.per_s));
    }
    found.truncate(usize::try_from(request.query_number("top")).unwrap_or(usize::MAX));
    let limits: Vec<LimitStatus> =
        found.into_iter().map(|found| LimitStatus::of_limit(&gateway, &sizes, found)).collect();
    let per_s = |traffic: &Traffic| format!("{:.1}", traffic.per_s);
    let rows = limits.iter().map(|limit| {
        [
            limit.limit.clone(),
            limit.numbers.clone(),
            limit.keys.map_or_else(|| "-".to_owned(), |keys| keys.to_string()),
            limit.waiting.to_string(),
            per_s(&limit.admitted),
            per_s(&limit.waited),
            per_s(&limit.rejected),
            limit.rejected.total.to_string(),
        ]
    });
    let header = ["limit", "numbers", "keys", "waiting", "admitted/s", "waited/s", "rejected/s", "rejected"];
    let table = render_table(header, rows, usize::MAX);
    let text = if limits.is_empty() { "no limits\n" } else { table.trim_start() };
    Answer::forms(text.to_owned(), &LimitList { limits })
}

impl LimitStatus {
    fn of_limit(gateway: &Gateway, sizes: &LimitSizes<'_>, found: &LimitTraffic) -> LimitStatus {
        let config = &gateway.limits[found.limit.0].config;
        let LimitSize { keys, waiting } = sizes.of_limit(found.limit);
        LimitStatus {
            limit: config.name.clone(),
            algorithm: config.algorithm.word(),
            key: describe_key(&config.key),
            sentence: describe_limit(&gateway.config, found.limit, None),
            numbers: describe_rates(config, &config.algorithm).join(", "),
            rates: list_rates(&config.algorithm),
            max_concurrent: match config.algorithm {
                Algorithm::Concurrency { max, .. } => Some(max),
                _ => None,
            },
            tiers: list_tiers(config),
            dry_run: config.dry_run,
            enforce: config.enforce.map(|share| share.to_string()),
            shadow_of: config.shadow_of.map(|live| gateway.config.limits[live].name.clone()),
            shared: config.shared.is_some(),
            keys,
            waiting,
            admitted: found.admitted,
            waited: found.waited,
            rejected: found.rejected,
            dry_run_rejected: found.dry_run_rejected,
        }
    }
}

fn list_rates(numbers: &Algorithm) -> Vec<RateNumbers> {
    let (bursts, queues): (Vec<u64>, Vec<u64>) = match numbers {
        Algorithm::TokenBucket { rates } => (rates.iter().map(|one| one.burst).collect(), Vec::new()),
        Algorithm::LeakyBucket { rates, .. } => rates.iter().map(|one| (one.burst, one.queue)).unzip(),
        _ => (Vec::new(), Vec::new()),
    };
    let rates = numbers.rate_quotas().into_iter().enumerate().map(|(at, (rate, _))| RateNumbers {
        units: rate.units.get(),
        period_ms: rate.period.as_secs_f64() * 1_000.0,
        burst: bursts.get(at).copied(),
        queue: queues.get(at).copied(),
    });
    rates.collect()
}

fn list_tiers(config: &LimitConfig) -> Vec<TierNumbers> {
    let tiers = config.tiers.iter().map(|(tier, own)| TierNumbers {
        tier: tier.clone(),
        numbers: own.as_ref().map(|own| describe_rates(config, own).join(", ")),
    });
    tiers.collect()
}
