//! Whatever clients and operators name is shown as text.

use crate::browser::Browser;
use crate::support::*;

const MARKUP: &str = "<img src=x onerror=document.title='ran'>";

#[test]
fn names_are_text_and_never_markup() {
    let gateway = Gateway::start(
        "access_log: { hash_keys: false }\naccount: { from: header:x-account }\n\
         limits: { hourly: { rate: 1/h, key: account } }\n\
         locations: [{ path: /, respond: { body: ok }, limits: hourly }]\n",
    );
    (0..2).for_each(|_| drop(gateway.ask(&get("/").header("x-account", MARKUP))));
    let body = serde_json::json!({ "account": MARKUP, "reason": MARKUP }).to_string();
    let ban = post("/bans", body.as_bytes()).header("Content-Type", "application/json");
    gateway.ask_admin(&ban).expect(200);
    let browser = Browser::open_page(&gateway);
    browser.wait_text("#bans", MARKUP);
    browser.wait_text("#keys", "account=%3Cimg");
    browser.wait_text("#refusals", "account=%3Cimg");
    browser.run(&format!("document.querySelector('[name=header]').value = \"x-account: {MARKUP}\""));
    browser.click("#explain button");
    browser.wait_text("#answer", MARKUP);
    // Also in a dialog, and in a message.
    browser.click_button(&format!("unban account={MARKUP}"));
    assert!(browser.wait_dialog().contains(MARKUP));
    browser.confirm("no longer banned");
    browser.click("#ban");
    browser.wait_dialog();
    browser.fill("ip", MARKUP);
    browser.click("#confirm");
    browser.wait_text("#refusal", "<img src=x");
    assert_eq!(browser.run("return document.querySelectorAll('img').length"), 0);
    assert_eq!(browser.run("return document.querySelectorAll('script').length"), 1);
    assert_eq!(browser.run("return document.title"), "Sluicegate");
}

/// The policy of the page refuses markup even where its script is wrong.
#[test]
fn the_policy_refuses_foreign_script() {
    let gateway = Gateway::start("locations: [{ path: /, respond: { body: ok } }]\n");
    let browser = Browser::open_page(&gateway);
    let script = format!(
        "try {{ document.body.innerHTML = \"{MARKUP}\"; return 'put' }} catch (error) {{ return error.name }}"
    );
    assert_eq!(browser.run(&script), "TypeError");
    let script =
        "const element = document.createElement('style'); element.textContent = 'body { color: red }';
                  document.body.append(element); return getComputedStyle(document.body).color";
    assert_ne!(browser.run(script), "rgb(255, 0, 0)");
    let script = "const link = document.createElement('a');
                  try { link.setAttribute('onclick', \"document.title = 'ran'\") } catch (error) { return error.name }
                  document.body.append(link); link.click(); return 'set'";
    assert_eq!(browser.run(script), "TypeError");
    assert_eq!(browser.run("return document.title"), "Sluicegate");
}
