//! Reads `state.redis.tls`: the authorities for `rediss://` servers, and the gateway's own certificate.

use std::path::Path;

use super::upstream_tls::UpstreamTlsReader;
use crate::schema::tables::state::{redis, redis_tls};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_base::system_roots::load_system_roots;
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::tls::RedisTlsFiles;

/// The files of `tls` in the section `fields`. `url` is the value of a URL that was read; `is_encrypted`: by TLS.
pub(crate) fn read_redis_tls(
    fields: &FieldReader<'_>,
    url: Option<&FieldValue<'_>>,
    is_encrypted: bool,
    folder: &Path,
) -> RedisTlsFiles {
    let files = fields.read_section(&redis::TLS, |tls| {
        let reader = UpstreamTlsReader::new(folder.to_path_buf());
        let own_roots = tls.find(&redis_tls::CA).filter(|ca| !ca.is_word("system"));
        let roots = own_roots.as_ref().and_then(|_| reader.read_authorities(tls, &redis_tls::CA));
        let identity = reader.read_identity(tls, &redis_tls::CERT, &redis_tls::KEY);
        if let (None, Some(url), true) = (own_roots, url, is_encrypted)
            && load_system_roots().is_empty()
        {
            let message = "this system trusts no authority, so the certificate of Redis cannot be verified";
            let help =
                "install the package ca-certificates, or name a file of authorities in tls: { ca: FILE }";
            url.report_at_value(ValueError::new(codes::TLS, message).with_help(help));
        }
        RedisTlsFiles { roots, identity }
    });
    let section = fields.find(&redis::TLS).filter(|value| !value.is_null());
    if let (Some(section), Some(_), false) = (section, url, is_encrypted) {
        let message = "`tls` is for rediss:// URLs, and this Redis is reached without TLS";
        let help = "write the URL as rediss://HOST:PORT, or remove tls";
        section.report_at_name(ValueError::new(codes::TLS, message).with_help(help));
    }
    files
}
