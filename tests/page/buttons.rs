//! Each button does what its confirmation says, and nothing before it.

use thirtyfour::Key;

use crate::browser::{Browser, button};
use crate::support::*;

const CLIENT: &str = "192.0.2.1";

/// Clients are told apart by X-Forwarded-For, and may send two requests an hour.
fn start_gateway(upstreams: &str) -> Gateway {
    Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.1 }}\n\
         limits: {{ hourly: {{ rate: 2/h }} }}\n\
         upstreams: {{ app: {upstreams} }}\n\
         locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: hourly }}\n  \
         - {{ path: /app, upstream: app }}\n"
    ))
}

fn ask(gateway: &Gateway, ip: &str) -> u16 {
    gateway.ask(&get("/").header("x-forwarded-for", ip)).status
}

/// Sends requests until one is refused; returns how many were admitted.
fn use_up(gateway: &Gateway) -> usize {
    (0..50).take_while(|_| ask(gateway, CLIENT) == 200).count()
}

fn key_button(action: &str) -> String {
    format!("{action} hourly ip={CLIENT}")
}

#[test]
fn reset_admits_the_next_request() {
    let gateway = start_gateway("[127.0.0.1:1]");
    assert_eq!(use_up(&gateway), 2);
    let browser = Browser::open_page(&gateway);
    browser.click_button(&key_button("reset"));
    let says = browser.wait_dialog();
    assert!(says.contains("Reset ip=192.0.2.1") && says.contains("forgets what this key has used"), "{says}");
    assert_eq!(ask(&gateway, CLIENT), 429, "nothing happens before the confirmation");
    // Escape and Cancel change nothing.
    browser.press(Key::Escape);
    eventually("the end of the dialog", || !browser.dialog_is_open());
    browser.click_button(&key_button("reset"));
    browser.wait_dialog();
    browser.click("#cancel");
    eventually("the end of the dialog", || !browser.dialog_is_open());
    assert_eq!(ask(&gateway, CLIENT), 429);
    browser.click_button(&key_button("reset"));
    browser.wait_dialog();
    browser.fill("reason", "a false alarm");
    browser.confirm("ip=192.0.2.1 was reset");
    assert_eq!(ask(&gateway, CLIENT), 200);
    assert_eq!(use_up(&gateway), 1);
    gateway.wait_stderr("a false alarm");
    assert_eq!(browser.console_errors(), [""; 0]);
}

#[test]
fn a_grant_counts_by_other_numbers_until_its_end() {
    let gateway = start_gateway("[127.0.0.1:1]");
    assert_eq!(use_up(&gateway), 2);
    let browser = Browser::open_page(&gateway);
    browser.click_button(&key_button("grant"));
    assert!(browser.wait_dialog().contains("by these numbers until the grant ends"));
    browser.fill("rate", "9/h");
    browser.fill("burst", "7");
    browser.fill("for", "30m");
    browser.confirm("ip=192.0.2.1 has other numbers now");
    assert_eq!(use_up(&gateway), 7);
    browser.wait_text("#keys", "9 requests per hour, burst 7, 29 min");
    browser.click_button(&key_button("end"));
    assert!(browser.wait_dialog().contains("by its ordinary counter again"));
    browser.confirm("ordinary numbers");
    assert_eq!(use_up(&gateway), 0);
    eventually("the end of its button", || {
        let script = format!("return document.querySelector('{}') === null", button(&key_button("end")));
        browser.run(&script) == true
    });
}

