//! Bans, grants and resets of operators, on requests and across gateways and processes.

mod garbled;
mod limit_change_tests;

use std::fs::File;
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Uri, Version};
use hyper::body::SizeHint;
use rustix::fs::{MemfdFlags, memfd_create};

use super::*;
use crate::judge::{self, JudgeMode, RequestFacts, RequestHead};
use crate::reject::Rejection;
use sluicegate_admission::ban::{ClientIdentity, StrikeOutcome};
use sluicegate_admission::ban_target::BanTarget;
use sluicegate_admission::chain::{ChainVerdict, Charge, Decisions};
use sluicegate_admission::operator_bans::{NewBan, UnbanFault};
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_http::request::client::Client;
use sluicegate_limit::snapshot;
use sluicegate_store::SharedKey;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;

/// Judges as for a request, without a connection.
struct Charging;

impl JudgeMode<'_> for Charging {
    type Chain = Charge;

    fn try_count_in_flight(&mut self, _: &Gateway) -> bool {
        true
    }
}

/// How a request is judged.
#[derive(Debug, PartialEq)]
enum Judged {
    Admitted,
    Rejected,
    /// Seconds left.
    Banned(u64),
}
use Judged::{Admitted, Banned, Rejected};

fn ask(gateway: &Gateway, ip: &str, account: &str, now: Now) -> Judged {
    let (method, uri, mut headers) = (Method::GET, Uri::from_static("/"), HeaderMap::new());
    headers.insert("host", HeaderValue::from_static("a.test"));
    if !account.is_empty() {
        headers.insert("x-account", HeaderValue::from_str(account).unwrap());
    }
    let head = RequestHead {
        method: &method,
        uri: &uri,
        version: Version::HTTP_11,
        headers: &headers,
        authority: None,
        client: Client { ip: ip.parse().unwrap(), trusted_peer: false },
        scheme: model::Scheme::Http,
        listener: None,
        received: now,
        is_websocket_connect: false,
    };
    let mut facts = RequestFacts::new(head, SizeHint::with_exact(0), None);
    let (mut decisions, mut verdict) = (Decisions::new(), None);
    let judged = judge::judge(gateway, &mut facts, &mut Charging, &mut decisions, &mut verdict);
    match (judged, verdict) {
        (Err(Rejection::Banned { left_ns, .. }), _) => Banned(left_ns / SECOND),
        (Ok(_), Some(ChainVerdict::Admit(mut permit))) => {
            permit.keep_charges();
            Admitted
        }
        (Ok(_), None) => Admitted,
        _ => Rejected,
    }
}

fn config(text: &str) -> Config {
    let text = format!(
        "{text}\naccount: {{ from: header:x-account }}\naccess: {{ bypass: 10.8.0.0/16 }}\n\
         access_log: {{ output: none }}\n\
         locations: [{{ path: /, respond: {{ status: 200 }}, limits: hourly }}]\n"
    );
    config::parse(&text, "test").unwrap_or_else(|report| panic!("{report}")).config
}

const HOURLY: &str = "limits: { hourly: { rate: 2/h, burst: 2 } }";

fn gateway(text: &str) -> Gateway {
    Gateway::build(&config(text), None).unwrap()
}

fn next(before: &Gateway, config: &Config) -> Gateway {
    let gateway = Gateway::build(config, Some(before)).unwrap();
    gateway.apply_numbers(&Now::read_clock);
    gateway
}

fn key(gateway: &Gateway, ip: &str) -> KeyRef {
    let key = gateway.keys.hash_ip(ip.parse().unwrap());
    KeyRef { name: format!("ip={ip}"), key, shared: SharedKey([7; 16]) }
}

fn new_grant(gateway: &Gateway, ip: &str, numbers: &str, minutes: u64) -> NewGrant {
    NewGrant {
        limit: "hourly".to_owned(),
        key: key(gateway, ip),
        numbers: numbers.to_owned(),
        lasts: Duration::from_secs(60 * minutes),
        reason: "a demo".to_owned(),
        by: "ann".to_owned(),
    }
}

