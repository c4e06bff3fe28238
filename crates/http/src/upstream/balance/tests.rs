//! The share of each server under each policy, and the order of backups and ejected servers.

use std::collections::BTreeMap;

use super::*;
use crate::upstream::Upstream;
use crate::upstream::server_state::{DOWN, DRAINING};
use crate::upstream::tests::{pass, upstream};
use sluicegate_base::clock::Now;
use sluicegate_model::ServerId;

const KINDS: [&str; 5] = ["p2c", "round_robin", "least_conn", "random", "hash:uri"];

/// The servers chosen for `count` requests with different hashes, none of them in flight.
fn chosen(upstream: &Upstream, count: u64) -> Vec<usize> {
    (0..count).map(|n| place(upstream, mix_bits(n + 1)).expect("a server")).collect()
}

fn place(upstream: &Upstream, hash: u64) -> Option<usize> {
    upstream.choose_server(hash, &[]).ok().map(|server| server.position.0)
}

fn tally(places: &[usize]) -> BTreeMap<usize, usize> {
    let mut tally = BTreeMap::new();
    places.iter().for_each(|place| *tally.entry(*place).or_default() += 1);
    tally
}

fn named(upstream: &Upstream, places: &[usize]) -> String {
    places.iter().map(|place| upstream.servers[*place].name.chars().next().unwrap()).collect()
}

fn weighted(kind: &str, weights: &[u32]) -> Upstream {
    let servers: Vec<String> = weights
        .iter()
        .zip('a'..)
        .map(|(weight, name)| format!("{{ url: \"http://{name}:1\", weight: {weight} }}"))
        .collect();
    upstream(&format!("balance: \"{kind}\", servers: [{}]", servers.join(", ")))
}

#[test]
fn round_robin_is_smooth() {
    // The sequence of nginx's own description of the algorithm.
    let five = weighted("round_robin", &[5, 1, 1]);
    assert_eq!(named(&five, &chosen(&five, 14)), "aabacaaaabacaa");
    let even = weighted("round_robin", &[1, 1, 1]);
    assert_eq!(named(&even, &chosen(&even, 6)), "abcabc");
    // Whatever the weights, no server is ever more than one request away from its share.
    let odd = weighted("round_robin", &[7, 3, 2]);
    let places = chosen(&odd, 120);
    for (end, place) in places.iter().enumerate() {
        let got = places[..=end].iter().filter(|one| *one == place).count() as f64;
        let due = (end + 1) as f64 * f64::from(odd.servers[*place].weight) / 12.0;
        assert!((got - due).abs() <= 1.0, "{end}: {got} of {due}");
    }
}

#[test]
fn weights_are_followed() {
    for kind in KINDS {
        let upstream = weighted(kind, &[5, 1, 2]);
        let tally = tally(&chosen(&upstream, 8_000));
        for (place, weight) in [(0, 5), (1, 1), (2, 2)] {
            let expected = weight * 1_000;
            let (least, most) = (expected * 85 / 100, expected * 115 / 100);
            assert!((least..=most).contains(&tally[&place]), "{kind}: {tally:?}");
        }
    }
}

#[test]
fn the_remaining_servers_share_by_weight() {
    for kind in KINDS {
        let upstream = weighted(kind, &[1, 1, 1, 3]);
        upstream.servers[1].state.set_flag(DOWN);
        upstream.servers[2].state.set_flag(DRAINING);
        let tally = tally(&chosen(&upstream, 4_000));
        assert_eq!(tally.keys().copied().collect::<Vec<_>>(), [0, 3], "{kind}");
        assert!((850..1_150).contains(&tally[&0]), "{kind}: {tally:?}");
    }
}

#[test]
fn hashes_move_only_what_must_move() {
    let upstream = weighted("hash:uri", &[1, 1, 1, 1]);
    let before = chosen(&upstream, 1_000);
    upstream.servers[2].state.set_flag(DOWN);
    let without = chosen(&upstream, 1_000);
    for (old, new) in before.iter().zip(&without) {
        assert!(if *old == 2 { *new != 2 } else { old == new }, "{old} became {new}");
    }
    upstream.servers[2].state.clear_flag(DOWN);
    assert_eq!(chosen(&upstream, 1_000), before);
}

#[test]
fn the_less_busy_gets_it() {
    for kind in ["p2c", "least_conn"] {
        let upstream = weighted(kind, &[1, 1]);
        let in_flight = upstream.servers[0].begin_request().expect("room");
        assert!(chosen(&upstream, 50).iter().all(|place| *place == 1), "{kind}");
        drop(in_flight);
        let upstream = weighted(kind, &[1, 3]);
        // Two of three is more than none of one, and less than one of one.
        let in_flight: Vec<_> = (0..2).map(|_| upstream.servers[1].begin_request()).collect();
        assert!(chosen(&upstream, 50).iter().all(|place| *place == 0), "{kind}");
        let busy = upstream.servers[0].begin_request();
        assert!(chosen(&upstream, 50).iter().all(|place| *place == 1), "{kind}");
        drop((in_flight, busy));
    }
}

