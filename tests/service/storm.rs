//! Thousands of calls by callers that release, settle, renew, die, and hang up at any point.

use std::thread;

use super::*;

const FILE: &str = "server: { workers: 2 }\nlimits:\n  jobs: { algorithm: concurrency, key: account, max_concurrent: 3, queue: 20 }\n\
                    \x20 tokens: { key: account, rate: 100000000/1d, burst: 100000000, charge: { reserve: 10, units: header:x-tokens } }";

fn body(account: u64, more: &str) -> String {
    let key = format!("\"key\":{{\"account\":\"a{account}\"}}");
    format!("{{\"limits\":[\"jobs\",\"tokens\"],{key},\"lease_for\":\"400ms\"{more}}}")
}

/// One of the things that a caller does; `dice` are its random numbers.
fn act(
    address: SocketAddr,
    client: &mut Client,
    leases: &mut Vec<String>,
    dice: &mut impl FnMut(u64) -> u64,
) {
    let lease_call = |lease: &str, more: &str| format!("{{\"lease\":\"{lease}\"{more}}}");
    let picked = (!leases.is_empty()).then(|| dice(leases.len() as u64) as usize);
    let account = dice(3);
    match (dice(12), picked) {
        (0..=3, _) => {
            let wait = if dice(2) == 0 { ",\"wait\":\"50ms\"" } else { "" };
            let answer = client.ask(&post("/check", body(account, wait).as_bytes()));
            match answer.status {
                200 => leases.push(lease_of(&answer)),
                status => assert_eq!(status, 429, "{}", answer.text()),
            }
        }
        (4 | 5, Some(index)) => {
            let lease = leases.swap_remove(index);
            let answer = client.ask(&post("/release", lease_call(&lease, "").as_bytes()));
            // Its time may be over on this machine.
            assert!([200, 404].contains(&answer.status), "{}", answer.text());
        }
        (6, Some(index)) => {
            let renewal = lease_call(&leases[index], ",\"lease_for\":\"300ms\"");
            let answer = client.ask(&post("/renew", renewal.as_bytes()));
            assert!([200, 404].contains(&answer.status), "{}", answer.text());
        }
        (7, Some(index)) => {
            let settlement = lease_call(&leases[index], ",\"units\":7");
            let answer = client.ask(&post("/settle", settlement.as_bytes()));
            // 400: it is settled already, and its slot is still held.
            assert!([200, 400, 404].contains(&answer.status), "{}", answer.text());
        }
        // The holder dies.
        (8, Some(index)) => drop(leases.swap_remove(index)),
        // It hangs up in the middle of the call.
        (9, _) => {
            let call = post("/check", body(account, "").as_bytes()).bytes();
            let mut leaver = Client::connect(address);
            leaver.send(&call[..call.len() - 1 - dice(40) as usize]);
        }
        // It hangs up before it has read the answer, or while it waits.
        (10, _) => {
            let wait = if dice(2) == 0 { ",\"wait\":\"10s\"" } else { "" };
            let mut leaver = Client::connect(address);
            leaver.send(post("/check", body(account, wait).as_bytes()).bytes());
            if dice(2) == 0 {
                leaver.reset();
            }
        }
        // Its stream is reset, perhaps before the answer is written.
        _ => {
            let call = body(account, "");
            let length = call.len().to_string();
            let mut h2 = H2::open(address);
            let head = h2_raw::block(&h2_raw::request("POST", "/check", &[("content-length", &length)]));
            let frames = [
                h2_raw::frame(1, 4, 1, &head),
                h2_raw::frame(0, 1, 1, call.as_bytes()),
                h2_raw::frame(3, 0, 1, &8_u32.to_be_bytes()),
            ];
            let _ = h2.try_write(&frames.concat());
        }
    }
}

#[test]
fn of_thousands_of_calls_nothing_is_held() {
    let gateway = start(FILE);
    let address = service(&gateway);
    thread::scope(|scope| {
        for seed in 1..=6_u64 {
            scope.spawn(move || {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut dice = |below: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % below
                };
                let (mut client, mut leases) = (Client::connect(address), Vec::new());
                (0..700).for_each(|_| act(address, &mut client, &mut leases, &mut dice));
            });
        }
    });
    eventually("no lease", || gateway.metric("sluicegate_service_leases", &[]) == 0.0);
    eventually("no caller", || gateway.metric("sluicegate_queue_depth", &[]) == 0.0);
    assert_eq!(gateway.metric("sluicegate_reserved_units", &[]), 0.0);
    for account in 0..3 {
        let jobs = json!({ "limits": "jobs", "key": { "account": format!("a{account}") } });
        for left in [2, 1, 0] {
            assert_eq!(check(&gateway, &jobs).expect(200).json()["remaining"], left);
        }
        check(&gateway, &jobs).expect(429);
    }
}

/// A caller that hung up while it waited has no lease; one whose answer was lost on its way holds a slot until the time
/// of its lease is over, because nobody can know that it was lost.
#[test]
fn a_lost_answer_costs_a_slot_for_the_time_of_its_lease() {
    let gateway =
        start("limits: { jobs: { algorithm: concurrency, key: global, max_concurrent: 1, queue: 5 } }");
    let leases = || gateway.metric("sluicegate_service_leases", &[]);
    let holder = lease_of(&check(&gateway, &json!({ "limits": "jobs" })).expect(200));
    let mut waits = Client::connect(service(&gateway));
    waits.send(post("/check", b"{\"limits\":\"jobs\",\"wait\":\"1m\",\"lease_for\":\"1h\"}").bytes());
    gateway.wait_queued(1);
    drop(waits);
    gateway.wait_queued(0);
    release(&gateway, &holder).expect(200);
    assert_eq!(leases(), 0.0, "the slot did not go to the caller that hung up");
    let mut lost = Client::connect(service(&gateway));
    lost.send(post("/check", b"{\"limits\":\"jobs\",\"lease_for\":\"700ms\"}").bytes());
    lost.reset();
    // Either the call was never read, or its lease ends.
    eventually("the end of the lease", || leases() == 0.0);
    check(&gateway, &json!({ "limits": "jobs", "wait": "5s" })).expect(200);
}
