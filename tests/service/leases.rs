//! Leases: slots and reservations beyond the call.

use std::thread;

use super::*;

const SLOTS: &str = "limits: { jobs: { algorithm: concurrency, key: account, max_concurrent: 2 } }";

fn job(more: &Value) -> Value {
    let mut body = json!({ "limits": "jobs", "key": { "account": "acme" } });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

#[test]
fn slots_are_held_until_they_are_released() {
    let gateway = start(SLOTS);
    let first = check(&gateway, &job(&json!({}))).expect(200);
    assert_eq!((first.json()["limit"].as_str(), first.json()["remaining"].as_u64()), (Some("jobs"), Some(1)));
    let second = check(&gateway, &job(&json!({}))).expect(200);
    assert_eq!(second.json()["remaining"], 0);
    let refused = check(&gateway, &job(&json!({}))).expect(429).json();
    assert_eq!((refused["verdict"].as_str(), refused["limit"].as_str()), (Some("reject"), Some("jobs")));
    let lease = lease_of(&first);
    assert_eq!(lease.len(), 32);
    assert_ne!(lease, lease_of(&second));
    assert_eq!(gateway.metric("sluicegate_service_leases", &[]), 2.0);
    assert_eq!(release(&gateway, &lease).expect(200).json(), json!({ "released": true }));
    assert_eq!(release(&gateway, &lease).expect(404).json()["error"], "no_lease");
    check(&gateway, &job(&json!({}))).expect(200);
    for unknown in ["", "x", &"0".repeat(32)] {
        let status = if unknown.is_empty() { 400 } else { 404 };
        release(&gateway, unknown).expect(status);
    }
}

#[test]
fn a_dead_holder_frees_its_slots_and_renewal_keeps_them() {
    let gateway = start(SLOTS);
    let short = json!({ "lease_for": "500ms" });
    let kept = lease_of(&check(&gateway, &job(&short)).expect(200));
    check(&gateway, &job(&short)).expect(200);
    call(&gateway, "/renew", &json!({ "lease": kept, "lease_for": "1m" })).expect(200);
    check(&gateway, &job(&short)).expect(429);
    eventually("the end of one lease", || gateway.metric("sluicegate_service_leases", &[]) == 1.0);
    check(&gateway, &job(&short)).expect(200);
    assert_eq!(check(&gateway, &job(&short)).expect(429).json()["limit"], "jobs");
    release(&gateway, &kept).expect(200);
}

#[test]
fn reservations_are_settled_each_by_its_limit() {
    let gateway = start(
        "limits:\n  tokens: { key: account, rate: 1000/1h, burst: 1000, charge: { reserve: 100, units: header:x-tokens } }\n\
         \x20 pages: { key: account, rate: 50/1h, burst: 50, charge: { reserve: 10, units: header:x-pages } }",
    );
    let both = json!({ "limits": ["tokens", "pages"], "key": { "account": "acme" } });
    let remaining = |limit: &str| {
        let peek = json!({ "limits": limit, "key": { "account": "acme" }, "cost": 1 });
        let answer = check(&gateway, &peek).expect(200);
        call(&gateway, "/settle", &json!({ "lease": lease_of(&answer), "units": 0 })).expect(200);
        answer.json()["remaining"].as_u64().expect("a number") + 1
    };
    let lease = lease_of(&check(&gateway, &both).expect(200));
    assert_eq!((remaining("tokens"), remaining("pages")), (900, 40));
    let wrong = call(&gateway, "/settle", &json!({ "lease": lease, "units": { "tokens": 1, "other": 2 } }));
    assert_eq!(wrong.expect(400).json()["field"], "units.other");
    let settled =
        call(&gateway, "/settle", &json!({ "lease": lease, "units": { "tokens": 30, "pages": 12 } }));
    let expected = json!({
        "settled": [
            { "limit": "tokens", "reserved": 100, "charged": 30, "overrun": 0 },
            { "limit": "pages", "reserved": 10, "charged": 12, "overrun": 0 },
        ],
        "held": false,
    });
    assert_eq!(settled.expect(200).json(), expected);
    assert_eq!((remaining("tokens"), remaining("pages")), (970, 38));
    call(&gateway, "/settle", &json!({ "lease": lease, "units": 1 })).expect(404);
    // A cost takes the place of the reservation.
    let costly =
        json!({ "limits": "tokens", "key": { "account": "acme" }, "cost": 500, "lease_for": "200ms" });
    check(&gateway, &costly).expect(200);
    assert_eq!(remaining("tokens"), 470);
    // Its holder died: what it reserved stays charged.
    eventually("the end of the lease", || gateway.metric("sluicegate_service_leases", &[]) == 0.0);
    assert_eq!(remaining("tokens"), 470);
    assert_eq!(gateway.metric("sluicegate_reserved_units", &[]), 0.0);
}

#[test]
fn leases_are_kept_by_a_reload_and_known_on_every_connection() {
    let address = free_addr();
    let file = |limits: &str| format!("service: {{ listen: \"{address}\" }}\n{limits}\nlocations: []\n");
    let gateway = Gateway::start(&file(SLOTS));
    let lease = lease_of(&check(&gateway, &job(&json!({ "lease_for": "1m" }))).expect(200));
    let fewer = "limits: { first: 9/s, jobs: { algorithm: concurrency, key: account, max_concurrent: 1 } }";
    gateway.change(&file(fewer));
    check(&gateway, &job(&json!({}))).expect(429);
    release(&gateway, &lease).expect(200);
    check(&gateway, &job(&json!({}))).expect(200);
}

#[test]
fn a_hot_upgrade_frees_the_slots_of_leases() {
    let address = free_addr();
    let mut gateway =
        Gateway::start(&format!("service: {{ listen: \"{address}\" }}\n{SLOTS}\nlocations: []\n"));
    let ask =
        |path: &str, body: &Value| Client::connect(address).ask(&post(path, body.to_string().as_bytes()));
    let lease = lease_of(&ask("/check", &job(&json!({ "lease_for": "1m" }))).expect(200));
    ask("/check", &job(&json!({ "lease_for": "1m" }))).expect(200);
    ask("/check", &job(&json!({}))).expect(429);
    let _successor = gateway.upgrade();
    ask("/release", &json!({ "lease": lease })).expect(404);
    ask("/check", &job(&json!({}))).expect(200);
    ask("/check", &job(&json!({}))).expect(200);
    ask("/check", &job(&json!({}))).expect(429);
}

/// Many callers at once: never more than the slots, and nothing is left.
#[test]
fn parallel_callers_never_hold_more_than_the_slots() {
    let gateway = start("limits: { jobs: { algorithm: concurrency, key: global, max_concurrent: 3 } }");
    let held = std::sync::atomic::AtomicI64::new(0);
    let order = std::sync::atomic::Ordering::SeqCst;
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..40 {
                    let answer = check(&gateway, &json!({ "limits": "jobs" }));
                    if answer.status == 200 {
                        assert!(held.fetch_add(1, order) < 3);
                        held.fetch_sub(1, order);
                        release(&gateway, &lease_of(&answer)).expect(200);
                    }
                }
            });
        }
    });
    assert_eq!(gateway.metric("sluicegate_service_leases", &[]), 0.0);
    let left = check(&gateway, &json!({ "limits": "jobs" })).expect(200);
    assert_eq!(left.json()["remaining"], 2);
}

