//! Reads `acme` of a certificate: what is ordered, from whom, and where it is stored.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::tls_files::UpstreamTlsReader;
use crate::schema::field::ParseScalar;
use crate::schema::tables::listen::{acme, eab, tls};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use rustix::fs::{Access, access};
use sluicegate_model::{AccountBinding, AcmeConfig, codes};

/// The most names of one certificate, as of the large authorities.
const DOMAINS_MAX: usize = 100;

/// The order of one entry, and the value that names it.
pub(crate) fn read_acme<'a>(entry: &FieldReader<'a>) -> Option<(AcmeConfig, FieldValue<'a>)> {
    let value = entry.find(&tls::ACME)?;
    let config = entry.read_section_or_none(&tls::ACME, |fields| {
        let domains = read_domains(fields);
        let email = fields.read(&acme::EMAIL);
        let directory = fields.read_valid(&acme::DIRECTORY);
        let roots = UpstreamTlsReader::default().read_roots(fields, &acme::CA);
        let storage = fields.read_required(&acme::STORAGE).map(|storage| fields.whole.folder().join(storage));
        warn_of_storage(fields, storage.as_deref());
        let eab = fields.read_section_or_none(&acme::EAB, |fields| {
            let (kid, hmac) = (fields.read_required(&eab::KID), fields.read_required(&eab::HMAC));
            Some(AccountBinding { kid: kid?, hmac: hmac? })
        });
        Some(AcmeConfig {
            domains: domains?,
            email,
            directory: directory?,
            roots: roots?.0,
            storage: storage?,
            eab: eab.flatten(),
            current: Arc::default(),
        })
    });
    Some((config.flatten()?, value))
}

fn read_domains(fields: &FieldReader<'_>) -> Option<Vec<String>> {
    let value = fields.find_required(&acme::DOMAINS)?;
    value.check_filled("write at least one host name");
    let items = value.one_or_more();
    if items.len() > DOMAINS_MAX {
        let message = format!("one certificate is for at most {DOMAINS_MAX} host names");
        value.refuse_name(codes::NUMBER, message, "write an entry of tls for each certificate");
        return None;
    }
    let mut domains: Vec<String> = Vec::new();
    for item in &items {
        let name = item.parse_with(|text| acme::DOMAINS.value.0.parse_text(text))?;
        if domains.contains(&name) {
            let message = format!("`{name}` is named twice");
            item.refuse(codes::NAME, message, "write each host name once");
        }
        domains.push(name);
    }
    (!domains.is_empty()).then_some(domains)
}

fn warn_of_storage(fields: &FieldReader<'_>, storage: Option<&Path>) {
    if let (Some(value), Some(reason)) = (fields.find(&acme::STORAGE), storage.and_then(unwritable_reason)) {
        let help =
            "name a folder that the user of the gateway may write, or make it: nothing is ordered without it";
        let message = format!("`{}` cannot be written: {reason}", value.written_text());
        value.warn(codes::UNWRITABLE, message, help);
    }
}

/// Why a folder cannot be written, as far as that is known without a try; `None` = it can, or it can be made.
fn unwritable_reason(folder: &Path) -> Option<String> {
    let existing = folder.ancestors().find(|path| path.as_os_str().is_empty() || path.exists())?;
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    if !existing.is_dir() {
        return Some(format!("{} is no folder", existing.display()));
    }
    let allowed = access(existing, Access::WRITE_OK | Access::EXEC_OK);
    allowed.err().map(|error| format!("{}: {}", existing.display(), io::Error::from(error)))
}
