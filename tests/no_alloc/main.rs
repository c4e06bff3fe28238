//! Admitting allocates nothing: one request through the chain, for a known key. Reading a response allocates once. The
//! allocations of a whole call of the rate-limit service are bounded.

#![allow(unsafe_code, reason = "a counting allocator is the only way to see allocations")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use http_body::SizeHint;
use sluicegate_admission::ban::StrikeOutcome;
use sluicegate_admission::chain::{Chain, ChainVerdict, Charge, Decisions, LimitDemand, WaitingCap};
use sluicegate_admission::operator_bans::NewBan;
use sluicegate_base::calendar::{Calendar, CalendarUnit, WindowStart};
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_http::request::access::AccessDecision;
use sluicegate_http::request::body::RequestBody;
use sluicegate_http::request::client::Client;
use sluicegate_http::request::key::KeyInput;
use sluicegate_http::response::{LlmParts, MeterPlan, ResponseMeter};
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{
    self as model, Algorithm, Cost, KeyPart, LeakyBucketRate, LimitId, MissingKey, OnRejectPatch, Rate,
    TokenBucketRate, WindowAlign,
};
use sluicegate_proxy::gateway::heavy_keys::report::HeavyBy;
use sluicegate_proxy::gateway::heavy_keys::{CountedLimit, RefusalFacts, WorkerHeavyKeys};
use sluicegate_proxy::gateway::{Gateway, KeyRef, NewGrant};
use sluicegate_proxy::judge;
use sluicegate_proxy::judge::request_state::Verdict;
use sluicegate_proxy::judge::{JudgeMode, RequestFacts, RequestHead};
use sluicegate_proxy::reject::LimitCause;
use sluicegate_proxy::service::pipeline::{ArrivingConnection, Pipeline};
use sluicegate_store::{KeyGroup, LuaScript, PackedCall, SharedKey, Store, StoreFault};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting per thread.
struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn limit(algorithm: Algorithm) -> Arc<Limit> {
    limit_with(algorithm, None)
}

fn limit_with(algorithm: Algorithm, warm_up: Option<Duration>) -> Arc<Limit> {
    let config = model::LimitConfig {
        name: "test".into(),
        owner: None,
        key: vec![KeyPart::Ip],
        missing_key: MissingKey::Ip,
        missing_key_status: http::StatusCode::FORBIDDEN,
        algorithm,
        tiers: vec![],
        views: vec![],
        grants: vec![],
        fair_by: vec![],
        warm_up,
        calendar: Calendar::new("Europe/Berlin", WindowStart::default()).map(Arc::new),
        anchors: None,
        steps: vec![],
        shares: None,
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

#[test]
fn the_admitting_path_allocates_nothing() {
    let rate = Rate::new(NonZeroU64::new(3).unwrap(), Duration::from_secs(1));
    let chain = Chain::new(vec![
        limit(Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate, burst: 100 }; 2] }),
        limit(Algorithm::LeakyBucket {
            rates: vec![LeakyBucketRate { rate, burst: 100, queue: 10 }],
            max_wait: None,
        }),
        limit(Algorithm::Concurrency { min: None, max: 10, queue: 0, max_wait: None }),
    ]);
    allocates_nothing(&chain, 1);
    let adaptive =
        Chain::new(vec![limit(Algorithm::Concurrency { min: Some(1), max: 10, queue: 0, max_wait: None })]);
    allocates_nothing(&adaptive, 1);
}

#[test]
fn windows_admit_without_allocating() {
    let rates = vec![Rate::new(NonZeroU64::new(100).unwrap(), Duration::from_nanos(50))];
    let chain = Chain::new(vec![
        limit(Algorithm::FixedWindow { rates: rates.clone(), align: WindowAlign::Clock }),
        limit(Algorithm::SlidingWindow { rates: rates.clone(), buckets: 10 }),
        limit(Algorithm::SlidingWindow { rates: rates.clone(), buckets: 60 }),
        limit(Algorithm::SlidingLog { rates }),
    ]);
    // Before the measurement a log has grown to its full length.
    allocates_nothing(&chain, 100);
    let month =
        Rate { calendar: Some(CalendarUnit::Month), ..Rate::new(NonZeroU64::MAX, Duration::from_secs(1)) };
    let rates = vec![month];
    let quota = Chain::new(vec![limit(Algorithm::FixedWindow { rates, align: WindowAlign::Calendar })]);
    allocates_nothing(&quota, 1);
}

