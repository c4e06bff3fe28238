//! Bans of operators on virtual time.

use super::*;

const START: Now = Now(1 << 60);
const MINUTE: u64 = 60_000_000_000;

fn target(text: &str) -> BanTarget {
    text.parse().unwrap()
}

fn new(text: &str, minutes: u64) -> NewBan {
    let lasts = Duration::from_secs(60 * minutes);
    NewBan { target: target(text), lasts, reason: format!("for {text}"), by: "ann".to_owned() }
}

fn at(minutes: u64) -> Now {
    Now(START.0 + minutes * MINUTE)
}

fn ban(bans: &OperatorBans, text: &str, minutes: u64, now: Now) {
    bans.add_ban(new(text, minutes), now).unwrap();
}

/// Minutes left of the ban of a client.
fn left(bans: &OperatorBans, ip: &str, account: &str, now: Now) -> Option<u64> {
    let account = (!account.is_empty()).then_some(account.as_bytes());
    bans.ban_left_ns(ip.parse().unwrap(), account, now).map(|ns| ns / MINUTE)
}

#[test]
fn addresses_networks_and_accounts_are_banned_until_their_ends() {
    let bans = OperatorBans::default();
    assert_eq!(left(&bans, "192.0.2.7", "acme", START), None);
    ban(&bans, "192.0.2.7", 10, START);
    ban(&bans, "10.0.0.0/8", 20, START);
    ban(&bans, "2001:db8::/64", 30, START);
    ban(&bans, "account=acme", 40, START);
    for (ip, account, minutes) in [
        ("192.0.2.7", "", Some(10)),
        ("192.0.2.8", "", None),
        ("10.1.2.3", "other", Some(20)),
        ("10.1.2.3", "acme", Some(40)),
        ("2001:db8::1", "", Some(30)),
        ("2001:db8:0:1::1", "", None),
        ("192.0.2.8", "acme", Some(40)),
        ("192.0.2.8", "acm", None),
    ] {
        assert_eq!(left(&bans, ip, account, START), minutes, "{ip} {account}");
    }
    assert_eq!(bans.active_count(START), 4);
    assert_eq!((left(&bans, "192.0.2.7", "", at(10)), left(&bans, "10.9.9.9", "", at(10))), (None, Some(10)));
    assert_eq!((bans.active_count(at(10)), bans.list_bans(at(10)).len()), (3, 3));
    assert_eq!((left(&bans, "10.9.9.9", "acme", at(40)), bans.active_count(at(40))), (None, 0));
}

#[test]
fn of_several_bans_the_one_that_ends_last_counts() {
    let bans = OperatorBans::default();
    ban(&bans, "10.1.2.3", 60, START);
    ban(&bans, "10.0.0.0/8", 20, START);
    ban(&bans, "10.1.0.0/16", 30, START);
    assert_eq!(
        (left(&bans, "10.1.2.3", "", START), left(&bans, "10.1.9.9", "", START)),
        (Some(60), Some(30))
    );
    let found = bans.find_ban("10.1.9.9".parse().unwrap(), None, START).unwrap();
    assert_eq!((found.reason.as_str(), found.by.as_str(), found.at), ("for 10.1.0.0/16", "ann", START));
    let (again, replaced) = bans.add_ban(new("10.1.2.3", 5), at(1)).unwrap();
    assert_eq!((again.until, replaced.unwrap().until), (at(6), at(60)), "a later ban replaces");
    assert_eq!((left(&bans, "10.1.2.3", "", at(1)), bans.active_count(at(1))), (Some(29), 3));
}

#[test]
fn exactly_what_was_banned_is_lifted() {
    let bans = OperatorBans::default();
    ban(&bans, "10.0.0.0/8", 20, START);
    ban(&bans, "10.1.0.0/16", 20, START);
    ban(&bans, "account=acme", 20, START);
    let lift = |text: &str| bans.remove_ban(&target(text), START).map(|ban| ban.target.to_string());
    let network = |text: &str| UnbanFault::InNetwork(text.parse().unwrap());
    assert_eq!(lift("10.1.2.3"), Err(network("10.1.0.0/16")));
    assert_eq!(lift("10.2.0.0/16"), Err(network("10.0.0.0/8")));
    assert_eq!(lift("0.0.0.0/0"), Err(UnbanFault::NotBanned));
    assert_eq!(lift("account=other"), Err(UnbanFault::NotBanned));
    assert_eq!(lift("10.1.5.0/16").as_deref(), Ok("10.1.0.0/16"));
    assert_eq!(
        (left(&bans, "10.1.2.3", "", START), lift("10.1.2.3")),
        (Some(20), Err(network("10.0.0.0/8")))
    );
    assert!(lift("10.0.0.0/8").is_ok() && left(&bans, "10.1.2.3", "", START).is_none());
    assert!(lift("account=acme").is_ok() && bans.active_count(START) == 0);
    assert_eq!(lift("account=acme"), Err(UnbanFault::NotBanned));
    ban(&bans, "10.0.0.0/8", 20, START);
    let late = bans.remove_ban(&target("10.1.2.3"), at(20)).map(drop);
    assert_eq!(late, Err(UnbanFault::NotBanned), "an ended network is named no more");
}

#[test]
fn bans_are_bounded() {
    let bans = OperatorBans::default();
    let address = |n: usize| format!("10.0.{}.{}", n / 256, n % 256);
    let saved = (0..BANS_MAX + 5).map(|n| OperatorBan {
        target: target(&address(n)),
        at: START,
        until: at(10),
        reason: "é".repeat(TEXT_MAX),
        by: String::new(),
    });
    bans.restore_bans(saved.collect(), START);
    assert_eq!(bans.active_count(START), BANS_MAX);
    assert!(bans.list_bans(START).iter().all(|ban| ban.reason.len() == TEXT_MAX));
    assert_eq!(bans.add_ban(new("192.0.2.1", 1), START).map(drop), Err(BanFault::TooMany));
    ban(&bans, &address(1), 20, START);
    ban(&bans, "192.0.2.1", 1, at(10));
    assert_eq!(bans.active_count(at(10)), 2, "ended bans make room");
    for (fault, wrong) in [
        (BanFault::Length, new("192.0.2.1", 0)),
        (BanFault::Length, new("192.0.2.1", 366 * 24 * 60 + 1)),
        (BanFault::Text, NewBan { reason: "x".repeat(257), ..new("192.0.2.1", 1) }),
        (BanFault::Text, NewBan { by: "x".repeat(257), ..new("192.0.2.1", 1) }),
    ] {
        assert_eq!(bans.add_ban(wrong, START).map(drop), Err(fault));
    }
}

#[test]
fn bans_move_to_another_process_until_they_end() {
    let bans = OperatorBans::default();
    ban(&bans, "10.0.0.0/8", 20, START);
    ban(&bans, "account=acme", 10, START);
    let text = serde_json::to_string(&bans.save_bans(at(5))).unwrap();
    let other = OperatorBans::default();
    other.restore_bans(serde_json::from_str(&text).unwrap(), at(10));
    assert_eq!(left(&other, "10.1.1.1", "acme", at(10)), Some(10));
    let only = other.list_bans(at(10));
    assert_eq!((only.len(), only[0].reason.as_str(), only[0].at), (1, "for 10.0.0.0/8", START));
}
