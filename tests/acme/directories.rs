//! Certificates that must not replace another, and directories that are not there.

use crate::directory::{Deed, Step};
use crate::site::{Site, orders, wait_failed};
use crate::support::*;

/// A chain of another authority, for this key or another one.
fn foreign(names: &[&str]) -> String {
    let authority = Authority::new();
    let own = authority.certify(names);
    std::fs::read_to_string(own.cert).expect("a certificate")
}

/// A certificate for another key is refused, and the one before it goes on serving.
#[test]
fn a_certificate_that_does_not_fit_replaces_none() {
    let site = Site::shared();
    let gateway = site.start("a.test");
    let first = site.wait_real("a.test");
    let strange = foreign(&["a.test", "b.test"]);
    site.directory.at(Step::Certificate, move |_| Deed::Answer(200, "", strange.clone()));
    gateway.change(&site.file("a.test, b.test"));
    wait_failed(&gateway);
    assert!(site.served("a.test") == first);
    site.wait_real("a.test");
    drop(gateway);
    let gateway = site.start("a.test, b.test");
    assert!(site.served("a.test") == first, "after a restart as well");
    assert_eq!(orders(&gateway), [0.0, 0.0]);
}

/// The answer to another order: the right key would be there, the names are not.
#[test]
fn a_certificate_without_the_names_replaces_none() {
    let site = Site::shared();
    // Pebble issues what the order names.
    site.directory.at(Step::Certificate, |_| Deed::Answer(200, "", foreign(&["z.test"])));
    let gateway = site.start("a.test");
    wait_failed(&gateway);
    site.served("a.test");
    gateway.admin_get("/readyz").expect(200);
    assert!(site.stored().iter().all(|(_, text)| !text.windows(6).any(|part| part == b"z.test")));
}

/// Nobody listens there, or somebody without the right certificate.
#[test]
fn a_directory_that_cannot_be_reached_is_told() {
    let site = Site::shared();
    let stranger = Authority::new();
    let (own, other) = (site.world.authority.file(), stranger.file());
    let trusting = |ca: &std::path::Path| {
        site.file("a.test").replace(&own.display().to_string(), &ca.display().to_string())
    };
    let gateway = Gateway::start(&trusting(&other));
    wait_failed(&gateway);
    assert_eq!(site.directory.asked().len(), 0, "no request to a stranger");
    site.served("a.test");
    drop(gateway);
    let _ = std::fs::remove_dir_all(site.storage());
    let nowhere = format!("https://{}/dir", free_addr());
    let gateway = Gateway::start(&site.file("a.test").replace(&site.directory.url(), &nowhere));
    wait_failed(&gateway);
    site.served("a.test");
    gateway.admin_get("/readyz").expect(200);
}

/// A directory that never answers holds no worker, and the program ends at once nevertheless.
#[test]
fn a_silent_directory_delays_no_end() {
    for step in [Step::Directory, Step::NewOrder, Step::Finalize] {
        let site = Site::shared();
        site.directory.at(step, |_| Deed::Silence);
        let mut gateway = site.start("a.test");
        site.directory.wait(step, 1);
        site.served("a.test");
        gateway.term();
        assert_eq!(gateway.wait_exit_within(ms(5000)), 0, "{step:?}");
    }
}
