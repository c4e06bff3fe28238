//! Tokens, and a user without a mouse.

use thirtyfour::Key;

use crate::browser::{Browser, button, page_url};
use crate::support::*;

const FILE: &str = "admin: { listen: 127.0.0.1:0, tokens: [{ name: ops, token: one-token },\
                     { name: eye, token: two, allow: read }] }\n\
                    limits: { hourly: { rate: 1/h } }\n\
                    locations: [{ path: /, respond: { body: ok }, limits: hourly }]\n";
const RESET: &str = "reset hourly ip=127.0.0.1";

fn enter_token(browser: &Browser, token: &str) {
    browser.fill("token", token);
    browser.press(Key::Enter);
}

#[test]
fn the_page_asks_for_the_token() {
    let gateway = Gateway::start(FILE);
    (0..2).for_each(|_| drop(gateway.get("/")));
    let browser = Browser::start();
    browser.go(&page_url(&gateway));
    assert!(browser.wait_dialog().contains("requires an admin token"));
    assert!(!browser.text("main").contains("127.0.0.1 "), "the page holds data");
    // Whoever closes the dialog is not asked again, but has a button.
    browser.press(Key::Escape);
    browser.wait_text("#limits", "requires an admin token");
    std::thread::sleep(ms(2500));
    assert!(!browser.dialog_is_open());
    browser.click("#token");
    browser.wait_dialog();
    enter_token(&browser, "wrông");
    browser.wait_text("#dialog", "does not accept this token");
    enter_token(&browser, "two");
    browser.wait_text("#live", "live");
    browser.wait_text("#limits", "1 request per hour");
    // A token that may only read changes nothing.
    let disabled = format!("return document.querySelector('{}')?.disabled === true", button(RESET));
    browser.wait_for("disabled buttons", &disabled);
    for id in ["ban", "reload"] {
        assert_eq!(browser.run(&format!("return document.getElementById('{id}').disabled")), true);
    }
    assert_eq!(gateway.get("/").status, 429);
    // It is kept for this tab alone.
    browser.go(&page_url(&gateway));
    browser.wait_text("#limits", "1 request per hour");
    browser.run("sessionStorage.clear()");
    browser.go(&page_url(&gateway));
    browser.wait_dialog();
    enter_token(&browser, "one-token");
    browser.click_button(RESET);
    browser.wait_dialog();
    browser.confirm("was reset");
    assert_eq!(gateway.get("/").status, 200);
    assert!(browser.requested_urls().iter().all(|url| !url.contains("two") && !url.contains("one-token")));
}

#[test]
fn the_keyboard_reaches_every_button() {
    let gateway = Gateway::start(
        "limits: { hourly: { rate: 1/h } }\nupstreams: { app: [127.0.0.1:1] }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: hourly }\n  - { path: /app, upstream: app }\n",
    );
    (0..2).for_each(|_| drop(gateway.get("/")));
    let browser = Browser::open_page(&gateway);
    for place in ["#keys", "#servers"] {
        browser.wait_text(place, "127.0.0.1");
    }
    let mut reached = Vec::new();
    for _ in 0..90 {
        browser.press(Key::Tab);
        let focus = browser.run(
            "const one = document.activeElement;
             return one.dataset.focus || one.id || one.name || one.textContent",
        );
        reached.push(focus.as_str().unwrap_or_default().to_owned());
    }
    for name in [
        "search",
        "limit hourly",
        "limit",
        "by",
        RESET,
        "grant hourly ip=127.0.0.1",
        "drain app127.0.0.1:1",
        "ban",
        "Explain",
    ] {
        assert!(reached.iter().any(|one| one == name), "{name}: {reached:?}");
    }
    // The list is new every two seconds, and the focus stays.
    browser.run(&format!("document.querySelector('[data-focus=\"{RESET}\"]').focus()"));
    std::thread::sleep(ms(2500));
    browser.press(Key::Enter);
    browser.wait_dialog();
    // And so it does while a dialog is open.
    std::thread::sleep(ms(2500));
    browser.press(Key::Escape);
    eventually("the end of the dialog", || !browser.dialog_is_open());
    assert_eq!(gateway.get("/").status, 429);
    browser.press(Key::Enter);
    browser.wait_dialog();
    // The field of the reason has the focus; Enter there confirms.
    browser.press(Key::Enter);
    browser.wait_text("#notice", "was reset");
    assert_eq!(gateway.get("/").status, 200);
}
