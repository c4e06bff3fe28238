//! Finds the endpoint of a request by the table, and reads the parameters of its path and its query.

use percent_encoding::percent_decode_str;

use super::endpoint::{Endpoint, Parameter, ParameterKind};
use sluicegate_base::escape;

/// The endpoint that a path belongs to.
pub(super) enum EndpointRoute {
    Found {
        endpoint: &'static Endpoint,
        /// Percent-decoded values by name.
        path_values: Vec<(&'static str, String)>,
    },
    /// Endpoints have this path, but not this method.
    WrongMethod(Vec<&'static Endpoint>),
    /// No endpoint has this path.
    Unknown,
}

impl EndpointRoute {
    pub(super) fn find(endpoints: &'static [Endpoint], method: &str, path: &str) -> EndpointRoute {
        let same_path = endpoints.iter().filter_map(|endpoint| Some((endpoint, match_path(endpoint, path)?)));
        let mut same_path: Vec<_> = same_path.collect();
        // A HEAD is a GET without its body.
        let method = if method == "HEAD" { "GET" } else { method };
        match same_path.iter().position(|(endpoint, _)| endpoint.method == method) {
            Some(at) => {
                let (endpoint, path_values) = same_path.swap_remove(at);
                EndpointRoute::Found { endpoint, path_values }
            }
            None if same_path.is_empty() => EndpointRoute::Unknown,
            None => EndpointRoute::WrongMethod(same_path.into_iter().map(|(endpoint, _)| endpoint).collect()),
        }
    }
}

/// The methods of endpoints on one path, as `Allow` lists them.
pub(super) fn list_methods(endpoints: &[&Endpoint]) -> String {
    let methods =
        endpoints.iter().map(|endpoint| if endpoint.method == "GET" { "GET, HEAD" } else { endpoint.method });
    methods.collect::<Vec<_>>().join(", ")
}

/// The values of the path's parameters; `None` if the path is not that of the endpoint, or is malformed.
fn match_path(endpoint: &'static Endpoint, path: &str) -> Option<Vec<(&'static str, String)>> {
    let (mut template, mut path, mut values) = (endpoint.path, path, Vec::new());
    while let Some((literal, rest)) = template.split_once('{') {
        path = path.strip_prefix(literal)?;
        let (name, behind) = rest.split_once('}')?;
        let (value, rest) = match behind.split_once('{') {
            // The last parameter takes everything up to the end of the template.
            None => (path.strip_suffix(behind)?, behind),
            Some((separator, _)) => {
                let (value, _) = path.split_once(separator)?;
                (value, &path[value.len()..])
            }
        };
        let may_have_slashes = endpoint.parameters.iter().any(|parameter| {
            parameter.name == name && matches!(parameter.kind, ParameterKind::TextWithSlashes)
        });
        if value.is_empty() || value.contains('/') && !may_have_slashes {
            return None;
        }
        values.push((name, percent_decode(value)?));
        (template, path) = (behind, rest);
    }
    (template == path).then_some(values)
}

/// The values of the endpoint's parameters in a query. Other parameters are ignored.
///
/// # Errors
/// A sentence about the first parameter that does not fit.
pub(super) fn read_query(
    endpoint: &'static Endpoint,
    query: &str,
) -> Result<Vec<(&'static str, String)>, String> {
    let mut values: Vec<(&'static str, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |text: &str| percent_decode(&text.replace('+', " "));
        let Some(name) = decode(name) else { continue };
        let Some((parameter, _)) = endpoint.query_parameters().find(|(known, _)| known.name == name) else {
            continue;
        };
        if values.iter().any(|(known, _)| *known == parameter.name) {
            return Err(format!("the parameter `{name}` is given twice"));
        }
        let value = decode(value).ok_or_else(|| format!("the parameter `{name}` is not UTF-8 text"))?;
        check_value(parameter, &value)?;
        values.push((parameter.name, value));
    }
    Ok(values)
}

fn check_value(parameter: &Parameter, value: &str) -> Result<(), String> {
    let name = parameter.name;
    let wrong = |wanted: String| Err(format!("the parameter `{name}` must be {wanted}"));
    match parameter.kind {
        ParameterKind::Flag if !["true", "false"].contains(&value) => wrong("true or false".to_owned()),
        ParameterKind::Words(words) if !words.contains(&value) => wrong(words.join(" or ")),
        ParameterKind::Integer(least, most) => {
            let is_plain = value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
            match number {
                Some(_) if is_plain => Ok(()),
                _ => wrong(format!("a number from {least} to {most}")),
            }
        }
        _ => Ok(()),
    }
}

/// Percent-decodes; `None` when the result is not UTF-8, or an escape is malformed.
fn percent_decode(text: &str) -> Option<String> {
    if !escape::has_whole_escapes(text) {
        return None;
    }
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::super::endpoints::ENDPOINTS;
    use super::*;

    /// The name of the endpoint and the values of its path.
    fn found(method: &str, path: &str) -> Option<(&'static str, Vec<String>)> {
        match EndpointRoute::find(ENDPOINTS, method, path) {
            EndpointRoute::Found { endpoint, path_values } => {
                Some((endpoint.name, path_values.into_iter().map(|(_, value)| value).collect()))
            }
            _ => None,
        }
    }

    fn is_unknown(path: &str) -> bool {
        matches!(EndpointRoute::find(ENDPOINTS, "POST", path), EndpointRoute::Unknown)
    }

    #[test]
    fn paths_name_servers() {
        let drain =
            |upstream: &str, server: &str, name| Some((name, vec![upstream.to_owned(), server.to_owned()]));
        assert_eq!(found("GET", "/"), Some(("show_page", vec![])));
        assert_eq!(found("GET", "/upstreams"), Some(("list_upstreams", vec![])));
        assert_eq!(found("GET", "/upstreams/a%20b"), Some(("show_upstream", vec!["a b".to_owned()])));
        let plain = "/upstreams/app/servers/a:1/drain";
        assert_eq!(found("POST", plain), drain("app", "a:1", "drain_server"));
        let address = "/upstreams/app/servers/[::1]:1/undrain";
        assert_eq!(found("POST", address), drain("app", "[::1]:1", "undrain_server"));
        let socket = "/upstreams/app/servers/unix:/run/a.sock/drain";
        assert_eq!(found("POST", socket), drain("app", "unix:/run/a.sock", "drain_server"));
        let encoded = "/upstreams/unix:/run/a.sock/servers/unix:%2Frun%2Fa.sock/undrain";
        assert_eq!(found("POST", encoded), drain("unix:/run/a.sock", "unix:/run/a.sock", "undrain_server"));
        let encoded = "/upstreams/http%3A%2F%2F10.9.9.9%3A81/servers/10.9.9.9%3a81/drain";
        assert_eq!(found("POST", encoded), drain("http://10.9.9.9:81", "10.9.9.9:81", "drain_server"));
        for path in ["//", "/upstreamsx", "/upstreams/", "/upstreams/app/servers/a:1", "/healthz/"] {
            assert!(is_unknown(path), "{path}");
        }
        for path in ["/upstreams/a%/servers/b/drain", "/upstreams/a%ff/servers/b/drain"] {
            assert!(is_unknown(path), "{path}");
        }
    }

    #[test]
    fn other_methods_are_told_apart() {
        assert_eq!(found("HEAD", "/status"), Some(("show_status", vec![])));
        for (method, path, allowed) in [
            ("GET", "/reload", "POST"),
            ("OPTIONS", "/status", "GET, HEAD"),
            ("DELETE", "/upstreams/app/servers/a:1/drain", "POST"),
        ] {
            let EndpointRoute::WrongMethod(endpoints) = EndpointRoute::find(ENDPOINTS, method, path) else {
                panic!("{method}")
            };
            assert_eq!(list_methods(&endpoints), allowed);
        }
    }

    #[test]
    fn values_of_a_query_fit_their_parameters() {
        let drain = ENDPOINTS.iter().find(|endpoint| endpoint.name == "drain_server").unwrap();
        let read = |query| read_query(drain, query);
        assert_eq!(read("x=%zz&force=true"), Ok(vec![("force", "true".to_owned())]));
        assert_eq!(read("f%6Frce=%66alse&"), Ok(vec![("force", "false".to_owned())]));
        for (query, why) in
            [("force", "true or false"), ("force=1", "true or false"), ("force=%zz", "not UTF-8")]
        {
            assert!(read(query).unwrap_err().contains(why), "{query}");
        }
        assert!(read("force=true&force=true").unwrap_err().contains("twice"));
        static TOP: Parameter = Parameter {
            name: "top",
            default: Some("20"),
            kind: ParameterKind::Integer(1, 100),
            example: "5",
            sentence: "",
        };
        for (value, fits) in
            [("1", true), ("100", true), ("0", false), ("101", false), ("+5", false), ("", false)]
        {
            assert_eq!(check_value(&TOP, value).is_ok(), fits, "{value}");
        }
    }
}
