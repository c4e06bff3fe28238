//! The fault run with a healthy Redis that is hard to reach.

use crate::faults::support::{FaultRun, OUTAGES};
use crate::support::*;

/// Packets vanish without a reset, and arrive afterwards.
#[test]
fn nothing_gets_through() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let run = FaultRun::start("blackhole", "100ms", |_| proxy.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            proxy.stop_forwarding();
            run.stay_out();
            proxy.forward();
            run.recover();
        }
    });
}

/// Calls run, but their answers are lost.
#[test]
fn answers_are_lost() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let run = FaultRun::start("lost replies", "100ms", |_| proxy.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            proxy.drop_replies();
            run.stay_out();
            proxy.forward();
            run.recover();
        }
    });
}

/// About half of the replies come after the deadline.
#[test]
fn replies_are_late() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let run = FaultRun::start("replies 5-40 ms late", "20ms", |_| proxy.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            proxy.delay_replies(ms(5), ms(40));
            run.stay_out_for(ms(1500));
            proxy.delay_replies(ms(0), ms(0));
            run.recover();
        }
    });
}

/// One gateway is cut off; the others continue with Redis.
#[test]
fn one_gateway_is_cut_off() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let url = |index| if index == 0 { proxy.url() } else { redis.url() };
    let run = FaultRun::start("one gateway cut off", "200ms", url);
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            proxy.stop_forwarding();
            run.stay_out();
            proxy.forward();
            run.recover();
        }
    });
}
