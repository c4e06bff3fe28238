//! Tables sort, search hides what does not match, refusals are grouped, and nothing of this is lost when numbers change.

use serde_json::{Value, json};
use thirtyfour::Key;

use crate::browser::Browser;
use crate::support::*;

/// Forty-one limits, of which the last one rejects.
fn start_gateway() -> Gateway {
    let names = || (1..=41).map(|number| format!("limit-{number:02}"));
    let limits: String = names().map(|name| format!("  {name}: {{ rate: 1/h, burst: 2 }}\n")).collect();
    let places: String = names()
        .map(|name| format!("  - {{ path: /{name}, respond: {{ body: ok }}, limits: {name} }}\n"))
        .collect();
    Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.1 }}\nlimits:\n{limits}locations:\n{places}"
    ))
}

fn press(gateway: &Gateway, limit: &str, ip: &str, count: usize) {
    let ask = get(&format!("/{limit}")).header("x-forwarded-for", ip);
    (0..count).for_each(|_| drop(gateway.ask(&ask)));
}

/// The texts of the first column that are in sight.
fn shown(browser: &Browser, table: &str) -> Vec<String> {
    let rows = browser.run(&format!(
        "return [...document.querySelectorAll('#{table} tbody tr:not([hidden]) td:first-child')].map(cell => cell.textContent)"
    ));
    let text = |row: &Value| row.as_str().unwrap_or_default().to_owned();
    rows.as_array().expect("rows").iter().map(text).collect()
}

fn sort_by(browser: &Browser, table: &str, column: &str) -> String {
    let script = format!(
        "const heads = [...document.querySelectorAll('#{table} th')];
         const head = heads.find(head => head.textContent.trim() === '{column}');
         head.querySelector('button').click(); return head.ariaSort || head.getAttribute('aria-sort')"
    );
    browser.run(&script).as_str().expect("an order").to_owned()
}

#[test]
fn tables_sort_by_any_column() {
    let gateway = start_gateway();
    press(&gateway, "limit-41", "192.0.2.1", 9);
    press(&gateway, "limit-07", "192.0.2.1", 5);
    let browser = Browser::open_page(&gateway);
    eventually("all limits", || shown(&browser, "limits").len() == 41);
    // By default those that reject most come first, and the keys are those of the first.
    eventually("the order", || shown(&browser, "limits")[..2] == ["limit-41", "limit-07"].map(str::to_owned));
    assert_eq!(browser.run("return document.getElementById('limit').value"), "limit-41");
    browser.wait_text("#keys", "ip=192.0.2.1");
    assert_eq!(sort_by(&browser, "limits", "limit"), "ascending");
    assert_eq!(shown(&browser, "limits")[0], "limit-01");
    assert_eq!(sort_by(&browser, "limits", "limit"), "descending");
    assert_eq!(shown(&browser, "limits")[0], "limit-41");
    assert_eq!(sort_by(&browser, "limits", "keys"), "descending");
    assert_eq!(shown(&browser, "limits")[..2], ["limit-07", "limit-41"].map(str::to_owned));
    // The order stays when the numbers change.
    std::thread::sleep(ms(2500));
    assert_eq!(shown(&browser, "limits")[..2], ["limit-07", "limit-41"].map(str::to_owned));
    let others = browser.run("return document.querySelectorAll('#limits th[aria-sort=none]').length");
    assert_eq!(others, json!(8));
    assert_eq!(browser.console_errors(), [""; 0]);
}

/// However many limits there are, the keys of the chosen one are in the same window.
#[test]
fn the_keys_stay_in_sight() {
    let gateway = start_gateway();
    press(&gateway, "limit-41", "192.0.2.1", 4);
    let browser = Browser::open_page(&gateway);
    browser.wait_text("#keys", "ip=192.0.2.1");
    let apart = browser.run(
        "const top = document.getElementById('limits').getBoundingClientRect().top;
         return document.querySelector('#keys tbody tr').getBoundingClientRect().bottom - top",
    );
    assert!(apart.as_f64().is_some_and(|pixels| pixels < 600.0), "{apart}");
}

