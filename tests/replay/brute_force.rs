//! What `recommend` computes in one pass, beside a search that tries every burst.

use std::collections::BTreeMap;
use std::time::Duration;

use sluicegate::simulate::recommend::recommendation::Recommendation;
use sluicegate::simulate::recommend::recommended_key::RecommendedKey;
use sluicegate::simulate::recommend::{RecommendTask, recommend_limit};

use crate::{line, load, replay, stream, yaml};

/// A small random generator (SplitMix64), so that each log has its number.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % sides
    }
}

/// Requests of a few clients, in volleys and alone, over up to ten minutes.
fn random_requests(seed: u64) -> Vec<(u64, usize)> {
    let mut dice = Dice(seed);
    let clients = 1 + dice.roll(12);
    let spread = [1_000, 100_000, 3_000_000, 30_000_000][dice.roll(4) as usize];
    let (mut at, mut all) = (0, Vec::new());
    for _ in 0..5 + dice.roll(40) {
        at += dice.roll(spread);
        let client = (dice.roll(clients) * dice.roll(clients) / clients) as usize;
        let volley = if dice.roll(4) == 0 { 1 + dice.roll(9) } else { 1 };
        all.extend((0..volley).map(|_| (at, client)));
    }
    all
}

fn write_log(requests: &[(u64, usize)]) -> String {
    requests.iter().map(|(at, client)| line(*at, &format!("192.0.2.{client}"), "/", "")).collect()
}

fn recommend(log: &str, spare: f64, periods: &[&str]) -> Recommendation {
    let period = |text: &&str| {
        let seconds = match *text {
            "1s" => 1,
            "1m" => 60,
            other => panic!("{other}"),
        };
        ((*text).to_owned(), Duration::from_secs(seconds))
    };
    let periods = periods.iter().map(period).collect();
    let task = RecommendTask { key: RecommendedKey::named("ip").expect("a key"), spare, periods };
    recommend_limit(&mut stream(log, None), &task, |_, _| {}).expect("a recommendation")
}

/// Whether a bucket of so many tokens, full at the start, passes all arrivals. In whole numbers: a token is as many
/// parts as the period has microseconds, and each microsecond brings as many parts as the rate has units.
fn passes_all(arrivals: &[u64], units: u64, period_us: u64, burst: u64) -> bool {
    let (token, full) = (u128::from(period_us), u128::from(burst) * u128::from(period_us));
    let (mut parts, mut before) = (full, arrivals[0]);
    arrivals.iter().all(|at| {
        parts = full.min(parts + u128::from(at - before) * u128::from(units));
        before = *at;
        let fits = parts >= token;
        parts = parts.saturating_sub(token);
        fits
    })
}

fn brute_force(requests: &[(u64, usize)], units: u64, period_us: u64, spare_per_mille: usize) -> u64 {
    let mut clients: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for (at, client) in requests {
        clients.entry(*client).or_default().push(*at);
    }
    let need = |arrivals: &Vec<u64>| {
        (1..).find(|burst| passes_all(arrivals, units, period_us, *burst)).expect("some burst is enough")
    };
    let mut needs: Vec<u64> = clients.values().map(need).collect();
    needs.sort_unstable();
    needs[(needs.len() * spare_per_mille).div_ceil(1_000) - 1]
}

#[test]
fn every_point_of_200_random_logs_is_that_of_brute_force() {
    let mut points = 0;
    for seed in 0..200 {
        let requests = random_requests(seed);
        let spare_per_mille = [1_000, 999, 900, 500][seed as usize % 4];
        let found = recommend(&write_log(&requests), spare_per_mille as f64 / 1_000.0, &["1s", "1m"]);
        assert!(found.curve.len() >= 10, "five points for each period: {:?}", found.curve);
        for point in &found.curve {
            let (units, period) = point.rate.split_once('/').expect("a rate");
            let period_us = if period == "s" { 1_000_000 } else { 60_000_000 };
            let expected =
                brute_force(&requests, units.parse().expect("a number"), period_us, spare_per_mille);
            assert_eq!(point.burst, expected, "log {seed}, {} sparing {spare_per_mille} of 1000", point.rate);
            points += 1;
        }
    }
    assert!(points >= 2_000, "{points}");
}

#[test]
fn the_gateway_passes_everybody_with_the_burst_and_rejects_somebody_with_one_less() {
    let mut tight = 0;
    for seed in 0..40 {
        let requests = random_requests(1_000 + seed);
        let log = write_log(&requests);
        let found = recommend(&log, 1.0, &["1s"]);
        for point in found.curve.iter().take(3) {
            let limit =
                |burst: u64| yaml(&format!("  per-ip: {{ key: ip, rate: {}, burst: {burst} }}", point.rate));
            assert_eq!(replay(&log, &limit(point.burst)).rejected, 0, "log {seed}, {point:?}");
            if point.burst > 1 {
                assert!(replay(&log, &limit(point.burst - 1)).rejected > 0, "log {seed}, {point:?}");
                tight += 1;
            }
        }
    }
    assert!(tight > 40, "{tight}");
}

#[test]
fn the_suggested_limit_is_a_valid_file() {
    let log = write_log(&random_requests(7));
    for (key, more) in [("ip", ""), ("account", ",\"account\":\"acme\""), ("uri", ""), ("global", "")] {
        let log = log.replace("\"wait_ms\":0.000", &format!("\"wait_ms\":0.000{more}"));
        let task = RecommendTask {
            key: RecommendedKey::named(key).expect("a key"),
            spare: 0.999,
            periods: vec![("1s".to_owned(), Duration::from_secs(1))],
        };
        let found = recommend_limit(&mut stream(&log, None), &task, |_, _| {}).expect("a recommendation");
        let config = load(&found.paste);
        assert_eq!(config.limits.len(), 1, "{}", found.paste);
        assert!(
            found
                .curve
                .iter()
                .any(|point| point.rate == found.suggested.rate && point.burst == found.suggested.burst)
        );
    }
}

#[test]
fn a_client_ten_times_the_heaviest_is_bounded_by_burst_and_rate() {
    // One client sends ten requests, one each second.
    let requests: Vec<_> = (0..10).map(|n| (n * 1_000_000, 1)).collect();
    let found = recommend(&write_log(&requests), 1.0, &["1s"]);
    assert_eq!((found.suggested.rate.as_str(), found.suggested.burst), ("1/s", 1));
    let heavy = found.ten_times.expect("a client");
    assert_eq!((heavy.sends, heavy.passes), (100, 10));
}

#[test]
fn a_key_that_the_log_lacks_names_those_it_has() {
    let task = |key: &str| RecommendTask {
        key: RecommendedKey::named(key).expect("a key"),
        spare: 1.0,
        periods: vec![("1s".to_owned(), Duration::from_secs(1))],
    };
    let log = line(0, "192.0.2.1", "/", ",\"headers\":{\"x-team\":\"blue\"}");
    let error =
        |key: &str| recommend_limit(&mut stream(&log, None), &task(key), |_, _| {}).map(|_| ()).unwrap_err();
    assert_eq!(
        error("account"),
        "the log has no account; its keys are: ip, uri, host, method, global, header:x-team"
    );
    assert!(error("header:x-other").contains("no header:x-other"));
    assert!(RecommendedKey::named("colour").unwrap_err().contains("the keys are: ip"));
}
