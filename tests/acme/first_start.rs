//! From the first start to the first certificate, and what the program says about it.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use crate::directory::{Deed, Step, problem};
use crate::pebble::Options;
use crate::site::{HELLO, Site, any, orders, status, wait_failed};
use crate::support::tls::shown;
use crate::support::*;

/// The object identifier of the curve P-256, as a certificate holds it.
const P_256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];

/// A self-signed certificate serves until the first one is there, and handshakes change over without a reload.
#[test]
fn a_self_signed_certificate_serves_until_the_first_one_is_there() {
    let site = Site::shared();
    let gate = Gate::default();
    let opened = gate.clone();
    site.directory.at(Step::NewOrder, move |_| Deed::Hold(opened.clone()));
    let gateway = site.start("a.test");
    site.directory.wait(Step::NewOrder, 1);
    gateway.admin_get("/readyz").expect(200);
    let stream = any(site.secure, "a.test", &[b"http/1.1"]).expect("a handshake");
    let first = shown(&stream);
    let mut early = Client::over_tls(stream);
    early.ask(&get("/").host("a.test")).expect(200);
    let names = first.windows(6).filter(|window| window == b"a.test").count();
    assert!(names >= 1 && !site.is_real("a.test"), "it names the host, and no authority signed it");
    gateway.wait_stderr("self-signed");
    let text = gateway.admin_get("/status").expect(200).text();
    assert!(text.contains("self-signed"), "{text}");
    assert!(status(&gateway).to_string().contains("self-signed"), "{}", status(&gateway));
    let generation = status(&gateway)["generation"].clone();
    gate.open();
    let second = site.wait_real("a.test");
    assert!(second != first && second.windows(P_256.len()).any(|window| window == P_256));
    early.ask(&get("/").host("a.test")).expect(200);
    let after = status(&gateway);
    assert_eq!(after["generation"], generation, "nothing was reloaded");
    assert!(!after.to_string().contains("self-signed"), "{after}");
    let file = after["certificates"].as_array().expect("certificates").first().expect("one").clone();
    assert!((89..=90).contains(&file["days_left"].as_u64().expect("days")), "{file}");
    let expires = gateway.metric("sluicegate_certificate_expires_timestamp_seconds", &["use=\"listener\""]);
    assert_eq!(Some(expires as u64), file["expires_at"].as_u64());
    // A second start asks for nothing.
    let orders = site.directory.count(Step::NewOrder);
    drop(gateway);
    let _again = site.start("a.test");
    assert!(site.served("a.test") == second, "it comes from the folder at once");
    std::thread::sleep(ms(500));
    assert_eq!(site.directory.count(Step::NewOrder), orders);
}

/// Names fold as those of the DNS: upper case, and a dot at the end.
#[test]
fn names_are_those_of_the_dns() {
    let site = Site::shared();
    let gateway = site.start("WWW.A.Test, xn--bcher-kva.test");
    site.wait_real("www.a.test");
    site.wait_real("xn--bcher-kva.test");
    let names: Vec<String> = site
        .directory
        .asked()
        .into_iter()
        .filter(|asked| asked.step == Step::NewOrder)
        .map(|asked| asked.payload()["identifiers"].to_string())
        .collect();
    assert!(names.len() == 1 && names[0].contains("\"www.a.test\""), "{names:?}");
    drop(gateway);
}

/// The most that one certificate holds.
#[test]
fn a_hundred_domains_are_one_order() {
    let site = Site::new();
    let domains: Vec<String> = (0..100).map(|number| format!("n{number}.test")).collect();
    let _gateway = site.start(&domains.join(", "));
    let certificate = site.wait_real("n0.test");
    assert!(site.wait_real("n99.test") == certificate);
    assert_eq!(site.directory.count(Step::NewOrder), 1);
}

/// Now and then by pebble itself, or the first two at each step.
#[test]
fn many_nonces_may_be_refused() {
    at_once([3, 0], |bad_nonces| {
        let site = Site::with(Options { bad_nonces, ..Options::default() });
        site.directory.script(move |asked| match asked.method == "POST" && asked.before < 2 {
            true if bad_nonces == 0 => Deed::Answer(400, "", problem("badNonce", "it was used before")),
            _ => Deed::Forward,
        });
        let gateway = site.start("a.test");
        site.wait_real("a.test");
        assert_eq!(orders(&gateway), [1.0, 0.0]);
    });
}

