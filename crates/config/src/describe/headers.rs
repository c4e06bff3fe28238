//! Edits of headers in one line. Values are left out: they may be secrets.

use http::HeaderName;

use super::join_names;
use sluicegate_model::headers::{HeaderEdits, HeaderText};

/// More names would hide the rest of the line.
const NAMES_MAX: usize = 5;

/// "set x-client, x-tier; add via; remove cookie"; `None` without edits.
pub fn describe_header_edits(edits: &HeaderEdits) -> Option<String> {
    let written = |pairs: &[(HeaderName, HeaderText)]| pairs.iter().map(|(name, _)| name.clone()).collect();
    let steps: [(&str, Vec<HeaderName>); 3] =
        [("set", written(&edits.set)), ("add", written(&edits.add)), ("remove", edits.remove.clone())];
    let steps = steps.iter().filter(|(_, names)| !names.is_empty());
    let described: Vec<String> =
        steps.map(|(verb, names)| format!("{verb} {}", join_names(names, NAMES_MAX))).collect();
    (!described.is_empty()).then(|| described.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_named_without_their_values() {
        let described = |edits: &str| {
            let file = format!("locations: [{{ path: /, upstream: demo, request_headers: {{ {edits} }} }}]");
            let config = crate::parse(&file, "x").unwrap_or_else(|report| panic!("{report}")).config;
            describe_header_edits(&config.locations[0].request_headers)
        };
        assert_eq!(described(""), None);
        let all = "set: { X-Key: secret, X-B: b }, add: { Via: g }, remove: [Cookie]";
        assert_eq!(described(all).unwrap(), "set x-key, x-b; add via; remove cookie");
        assert_eq!(described("remove: [a, b, c, d, e, f, g]").unwrap(), "remove a, b, c, d, e, 2 more");
    }
}
