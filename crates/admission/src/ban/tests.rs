//! Bans on virtual time.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::*;
use sluicegate_model::Rate;

const START: u64 = 1 << 40;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;

/// Bans after `units` strikes in a minute: ten minutes at first, an hour at most.
fn bans(units: u64, max_keys: usize) -> Bans {
    Bans::adopt_from(None, &config(units, BanKey::Ip), max_keys, false)
}

fn config(units: u64, key: BanKey) -> model::BansConfig {
    model::BansConfig {
        after: Rate::new(units.try_into().unwrap(), Duration::from_secs(60)),
        first: Duration::from_secs(600),
        longest: Duration::from_secs(3600),
        key,
        strikes: model::StrikeRules::default(),
    }
}

fn key(id: u128) -> CounterKey {
    CounterKey::new(id, 0)
}

fn strike(bans: &Bans, id: u128, at: u64) -> StrikeOutcome {
    bans.count_strike(&key(id), Now(START + at))
}

fn left(bans: &Bans, id: u128, at: u64) -> Option<u64> {
    bans.ban_left_ns(&key(id), Now(START + at))
}

/// Strikes at `at` until a ban starts; returns its length in minutes and the repeats.
fn ban(bans: &Bans, id: u128, at: u64) -> (u64, u32) {
    for _ in 0..bans.after - 1 {
        assert_eq!(strike(bans, id, at), StrikeOutcome::Counted);
    }
    match strike(bans, id, at) {
        StrikeOutcome::Started(started) => (started.lasts_ns / MINUTE, started.repeats),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_nth_strike_within_the_period_starts_the_ban() {
    let bans = bans(3, 100);
    assert_eq!(strike(&bans, 1, 0), StrikeOutcome::Counted);
    assert_eq!(strike(&bans, 1, 30 * SECOND), StrikeOutcome::Counted);
    assert_eq!((left(&bans, 1, 31 * SECOND), bans.active_count(Now(START + 31 * SECOND))), (None, 0));
    // The first one is a whole period old and does not count any more.
    assert_eq!(strike(&bans, 1, MINUTE), StrikeOutcome::Counted);
    assert_eq!(left(&bans, 1, MINUTE), None);
    let third = 90 * SECOND - 1;
    assert!(
        matches!(strike(&bans, 1, third), StrikeOutcome::Started(started) if started.lasts_ns == 10 * MINUTE)
    );
    assert_eq!(left(&bans, 1, third), Some(10 * MINUTE));
    assert_eq!(left(&bans, 1, third + 10 * MINUTE - 1), Some(1));
    assert_eq!(left(&bans, 1, third + 10 * MINUTE), None);
    assert_eq!(left(&bans, 2, third), None, "a neighbour");
}

#[test]
fn the_first_strike_may_be_enough() {
    let bans = bans(1, 100);
    assert_eq!(ban(&bans, 1, 0), (10, 0));
    assert_eq!(left(&bans, 1, 0), Some(10 * MINUTE));
}

#[test]
fn strikes_during_a_ban_neither_count_nor_lengthen_it() {
    let bans = bans(3, 100);
    ban(&bans, 1, 0);
    assert_eq!(strike(&bans, 1, 10 * MINUTE - 1), StrikeOutcome::Banned);
    assert_eq!(left(&bans, 1, 10 * MINUTE - 1), Some(1));
    // Strikes before the ban are spent as well.
    assert_eq!(strike(&bans, 1, 10 * MINUTE), StrikeOutcome::Counted);
    assert_eq!(strike(&bans, 1, 10 * MINUTE), StrikeOutcome::Counted);
    assert_eq!(left(&bans, 1, 10 * MINUTE), None);
}

#[test]
fn repeats_double_up_to_the_longest_and_are_forgotten() {
    let bans = bans(3, 100);
    assert_eq!(ban(&bans, 1, 0), (10, 0));
    let mut end = 10 * MINUTE;
    for (lasts, repeats) in [(20, 1), (40, 2), (60, 3), (60, 4)] {
        let at = end + 60 * MINUTE - 1;
        assert_eq!(ban(&bans, 1, at), (lasts, repeats));
        end = at + lasts * MINUTE;
    }
    let at = end + 60 * MINUTE;
    assert_eq!(ban(&bans, 1, at), (10, 0));
    for repeats in 1..200 {
        assert_eq!(ban(&bans, 1, at + u64::from(repeats) * 60 * MINUTE).1, repeats);
    }
}

#[test]
fn the_count_of_active_bans_is_kept_up_to_date() {
    let bans = bans(2, 100);
    for id in 0..5 {
        ban(&bans, id, id as u64 * MINUTE);
    }
    let active = |at: u64| bans.active_count(Now(START + at));
    assert_eq!([active(4 * MINUTE), active(10 * MINUTE - 1), active(10 * MINUTE)], [5, 5, 4]);
    assert_eq!(active(13 * MINUTE), 1);
    assert_eq!(left(&bans, 4, 14 * MINUTE), None, "looking for a ban notes its end, too");
    assert_eq!(bans.state.active.count_active(Now(START)), 0);
}

#[test]
fn a_full_table_bans_no_neighbour() {
    let bans = bans(2, 3);
    for id in 0..3 {
        assert_eq!(strike(&bans, id, 0), StrikeOutcome::Counted);
    }
    // All of these share one overflow counter.
    for id in 3..50 {
        assert_eq!(strike(&bans, id, 1), StrikeOutcome::Uncounted);
        assert_eq!(left(&bans, id, 1), None);
    }
    assert!(matches!(strike(&bans, 0, 2), StrikeOutcome::Started(_)), "known clients are judged on");
    // Once their strikes are too old, others replace those that were not banned.
    assert_eq!(strike(&bans, 50, MINUTE + 2), StrikeOutcome::Counted);
    assert!(matches!(strike(&bans, 50, MINUTE + 2), StrikeOutcome::Started(_)));
    assert_eq!(bans.state.table.key_count(), 2);
    assert!(left(&bans, 0, MINUTE + 2).is_some(), "a ban is never forgotten for a newcomer");
}

#[test]
fn a_ban_is_remembered_until_the_next_would_not_repeat_it() {
    let bans = bans(2, 1);
    assert_eq!(ban(&bans, 1, 0), (10, 0));
    let forgotten = 70 * MINUTE;
    assert_eq!(strike(&bans, 2, forgotten - 1), StrikeOutcome::Uncounted, "there is no place for another");
    assert_eq!(ban(&bans, 1, forgotten - 1), (20, 1));
    let forgotten = forgotten - 1 + 80 * MINUTE;
    assert_eq!(strike(&bans, 2, forgotten), StrikeOutcome::Counted);
    assert_eq!(strike(&bans, 1, forgotten), StrikeOutcome::Uncounted);
}

#[test]
fn times_of_forgotten_clients_are_used_again() {
    let bans = bans(3, 10);
    let late = |id: u128, at: u64| [0, 50, 70, 80].map(|seconds| strike(&bans, id, at + seconds * SECOND));
    for id in 0..1000 {
        let at = id as u64 * 2 * MINUTE;
        assert_eq!([0, 1].map(|n| strike(&bans, id, at + n)), [StrikeOutcome::Counted; 2]);
    }
    // Without a time of its own the strike of second 50 would be gone with that of second 0.
    let [_, _, third, fourth] = late(1000, 3000 * MINUTE);
    assert!(third == StrikeOutcome::Counted && matches!(fourth, StrikeOutcome::Started(_)), "{fourth:?}");
}

#[test]
fn the_memory_of_a_flood_is_bounded() {
    let bans = bans(10_000, 10);
    for at in 0..20_000 {
        strike(&bans, u128::from(at % 10), at);
    }
    assert_eq!(bans.active_count(Now(START + 20_000)), 0);
    // One client alone strikes as often; its strikes found no room for times of their own and count all the same.
    let mut struck = (0..10_000).map(|at| strike(&bans, 0, 20_000 + at));
    assert!(struck.any(|strike| matches!(strike, StrikeOutcome::Started(_))));
}

#[test]
fn the_target_of_a_strike_does_not_depend_on_when_it_is_computed() {
    let (keys, headers) = (KeyHasher::random(), HeaderMap::new());
    let ip = "192.0.2.1".parse().unwrap();
    for key in [BanKey::Ip, BanKey::Account] {
        let bans = Bans::adopt_from(None, &config(3, key), 100, true);
        for account in [None, Some(&b""[..]), Some(b"al"), Some(b"\xff")] {
            let subject = KeyInput {
                ip,
                ip_key: None,
                account,
                tier: "default",
                path: b"/",
                query: None,
                location: Some(1),
                host: "a.test",
                method: &Method::POST,
                headers: &headers,
                trusted_peer: false,
                token: None,
                body: None,
            };
            let key = bans.client_key(&keys, &subject);
            assert_eq!(key, bans.client_key(&KeyHasher::random(), &subject), "the same for all gateways");
            let now = Now(START);
            match bans.judge(&keys, &subject, now) {
                (StrikeTarget::Deferred, None) => {
                    let account = account.map(|account| str::from_utf8(account).unwrap());
                    assert_eq!(bans.deferred_key(&keys, ip, account), key);
                }
                target => assert_eq!((target, account), ((StrikeTarget::Key(key), None), Some(&b"\xff"[..]))),
            }
            assert_eq!(bans.install_ban(&key, Now(START + 5), 0, now), InstallOutcome::New);
            assert_eq!(bans.judge(&keys, &subject, now), (StrikeTarget::Key(key), Some(5)));
            bans.state.table.update_entry(&key, now, |record, _, (), _| *record = ClientRecord::default());
            bans.state.active.count_active(Now(START + 5));
        }
    }
}

#[test]
fn an_announced_ban_ends_in_time() {
    let bans = bans(3, 100);
    let install = |until: u64, repeats: u32, at: u64| {
        bans.install_ban(&key(1), Now(START + until), repeats, Now(START + at))
    };
    strike(&bans, 1, 0);
    assert_eq!(install(10 * MINUTE, 2, SECOND), InstallOutcome::New);
    assert_eq!((left(&bans, 1, SECOND), left(&bans, 2, SECOND)), (Some(10 * MINUTE - SECOND), None));
    assert_eq!(strike(&bans, 1, 2 * SECOND), StrikeOutcome::Banned);
    // The same ban again, through a call that took longer.
    assert_eq!(install(10 * MINUTE + SECOND / 2, 2, 3 * SECOND), InstallOutcome::AlreadyActive);
    assert_eq!(bans.active_count(Now(START + 3 * SECOND)), 1);
    assert_eq!(install(5 * MINUTE, 0, 3 * SECOND), InstallOutcome::AlreadyActive, "no ban gets shorter");
    assert_eq!(left(&bans, 1, 10 * MINUTE - 1), Some(1));
    assert_eq!((left(&bans, 1, 10 * MINUTE), bans.active_count(Now(START + 10 * MINUTE))), (None, 0));
    assert_eq!(install(10 * MINUTE, 2, 10 * MINUTE), InstallOutcome::AlreadyActive, "it has ended");
    // The next one by strikes that are counted here goes on from there.
    assert_eq!(ban(&bans, 1, 11 * MINUTE), (60, 3));
}

#[test]
fn an_announced_ban_finds_no_room_in_a_full_table() {
    let bans = bans(3, 1);
    let install = |id: u128| bans.install_ban(&key(id), Now(START + MINUTE), 0, Now(START));
    assert_eq!((install(1), install(2)), (InstallOutcome::New, InstallOutcome::NoRoom));
    assert_eq!((left(&bans, 1, 0), left(&bans, 2, 0)), (Some(MINUTE), None));
    assert_eq!(bans.active_count(Now(START)), 1);
}

#[test]
fn many_bans_cause_few_log_lines() {
    let bans = bans(1, 1000);
    let log_skipped = |id: u128, at: u64| match strike(&bans, id, at) {
        StrikeOutcome::Started(started) => started.log_skipped,
        other => panic!("{other:?}"),
    };
    let first: Vec<_> = (0..100).filter_map(|id| log_skipped(id, 0)).collect();
    assert_eq!(first, [0; 10]);
    assert_eq!(log_skipped(100, SECOND), Some(90));
    assert_eq!(log_skipped(101, SECOND), Some(0));
}

#[test]
fn of_two_threads_one_starts_the_ban() {
    const STRIKES: u64 = 1000;
    for round in 0..20 {
        let bans = bans(STRIKES, 100);
        let (started, counted) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for at in 0..STRIKES {
                        match strike(&bans, 1, round + at) {
                            StrikeOutcome::Counted => drop(counted.fetch_add(1, Relaxed)),
                            StrikeOutcome::Started(_) => drop(started.fetch_add(1, Relaxed)),
                            StrikeOutcome::Banned => {}
                            StrikeOutcome::Uncounted => panic!("there is room"),
                        }
                    }
                });
            }
        });
        assert_eq!((started.into_inner(), counted.into_inner()), (1, STRIKES as usize - 1));
        assert_eq!(bans.active_count(Now(START)), 1);
    }
}
