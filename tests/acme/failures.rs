//! Orders that fail: what is told, what goes on, and when the next one is made.

use crate::directory::{Deed, Step, problem};
use crate::site::{Site, next_in, orders, wait_failed};
use crate::support::*;

/// The wait is kept in `storage`: a gateway that restarts in a loop makes no order each time.
#[test]
fn a_failed_authorisation_is_told_and_its_wait_outlives_restarts() {
    let site = Site::new();
    site.world.names.lose(true);
    let gateway = site.start("a.test");
    wait_failed(&gateway);
    let next = next_in(&gateway).expect("a moment");
    assert!((45..=66).contains(&next), "the next order in {next} s");
    let text = gateway.admin_get("/status").expect(200).text();
    assert!(text.contains("a.test") && text.contains("resolv"), "the reason of the directory: {text}");
    gateway.wait_stderr("resolv");
    gateway.admin_get("/readyz").expect(200);
    let made = site.directory.count(Step::NewOrder);
    site.world.names.lose(false);
    let mut gateway = gateway;
    for _ in 0..3 {
        drop(gateway);
        gateway = site.start("a.test");
        std::thread::sleep(ms(400));
        assert_eq!(site.directory.count(Step::NewOrder), made, "no order before its time");
        let again = next_in(&gateway).expect("a moment");
        assert!(again <= next && again >= next - 15, "{again} s of {next} s");
        let text = gateway.admin_get("/status").expect(200).text();
        assert!(text.contains("resolv"), "the reason is kept, too: {text}");
    }
    drop(gateway);
    site.pass_time(next + 1);
    gateway = site.start("a.test");
    site.wait_real("a.test");
    assert_eq!(orders(&gateway), [1.0, 0.0]);
}

/// The directory's own wait counts where it is longer.
#[test]
fn retry_after_counts() {
    let site = Site::shared();
    let limited = || problem("rateLimited", "too many certificates for a.test");
    site.directory.at(Step::NewOrder, move |_| Deed::Answer(429, "Retry-After: 7200", limited()));
    let gateway = site.start("a.test");
    wait_failed(&gateway);
    let next = next_in(&gateway).expect("a moment");
    assert!((7100..=7600).contains(&next), "the next order in {next} s");
    let text = gateway.admin_get("/status").expect(200).text();
    assert!(text.contains("too many certificates"), "{text}");
    gateway.wait_stderr("too many certificates");
}

/// An absurd wait of the directory does not end renewals for ever.
#[test]
fn an_absurd_retry_after_is_bounded() {
    let site = Site::shared();
    let limited = || problem("rateLimited", "later");
    site.directory.at(Step::NewOrder, move |_| Deed::Answer(503, "Retry-After: 99999999999", limited()));
    let gateway = site.start("a.test");
    wait_failed(&gateway);
    let next = next_in(&gateway).expect("a moment");
    assert!((45..=32 * 86_400).contains(&next), "the next order in {next} s");
}

/// Side by side, because each waits for an order or two.
#[test]
fn orders_outlast_what_goes_wrong() {
    let cases: [fn(); 4] = [
        validation_may_take_its_time,
        a_slow_directory_is_waited_for,
        an_unknown_account_is_made_anew,
        a_revoked_account_is_made_anew_once,
    ];
    at_once(cases, |case| case());
}

/// Authorisations and orders that take their time are polled, not given up.
fn validation_may_take_its_time() {
    let site = Site::shared();
    site.directory.script(|asked| match asked.step {
        Step::Authorization if (1..4).contains(&asked.before) => {
            Deed::Edit(|found| found["status"] = "pending".into())
        }
        Step::Order if asked.before < 2 => Deed::Edit(|found| found["status"] = "processing".into()),
        Step::Finalize => Deed::Edit(|found| found["status"] = "processing".into()),
        _ => Deed::Forward,
    });
    let gateway = site.start("a.test");
    site.wait_real("a.test");
    assert_eq!(orders(&gateway), [1.0, 0.0]);
    let polls = site.directory.count(Step::Authorization) + site.directory.count(Step::Order);
    assert!(polls < 60, "{polls} polls");
}

