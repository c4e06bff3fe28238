//! The folder of certificates, broken and shared, without a directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::keys::{request_certificate, sign_here, test_certificate};
use super::schedule::OrderWait;
use super::storage::{OrderAnswers, OrderLock, Storage};
use super::task::StorageTask;
use super::*;
use sluicegate_http::net::acme_challenges::AcmeChallenges;
use sluicegate_model::value::https_url::parse_https_url;

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("sluicegate-acme-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn config(folder: &Path, domains: &[&str]) -> Arc<AcmeConfig> {
    Arc::new(AcmeConfig {
        domains: domains.iter().map(|&domain| domain.to_owned()).collect(),
        email: None,
        directory: parse_https_url("https://127.0.0.1:1/dir").unwrap(),
        roots: Arc::new(rustls::RootCertStore::empty()),
        storage: folder.to_owned(),
        eab: None,
        current: Arc::default(),
    })
}

/// A certificate until the year, with its key, in PEM.
fn pem(domains: &[&str], until: i32) -> String {
    let names: Vec<String> = domains.iter().map(|&domain| domain.to_owned()).collect();
    let mut parameters = CertificateParams::new(names).unwrap();
    (parameters.not_before, parameters.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(until, 1, 1));
    let key = KeyPair::generate().unwrap();
    format!("{}{}", key.serialize_pem(), parameters.self_signed(&key).unwrap().pem())
}

const NOW: u64 = 1_700_000_000;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_certificate_is_tested_before_it_is_used() {
    let good = pem(&["a.example", "B.example"], 2100);
    let found = test_certificate(good.as_bytes(), NOW).unwrap_or_else(|reason| panic!("{reason}"));
    assert_eq!(found.names, ["a.example", "b.example"]);
    let other = pem(&["a.example"], 2100);
    let (key, _) = good.split_at(good.find("-----BEGIN CERTIFICATE").unwrap());
    let (_, chain) = other.split_at(other.find("-----BEGIN CERTIFICATE").unwrap());
    for (text, reason) in [
        (format!("{key}{chain}"), "holds a key that does not fit"),
        (pem(&["a.example"], 2010), "has expired"),
        (chain.to_owned(), "holds no key that can be read"),
        (key.to_owned(), "holds no certificate that can be read"),
        (good[..good.len() - 60].to_owned(), "holds no certificate that can be read"),
        (String::new(), "holds no certificate that can be read"),
    ] {
        assert_eq!(test_certificate(text.as_bytes(), NOW).err(), Some(reason));
    }
    assert_eq!(
        test_certificate(good.as_bytes(), 900_000_000).err(),
        Some("is not valid yet by the clock of this machine")
    );
    let own = sign_here(&["a.example".to_owned()], None).unwrap();
    assert_eq!(sluicegate_base::certificate::host_names(&own.cert[0]), ["a.example"]);
    let challenge = sign_here(&["a.example".to_owned()], Some(&[7; 32])).unwrap();
    // The object identifier 1.3.6.1.5.5.7.1.31, marked as critical.
    let id = [6, 8, 0x2b, 6, 1, 5, 5, 7, 1, 31, 1, 1, 0xff];
    assert!(challenge.cert[0].windows(id.len()).any(|bytes| bytes == id));
    let (key, request) = request_certificate(&["a.example".to_owned()]).unwrap();
    assert!(key.contains("PRIVATE KEY") && !request.is_empty());
}

