//! What gateways have of bans, shared through a real server: a ban of one is known to all.

use sluicegate_base::clock::Now;
use sluicegate_store::SharedKey;
use sluicegate_store::script::bans::{self, Ban, BanCursor};

use crate::bans::support::*;
use crate::link::support::until;
use crate::support::{Redis, ms};

const BAN: Ban = Ban { left_us: 1, lasts_us: 1, repeats: 0 };

#[test]
fn strikes_on_several_gateways_ban_on_all_of_them() {
    let redis = Redis::start();
    run_local(async {
        let gateways = [
            BansGateway::start(&redis).await,
            BansGateway::start(&redis).await,
            BansGateway::start(&redis).await,
        ];
        gateways.iter().for_each(|gateway| gateway.strike(1));
        for gateway in &gateways {
            until("a ban that all know of", || gateway.has_banned(1)).await;
            assert!(!gateway.has_banned(2));
            assert_eq!(gateway.bans.active_count(Now::read_clock()), 1);
        }
        // A gateway that starts afterwards.
        let late = BansGateway::start(&redis).await;
        until("a ban that was before its time", || late.has_banned(1)).await;
        // A gateway with a store that has forgotten: the next ban.
        let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        (0..3).for_each(|_| late.strike(3));
        for gateway in &gateways {
            until("a ban of a store that forgot", || gateway.has_banned(3)).await;
            assert!(gateway.has_banned(1), "what is known stays");
        }
    });
}

#[test]
fn a_burst_of_bans_reaches_the_others() {
    let redis = Redis::start();
    run_local(async {
        let gateways = [BansGateway::start(&redis).await, BansGateway::start(&redis).await];
        // A call that took too long may have lost its strikes; the clients then strike again.
        let mut turns = 0..20;
        while turns.next().is_some() && gateways[0].bans.active_count(Now::read_clock()) < 2500 {
            let free: Vec<_> = (0..2500).filter(|id| !gateways[0].has_banned(*id)).collect();
            free.into_iter().for_each(|id| (0..3).for_each(|_| gateways[0].strike(id)));
            tokio::time::sleep(ms(1000)).await;
        }
        for gateway in &gateways {
            until("all the bans", || gateway.bans.active_count(Now::read_clock()) >= 2500).await;
            assert!((0..2500).all(|id| gateway.has_banned(id)));
        }
    });
}

#[test]
fn without_the_store_each_gateway_bans_for_itself() {
    let redis = Redis::start();
    let nowhere = redis.addr();
    run_local(async {
        let gateways = [BansGateway::start(&redis).await, BansGateway::start(&redis).await];
        (0..3).for_each(|_| gateways[0].strike(1));
        until("a ban that all know of", || gateways.iter().all(|gateway| gateway.has_banned(1))).await;
        drop(redis);
        assert!(std::net::TcpStream::connect(nowhere).is_err());
        // Strikes of a call that was in flight are lost.
        until("a ban of its own", || {
            gateways[0].strike(2);
            gateways[0].has_banned(2)
        })
        .await;
        tokio::time::sleep(ms(500)).await;
        assert!(!gateways[1].has_banned(2) && gateways[1].has_banned(1));
    });
}

#[test]
fn a_ban_begun_during_an_outage_is_known_to_all_once_redis_is_back() {
    let mut redis = Redis::start();
    run_local(async {
        let gateways = [BansGateway::start(&redis).await, BansGateway::start(&redis).await];
        (0..3).for_each(|_| gateways[1].strike(1));
        until("a ban that all know of", || gateways.iter().all(|gateway| gateway.has_banned(1))).await;
        redis.kill();
        until("a ban of its own", || {
            gateways[0].strike(2);
            gateways[0].has_banned(2)
        })
        .await;
        assert!(!gateways[1].has_banned(2));
        redis.restart();
        until("a ban begun meanwhile", || gateways[1].has_banned(2)).await;
        // The previous ban is not lost either to a gateway that starts now, although the server came back empty.
        let late = BansGateway::start(&redis).await;
        until("the bans of both", || late.has_banned(1) && late.has_banned(2)).await;
    });
}

#[test]
fn a_deleted_ban_is_not_reported_again() {
    let redis = Redis::start();
    let name = |id: u128| {
        let packed =
            bans::pack_call("test", &RULES, &[], &[(SharedKey(id.to_le_bytes()), BAN)], BanCursor::default());
        String::from_utf8(packed.keys[4].clone()).unwrap()
    };
    run_local(async {
        let gateways = [BansGateway::start(&redis).await, BansGateway::start(&redis).await];
        (1..3).for_each(|id| (0..3).for_each(|_| gateways[0].strike(id)));
        let all = |id| gateways.iter().all(|gateway| gateway.has_banned(id));
        until("bans that all know of", || all(1) && all(2)).await;
        assert_eq!(redis.ask::<u64>(&["DEL", &name(1)]), 1);
        // Across an outage that loses nothing.
        redis.pause();
        until("a ban of its own", || {
            gateways[0].strike(3);
            gateways[0].has_banned(3)
        })
        .await;
        redis.resume();
        until("a ban begun meanwhile", || gateways[1].has_banned(3)).await;
        tokio::time::sleep(ms(1000)).await;
        let kept = |id| redis.ask::<u64>(&["EXISTS", &name(id)]);
        assert_eq!([kept(1), kept(2), kept(3)], [0, 1, 1]);
    });
}
