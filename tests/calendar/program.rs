//! Quotas of the running program: over reloads, restarts and upgrades, and in Redis.

use sluicegate_testkit::{Gateway, Redis, Scratch, eventually, get};

/// A file with one quota for each account. A year is long enough for the test to cross no border.
fn file(state: &str, rate: &str) -> String {
    let gold = if rate.contains(',') { "[100/1h, 8/year]" } else { "8/year" };
    format!(
        "account: {{ from: header:X-Account, tier: {{ members: {{ acme: gold }} }} }}\n\
         state: {{ {state} }}\n\
         limits:\n  plan: {{ key: account, rate: {rate}, zone: Europe/Berlin, tiers: {{ gold: {{ rate: {gold} }} }} }}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, limits: plan }}]\n"
    )
}

/// Sends requests of an account and returns how many are admitted.
fn admitted(gateway: &Gateway, account: &str, requests: usize) -> usize {
    let ask = get("/").header("X-Account", account);
    (0..requests).filter(|_| gateway.ask(&ask).status == 200).count()
}

#[test]
fn a_quota_counts_on_over_reloads_restarts_and_upgrades() {
    let scratch = Scratch::new();
    let state = format!("snapshot: {}", scratch.path().join("counters").display());
    let mut gateway = Gateway::start(&file(&state, "5/year"));
    assert_eq!(admitted(&gateway, "small", 3), 3);
    gateway.change(&file(&state, "6/year"));
    assert_eq!(admitted(&gateway, "small", 1), 1);
    gateway.term();
    gateway.wait_exit();
    let mut gateway = Gateway::start(&file(&state, "7/year"));
    assert_eq!(admitted(&gateway, "small", 1), 1, "a restart with another number");
    let successor = gateway.upgrade();
    assert_eq!(admitted(&gateway, "small", 5), 2, "after an upgrade");
    let answer = gateway.ask(&get("/").header("X-Account", "small"));
    assert_eq!(answer.status, 429);
    let retry: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=366 * 86_400).contains(&retry), "{retry} s");
    let policy = answer.header("ratelimit-policy").unwrap();
    let year = |days: u64| format!("\"plan\";q=7;w={}", days * 86_400);
    assert!([365, 366].map(year).contains(&policy.to_string()), "{policy}");
    drop(successor);
}

#[test]
fn a_better_plan_counts_on() {
    let gateway = Gateway::start(&file("snapshot: none", "5/year"));
    assert_eq!((admitted(&gateway, "acme", 10), admitted(&gateway, "small", 10)), (8, 5));
    let better = file("snapshot: none", "5/year").replace("acme: gold", "small: gold");
    gateway.change(&better);
    assert_eq!((admitted(&gateway, "acme", 10), admitted(&gateway, "small", 10)), (0, 3));
}

#[test]
fn gateways_share_a_quota_in_one_call() {
    let redis = Redis::start();
    let state = format!("store: redis, redis: {{ url: \"{}\", timeout: 200ms }}", redis.url());
    let [one, other] = [(); 2].map(|()| Gateway::start(&file(&state, "[100/1h, 5/year]")));
    assert_eq!(admitted(&one, "small", 3), 3);
    let before = redis.judgements();
    assert_eq!(admitted(&other, "small", 2), 2);
    assert_eq!(redis.judgements() - before, 2);
    assert_eq!((admitted(&one, "small", 2), admitted(&other, "small", 2)), (0, 0));
    assert_eq!(admitted(&one, "other", 1), 1);
    let kept = redis.keys().into_iter().find(|(name, _)| name.windows(3).any(|part| part == b":W:"));
    let (_, left_ms) = kept.expect("a counter of the year");
    assert!(left_ms > 365 * 86_400_000, "it is kept until the next year has ended");
}

/// The status and the step that each of some requests is answered with.
fn steps(gateway: &Gateway, account: &str, requests: usize) -> Vec<(u16, String)> {
    let ask = get("/").header("X-Account", account);
    let told = |_| {
        let answer = gateway.ask(&ask);
        (answer.status, answer.header("sluicegate-step").unwrap_or_default().to_owned())
    };
    (0..requests).map(told).collect()
}

#[test]
fn callers_are_told_the_last_step_also_where_they_are_refused() {
    let redis = Redis::start();
    let shared = format!("store: redis, redis: {{ url: \"{}\", timeout: 200ms }}", redis.url());
    let steps_field = "zone: UTC, steps: [{ at: 60%, then: warn }, { at: 100%, then: slow, rate: 1/h }]";
    for (rate, state) in [("5/year", "snapshot: none"), ("5/year", &shared), ("5/1d", &shared)] {
        let file = file(state, rate).replace("zone: Europe/Berlin", steps_field);
        let fixed = "algorithm: fixed_window, key: account, rate: 5/1d, steps";
        let file = match rate {
            "5/1d" => file
                .replace(", tiers: { gold: { rate: 8/year } }", "")
                .replace("key: account, rate: 5/1d, zone: UTC, steps", fixed),
            _ => file,
        };
        let gateway = Gateway::start(&file);
        let warn = (200, "\"plan\";at=60;then=warn".to_owned());
        let slow = "\"plan\";at=100;then=slow".to_owned();
        let expected = [(200, String::new()), (200, String::new()), warn.clone(), warn, (200, slow.clone())];
        assert_eq!(steps(&gateway, "small", 5), expected, "{rate} {state}");
        let beyond = steps(&gateway, "small", 3);
        assert_eq!(beyond, [(200, slow.clone()), (429, slow.clone()), (429, slow)], "{rate} {state}");
        let logged: Vec<String> = gateway.wait_log(8).iter().map(|line| line["step"].to_string()).collect();
        let count = |step: &str| logged.iter().filter(|own| own.contains(step)).count();
        assert_eq!((count("plan=warn"), count("plan=slow")), (2, 4), "{logged:?}");
    }
}

/// How often the gateways together have told each step.
fn told(gateways: &[Gateway; 2]) -> [f64; 3] {
    let count = |at: &str, gateway: &Gateway| {
        gateway.metric("sluicegate_quota_steps_total", &["limit=\"plan\"", &format!("at=\"{at}\"")])
    };
    ["50", "80", "100"].map(|at| gateways.iter().map(|gateway| count(at, gateway)).sum())
}

#[test]
fn a_fleet_tells_each_step_once_also_beyond_an_outage() {
    let redis = Redis::start();
    let state =
        format!("store: redis, redis: {{ url: \"{}\", timeout: 200ms, on_failure: local }}", redis.url());
    let steps = "steps: [{ at: 50%, then: warn }, { at: 80%, then: warn }], zone";
    let file = file(&state, "20/year").replace("zone", steps).replace("8/year", "80/year");
    let gateways = [(); 2].map(|()| Gateway::start(&file));
    let ask = |rounds: usize| {
        for gateway in (0..rounds).flat_map(|_| &gateways) {
            admitted(gateway, "small", 1);
        }
    };
    ask(6);
    eventually("one event of the first step", || told(&gateways) == [1.0, 0.0, 0.0]);
    redis.pause();
    // Each gateway goes on with its own half, which the seven requests of both have reached already.
    ask(2);
    redis.resume();
    ask(10);
    eventually("the last step", || told(&gateways)[2] >= 1.0);
    // An outage may tell a step once more at each gateway.
    let counts = told(&gateways);
    assert!(counts.iter().all(|count| (1.0..=3.0).contains(count)), "{counts:?}");
}