#[test]
fn warming_buckets_admit_without_allocating() {
    let rate = Rate::new(NonZeroU64::new(3).unwrap(), Duration::from_secs(1));
    let warm_up = Some(Duration::from_secs(60));
    let chain = Chain::new(vec![
        limit_with(Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate, burst: 1000 }] }, warm_up),
        limit_with(
            Algorithm::LeakyBucket {
                rates: vec![LeakyBucketRate { rate, burst: 1000, queue: 10 }],
                max_wait: None,
            },
            warm_up,
        ),
    ]);
    allocates_nothing(&chain, 1);
}

/// Fifty requests, a nanosecond apart, after `first` others.
fn allocates_nothing(chain: &Chain, first: u64) {
    let waiting = Arc::new(WaitingCap::new(10));
    let key = CounterKey::new(7, 7);
    let ask = |_: &Limit| LimitDemand::Units(Units::new(key, 1));
    requests_allocate_nothing(first, |now| passes(now, chain, &waiting, ask));
}

/// One whole request: judged, forwarded, dropped.
fn passes(
    now: Now,
    chain: &Chain,
    waiting: &Arc<WaitingCap>,
    ask: impl FnMut(&Limit) -> LimitDemand,
) -> bool {
    let mut decisions = Decisions::new();
    let ChainVerdict::Admit(mut permit) = chain.judge::<Charge>(now, waiting, true, ask, &mut decisions)
    else {
        return false;
    };
    permit.keep_charges();
    true
}

fn requests_allocate_nothing(first: u64, request: impl Fn(Now) -> bool) {
    assert!((0..first).all(|turn| request(Now((1 << 40) - first + turn))));
    let before = ALLOCATIONS.with(Cell::get);
    assert!(before > 0, "the counter counts");
    let admitted = (0..50).filter(|turn| request(Now((1 << 40) + turn))).count();
    let during = ALLOCATIONS.with(Cell::get) - before;
    assert_eq!((admitted, during), (50, 0));
}

const GUARDED: &str = "
ip_sets: { office: [10.0.0.0/8, 2001:db8::/32] }
access: { allow: office, deny: [10.9.9.9, 10.9.8.0/24], bypass: 10.8.0.0/16 }
bans: { after: 1/1m }
account: { from: header:x-account, tier: { members: { alice: gold }, from: header:x-tier } }
limits:
  per-account:
    { key: account, rate: 1/h, burst: 1, methods: [GET, POST], bypass: 10.7.0.0/16, tiers: { gold: { burst: 1000 } } }
  per-tier: { key: [tier, ip], rate: 1/h, burst: 1, warm_up: 1m, tiers: { lead: none, gold: { burst: 1000 } } }
  watched: { key: ip, algorithm: sliding_window, rate: 1000/h, dry_run: true }
locations:
  - { path: /, upstream: demo }
  - path: /
    when: { 'header:x-account': '~ ^al', 'query:page': 1, 'cookie:old': '!' }
    upstream: demo
    limits: [per-account, per-tier, watched]
access_log: { output: none }
";

/// Judges as for a request, without a connection.
struct ChargeMode;

impl JudgeMode<'_> for ChargeMode {
    type Chain = Charge;

    fn try_count_in_flight(&mut self, _: &Gateway) -> bool {
        true
    }
}

/// The same gateway with bans of other clients by an operator, and another client's grant.
fn with_grant_and_bans(gateway: &Gateway, now: Now) -> Gateway {
    let (lasts, text) = (Duration::from_secs(30 * 86_400), String::new());
    for target in ["192.0.2.1", "10.0.0.9", "10.3.0.0/16", "2001:db8::/64", "account=bob"] {
        let target = target.parse().unwrap();
        gateway.add_ban(NewBan { target, lasts, reason: text.clone(), by: text.clone() }, now).unwrap();
    }
    let key = gateway.keys.hash_ip([10, 0, 0, 9].into());
    let key = KeyRef { name: "ip=10.0.0.9".into(), key, shared: SharedKey([0; 16]) };
    let (limit, numbers) = ("watched".into(), "{ rate: 2000/h }".into());
    let grant = NewGrant { limit, key, numbers, lasts, reason: text.clone(), by: text };
    let (config, ..) = gateway.config_with_grant(&grant, now).unwrap();
    let next = Gateway::build(&config, Some(gateway)).unwrap();
    next.apply_numbers(&|| now);
    next
}

