//! The page fits a narrow window and a wide one, and is readable by day and by night.

use std::path::Path;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::support::*;

/// Texts whose colour is too close to what is behind them, by the contrast ratio of WCAG 2.1.
const PALE_TEXTS: &str = r#"
const pen = Object.assign(document.createElement('canvas'), { width: 1, height: 1 }).getContext('2d', { willReadFrequently: true });
// Paints the colours over each other and returns the light of the result.
const light = colours => {
  for (const colour of ['#fff', ...colours]) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
  const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), pale = [];
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (!node.data.trim() || !element.checkVisibility() || element.closest('script, style')) continue;
  const behind = [];
  for (let one = element; one; one = one.parentElement) behind.unshift(getComputedStyle(one).backgroundColor);
  const [low, high] = [light(behind), light([...behind, getComputedStyle(element).color])].sort((a, b) => a - b);
  const ratio = (high + 0.05) / (low + 0.05);
  if (ratio < 4.5) pale.push(node.data.trim() + ': ' + ratio.toFixed(2));
}
return pale;
"#;

/// Elements that reach out of the window and are not inside one that scrolls.
const CUT_OFF: &str = "
return [...document.body.querySelectorAll('*')].filter(element => {
  const box = element.getBoundingClientRect();
  return box.width > 1 && (box.right > innerWidth + 0.5 || box.left < -0.5) && !element.closest('.scroll, thead');
}).map(element => element.outerHTML.slice(0, 100));";

/// Tiles and cells that a number leaves, also a long one.
const TOO_WIDE: &str = "
const tiles = [...document.querySelectorAll('#tiles div')], found = [];
for (const number of ['999,999', '999.99 M', '9,999 ms']) {
  for (const tile of tiles) {
    const text = tile.querySelector('b'), before = text.textContent;
    text.textContent = number;
    const range = document.createRange();
    range.selectNodeContents(text);
    if (range.getBoundingClientRect().right > tile.getBoundingClientRect().right - 4) found.push(tile.textContent);
    text.textContent = before;
  }
}
const cells = [...document.querySelectorAll('td.number')].filter(cell => cell.scrollWidth > cell.clientWidth + 1);
return found.concat(cells.map(cell => cell.dataset.title + ' ' + cell.textContent));";

/// Controls and regions without a name, and names that stand twice.
const NAMELESS: &str = "
const nameOf = one => one.ariaLabel || one.getAttribute('aria-labelledby') || [...one.labels || []].map(label => label.textContent).join('')
  || (one.matches('button, a, summary') ? one.textContent.trim() : '');
const controls = document.querySelectorAll('button, a, input, select, [tabindex], [role=region], [role=img], table, dialog, section, th');
const nameless = [...controls].filter(one => one.checkVisibility() && !(one.tagName === 'TH' ? one.textContent.trim() : nameOf(one)));
const ids = [...document.querySelectorAll('[id]')].map(one => one.id);
const levels = [...document.querySelectorAll('main h2, main h3')].map(one => Number(one.tagName[1]));
return nameless.map(one => one.outerHTML.slice(0, 100)).concat(ids.filter((id, at) => ids.indexOf(id) !== at))
  .concat(levels[0] === 2 ? [] : ['the first heading']);";

