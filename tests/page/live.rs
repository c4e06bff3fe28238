//! The page shows the traffic of this second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::json;

use crate::browser::{Browser, page_url};
use crate::support::timing::eventually_within;
use crate::support::*;

/// Sends requests until it is dropped, at most for a minute.
struct Load<'g> {
    stop: &'g AtomicBool,
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn send_load(gateway: &Gateway, stop: &AtomicBool) {
    let end = Instant::now() + PATIENCE * 6;
    let mut client = gateway.client();
    for turn in 0_u64.. {
        if stop.load(Ordering::Relaxed) || Instant::now() > end {
            return;
        }
        client.ask(&get("/"));
        thread::sleep(ms(2 + turn % 100 / 10));
    }
}

#[test]
fn the_chart_moves_under_load() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "limits: {{ per-ip: {{ rate: 20/s, burst: 5 }} }}\n\
         upstreams: {{ app: [\"{0}\"] }}\n\
         locations: [{{ path: /, upstream: app, limits: per-ip }}]\n",
        upstream.addr()
    ));
    let browser = Browser::open_page(&gateway);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _load = Load { stop: &stop };
        scope.spawn(|| send_load(&gateway, &stop));
        browser.wait_for("requests", &format!("return {RATE} > 10"));
        let picture = || browser.run("return document.querySelector('#traffic canvas').toDataURL()");
        let before = picture();
        thread::sleep(ms(2000));
        assert_ne!(picture(), before);
        let label = "return /admitted [1-9]/.test(document.querySelector('#traffic .plot').ariaValueText)";
        assert_eq!(browser.run(label), json!(true));
        for (place, text) in [
            ("#tiles", "rejected/s"),
            ("#limits", "20 requests per second, burst 5"),
            ("#keys", "ip=127.0.0.1"),
            ("#refusals", "rate"),
            ("#refusals", "ip=127.0.0.1"),
            ("#servers", &upstream.addr().to_string()),
            ("#latency", "servers p99"),
            ("#upstreams", "app"),
            ("#state", "generation 1"),
        ] {
            browser.wait_text(place, text);
        }
        let refused =
            "return Number(document.querySelector('#keys td[data-title=\"refused/s\"]')?.textContent) > 1";
        browser.wait_for("refusals of the key", refused);
    });
    browser.wait_for("silence", &format!("return {RATE} === 0"));
    assert_eq!(browser.console_errors(), [""; 0]);
}

/// The number in the first tile.
const RATE: &str = "Number((document.querySelector('#tiles b') || {}).textContent || 0)";

/// The page needs nothing from any other host: it works on a machine without a network.
#[test]
fn the_page_asks_its_own_listener_alone() {
    let gateway = Gateway::start(
        "limits: { per-ip: { rate: 2/h } }\nlocations: [{ path: /, respond: { body: ok }, limits: per-ip }]\n",
    );
    let browser = Browser::open_page(&gateway);
    (0..3).for_each(|_| drop(gateway.get("/")));
    browser.wait_text("#refusals", "ip=127.0.0.1");
    browser.wait_text("#keys", "ip=127.0.0.1");
    browser.click("#explain button");
    browser.wait_text("#answer", "reject with 429 by limit per-ip");
    let (own, urls) = (page_url(&gateway), browser.requested_urls());
    for call in [
        "",
        "page/main.js",
        "page/page.css",
        "history?span=10m",
        "events",
        "limits",
        "upstreams",
        "bans",
        "status",
        "explain",
        "limits/per-ip/keys?",
    ] {
        assert!(urls.iter().any(|url| url.starts_with(&format!("{own}{call}"))), "{call}: {urls:?}");
    }
    // The browser's own start page is `chrome://`.
    let is_own = |url: &String| ["chrome://", "data:", &own].iter().any(|start| url.starts_with(start));
    let foreign: Vec<_> = urls.iter().filter(|url| !is_own(url)).collect();
    assert_eq!(foreign, [""; 0]);
    assert_eq!(browser.console_errors(), [""; 0]);
}

/// A gateway that ends leaves its last numbers, with the moment they are from; when it is back, they go on.
#[test]
fn the_page_keeps_the_numbers_of_a_gateway_that_is_gone() {
    let file = format!(
        "admin: {{ listen: {} }}\nlimits: {{ hourly: {{ rate: 2/h }} }}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, limits: hourly }}]\n",
        free_addr()
    );
    let mut gateway = Gateway::start(&file);
    (0..3).for_each(|_| drop(gateway.get("/")));
    let browser = Browser::open_page(&gateway);
    browser.wait_text("#keys", "ip=127.0.0.1");
    browser.wait_text("#sentence", "Fine");
    gateway.term();
    gateway.wait_exit();
    browser.wait_text("#live", "not live since ");
    browser.wait_text("#sentence", "No numbers since ");
    thread::sleep(ms(3000));
    for (place, text) in
        [("#keys", "ip=127.0.0.1"), ("#limits", "2 requests per hour"), ("#facts", "gateway.yaml")]
    {
        browser.wait_text(place, text);
    }
    browser.click("#explain button");
    browser.wait_text("#answer", "does not answer");
    let _again = Gateway::start(&file);
    eventually_within(PATIENCE * 3, "the next events", || browser.text("#live") == "live");
    browser.wait_text("#sentence", "Fine");
    browser.wait_text("#keys", "No key was refused lately");
}

/// A gateway that stands still keeps its connection, and says nothing.
#[test]
fn the_page_tells_when_the_gateway_stands_still() {
    let gateway = Gateway::start("locations: [{ path: /, respond: { body: ok } }]\n");
    let browser = Browser::open_page(&gateway);
    gateway.signal(Signal::STOP);
    eventually_within(PATIENCE * 2, "the silence", || browser.text("#live").starts_with("not live since "));
    gateway.signal(Signal::CONT);
    eventually_within(PATIENCE * 3, "the next events", || browser.text("#live") == "live");
}

/// A limit that rejects nothing has no rejections on the page.
#[test]
fn a_dry_run_is_not_among_the_rejections() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "limits: {{ trial: {{ rate: 1/h, dry_run: true }} }}\n\
         locations: [{{ path: /, upstream: \"{}\", limits: trial }}]\n",
        upstream.url()
    ));
    let browser = Browser::open_page(&gateway);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _load = Load { stop: &stop };
        scope.spawn(|| send_load(&gateway, &stop));
        let cell = |table: &str, title: &str| {
            format!("Number(document.querySelector('#{table} td[data-title=\"{title}\"]')?.textContent)")
        };
        browser.wait_for("would reject", &format!("return {} > 1", cell("limits", "would reject/s")));
        browser.wait_for("would refuse", &format!("return {} > 1", cell("keys", "would refuse/s")));
        assert_eq!(browser.run(&format!("return {}", cell("limits", "rejected/s"))), json!(0));
    });
}
