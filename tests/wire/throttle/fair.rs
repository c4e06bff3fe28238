//! `fair_by`: a queue in front of a paid service, with accounts that take turns.

use std::time::Instant;

use crate::support::*;

/// One queue for all, with turns per account, in front of `upstream`.
fn fair_gateway(upstream: &Upstream, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "account: {{ from: \"header:X-Account-Id\" }}
limits: {{ sms: {{ key: global, algorithm: leaky_bucket, rate: 1/s, fair_by: account, {limit} }} }}
locations: [{{ path: /, upstream: \"{}\", limits: sms }}]\n",
        upstream.url()
    ))
}

/// Sends one request after the other, each on its own connection, after the previous one has been judged.
fn enqueue(gateway: &Gateway, requests: &[(&str, &str)]) -> Vec<Client> {
    let judged = || gateway.metric("sluicegate_decisions_total", &[]);
    let send = |&(account, target): &(&str, &str)| {
        let mut client = gateway.client();
        let before = judged();
        client.send(get(target).header("X-Account-Id", account).bytes());
        eventually(&format!("a decision on {target}"), || judged() > before);
        client
    };
    requests.iter().map(send).collect()
}

#[test]
fn a_flooding_and_a_polite_account_alternate() {
    let upstream = Upstream::ok();
    let gateway = fair_gateway(&upstream, "queue: 20");
    let noise = Noise::listen();
    let start = Instant::now();
    let flood = [("flood", "/f0"), ("flood", "/f1"), ("flood", "/f2"), ("flood", "/f3")];
    let clients = enqueue(&gateway, &[&flood[..], &[("polite", "/p1"), ("polite", "/p2")]].concat());
    assert!(start.elapsed() < ms(900), "this machine is too slow for the test");
    let seen = upstream.wait_for(6);
    assert_eq!(upstream.targets(), ["/f0", "/f1", "/p1", "/f2", "/p2", "/f3"]);
    let times: Vec<_> = seen.iter().map(|s| s.at - start).collect();
    noise.assert_schedule(&times, &[0, 1000, 2000, 3000, 4000, 5000]);
    for mut client in clients {
        client.response().expect(200);
    }
}

#[test]
fn a_full_queue_makes_room_for_accounts_that_hold_less() {
    let upstream = Upstream::ok();
    let gateway = fair_gateway(&upstream, "queue: 2");
    let mut clients =
        enqueue(&gateway, &[("flood", "/f0"), ("flood", "/f1"), ("flood", "/f2"), ("polite", "/p1")]);
    let displaced = clients.remove(2).response().expect(429);
    assert_eq!(displaced.header("retry-after").as_deref(), Some("1"));
    assert!(displaced.retry_after_ms() <= 1000, "{}", displaced.retry_after_ms());
    assert!(
        displaced.header("ratelimit").is_some_and(|field| field.contains("r=0")),
        "nothing is left to tell"
    );
    assert_eq!(gateway.metric("sluicegate_decisions_total", &["limit=\"sms\"", "reject"]), 1.0);
    for mut client in clients {
        client.response().expect(200);
    }
    assert_eq!(upstream.targets(), ["/f0", "/f1", "/p1"]);
    let log = gateway.wait_log(4);
    let rejected = log.iter().find(|line| line["status"] == 429).expect("a line of the displaced");
    assert_eq!((&rejected["verdict"], &rejected["limit"]), (&"reject".into(), &"sms".into()));
}

#[test]
fn a_displaced_waiter_is_rejected_after_max_wait() {
    let upstream = Upstream::ok();
    let gateway = fair_gateway(&upstream, "queue: 9, max_wait: 2500ms");
    let start = Instant::now();
    let mut clients =
        enqueue(&gateway, &[("flood", "/f0"), ("flood", "/f1"), ("flood", "/f2"), ("polite", "/p1")]);
    assert!(start.elapsed() < ms(900), "this machine is too slow for the test");
    let expired = clients.remove(2).response().expect(429);
    assert!(start.elapsed() >= ms(2490), "rejected after {:?}", start.elapsed());
    assert!(expired.header("retry-after").is_some());
    for mut client in clients {
        client.response().expect(200);
    }
    assert_eq!(upstream.targets(), ["/f0", "/f1", "/p1"]);
}
