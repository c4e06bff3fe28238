//! Servers become an upstream, and paths with parameters those of locations.

use super::{DocumentReader, NAME_LENGTH_MAX};
use crate::ReadResult;
use crate::gateway_file::UpstreamPlan;
use crate::mapping_fields::MappingFields;
use crate::yaml_text::{clean_name, quote};
use regex_syntax::escape;
use sluicegate_config::schema::tables::locations::parse_plain_path;
use sluicegate_model::value::server_url::parse_server;

/// The address that is written if a document names none.
const NO_SERVER: &str = "http://127.0.0.1:9000";

impl DocumentReader<'_> {
    /// Adds the upstream: the first server, and those that differ from it in their hosts alone. Returns the beginning
    /// of all paths.
    pub(super) fn read_servers(&mut self, document: &MappingFields<'_>) -> ReadResult<String> {
        let mut urls = Vec::new();
        if document.find("swagger").is_some() {
            let schemes = document.list("schemes", "")?.map_or(&[][..], |(_, schemes)| schemes);
            let has_https =
                schemes.iter().any(|node| node.text().is_some_and(|text| text.written == "https"));
            let scheme = if has_https || schemes.is_empty() { "https://" } else { "http://" };
            let host = document.text("host")?.map(|host| scheme.to_owned() + &host).unwrap_or_default();
            let base = document.text("basePath")?.unwrap_or_default();
            urls.push((document.at.clone(), format!("{host}/{}", base.trim_start_matches('/'))));
        }
        for server in document.items("servers")? {
            let mut url = server.require("url")?;
            let variables = server.mapping("variables")?;
            for (key, _) in variables.iter() {
                let default = variables.mapping(&key.name)?.require("default")?;
                url = url.replace(&format!("{{{}}}", key.name), &default);
                self.report.differs(&server.at, &key.name, format!("the variable is always `{default}`"));
            }
            urls.push((server.at, url));
        }
        let (mut servers, mut first) = (Vec::new(), None);
        for (at, url) in &urls {
            let host = url.find("://").map_or(0, |scheme| scheme + 3);
            let length = if host == 0 { Some(0) } else { url[host..].find('/') };
            let (origin, path) = url.split_at(length.map_or(url.len(), |length| host + length));
            let alike = (&url[..host], path.trim_end_matches('/'));
            let fits = *first.get_or_insert(alike) == alike && parse_server(origin).is_ok();
            servers.extend(fits.then(|| quote(origin)));
            match (fits, servers.len()) {
                (true, 1) => self.report.exact(at, url, "server"),
                (true, _) => self.report.differs(at, url, "it shares the requests with the first server"),
                _ => self.report.differs(at, url, "left out: no host, or other paths than the first one"),
            }
        }
        let source = urls.first().map_or_else(|| document.at.clone(), |(at, _)| at.clone());
        if servers.is_empty() {
            servers.push(quote(NO_SERVER));
            self.report.differs(&source, NO_SERVER, "the document names no server: put yours in its place");
        }
        let name = servers[0].trim_matches('"').rsplit('/').next().map(clean_name).unwrap_or_default();
        let name = name.chars().take(NAME_LENGTH_MAX).collect();
        self.file.upstreams.push(UpstreamPlan { name, servers, fields: Vec::new(), source });
        Ok(first.map_or("", |(_, path)| path).to_owned())
    }
}

/// The path of the location for `template` behind `base`, and its rank: of two that match the same requests, the lesser
/// one is more specific, segment by segment.
///
/// # Errors
/// Why the gateway has no such location.
pub(super) fn write_path(base: &str, template: &str) -> Result<(String, Vec<usize>), String> {
    let whole = if template.starts_with('/') { base.to_owned() + template } else { template.to_owned() };
    parse_plain_path(&whole).map_err(|error| error.message)?;
    if whole.contains("//") || whole.contains('%') || whole.ends_with(' ') {
        return Err("the gateway compares decoded paths without `//`, and no space at their end".to_owned());
    }
    let (mut pattern, mut rank) = (String::new(), Vec::new());
    for segment in whole.split('/').skip(1) {
        let mut parts = segment.split('{');
        let mut literal = parts.next().unwrap_or_default().to_owned();
        pattern += &format!("/{}", escape(&literal));
        for part in parts {
            let is_segment = |(name, _): &(&str, &str)| !name.contains(['*', '+', '=']);
            let found = part.split_once('}').filter(is_segment);
            let (_, after) = found.ok_or_else(|| format!("`{{{part}` is no parameter within a segment"))?;
            pattern += &format!("[^/]+{}", escape(after));
            literal += after;
        }
        rank.push(if segment.contains('{') { usize::MAX - literal.len() } else { 0 });
    }
    // Bytes, because a parameter need not be UTF-8.
    let path = if whole.contains('{') { format!("~ (?-u)^{pattern}$") } else { format!("= {whole}") };
    Ok((path, rank))
}
