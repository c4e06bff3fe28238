//! Limits of descriptors that are counted in Redis: one transaction with those counted here.

use super::client::*;
use crate::*;

#[test]
fn limits_in_redis_are_part_of_the_transaction() {
    let redis = Redis::start();
    let gateway = Gateway::start(&format!(
        "
service:
  listen: 127.0.0.1:0
  domains: {{ d: [{{ match: {{ n: \"*\" }}, limits: far }}, {{ match: {{ m: \"*\" }}, limits: near }}] }}
limits:
  far: {{ key: header:n, algorithm: fixed_window, rate: 4/1h, state: redis }}
  near: {{ key: header:m, algorithm: fixed_window, rate: 2/1h }}
state: {{ redis: {{ url: \"{}\", timeout: 200ms }} }}
locations: []
",
        redis.url()
    ));
    let is_ready = || !gateway.admin_get("/readyz").text().contains("degraded: redis");
    eventually("a gateway that uses Redis", is_ready);
    let mut envoy = Envoy::connect(&gateway);
    type Entries = &'static [(&'static str, &'static str)];
    let (far, near): (Entries, Entries) = (&[("n", "1")], &[("m", "1")]);
    // The same key twice counts both, in one question to the store.
    let twice = envoy.ask("d", &[far, near, far]).ok();
    let left = |answer: &Answer| answer.statuses.iter().map(|status| status.remaining).collect::<Vec<_>>();
    assert_eq!((twice.overall, left(&twice)), (OK, vec![2, 1, 2]));
    // What the store refuses is not charged here.
    let refused = envoy.ask("d", &[far, near, far, far]).ok();
    assert_eq!(refused.overall, OVER_LIMIT, "{refused:?}");
    let after = envoy.ask("d", &[near]).ok();
    assert_eq!((after.overall, left(&after)), (OK, vec![0]));
    // What is refused here is not charged there.
    assert_eq!(envoy.ask("d", &[far, near]).ok().overall, OVER_LIMIT);
    let mut peek = call_of("d", &[far]);
    peek.descriptors[0].hits = Some(Number { value: 0 });
    assert_eq!(left(&envoy.call(&peek).ok()), [2]);
    // Nothing is given back in the store.
    peek.descriptors[0].hits = Some(Number { value: 1 });
    peek.descriptors[0].negative = true;
    assert!(envoy.call(&peek).failed(12).contains("far"));
}
