//! The folder of accounts, keys and certificates: its permissions, and what happens when it is lost or damaged.

use std::fs;
use std::path::Path;

use crate::directory::Step;
use crate::site::{Site, mode, orders, wait_failed};
use crate::support::*;

/// What is left of a file.
type Damage = fn(&[u8]) -> Vec<u8>;

/// Whatever the umask is.
#[test]
fn folders_and_files_are_for_the_owner_alone() {
    let site = Site::shared();
    let _gateway = Run::default().under("umask 000").start(&site.file("a.test"));
    site.wait_real("a.test");
    assert_eq!(mode(&site.storage()), 0o700);
    let files = site.stored();
    assert!(files.len() >= 2, "an account and a certificate");
    for (path, _) in files {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        let mut folder = path.parent();
        while let Some(inside) = folder.filter(|folder| **folder != site.storage()) {
            assert_eq!(mode(inside), 0o700, "{}", inside.display());
            folder = inside.parent();
        }
    }
}

/// Relative paths start at the folder of the configuration file.
#[test]
fn the_folder_is_found_from_the_file() {
    let site = Site::shared();
    let storage = site.storage().display().to_string();
    let gateway = Gateway::start(&site.file("a.test").replace(&storage, "certificates"));
    site.wait_real("a.test");
    assert_eq!(mode(&gateway.dir().join("certificates")), 0o700);
}

/// The certificate goes on serving; the next start orders anew.
#[test]
fn a_lost_folder_takes_no_certificate_away() {
    let site = Site::shared();
    let gateway = site.start("a.test");
    let first = site.wait_real("a.test");
    fs::remove_dir_all(site.storage()).expect("the folder can be removed");
    gateway.change(&format!("{}server: {{ max_waiting: 999 }}\n", site.file("a.test")));
    std::thread::sleep(ms(500));
    assert!(site.served("a.test") == first && site.is_real("a.test"));
    drop(gateway);
    let _gateway = site.start("a.test");
    assert!(site.wait_real("a.test") != first);
    assert_eq!(mode(&site.storage()), 0o700);
}

/// Whatever is cut or garbled, the program starts and gets a certificate, and does not multiply accounts.
#[test]
fn truncated_and_garbled_files_are_no_end() {
    let damages: [(&str, Damage); 4] = [
        ("empty", |_| Vec::new()),
        ("half", |text| text[..text.len() / 2].to_vec()),
        ("garbled", |text| text.iter().map(|byte| byte ^ 0x55).collect()),
        ("long", |text| [text, &vec![b'x'; 2 << 20]].concat()),
    ];
    at_once(damages, |(name, damage)| {
        let site = Site::shared();
        drop({
            let gateway = site.start("a.test");
            site.wait_real("a.test");
            gateway
        });
        for (path, text) in site.stored() {
            fs::write(&path, damage(&text)).expect("the file can be written");
        }
        let gateway = site.start("a.test");
        site.wait_real("a.test");
        assert!(site.directory.count(Step::NewAccount) <= 2, "{name}");
        assert!(site.directory.count(Step::NewOrder) <= 2, "{name}");
        assert_eq!(orders(&gateway)[1], 0.0, "{name}");
    });
}

/// One broken file does not cost what another holds: each file alone is cut, and the program starts with the others.
#[test]
fn each_file_alone_may_be_cut() {
    let site = Site::shared();
    let gateway = site.start("a.test");
    let first = site.wait_real("a.test");
    drop(gateway);
    let whole = site.stored();
    for (cut, text) in &whole {
        for (path, text) in &whole {
            fs::write(path, text).expect("the file can be written");
        }
        fs::write(cut, &text[..text.len() / 3]).expect("the file can be written");
        let gateway = site.start("a.test");
        site.wait_real("a.test");
        drop(gateway);
    }
    for (path, text) in &whole {
        fs::write(path, text).expect("the file can be written");
    }
    let _gateway = site.start("a.test");
    assert!(site.served("a.test") == first);
}

/// A broken file under a running program takes no certificate away.
#[test]
fn files_that_break_while_it_runs_take_no_certificate_away() {
    let site = Site::shared();
    let gateway = site.start("a.test");
    let first = site.wait_real("a.test");
    for (path, text) in site.stored() {
        fs::write(&path, &text[..text.len() / 2]).expect("the file can be written");
    }
    gateway.change(&format!("{}server: {{ max_waiting: 999 }}\n", site.file("a.test")));
    for _ in 0..10 {
        std::thread::sleep(ms(200));
        assert!(site.served("a.test") == first);
    }
}

/// A folder that cannot be made: the gateway serves, tells it, and does not order what it could not keep.
#[test]
fn a_folder_that_cannot_be_written_is_told() {
    let site = Site::shared();
    fs::write(site.storage(), "a file in place of the folder").expect("the folder takes files");
    let gateway = site.start("a.test");
    gateway.wait_stderr(&site.storage().display().to_string());
    site.served("a.test");
    gateway.admin_get("/readyz").expect(200);
    std::thread::sleep(ms(1000));
    assert!(site.directory.count(Step::NewOrder) <= 1, "orders that cannot be kept");
    let text = gateway.admin_get("/status").expect(200).text();
    assert!(text.contains("storage"), "{text}");
}

/// Read-only for a user without privileges; root writes anyway, so there the folder is of a file system without files.
#[test]
fn a_read_only_folder_is_told_and_its_certificate_serves() {
    let site = Site::shared();
    let gateway = site.start("a.test");
    let first = site.wait_real("a.test");
    drop(gateway);
    let is_root = rustix::process::geteuid().is_root();
    let read_only = |path: &Path, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
    };
    if is_root {
        let storage = site.storage().display().to_string();
        let gateway = Gateway::start(&site.file("a.test").replace(&storage, "/proc/acme"));
        gateway.wait_stderr("/proc/acme");
        site.served("a.test");
        gateway.admin_get("/readyz").expect(200);
    } else {
        read_only(&site.storage(), 0o500);
        let gateway = site.start("a.test, b.test");
        assert!(site.served("a.test") == first);
        wait_failed(&gateway);
        assert!(site.served("a.test") == first);
        read_only(&site.storage(), 0o700);
    }
}