/// A gateway with something in each part of its page.
pub fn start_busy_gateway(upstream: &Upstream) -> Gateway {
    let gateway = Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.1 }}\naccount: {{ from: header:x-account }}\n\
         limits:\n  per-ip: {{ rate: 10/s, burst: 3 }}\n  \
         per-account-and-path: {{ rate: 100/h, burst: 4, key: [account, uri] }}\n  \
         in-flight: {{ algorithm: concurrency, max_concurrent: 100, key: global, dry_run: true }}\n\
         upstreams: {{ app: [\"{}\", \"127.0.0.1:1\"] }}\n\
         locations: [{{ path: /, upstream: app, limits: [per-ip, per-account-and-path, in-flight] }}]\n",
        upstream.addr()
    ));
    for (ip, account) in
        [("2001:db8:85a3::8a2e:370:7334", "acme"), ("192.0.2.7", "a-rather-long-name-of-an-account")]
    {
        let path = "/a/rather/long/path/to/some/resource/that-has-no-place-to-break?with=a-query";
        let ask = get(path).header("x-forwarded-for", ip).header("x-account", account);
        (0..12).for_each(|_| drop(gateway.ask(&ask)));
    }
    for (path, body) in [
        (
            "/bans",
            json!({ "ip": "203.0.113.0/24", "for": "2h", "reason": "scraping the catalogue since Monday" }),
        ),
        ("/bans", json!({ "account": "someone@example.com" })),
        ("/limits/per-ip/keys/ip=192.0.2.7/grant", json!({ "rate": "100/s", "burst": 200, "for": "1h" })),
    ] {
        let ask = post(path, body.to_string().as_bytes()).header("Content-Type", "application/json");
        gateway.ask_admin(&ask).expect(200);
    }
    gateway
}

pub fn set_size(browser: &Browser, width: u64, height: u64) {
    let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
    browser.send_devtools("Emulation.setDeviceMetricsOverride", size);
}

/// `light` or `dark`.
pub fn set_theme(browser: &Browser, scheme: &str) {
    let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
    browser.send_devtools("Emulation.setEmulatedMedia", media);
}

fn is_dark(browser: &Browser) -> bool {
    let colour =
        browser.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)");
    colour.as_array().expect("a colour").iter().filter_map(Value::as_u64).all(|part| part < 80)
}

#[test]
fn the_page_fits_and_is_readable() {
    let upstream = Upstream::ok();
    let gateway = start_busy_gateway(&upstream);
    let browser = Browser::open_page(&gateway);
    browser.wait_text("#bans", "scraping");
    // The page begins with the limit that rejects most at that moment.
    browser.click_button("limit per-ip");
    browser.wait_text("#keys", "ip=");
    for _ in 0..60 {
        gateway.ask(&get("/").header("x-forwarded-for", "192.0.2.9"));
        std::thread::sleep(ms(25));
    }
    browser.click("#explain button");
    browser.wait_text("#answer", "verdict");
    for (width, scheme) in
        [320, 800, 1400, 2560].into_iter().flat_map(|width| [(width, "light"), (width, "dark")])
    {
        let size = |height: u64| set_size(&browser, width, height);
        size(900);
        set_theme(&browser, scheme);
        browser.wait_for("the width", &format!("return innerWidth === {width}"));
        eventually("the colours", || is_dark(&browser) == (scheme == "dark"));
        std::thread::sleep(ms(1200));
        let overflow = browser.run("return document.documentElement.scrollWidth - innerWidth");
        assert!(overflow.as_i64().is_some_and(|pixels| pixels <= 0), "{width} {scheme}: {overflow}");
        assert_eq!(browser.run(CUT_OFF), json!([]), "{width} {scheme}");
        assert_eq!(browser.run(PALE_TEXTS), json!([]), "{width} {scheme}");
        let sideways = browser.run(
            "return [...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 1)
             .map(one => one.id)",
        );
        assert_eq!(sideways, json!([]), "{width} {scheme}: tables are wider than their place");
        assert_eq!(browser.run(TOO_WIDE), json!([]), "{width} {scheme}");
        assert_eq!(browser.run(NAMELESS), json!([]), "{width} {scheme}");
        size(browser.run("return document.documentElement.scrollHeight").as_u64().expect("a height"));
        std::thread::sleep(ms(1200));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        browser.save_screenshot(&folder.join(format!("page-{width}-{scheme}.png")));
        size(900);
        // A dialog fits, too.
        browser.click("#ban");
        browser.wait_dialog();
        assert_eq!(browser.run(CUT_OFF), json!([]), "{width} {scheme}");
        assert_eq!(browser.run(PALE_TEXTS), json!([]), "{width} {scheme}");
        browser.save_screenshot(&folder.join(format!("dialog-{width}-{scheme}.png")));
        browser.click("#cancel");
    }
    assert_eq!(browser.console_errors(), [""; 0]);
}