fn granted(before: &Gateway, ip: &str, numbers: &str, minutes: u64, now: Now) -> Gateway {
    let (config, ..) = before
        .config_with_grant(&new_grant(before, ip, numbers, minutes), now)
        .unwrap_or_else(|fault| panic!("{fault}"));
    next(before, &config)
}

/// Requests admitted until one is rejected.
fn admitted(gateway: &Gateway, ip: &str, now: Now) -> usize {
    (0..100).take_while(|_| ask(gateway, ip, "", now) == Admitted).count()
}

fn later(now: Now, minutes: u64) -> Now {
    Now(now.0 + minutes * MINUTE)
}

fn target(text: &str) -> BanTarget {
    text.parse().unwrap()
}

fn ban(gateway: &Gateway, text: &str, minutes: u64, now: Now) {
    let lasts = Duration::from_secs(60 * minutes);
    let new = NewBan { target: target(text), lasts, reason: "abuse".to_owned(), by: "ann".to_owned() };
    gateway.add_ban(new, now).unwrap();
}

#[test]
fn a_ban_of_an_operator_needs_no_section_and_overrules_bypass() {
    let (gateway, now) = (gateway(HOURLY), Now::read_clock());
    for ip in ["10.8.0.1", "192.0.2.7"] {
        assert_eq!(ask(&gateway, ip, "", now), Admitted);
        ban(&gateway, ip, 10, now);
        assert_eq!(ask(&gateway, ip, "", now), Banned(600));
    }
    ban(&gateway, "account=acme", 5, now);
    assert_eq!(ask(&gateway, "192.0.2.8", "acme", later(now, 1)), Banned(240));
    assert_eq!(ask(&gateway, "192.0.2.8", "other", later(now, 1)), Admitted);
    assert_eq!(ask(&gateway, "192.0.2.9", "acme", later(now, 5)), Admitted, "it has ended");
    assert_eq!(gateway.active_bans(later(now, 5)), 2);
    let after = next(&gateway, &config("limits: { hourly: 9/h }"));
    assert_eq!(ask(&after, "192.0.2.7", "", now), Banned(600), "a reload keeps it");
    after.lift_ban(&target("192.0.2.7"), now).unwrap();
    assert_eq!(ask(&gateway, "192.0.2.7", "", now), Admitted);
}

#[test]
fn bans_of_both_kinds_are_listed_and_lifted() {
    let bans = "bans: { after: 2/1m, for: 10m, max: 1h }\nserver: { ipv6_prefix: 64 }";
    let (gateway, now) = (gateway(&format!("{HOURLY}\n{bans}")), Now::read_clock());
    let strike = |ip: &str| {
        let bans = gateway.bans.as_ref().unwrap();
        let address: IpAddr = ip.parse().unwrap();
        let key = bans.deferred_key(&gateway.keys, gateway.clients.mask_address(address), None);
        let client =
            ClientIdentity { ip: address, network: gateway.clients.mask_network(address), account: None };
        bans.count_strike(&key, now);
        let StrikeOutcome::Started(started) = bans.count_strike(&key, now) else { panic!("no ban") };
        bans.name_ban(&key, &client, Now(now.0 + started.lasts_ns), started.repeats, now);
        started.lasts_ns / MINUTE
    };
    assert_eq!((strike("192.0.2.7"), strike("2001:db8::5")), (10, 10));
    ban(&gateway, "192.0.2.7", 20, now);
    ban(&gateway, "10.0.0.0/8", 20, now);
    let mut listed: Vec<String> =
        gateway.list_bans(now).iter().map(|ban| format!("{} {:?}", ban.target, ban.origin)).collect();
    listed.sort();
    let operator = format!("Operator {{ at: {now:?}, by: \"ann\", reason: \"abuse\" }}");
    assert_eq!(
        listed,
        [
            format!("10.0.0.0/8 {operator}"),
            format!("192.0.2.7 {operator}"),
            "192.0.2.7 Rejections { repeats: 0 }".to_owned(),
            "2001:db8::/64 Rejections { repeats: 0 }".to_owned(),
        ]
    );
    let lift = |text: &str| gateway.lift_ban(&target(text), now);
    let in_network = |text: &str| Err(UnbanFault::InNetwork(text.parse().unwrap()));
    assert_eq!(lift("10.1.1.1"), in_network("10.0.0.0/8"));
    assert_eq!(lift("2001:db8::5"), in_network("2001:db8::/64"));
    assert_eq!(lift("192.0.2.8"), Err(UnbanFault::NotBanned));
    let both = lift("192.0.2.7").unwrap();
    assert_eq!((both.operator, both.rejections), (Some(later(now, 20)), Some(later(now, 10))));
    assert_eq!(
        (ask(&gateway, "192.0.2.7", "", now), lift("192.0.2.7")),
        (Admitted, Err(UnbanFault::NotBanned))
    );
    assert_eq!(strike("192.0.2.7"), 10, "its next ban has the first length again");
    assert_eq!(lift("2001:db8::/64").unwrap().rejections, Some(later(now, 10)));
    assert_eq!(gateway.active_bans(now), 2);
}

