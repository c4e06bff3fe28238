//! The sentence on top says what is wrong and whom it hits.

use crate::browser::Browser;
use crate::support::*;

/// Sends requests of one client until the page says `text`.
fn press_until(gateway: &Gateway, browser: &Browser, ask: &Ask, text: &str) {
    let mut client = gateway.client();
    eventually(text, || {
        (0..40).for_each(|_| drop(client.ask(ask)));
        browser.text("#verdict").contains(text)
    });
}

#[test]
fn a_healthy_gateway_is_fine() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let browser = Browser::open_page(&gateway);
    browser.wait_text("#sentence", "Fine: no requests now");
    press_until(&gateway, &browser, &get("/"), "servers answer in ");
    assert_eq!(browser.run("return document.getElementById('verdict').className"), "verdict fine");
    assert_eq!(browser.run("return document.title"), "Sluicegate");
}

#[test]
fn a_flood_by_one_key_is_named() {
    let gateway = Gateway::start(
        "server: { trusted_proxies: 127.0.0.1 }\nlimits: { per-ip: { rate: 5/s, burst: 5 } }\n\
         locations: [{ path: /, respond: { body: ok }, limits: per-ip }]\n",
    );
    let browser = Browser::open_page(&gateway);
    let ask = get("/").header("x-forwarded-for", "203.0.113.7");
    press_until(&gateway, &browser, &ask, "ip=203.0.113.7 makes ");
    let sentence = browser.text("#sentence");
    assert!(sentence.contains("of the rejections of per-ip"), "{sentence}");
    // One click leads to the key, and its button is there.
    browser.wait_text("#keys", "ip=203.0.113.7");
    browser.click_button("ban per-ip ip=203.0.113.7");
    assert!(browser.wait_dialog().contains("turned away"));
}

#[test]
fn servers_that_are_gone_come_first() {
    let (good, gone) = (Upstream::ok(), Refusing::new());
    let gateway = Gateway::start(&format!(
        "upstreams:\n  half: {{ servers: [\"{}\", \"{}\"], eject: {{ errors: 2 }} }}\n  \
         lost: {{ servers: [\"{1}\"], health: {{ interval: 100ms, fall: 1 }} }}\n\
         locations: [{{ path: /half, upstream: half }}, {{ path: /none, upstream: lost }}]\n",
        good.addr(),
        gone.addr()
    ));
    let browser = Browser::open_page(&gateway);
    press_until(&gateway, &browser, &get("/half"), "1 of 2 servers of half is ejected");
    press_until(&gateway, &browser, &get("/none"), "No server of lost is up (1 down)");
    browser.wait_text("#problems", "1 of 2 servers of half is ejected");
    assert_eq!(browser.run("return document.getElementById('verdict').className"), "verdict bad");
    assert!(browser.run("return document.title").as_str().is_some_and(|title| title.starts_with('(')));
    // The worse one of the servers stands first in the table.
    browser.wait_text("#servers tbody tr", "down");
}

#[test]
fn a_failed_reload_is_told() {
    let gateway = Gateway::start("locations: [{ path: /, respond: { body: ok } }]\n");
    let browser = Browser::open_page(&gateway);
    browser.wait_text("#sentence", "Fine");
    gateway.write("locations: [{ path: /, respond: { body: ok }, limits: missing }]\n");
    browser.click("#reload");
    assert!(browser.wait_dialog().contains("a file with problems changes nothing"));
    browser.click("#confirm");
    browser.wait_text("#refusal", "missing");
    browser.click("#cancel");
    browser.wait_text("#sentence", "The last reload failed");
    browser.wait_text("#facts", "failed");
    gateway.write("locations: [{ path: /, respond: { body: better } }]\n");
    browser.click("#reload");
    browser.wait_dialog();
    browser.confirm("Reloaded");
    browser.wait_text("#sentence", "Fine");
}
