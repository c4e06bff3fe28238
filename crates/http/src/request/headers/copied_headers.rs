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

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use sluicegate_config as config;

    #[test]
    fn every_spelling_of_a_copied_name_is_removed() {
        let yaml = "locations: [{ path: /, upstream: demo, auth: { url: http://a, copy: [X-User, Remote_Groups] } }]";
        let config = config::parse(yaml, "x").unwrap_or_else(|report| panic!("{report}")).config;
        let copied = CopiedHeaders::new(&config).expect("two names");
        let foreign = [
            "x-user",
            "X-USER",
            "x_user",
            "X_User",
            "x.user",
            "x!user",
            "x~user",
            "x|user",
            "x`user",
            "x'user",
            "remote-groups",
            "remote_groups",
            "Remote.Groups",
            "remote+groups",
        ];
        let kept = ["x-users", "xuser", "x-use", "my-x-user", "remotegroups", "host"];
        let mut headers = HeaderMap::new();
        for name in foreign.iter().chain(&kept) {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name.clone(), HeaderValue::from_static("1"));
            headers.append(name, HeaderValue::from_static("2"));
        }
        copied.strip(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["host", "my-x-user", "remotegroups", "x-use", "x-users", "xuser"]);
    }

    #[test]
    fn without_copies_nothing_is_looked_at() {
        let yaml = "locations: [{ path: /, upstream: demo, auth: { url: http://a } }]";
        let config = config::parse(yaml, "x").unwrap_or_else(|report| panic!("{report}")).config;
        assert!(CopiedHeaders::new(&config).is_none());
    }
}
