//! Reads `url` and `tls` of `state.redis`.

use std::path::Path;

use super::upstream_tls::UpstreamTlsReader;
use crate::schema::tables::state::{redis, redis_tls};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::NodeContent;
use sluicegate_base::system_roots::load_system_roots;
use sluicegate_model::value::redis_url::{RedisEndpoint, parse_seed_url, parse_server_url, url_error};
use sluicegate_model::{RedisServers, RedisTlsFiles, codes};

/// Reads `url`; `None` after an error.
pub(crate) fn read_redis_endpoint(value: &FieldValue<'_>) -> Option<RedisEndpoint> {
    match value.node.content {
        NodeContent::List(_) => read_cluster_urls(value),
        _ => value.parse_with(parse_server_url),
    }
}

/// Some nodes of a Cluster, which share everything except their addresses.
fn read_cluster_urls(value: &FieldValue<'_>) -> Option<RedisEndpoint> {
    let items = value.one_or_more();
    value.check_filled("write the URLs of some nodes of the Cluster, or one URL without a list");
    let mut endpoint: Option<RedisEndpoint> = None;
    let mut seeds = Vec::new();
    for item in &items {
        let Some((seed, url)) = item.parse_with(parse_seed_url) else { continue };
        seeds.push(seed);
        match &endpoint {
            None => endpoint = Some(url),
            Some(first)
                if (first.tls, &first.user, &first.password) != (url.tls, &url.user, &url.password) =>
            {
                let message = "the nodes of a Cluster must have the same scheme, user and password";
                item.report_at_value(
                    url_error(message).with_help("write the same ones in each URL of the list"),
                );
            }
            Some(_) => {}
        }
    }
    let endpoint = endpoint.filter(|_| seeds.len() == items.len())?;
    Some(RedisEndpoint { servers: RedisServers::Cluster(seeds), ..endpoint })
}

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
            url.refuse(codes::TLS, message, help);
        }
        RedisTlsFiles { roots, identity }
    });
    let section = fields.find(&redis::TLS).filter(|value| !value.is_null());
    if let (Some(section), Some(_), false) = (section, url, is_encrypted) {
        let message = "`tls` is for rediss:// URLs, and this Redis is reached without TLS";
        let help = "write the URL as rediss://HOST:PORT, or remove tls";
        section.refuse_name(codes::TLS, message, help);
    }
    files
}

#[cfg(test)]
mod tests;