#[test]
fn files_are_for_their_owner_alone() {
    let folder = Folder::new("modes");
    let (storage, acme) = (Storage::new(folder.0.clone()), config(&folder.0, &["a.example"]));
    assert!(storage.read_certificate(&acme, NOW).is_none());
    storage.write(&acme.certificate_path(), pem(&["a.example"], 2100).as_bytes()).unwrap();
    assert_eq!((mode(&folder.0), mode(&acme.certificate_path())), (0o700, 0o600));
    fs::set_permissions(acme.certificate_path(), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(storage.read_certificate(&acme, NOW).is_some());
    assert_eq!(mode(&acme.certificate_path()), 0o600);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn another_list_of_domains_serves_the_certificate_that_names_most() {
    let folder = Folder::new("domains");
    let storage = Storage::new(folder.0.clone());
    for (domains, until) in
        [(&["a.example"][..], 2100), (&["a.example", "b.example"], 2050), (&["x.example"], 2100)]
    {
        let stored = config(&folder.0, domains);
        storage.write(&stored.certificate_path(), pem(domains, until).as_bytes()).unwrap();
    }
    fs::write(folder.0.join("broken.pem"), "-----BEGIN CERTIFICATE-----\nAAAA").unwrap();
    let wanted = config(&folder.0, &["a.example", "b.example", "c.example"]);
    assert!(storage.read_certificate(&wanted, NOW).is_none());
    assert_eq!(storage.find_certificate(&wanted, NOW).unwrap().names, ["a.example", "b.example"]);
    assert!(storage.find_certificate(&config(&folder.0, &["z.example"]), NOW).is_none());
}

#[test]
fn one_gateway_has_the_lock() {
    let folder = Folder::new("lock");
    let (one, other) = (Storage::new(folder.0.clone()), Storage::new(folder.0.clone()));
    let lock = |storage: &Storage| OrderLock { owner: storage.owner.clone(), ..OrderLock::default() };
    assert_eq!(one.take_lock(&lock(&one), None), Ok(true));
    assert_eq!(other.take_lock(&lock(&other), None), Ok(false));
    assert!(one.has_lock() && !other.has_lock());
    other.release_lock();
    assert!(one.has_lock());
    let stale = one.read(&one.lock_path()).unwrap();
    assert_eq!(other.take_lock(&lock(&other), Some(b"another content")), Ok(false));
    assert_eq!(other.take_lock(&lock(&other), Some(&stale)), Ok(true));
    assert!(other.has_lock() && !one.has_lock());
    other.release_lock();
    assert!(!other.lock_path().exists());
    let file = Storage::new(PathBuf::from("/dev/null/x"));
    assert!(file.take_lock(&lock(&file), None).unwrap_err().starts_with("cannot be written"));
}

fn task(acme: &Arc<AcmeConfig>) -> (StorageTask, Arc<AcmeChallenges>, Rc<RefCell<Vec<AcmeStatus>>>) {
    let (challenges, reports) = (Arc::<AcmeChallenges>::default(), Rc::default());
    let one = std::slice::from_ref(acme);
    (StorageTask::new(one, true, challenges.clone(), Rc::clone(&reports)), challenges, reports)
}

#[tokio::test(start_paused = true)]
async fn the_challenges_of_another_gateway_are_answered_while_its_lock_lives() {
    let folder = Folder::new("foreign");
    let (other, acme) = (Storage::new(folder.0.clone()), config(&folder.0, &["a.example"]));
    let tokens = [("abc".to_owned(), "abc.print".to_owned())].into();
    let answers = OrderAnswers { tokens, ..OrderAnswers::default() };
    let mut lock = OrderLock { owner: other.owner.clone(), answers, expires_at: 0 };
    assert_eq!(other.take_lock(&lock, None), Ok(true));
    let (mut task, challenges, _) = task(&acme);
    assert!(task.look_at_lock().await);
    assert!(challenges.find_token("/.well-known/acme-challenge/abc").is_some());
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert!(task.look_at_lock().await);
    // It is renewed.
    lock.expires_at = unix_seconds() + 30;
    other.write_json(other.lock_path(), &lock).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(task.look_at_lock().await);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert!(!task.look_at_lock().await);
    other.release_lock();
    assert!(!task.look_at_lock().await && !challenges.is_open());
    // By the clock it ended long ago.
    lock.expires_at = 1;
    assert_eq!(other.take_lock(&lock, None), Ok(true));
    assert!(!task.look_at_lock().await);
}

#[tokio::test(start_paused = true)]
async fn a_failed_order_waits_as_its_file_says() {
    tokio::task::LocalSet::new()
        .run_until(async {
            let folder = Folder::new("wait");
            let (storage, acme) = (Storage::new(folder.0.clone()), config(&folder.0, &["a.example"]));
            let (task, challenges, reports) = task(&acme);
            let running = tokio::task::spawn_local(task.run());
            // Nothing listens there.
            while challenges.failed.load(std::sync::atomic::Ordering::Relaxed) == 0 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
            let wait: OrderWait = storage.read_json(&storage.wait_path(&acme)).unwrap();
            assert_eq!((wait.failures, wait.wait_s), (1, 60));
            let report = reports.borrow()[0].clone();
            assert!(report.error.unwrap().contains("cannot connect") && !report.issued);
            assert!(!storage.lock_path().exists());
            running.abort();
            // A new process goes on with the wait.
            let (mut next, _, _) = self::task(&acme);
            next.look_at_files().await;
            assert!(next.next_order_in(0) > 50);
        })
        .await;
}

#[tokio::test]
async fn a_stored_certificate_is_taken_over_and_never_lost() {
    let folder = Folder::new("adopt");
    let (storage, acme) = (Storage::new(folder.0.clone()), config(&folder.0, &["a.example"]));
    let (mut task, _, _) = task(&acme);
    let path = acme.certificate_path();
    storage.write(&path, pem(&["a.example"], 2050).as_bytes()).unwrap();
    task.look_at_files().await;
    let first = acme.current.load_full().unwrap();
    for broken in ["", "x", "-----BEGIN CERTIFICATE-----"] {
        fs::write(&path, broken).unwrap();
        task.look_at_files().await;
        assert!(Arc::ptr_eq(&first, &acme.current.load_full().unwrap()));
    }
    fs::remove_dir_all(&folder.0).unwrap();
    task.look_at_files().await;
    assert!(Arc::ptr_eq(&first, &acme.current.load_full().unwrap()));
    storage.write(&path, pem(&["a.example"], 2090).as_bytes()).unwrap();
    task.look_at_files().await;
    assert!(!Arc::ptr_eq(&first, &acme.current.load_full().unwrap()));
}
