//! The keys that several gateways leave in their Redis: their names reveal nothing, and none stays for ever.

use std::collections::BTreeSet;

use crate::support::fleet::{counting_on, with_status};
use crate::support::*;

/// Bytes that differ from case to case, hardly any of them printable.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let length = 1 + seed as usize % 40;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(next).collect()
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02X}")).collect()
}

/// `sg:{ID}` with 22 characters of base64url, and suffixes for the keys beside it.
fn is_well_formed(name: &[u8]) -> bool {
    let Ok(name) = std::str::from_utf8(name) else { return false };
    let Some((id, _)) = name.strip_prefix("sg:{").and_then(|rest| rest.split_once('}')) else { return false };
    id.len() == 22 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Whatever bytes a client chooses, each value has a counter of its own, under a name that any Redis and any hash
/// slot accepts and that does not reveal it.
#[test]
fn any_bytes_make_a_name_of_their_own() {
    let redis = Redis::start();
    let head =
        counting_on(&redis.url(), "200ms").replace("server: { ", "server: { max_header_size: 256KiB, ");
    let fleet = Fleet::start(2, |_, upstream| {
        format!(
            "{head}locations:\n  - {{ path: /q, upstream: \"{upstream}\", \
                 limits: {{ key: \"query:k\", missing_key: shared, algorithm: fixed_window, rate: 1/1h }} }}\n  \
               - {{ path: /h, upstream: \"{upstream}\", \
                 limits: {{ key: \"header:x-k\", missing_key: shared, algorithm: fixed_window, rate: 1/1h }} }}\n"
        )
    });
    fleet.wait_enforcing();
    let special = [
        &b"{}"[..],
        b"{",
        b"}",
        b"a}{b",
        b"\0",
        b"\0\0",
        b"{user}",
        b"sg:{x}",
        b"\xff\xfe",
        b"\r\n",
        b" ",
        b"*",
    ];
    let mut values: BTreeSet<Vec<u8>> = special.iter().map(|value| value.to_vec()).collect();
    values.extend((0..150).map(bytes));
    let values: Vec<_> = values.into_iter().collect();
    for (turn, value) in values.iter().enumerate() {
        let target = format!("/q?k={}", escaped(value));
        fleet.gateways[turn % 2].get(&target).expect(200);
        fleet.gateways[(turn + 1) % 2].get(&target).expect(429);
    }
    assert_eq!(redis.counters().len(), values.len());
    // Raw, as header values may be, up to hundreds of kilobytes.
    let raw = [&b"{}{"[..], b"\xff\xfe\x80", b"a\tb", &[b'x'; 200_000], &[b'x'; 200_001], b"\xc3\x28{"];
    for value in raw {
        for (index, status) in [(0, 200), (1, 429)] {
            let head = b"GET /h HTTP/1.1\r\nHost: gateway.test\r\nX-K: ";
            fleet.gateways[index].raw([&head[..], value, b"\r\n\r\n"].concat()).expect(status);
        }
    }
    let names = redis.counters();
    assert_eq!(names.len(), values.len() + raw.len());
    for (name, _) in &names {
        assert!(is_well_formed(name), "{:?}", String::from_utf8_lossy(name));
    }
    assert_eq!(fleet.metric("sluicegate_degraded_decisions_total", &[]), 0.0);
}

/// After traffic of all kinds every key expires, at the latest a second after the longest of its limits has
/// recovered.
#[test]
fn nothing_stays_for_ever() {
    // The slots of a gateway that dies come back after ten seconds; all other limits have recovered before.
    const LONGEST: i64 = 10_000 + 1_000;
    let redis = Redis::start();
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::start(2, |_, upstream| {
        format!(
            "{head}bans: {{ after: 500/5s, for: 5s, max: 5s }}\n\
             limits:\n  bucket: {{ key: \"query:k\", rate: 10/s, burst: 20 }}\n  \
               line: {{ key: \"query:k\", algorithm: leaky_bucket, rate: 50/s, queue: 5 }}\n  \
               fixed: {{ key: \"query:k\", algorithm: fixed_window, rate: 10/5s }}\n  \
               sliding: {{ key: \"query:k\", algorithm: sliding_window, rate: 10/5s }}\n  \
               log: {{ key: \"query:k\", algorithm: sliding_log, rate: 10/5s }}\n  \
               slots: {{ key: \"query:k\", algorithm: concurrency, max_concurrent: 3 }}\n\
             locations:\n  - {{ path: /all, upstream: \"{upstream}\", \
               limits: [bucket, line, fixed, sliding, log, slots] }}\n  \
               - {{ path: /slots, upstream: \"{upstream}\", limits: slots }}\n  \
               - {{ path: /log, upstream: \"{upstream}\", limits: [fixed, log] }}\n"
        )
    });
    fleet.wait_enforcing();
    let fired = fleet.fire(4, Until::Count(25), |gateway, client, turn| {
        let path = ["/all", "/slots", "/log"][turn % 3];
        get(&format!("{path}?k={}", gateway + client + turn % 4))
    });
    assert_eq!(with_status(&fired, 0), 0);
    let counters = redis.counters();
    assert!(counters.len() >= 7, "{}", counters.len());
    for (name, ttl) in redis.keys() {
        assert!(ttl > 0, "{} never expires", String::from_utf8_lossy(&name));
    }
    for (name, ttl) in counters {
        let shown = String::from_utf8_lossy(&name).into_owned();
        assert!(is_well_formed(&name) && (1..=LONGEST).contains(&ttl), "{shown} expires in {ttl} ms");
    }
}

/// For a shared limit a gateway shows the number of keys that it asked about; 0 would be wrong for slots, which it
/// does not remember.
#[test]
fn each_gateway_shows_the_keys_it_asked_for() {
    let redis = Redis::start();
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::start(2, |_, _| {
        format!(
            "{head}limits:\n  rates: {{ key: query:u, rate: 10/h }}\n  \
             slots: {{ key: query:u, algorithm: concurrency, max_concurrent: 5 }}\n  \
             here: {{ key: query:u, rate: 10/h, state: local }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: [rates, slots, here] }}\n"
        )
    });
    fleet.wait_enforcing();
    for (index, users) in [(0, 0..3), (1, 2..7)] {
        for user in users {
            fleet.gateways[index].client().ask(&get(&format!("/?u={user}"))).expect(200);
        }
    }
    for (index, keys) in [(0, 3.0), (1, 5.0)] {
        let gateway = &fleet.gateways[index];
        let keys_of = |limit: &str| gateway.metric("sluicegate_keys", &[&format!("limit=\"{limit}\"")]);
        assert_eq!((keys_of("rates"), keys_of("here")), (keys, keys));
        let series = |line: &&str| line.starts_with("sluicegate_keys{");
        let page = gateway.metrics();
        assert_eq!(page.lines().filter(series).count(), 2, "{page}");
    }
}
