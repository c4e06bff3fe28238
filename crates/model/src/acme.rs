//! The typed model of `acme`: certificates that the gateway orders itself (RFC 8555).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::RootCertStore;
use rustls::sign::CertifiedKey;

use super::{HttpsUrl, Secret};
use sluicegate_base::value_hash::sha256;

/// The certificate that listeners present, which changes while they are in use; `None` = there is none yet.
pub type CurrentCertificate = Arc<ArcSwapOption<CertifiedKey>>;

/// One certificate that is ordered from a directory.
#[derive(Debug, Clone)]
pub struct AcmeConfig {
    /// The host names in lower case, as they are written.
    pub domains: Vec<String>,
    /// The contact of the account.
    pub email: Option<String>,
    /// The directory of the authority.
    pub directory: HttpsUrl,
    /// The authorities that verify the directory.
    pub roots: Arc<RootCertStore>,
    /// The folder of accounts, certificates and waits.
    pub storage: PathBuf,
    /// The account at the authority that a new one is bound to.
    pub eab: Option<AccountBinding>,
    /// The certificate in use.
    pub current: CurrentCertificate,
}

/// An account outside of ACME (RFC 8555, section 7.3.4).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccountBinding {
    /// The identifier of its key.
    pub kid: String,
    /// The key in base64url, as it is written.
    pub hmac: Secret,
}

impl AcmeConfig {
    /// The file of the certificate and its key, named by the first domain of the alphabet, and a hash of the directory
    /// and all domains.
    pub fn certificate_path(&self) -> PathBuf {
        let mut domains = self.domains.clone();
        domains.sort_unstable();
        let hash = short_hash(&[self.directory_text(), domains.join(" ")]);
        self.storage.join(format!("{}-{hash}.pem", domains[0]))
    }

    /// The file of the account, which entries with the same directory and e-mail share.
    pub fn account_path(&self) -> PathBuf {
        let kid = self.eab.as_ref().map(|eab| eab.kid.clone()).unwrap_or_default();
        let parts = [self.directory_text(), self.email.clone().unwrap_or_default(), kid];
        self.storage.join(format!("account-{}.json", short_hash(&parts)))
    }

    /// The whole URL of the directory.
    pub fn directory_text(&self) -> String {
        format!("https://{}{}", self.directory.authority, self.directory.target)
    }

    /// True if both are about one certificate.
    pub fn is_same_certificate(&self, other: &AcmeConfig) -> bool {
        self.certificate_path() == other.certificate_path()
    }

    /// A digest of everything but the certificate.
    pub fn digest(&self) -> u64 {
        let mut digest = DefaultHasher::new();
        (&self.domains, &self.email, &self.directory, &self.storage, &self.eab).hash(&mut digest);
        self.roots.roots.iter().for_each(|root| root.subject_public_key_info.hash(&mut digest));
        digest.finish()
    }
}

/// The first digits of a SHA-256, which tell files apart.
fn short_hash(parts: &[String]) -> String {
    format!("{:016x}", u64::from_be_bytes(sha256(parts.join("\n").as_bytes())))
}