/// A mistake is told under its field, and what was typed stays.
#[test]
fn a_dialog_stays_open_until_it_is_done() {
    let gateway = start_gateway("[127.0.0.1:1]");
    assert_eq!(use_up(&gateway), 2);
    let browser = Browser::open_page(&gateway);
    browser.click_button(&key_button("grant"));
    browser.wait_dialog();
    browser.click("#confirm");
    browser.wait_text("#told-0", "Please fill this in.");
    browser.fill("rate", "many");
    browser.fill("reason", "a guess");
    browser.click("#confirm");
    browser.wait_text("#told-0", "many");
    let told = browser.text("#dialog");
    assert!(!told.contains("post e.g.") && !told.contains('`') && !told.contains('{'), "{told}");
    browser.fill("rate", "9/h");
    browser.fill("for", "an hour");
    browser.click("#confirm");
    browser.wait_text("#told-2", "an hour");
    assert_eq!(browser.text("#told-0"), "");
    assert_eq!(browser.run("return document.activeElement.name"), "for");
    assert!(browser.dialog_is_open() && browser.text("#notice").is_empty());
    browser.fill("for", "10m");
    browser.confirm("has other numbers now");
    assert!(!browser.dialog_is_open());
    gateway.wait_stderr("a guess");
    // A sentence about no field stands at the end.
    browser.click("#ban");
    browser.wait_dialog();
    browser.fill("ip", "0.0.0.0/0");
    browser.click("#confirm");
    eventually("the refusal", || !browser.text("#dialog .fields .bad, #refusal:not([hidden])").is_empty());
    // The report covers nothing.
    let covered = "const box = document.getElementById('notice').getBoundingClientRect();
                   return document.getElementById('notice').contains(document.elementFromPoint(box.x + 1, box.y + 1))
                     && getComputedStyle(document.getElementById('notice')).position === 'static'";
    browser.click("#cancel");
    eventually("the end of the dialog", || !browser.dialog_is_open());
    assert_eq!(browser.run(covered), true);
}

#[test]
fn a_ban_turns_the_client_away_until_unban() {
    let gateway = start_gateway("[127.0.0.1:1]");
    assert_eq!(use_up(&gateway), 2);
    let browser = Browser::open_page(&gateway);
    browser.click_button(&key_button("ban"));
    assert!(browser.wait_dialog().contains("turned away until the ban ends"));
    browser.fill("for", "1h");
    browser.fill("reason", "scraping");
    browser.confirm("192.0.2.1 is banned");
    let banned = |ip: &str| {
        let response = gateway.ask(&get("/").header("x-forwarded-for", ip));
        response.status == 429 && response.text().contains("banned")
    };
    assert!(banned(CLIENT) && !banned("192.0.2.2"));
    browser.wait_text("#bans", "scraping");
    browser.wait_text("#bans", "59 min");
    browser.click_button("unban 192.0.2.1");
    assert!(browser.wait_dialog().contains("judged again at once"));
    browser.confirm("192.0.2.1 is no longer banned");
    assert!(!banned(CLIENT));
    browser.wait_text("#bans", "Nobody is banned");
    // A network, by the button above the list.
    browser.click("#ban");
    browser.wait_dialog();
    browser.fill("ip", "198.51.100.0/24");
    browser.confirm("198.51.100.0/24 is banned");
    assert!(banned("198.51.100.9"));
    browser.click_button("unban 198.51.100.0/24");
    browser.wait_dialog();
    browser.confirm("no longer banned");
    assert!(!banned("198.51.100.9"));
    assert_eq!(browser.console_errors(), [""; 0]);
}

#[test]
fn a_drained_server_gets_no_requests() {
    let (one, two) = (Upstream::named("one"), Upstream::named("two"));
    let gateway = start_gateway(&format!("[\"{}\", \"{}\"]", one.addr(), two.addr()));
    let answers = || (0..8).map(|_| gateway.get("/app").text()).collect::<Vec<_>>();
    let both = |answers: Vec<String>| ["one", "two"].iter().all(|name| answers.iter().any(|one| one == name));
    eventually("answers of both servers", || both(answers()));
    let browser = Browser::open_page(&gateway);
    let drain = |server: &Upstream| format!("drain app{}", server.addr());
    browser.click_button(&drain(&one));
    let says = browser.wait_dialog();
    assert!(says.contains("gets no new requests") && !says.contains("503"), "{says}");
    browser.confirm("drains");
    assert_eq!(answers(), ["two"; 8]);
    browser.wait_text("#servers", "draining");
    browser.wait_text(&button(&drain(&one)), "Undrain");
    // The last one is drained only after a warning.
    browser.click_button(&drain(&two));
    assert!(browser.wait_dialog().contains("No other server of app is up"));
    browser.confirm("drains");
    gateway.get("/app").expect(503);
    browser.wait_text(&button(&drain(&two)), "Undrain");
    for server in [&one, &two] {
        browser.click_button(&drain(server));
        browser.wait_dialog();
        browser.confirm("gets requests again");
    }
    eventually("answers of both servers", || both(answers()));
    assert_eq!(browser.console_errors(), [""; 0]);
}
