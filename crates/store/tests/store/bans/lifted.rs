//! Bans that an operator lifts: in the script, and on all gateways.

use sluicegate_base::clock::Now;
use sluicegate_store::script::bans::{Ban, BanCursor, StrikeAnswer, StrikeReport};

use crate::bans::support::*;
use crate::link::support::until;
use crate::support::{Redis, ms};

const LIFTED: Ban = Ban { left_us: 0, lasts_us: 0, repeats: 0 };

#[test]
fn a_lifted_ban_and_its_strikes_are_forgotten_and_told_in_order() {
    let mut judge = Judge::start();
    let ban = judge.ban(1, 0);
    judge.ban(2, 0);
    judge.strike(3, 2, 0);
    let lifts = [1, 3, 4].map(|id| StrikeReport::lift_ban(client(id), 60 * SECOND_US));
    let update = judge.ask(&lifts, BanCursor::default(), Some(SECOND_US));
    assert!(update.answers.iter().all(|answer| *answer == StrikeAnswer::NotBanned));
    let told =
        |judge: &mut Judge, at: u64| judge.announced(at).into_iter().map(|(id, ban)| (id, ban.is_lifted()));
    let told = |judge: &mut Judge, at: u64| told(judge, at).collect::<Vec<_>>();
    assert_eq!(told(&mut judge, SECOND_US), [(2, false), (1, true), (3, true), (4, true)]);
    assert_eq!(judge.announced(SECOND_US)[1], (1, LIFTED));
    assert_eq!(judge.strike(3, 2, 2 * SECOND_US), StrikeAnswer::NotBanned, "its strikes are forgotten");
    // The next ban has the first length again, and comes after the lift.
    assert_eq!(judge.ban(1, 2 * SECOND_US), ban);
    assert_eq!(told(&mut judge, 3 * SECOND_US).last(), Some(&(1, false)));
    // A lift is told as long as gateways may know the ban.
    let lifted = |judge: &mut Judge, at: u64| -> Vec<u64> {
        told(judge, at).into_iter().filter(|(_, is_lifted)| *is_lifted).map(|(id, _)| id).collect()
    };
    assert_eq!(lifted(&mut judge, 62 * SECOND_US), [1]);
    assert_eq!(lifted(&mut judge, 10 * MINUTE_US), [0; 0]);
}

#[test]
fn a_lift_is_kept_from_scripts_that_know_none() {
    let mut judge = Judge::start();
    judge.ban(1, 0);
    judge.ask(&[StrikeReport::lift_ban(client(1), 0)], BanCursor::default(), Some(SECOND_US));
    // Their rule for announcements: a ban that is left for longer than its length is unsound.
    let announced: Vec<Vec<u8>> = judge.command(&["ZRANGE", "sg:{bans}", "0", "-1"]);
    assert_eq!(announced.len(), 1);
    let number = |at: usize| f64::from_le_bytes(announced[0][at..at + 8].try_into().unwrap());
    assert_eq!((number(0) as u64, number(8)), (START_US + 10 * MINUTE_US, 0.0));
}

/// Bans by reports of a gateway of the test's own.
fn ban(redis: &Redis, ids: &[u64]) {
    let mut connection = redis.connect();
    load(&mut connection);
    let strikes: Vec<_> = ids.iter().map(|id| offence(*id, 3)).collect();
    let packed =
        sluicegate_store::script::bans::pack_call("test", &RULES, &strikes, &[], BanCursor::default());
    evalsha(&mut connection, &packed, None).unwrap();
}

#[test]
fn a_ban_lifted_by_one_gateway_is_lifted_by_all_also_after_an_outage() {
    let redis = Redis::start();
    run_local(async {
        let gateways = [BansGateway::start(&redis).await, BansGateway::start(&redis).await];
        let all = |id| gateways.iter().all(|gateway| gateway.has_banned(id));
        ban(&redis, &[1, 2, 3]);
        until("bans that all know of", || all(1) && all(2) && all(3)).await;
        gateways[0].lift(1);
        assert!(!gateways[0].has_banned(1));
        until("a lifted ban", || !gateways[1].has_banned(1)).await;
        redis.pause();
        until("an outage", || gateways.iter().all(|gateway| gateway.store.is_degraded())).await;
        gateways[1].lift(2);
        tokio::time::sleep(ms(500)).await;
        assert!(gateways[0].has_banned(2));
        redis.resume();
        until("a ban lifted meanwhile", || !gateways[0].has_banned(2)).await;
        // Nothing comes back, not even to a gateway that starts now or to an emptied store.
        redis.command(&["FLUSHALL"]);
        let late = BansGateway::start(&redis).await;
        until("the other ban", || late.has_banned(3)).await;
        tokio::time::sleep(ms(700)).await;
        let known = |id| [late.has_banned(id), gateways[0].has_banned(id), gateways[1].has_banned(id)];
        assert_eq!([known(1), known(2), known(3)], [[false; 3], [false; 3], [true; 3]]);
        assert_eq!(late.bans.active_count(Now::read_clock()), 1);
        assert_eq!(gateways[0].bans.active_count(Now::read_clock()), 1);
        // It can be banned again.
        ban(&redis, &[1]);
        until("a new ban", || late.has_banned(1) && gateways.iter().all(|gateway| gateway.has_banned(1)))
            .await;
    });
}
