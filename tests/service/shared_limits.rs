//! Calls by limits that several gateways count in Redis: slots, leases, queues, and an outage.

use std::thread;

use super::*;

/// Two gateways with the service that count on the Redis behind `url`.
fn two_gateways(url: &str, limits: &str) -> [Gateway; 2] {
    let text = format!(
        "state: {{ store: redis, redis: {{ url: \"{url}\", timeout: 200ms }} }}\nservice: {{ listen: 127.0.0.1:0 }}\n{limits}\nlocations: []\n"
    );
    let gateways = [Gateway::start(&text), Gateway::start(&text)];
    for gateway in &gateways {
        eventually("a gateway that counts in Redis", || !is_degraded(gateway));
        eventually("both gateways", || gateway.metric("sluicegate_redis_nodes", &[]) == 2.0);
    }
    gateways
}

/// A file for one limit that is called `name`.
fn limit(name: &str, fields: &str) -> String {
    format!("limits: {{ {name}: {{ {fields} }} }}")
}

fn slots(on_failure: &str) -> String {
    limit("jobs", &format!("algorithm: concurrency, key: account, max_concurrent: 2{on_failure}"))
}

fn job(more: Value) -> Value {
    let mut body = json!({ "limits": "jobs", "key": { "account": "acme" } });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// Asks until the answer has this status: what another gateway gives back is seen a moment later.
#[track_caller]
fn soon(gateway: &Gateway, body: &Value, status: u16) -> Response {
    let mut last = check(gateway, body);
    eventually(&format!("status {status}"), || {
        if last.status != status {
            last = check(gateway, body);
        }
        last.status == status
    });
    last
}

/// All slots of the limit are free: both can be taken, by one gateway each, and a third cannot.
#[track_caller]
fn assert_all_free([one, other]: &[Gateway; 2]) {
    let leases = [soon(one, &job(json!({})), 200), soon(other, &job(json!({})), 200)];
    check(one, &job(json!({}))).expect(429);
    check(other, &job(json!({}))).expect(429);
    release(one, &lease_of(&leases[0])).expect(200);
    release(other, &lease_of(&leases[1])).expect(200);
    for gateway in [one, other] {
        assert_eq!(gateway.metric("sluicegate_service_leases", &[]), 0.0);
    }
}

#[test]
fn slots_of_leases_are_counted_together() {
    let redis = Redis::start();
    let gateways = two_gateways(&redis.url(), &slots(""));
    let [one, other] = &gateways;
    let first = lease_of(&check(one, &job(json!({}))).expect(200));
    let second = lease_of(&check(other, &job(json!({}))).expect(200));
    for gateway in [one, other] {
        let refused = check(gateway, &job(json!({}))).expect(429).json();
        assert_eq!((refused["limit"].as_str(), refused["lease"].as_str()), (Some("jobs"), None));
    }
    // A lease is known to the gateway that granted it.
    release(other, &first).expect(404);
    release(one, &first).expect(200);
    let third = lease_of(&soon(other, &job(json!({})), 200));
    release(other, &second).expect(200);
    release(other, &third).expect(200);
    assert_all_free(&gateways);
}

#[test]
fn a_dead_holder_frees_its_slot_for_all_gateways() {
    let redis = Redis::start();
    let gateways = two_gateways(&redis.url(), &slots(""));
    let [one, other] = &gateways;
    let began = std::time::Instant::now();
    check(one, &job(json!({ "lease_for": "1500ms" }))).expect(200);
    let renewed = lease_of(&check(one, &job(json!({ "lease_for": "1500ms" }))).expect(200));
    call(one, "/renew", &json!({ "lease": renewed, "lease_for": "1m" })).expect(200);
    check(other, &job(json!({}))).expect(429);
    let next = lease_of(&soon(other, &job(json!({})), 200));
    assert!(began.elapsed() >= ms(1_500), "{:?}", began.elapsed());
    check(other, &job(json!({}))).expect(429);
    release(other, &next).expect(200);
    release(one, &renewed).expect(200);
    assert_all_free(&gateways);
}

#[test]
fn callers_of_two_gateways_wait_for_slots() {
    let redis = Redis::start();
    let gateways = two_gateways(&redis.url(), &slots(", queue: 50"));
    let [one, other] = &gateways;
    let most = std::sync::atomic::AtomicUsize::new(0);
    let order = std::sync::atomic::Ordering::SeqCst;
    thread::scope(|scope| {
        for (number, gateway) in [one, other, one, other, one, other].into_iter().enumerate() {
            let most = &most;
            scope.spawn(move || {
                for turn in 0..5 {
                    let body = job(json!({ "wait": "60s" }));
                    // Some callers hang up while they wait.
                    if (number + turn) % 4 == 0 {
                        let mut leaver = Client::connect(service(gateway));
                        leaver.send(
                            post(
                                "/check",
                                job(json!({ "wait": "60s", "lease_for": "300ms" })).to_string().as_bytes(),
                            )
                            .bytes(),
                        );
                        thread::sleep(ms(5));
                        continue;
                    }
                    let lease = lease_of(&check(gateway, &body).expect(200));
                    assert!(most.fetch_add(1, order) < 2, "more than the slots");
                    thread::sleep(ms(3));
                    most.fetch_sub(1, order);
                    release(gateway, &lease).expect(200);
                }
            });
        }
    });
    for gateway in [one, other] {
        eventually("no lease", || gateway.metric("sluicegate_service_leases", &[]) == 0.0);
        eventually("no caller", || gateway.metric("sluicegate_queue_depth", &[]) == 0.0);
    }
    assert_all_free(&gateways);
}

#[test]
fn reservations_are_settled_in_redis() {
    let redis = Redis::start();
    let gateways = two_gateways(
        &redis.url(),
        &limit(
            "tokens",
            "key: account, rate: 1000/1d, burst: 1000, charge: { reserve: 100, units: header:x-tokens }",
        ),
    );
    let [one, other] = &gateways;
    let ask = |more: Value| {
        let mut body = json!({ "limits": "tokens", "key": { "account": "acme" } });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    };
    let lease = lease_of(&check(one, &ask(json!({}))).expect(200));
    let dead = check(one, &ask(json!({ "cost": 500, "lease_for": "100ms" }))).expect(200);
    assert_eq!(dead.json()["remaining"], 400);
    assert_eq!(check(other, &ask(json!({ "cost": 401 }))).expect(429).json()["remaining"], 400);
    let settled = call(one, "/settle", &json!({ "lease": lease, "units": 30 })).expect(200).json();
    assert_eq!(settled["settled"][0]["charged"], 30);
    // 30 + 500, because the dead holder settled nothing.
    eventually("the settlement", || {
        check(other, &ask(json!({ "cost": 471 }))).expect(429).json()["remaining"] == 470
    });
    eventually("the end of the lease", || one.metric("sluicegate_service_leases", &[]) == 0.0);
    let rest = check(other, &ask(json!({ "cost": 470 }))).expect(200);
    call(other, "/settle", &json!({ "lease": lease_of(&rest), "units": 0 })).expect(200);
    eventually("units that were not used", || check(one, &ask(json!({ "cost": 470 }))).status == 200);
}

#[test]
fn callers_of_two_gateways_leave_one_queue_at_its_rate() {
    undisturbed(|| {
        let redis = Redis::start();
        let queue =
            "algorithm: leaky_bucket, key: global, burst: 1, queue: 100, max_wait: none, on_failure: reject";
        let gateways = two_gateways(
            &redis.url(),
            &format!("limits: {{ sms: {{ {queue}, rate: 20/1s }}, slow: {{ {queue}, rate: 1/1m }} }}"),
        );
        let body = json!({ "limits": "sms", "wait": "20s" });
        let began = std::time::Instant::now();
        let answers: Vec<Response> = thread::scope(|scope| {
            let ask = |number: usize| {
                let (gateway, body) = (&gateways[number % 2], &body);
                scope.spawn(move || check(gateway, body))
            };
            let asking: Vec<_> = (0..40).map(ask).collect();
            asking.into_iter().map(|one| one.join().expect("an answer")).collect()
        });
        // This machine was too slow for the deadline of a decision.
        if answers.iter().any(|answer| answer.status == 503) {
            return None;
        }
        let mut left: Vec<_> =
            answers.into_iter().map(|answer| answer.expect(200).at.duration_since(began)).collect();
        left.sort_unstable();
        for (position, at) in left.iter().enumerate() {
            let planned = ms(50 * position as u64);
            assert!(*at + ms(50) >= planned, "caller {position} left at {at:?}");
        }
        assert!(left[39] < ms(1_950 + 2_000), "{:?}", left[39]);
        // A caller that would wait too long takes no turn.
        let slow = |gateway, wait: &str| check(gateway, &json!({ "limits": "slow", "wait": wait })).status;
        let statuses = [slow(&gateways[0], "0s"), slow(&gateways[0], "1ms"), slow(&gateways[1], "1s")];
        if statuses.contains(&503) {
            return None;
        }
        assert_eq!(statuses, [200, 429, 429]);
        for gateway in &gateways {
            assert_eq!(gateway.metric("sluicegate_queue_depth", &[]), 0.0);
        }
        Some(())
    });
}

fn is_degraded(gateway: &Gateway) -> bool {
    gateway.admin_get("/readyz").expect(200).text().lines().any(|line| line == "degraded: redis")
}

/// During an outage the answers are those of `on_failure`; afterwards no slot has leaked.
#[test]
fn an_outage_is_answered_as_configured_and_leaks_no_slot() {
    for (on_failure, during) in [("allow", [200, 200, 429]), ("reject", [503; 3]), ("local", [200, 429, 429])]
    {
        let mut redis = Redis::start();
        let gateways = two_gateways(&redis.url(), &slots(&format!(", on_failure: {on_failure}")));
        let [one, other] = &gateways;
        let held = [check(one, &job(json!({}))).expect(200), check(one, &job(json!({}))).expect(200)];
        redis.kill();
        let short = json!({ "lease_for": "100ms", "wait": "100ms" });
        for (gateway, leases) in [(one, 2.0), (other, 0.0)] {
            eventually("an outage", || {
                let _ = check(gateway, &job(short.clone()));
                is_degraded(gateway)
            });
            eventually("the end of those", || gateway.metric("sluicegate_service_leases", &[]) == leases);
        }
        // A gateway knows the slots that it has granted itself; `local` divides them by two.
        let answers = during.map(|_| check(other, &job(json!({ "lease_for": "2s" }))));
        assert_eq!(answers.each_ref().map(|answer| answer.status), during, "{on_failure}");
        for answer in &answers {
            match answer.status {
                200 => assert!(answer.json()["lease"].is_string()),
                503 => assert_eq!(answer.json()["error"], "state_unavailable"),
                _ => assert_eq!(answer.json()["limit"], "jobs"),
            }
        }
        // The lease of before ends here, whether the store hears of it or not.
        release(one, &lease_of(&held[0])).expect(200);
        redis.restart();
        eventually("Redis again", || !is_degraded(one) && !is_degraded(other));
        release(one, &lease_of(&held[1])).expect(200);
        for gateway in [one, other] {
            eventually("no lease", || gateway.metric("sluicegate_service_leases", &[]) == 0.0);
        }
        assert_all_free(&gateways);
    }
}