#[test]
fn a_grant_gives_one_key_other_numbers_until_its_end() {
    let (first, now) = (gateway(HOURLY), Now::read_clock());
    assert_eq!((admitted(&first, "192.0.2.1", now), admitted(&first, "192.0.2.2", now)), (2, 2));
    let second = granted(&first, "192.0.2.1", "{ rate: 1/d, burst: 5 }", 10, now);
    assert_eq!(admitted(&second, "192.0.2.1", now), 5, "with counters of its own");
    assert_eq!((admitted(&second, "192.0.2.2", now), admitted(&second, "192.0.2.3", now)), (0, 2));
    let end = later(now, 10);
    assert_eq!(admitted(&second, "192.0.2.1", Now(end.0 - 1)), 0);
    assert_eq!(second.next_grant_end(), Some(end));
    assert_eq!(second.config_without_ended(Now(end.0 - 1)).map(drop), None);
    assert_eq!(admitted(&second, "192.0.2.1", Now(end.0 + 60 * MINUTE)), 2, "the ordinary ones recovered");
    let third = next(&second, &second.config_without_ended(end).unwrap());
    assert_eq!((third.list_grants(now), third.next_grant_end()), (vec![], None));
    assert_eq!(admitted(&third, "192.0.2.1", Now(end.0 + 60 * MINUTE)), 0, "they are the same");
}

#[test]
fn another_grant_and_its_end_leave_all_other_counters_alone() {
    let (first, now) = (gateway(HOURLY), Now::read_clock());
    let second = granted(&first, "192.0.2.1", "{ burst: 5 }", 10, now);
    assert_eq!((admitted(&second, "192.0.2.1", now), admitted(&second, "192.0.2.9", now)), (5, 2));
    let third = granted(&second, "192.0.2.2", "{ burst: 7 }", 20, now);
    assert_eq!((admitted(&third, "192.0.2.1", now), admitted(&third, "192.0.2.2", now)), (0, 7));
    let (config, active, replaced) =
        third.config_with_grant(&new_grant(&third, "192.0.2.1", "{ burst: 6 }", 5), now).unwrap();
    assert_eq!((active.until, replaced.unwrap().until), (later(now, 5), later(now, 10)));
    let fourth = next(&third, &config);
    assert_eq!(admitted(&fourth, "192.0.2.1", now), 1, "the used units stay used");
    let (config, ended) = fourth.config_without_grant("hourly", &key(&fourth, "192.0.2.1"), now).unwrap();
    let fifth = next(&fourth, &config);
    assert_eq!(
        (ended.key.as_str(), ended.reason.as_str(), ended.by.as_str()),
        ("ip=192.0.2.1", "a demo", "ann")
    );
    assert_eq!((admitted(&fifth, "192.0.2.1", now), admitted(&fifth, "192.0.2.2", now)), (2, 0));
    assert_eq!(admitted(&fourth, "192.0.2.2", now), 0, "old requests count in the same table");
    let reset = fifth.reset_key("hourly", &key(&fifth, "192.0.2.2"), None, now).unwrap();
    assert_eq!(
        (reset.reset.counters, admitted(&fifth, "192.0.2.2", now)),
        (1, 7),
        "a reset includes a grant"
    );
}