/// The HMAC of an external account, as an operator writes it.
fn hmac() -> String {
    URL_SAFE_NO_PAD.encode([7; 32])
}

fn bound(site: &Site, key: &str, hmac: &str) -> String {
    let acme = site.acme("a.test");
    site.listening(&format!("{{ acme: {{ {acme}, eab: {{ kid: {key}, hmac: \"{hmac}\" }} }} }}"), HELLO)
}

#[test]
fn an_account_is_bound_to_an_external_one() {
    let site = Site::with(Options { external: Some(("kid-1".into(), hmac())), ..Options::default() });
    let _gateway = Run::default().env("EAB_HMAC", &hmac()).start(&bound(&site, "kid-1", "${EAB_HMAC}"));
    site.wait_real("a.test");
    let account = site.directory.asked().into_iter().find(|asked| asked.step == Step::NewAccount);
    let payload = account.expect("an account").payload();
    assert!(payload["externalAccountBinding"].is_object(), "{payload}");
}

/// The reason is told, and neither this HMAC nor the right one.
#[test]
fn a_wrong_hmac_is_told_and_never_printed() {
    let site = Site::with(Options { external: Some(("kid-1".into(), hmac())), ..Options::default() });
    let wrong = URL_SAFE_NO_PAD.encode([9; 32]);
    let gateway = Run::default().env("EAB_HMAC", &wrong).start(&bound(&site, "kid-1", "${EAB_HMAC}"));
    wait_failed(&gateway);
    assert!(!site.is_real("a.test"));
    assert_nowhere(&gateway, &[wrong.as_str(), &hmac(), &STANDARD.encode([9; 32])]);
}

/// Neither logs nor answers to operators hold one of these texts.
#[track_caller]
pub fn assert_nowhere(gateway: &Gateway, secrets: &[&str]) {
    let json = |target: &str| gateway.ask_admin(&get(target).header("Accept", "application/json")).text();
    let pages = ["/status", "/metrics", "/", "/limits", "/config"];
    let mut outputs: Vec<String> = pages.iter().map(|page| gateway.admin_get(page).text()).collect();
    outputs.extend(pages.iter().map(|page| json(page)));
    outputs.push(gateway.stderr());
    outputs.extend(gateway.log_lines().iter().map(ToString::to_string));
    for (output, secret) in outputs.iter().flat_map(|output| secrets.iter().map(move |one| (output, one))) {
        assert!(!output.contains(*secret), "a secret is in: {output}");
    }
}

/// The private keys of `storage` are in no output.
#[test]
fn keys_stay_in_their_folder() {
    let site = Site::shared();
    let redis = Redis::start();
    let url = redis.url();
    let tls = format!("{{ acme: {{ {} }} }}", site.acme("a.test"));
    let gateway = Gateway::start(&site.listening(
        &tls,
        &format!(
            "log: {{ level: debug }}\nstate: {{ store: redis, redis: {{ url: \"{url}\" }} }}\n\
             locations: [{{ path: /, respond: {{ body: x }}, limits: {{ key: ip, rate: 100/s }} }}]\n"
        ),
    ));
    site.wait_real("a.test");
    let secrets = secrets(&site);
    assert!(secrets.len() >= 2, "the keys of an account and of a certificate");
    let texts: Vec<&str> = secrets.iter().map(String::as_str).collect();
    assert_nowhere(&gateway, &texts);
    for (key, _) in redis.keys() {
        let name = String::from_utf8_lossy(&key).into_owned();
        let dump: Vec<u8> = redis.ask(&["DUMP", &name]);
        let dump = String::from_utf8_lossy(&dump).into_owned();
        assert!(!dump.contains("PRIVATE KEY") && texts.iter().all(|text| !dump.contains(text)), "{name}");
    }
}

/// Parts of the private keys in `storage`: lines of PEM, and long texts of JSON that belong to a key.
fn secrets(site: &Site) -> Vec<String> {
    let mut found = Vec::new();
    for (_, text) in site.stored() {
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut parts = text.split("-----BEGIN PRIVATE KEY-----").skip(1);
        found.extend(parts.next().and_then(|part| part.lines().nth(1)).map(str::to_owned));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let key = json["key_pkcs8"].as_str().or(json["key"].as_str()).filter(|key| key.len() > 40);
        found.extend(key.map(str::to_owned));
    }
    found
}
