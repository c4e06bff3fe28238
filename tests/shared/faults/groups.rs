//! The fault run on a primary with a Sentinel, and on a Cluster.

use crate::faults::support::{FaultRun, OUTAGES};
use crate::support::*;

/// The primary freezes twice for less than the Sentinel's timeout, then it dies and the replica takes over.
#[test]
fn a_sentinel_names_another_primary() {
    let mut group = Sentinel::start();
    let run = FaultRun::start("Sentinel failover", "100ms", |_| group.url());
    run.suffer(0, || {
        for _ in 1..OUTAGES {
            group.primary.pause();
            run.stay_out_for(ms(300));
            group.primary.resume();
            run.recover();
        }
        group.primary.kill();
        run.stay_out();
        group.wait_promoted();
        run.recover();
    });
}

/// Every slot in use moves on to the next primary, three times.
#[test]
fn a_cluster_is_resharded() {
    let cluster = Cluster::start();
    let run = FaultRun::start("Cluster resharding", "100ms", |_| cluster.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            std::thread::scope(|scope| {
                let moves = scope.spawn(|| cluster.move_keys());
                run.stay_out();
                moves.join().expect("the slots move");
            });
            run.recover();
        }
    });
}