#[test]
fn grants_are_checked_and_bounded() {
    let (first, now) = (gateway(HOURLY), Now::read_clock());
    let fault = |grant: NewGrant| first.config_with_grant(&grant, now).map(drop).unwrap_err();
    let good = || new_grant(&first, "192.0.2.1", "{ burst: 5 }", 10);
    let (day, none) = (Duration::from_secs(86_400), Duration::ZERO);
    assert_eq!(fault(NewGrant { limit: "other".to_owned(), ..good() }), GrantFault::UnknownLimit);
    assert_eq!(fault(NewGrant { lasts: none, ..good() }), GrantFault::Length);
    assert_eq!(fault(NewGrant { lasts: 31 * day, ..good() }), GrantFault::Length);
    assert_eq!(fault(NewGrant { reason: "x".repeat(257), ..good() }), GrantFault::Text);
    let GrantFault::Numbers(problems) = fault(NewGrant { numbers: "{ burst: 0 }".to_owned(), ..good() })
    else {
        panic!("no problem")
    };
    assert_eq!(problems[0].field, "burst");
    let absent = first.config_without_grant("hourly", &key(&first, "192.0.2.1"), now).map(drop);
    assert_eq!(absent, Err(GrantFault::NotGranted));
    let mut full = config(HOURLY);
    let (with_one, ..) = first.config_with_grant(&good(), now).unwrap();
    let grant = with_one.limits[0].grants[0].clone();
    full.limits[0].grants = (0..100_u8)
        .map(|n| {
            let key = model::GrantKey { id: [n; 16], ..grant.key };
            model::GrantConfig { name: format!("grant {n}"), key, ..grant.clone() }
        })
        .collect();
    let full = next(&first, &full);
    let more = |now| full.config_with_grant(&good(), now).map(|(config, ..)| config.limits[0].grants.len());
    assert_eq!((more(now), more(later(now, 10))), (Err(GrantFault::TooManyOfLimit), Ok(1)));
}

#[test]
fn a_reload_keeps_grants_whose_limits_and_keys_stay() {
    let (first, now) = (gateway(HOURLY), Now::read_clock());
    let second = granted(&first, "192.0.2.1", "{ burst: 5 }", 10, now);
    let grants = |text: &str, now| {
        let mut next = config(text);
        second.carry_grants(&mut next, now);
        next.limits[0].grants.len()
    };
    assert_eq!(grants("limits: { hourly: { rate: 9/h, key: ip } }", now), 1, "other numbers");
    assert_eq!(grants(HOURLY, later(now, 10)), 0, "it has ended");
    assert_eq!(grants("limits: { hourly: { rate: 2/h, key: account } }", now), 0);
    assert_eq!(grants("limits: { hourly: { rate: 2/h, missing_key: reject } }", now), 0);
    assert_eq!(grants("limits: { hourly: { rate: 2/h, algorithm: sliding_log } }", now), 0);
    let other = "limits: { hourly: { rate: 2/h }, other: 1/s }";
    assert_eq!(grants(&other.replace("hourly", "new").replace("other", "hourly"), now), 0, "another order");
    let mut same = config(HOURLY);
    second.carry_grants(&mut same, now);
    let third = next(&second, &same);
    assert_eq!(admitted(&third, "192.0.2.1", now), 5);
}

/// A snapshot of `source`, read by another process.
fn snapshot_of(
    gateway: &Gateway,
    source: &(impl snapshot::SnapshotSource + ?Sized),
) -> snapshot::SnapshotReader {
    let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
    let written = file.try_clone().unwrap();
    snapshot::write_tables(written, gateway.keys.secret(), source, &mut Vec::new()).unwrap();
    snapshot::read_handed_over(file).unwrap()
}

