//! `GET /limits`: every limit with its numbers, its size and its traffic.

use serde_json::Value;

use super::answer::Answer;
use super::changed_limits::describe_end;
use super::endpoint::{AdminRequest, Answered};
use crate::operate::text_table::{or_dash, render_table};
use crate::operate::traffic::{ClassTraffic, LimitSize, LimitTraffic, Traffic, read_sizes};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_config::describe::{describe_key, describe_limit, describe_rates};
use sluicegate_model::{Algorithm, Amount, LimitConfig};
use sluicegate_proxy::gateway::Gateway;

json_object! {
    pub(super) struct LimitList as "LimitList" {
        limits: Vec<LimitStatus> = "The limits, one for each name.",
    }

    struct LimitStatus as "Limit" {
        limit: String = "Its name.",
        owner: Option<String> = maybe "The team whose file defines it; absent without one.",
        algorithm: &'static str = "Its algorithm, as in the file.",
        key: String = "What it counts by, in words.",
        sentence: String = "The whole limit as a sentence.",
        numbers: String = "Its rates or slots, in words.",
        rates: Vec<RateNumbers> = "Its rates; empty for concurrency.",
        max_concurrent: Option<u32> = "The most slots; null for rates.",
        tiers: Vec<TierNumbers> = "Tiers with other numbers.",
        dry_run: bool = "Whether it only counts.",
        paused: Option<Value> = "The pause, in which it only counts: `left_s`, `by` and `reason`; null: none.",
        enforce: Option<String> = "The share of its keys on which it acts; null: all.",
        shadow_of: Option<String> = "The limit that it judges beside with other numbers; null: none.",
        shared: bool = "Whether it is counted in Redis.",
        state: &'static str = "Where it counts." in ["local", "redis", "leased"],
        keys: Option<usize> = "Keys with counters; null if only the store knows them.",
        waiting: usize = "Requests in its queues.",
        admitted: Traffic = "Requests that it admitted at once.",
        waited: Traffic = "Requests that it made wait.",
        rejected: Traffic = "Requests that it rejected.",
        dry_run_rejected: Traffic
            = "Requests that it would have rejected, in a dry run or for keys it does not act on.",
        classes: Vec<ClassTraffic> = maybe "The classes of its shares; absent without shares.",
    }

    struct RateNumbers as "Rate" {
        units: Amount = "Units, or money, in each period.",
        period_ms: f64 = "The period, in milliseconds.",
        burst: Option<Amount> = maybe "Units, or money, that pass at once.",
        queue: Option<u64> = maybe "Requests that may wait.",
    }

    struct TierNumbers as "Tier" {
        tier: String = "Its name.",
        numbers: Option<String> = "Its rates or slots, in words; null without a limit.",
    }
}

pub(super) async fn list_limits(request: AdminRequest) -> Answered {
    let gateway = request.state.gateway();
    let look = request.state.traffic.look_at(&gateway, Now::read_clock());
    let size_of = read_sizes(&gateway);
    let mut found: Vec<LimitTraffic> = look.limits;
    if request.query_value("by") == "rejected" {
        found.sort_by(|a, b| b.rejected.per_s.total_cmp(&a.rejected.per_s));
    }
    found.truncate(request.query_number("top"));
    let limits: Vec<LimitStatus> =
        found.into_iter().map(|found| LimitStatus::of_limit(&gateway, size_of(found.limit), found)).collect();
    let per_s = |traffic: &Traffic| format!("{:.1}", traffic.per_s);
    let rows_of = |limit: &LimitStatus| {
        let own = [
            limit.limit.clone(),
            limit.numbers.clone(),
            or_dash(limit.keys),
            limit.waiting.to_string(),
            per_s(&limit.admitted),
            per_s(&limit.waited),
            per_s(&limit.rejected),
            limit.rejected.total.to_string(),
            per_s(&limit.dry_run_rejected),
        ];
        let of_class = |class: &ClassTraffic| {
            let (dash, total) = (|| "-".to_owned(), class.rejected.total.to_string());
            let [admitted, waited, rejected] = [&class.admitted, &class.waited, &class.rejected].map(per_s);
            let numbers = format!("{}: {}", class.class, class.share);
            [limit.limit.clone(), numbers, dash(), dash(), admitted, waited, rejected, total, dash()]
        };
        std::iter::once(own).chain(limit.classes.iter().map(of_class)).collect::<Vec<_>>()
    };
    let rows: Vec<[String; 9]> = limits.iter().flat_map(rows_of).collect();
    let header = [
        "limit",
        "numbers",
        "keys",
        "waiting",
        "admitted/s",
        "waited/s",
        "rejected/s",
        "rejected",
        "would reject/s",
    ];
    let table = render_table(header, rows.into_iter(), usize::MAX);
    let text = if limits.is_empty() { "no limits\n" } else { table.trim_start() };
    Ok(Answer::forms(text.to_owned(), &LimitList { limits }))
}

impl LimitStatus {
    fn of_limit(gateway: &Gateway, size: LimitSize, found: LimitTraffic) -> LimitStatus {
        let config = &gateway.limits[found.limit.0].config;
        let LimitSize { keys, waiting } = size;
        let tiers = config.tiers.iter().map(|(tier, own)| TierNumbers {
            tier: tier.clone(),
            numbers: own.as_ref().map(|own| describe_rates(config, own).join(", ")),
        });
        LimitStatus {
            limit: config.name.clone(),
            owner: config.owner.as_deref().map(str::to_owned),
            algorithm: config.algorithm.word(),
            key: describe_key(&config.key),
            sentence: describe_limit(&gateway.config, found.limit, None),
            numbers: describe_rates(config, &config.algorithm).join(", "),
            rates: list_rates(config),
            max_concurrent: match config.algorithm {
                Algorithm::Concurrency { max, .. } => Some(max),
                _ => None,
            },
            tiers: tiers.collect(),
            dry_run: config.dry_run,
            paused: config.pause.as_ref().map(|pause| describe_end(pause)),
            enforce: config.enforce.map(|share| share.to_string()),
            shadow_of: config.shadow_of.map(|live| gateway.config.limits[live].name.clone()),
            shared: config.shared.is_some(),
            state: match config.shared {
                _ if config.leased => "leased",
                Some(_) => "redis",
                None => "local",
            },
            keys,
            waiting,
            admitted: found.admitted,
            waited: found.waited,
            rejected: found.rejected,
            dry_run_rejected: found.dry_run_rejected,
            classes: found.classes,
        }
    }
}

fn list_rates(limit: &LimitConfig) -> Vec<RateNumbers> {
    let numbers = &limit.algorithm;
    let (bursts, queues): (Vec<u64>, Vec<u64>) = match numbers {
        Algorithm::TokenBucket { rates } => (rates.iter().map(|one| one.burst).collect(), Vec::new()),
        Algorithm::LeakyBucket { rates, .. } => rates.iter().map(|one| (one.burst, one.queue)).unzip(),
        _ => (Vec::new(), Vec::new()),
    };
    let rates = numbers.rate_quotas().into_iter().enumerate().map(|(at, (rate, _))| RateNumbers {
        units: limit.amount(rate.units.get()),
        period_ms: rate.period.as_secs_f64() * 1_000.0,
        burst: bursts.get(at).map(|units| limit.amount(*units)),
        queue: queues.get(at).copied(),
    });
    rates.collect()
}
