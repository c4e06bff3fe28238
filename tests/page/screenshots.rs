//! `make screenshots`: the page and `top` in docs/images, of a gateway with clients, a flooder and a failing server.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::browser::{Browser, page_url};
use crate::looks::{set_size, set_theme};
use crate::support::*;
use crate::terminal_picture::picture_of_top;

/// The traffic before the pictures; the flood and the failures begin in its last third.
const LENGTH: Duration = Duration::from_secs(150);
const CALM: Duration = Duration::from_secs(100);
/// The requests of each client are as long apart.
const PACE: Duration = Duration::from_millis(40);

/// Limits of a shop: one for every client, and one for each of its expensive parts.
const FILE: &str = "\
server: { trusted_proxies: 127.0.0.1 }
account: { from: header:x-account }
access_log: { hash_keys: false }
limits:
  per-ip: { rate: 30/s, burst: 30 }
  per-account: { key: account, rate: 20/s, burst: 40 }
  logins: { rate: 10/m, burst: 5 }
  search: { algorithm: leaky_bucket, key: global, rate: 12/s, queue: 20 }
  uploads: { algorithm: concurrency, max_concurrent: 4 }
  checkout: { key: global, rate: 5/s, burst: 5, dry_run: true }
";

const PATHS: [(&str, &str, &str); 6] = [
    ("/", "shop", "[per-ip, per-account]"),
    ("/search", "search", "[per-ip, search]"),
    ("/login", "shop", "[logins]"),
    ("/checkout", "billing", "[per-account, checkout]"),
    ("/upload", "shop", "[uploads]"),
    ("/api/", "shop", "[per-ip, per-account]"),
];

/// A server that takes `times` ms in turn, and fails every third time while `fails`.
fn start_server(times: [u64; 3], fails: &'static AtomicBool) -> Upstream {
    let turn = AtomicUsize::new(0);
    Upstream::new(move |_| {
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        let status = if turn.is_multiple_of(3) && fails.load(Ordering::Relaxed) { 500 } else { 200 };
        Reply::with(status, &[], "ok").after(ms(times[turn % 3]))
    })
}

static NEVER: AtomicBool = AtomicBool::new(false);
static FAILING: AtomicBool = AtomicBool::new(false);

/// Sends one client's requests until `end`; the same ones each time.
fn visit(gateway: &Gateway, number: u64, end: Instant) {
    let (ip, account) = (format!("198.51.100.{number}"), format!("customer-{number:02}"));
    let mut client = gateway.client();
    for turn in number.. {
        if Instant::now() > end {
            return;
        }
        let path = match turn * 7 % 20 {
            0 if number == 3 => "/login",
            1..=2 => "/search",
            5..=7 => "/checkout",
            8 => "/upload",
            9..=13 => "/api/orders",
            _ => "/",
        };
        client.ask(&get(path).header("x-forwarded-for", &ip).header("x-account", &account));
        // Slower and faster, as people are.
        thread::sleep(PACE * (3 + (turn / 150 % 4) as u32) / 2);
    }
}

fn flood(gateway: &Gateway, from: Instant, end: Instant) {
    thread::sleep(from.saturating_duration_since(Instant::now()));
    let mut client = gateway.client();
    let ask = get("/api/products").header("x-forwarded-for", "203.0.113.7").header("x-account", "crawler");
    while Instant::now() < end {
        FAILING.store(true, Ordering::Relaxed);
        client.ask(&ask);
        thread::sleep(ms(7));
    }
}

#[test]
#[ignore = "writes docs/images: make screenshots"]
fn the_pictures_are_written() {
    let shop = [start_server([3, 8, 5], &NEVER), start_server([4, 9, 14], &NEVER)];
    let (search, billing) = (start_server([20, 45, 70], &NEVER), start_server([15, 30, 25], &FAILING));
    let mut file = format!(
        "{FILE}upstreams:\n  shop: [\"{}\", \"{}\"]\n  search: [\"{}\"]\n  billing: [\"{}\"]\nlocations:\n",
        shop[0].addr(),
        shop[1].addr(),
        search.addr(),
        billing.addr()
    );
    for (path, upstream, limits) in PATHS {
        file += &format!("  - {{ path: {path}, upstream: {upstream}, limits: {limits} }}\n");
    }
    let gateway = Gateway::start(&file);
    let browser = Browser::start();
    browser.go(&page_url(&gateway));
    let start = Instant::now();
    let end = start + LENGTH;
    thread::scope(|scope| {
        for number in 1..=12 {
            let gateway = &gateway;
            scope.spawn(move || visit(gateway, number, end));
        }
        scope.spawn(|| flood(&gateway, start + CALM, end));
        thread::sleep(LENGTH - Duration::from_secs(16));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images");
        std::fs::create_dir_all(&folder).expect("the folder");
        let top = picture_of_top(&gateway, &file, Duration::from_secs(4));
        assert!(top.contains("account=crawler"), "{top}");
        std::fs::write(folder.join("top.svg"), top).expect("the picture");
        for (scheme, name) in [("light", "page.png"), ("dark", "page-dark.png")] {
            set_size(&browser, 1280, 940);
            set_theme(&browser, scheme);
            thread::sleep(ms(2500));
            // The folder of the test is of no interest.
            browser.run(
                "const state = document.getElementById('state').firstChild;
                 state.data = state.data.replace(/^[^ ]*gateway.yaml/, '/etc/sluicegate/gateway.yaml')",
            );
            browser.save_screenshot(&folder.join(name));
            let size = std::fs::metadata(folder.join(name)).expect("the picture").len();
            assert!(size <= 200 * 1024, "{name}: {size} bytes");
        }
    });
}
