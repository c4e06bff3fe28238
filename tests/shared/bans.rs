//! Gateways that share bans through a real server: a client banned by one is banned by all.

use crate::support::fleet::counting_on;
use crate::support::{Client, Fleet, Redis, eventually, get};

/// The real program, twice. `bans` is the configuration besides four strikes in an hour.
fn two(redis: &Redis, bans: &str) -> Fleet {
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::start(2, |_, _| {
        format!(
            "{head}account: {{ from: \"header:x-user\" }}\nbans: {{ after: 4/1h, for: 10m{bans} }}\n\
             limits: {{ login: {{ key: ip, rate: 1/h, state: local }} }}\n\
             locations:\n  - {{ path: /login, respond: {{ body: ok }}, limits: login }}\n  \
             - {{ path: /gone, respond: {{ status: 404 }} }}\n  \
             - {{ path: /, respond: {{ body: ok }} }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet
}

#[test]
fn a_client_rejected_by_several_gateways_is_banned_by_all() {
    let redis = Redis::start();
    let fleet = two(&redis, "");
    let from = |ip: &str, index: usize, target: &str| {
        Client::connect_from(ip, fleet.gateways[index].addr()).ask(&get(target)).status
    };
    for index in [0, 1] {
        assert_eq!([(); 3].map(|()| from("127.0.0.5", index, "/login")), [200, 429, 429]);
    }
    for index in [0, 1] {
        eventually("a ban that both know of", || from("127.0.0.5", index, "/") == 429);
        assert_eq!(from("127.0.0.6", index, "/"), 200);
        let left =
            Client::connect_from("127.0.0.5", fleet.gateways[index].addr()).ask(&get("/")).retry_after_ms();
        assert!((500_000..=600_000).contains(&left), "{left}");
    }
    let sum = |name: &str| fleet.metric(name, &[]);
    assert_eq!([sum("sluicegate_strikes_total"), sum("sluicegate_bans_total")], [4.0, 1.0]);
    assert_eq!([sum("sluicegate_bans_learned_total"), sum("sluicegate_bans_active")], [1.0, 2.0]);
    // The gateway that did not begin it knows a hash of the client only.
    let lists = [0, 1].map(|index| {
        let asked = get("/bans").header("Accept", "application/json");
        let list = fleet.gateways[index].ask_admin(&asked).expect(200).json();
        assert_eq!(list["active"].as_u64(), list["bans"].as_array().map(|bans| bans.len() as u64), "{list}");
        [list["active"].as_u64(), list["unnamed"].as_u64()]
    });
    let (named, unnamed) = ([Some(1), Some(0)], [Some(0), Some(1)]);
    assert!([[named, unnamed], [unnamed, named]].contains(&lists), "{lists:?}");
    eventually("a line about the ban", || {
        let is_start = |line: &str| line.contains("a client is banned") && line.contains("127.0.0.5");
        let lines =
            fleet.gateways.iter().map(|gateway| gateway.stderr().lines().filter(|l| is_start(l)).count());
        lines.sum::<usize>() == 1
    });
    // While it is banned, no strike is reported to the store.
    let before = sum("sluicegate_strikes_total");
    (0..20).for_each(|_| assert_eq!(from("127.0.0.5", 0, "/login"), 429));
    assert_eq!(sum("sluicegate_strikes_total"), before);
}

/// Responses on both gateways add up.
#[test]
fn a_scanner_of_several_gateways_is_banned_by_all() {
    let redis = Redis::start();
    let fleet = two(&redis, ", strikes: [reject, 404]");
    let from = |ip: &str, index: usize, target: &str| {
        Client::connect_from(ip, fleet.gateways[index].addr()).ask(&get(target)).status
    };
    for index in [0, 1, 0, 1] {
        assert_eq!([from("127.0.0.5", index, "/"), from("127.0.0.5", index, "/gone")], [200, 404]);
    }
    for index in [0, 1] {
        eventually("a ban that both know of", || from("127.0.0.5", index, "/") == 429);
        assert_eq!([from("127.0.0.6", index, "/"), from("127.0.0.6", index, "/gone")], [200, 404]);
    }
    let sum = |name: &str| fleet.metric(name, &[]);
    assert_eq!([sum("sluicegate_strikes_total"), sum("sluicegate_bans_total")], [6.0, 1.0]);
}

#[test]
fn accounts_are_banned_on_all_gateways_whatever_bytes_they_are_of() {
    let redis = Redis::start();
    let fleet = two(&redis, ", key: account");
    for (number, user) in [&b"al"[..], b"\xff", b"\xfe"].into_iter().enumerate() {
        let ask = |index: usize, target: &str, user: &[u8]| {
            let request =
                [b"GET ", target.as_bytes(), b" HTTP/1.1\r\nHost: a\r\nX-User: ", user, b"\r\n\r\n"].concat();
            // The limit counts by address.
            let mut client = Client::connect_from(&format!("127.0.1.{number}"), fleet.gateways[index].addr());
            client.send(request);
            client.response().status
        };
        for index in [0, 1] {
            assert_eq!(ask(index, "/", user), 200, "{user:?} before its ban");
            assert_eq!([(); 3].map(|()| ask(index, "/login", user)), [200, 429, 429]);
        }
        for index in [0, 1] {
            eventually("a ban that both know of", || ask(index, "/", user) == 429);
            assert_eq!(ask(index, "/", b"bo"), 200);
        }
    }
}
