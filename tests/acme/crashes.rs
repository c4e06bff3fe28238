//! The program is killed at each step of an order, and started again.

use std::time::Duration;

use crate::directory::{Deed, Step};
use crate::several::the_lock_of_a_dead_gateway_expires;
use crate::site::{Site, kill, patiently};
use crate::support::*;

/// The steps of a first order, in their order.
const STEPS: [Step; 8] = [
    Step::Directory,
    Step::Nonce,
    Step::NewAccount,
    Step::NewOrder,
    Step::Authorization,
    Step::Challenge,
    Step::Finalize,
    Step::Certificate,
];

/// How long the lock of a dead process may hold the next order up.
const PATIENT: Duration = Duration::from_secs(50);

/// Side by side, because most wait for the end of a lock.
#[test]
fn an_order_may_be_killed_at_each_step() {
    let cases: [fn(); 4] = [
        a_loop_of_crashes_multiplies_nothing,
        a_killed_first_order_is_made_again,
        a_killed_later_order_loses_nothing,
        the_lock_of_a_dead_gateway_expires,
    ];
    at_once(cases, |case| case());
}

/// Killed before the directory is asked, and after it acted without the answer: the next start ends with a certificate.
fn a_killed_first_order_is_made_again() {
    let cases = STEPS.iter().flat_map(|&step| [(step, false), (step, true)]);
    at_once(cases, |(step, acted)| {
        let site = Site::shared();
        site.directory.at(step, move |_| if acted { Deed::Lose } else { Deed::Silence });
        let gateway = site.start("a.test");
        site.directory.wait(step, 1);
        std::thread::sleep(ms(100));
        kill(gateway);
        site.directory.forward();
        site.pass_time(60);
        let gateway = site.start("a.test");
        patiently(PATIENT, &format!("a certificate after {step:?}"), || site.is_real("a.test"));
        // A key that never reached the folder has an account that nobody knows.
        assert!(site.directory.count(Step::NewAccount) <= 2, "{step:?}");
        assert!(site.directory.count(Step::NewOrder) <= 3, "{step:?}");
        drop(gateway);
    });
}

/// Killed while a second certificate is ordered: the first one serves at once after the start, and the account stays.
fn a_killed_later_order_loses_nothing() {
    let steps = STEPS.iter().filter(|&&step| step != Step::NewAccount);
    at_once(steps, |&step| {
        let site = Site::shared();
        let gateway = site.start("a.test");
        let first = site.wait_real("a.test");
        let before = site.directory.count(step);
        site.directory.at(step, |_| Deed::Lose);
        gateway.change(&site.file("a.test, b.test"));
        site.directory.wait(step, before + 1);
        std::thread::sleep(ms(100));
        kill(gateway);
        let gateway = site.start("a.test");
        assert!(site.served("a.test") == first, "{step:?}: it serves from the first moment");
        drop(gateway);
        site.directory.forward();
        site.pass_time(60);
        let gateway = site.start("a.test, b.test");
        assert!(site.served("a.test") == first, "{step:?}");
        patiently(PATIENT, &format!("a certificate after {step:?}"), || site.is_real("b.test"));
        assert_eq!(site.directory.count(Step::NewAccount), 1, "{step:?}");
        drop(gateway);
    });
}

/// A loop of crashes makes neither an account nor an order each time.
fn a_loop_of_crashes_multiplies_nothing() {
    let site = Site::shared();
    site.directory.at(Step::Authorization, |_| Deed::Lose);
    for _ in 0..6 {
        let gateway = site.start("a.test");
        std::thread::sleep(ms(700));
        kill(gateway);
    }
    assert!(
        site.directory.count(Step::NewAccount) <= 2,
        "{} accounts",
        site.directory.count(Step::NewAccount)
    );
    assert!(site.directory.count(Step::NewOrder) <= 2, "{} orders", site.directory.count(Step::NewOrder));
}
