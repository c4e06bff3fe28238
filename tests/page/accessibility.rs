//! `make accessibility`: axe-core finds no fault in the page. It comes from npm, so that `make test` does without it.

use std::path::Path;

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::looks::{set_size, set_theme, start_busy_gateway};
use crate::support::*;

/// The faults, with the first element of each.
const RUN: &str = "axe.run(document).then(found => done(found.violations.map(fault => fault.id + ': ' + fault.nodes[0].html)))";

#[test]
#[ignore = "needs axe-core from npm: make accessibility"]
fn axe_core_finds_no_fault() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/axe-core/node_modules/axe-core/axe.min.js");
    let axe = std::fs::read_to_string(file).expect("axe-core");
    let upstream = Upstream::ok();
    let gateway = start_busy_gateway(&upstream);
    let browser = Browser::start();
    // axe-core puts a style of its own into the page.
    browser.send_devtools("Page.setBypassCSP", json!({ "enabled": true }));
    browser.go(&crate::browser::page_url(&gateway));
    browser.wait_text("#bans", "scraping");
    browser.wait_text("#keys", "ip=");
    browser.run(&format!("{axe}; window.axe = axe;"));
    for (width, scheme) in
        [320, 800, 1400, 2560].into_iter().flat_map(|width| [(width, "light"), (width, "dark")])
    {
        set_size(&browser, width, 900);
        set_theme(&browser, scheme);
        std::thread::sleep(ms(1200));
        assert_eq!(browser.run_async(RUN), Value::Array(Vec::new()), "{width} {scheme}");
        browser.click("#ban");
        browser.wait_dialog();
        assert_eq!(browser.run_async(RUN), Value::Array(Vec::new()), "{width} {scheme}");
        browser.click("#cancel");
    }
}
