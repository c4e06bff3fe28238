//! The folder of accounts, certificates, waits and the lock of orders. Files are replaced as a whole, so that a process
//! that ends at any moment leaves the old or the new one. All functions but the `async` ones block on the disk.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::keys::{UsableCertificate, test_certificate};
use sluicegate_base::file::read_capped;
use sluicegate_base::value_hash::random_secret;
use sluicegate_model::AcmeConfig;

const FILE_MAX: u64 = 1 << 20;
/// The most files of a folder that are searched for a certificate.
const SEARCHED_MAX: usize = 1_000;

/// The content of the lock: the gateway that makes an order, until when it says so, and its answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct OrderLock {
    pub owner: String,
    /// In seconds since 1970.
    pub expires_at: u64,
    #[serde(flatten)]
    pub answers: OrderAnswers,
}

/// The answers to the challenges of an order.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct OrderAnswers {
    /// Key authorizations by their tokens.
    pub tokens: HashMap<String, String>,
    /// Digests for tls-alpn-01 by host names.
    pub hosts: HashMap<String, Vec<u8>>,
}

/// A folder, as one process uses it.
#[derive(Debug, Clone)]
pub(super) struct Storage {
    pub folder: PathBuf,
    /// The name of this process in locks.
    pub owner: String,
}

impl Storage {
    pub(super) fn new(folder: PathBuf) -> Storage {
        Storage { folder, owner: format!("{:032x}", u128::from_be_bytes(random_secret())) }
    }

    /// The content of a JSON file; `None` if it is absent or broken.
    pub(super) fn read_json<T: DeserializeOwned>(&self, path: &Path) -> Option<T> {
        serde_json::from_slice(&self.read(path)?).ok()
    }

    pub(super) fn read(&self, path: &Path) -> Option<Vec<u8>> {
        read_capped(path, FILE_MAX).ok()
    }

    /// Runs what blocks on the disk, beside the thread that asks for it.
    ///
    /// # Errors
    /// Those of `work`, or that it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Storage) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let storage = self.clone();
        spawn_blocking(move || work(&storage)).await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// # Errors
    /// A phrase that follows the name of the folder.
    pub(super) async fn write_json(&self, path: PathBuf, content: &impl Serialize) -> Result<(), String> {
        let text = serde_json::to_vec(content).map_err(|error| error.to_string())?;
        self.run(move |storage| storage.write(&path, &text)).await
    }

    /// Replaces the file, which its owner alone may read.
    ///
    /// # Errors
    /// A phrase that follows the name of the folder.
    pub(super) fn write(&self, path: &Path, content: &[u8]) -> Result<(), String> {
        let beside = path.with_extension(format!("{}.new", self.owner));
        // One that a killed process left.
        remove(&beside);
        let written = self.create(&beside, content).and_then(|()| fs::rename(&beside, path));
        written.map_err(|error| {
            remove(&beside);
            format!("cannot be written: {error}")
        })
    }

    /// Makes a file that is not there, and the folder.
    fn create(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(content)?;
        file.sync_all()
    }

    /// The file with the wait of a certificate.
    pub(super) fn wait_path(&self, acme: &AcmeConfig) -> PathBuf {
        acme.certificate_path().with_extension("wait.json")
    }

    /// The certificate that was issued for this very entry, with its file.
    pub(super) fn read_certificate(&self, acme: &AcmeConfig, now: u64) -> Option<UsableCertificate> {
        let path = acme.certificate_path();
        let pem = self.read(&path)?;
        close_to_others(&path);
        let broken = |reason: &&str| tracing::debug!("the file {} {reason}", path.display());
        let found = test_certificate(&pem, now).inspect_err(broken).ok()?;
        acme.domains.iter().all(|domain| found.names.contains(domain)).then_some(found)
    }

    /// The certificate in the folder that names most of the domains, and of several the one that ends last.
    pub(super) fn find_certificate(&self, acme: &AcmeConfig, now: u64) -> Option<UsableCertificate> {
        let files = self.files_ending("pem");
        let usable = files.filter_map(|path| test_certificate(&self.read(&path)?, now).ok());
        let named =
            |one: &UsableCertificate| acme.domains.iter().filter(|name| one.names.contains(name)).count();
        usable.filter(|one| named(one) > 0).max_by_key(|one| (named(one), one.life.1))
    }

    /// The files of the folder with this ending, as many as are searched.
    fn files_ending(&self, ending: &str) -> impl Iterator<Item = PathBuf> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().take(SEARCHED_MAX);
        let paths = files.filter_map(|file| Some(file.ok()?.path()));
        paths.filter(move |path| path.extension().is_some_and(|end| end == ending))
    }

    // === The lock ===

    pub(super) fn lock_path(&self) -> PathBuf {
        self.folder.join("order.lock")
    }

    /// Takes the lock, in place of one with the `stale` content; false if another gateway has it.
    ///
    /// # Errors
    /// A phrase that follows the name of the folder.
    pub(super) fn take_lock(&self, lock: &OrderLock, stale: Option<&[u8]>) -> Result<bool, String> {
        let path = self.lock_path();
        let text = serde_json::to_vec(lock).map_err(|error| error.to_string())?;
        if stale.is_some() {
            if self.read(&path).as_deref() != stale {
                return Ok(false);
            }
            self.write(&path, &text)?;
            // A process that ended while it wrote left them; only the owner of the lock writes.
            self.files_ending("new").for_each(|path| remove(&path));
            return Ok(true);
        }
        match self.create(&path, &text) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(format!("cannot be written: {error}")),
        }
    }

    /// True if this process has the lock.
    pub(super) fn has_lock(&self) -> bool {
        self.read_json::<OrderLock>(&self.lock_path()).is_some_and(|lock| lock.owner == self.owner)
    }

    pub(super) fn release_lock(&self) {
        if self.has_lock() {
            remove(&self.lock_path());
        }
    }
}

/// Removes a file, which may be absent.
pub(super) fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

/// Takes from others the right to read a key.
fn close_to_others(path: &Path) {
    let is_open = fs::metadata(path).is_ok_and(|data| data.permissions().mode() & 0o077 != 0);
    if is_open && fs::set_permissions(path, Permissions::from_mode(0o600)).is_ok() {
        let path = path.display();
        tracing::warn!("the file {path} with a private key was open to other users, and is not any more");
    }
}
