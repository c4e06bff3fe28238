//! What requests count, from their head to their end, on a paused clock.

use std::cell::Cell;
use std::time::Duration;

use http::{Request, StatusCode};

use super::report::{HeavyBy, KeyRates, merge_refusals};
use super::*;
use crate::service::pipeline::{Pipeline, PipelineOutcome, ScriptedAnswer};
use sluicegate_config as config;
use sluicegate_http::request::body::RequestBody;

struct Counted {
    gateway: Arc<Gateway>,
    pipeline: Rc<Pipeline>,
}

const ANSWER: ScriptedAnswer = ScriptedAnswer { status: StatusCode::OK, hold: Duration::from_millis(1) };

impl Counted {
    fn new(yaml: &str) -> Counted {
        let yaml = format!("access_log: {{ output: none, hash_keys: false }}\n{yaml}");
        let loaded = config::parse(&yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
        let gateway = Arc::new(Gateway::build(&loaded.config, None).unwrap());
        Counted { pipeline: Rc::new(Pipeline::new(gateway.clone())), gateway }
    }

    fn request(header: (&'static str, &str)) -> Request<RequestBody> {
        let request = Request::get("/a").header("host", "a.test").header(header.0, header.1);
        request.body(RequestBody::Empty).unwrap()
    }

    async fn ask(&self, last: u8, header: (&'static str, &str)) -> PipelineOutcome {
        self.pipeline.serve(Counted::request(header), [192, 0, 2, last].into(), ANSWER, || ()).await
    }

    /// What one key has asked, and what was refused of it, in units.
    fn units(&self, limit: &str, name: &str) -> (f64, f64) {
        let (counted, _) = report::find_counted_limit(&self.gateway, limit).unwrap();
        let found = [HeavyBy::Asked, HeavyBy::Refused].map(|by| {
            let worker = self.pipeline.worker();
            let keys = worker.heavy_keys.copy_heaviest(&counted, by, Now::read_clock());
            let shown = keys
                .items
                .iter()
                .find(|item| self.gateway.key_naming().render_name(&counted.spec, &item.label.name) == name);
            shown.map_or(0.0, |item| item.count / self.factor(&counted))
        });
        (found[0], found[1])
    }

    fn factor(&self, counted: &CountedLimit) -> f64 {
        let worker = self.pipeline.worker();
        let own = worker.heavy_keys.limits.iter().find(|own| *own.identity == *counted).unwrap();
        let began = own.summaries.as_ref().unwrap().borrow().began;
        sluicegate_limit::heavy_hitters::rate_factor(Now::read_clock().ns_since(began))
    }

    #[track_caller]
    fn assert_units(&self, limit: &str, name: &str, asked: f64, refused: f64) {
        let found = self.units(limit, name);
        // A second or two have passed, which fade a little.
        let is_near = |found: f64, exact: f64| (0.95 * exact..=exact + 1e-9).contains(&found);
        assert!(
            is_near(found.0, asked) && is_near(found.1, refused),
            "{name}: {found:?} of {asked}, {refused}"
        );
    }
}

const NONE: (&str, &str) = ("x-none", "1");

fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build_local(Default::default()).unwrap().block_on(test);
}

#[test]
fn costs_are_counted_for_each_limit_that_applies() {
    run(async {
        let counted = Counted::new(
            "server: { trusted_proxies: 192.0.2.9 }
account: { from: header:x-account }
limits:
  per-ip: { key: ip, rate: 100/h }
  priced: { key: account, rate: 10/h, cost: header:x-cost, missing_key: skip }
  posts: { key: ip, rate: 1/h, methods: POST }
  required: { key: header:x-tenant, rate: 1/h, missing_key: reject }
locations:
  - { path: = /b, respond: { body: ok }, limits: required }
  - { path: /, upstream: demo, limits: [per-ip, priced, posts] }",
        );
        assert_eq!(counted.ask(1, NONE).await.verdict.as_str(), "admit");
        let priced = |cost: &str| {
            let mut request = Counted::request(("x-account", "alice"));
            request.headers_mut().insert("x-cost", cost.parse().unwrap());
            counted.pipeline.serve(request, [192, 0, 2, 9].into(), ANSWER, || ())
        };
        assert_eq!(priced("7").await.verdict.as_str(), "admit");
        assert_eq!(priced("4").await.verdict.as_str(), "reject");
        assert_eq!(priced("0").await.verdict.as_str(), "admit", "a cost of zero counts as one");
        counted.assert_units("per-ip", "ip=192.0.2.1", 1.0, 0.0);
        counted.assert_units("per-ip", "ip=192.0.2.9", 3.0, 0.0);
        counted.assert_units("priced", "account=alice", 12.0, 4.0);
        counted.assert_units("posts", "ip=192.0.2.9", 0.0, 0.0);
        let mut request = Counted::request(NONE);
        *request.uri_mut() = "/b".parse().unwrap();
        let refused = counted.pipeline.serve(request, [192, 0, 2, 1].into(), ANSWER, || ()).await;
        assert_eq!(refused.verdict.as_str(), "missing_key");
        let worker = counted.pipeline.worker();
        let refusals = merge_refusals(&counted.gateway, [worker.heavy_keys.copy_refusals()], 10);
        let told: Vec<_> =
            refusals.iter().map(|one| (one.limit.as_str(), one.key.as_deref(), one.cause)).collect();
        assert!(told.contains(&("required", None, "missing_key")), "{told:?}");
        assert!(told.contains(&("priced", Some("account=alice"), "rate")), "{told:?}");
        assert_eq!(told.len(), 2);
    });
}

/// Others are judged while a request waits, so it keeps what it asked.
#[test]
fn a_refusal_after_a_wait_is_counted_for_its_own_key() {
    run(async {
        let counted = Rc::new(Counted::new(
            "limits:
  queued: { key: ip, algorithm: leaky_bucket, rate: 1/s, queue: 5 }
  busy: { key: ip, algorithm: concurrency, max_concurrent: 1 }
locations: [{ path: /, upstream: demo, limits: [queued, busy] }]",
        ));
        let refused = Rc::new(Cell::new(0));
        // The first holds the only slot for a minute; those that wait find none.
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (counted, refused) = (counted.clone(), refused.clone());
                let answer = ScriptedAnswer { hold: Duration::from_secs(60), ..ANSWER };
                tokio::task::spawn_local(async move {
                    let request = Counted::request(NONE);
                    let outcome = counted.pipeline.serve(request, [192, 0, 2, 1].into(), answer, || ()).await;
                    refused.set(refused.get() + u32::from(outcome.verdict.as_str() == "reject"));
                })
            })
            .collect();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(counted.ask(2, NONE).await.verdict.as_str(), "admit");
            tokio::time::sleep(Duration::from_millis(710)).await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(refused.get(), 3);
        let (asked, refused) = counted.units("busy", "ip=192.0.2.1");
        assert!((refused / asked - 0.75).abs() < 0.03, "{refused} of {asked}");
        assert_eq!(counted.units("busy", "ip=192.0.2.2").1, 0.0);
        assert_eq!(counted.units("queued", "ip=192.0.2.1").1, 0.0);
    });
}

