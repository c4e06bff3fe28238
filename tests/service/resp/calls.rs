//! `CL.THROTTLE` itself: bad calls, the five numbers, keys, the bound of the table, reloads, metrics and the log.

use super::*;

#[test]
fn bad_calls_name_the_argument() {
    let gateway = start_resp("", "");
    let mut peer = Peer::connect(service(&gateway));
    let long = format!("{} 1 1 1", "k".repeat(4_097));
    for (words, error) in [
        ("", "wrong number of arguments: CL.THROTTLE key max_burst count_per_period period [quantity]"),
        ("a 1 1", "wrong number of arguments"),
        ("a 1 1 1 1 1", "wrong number of arguments"),
        (&long, "key is longer than 4096 bytes"),
        ("a x 1 1", "max_burst is not an integer of 64 bits: 'x'"),
        ("a 1.5 1 1", "max_burst is not an integer of 64 bits: '1.5'"),
        ("a 9223372036854775808 1 1", "max_burst is not an integer"),
        ("a 9223372036854775807 1 1", "max_burst is not within"),
        ("a -1 1 1", "max_burst is not within"),
        ("a 1 - 1", "count_per_period is not an integer of 64 bits: '-'"),
        ("a 1 0 1", "count_per_period is not at least 1"),
        ("a 1 -5 1", "count_per_period is not at least 1"),
        ("a 1 1000000001 1", "count_per_period is more than one per nanosecond"),
        ("a 1 1 1s", "period is not an integer of 64 bits: '1s'"),
        ("a 1 1 0", "period is not at least 1"),
        ("a 1 1 -60", "period is not at least 1"),
        ("a 0 1 9223372037", "max_burst and period are too long"),
        ("a 9223372036 1 1", "max_burst and period are too long"),
        ("a 9223372036854775806 1 1", "max_burst and period are too long"),
        ("a 1 1 1 x", "quantity is not an integer of 64 bits: 'x'"),
        ("a 1 1 1 -1", "quantity is negative"),
    ] {
        let words: Vec<&str> =
            "CL.THROTTLE".split(' ').chain(words.split(' ').filter(|one| !one.is_empty())).collect();
        match peer.ask(&words) {
            Reply::Error(text) => assert!(text.starts_with(&format!("ERR {error}")), "{text}, not {error}"),
            other => panic!("{error}: {other:?}"),
        }
    }
    // None of them took anything.
    assert_eq!(peer.throttle("a 1 1 60 0"), [0, 2, 2, -1, 0]);
    assert_eq!(
        gateway.metric("sluicegate_service_calls_total", &["result=\"bad_call\"", "protocol=\"resp\""]),
        21.0
    );
}

#[test]
fn the_five_numbers_tell_what_is_left() {
    let gateway = start_resp("", "");
    let mut peer = Peer::connect(service(&gateway));
    // 1 in 1,000 s, with 2 more at once.
    assert_eq!(peer.throttle("u 2 1 1000"), [0, 3, 2, -1, 1_000]);
    assert_eq!(peer.throttle("u 2 1 1000"), [0, 3, 1, -1, 2_000]);
    assert_eq!(peer.throttle("u 2 1 1000 0"), [0, 3, 1, -1, 2_000], "a quantity of 0 takes nothing");
    assert_eq!(peer.throttle("u 2 1 1000 2"), [1, 3, 1, 1_000, 2_000], "a rejected call takes nothing");
    assert_eq!(peer.throttle("u 2 1 1000"), [0, 3, 0, -1, 3_000]);
    assert_eq!(peer.throttle("u 2 1 1000"), [1, 3, 0, 1_000, 3_000]);
    assert_eq!(peer.throttle("u 2 1 1000 4"), [1, 3, 0, -1, 3_000], "more than the limit never fits");
    assert_eq!(peer.throttle("other 2 1 1000"), [0, 3, 2, -1, 1_000], "each key has its own");
    assert_eq!(peer.throttle("u 9 1 1000"), [0, 10, 6, -1, 4_000], "other numbers go on from the same time");
    assert_eq!(peer.throttle("u 0 1 1"), [1, 1, 0, 4_000, 4_000]);
}