#[test]
fn a_snapshot_keeps_bans_grants_and_the_counters_of_grants() {
    let (first, now) = (gateway(HOURLY), Now::read_clock());
    let second = granted(&first, "192.0.2.1", "{ rate: 1/d, burst: 5 }", 10, now);
    ban(&second, "192.0.2.66", 10, now);
    assert_eq!((0..3).filter(|_| ask(&second, "192.0.2.1", "", now) == Admitted).count(), 3);
    let mut found = snapshot_of(&second, &second);
    let saved = SavedOperatorState::from_snapshot(&mut found).unwrap();
    let mut other = gateway(HOURLY).with_operator_state(saved, Some(found.secret), now);
    other.restore_counters(found, &SavedNumbers::default());
    assert!(matches!(ask(&other, "192.0.2.66", "", now), Banned(599..=600)));
    assert_eq!(admitted(&other, "192.0.2.1", now), 2, "three of five were used");
    let grants = other.list_grants(now);
    assert_eq!(
        (grants.len(), grants[0].key.as_str(), grants[0].reason.as_str()),
        (1, "ip=192.0.2.1", "a demo")
    );
    assert!(grants[0].until.0.abs_diff(later(now, 10).0) < SECOND);
}

#[test]
fn a_garbled_state_is_ignored_in_part_and_never_stops_a_start() {
    let (first, now) = (gateway(HOURLY), Now::read_clock());
    let second = granted(&first, "192.0.2.1", "{ burst: 5 }", 10, now);
    ban(&second, "192.0.2.66", 10, now);
    let secret = Some(second.keys.secret());
    let state = serde_json::to_value(second.save_operator_state(now)).unwrap();
    let adopt = |state: serde_json::Value, secret| {
        let saved = serde_json::from_value(state).unwrap();
        let gateway = gateway(HOURLY).with_operator_state(saved, secret, now);
        (gateway.active_bans(now), gateway.list_grants(now).len())
    };
    assert_eq!(adopt(state.clone(), secret), (1, 1));
    assert_eq!(adopt(state.clone(), None), (1, 0), "the keys of grants are hashed with a lost secret");
    assert_eq!(adopt(state.clone(), Some([1; 16])), (1, 0));
    for (part, left) in [("bans", (0, 1)), ("grants", (1, 0))] {
        let mut garbled = state.clone();
        garbled[part] = serde_json::json!([{ "limit": 7 }]);
        assert_eq!(adopt(garbled, secret), left, "{part}");
    }
    assert_eq!(adopt(serde_json::json!({}), secret), (0, 0));
}

#[test]
fn a_grant_of_a_shared_limit_disturbs_no_other_rate() {
    let text = "state: { store: redis, redis: { url: redis://127.0.0.1:1 } }\nlimits: { hourly: 2/h }";
    let (first, now) = (gateway(text), Now::read_clock());
    let share = first.shared[0].as_ref().unwrap().local_share();
    let second = granted(&first, "192.0.2.1", "{ burst: 5 }", 10, now);
    let [one, two] = [&first, &second].map(|gateway| gateway.shared[0].clone().unwrap());
    assert_eq!((one.rules.len(), two.rules.len()), (1, 2));
    assert_eq!(one.rules[0], two.rules[0]);
    assert!(Arc::ptr_eq(&one.departures[0], &two.departures[0]));
    assert!(Arc::ptr_eq(&one.fleet, &two.fleet), "a grant is no other number");
    let units = sluicegate_limit::Units::new(key(&first, "192.0.2.9").key, 1);
    assert!(share.charge_units(0, &units, now).1.is_some());
    assert_eq!(two.local_share().peek_units(0, &units, now).remaining, 1, "the local share goes on");
    let lost = second.config_with_grant(&new_grant(&second, "192.0.2.2", "{ rate: 1/1500ns }", 1), now);
    assert!(matches!(lost, Err(GrantFault::Numbers(_))), "what Redis cannot count is refused");
}
