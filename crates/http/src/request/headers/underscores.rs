//! Filters request fields with underscores in their names. CGI and WSGI servers read `X_Real_IP` and `X-Real-IP` as one
//! name, so another spelling of a field that the gateway guarantees must not reach them.

use http::{HeaderMap, HeaderName};

use sluicegate_model::{BalancePolicy, Config, HeaderEdits, UnderscoreHeaders};

/// Hop-by-hop fields, which are removed under their own spelling. A name without a dash has no other spelling.
static HOP_BY_HOP_NAMES: [HeaderName; 6] = [
    http::header::TRANSFER_ENCODING,
    http::header::PROXY_AUTHENTICATE,
    http::header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

/// Decides which spellings of request fields pass. All lists are sorted.
#[derive(Debug)]
pub struct UnderscoreFilter {
    protected: Vec<String>,
    /// The protected names with dashes instead of underscores.
    dashed_names: Vec<String>,
    /// Names in the configuration that are not protected.
    written_names: Vec<String>,
    policy: UnderscoreHeaders,
    /// The configuration protects or replaces a name with an underscore. A name with dashes may be another spelling of
    /// it, so every request must be filtered.
    pub applies_to_all: bool,
}

impl UnderscoreFilter {
    /// `protected` are the fields that the configuration counts by or sends to upstreams.
    pub fn new(config: &Config, protected: &[HeaderName]) -> UnderscoreFilter {
        let edits = || config.locations.iter().map(|location| &location.request_headers);
        let balanced = config.upstreams.iter().filter_map(|upstream| match &upstream.balance {
            BalancePolicy::HashHeader(name) => Some(name),
            _ => None,
        });
        let added = edits().flat_map(|edits| edits.add.iter().map(|(name, _)| name));
        let written = config.access_log.headers.iter().chain(balanced).chain(added);
        let applies_to_all =
            protected.iter().chain(edits().flat_map(replaced_names)).any(|name| name.as_str().contains('_'));
        let protected = || protected.iter().chain(&HOP_BY_HOP_NAMES);
        UnderscoreFilter {
            protected: sort_names(protected().map(HeaderName::to_string)),
            dashed_names: sort_names(protected().map(to_dashed)),
            written_names: sort_names(
                written.chain(edits().flat_map(replaced_names)).map(HeaderName::to_string),
            ),
            policy: config.server.underscore_headers,
            applies_to_all,
        }
    }

    /// Removes other spellings of protected fields and of those that `edits` replace. Other names with an underscore
    /// are removed by policy, unless the configuration contains them.
    #[cold]
    pub fn strip_headers(&self, headers: &mut HeaderMap, edits: &HeaderEdits) {
        let disallowed = headers.keys().filter(|name| self.is_disallowed(name, edits));
        for name in disallowed.cloned().collect::<Vec<_>>() {
            headers.remove(name);
        }
    }

    /// Filters the trailers of a request like [`UnderscoreFilter::strip_headers`]. It also removes protected fields
    /// under their own spelling, because servers may add trailers to the head.
    pub fn strip_trailers(&self, trailers: &mut HeaderMap, edits: &HeaderEdits) {
        let is_disallowed = |name: &&HeaderName| {
            replaced_names(edits).any(|own| own == *name)
                || contains_name(&self.protected, name.as_str())
                || self.is_disallowed(name, edits)
        };
        for name in trailers.keys().filter(is_disallowed).cloned().collect::<Vec<_>>() {
            trailers.remove(name);
        }
    }

    fn is_disallowed(&self, name: &HeaderName, edits: &HeaderEdits) -> bool {
        let dashed_name = to_dashed(name);
        if replaced_names(edits).any(|own| own != name && to_dashed(own) == dashed_name) {
            return true;
        }
        let name = name.as_str();
        if contains_name(&self.protected, name) {
            return false;
        }
        contains_name(&self.dashed_names, &dashed_name)
            || self.policy == UnderscoreHeaders::Drop
                && name.contains('_')
                && !contains_name(&self.written_names, name)
    }
}

/// The fields that the upstream gets from the configuration alone, or not at all.
fn replaced_names(edits: &HeaderEdits) -> impl Iterator<Item = &HeaderName> {
    edits.set.iter().map(|(name, _)| name).chain(&edits.remove)
}

fn to_dashed(name: &HeaderName) -> String {
    name.as_str().replace('_', "-")
}

fn sort_names(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

fn contains_name(sorted: &[String], name: &str) -> bool {
    sorted.binary_search_by(|known| known.as_str().cmp(name)).is_ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use sluicegate_config as config;

    /// The rest of `names` at the first location of `yaml`.
    fn left(
        yaml: &str,
        names: &[&str],
        strip: fn(&UnderscoreFilter, &mut HeaderMap, &HeaderEdits),
    ) -> Vec<String> {
        let config = config::parse(yaml, "x").unwrap_or_else(|report| panic!("{report}")).config;
        let protected = crate::request::headers::hop_by_hop::protected_names(&config);
        let mut headers = HeaderMap::new();
        for name in names {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_static("x"));
        }
        let underscores = UnderscoreFilter::new(&config, &protected);
        strip(&underscores, &mut headers, &config.locations[0].request_headers);
        let mut left: Vec<String> = headers.keys().map(HeaderName::to_string).collect();
        left.sort();
        left
    }

    const FILE: &str =
        "server: { client_ip: header:X-Client, request_id: X-Trace-Id, underscore_headers: pass }
account: { from: header:X-Account-Id, tier: { from: header:X-Tier-Name, default: free } }
limits:
  a: { key: [header:X-Api-Key, header:In_File], rate: 1/s, cost: header:X-Cost-Of }
  b: { rate: 1/s, algorithm: leaky_bucket, queue: 2, fair_by: header:X-Turn-By }
access_log: { headers: [Log_Ged, X_Real_Ip] }
locations:
  - path: /
    upstream: demo
    limits: [a, b]
    request_headers: { set: { X-Set-Here: a, Set_Here: b }, add: { Add_Ed: a }, remove: [X-Gone-Here] }
    bandwidth: { rate: 1MB/s, key: header:X-Pace-By }
  - { path: /b, upstream: demo, request_headers: { set: { Set_There: a } } }
";

    #[test]
    fn other_spellings_of_protected_names_never_pass() {
        let foreign = [
            "x_real_ip",
            "x_forwarded_for",
            "x-forwarded_for",
            "x_forwarded_proto",
            "x_forwarded_host",
            "x_client",
            "x_trace_id",
            "x_account_id",
            "x_account-id",
            "x_tier_name",
            "x_api_key",
            "in-file",
            "x_cost_of",
            "x_turn_by",
            "x_pace_by",
            "x_set_here",
            "set-here",
            "x_gone_here",
            "content_length",
            "transfer_encoding",
            "keep_alive",
            "proxy_connection",
            "proxy_authorization",
            "http2_settings",
        ];
        assert_eq!(left(FILE, &foreign, UnderscoreFilter::strip_headers), [""; 0]);
        assert_eq!(left(FILE, &foreign, UnderscoreFilter::strip_trailers), [""; 0]);
        let known = ["content-length", "in_file", "set_here", "x-account-id", "x-real-ip", "x-set-here"];
        assert_eq!(left(FILE, &known, UnderscoreFilter::strip_headers), known);
        assert_eq!(left(FILE, &known, UnderscoreFilter::strip_trailers), [""; 0]);
    }

    #[test]
    fn other_names_pass_as_the_file_says() {
        let others = ["a-b", "a_b", "add_ed", "grpc-status", "log_ged", "set-there", "set_there"];
        assert_eq!(left(FILE, &others, UnderscoreFilter::strip_headers), others);
        let strict_others = ["a-b", "add_ed", "grpc-status", "log_ged", "set-there", "set_there"];
        let strict = FILE.replace(", underscore_headers: pass", "");
        assert_eq!(left(&strict, &others, UnderscoreFilter::strip_headers), strict_others);
        assert_eq!(left(&strict, &others, UnderscoreFilter::strip_trailers), strict_others);
    }
}