#[test]
fn what_was_asked_fades_with_its_half_life() {
    run(async {
        let counted = Counted::new(
            "locations: [{ path: /, upstream: demo, limits: { name: per-ip, key: ip, rate: 100/h } }]",
        );
        for _ in 0..64 {
            counted.ask(1, NONE).await;
        }
        counted.assert_units("per-ip", "ip=192.0.2.1", 64.0, 0.0);
        tokio::time::sleep(Duration::from_secs(180)).await;
        counted.assert_units("per-ip", "ip=192.0.2.1", 8.0, 0.0);
        counted.ask(1, NONE).await;
        counted.assert_units("per-ip", "ip=192.0.2.1", 9.0, 0.0);
        let (limit, _) = report::find_counted_limit(&counted.gateway, "per-ip").unwrap();
        let ids = [counted.gateway.keys.hash_ip([192, 0, 2, 1].into()).id, 7];
        let worker = counted.pipeline.worker();
        let parts = (0..2).map(|_| worker.heavy_keys.copy_rates(&limit, &ids, Now::read_clock()));
        let merged = format!("{:?}", KeyRates::merge_all(parts, 2));
        assert!(merged.contains("(0.0, 0.0, None)"), "of a key that nobody knows: {merged}");
    });
}

#[test]
fn without_names_nothing_is_counted() {
    run(async {
        let counted = Counted::new(
            "state: { heavy_hitters: none }
locations: [{ path: /, upstream: demo, limits: { name: per-ip, key: ip, rate: 1/h } }]",
        );
        assert_eq!(counted.ask(1, NONE).await.verdict.as_str(), "admit");
        assert_eq!(counted.ask(1, NONE).await.verdict.as_str(), "reject");
        let worker = counted.pipeline.worker();
        assert!(worker.heavy_keys.limits.iter().all(|limit| limit.summaries.is_none()));
        let refusals = merge_refusals(&counted.gateway, [worker.heavy_keys.copy_refusals()], 10);
        assert_eq!((refusals.len(), refusals[0].key.as_deref()), (1, None));
    });
}
