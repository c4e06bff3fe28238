//! Operators reset keys, grant numbers and ban clients through one gateway; the others follow through a real server.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Ask, Client, Fleet, Gateway, Redis, Response, Scratch, eventually, get, ms};

/// Longest time until a change of one gateway acts on another.
const REACH: Duration = Duration::from_secs(1);

const CHAIN: &str = "
limits:
  per-account: { key: account, rate: 2/h }
  burst: { algorithm: leaky_bucket, key: uri, rate: 1/h }
locations:
  - { path: /, respond: { body: ok }, limits: per-account }
  - { path: /burst, respond: { body: ok }, limits: burst }
";

fn yaml(redis: &Redis, more: &str) -> String {
    format!(
        "state:\n  store: redis\n  redis: {{ url: \"{}\", prefix: t, timeout: 200ms }}\n{more}\
         account: {{ from: header:x-account }}\n{CHAIN}",
        redis.url()
    )
}

/// Gateways over one server that are all in use of it.
fn fleet(redis: &Redis, count: usize, more: &str) -> Fleet {
    let fleet = Fleet::start(count, |_, _| yaml(redis, more));
    fleet.wait_enforcing();
    fleet.wait_nodes(count);
    fleet
}

fn ask_as(gateway: &Gateway, account: &str) -> u16 {
    gateway.client().ask(&get("/").header("X-Account", account)).status
}

fn is_banned(gateway: &Gateway, client: &str) -> bool {
    Client::connect_from(client, gateway.addr()).ask(&get("/burst")).text().contains("banned")
}

fn change(gateway: &Gateway, method: &str, target: &str, body: &str) -> Response {
    let ask = Ask::new(method, target).header("Content-Type", "application/json").body(body.as_bytes());
    gateway.ask_admin(&ask)
}

fn json_of(gateway: &Gateway, target: &str) -> Value {
    gateway.ask_admin(&get(target).header("Accept", "application/json")).expect(200).json()
}

fn banned(gateway: &Gateway) -> Vec<String> {
    let list = json_of(gateway, "/bans");
    let bans = list["bans"].as_array().expect("a list").iter();
    bans.map(|ban| ban["banned"].as_str().expect("a text").to_owned()).collect()
}

/// Waits for a change of another gateway, no longer than it may take.
#[track_caller]
fn reaches(why: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + REACH;
    while !holds() {
        assert!(Instant::now() < deadline, "{why} takes longer than {REACH:?}");
        std::thread::sleep(ms(10));
    }
}

#[test]
fn a_key_refused_on_both_gateways_is_reset_through_one() {
    let redis = Redis::start();
    let fleet = fleet(&redis, 2, "");
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    assert_eq!([one, one, one, other].map(|gateway| ask_as(gateway, "acme")), [200, 200, 429, 429]);
    assert_eq!([one, other, other].map(|gateway| ask_as(gateway, "other")), [200, 200, 429]);
    change(one, "POST", "/limits/per-account/keys/account=acme/reset", "").expect(200);
    assert_eq!(ask_as(one, "acme"), 200);
    reaches("a reset", || ask_as(other, "acme") == 200);
    assert_eq!([one, other].map(|gateway| ask_as(gateway, "acme")), [429, 429], "it counts on");
    assert_eq!(ask_as(other, "other"), 429, "another key is not reset");
}

#[test]
fn the_key_of_a_hash_is_reset_as_well() {
    let redis = Redis::start();
    let fleet = fleet(&redis, 2, "");
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    assert_eq!([one, one, one, other].map(|gateway| ask_as(gateway, "acme")), [200, 200, 429, 429]);
    let keys = json_of(one, "/limits/per-account/keys");
    let name = keys["keys"][0]["key"].as_str().expect("a name").replace('#', "%23");
    assert!(name.starts_with("account=%23"), "{name}");
    change(one, "POST", &format!("/limits/per-account/keys/{name}/reset"), "").expect(200);
    reaches("a reset", || ask_as(other, "acme") == 200);
    let granted = change(
        one,
        "POST",
        &format!("/limits/per-account/keys/{name}/grant"),
        r#"{"rate": "100/s", "for": "1h"}"#,
    );
    granted.expect(200);
    reaches("a grant", || (0..5).all(|_| ask_as(other, "acme") == 200));
}

