//! The departures of a queue that many gateways share, as the store hands them out.

use std::thread;

use sluicegate_limit::LimitOutcome;
use sluicegate_model::{Algorithm, LeakyBucketRate};
use sluicegate_store::{LuaScript, ScriptOp, ScriptReply, SharedKey};

use crate::limits::rate;
use crate::script::support::{Shared, ask};
use crate::support::Redis;

const GATEWAYS: usize = 3;
const CLIENTS: usize = 32;
const REQUESTS: usize = 20;

/// Microseconds between two departures at 50 per second.
const APART: u64 = 20_000;

/// One client asks for departures, one after the other.
fn client(url: &str, shared: &Shared) -> Vec<u64> {
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let items = shared.items(&[SharedKey([1; 16])], 1);
    let departure = |_| {
        let bytes = ask(&mut connection, ScriptOp::Take, &items, None);
        let reply = ScriptReply::parse_reply(ScriptOp::Take, &items, &bytes).unwrap();
        let decision = reply.answers[0].decision;
        assert_ne!(decision.outcome, LimitOutcome::Reject);
        reply.now_us + decision.wait_ns / 1_000
    };
    (0..REQUESTS).map(departure).collect()
}

#[test]
fn each_is_handed_out_once_and_never_closer_than_the_rate() {
    let redis = Redis::start();
    let one = LeakyBucketRate { rate: rate(50, 1_000_000_000), burst: 1, queue: 10_000 };
    let shared = Shared::one(Algorithm::LeakyBucket { rates: vec![one], max_wait: None });
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    redis::cmd("SCRIPT").arg("LOAD").arg(LuaScript::counter_script().code).exec(&mut connection).unwrap();
    let url = redis.url();
    let mut departures: Vec<u64> = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..GATEWAYS * CLIENTS).map(|_| scope.spawn(|| client(&url, &shared))).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    departures.sort_unstable();
    assert_eq!(departures.len(), GATEWAYS * CLIENTS * REQUESTS);
    let closest = departures.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
    assert!(closest >= APART, "two departures are {closest} us apart");
    let last = departures.last().unwrap() - departures.first().unwrap();
    assert_eq!(last, APART * (departures.len() as u64 - 1), "none is lost while all queue");
}