#[test]
fn backups_come_last() {
    for kind in KINDS {
        let upstream = upstream(&format!(
            "balance: \"{kind}\", servers: [a:1, {{ url: \"http://b:1\", backup: true }}, c:1]"
        ));
        assert!(!chosen(&upstream, 100).contains(&1), "{kind}");
        upstream.servers[0].state.set_flag(DOWN);
        upstream.servers[2].state.set_flag(DRAINING);
        assert!(chosen(&upstream, 100).iter().all(|place| *place == 1), "{kind}");
    }
}

#[test]
fn full_and_unusable_servers_are_distinguished() {
    for kind in KINDS {
        let upstream = upstream(&format!("balance: \"{kind}\", servers: [a:1, b:1], max_connections: 1"));
        assert!(
            matches!(upstream.choose_server(1, &[ServerId(0), ServerId(1)]), Err(NoServer::Down)),
            "{kind}"
        );
        let second = upstream.choose_server(1, &[ServerId(0)]);
        assert!(matches!(second, Ok(server) if server.position == ServerId(1)), "{kind}");
        let in_flight = upstream.servers[0].begin_request();
        assert_eq!(place(&upstream, 1), Some(1), "{kind}");
        let both = (in_flight, upstream.servers[1].begin_request());
        assert!(matches!(upstream.choose_server(1, &[]), Err(NoServer::Full)), "{kind}");
        assert!(matches!(upstream.choose_server(1, &[ServerId(1)]), Err(NoServer::Full)), "{kind}");
        drop(both);
        for server in &upstream.servers {
            server.state.set_flag(DOWN);
        }
        assert!(matches!(upstream.choose_server(1, &[]), Err(NoServer::Down)), "{kind}");
        assert!(matches!(upstream.choose_server(1, &[ServerId(1)]), Err(NoServer::Down)), "{kind}");
    }
}

#[test]
fn an_ejected_server_is_better_than_none() {
    for kind in KINDS {
        let upstream = weighted(kind, &[1, 1]);
        upstream.servers[0].state.mark_ejected(Now(u64::MAX));
        assert!(chosen(&upstream, 50).iter().all(|place| *place == 1), "{kind}");
        // While a tried server is up, the ejected one is spared.
        assert!(matches!(upstream.choose_server(1, &[ServerId(1)]), Err(NoServer::Down)), "{kind}");
        upstream.servers[1].state.set_flag(DRAINING);
        assert!(chosen(&upstream, 50).iter().all(|place| *place == 0), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_share_grows_over_the_slow_start() {
    pass(1).await;
    let upstream = upstream("balance: round_robin, servers: [a:1, b:1], slow_start: 100s");
    let server = &upstream.servers[1];
    assert_eq!(server.weight_percent(), 100, "all start together");
    server.begin_slow_start(Now::read_clock());
    let mut shares = Vec::new();
    for _ in 0..6 {
        shares.push((server.weight_percent(), tally(&chosen(&upstream, 110))[&1]));
        pass(25).await;
    }
    assert_eq!(shares.iter().map(|(share, _)| *share).collect::<Vec<_>>(), [9, 25, 50, 75, 100, 100]);
    let got: Vec<usize> = shares.iter().map(|(_, got)| *got).collect();
    assert!((9..=11).contains(&got[0]) && (35..=38).contains(&got[2]) && got[5] == 55, "{got:?}");
}

/// The server that a cookie names is chosen while it serves, whatever the policy; otherwise another one is.
#[tokio::test(start_paused = true)]
async fn a_named_server_is_chosen_while_it_serves() {
    pass(1).await;
    let named = |position: u64| position + 1;
    for kind in &KINDS[..4] {
        let upstream = upstream(&format!(
            "balance: {kind}, sticky: {{}}, max_connections: 1, \
             servers: [a:1, b:1, c:1, {{ url: \"http://d:1\", backup: true }}]"
        ));
        upstream.apply_numbers();
        for position in 0..3 {
            assert!((0..9).all(|_| place(&upstream, named(position)) == Some(position as usize)), "{kind}");
        }
        assert!(
            (0..9).all(|_| place(&upstream, named(3)).is_some_and(|at| at < 3)),
            "{kind}: a backup waits"
        );
        assert!(place(&upstream, named(4)).is_some() && place(&upstream, u64::MAX).is_some());
        let all: Vec<usize> = (0..60).filter_map(|_| place(&upstream, 0)).collect();
        assert_eq!(tally(&all).len(), 3, "{kind}: no cookie, no preference");
        let server = &upstream.servers[1];
        let busy = server.begin_request().expect("a place");
        assert!(server.is_full() && place(&upstream, named(1)) != Some(1));
        drop(busy);
        for flag in [DOWN, DRAINING] {
            server.state.set_flag(flag);
            assert!(!server.is_full() && place(&upstream, named(1)).is_some_and(|at| at != 1), "{kind}");
            server.state.clear_flag(flag);
        }
        assert_eq!(
            upstream.choose_server(named(1), &[ServerId(1)]).ok().map(|one| one.position.0 == 1),
            Some(false)
        );
    }
}
