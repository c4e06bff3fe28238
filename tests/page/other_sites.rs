//! A page of another site, open in the same browser, reads nothing and changes nothing.

use serde_json::json;

use crate::browser::{Browser, REBOUND_HOST};
use crate::support::*;

const FILE: &str = "limits: { hourly: { rate: 1/h } }\n\
                    upstreams: { app: [127.0.0.1:1, 127.0.0.1:2] }\n\
                    locations:\n  - { path: /, respond: { body: ok }, limits: hourly }\n  \
                    - { path: /app, upstream: app }\n";

/// Tries everything that a page may do to another site, and gathers what came of it.
const ATTACK: &str = r#"
const ban = '{"ip": "192.0.2.66"}', json = { 'Content-Type': 'application/json' };
const read = async (path, options) => {
  try {
    const answer = await fetch(admin + path, options);
    return answer.type + ' ' + answer.status + ' ' + (await answer.text()).length;
  } catch (error) { return error.name; }
};
const post = (path, body, options) => read(path, { method: 'POST', body, ...options });
const form = (path, kind, name, value) => new Promise(done => {
  const frame = document.createElement('iframe'), form = document.createElement('form');
  frame.name = 'frame' + document.querySelectorAll('iframe').length;
  Object.assign(form, { method: 'POST', action: admin + path, enctype: kind, target: frame.name });
  const input = Object.assign(document.createElement('input'), { name, value });
  form.append(input);
  document.body.append(frame, form);
  frame.onload = () => { if (frame.dataset.sent) done(frame.contentDocument === null ? 'foreign' : 'own'); };
  setTimeout(() => { frame.dataset.sent = 'yes'; form.submit(); }, 50);
  setTimeout(() => done('late'), 5000);
});
(async () => {
  const results = {};
  for (const path of ['/', '/limits', '/limits/hourly/keys', '/bans', '/status', '/metrics', '/openapi.json']) {
    results['read ' + path] = await read(path);
    results['opaque ' + path] = await read(path, { mode: 'no-cors' });
  }
  results.events = await read('/events');
  results.source = await new Promise(done => {
    const source = new EventSource(admin + '/events');
    source.onmessage = () => done('message');
    source.onerror = () => { source.close(); done('error'); };
  });
  const reset = '/limits/hourly/keys/ip=127.0.0.1/reset';
  results['ban'] = await post('/bans', ban, { headers: json });
  results['ban, no cors'] = await post('/bans', ban, { mode: 'no-cors' });
  results['ban, no cors, type'] = await post('/bans', new Blob([ban], { type: 'application/json' }), { mode: 'no-cors' });
  results['reset, no cors'] = await post(reset, '{}', { mode: 'no-cors' });
  results['drain, no cors'] = await post('/upstreams/app/servers/127.0.0.1:1/drain', '{}', { mode: 'no-cors' });
  results['unban'] = await read('/bans/192.0.2.7', { method: 'DELETE' });
  results['beacon'] = String(navigator.sendBeacon(admin + '/bans', new Blob([ban], { type: 'text/plain' })));
  results['form, plain'] = await form('/bans', 'text/plain', '{"ip": "192.0.2.66", "reason": "', '"}');
  results['form'] = await form(reset, 'application/x-www-form-urlencoded', '{}', '');
  done(results);
})();
"#;

#[test]
fn another_site_reads_nothing_and_changes_nothing() {
    let gateway = Gateway::start(FILE);
    let site =
        Upstream::new(|_| Reply::with(200, &[("Content-Type", "text/html")], "<title>evil</title><body>"));
    (0..2).for_each(|_| drop(gateway.get("/")));
    let ban = post("/bans", br#"{"ip": "192.0.2.7"}"#).header("Content-Type", "application/json");
    gateway.ask_admin(&ban).expect(200);
    let changes = || gateway.metric("sluicegate_admin_changes_total", &["ok"]);
    let before = changes();
    let browser = Browser::start();
    browser.go(&site.url());
    let results = browser.run_async(&format!("const admin = 'http://{}'; {ATTACK}", gateway.admin()));
    for (name, result) in results.as_object().expect("results") {
        let wanted: &[&str] = match name.split_once(' ') {
            Some(("opaque", _)) => &["opaque 0 0"],
            _ if name.ends_with("no cors") => &["opaque 0 0"],
            // A browser may refuse to send it at all.
            _ if name.ends_with("type") => &["opaque 0 0", "TypeError"],
            _ if name == "source" => &["error"],
            _ if name == "beacon" => &["true"],
            _ if name.starts_with("form") => &["foreign"],
            _ => &["TypeError"],
        };
        assert!(wanted.iter().any(|wanted| *result == json!(wanted)), "{name}: {result}");
    }
    assert_eq!(results.as_object().expect("results").len(), 25);
    let bans = gateway.admin_get("/bans").text();
    assert!(bans.contains("192.0.2.7") && !bans.contains("192.0.2.66"), "{bans}");
    assert_eq!(gateway.get("/").status, 429, "the key is as it was");
    assert!(!gateway.admin_get("/upstreams").text().contains("draining"));
    assert_eq!(changes(), before);
}

/// A frame of another site could lead clicks astray.
#[test]
fn another_site_does_not_frame_the_page() {
    let gateway = Gateway::start(FILE);
    let frame = format!("<body><iframe src=\"http://{}/\"></iframe>", gateway.admin());
    let site = Upstream::new(move |_| Reply::with(200, &[("Content-Type", "text/html")], &frame));
    let browser = Browser::start();
    browser.go(&site.url());
    eventually("the refusal", || {
        browser.console_errors().iter().any(|error| error.contains("frame-ancestors"))
    });
    assert!(!browser.requested_urls().iter().any(|url| url.ends_with("/limits")));
}

/// A name of another site that leads to this address (DNS rebinding) makes the page that site's own.
#[test]
fn a_rebound_name_reads_nothing() {
    let gateway = Gateway::start(FILE);
    let browser = Browser::start();
    browser.go(&format!("http://{REBOUND_HOST}:{}/", gateway.admin().port()));
    browser.wait_text("#limits", "the Host is neither an address, nor localhost");
    browser.wait_text("#live", "not live");
    let statuses = browser.run_async(
        "Promise.all(['/limits', '/bans', '/status', '/metrics', '/events'].map(path => fetch(path)))
           .then(answers => done(answers.map(answer => answer.status)))",
    );
    assert_eq!(statuses, json!([403, 403, 403, 403, 403]));
    let ban = browser.run_async(
        "fetch('/bans', { method: 'POST', body: '{\"ip\": \"192.0.2.66\"}', headers: { 'Content-Type': 'application/json' } })
           .then(answer => done(answer.status))",
    );
    assert_eq!(ban, json!(403));
    assert!(!gateway.admin_get("/bans").text().contains("192.0.2.66"));
}
