//! The harness itself: servers that stop and come back, paths that are cut, several gateways at once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::fleet::{remaining, with_status};
use crate::support::*;

/// A connection that sends PING, and whether it is answered within `patience`.
fn pings(stream: &mut TcpStream, patience: Duration) -> bool {
    stream.set_read_timeout(Some(patience)).unwrap();
    let _ = stream.write_all(b"PING\r\n");
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).is_ok() && &answer == b"+PONG\r\n"
}

#[test]
fn a_server_is_asked_and_counted() {
    let redis = Redis::start_with(&["--maxmemory-policy", "noeviction"]);
    let policy: Vec<String> = redis.ask(&["CONFIG", "GET", "maxmemory-policy"]);
    assert_eq!(policy[1], "noeviction");
    redis.command(&["SET", "a", "1", "PX", "60000"]);
    redis.command(&["SET", "b", "1"]);
    let mut keys = redis.keys();
    keys.sort();
    assert_eq!(keys[1], (b"b".to_vec(), -1));
    assert!(keys[0].0 == b"a" && (1..=60_000).contains(&keys[0].1), "{keys:?}");
    assert_eq!((redis.calls("set"), redis.calls("evalsha")), (2, 0));
    assert!(redis.try_ask::<String>(&["EVALSHA", "x", "0"]).is_err());
}

#[test]
fn a_server_stops_and_comes_back_empty() {
    let mut redis = Redis::start();
    let mut stream = TcpStream::connect(redis.addr()).unwrap();
    assert!(pings(&mut stream, PATIENCE));
    redis.pause();
    assert!(!pings(&mut stream, ms(50)));
    redis.resume();
    redis.command(&["SET", "a", "1"]);
    let port = redis.addr();
    for _ in 0..3 {
        redis.kill();
        assert!(TcpStream::connect(port).is_err());
        redis.restart();
        assert_eq!((redis.addr(), redis.keys().len()), (port, 0));
    }
}

#[test]
fn servers_do_not_take_each_others_port() {
    let all: Vec<_> = (0..10).map(|_| Redis::start()).collect();
    for redis in &all {
        redis.command(&["SET", "only", "here"]);
        assert_eq!(redis.calls("set"), 1);
    }
}

#[test]
fn a_sentinel_makes_the_replica_the_primary() {
    let mut group = Sentinel::start();
    group.primary.command(&["SET", "a", "1"]);
    group.primary.kill();
    group.wait_promoted();
    group.replica.command(&["SET", "b", "1"]);
}

#[test]
fn a_cluster_serves_all_slots_and_survives_a_primary() {
    let mut cluster = Cluster::start();
    assert_eq!(cluster.primaries().count(), 3);
    for (key, owner) in [("bar", 0), ("c", 1), ("foo", 2)] {
        for (index, node) in cluster.nodes[..3].iter().enumerate() {
            let answer = node.try_ask::<()>(&["SET", key, "1"]);
            let moved = answer.is_err_and(|e| e.code() == Some("MOVED"));
            assert_eq!(moved, index != owner, "{key} on {index}");
        }
    }
    cluster.nodes[0].kill();
    eventually("a new primary", || cluster.primaries().count() == 3);
    cluster.wait_ok();
    cluster.nodes[3].command(&["SET", "bar", "2"]);
}

#[test]
fn a_cut_road_holds_everything_until_it_is_mended() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let mut old = TcpStream::connect(proxy.addr()).unwrap();
    assert!(pings(&mut old, PATIENCE));
    proxy.stop_forwarding();
    let mut new = TcpStream::connect(proxy.addr()).unwrap();
    assert!(!pings(&mut old, ms(50)) && !pings(&mut new, ms(50)));
    proxy.forward();
    for stream in [&mut old, &mut new] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        assert!(pings(stream, PATIENCE));
    }
    assert_eq!((proxy.attempts().len(), proxy.bytes()), (2, [30, 35]));
}

#[test]
fn lost_answers_were_requests_that_ran() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    proxy.drop_replies();
    stream.write_all(b"INCR a\r\n").unwrap();
    eventually("the command", || redis.calls("incr") == 1);
    assert!(!pings(&mut stream, ms(50)));
    proxy.forward();
    assert_eq!(stream.read(&mut [0; 9]).unwrap_or(0), 0, "a connection that lost an answer stays open");
    assert!(pings(&mut TcpStream::connect(proxy.addr()).unwrap(), PATIENCE));
}

#[test]
fn a_closed_road_and_a_long_one() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    proxy.delay(ms(40));
    let start = Instant::now();
    assert!(pings(&mut stream, PATIENCE));
    assert!(start.elapsed() >= ms(80), "{:?}", start.elapsed());
    proxy.refuse();
    assert!(!pings(&mut stream, PATIENCE));
    let cut_off = TcpStream::connect(proxy.addr()).map(|mut new| pings(&mut new, PATIENCE));
    assert!(!cut_off.unwrap_or(false));
}

#[test]
fn replies_are_late_by_a_random_time_and_do_not_hold_up_each_other() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    proxy.delay_replies(ms(5), ms(40));
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    let took: Vec<_> = (0..20)
        .map(|_| {
            let start = Instant::now();
            assert!(pings(&mut stream, PATIENCE));
            start.elapsed()
        })
        .collect();
    assert!(took.iter().all(|&took| took >= ms(5)), "{took:?}");
    assert!(took.iter().any(|&took| took >= ms(25)), "{took:?}");
    proxy.delay_replies(ms(200), ms(200));
    let start = Instant::now();
    for _ in 0..10 {
        stream.write_all(b"PING\r\n").unwrap();
        std::thread::sleep(ms(5));
    }
    stream.read_exact(&mut [0; 70]).unwrap();
    assert!((ms(245)..ms(1500)).contains(&start.elapsed()), "{:?}", start.elapsed());
}

/// A fleet counts the requests that its gateways admit; each gateway has its own counters here.
#[test]
fn a_fleet_is_fired_at_and_counted() {
    let fleet = Fleet::start(2, |_, upstream| {
        format!(
            "locations:\n  - {{ path: /, upstream: \"{upstream}\", \
               limits: {{ key: global, algorithm: fixed_window, rate: 10/1h }} }}\n"
        )
    });
    let fired =
        fleet.fire(3, Until::Count(5), |gateway, client, turn| get(&format!("/{gateway}/{client}/{turn}")));
    assert_eq!((with_status(&fired, 200), with_status(&fired, 429)), (20, 10));
    assert_eq!(fired.iter().filter(|f| f.status == 200).filter_map(|f| remaining(&f.headers)).max(), Some(9));
    assert_eq!(fleet.arrivals().len(), 20);
    assert_eq!(fleet.metric("sluicegate_requests_total", &["2xx"]), 20.0);
}