const BUDGET: &str = "\"limits\": \"budget\", \"key\": { \"account\": \"acme\" }";

/// A call names no model, so it states its money, in millionths, as its settlement does.
#[test]
fn money_is_reserved_and_settled_in_millionths() {
    let folder = Scratch::new();
    let prices = folder.file("prices.yaml", "gpt-5: { input: 1, output: 10 }\n").display().to_string();
    let charge = format!("charge: {{ units: money, prices: {prices} }}");
    let gateway = start(&format!("limits: {{ budget: {{ key: account, rate: 5 USD/30d, {charge} }} }}"));
    let ask =
        |more: &str| check(&gateway, &serde_json::from_str(&format!("{{ {BUDGET}{more} }}")).expect("JSON"));
    assert_eq!(ask("").expect(400).json()["error"], "unknown_model");
    let answer = ask(", \"cost\": 1250000").expect(200);
    assert_eq!(answer.json()["remaining"], 3_750_000);
    let settled =
        call(&gateway, "/settle", &json!({ "lease": lease_of(&answer), "units": 7 })).expect(200).json();
    assert_eq!(
        settled["settled"],
        json!([{ "limit": "budget", "reserved": 1_250_000, "charged": 7, "overrun": 0 }])
    );
    assert_eq!(ask(", \"cost\": 1").expect(200).json()["remaining"], 4_999_992);
}
