//! Renewal: at a third of the life, in the directory's window, and when the list of domains changes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::directory::{Deed, Step};
use crate::pebble::Options;
use crate::site::{HELLO, Site, any, has_failed, orders, patiently, status};
use crate::support::*;

/// A site whose certificates live this long, in seconds.
fn living(life: u32) -> Site {
    Site::with(Options { life, ..Options::default() })
}

/// A moment of RFC 3339, so many seconds from now.
fn moment(seconds: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    let at = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs((now + seconds) as u64);
    let (date, time) = (at.date(), at.time());
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The answer of `renewalInfo` (RFC 9773).
fn window(from: i64, to: i64) -> String {
    json!({ "suggestedWindow": { "start": moment(from), "end": moment(to) } }).to_string()
}

/// Side by side, because most wait for the end of a life.
#[test]
fn certificates_are_renewed() {
    let cases: [fn(); 7] = [
        a_changed_list_of_domains_orders_anew,
        the_last_list_wins,
        a_reload_adds_and_removes_the_field,
        a_third_of_the_life_is_left,
        the_window_of_the_directory_counts,
        absurd_windows_are_ignored,
        a_failed_renewal_takes_no_certificate_away,
    ];
    at_once(cases, |case| case());
}

/// Two thirds of a life pass, then a new key serves, without a reload and without an end for open connections.
fn a_third_of_the_life_is_left() {
    let site = living(30);
    let gateway = site.start("a.test");
    let first = site.wait_real("a.test");
    let began = Instant::now();
    let mut early = Client::over_tls(any(site.secure, "a.test", &[b"http/1.1"]).expect("a handshake"));
    let generation = status(&gateway)["generation"].clone();
    site.wait_other("a.test", &first, Duration::from_secs(45));
    let after = began.elapsed();
    assert!((ms(17_000)..=ms(29_000)).contains(&after), "renewed after {after:?}");
    site.wait_real("a.test");
    early.ask(&get("/").host("a.test")).expect(200);
    assert_eq!(status(&gateway)["generation"], generation, "nothing was reloaded");
    assert_eq!(site.directory.count(Step::NewAccount), 1);
    assert_eq!(orders(&gateway)[1], 0.0);
    let keys = |certificate: &[u8]| {
        // A point of the curve follows its bit string of 66 bytes.
        let at = certificate.windows(4).position(|part| part == [0x03, 0x42, 0x00, 0x04]);
        at.map(|at| certificate[at..at + 68].to_vec()).expect("a key of P-256")
    };
    let second = site.served("a.test");
    assert!(keys(&first) != keys(&second), "a new key each time");
}

/// In the window of a directory that has one, and a second window does not make a loop.
fn the_window_of_the_directory_counts() {
    let site = living(120);
    site.directory.renewal_info(200, &window(5, 8));
    let gateway = site.start("a.test");
    let first = site.wait_real("a.test");
    site.directory.wait_within(Step::RenewalInfo, 1, Duration::from_secs(20));
    site.wait_other("a.test", &first, Duration::from_secs(40));
    site.wait_real("a.test");
    let info = site.directory.asked().into_iter().find(|asked| asked.step == Step::RenewalInfo);
    let (authority, serial) = info.as_ref().and_then(|info| info.target.split_once('.')).expect("its name");
    assert!(authority.len() > 20 && serial.len() > 8, "authority and serial: {info:?}");
    std::thread::sleep(ms(3000));
    assert_eq!(orders(&gateway), [2.0, 0.0]);
}

/// Windows that make no sense change nothing: a third of the life is left.
fn absurd_windows_are_ignored() {
    let cases = [
        (200, window(20, 10)),
        (200, window(40 * 365 * 86_400, 41 * 365 * 86_400)),
        (200, json!({ "suggestedWindow": { "start": "yesterday", "end": 5 } }).to_string()),
        (200, "<html>".to_owned()),
        (500, String::new()),
        (404, String::new()),
    ];
    let all = Site::with(Options { life: 15, believes: true, ..Options::default() });
    at_once(cases, |(code, text)| {
        let site = all.beside();
        site.directory.renewal_info(code, &text);
        let gateway = site.start("a.test");
        let first = site.wait_real("a.test");
        let began = Instant::now();
        std::thread::sleep(ms(3000));
        assert!(site.served("a.test") == first, "{code} {text}: too early");
        site.wait_other("a.test", &first, Duration::from_secs(40));
        assert!(began.elapsed() > ms(7_000), "{code} {text}");
        site.wait_real("a.test");
        assert!(orders(&gateway)[1] == 0.0, "{code} {text}");
        let asked = site.directory.count(Step::RenewalInfo);
        assert!(asked < 12, "{asked} questions");
    });
}

/// A failed renewal keeps the certificate while it is valid.
fn a_failed_renewal_takes_no_certificate_away() {
    let site = living(36);
    let gateway = site.start("a.test");
    let mut before = site.wait_real("a.test");
    site.world.names.lose(true);
    // Pebble rarely takes the authorization that it has, although it is told not to: then the next renewal fails.
    patiently(Duration::from_secs(75), "a failed renewal", || {
        let served = site.served("a.test");
        let failed = has_failed(&gateway);
        before = if failed { before.clone() } else { served };
        failed
    });
    assert!(site.served("a.test") == before && site.is_real("a.test"));
    gateway.wait_stderr("resolv");
}

/// Another list orders anew, and the old certificate serves meanwhile; an equal list in another order does not.
fn a_changed_list_of_domains_orders_anew() {
    let site = Site::shared();
    let gateway = site.start("a.test, b.test");
    let first = site.wait_real("a.test");
    gateway.change(&site.file("b.test, a.test"));
    std::thread::sleep(ms(700));
    assert!(site.served("a.test") == first && site.directory.count(Step::NewOrder) == 1);
    let gate = Gate::default();
    let opened = gate.clone();
    site.directory.at(Step::NewOrder, move |_| Deed::Hold(opened.clone()));
    gateway.change(&site.file("a.test, c.test"));
    site.directory.wait(Step::NewOrder, 2);
    assert!(site.served("a.test") == first && site.is_real("a.test"));
    gate.open();
    let second = site.wait_real("c.test");
    assert!(second != first && site.served("a.test") == second);
    assert!(!site.is_real("b.test"), "it is on the list no more");
    // A shorter list is another one, too.
    gateway.change(&site.file("a.test"));
    site.wait_other("a.test", &second, Duration::from_secs(40));
    assert!(site.is_real("a.test") && !site.is_real("c.test"));
    assert_eq!(orders(&gateway), [3.0, 0.0]);
}

/// A list that changes while an order runs ends with a certificate for the last list.
fn the_last_list_wins() {
    let site = Site::shared();
    let gateway = site.start("a.test");
    site.wait_real("a.test");
    site.directory.at(Step::NewOrder, |_| Deed::Late(ms(400)));
    for domains in ["a.test, b.test", "a.test, c.test", "a.test, d.test"] {
        gateway.change(&site.file(domains));
        std::thread::sleep(ms(150));
    }
    let last = site.wait_real("d.test");
    std::thread::sleep(ms(1500));
    assert!(site.served("a.test") == last && !site.is_real("b.test"));
    assert!(orders(&gateway)[1] <= 1.0, "an order that was given up may count as failed");
}

/// The field that is removed, and added by a reload.
fn a_reload_adds_and_removes_the_field() {
    let site = Site::shared();
    site.world.authority.issue("own", &["a.test"]);
    let own = site.listening(&format!("{{ {} }}", site.world.authority.entry("own")), HELLO);
    let gateway = Gateway::start(&own);
    assert!(site.served("a.test") == site.world.authority.certificate("own"));
    gateway.change(&site.file("a.test"));
    let real = site.wait_real("a.test");
    gateway.change(&own);
    eventually("the file's certificate", || site.served("a.test") == site.world.authority.certificate("own"));
    gateway.change(&site.file("a.test"));
    eventually("the certificate of before", || site.served("a.test") == real);
    assert_eq!(site.directory.count(Step::NewOrder), 1);
}