/// Calls over all workers at once use one counter.
#[test]
fn workers_share_the_counters() {
    let gateway = start_resp("", "server: { workers: 4 }");
    let address = service(&gateway);
    let admitted: i64 = std::thread::scope(|scope| {
        let client = |_| {
            scope.spawn(move || {
                let mut peer = Peer::connect(address);
                (0..200).map(|_| 1 - peer.throttle("shared 99 1 100000")[0]).sum::<i64>()
            })
        };
        let clients: Vec<_> = (0..8).map(client).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert_eq!(admitted, 100);
}

/// Keys that have used something are never dropped for others: a full table refuses new keys, and serves those it has.
#[test]
fn a_full_table_refuses_new_keys() {
    let gateway = start_resp("", "state: { max_keys: 1000 }");
    let mut peer = Peer::connect(service(&gateway));
    let call = |key: usize| array(&["CL.THROTTLE", &format!("k{key}"), "9", "1", "100000"]);
    let (mut admitted, mut refused) = (Vec::new(), 0);
    for chunk in (0..11_000).collect::<Vec<usize>>().chunks(500) {
        peer.send(chunk.iter().flat_map(|key| call(*key)).collect::<Vec<u8>>());
        for key in chunk {
            match peer.reply() {
                Reply::Error(text) => {
                    assert!(text.starts_with("ERR too many keys"), "{text}");
                    refused += 1;
                }
                reply => {
                    assert_eq!(numbers(&reply), [0, 10, 9, -1, 100_000]);
                    admitted.push(*key);
                }
            }
        }
    }
    assert!((900..=1_000).contains(&admitted.len()), "{} keys", admitted.len());
    assert_eq!(refused + admitted.len(), 11_000);
    for key in admitted.iter().step_by(97) {
        peer.send(call(*key));
        assert_eq!(numbers(&peer.reply())[2], 8, "a key that has a counter keeps it");
    }
    assert_eq!(gateway.metric("sluicegate_service_throttle_keys", &[]), admitted.len() as f64);
    let faults = gateway.metric("sluicegate_service_calls_total", &["result=\"fault\"", "protocol=\"resp\""]);
    assert_eq!(faults, refused as f64);
    gateway.wait_stderr("the table is full");
}

/// Keys that have used nothing any more make room.
#[test]
fn idle_keys_make_room() {
    let gateway = start_resp("", "state: { max_keys: 100 }");
    let mut peer = Peer::connect(service(&gateway));
    for key in 0..5_000 {
        let reply = peer.ask(&["CL.THROTTLE", &format!("k{key}"), "0", "100000", "1"]);
        assert!(matches!(&reply, Reply::Array(_)), "{key}: {reply:?}");
    }
}

#[test]
fn a_reload_keeps_the_counters() {
    let address = free_addr();
    let file = |more: &str| format!("service: {{ resp: \"{address}\" }}\n{more}\nlocations: []\n");
    let gateway = Gateway::start(&file(""));
    let mut peer = Peer::connect(address);
    assert_eq!(peer.throttle("a 4 1 1000 3")[2], 2);
    gateway.change(&file("state: { max_keys: 5000 }"));
    assert_eq!(peer.throttle("a 4 1 1000")[2], 1, "the connection goes on, too");
    assert_eq!(Peer::connect(address).throttle("a 4 1 1000")[2], 0);
}

#[test]
fn a_hot_upgrade_keeps_the_counters() {
    let address = free_addr();
    let mut gateway = Gateway::start(&format!("service: {{ resp: \"{address}\" }}\nlocations: []\n"));
    assert_eq!(Peer::connect(address).throttle("a 4 1 1000 3")[2], 2);
    let _successor = gateway.upgrade();
    assert_eq!(Peer::connect(address).throttle("a 4 1 1000")[2], 1);
}

#[test]
fn a_snapshot_keeps_the_counters() {
    let scratch = Scratch::new();
    let path = scratch.path().join("counters.bin");
    let lines = format!("state: {{ snapshot: \"{}\" }}", path.display());
    let mut gateway = start_resp("", &lines);
    assert_eq!(Peer::connect(service(&gateway)).throttle("a 4 1 1000 3")[2], 2);
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    let gateway = start_resp("", &lines);
    assert_eq!(Peer::connect(service(&gateway)).throttle("a 4 1 1000")[2], 1);
}

#[test]
fn calls_are_counted_and_logged() {
    let gateway = start_resp("", "access_log: { hash_keys: false }");
    let mut peer = Peer::connect(service(&gateway));
    peer.throttle("k\"1 0 1 1000");
    peer.throttle("k\"1 0 1 1000");
    for (result, expected) in [("admit", 1.0), ("reject", 1.0), ("fault", 0.0)] {
        let labels = ["protocol=\"resp\"", "call=\"throttle\"", &format!("result=\"{result}\"")];
        assert_eq!(gateway.metric("sluicegate_service_calls_total", &labels), expected, "{result}");
    }
    let lines = gateway.wait_log(2);
    let line = &lines[1];
    assert_eq!(
        (&line["protocol"], &line["call"], &line["verdict"]),
        (&json!("resp"), &json!("throttle"), &json!("reject"))
    );
    assert_eq!((&line["ip"], &line["key"]), (&json!("127.0.0.1"), &json!("k\"1")));
    assert!(
        line["retry_after"].as_f64().is_some_and(|seconds| seconds > 900.0 && seconds <= 1_000.0),
        "{line}"
    );
    assert!(line.get("status").is_none() && line.get("path").is_none(), "{line}");
    assert!(lines[0].get("retry_after").is_none(), "{}", lines[0]);
}

#[test]
fn keys_are_hashed_in_the_log() {
    let gateway = start_resp("", "");
    Peer::connect(service(&gateway)).throttle("alice@example.com 0 1 1000");
    let line = gateway.wait_log(1)[0].to_string();
    assert!(!line.contains("alice") && line.contains("\"key\":\""), "{line}");
}
