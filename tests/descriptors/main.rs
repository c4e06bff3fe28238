//! Behaviours of envoyproxy/ratelimit, as tables of calls on a virtual clock.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use serde_json::json;
use sluicegate_base::wall_clock;
use sluicegate_config as config;
use sluicegate_http::request::body::RequestBody;
use sluicegate_model::Scheme;
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::service::pipeline::{ArrivingConnection, Pipeline};

const RULES: &str = "
service:
  listen: 127.0.0.1:1
  domains:
    d:
      - { match: { unit: second }, limits: second }
      - { match: { unit: minute }, limits: minute }
      - { match: { unit: hour }, limits: hour }
      - { match: { unit: day }, limits: day }
      - { match: { key: \"*\" }, limits: each }
      - { match: { key: \"pre*\" }, limits: together }
      - { match: { key: internal }, limits: [] }
      - { match: { key: shadow }, limits: shadow }
limits:
  second: { key: global, algorithm: fixed_window, rate: 3/1s }
  minute: { key: global, algorithm: fixed_window, rate: 3/1m }
  hour: { key: global, algorithm: fixed_window, rate: 3/1h }
  day: { key: global, algorithm: fixed_window, rate: 3/1d }
  each: { key: header:key, algorithm: fixed_window, rate: 2/1m }
  together: { key: global, algorithm: fixed_window, rate: 2/1m }
  shadow: { key: global, algorithm: fixed_window, rate: 1/1m, dry_run: true }
access_log: { output: none }
";

/// A descriptor: its entry, and its hits, which 0 makes a look and `None` those of the call.
type Descriptor = ((&'static str, &'static str), Option<i64>);

const OK: u16 = 200;
const OVER: u16 = 429;

struct Service(Pipeline);

impl Service {
    fn start() -> Service {
        let loaded = config::parse(RULES, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
        Service(Pipeline::new(Arc::new(Gateway::build(&loaded.config, None).expect("a gateway"))))
    }

    async fn ask(&self, descriptors: &[Descriptor]) -> u16 {
        let descriptors = descriptors.iter().map(|((key, value), hits)| {
            let mut descriptor = json!({ "entries": [{ "key": key, "value": value }] });
            if let Some(hits) = hits {
                descriptor["hitsAddend"] = json!(hits.unsigned_abs());
                descriptor["isNegativeHits"] = json!(*hits < 0);
            }
            descriptor
        });
        let call = json!({ "domain": "d", "descriptors": descriptors.collect::<Vec<_>>() }).to_string();
        let body = RequestBody::at_hand(Bytes::from(call));
        let call = Request::post("/json").header("host", "service.test").body(body).expect("a call");
        let peer = Some([127, 0, 0, 1].into());
        let arrival = ArrivingConnection { peer, scheme: Scheme::Http, listener: None };
        self.0.begin_call(call, arrival).finish(&self.0).await.status.as_u16()
    }
}

/// One test, because the time of day is simulated for the whole process.
#[tokio::test(start_paused = true)]
async fn calls_of_envoy_are_judged_on_a_virtual_clock() {
    wall_clock::simulate_from(1_800_000_000_000_000_000);
    windows_turn_after_their_unit(&Service::start()).await;
    calls_are_counted_as_their_rule_says(&Service::start()).await;
}

async fn windows_turn_after_their_unit(service: &Service) {
    for (unit, seconds) in [("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400)] {
        let call = [(("unit", unit), None)];
        for _ in 0..3 {
            let mut seen = Vec::new();
            for _ in 0..5 {
                seen.push(service.ask(&call).await);
            }
            assert_eq!(seen, [OK, OK, OK, OVER, OVER], "{unit}");
            tokio::time::advance(Duration::from_secs(seconds)).await;
        }
    }
}

async fn calls_are_counted_as_their_rule_says(service: &Service) {
    let key = |value, hits| (("key", value), hits);
    let table: &[(&[Descriptor], &[u16])] = &[
        // Each value of a wildcard has a counter of its own, the values of a prefix share one.
        (&[key("a", None)], &[OK, OK, OVER]),
        (&[key("b", None)], &[OK, OK, OVER]),
        (&[key("pre1", None)], &[OK]),
        (&[key("pre2", None)], &[OK, OVER]),
        (&[key("internal", None)], &[OK, OK, OK, OK]),
        (&[key("shadow", None)], &[OK, OK, OK]),
        (&[(("unknown", "x"), None)], &[OK, OK, OK]),
        // Hits of a descriptor; 0 looks, and negative ones give back, never more than there is.
        (&[key("c", Some(2))], &[OK, OVER]),
        (&[key("c", Some(-9))], &[OK]),
        (&[key("c", Some(3))], &[OVER]),
        (&[key("c", Some(2))], &[OK]),
        (&[key("c", Some(0))], &[OVER]),
        (&[key("e", Some(0))], &[OK, OK, OK, OK]),
        // A refused call has changed nothing, whichever of its descriptors is over.
        (&[key("f", None), key("a", None)], &[OVER, OVER, OVER]),
        (&[key("a", None), key("f", None)], &[OVER, OVER, OVER]),
        (&[key("f", None), key("g", None)], &[OK, OK, OVER]),
        (&[key("h", None), key("h", None)], &[OK, OVER]),
    ];
    // No window turns while the paused clock stands.
    for (descriptors, expected) in table {
        let mut seen = Vec::new();
        for _ in *expected {
            seen.push(service.ask(descriptors).await);
        }
        assert_eq!(seen, *expected, "{descriptors:?}");
    }
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(service.ask(&[key("a", None)]).await, OK);
}