#[test]
fn a_grant_holds_on_both_gateways_and_ends_by_itself() {
    let redis = Redis::start();
    let fleet = fleet(&redis, 2, "");
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    assert_eq!([one, other, one, other].map(|gateway| ask_as(gateway, "acme")), [200, 200, 429, 429]);
    let begun = Instant::now();
    let key = "/limits/per-account/keys/account=acme";
    change(one, "POST", &format!("{key}/grant"), r#"{"rate": "100/s", "for": "2s"}"#).expect(200);
    assert_eq!(ask_as(one, "acme"), 200);
    reaches("a grant", || (0..5).all(|_| ask_as(other, "acme") == 200));
    assert_eq!(ask_as(other, "stranger"), 200, "only this key");
    let shown = json_of(other, key);
    assert_eq!(shown["grant"]["numbers"], json_of(one, key)["grant"]["numbers"], "{shown:#}");
    assert!(shown["grant"]["left_s"].as_f64().is_some_and(|left| left <= 2.0), "{shown:#}");
    while begun.elapsed() < ms(2_500) {
        std::thread::sleep(ms(20));
    }
    assert_eq!([one, other].map(|gateway| ask_as(gateway, "acme")), [429, 429], "by the limit's own numbers");
    assert_eq!(json_of(other, key)["grant"], Value::Null);
}

#[test]
fn a_grant_ends_on_both_gateways_when_it_is_revoked() {
    let redis = Redis::start();
    let fleet = fleet(&redis, 2, "");
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    let key = "/limits/per-account/keys/account=acme";
    change(one, "POST", &format!("{key}/grant"), r#"{"rate": "9/h", "for": "1h"}"#).expect(200);
    reaches("a grant", || json_of(other, key)["grant"] != Value::Null);
    change(other, "DELETE", &format!("{key}/grant"), "").expect(200);
    reaches("the end of a grant", || json_of(one, key)["grant"] == Value::Null);
    assert_eq!([one, one, one].map(|gateway| ask_as(gateway, "acme")), [200, 200, 429]);
}

#[test]
fn a_ban_of_a_network_reaches_both_gateways() {
    let redis = Redis::start();
    let fleet = fleet(&redis, 2, "");
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    change(one, "POST", "/bans", r#"{"ip": "127.9.0.0/16", "for": "1h", "reason": "abuse"}"#).expect(200);
    assert!(is_banned(one, "127.9.1.1"));
    reaches("a ban", || is_banned(other, "127.9.1.1"));
    assert!(!is_banned(other, "127.8.1.1"));
    assert_eq!(json_of(other, "/bans")["bans"][0]["reason"], "abuse");
    change(other, "DELETE", "/bans/127.9.0.0%2F16", "").expect(200);
    assert!(!is_banned(other, "127.9.1.1"));
    reaches("the end of a ban", || !is_banned(one, "127.9.1.1"));
}

#[test]
fn an_automatic_ban_is_lifted_through_a_gateway_that_only_learned_it() {
    let redis = Redis::start();
    let fleet = fleet(&redis, 2, "bans: { after: 3/1m, for: 1h }\n");
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    eventually("a ban", || is_banned(one, "127.9.1.1"));
    reaches("the ban", || is_banned(other, "127.9.1.1"));
    let lifted = change(other, "DELETE", "/bans/127.9.1.1", "").expect(200).json();
    assert_eq!(lifted["ended"][0]["by"], "automatic", "{lifted:#}");
    assert!(!is_banned(other, "127.9.1.1"));
    reaches("the end of a ban", || !is_banned(one, "127.9.1.1"));
}

#[test]
fn what_was_changed_during_an_outage_is_shared_afterwards() {
    let mut redis = Redis::start();
    let fleet = fleet(&redis, 2, "");
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    change(one, "POST", "/bans", r#"{"ip": "192.0.2.1", "for": "1h"}"#).expect(200);
    reaches("a ban", || banned(other) == ["192.0.2.1"]);
    redis.kill();
    fleet.wait_degraded();
    change(one, "POST", "/bans", r#"{"ip": "192.0.2.2", "for": "1h"}"#).expect(200);
    change(other, "DELETE", "/bans/192.0.2.1", "").expect(200);
    let refused = change(one, "POST", "/limits/per-account/keys/account=acme/reset", "").expect(503).json();
    assert!(
        refused["error"].as_str().is_some_and(|error| error.contains("Redis does not answer")),
        "{refused}"
    );
    assert_eq!((banned(one).len(), banned(other).len()), (2, 0));
    redis.restart();
    fleet.wait_enforcing();
    eventually("all changes on both", || [one, other].iter().all(|gateway| banned(gateway) == ["192.0.2.2"]));
}

#[test]
fn grants_and_bans_stand_after_a_reload_and_a_restart() {
    let redis = Redis::start();
    let files = [Scratch::new(), Scratch::new()];
    let snapshot =
        |place: usize| format!("  snapshot: {}\n", files[place].path().join("counters.bin").display());
    let mut fleet = Fleet::start(2, |place, _| yaml(&redis, &snapshot(place)));
    fleet.wait_enforcing();
    let key = "/limits/per-account/keys/account=acme";
    change(&fleet.gateways[0], "POST", &format!("{key}/grant"), r#"{"rate": "9/h", "for": "1h"}"#)
        .expect(200);
    change(&fleet.gateways[0], "POST", "/bans", r#"{"account": "evil", "for": "1h"}"#).expect(200);
    let stands = |gateway: &Gateway| {
        json_of(gateway, key)["grant"] != Value::Null && banned(gateway) == ["account=evil"]
    };
    reaches("both", || fleet.gateways.iter().all(stands));
    fleet.gateways.iter().for_each(|gateway| drop(gateway.reload().expect(200)));
    assert!(fleet.gateways.iter().all(stands), "after a reload");
    for place in [0, 1] {
        let gateway = fleet.gateways.remove(place);
        drop(gateway);
        fleet.gateways.insert(place, Gateway::start(&yaml(&redis, &snapshot(place))));
        eventually("the same after a restart", || stands(&fleet.gateways[place]));
        assert!(stands(&fleet.gateways[1 - place]));
    }
    redis.command(&["FLUSHALL"]);
    let late = Gateway::start(&yaml(&redis, ""));
    eventually("the same on a gateway that starts later", || stands(&late));
}

/// Whether limit `per-account` is paused on a gateway, and its rate there.
fn limit_on(gateway: &Gateway) -> (bool, String) {
    let limits = json_of(gateway, "/limits");
    let limits = limits["limits"].as_array().expect("limits").iter();
    let own = limits.into_iter().find(|limit| limit["limit"] == "per-account").expect("the limit");
    (own["paused"] != Value::Null, own["rates"][0]["units"].to_string())
}

fn are_all(gateways: &[Gateway], paused: bool, rate: &str) -> bool {
    gateways.iter().all(|gateway| limit_on(gateway) == (paused, rate.to_owned()))
}

#[test]
fn a_pause_and_numbers_hold_on_three_gateways_within_a_second() {
    let redis = Redis::start();
    let fleet = fleet(&redis, 3, "");
    let [one, other, third] = &fleet.gateways[..] else { panic!("three gateways") };
    assert_eq!([one, other, third].map(|gateway| ask_as(gateway, "acme")), [200, 200, 429]);
    let paused =
        change(one, "POST", "/limits/per-account/pause", r#"{"for": "1h", "reason": "why"}"#).expect(200);
    assert!(!paused.text().contains("this gateway alone"), "{}", paused.text());
    assert_eq!(ask_as(one, "acme"), 200, "here at once");
    reaches("a pause", || are_all(&fleet.gateways, true, "2"));
    assert_eq!([other, third].map(|gateway| ask_as(gateway, "acme")), [200, 200]);
    change(other, "POST", "/limits/per-account/resume", "").expect(200);
    reaches("its end", || are_all(&fleet.gateways, false, "2"));
    assert_eq!(
        [one, other, third].map(|gateway| ask_as(gateway, "acme")),
        [429; 3],
        "the counter is the same"
    );
    change(third, "PUT", "/limits/per-account/numbers", r#"{"rate": "9/h", "burst": 9}"#).expect(200);
    reaches("numbers", || are_all(&fleet.gateways, false, "9"));
    let all: Vec<u16> = (0..9).map(|turn| ask_as(&fleet.gateways[turn % 3], "acme")).collect();
    let passed = all.iter().filter(|status| **status == 200).count();
    assert!((7..=9).contains(&passed), "as after a reload: {all:?}");
    let differ =
        |gateway: &Gateway| gateway.metric("sluicegate_limit_numbers_differ", &["limit=\"per-account\""]);
    eventually("the same numbers everywhere", || fleet.gateways.iter().all(|gateway| differ(gateway) == 0.0));
    change(one, "DELETE", "/limits/per-account/numbers", "").expect(200);
    reaches("the file's numbers", || are_all(&fleet.gateways, false, "2"));
}

#[test]
fn changes_of_limits_during_an_outage_hold_here_at_once_and_elsewhere_afterwards() {
    let mut redis = Redis::start();
    let fleet = fleet(&redis, 3, "");
    let one = &fleet.gateways[0];
    redis.kill();
    fleet.wait_degraded();
    change(one, "POST", "/pause", r#"{"for": "1h"}"#).expect(200);
    change(one, "PUT", "/limits/per-account/numbers", r#"{"rate": "9/h"}"#).expect(200);
    assert_eq!(limit_on(one), (true, "9".to_owned()));
    assert!(are_all(&fleet.gateways[1..], false, "2"));
    redis.restart();
    fleet.wait_enforcing();
    eventually("all changes everywhere", || are_all(&fleet.gateways, true, "9"));
    let late = Gateway::start(&yaml(&redis, ""));
    eventually("the same on a gateway that starts later", || are_all(std::slice::from_ref(&late), true, "9"));
    let other = Gateway::start(&yaml(&redis, "").replace("rate: 2/h", "rate: 3/h"));
    eventually("the numbers of its file", || limit_on(&other) == (true, "3".to_owned()));
    eventually("they are dropped for the fleet", || are_all(&fleet.gateways, true, "2"));
    other.wait_stderr("the numbers set for per-account ended: the file says");
}
