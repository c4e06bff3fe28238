//! Leased limits on bad days: Redis is restarted, stands still, fails over or has its clock stepped, and a gateway is
//! cut off from it. The admissions of all gateways are held against what docs/redis.md states for each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::fleet::exact::assert_conforms;
use crate::leases::{BURST, RATE, assert_one_bucket, leasing, leasing_at};
use crate::support::fleet::with_status;
use crate::support::*;

/// What passes beyond one bucket if Redis forgets leases: one limit, and the leased rates until they end at the latest,
/// three terms of 100 ms after their call.
const FORGOTTEN: f64 = BURST + 0.3 * RATE;

/// Sets a flag at the end of its life, also that of a test that fails.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What all clients got until `disturb` was over and the gateways admitted by the rate again. Before, they use up the
/// burst.
#[track_caller]
fn flood_through(fleet: &Fleet, disturb: impl FnOnce()) -> Vec<Fired> {
    // Twice the rate or more, and so few that an answer soon follows its request.
    let ask = |_, _, _| {
        thread::sleep(ms(4));
        get("/all")
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients = scope.spawn(|| fleet.fire(2, Until::Over(&over), ask));
        let at_end = SetAtEnd(&over);
        eventually("a bucket that is empty, and leased rates", || {
            fleet.upstream.count() as f64 > 2.0 * BURST
        });
        disturb();
        fleet.wait_enforcing();
        // A whole burst may pass first.
        thread::sleep(ms(600));
        wait_for_rate(fleet, 0.7);
        drop(at_end);
        clients.join().expect("the clients finish")
    })
}

/// Waits until this part of the rate passes, as it does at once on a machine with nothing else to do.
#[track_caller]
fn wait_for_rate(fleet: &Fleet, part: f64) {
    timing::eventually_within(3 * PATIENCE, "admissions by the rate", || {
        let (before, begun) = (fleet.upstream.count(), Instant::now());
        thread::sleep(ms(300));
        let passed = (fleet.upstream.count() - before) as f64;
        passed >= part * RATE * begun.elapsed().as_secs_f64()
    });
}

/// A Redis that is killed and starts again, empty: at once, or when all leases have ended.
#[test]
fn a_restarted_redis_admits_one_limit_more() {
    for (away, burst) in [(ms(0), BURST + FORGOTTEN), (ms(400), 2.0 * BURST)] {
        let mut redis = Redis::start();
        let fleet = leasing(&redis.url());
        let fired = flood_through(&fleet, || {
            redis.kill();
            thread::sleep(away);
            redis.restart();
        });
        assert_one_bucket(&fired, burst);
        assert!(away.is_zero() || with_status(&fired, 503) > 0);
    }
}

/// Calls that were under way arrive after the leases have ended.
#[test]
fn a_redis_that_stands_still_admits_no_more() {
    let redis = Redis::start();
    let fleet = leasing(&redis.url());
    let fired = flood_through(&fleet, || {
        redis.pause();
        thread::sleep(ms(1_000));
        redis.resume();
    });
    assert_one_bucket(&fired, BURST);
    assert!(with_status(&fired, 503) > 0);
}

/// A replica takes over while all gateways admit requests.
#[track_caller]
fn fail_over(change: impl Fn(&mut Sentinel)) {
    let mut group = Sentinel::start();
    let fleet = leasing(&group.url());
    let fired = flood_through(&fleet, || change(&mut group));
    assert!(group.replica.calls("evalsha") > 0, "the new primary received no call");
    assert_one_bucket(&fired, BURST + FORGOTTEN);
}

#[test]
fn a_failover_admits_one_limit_more() {
    fail_over(|group| {
        group.primary.kill();
        group.wait_promoted();
    });
}

/// The old primary still answers for a second or so, and nobody copies what it counts.
#[test]
fn a_planned_failover_admits_one_limit_more() {
    fail_over(|group| {
        group.fail_over();
        thread::sleep(ms(1_000));
    });
}

/// The clock of Redis is set ahead of the true time by some seconds, or behind it.
#[test]
fn a_clock_that_steps_admits_what_it_skips() {
    let cases: [(&[f64], f64); 4] = [
        // The bucket regains for 200 ms that have not passed, and leases end as much too early.
        (&[0.2], BURST + 0.4 * RATE),
        (&[10.0], BURST + FORGOTTEN),
        (&[10.0, 0.0], BURST + FORGOTTEN),
        (&[-10.0, -20.0], BURST),
    ];
    for (steps, burst) in cases {
        let redis = Redis::start_with_clock();
        let fleet = leasing(&redis.url());
        let fired = flood_through(&fleet, || {
            for ahead in steps {
                redis.set_clock_ahead(*ahead);
                thread::sleep(ms(200));
            }
        });
        assert_one_bucket(&fired, burst);
    }
}

/// A gateway is cut off for longer than its lease. Others have its part meanwhile, and its own share, if any, passes
/// beside the whole limit.
#[test]
fn a_gateway_that_is_cut_off_admits_its_share_at_most() {
    for (on_failure, shares) in [("reject", 0.0), ("local", 1.0)] {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.addr());
        let fleet = leasing_at([&proxy.url(), &redis.url(), &redis.url()], BURST, on_failure);
        fleet.wait_nodes(3);
        let mut back = Instant::now();
        let fired = flood_through(&fleet, || {
            proxy.stop_forwarding();
            thread::sleep(ms(700));
            // More than the part of two gateways.
            wait_for_rate(&fleet, 0.85);
            back = Instant::now();
            proxy.forward();
        });
        let whole = 1.0 + shares / 3.0;
        let passed = fired.iter().filter(|one| one.status == 200);
        let admitted: Vec<_> = passed.map(|one| (one.sent, one.answered)).collect();
        assert_conforms(&admitted, whole * BURST + 1.0, whole * RATE);
        assert!(fired.iter().any(|one| one.gateway == 0 && one.status == 200 && one.sent > back));
    }
}
