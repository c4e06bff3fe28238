//! The link to one real server.

use crate::link_support::{ask, echo, settled, single, with_store};
use crate::support::Redis;

#[test]
fn calls_are_answered_and_this_gateway_counts_as_living() {
    let redis = Redis::start();
    with_store(&single(redis.addr()), async |store| {
        assert!(store.is_degraded() && store.nodes() == 1);
        settled(&store).await;
        let (link, script) = (store.link(), echo());
        for turn in 0..100 {
            ask(&link, &script, &format!("call {turn}")).await.unwrap();
        }
        let report = store.report();
        assert_eq!((report.answered, report.failed), (100, [0; 10]));
        assert_eq!((report.servers, report.nodes), (vec![(redis.addr().to_string(), true)], 1));
    });
}