#[test]
fn search_hides_what_does_not_match() {
    let gateway = start_gateway();
    for ip in ["192.0.2.1", "198.51.100.9"] {
        press(&gateway, "limit-41", ip, 5);
    }
    let browser = Browser::open_page(&gateway);
    browser.wait_text("#keys", "ip=198.51.100.9");
    browser.press_text("/198.51");
    assert_eq!(browser.run("return document.activeElement.id"), "search");
    eventually("the key", || shown(&browser, "keys") == ["ip=198.51.100.9"]);
    assert_eq!(shown(&browser, "limits").len(), 0);
    eventually("its refusals", || shown(&browser, "refusals").len() == 1);
    browser.wait_text("#limits", "Nothing here matches the search.");
    // Text, caret and focus stay while the numbers change.
    browser.press(Key::Left);
    std::thread::sleep(ms(2500));
    let search = "const box = document.getElementById('search');
                  return [box.value, box.selectionStart, document.activeElement === box]";
    assert_eq!(browser.run(search), json!(["198.51", 5, true]));
    assert_eq!(shown(&browser, "keys"), ["ip=198.51.100.9"]);
    // The name of a limit finds the limit, and Enter chooses it.
    browser.run("const box = document.getElementById('search'); box.value = 'limit-07'; box.oninput()");
    assert_eq!(shown(&browser, "limits"), ["limit-07"]);
    browser.press(Key::Enter);
    browser.wait_for("the choice", "return document.getElementById('limit').value === 'limit-07'");
    // A key that is not among the heaviest is looked up.
    browser.run("const box = document.getElementById('search'); box.value = '203.0.113.77'; box.oninput()");
    browser.press(Key::Enter);
    browser.wait_text("#found", "ip=203.0.113.77");
    browser.wait_text("#keys", "ip=203.0.113.77");
    browser.run("const box = document.getElementById('search'); box.value = 'nobody=x'; box.oninput()");
    browser.press(Key::Enter);
    browser.wait_text("#found", "Looked up nobody=x in limit-07: ");
    browser.run("const box = document.getElementById('search'); box.value = ''; box.oninput()");
    assert_eq!(shown(&browser, "limits").len(), 41);
    assert!(browser.console_errors().iter().all(|error| error.contains("400")));
}

#[test]
fn refusals_are_grouped() {
    let gateway = start_gateway();
    let browser = Browser::open_page(&gateway);
    browser.wait_text("#refusals", "No request was refused lately.");
    press(&gateway, "limit-41", "192.0.2.1", 14);
    press(&gateway, "limit-07", "192.0.2.2", 3);
    eventually("the groups", || shown(&browser, "refusals").len() == 2);
    let row = |limit: &str| {
        browser.run(&format!(
            "return [...document.querySelectorAll('#refusals tbody tr')].find(row => row.textContent.includes('{limit}'))?.textContent"
        ))
    };
    let has = |limit: &str, text: &str| row(limit).as_str().is_some_and(|row| row.contains(text));
    eventually("twelve times", || has("limit-41", "ip=192.0.2.1×12") && has("limit-41", "s ago"));
    assert!(has("limit-07", "ip=192.0.2.2×1"));
    // While it is paused, nothing moves; afterwards everything is there.
    browser.click("#pause");
    press(&gateway, "limit-41", "192.0.2.1", 5);
    std::thread::sleep(ms(2500));
    assert!(has("limit-41", "×12"), "{}", row("limit-41"));
    browser.click("#pause");
    eventually("seventeen times", || has("limit-41", "×17"));
    // A choice shows one limit alone.
    browser.run("const by = document.getElementById('refused-by'); by.value = 'limit-07'; by.onchange()");
    eventually("one limit", || shown(&browser, "refusals") == ["limit-07"]);
}

/// A chart is read by keyboard, and a series is hidden by its button.
#[test]
fn charts_are_read_by_keyboard() {
    let gateway = start_gateway();
    let browser = Browser::open_page(&gateway);
    browser.run("document.querySelector('#traffic .plot').focus()");
    let now = || {
        let read = "const plot = document.querySelector('#traffic .plot');
                    return [Number(plot.getAttribute('aria-valuenow')), plot.getAttribute('aria-valuetext')]";
        let read = browser.run(read);
        (read[0].as_u64().expect("a place"), read[1].as_str().expect("a text").to_owned())
    };
    let (last, text) = now();
    assert_eq!(last, 599);
    assert!(text.contains(": admitted ") && text.contains("rejected "), "{text}");
    browser.press(Key::Left);
    let (before, moment) = now();
    assert!(before < last && browser.text("#traffic .moment") == moment[..8], "{before} {moment}");
    // The line stays at its moment while time goes on.
    std::thread::sleep(ms(2500));
    let (later, same) = now();
    assert!(later < before && same[..8] == moment[..8], "{later} {same} {moment}");
    browser.press(Key::Home);
    assert!(now().0 < later && now().1.contains("admitted"), "{}", now().1);
    browser.press(Key::Escape);
    assert_eq!(now().0, 599);
    browser.click("#traffic .series");
    assert_eq!(browser.run("return document.querySelector('#traffic .series').ariaPressed"), "false");
    browser.click("#range [value='1d']");
    assert_eq!(browser.run("return document.querySelector('#range [aria-pressed=true]').value"), "1d");
}
