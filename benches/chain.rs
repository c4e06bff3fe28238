//! The cost of one decision: through the chain for a known key, and in governor's own keyed store.

#[path = "support/keys.rs"]
mod keys;

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use governor::{Quota, RateLimiter};
use http::{HeaderMap, Method};
use keys::{key, next};
use sluicegate_admission::ban::Bans;
use sluicegate_admission::chain::{Chain, ChainVerdict, Charge, Decisions, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_http::request::key::{KeyHasher, KeyInput, KeySpec};
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{
    self as model, Algorithm, BanKey, Cost, KeyPart, LeakyBucketRate, LimitId, MissingKey, OnRejectPatch,
    Rate, TokenBucketRate, WindowAlign,
};

const START: u64 = 1 << 40;

fn limit(algorithm: Algorithm) -> Arc<Limit> {
    let config = model::LimitConfig {
        name: "bench".into(),
        owner: None,
        key: vec![KeyPart::Ip],
        missing_key: MissingKey::Ip,
        missing_key_status: http::StatusCode::FORBIDDEN,
        algorithm,
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
        bypass: Default::default(),
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
    };
    Arc::new(Limit::new(LimitId(0), &config, 1_000_000))
}

fn rate(per_second: u64) -> Rate {
    Rate::new(NonZeroU64::new(per_second).unwrap(), Duration::from_secs(1))
}

fn token(per_second: u64, burst: u64) -> Arc<Limit> {
    limit(Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate: rate(per_second), burst }] })
}

/// One whole request: judged, forwarded, dropped.
fn request(chain: &Chain, waiting: &Arc<WaitingCap>, now: Now, key: CounterKey) -> bool {
    let ask = |_: &Limit| LimitDemand::Units(Units::new(key, 1));
    let mut decisions = Decisions::new();
    let verdict = chain.judge::<Charge>(now, waiting, true, ask, &mut decisions);
    black_box(&decisions);
    let ChainVerdict::Admit(mut permit) = verdict else { return false };
    permit.keep_charges();
    true
}

fn decisions(criterion: &mut Criterion) {
    let waiting = Arc::new(WaitingCap::new(1000));
    for keys in [1_000, 1_000_000] {
        let chain = Chain::new(vec![token(1, 1_000_000_000)]);
        let mut now = START;
        for number in 0..keys {
            request(&chain, &waiting, Now(now), key(number));
        }
        let (held, mut number) = (chain.limits()[0].key_count(), 1);
        criterion.bench_function(&format!("token bucket, known key of {held}"), |bencher| {
            bencher.iter(|| {
                now += 100;
                let key = key(next(&mut number, keys));
                assert!(request(&chain, &waiting, black_box(Now(now)), key));
            });
        });
    }
}

/// Each key comes about ten times per window, so that a log holds several runs.
fn windows(criterion: &mut Criterion) {
    let waiting = Arc::new(WaitingCap::new(1000));
    for keys in [1_000, 1_000_000] {
        let units = NonZeroU64::new(1_000_000).unwrap();
        let rates = vec![Rate::new(units, Duration::from_nanos(keys * 1000))];
        let algorithms = [
            ("fixed window", Algorithm::FixedWindow { rates: rates.clone(), align: WindowAlign::First }),
            ("sliding window", Algorithm::SlidingWindow { rates: rates.clone(), buckets: 10 }),
            ("sliding window of 60", Algorithm::SlidingWindow { rates: rates.clone(), buckets: 60 }),
            ("sliding log", Algorithm::SlidingLog { rates }),
        ];
        for (name, algorithm) in algorithms {
            let chain = Chain::new(vec![limit(algorithm)]);
            let (mut now, mut number) = (START, 1);
            for turn in 0..2 * keys {
                now += 100;
                request(&chain, &waiting, Now(now), key(turn % keys));
            }
            let held = chain.limits()[0].key_count();
            criterion.bench_function(&format!("{name}, known key of {held}"), |bencher| {
                bencher.iter(|| {
                    now += 100;
                    let key = key(next(&mut number, keys));
                    assert!(request(&chain, &waiting, black_box(Now(now)), key));
                });
            });
        }
    }
}