/// All checks of a head before and in its chain.
#[test]
fn tiers_access_lists_and_bans_admit_without_allocating() {
    let loaded = config::parse(GUARDED, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    let gateway = Gateway::build(&loaded.config, None).unwrap();
    let gateway = with_grant_and_bans(&gateway, Now(1 << 39));
    let bans = gateway.bans.as_ref().unwrap();
    let stranger = gateway.keys.hash_ip([10, 0, 0, 2].into());
    // Others are banned, so that each request is looked up among them.
    assert!(matches!(bans.count_strike(&stranger, Now(1 << 39)), StrikeOutcome::Started(_)));
    assert!(bans.ban_left_ns(&stranger, Now(1 << 40)).is_some());
    let (method, uri, mut headers) = (Method::GET, Uri::from_static("/things?page=1"), HeaderMap::new());
    headers.insert("x-account", HeaderValue::from_static("alice"));
    headers.insert("host", HeaderValue::from_static("example.com"));
    requests_allocate_nothing(1, |now| {
        let head = RequestHead {
            method: &method,
            uri: &uri,
            version: Version::HTTP_11,
            headers: &headers,
            authority: None,
            client: Client { ip: [10, 0, 0, 1].into(), trusted_peer: false },
            scheme: model::Scheme::Http,
            listener: None,
            received: now,
            is_websocket_connect: false,
        };
        let mut facts = RequestFacts::new(head, SizeHint::with_exact(0), None);
        let (mut decisions, mut verdict) = (Decisions::new(), None);
        let judged = judge::judge(&gateway, &mut facts, &mut ChargeMode, &mut decisions, &mut verdict);
        let (Ok(_), Some(ChainVerdict::Admit(mut permit))) = (judged, verdict) else { return false };
        permit.keep_charges();
        facts.access == Some(AccessDecision::Ordinary) && facts.tier_name() == "gold"
    });
}

/// The heaviest keys of a limit: a known key, and a new one that takes the place of others.
#[test]
fn counting_heavy_keys_allocates_nothing() {
    let yaml = "state: { heavy_hitters: 16 }
account: { from: header:x-account }
limits: { per-account: { key: [account, ip], rate: 1/h } }
locations: [{ path: /, upstream: demo, limits: per-account }]
access_log: { output: none }
";
    let loaded = config::parse(yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    let gateway = Gateway::build(&loaded.config, None).unwrap();
    let counted = WorkerHeavyKeys::adopt_from(None, &gateway, Now(1 << 39));
    let (headers, long) = (HeaderMap::new(), [b'x'; 300]);
    let location: Arc<str> = "/".into();
    let request = |turn: u64, account: &[u8]| {
        let subject = KeyInput {
            ip: [10, 0, 0, 1].into(),
            ip_key: None,
            account: Some(account),
            tier: "default",
            path: b"/",
            query: None,
            location: None,
            host: "a.test",
            method: &Method::GET,
            headers: &headers,
            trusted_peer: false,
            token: None,
            body: None,
        };
        // A minute each time, so that the weight is renewed and begins again.
        let now = Now((1 << 40) + turn * 60_000_000_000);
        let id = u128::from(turn % 3 * turn).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let units = Units::new(CounterKey::new(id, 7), 1);
        counted.begin_request();
        counted.count_asked(LimitId(0), &LimitDemand::Units(units), &subject, now);
        let facts = RefusalFacts {
            unix_ms: turn,
            ip: subject.ip,
            status: None,
            retry_after_ns: None,
            cause: LimitCause::Rate,
        };
        counted.count_refused(LimitId(0), None, now, Some((Some(&location), facts)));
    };
    (0..500).for_each(|turn| request(turn, &long));
    let before = ALLOCATIONS.with(Cell::get);
    (500..1500).for_each(|turn| request(turn, &long));
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    let limit = CountedLimit::new(&gateway, LimitId(0));
    let now = Now((1 << 40) + 1500 * 60_000_000_000);
    assert!(!counted.copy_heaviest(&limit, HeavyBy::Refused, now).items.is_empty());
}

/// An admitted call of the rate-limit service, from its body to the last byte of its answer.
#[test]
fn an_admitted_call_allocates_little() {
    let yaml = "service: { listen: 127.0.0.1:1 }
account: { from: header:x-account }
limits: { per-ip: { key: ip, rate: 1000/s, burst: 1000 }, per-account: { key: account, rate: 1000/s, burst: 1000 } }
locations: [{ path: /, upstream: demo, limits: per-ip }]
access_log: { output: none }
";
    let loaded = config::parse(yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    let gateway = Arc::new(Gateway::build(&loaded.config, None).unwrap());
    let body = br#"{"limits":["per-ip","per-account"],"key":{"ip":"192.0.2.1","account":"acme"}}"#;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let pipeline = Pipeline::new(gateway);
        let call = async || {
            let body = RequestBody::at_hand(Bytes::from_static(body));
            let call = Request::post("/check").header("host", "service.test").body(body).unwrap();
            let arrival = ArrivingConnection {
                peer: Some([127, 0, 0, 1].into()),
                scheme: model::Scheme::Http,
                listener: None,
            };
            let outcome = pipeline.begin_call(call, arrival).finish(&pipeline).await;
            assert_eq!((outcome.status.as_u16(), outcome.verdict), (200, Verdict::Admit));
        };
        for _ in 0..10 {
            call().await;
        }
        let before = ALLOCATIONS.with(Cell::get);
        for _ in 0..50 {
            call().await;
        }
        let each = (ALLOCATIONS.with(Cell::get) - before) / 50;
        assert!(each <= 29, "{each} allocations");
    });
}

#[test]
fn skipping_a_store_that_is_down_allocates_nothing() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = Store::new(
        &model::RedisConfig {
            servers: model::RedisServers::Single("127.0.0.1".into(), closed.port()),
            tls: false,
            tls_files: Default::default(),
            user: None,
            password: None,
            database: 0,
            prefix: "test".into(),
            timeout: Duration::from_millis(20),
            nodes_at_least: 1,
            home: None,
        },
        None,
    );
    let script = LuaScript::new("return ARGV[1]");
    let packed = PackedCall { keys: [b"key".to_vec()].into_iter().collect(), body: b"body".to_vec() };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let supervisor = tokio::spawn(store.clone().supervise());
        tokio::time::sleep(Duration::from_millis(50)).await;
        supervisor.abort();
        let link = store.open_link();
        assert_eq!(store.reading().servers.len(), 1, "the server is known");
        let before = ALLOCATIONS.with(Cell::get);
        for _ in 0..50 {
            assert_eq!(link.call_script(KeyGroup(0), &script, &packed).await, Err(StoreFault::Down));
        }
        assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    });
}

/// A mebibyte of events, in the pieces in which it may come.
#[test]
fn reading_what_a_response_used_allocates_once() {
    let plan = Arc::new(MeterPlan::new(LlmParts::Usage, &[]).unwrap());
    let chunk = "data: {\"id\":\"chatcmpl-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" a \\u00fc\\n w\u{f6}rd\"}}],\
        \"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10}}\r\n\r\n: comment\r\n\r\ndata: [DONE]\r\n\r\n";
    let body = chunk.repeat((1 << 20) / chunk.len() + 1);
    for length in [1 << 20, 16_384, 1_000, 7] {
        let content_type = HeaderValue::from_static("text/event-stream");
        let before = ALLOCATIONS.with(Cell::get);
        let mut meter = ResponseMeter::new(plan.clone(), Some(&content_type), None);
        assert!(ALLOCATIONS.with(Cell::get) - before <= 1);
        let before = ALLOCATIONS.with(Cell::get);
        body.as_bytes().chunks(length).for_each(|piece| meter.scan(piece));
        let reading = meter.read();
        assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
        assert_eq!((reading.usage.input, reading.usage.output), (Some(19), Some(10)));
        assert!(reading.text_bytes > 1 << 14);
    }
}
