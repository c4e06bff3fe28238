//! What operators changed outlives a reload, an upgrade and a restart.

use std::path::Path;
use std::time::Duration;

use sluicegate_admission::operator_bans::NewBan;
use sluicegate_base::clock::Now;
use sluicegate_base::wall_clock;
use sluicegate_config as config;
use sluicegate_limit::snapshot::write_snapshot;
use sluicegate_proxy::gateway::{Gateway as Library, KeyRef, NewGrant};
use sluicegate_store::SharedKey;

use crate::support::*;

/// A gateway with bans and a grant, and the file that keeps them.
struct Kept(Scratch);

impl Kept {
    fn new(lasts: Duration) -> Kept {
        let kept = Kept(Scratch::new());
        wall_clock::sync_clock();
        let now = Now::read_clock();
        let loaded =
            config::parse(&kept.yaml("2/h"), "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
        let before = Library::build(&loaded.config, None).expect("a gateway");
        for target in ["192.0.2.66", "198.51.100.0/24"] {
            let target = target.parse().expect("a target");
            let (reason, by) = ("abuse".to_owned(), "ann".to_owned());
            before.add_ban(NewBan { target, lasts, reason, by }, now).expect("a ban");
        }
        let key = before.keys.hash_ip([192, 0, 2, 1].into());
        let key = KeyRef { name: "ip=192.0.2.1".to_owned(), key, shared: SharedKey([0; 16]) };
        let (limit, numbers) = ("hourly".to_owned(), "{ rate: 5/h }".to_owned());
        let (reason, by) = ("a demo".to_owned(), "ann".to_owned());
        let grant = NewGrant { limit, key, numbers, lasts, reason, by };
        let (config, ..) = before.config_with_grant(&grant, now).expect("a grant");
        let gateway = Library::build(&config, Some(&before)).expect("a gateway");
        gateway.apply_numbers(&Now::read_clock);
        write_snapshot(&kept.file(), gateway.keys.secret(), &gateway, &mut Vec::new()).expect("a snapshot");
        kept
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("counters.bin")
    }

    fn yaml(&self, rate: &str) -> String {
        yaml(&self.file(), rate)
    }
}

fn yaml(file: &Path, rate: &str) -> String {
    format!(
        "state: {{ snapshot: {} }}\nserver: {{ trusted_proxies: 127.0.0.1 }}\n\
         limits: {{ hourly: {{ rate: {rate} }} }}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, limits: hourly }}]\n",
        file.display()
    )
}

fn ask(gateway: &Gateway, ip: &str) -> u16 {
    gateway.ask(&get("/").header("x-forwarded-for", ip)).status
}

/// Requests admitted until one is rejected.
fn admitted(gateway: &Gateway, ip: &str) -> usize {
    (0..20).take_while(|_| ask(gateway, ip) == 200).count()
}

#[track_caller]
fn assert_banned(gateway: &Gateway) {
    let response = gateway.ask(&get("/").header("x-forwarded-for", "192.0.2.66")).expect(429);
    assert!(response.text().contains("banned by an operator"), "{}", response.text());
    assert!(response.header("retry-after").is_some());
    assert_eq!(ask(gateway, "198.51.100.7"), 429);
    assert_eq!(gateway.metric("sluicegate_bans_active", &[]), 2.0);
}

#[test]
fn bans_and_grants_outlive_a_restart_a_reload_and_an_upgrade() {
    let kept = Kept::new(Duration::from_secs(3600));
    let mut gateway = Gateway::start(&kept.yaml("2/h"));
    assert_banned(&gateway);
    let lines = gateway.wait_log(2);
    assert!(
        lines.iter().all(|line| line["verdict"] == "ban" && line["retry_after"].is_number()),
        "{lines:?}"
    );
    assert_eq!(
        (admitted(&gateway, "192.0.2.2"), (0..3).filter(|_| ask(&gateway, "192.0.2.1") == 200).count()),
        (2, 3)
    );
    let changes = gateway.change(&kept.yaml("4/h"));
    assert!(changes.contains("limits: changed hourly"), "{changes}");
    assert_banned(&gateway);
    assert_eq!(
        (admitted(&gateway, "192.0.2.2"), ask(&gateway, "192.0.2.1")),
        (2, 200),
        "one of five is left"
    );
    let changes = gateway.change(&kept.yaml("4/h"));
    assert!(changes.contains("nothing changed"), "{changes}");
    let _successor = gateway.upgrade();
    assert_banned(&gateway);
    assert_eq!((admitted(&gateway, "192.0.2.1"), admitted(&gateway, "192.0.2.3")), (1, 4));
}

/// The secret of hashes follows from that of the counters, which the snapshot keeps.
#[test]
fn a_hashed_account_is_the_same_after_a_restart() {
    let dir = Scratch::new();
    let file = format!(
        "state: {{ snapshot: {} }}\naccount: {{ from: header:x-account }}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, limits: {{ key: account, rate: 1/h }} }}]\n",
        dir.path().join("counters.bin").display()
    );
    let hash = || {
        let mut gateway = Gateway::start(&file);
        (0..2).for_each(|_| drop(gateway.ask(&get("/").header("x-account", "acme"))));
        let name = gateway.wait_log(2)[0]["account"].to_string();
        gateway.term();
        assert_eq!(gateway.wait_exit(), 0);
        name
    };
    let first = hash();
    assert_eq!(hash(), first);
    std::fs::remove_file(dir.path().join("counters.bin")).expect("the snapshot");
    assert_ne!(hash(), first, "another process without it");
}

#[test]
fn an_ended_grant_is_removed_and_a_restart_forgets_what_has_ended() {
    let kept = Kept::new(Duration::from_secs(6));
    let mut gateway = Gateway::start(&kept.yaml("2/h"));
    assert_eq!((admitted(&gateway, "192.0.2.1"), ask(&gateway, "192.0.2.66")), (5, 429));
    gateway.wait_stderr("grants have ended");
    assert_eq!((admitted(&gateway, "192.0.2.1"), ask(&gateway, "192.0.2.66")), (2, 200));
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    let gateway = Gateway::start(&kept.yaml("2/h"));
    assert_eq!((admitted(&gateway, "192.0.2.1"), ask(&gateway, "198.51.100.7")), (0, 200));
    assert!(!gateway.stderr().contains("snapshot"), "{}", gateway.stderr());
}
