//! The pages that `replay` and `recommend` write, in a browser.

use serde_json::json;

use crate::browser::Browser;
use crate::support::*;
use crate::{line, yaml};

/// Elements that reach out of the window and are not inside one that scrolls.
const CUT_OFF: &str = "
return [...document.body.querySelectorAll('*')].filter(element => {
  const box = element.getBoundingClientRect();
  return box.width > 1 && (box.right > innerWidth + 0.5 || box.left < -0.5) && !element.closest('.scroll, svg, pre');
}).map(element => element.outerHTML.slice(0, 100));";

/// Requests over ten minutes; the name of an account tries to be markup.
fn busy_log() -> String {
    let one = |n: u64| {
        let account = if n.is_multiple_of(7) {
            "<script>alert(1)</script>"
        } else {
            "a-rather-long-name-of-an-account"
        };
        line(
            n * n * 37 % 600_000_000,
            &format!("192.0.2.{}", n % 40),
            "/",
            &format!(",\"account\":\"{account}\""),
        )
    };
    (0..4_000).map(one).collect()
}

#[test]
fn the_pages_stand_alone_and_fit_a_telephone_and_a_wide_screen() {
    let scratch = Scratch::new();
    let file = |burst: u64| {
        format!(
            "account: {{ from: header:x-account }}\n{}",
            yaml(&format!(
                "  per-account: {{ key: account, rate: 1/s, burst: {burst} }}\n  \
             line: {{ key: ip, rate: 1/m, algorithm: leaky_bucket, queue: 5 }}\n  by-cookie: {{ key: cookie:sid, rate: 1/s }}"
            ))
        )
    };
    scratch.file("gateway.yaml", &file(5));
    scratch.file("old.yaml", &file(500));
    scratch.file("access.log", &busy_log());
    for args in [
        &["replay", "access.log", "--against", "old.yaml", "--html", "replay.html"][..],
        &["recommend", "access.log", "--key", "account", "--html", "recommend.html"],
    ] {
        let done = Run::default().args(args).finish(scratch.path());
        assert_eq!(done.code, Some(0), "{args:?}: {}", done.stderr);
    }
    let browser = Browser::start();
    browser.requested_urls();
    for page in ["replay.html", "recommend.html"] {
        let url = format!("file://{}", scratch.path().join(page).display());
        for (width, height) in [(390, 800), (1_400, 900)] {
            for scheme in ["light", "dark"] {
                let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
                browser.send_devtools("Emulation.setDeviceMetricsOverride", screen);
                let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
                browser.send_devtools("Emulation.setEmulatedMedia", media);
                browser.go(&url);
                let wide = browser.run("return document.documentElement.scrollWidth - innerWidth");
                assert!(wide.as_f64().is_some_and(|wide| wide <= 0.0), "{page} at {width}: {wide} too wide");
                assert_eq!(browser.run(CUT_OFF), json!([]), "{page} at {width}");
                let ground = browser.run("return getComputedStyle(document.body).backgroundColor");
                assert_eq!(ground == json!("rgb(255, 255, 255)"), scheme == "light", "{ground}");
                if let Some(folder) = std::env::var_os("SLUICEGATE_SCREENSHOTS") {
                    let name = format!("{page}-{width}-{scheme}.png");
                    browser.save_screenshot(&std::path::Path::new(&folder).join(name));
                }
            }
        }
        assert_eq!(browser.console_errors(), [""; 0], "{page}");
        // The browser loads parts of itself.
        let is_own =
            |sent: &String| *sent == url || sent.starts_with("data:") || sent.starts_with("chrome://");
        let foreign: Vec<_> = browser.requested_urls().into_iter().filter(|sent| !is_own(sent)).collect();
        assert!(foreign.is_empty(), "{page} asks for {foreign:?}");
        assert!(browser.run("return document.querySelectorAll('svg').length").as_u64() > Some(0));
        assert_eq!(
            browser.run("return document.scripts.length"),
            json!(0),
            "nothing of the log becomes markup"
        );
    }
}
