//! The fields of `acme`: wrong values are refused, and `check` asks nobody.

use crate::site::{HELLO, Site};
use crate::support::*;

#[track_caller]
fn check(site: &Site, yaml: &str) -> Finished {
    let file = site.folder().join("gateway.yaml");
    std::fs::write(&file, yaml).expect("the folder takes files");
    let file = file.display().to_string();
    Run::default().args(&["check", "-c", &file]).finish(site.folder())
}

#[test]
fn wrong_values_are_refused() {
    let site = Site::alone();
    let many: Vec<String> = (0..101).map(|number| format!("n{number}.test")).collect();
    let long = format!("{}.test", "x".repeat(64));
    let full = site.acme("a.test");
    let with = |domains: &str| site.acme(domains);
    let ca = site.world.authority.file().display().to_string();
    site.world.authority.issue("own", &["a.test"]);
    let own = site.world.authority.entry("own");
    for (name, acme) in [
        ("no domain", with("")),
        ("a wildcard", with("\"*.a.test\"")),
        ("an address", with("192.0.2.1")),
        ("an address of IPv6", with("\"2001:db8::1\"")),
        ("a port", with("\"a.test:443\"")),
        ("a path", with("a.test/x")),
        ("a repeated name", with("a.test, A.TEST")),
        ("a label that is too long", with(&long)),
        ("101 domains", with(&many.join(", "))),
        ("a directory without TLS", full.replace("https://", "http://")),
        ("a directory that is no URL", full.replace(&site.directory.url(), "example")),
        ("an authority that is missing", full.replace(&ca, "missing.pem")),
        ("no storage", full.split(", storage").next().expect("fields").to_owned()),
        (
            "no domains",
            full.split_once("directory").map(|one| format!("directory{}", one.1)).expect("fields"),
        ),
        ("an e-mail that is none", format!("{full}, email: nobody")),
        ("an unknown field", format!("{full}, dns: cloud")),
        ("a binding without its key", format!("{full}, eab: {{ kid: x }}")),
        ("a binding whose key is no base64", format!("{full}, eab: {{ kid: x, hmac: \"%%%\" }}")),
    ] {
        let yaml = site.listening(&format!("{{ acme: {{ {acme} }} }}"), HELLO);
        let found = check(&site, &yaml);
        assert_eq!(found.code, Some(3), "{name}: {found:?}");
        assert!(found.stderr.contains("gateway.yaml:1:"), "{name}: {found:?}");
    }
    let both = site.listening(&format!("{{ {own}, acme: {{ {full} }} }}"), HELLO);
    let found = check(&site, &both);
    assert!(found.code == Some(3) && found.stderr.contains("acme"), "cert and acme in one entry: {found:?}");
    let fields = check(
        &site,
        &site.listening(&format!("{{ acme: {{ {full}, eab: {{ kid: x, hmac: \"%secret%\" }} }} }}"), ""),
    );
    assert!(!fields.stderr.contains("%secret%") && !fields.stdout.contains("%secret%"), "{fields:?}");
}

/// Neither `check` nor `explain` asks the directory or makes the folder.
#[test]
fn check_asks_nobody() {
    let site = Site::alone();
    let found = check(&site, &site.file("a.test"));
    assert_eq!((found.code, site.directory.asked().len()), (Some(0), 0), "{found:?}");
    assert!(!site.storage().exists(), "the start makes it");
    assert!(!found.stderr.contains("storage"), "{found:?}");
}

/// The systemd unit may write below /var/lib/sluicegate alone; a wrong folder shows before the start.
#[test]
fn check_warns_of_a_folder_that_cannot_be_written() {
    let site = Site::alone();
    let storage = site.storage().display().to_string();
    let occupied = site.folder().join("occupied");
    std::fs::write(&occupied, "a file").expect("the folder takes files");
    for place in [format!("{}/below", occupied.display()), occupied.display().to_string()] {
        let found = check(&site, &site.file("a.test").replace(&storage, &place));
        assert_eq!(found.code, Some(0), "{found:?}");
        assert!(format!("{}{}", found.stdout, found.stderr).contains(&place), "{found:?}");
    }
}

/// Plain text is the place of http-01 alone: without a plain listener a file is valid, too.
#[test]
fn defaults_suffice() {
    let site = Site::alone();
    let secure = site.secure;
    let yaml = format!(
        "listen: {{ address: \"{secure}\", tls: {{ acme: {{ domains: a.test, storage: here }} }} }}\n{}",
        HELLO
    );
    let found = check(&site, &yaml);
    assert_eq!(found.code, Some(0), "one domain may stand without a list: {found:?}");
}
