//! The fault run with a single Redis that dies, freezes or rejects counting.

use crate::faults_support::{FaultRun, OUTAGES};
use crate::support::*;

/// Each restart allows the limit once more.
#[test]
fn redis_is_killed_and_comes_back_empty() {
    let mut redis = Redis::start();
    let run = FaultRun::start("kill -9 memory lost", "100ms", |_| redis.url());
    run.suffer(OUTAGES, || {
        for _ in 0..OUTAGES {
            redis.kill();
            run.stay_out();
            redis.restart();
            run.recover();
        }
    });
}

/// All counts were on disk before they were answered, so nothing is allowed twice.
#[test]
fn redis_is_killed_and_remembers() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let run = FaultRun::start("kill -9 memory kept", "100ms", |_| redis.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            redis.kill();
            run.stay_out();
            redis.restart();
            run.recover();
        }
    });
}

#[test]
fn redis_freezes() {
    let redis = Redis::start();
    let run = FaultRun::start("SIGSTOP", "100ms", |_| redis.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            redis.pause();
            run.stay_out();
            redis.resume();
            run.recover();
        }
    });
}

#[test]
fn redis_has_no_memory_left() {
    let redis = Redis::start_with(&["--maxmemory-policy", "noeviction"]);
    let run = FaultRun::start("OOM", "100ms", |_| redis.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
            run.stay_out();
            redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
            run.recover();
        }
    });
}

#[test]
fn redis_becomes_a_replica_of_an_absent_primary() {
    let redis = Redis::start();
    let closed = Refusing::new();
    let port = closed.addr().port().to_string();
    let run = FaultRun::start("READONLY", "100ms", |_| redis.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            redis.command(&["REPLICAOF", "127.0.0.1", &port]);
            run.stay_out();
            redis.command(&["REPLICAOF", "NO", "ONE"]);
            run.recover();
        }
    });
}
