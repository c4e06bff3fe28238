//! Sets of networks, access lists and bans in valid files.

use sluicegate_config as config;
use sluicegate_model::*;

use super::values::{limit, read, seconds};

#[test]
fn sets_and_access() {
    let config = read("access");
    let nets = |networks: &[ipnet::IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>();
    let sets: Vec<_> = config.ip_sets.iter().map(|set| (set.name.as_str(), nets(&set.networks))).collect();
    assert_eq!(sets[0], ("one", vec!["10.0.0.0/8".to_owned()]));
    assert_eq!(sets[1].1, ["10.1.0.0/16", "::ffff:10.0.0.0/104"]);
    assert_eq!(sets[2].1, ["192.0.2.0/24", "2001:db8::/32"]);
    assert_eq!(sets[3].1, ["192.0.2.0/24", "2001:db8::/32", "203.0.113.7/32"]);
    let allow = config.access.allow.as_ref().expect("a list");
    assert_eq!((&allow.sets[..], nets(&allow.written)), (&[0, 2, 3][..], vec!["127.0.0.1/32".to_owned()]));
    assert!(config.access.deny.sets == [1] && config.access.bypass.is_empty());
    let bypass = &limit(&config, "x").bypass;
    assert_eq!((&bypass.sets[..], nets(&bypass.written)), (&[0][..], vec!["192.0.2.7/32".to_owned()]));
    let [inherited, any, own, none] = [0, 1, 2, 3].map(|position| &config.locations[position].access);
    assert_eq!(*inherited, config.access);
    assert_eq!(**any, AccessConfig { allow: None, ..AccessConfig::clone(&config.access) });
    assert!(own.allow == config.access.allow && own.deny.is_empty() && own.bypass.sets == [2]);
    assert_eq!(**none, AccessConfig::default());
}

#[test]
fn bans() {
    let bans = read("bans").bans.expect("on");
    assert_eq!((bans.after.units.get(), bans.after.period, bans.key), (20, seconds(60), BanKey::Account));
    assert_eq!((bans.first, bans.longest), (seconds(172_800), seconds(172_800)), "max is no less than for");
    let read = |bans: &str| {
        let text = format!("bans: {bans}\nlocations: [{{ path: /, upstream: demo }}]\n");
        config::parse(&text, "gateway.yaml").unwrap_or_else(|report| panic!("{report}")).config.bans
    };
    let plain = read("{ after: 5/1h }").expect("on");
    assert_eq!((plain.first, plain.longest, plain.key), (seconds(600), seconds(86_400), BanKey::Ip));
    assert_eq!(plain.strikes, StrikeRules { rejections: true, statuses: StatusRanges::default() });
    let strikes = read("{ after: 5/1h, strikes: [404, reject, 5xx] }").expect("on").strikes;
    assert!(strikes.rejections && strikes.statuses == StatusRanges(vec![(404, 404), (500, 599)]));
    let strikes = read("{ after: 5/1h, strikes: 400-403 }").expect("on").strikes;
    assert!(!strikes.rejections && strikes.statuses == StatusRanges(vec![(400, 403)]));
    for off in ["none", "{}", "{ after: none }", "{ for: 5m }"] {
        assert!(read(off).is_none(), "{off}");
    }
}