/// The one request that a step of the directory answers late or loses is made again or told; the program goes on.
fn a_slow_directory_is_waited_for() {
    let site = Site::shared();
    site.directory.script(|asked| match asked.step {
        Step::Directory | Step::NewOrder | Step::Certificate => Deed::Late(ms(1500)),
        _ => Deed::Forward,
    });
    let gateway = site.start("a.test");
    site.wait_real("a.test");
    assert_eq!(orders(&gateway), [1.0, 0.0]);
}

/// An account that the directory does not know is made anew, with the same certificate served meanwhile.
fn an_unknown_account_is_made_anew() {
    let site = Site::new();
    let gateway = site.start("a.test");
    let first = site.wait_real("a.test");
    site.forget();
    gateway.change(&site.file("a.test, b.test"));
    assert!(site.served("a.test") == first, "the old one serves meanwhile");
    let second = site.wait_real("b.test");
    assert!(second != first && site.directory.count(Step::NewAccount) == 2);
    assert_eq!(orders(&gateway), [2.0, 0.0]);
}

/// A revoked account is made anew once: if the next one is refused, too, the order fails.
fn a_revoked_account_is_made_anew_once() {
    at_once([false, true], |lasting| {
        let site = Site::shared();
        let gateway = site.start("a.test");
        site.wait_real("a.test");
        let old = site.directory.asked().into_iter().rfind(|asked| asked.step == Step::NewOrder);
        let old = old.expect("an order").protected()["kid"].clone();
        site.directory.at(Step::NewOrder, move |asked| match lasting || asked.protected()["kid"] == old {
            true => Deed::Answer(403, "", problem("unauthorized", "account has been deactivated")),
            false => Deed::Forward,
        });
        gateway.change(&site.file("a.test, b.test"));
        if lasting {
            wait_failed(&gateway);
            gateway.wait_stderr("deactivated");
            std::thread::sleep(ms(500));
            site.wait_real("a.test");
        } else {
            site.wait_real("b.test");
        }
        assert_eq!(site.directory.count(Step::NewAccount), 2);
    });
}

/// A directory that answers nonsense, refuses or is silent: the gateway serves, tells it, and asks no faster for it.
#[test]
fn whatever_the_directory_answers_the_gateway_serves() {
    let garbage = |step: Step, status: u16, body: &'static str| {
        (
            step,
            Box::new(move || Deed::Answer(status, "", body.to_owned()))
                as Box<dyn Fn() -> Deed + Send + Sync>,
        )
    };
    let cases = vec![
        garbage(Step::Directory, 200, "<!DOCTYPE html><p>login"),
        garbage(Step::Directory, 200, "{}"),
        garbage(Step::Directory, 404, ""),
        garbage(Step::Nonce, 500, ""),
        garbage(Step::NewAccount, 200, "[]"),
        garbage(Step::NewOrder, 201, "{\"status\":\"pending\"}"),
        garbage(Step::NewOrder, 500, "oops"),
        garbage(Step::Authorization, 200, "{\"identifier\":5}"),
        garbage(Step::Challenge, 400, "{}"),
        garbage(Step::Finalize, 403, "{\"type\":\"urn:ietf:params:acme:error:badCSR\",\"detail\":\"no\"}"),
        garbage(Step::Certificate, 200, "not a certificate"),
        garbage(Step::Certificate, 200, ""),
    ];
    at_once(cases, |(step, deed)| {
        let site = Site::shared();
        site.directory.at(step, move |_| deed());
        let gateway = site.start("a.test");
        wait_failed(&gateway);
        site.served("a.test");
        gateway.admin_get("/readyz").expect(200);
        let asked = site.directory.asked().len();
        assert!(asked < 40, "{step:?}: {asked} requests for one order");
        std::thread::sleep(ms(1500));
        assert_eq!(site.directory.asked().len(), asked, "{step:?}: it waits");
        let next = next_in(&gateway).expect("a moment");
        assert!((40..=66).contains(&next), "{step:?}: the next order in {next} s");
    });
}