fn others(criterion: &mut Criterion) {
    let waiting = Arc::new(WaitingCap::new(1000));
    let chains = [
        ("reject", vec![token(1, 1)]),
        (
            "two token buckets and slots",
            vec![
                token(1_000_000_000, 1_000_000),
                token(100_000_000, 1_000_000),
                limit(Algorithm::Concurrency { min: None, max: 10, queue: 0, max_wait: None }),
            ],
        ),
        (
            "leaky bucket, no wait",
            vec![limit(Algorithm::LeakyBucket {
                rates: vec![LeakyBucketRate { rate: rate(100_000_000), burst: 1_000_000, queue: 0 }],
                max_wait: None,
            })],
        ),
    ];
    for (name, limits) in chains {
        let chain = Chain::new(limits);
        let (mut now, mut number) = (START, 1);
        for number in 0..1000 {
            request(&chain, &waiting, Now(now), key(number));
        }
        criterion.bench_function(&format!("{name}, 1000 keys"), |bencher| {
            bencher.iter(|| {
                now += 10;
                request(&chain, &waiting, black_box(Now(now)), key(next(&mut number, 1000)))
            });
        });
    }
}

fn keys(criterion: &mut Criterion) {
    let keys = KeyHasher::random();
    let (mut number, headers) = (1, HeaderMap::new());
    let spec = KeySpec::new(&[KeyPart::Account, KeyPart::Uri], MissingKey::Ip);
    criterion.bench_function("key of an address", |bencher| {
        bencher.iter(|| keys.hash_ip(Ipv4Addr::from_bits(next(&mut number, 1 << 31) as u32).into()));
    });
    let subject = KeyInput {
        ip: Ipv4Addr::LOCALHOST.into(),
        ip_key: None,
        trusted_peer: false,
        account: Some(b"a-customer-of-ours"),
        tier: "default",
        token: None,
        body: None,
        path: b"/api/v1/things/12345",
        query: None,
        location: None,
        host: "example.com",
        method: &Method::GET,
        headers: &headers,
    };
    criterion.bench_function("key of account and uri", |bencher| {
        bencher.iter(|| keys.hash_key(&spec, black_box(&subject)));
    });
}

fn governor_alone(criterion: &mut Criterion) {
    for keys in [1_000, 1_000_000] {
        let quota = Quota::per_second(NonZeroU32::new(1_000_000).unwrap());
        let limiter = RateLimiter::keyed(quota);
        (0..keys).for_each(|number| drop(limiter.check_key(&key(number).id)));
        let mut number = 1;
        criterion.bench_function(&format!("governor's own store, known key of {keys}"), |bencher| {
            bencher.iter(|| limiter.check_key(&key(next(&mut number, keys)).id).is_ok());
        });
    }
}

/// The cost of bans for a request: without any, while others are banned, and when it is rejected.
fn bans(criterion: &mut Criterion) {
    let day = Duration::from_secs(86_400);
    let config = model::BansConfig {
        after: Rate::new(NonZeroU64::MIN, day),
        first: day,
        longest: day,
        key: BanKey::Ip,
        strikes: model::StrikeRules::default(),
    };
    let (bans, now, mut number) = (Bans::new(&config, 1_000_000), Now(START), 1);
    let left = |number: &mut u64| bans.ban_left_ns(&key(next(number, 100_000)), black_box(now));
    criterion.bench_function("nobody is banned", |bencher| bencher.iter(|| left(&mut number).is_none()));
    bans.count_strike(&key(200_000), now);
    criterion
        .bench_function("one of 100000 is banned", |bencher| bencher.iter(|| left(&mut number).is_none()));
    for number in 0..100_000 {
        bans.count_strike(&key(number), now);
    }
    criterion.bench_function("all 100000 are banned", |bencher| {
        bencher.iter(|| assert!(left(&mut number).is_some()))
    });
}

criterion_group!(benches, keys, decisions, windows, others, governor_alone, bans);
criterion_main!(benches);
