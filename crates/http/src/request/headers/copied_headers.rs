//! The headers that upstreams get from the answers of auth services alone, and never from clients.

use http::{HeaderMap, HeaderName};

use sluicegate_model::Config;

/// The names of `copy` of all locations, as CGI servers read them: any character but letters and digits is the same.
#[derive(Debug)]
pub struct CopiedHeaders(Box<[Box<str>]>);

impl CopiedHeaders {
    /// `None` if no location copies anything.
    pub fn new(config: &Config) -> Option<CopiedHeaders> {
        let folded = |name: &HeaderName| name.as_str().bytes().map(|byte| char::from(fold(byte))).collect();
        let mut names: Vec<Box<str>> = config.copied_headers().map(folded).collect();
        names.sort();
        names.dedup();
        (!names.is_empty()).then(|| CopiedHeaders(names.into()))
    }

    /// Removes these names from the head or the trailers of a request, in every spelling.
    pub fn strip(&self, headers: &mut HeaderMap) {
        // The usual request has none, and is only looked at.
        while let Some(name) = headers.keys().find(|name| self.holds(name)).cloned() {
            headers.remove(name);
        }
    }

    fn holds(&self, name: &HeaderName) -> bool {
        let name = name.as_str().as_bytes();
        let is_name =
            |own: &str| own.len() == name.len() && own.bytes().eq(name.iter().map(|byte| fold(*byte)));
        self.0.iter().any(|own| is_name(own))
    }
}

/// Names are in lower case.
fn fold(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte } else { b'-' }
}
