//! Cross-origin resource sharing (CORS, part of the Fetch standard): which responses a browser passes to a script of
//! another origin.
//!
//! Before an unusual request the browser asks for permission by a preflight: an OPTIONS with the origin and the method
//! of that request. The gateway answers it. Every other response says whether the script may read it and its fields.

use std::sync::Arc;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use sluicegate_model::{CorsConfig, CorsOrigins, OriginRule};

/// The rules of one location, ready to be applied.
#[derive(Debug)]
pub struct Cors {
    origins: OriginList,
    credentials: bool,
    exposed: HeaderValue,
    /// `None` = the requested method.
    methods: Option<HeaderValue>,
    /// `None` = the requested headers.
    headers: Option<HeaderValue>,
    /// Seconds.
    max_age: HeaderValue,
}

#[derive(Debug)]
enum OriginList {
    Any,
    Listed {
        /// Sorted.
        exact: Box<[String]>,
        /// Scheme and suffix.
        subdomains: Box<[(String, String)]>,
    },
}

/// The answer of a location's rules to one request.
#[derive(Debug)]
pub struct CorsAnswer {
    cors: Arc<Cors>,
    /// The value of Access-Control-Allow-Origin; `None` for a foreign origin, or without one.
    allowed_origin: Option<HeaderValue>,
    /// The request is a preflight, which the gateway itself answers.
    pub is_preflight: bool,
}

/// Bytes of the requested headers that are sent back.
const REQUESTED_HEADERS_MAX: usize = 4096;

const ANY_ORIGIN: HeaderValue = HeaderValue::from_static("*");
const TRUE: HeaderValue = HeaderValue::from_static("true");
const VARY_ORIGIN: HeaderValue = HeaderValue::from_static("Origin");
const VARY_PREFLIGHT: HeaderValue =
    HeaderValue::from_static("Origin, Access-Control-Request-Method, Access-Control-Request-Headers");

/// The method that a preflight asks for; `None` for any other request.
pub fn requested_method(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if *method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
        return None;
    }
    let requested = only_value(headers, &ACCESS_CONTROL_REQUEST_METHOD)?;
    Method::from_bytes(requested.as_bytes()).ok()
}

fn only_value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    lines.next().filter(|_| lines.next().is_none())
}

// === impl Cors ===

impl Cors {
    /// `request_id` is the header in which responses may name their request.
    pub fn new(config: &CorsConfig, request_id: &HeaderName) -> Cors {
        let join = |names: Vec<&str>| {
            // Cannot fail: methods and header names are tokens.
            HeaderValue::from_str(&names.join(", ")).expect("tokens are visible ASCII")
        };
        let methods =
            (!config.methods.is_empty()).then(|| config.methods.iter().map(Method::as_str).collect());
        let headers = config.headers.as_ref().map(|names| names.iter().map(HeaderName::as_str).collect());
        Cors {
            origins: OriginList::new(&config.origins),
            credentials: config.credentials,
            exposed: join(vec!["Retry-After", "RateLimit", "RateLimit-Policy", request_id.as_str()]),
            methods: methods.map(join),
            headers: headers.map(join),
            max_age: HeaderValue::from(config.max_age.as_secs()),
        }
    }

    /// Reads the origin of a request.
    pub fn answer_request(self: &Arc<Cors>, headers: &HeaderMap, is_preflight: bool) -> CorsAnswer {
        let origin = only_value(headers, &ORIGIN);
        let allowed_origin = match &self.origins {
            OriginList::Any => origin.map(|_| ANY_ORIGIN),
            listed => origin.filter(|origin| listed.contains_origin(origin.as_bytes())).cloned(),
        };
        CorsAnswer { cors: self.clone(), allowed_origin, is_preflight }
    }
}

// === impl OriginList ===

impl OriginList {
    fn new(origins: &CorsOrigins) -> OriginList {
        let CorsOrigins::Listed(rules) = origins else { return OriginList::Any };
        let (mut exact, mut subdomains) = (Vec::new(), Vec::new());
        for rule in rules {
            match rule {
                OriginRule::Exact(origin) => exact.push(origin.clone()),
                OriginRule::Subdomains { scheme, suffix } => {
                    subdomains.push((scheme.clone(), suffix.clone()));
                }
            }
        }
        exact.sort_unstable();
        OriginList::Listed { exact: exact.into(), subdomains: subdomains.into() }
    }

    fn contains_origin(&self, origin: &[u8]) -> bool {
        let OriginList::Listed { exact, subdomains } = self else { return true };
        exact.binary_search_by(|known| known.as_bytes().cmp(origin)).is_ok()
            || subdomains.iter().any(|(scheme, suffix)| {
                let host = origin.strip_prefix(scheme.as_bytes());
                host.and_then(|host| host.strip_suffix(suffix.as_bytes())).is_some_and(is_subdomain)
            })
    }
}

/// True if these are the labels before a suffix, and nothing that another parser could read as a host of its own.
fn is_subdomain(labels: &[u8]) -> bool {
    let is_label_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    labels.split(|byte| *byte == b'.').all(|label| !label.is_empty() && label.iter().all(is_label_byte))
}

// === impl CorsAnswer ===

impl CorsAnswer {
    /// True if the rules allow the origin of the request; false if it has none.
    pub fn allows_origin(&self) -> bool {
        self.allowed_origin.is_some()
    }

    /// Writes the fields of a response. Those of an upstream are replaced, but it may expose more fields to an allowed
    /// origin.
    pub fn write_response_fields(&self, headers: &mut HeaderMap) {
        let exposed: Vec<HeaderValue> =
            headers.get_all(ACCESS_CONTROL_EXPOSE_HEADERS).iter().cloned().collect();
        remove_cors_fields(headers);
        if !varies_by_origin(headers) {
            headers.append(VARY, VARY_ORIGIN);
        }
        if self.write_permission(headers) {
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, self.cors.exposed.clone());
            for more in exposed {
                headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, more);
            }
        }
    }

    /// Writes the fields of the answer to a preflight with the head `request`. Other such fields are replaced.
    pub fn write_preflight_fields(&self, request: &HeaderMap, headers: &mut HeaderMap) {
        remove_cors_fields(headers);
        headers.append(VARY, VARY_PREFLIGHT);
        if !self.write_permission(headers) {
            return;
        }
        let requested =
            || only_value(request, &ACCESS_CONTROL_REQUEST_METHOD).filter(has_no_lower_case).cloned();
        if let Some(methods) = self.cors.methods.clone().or_else(requested) {
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        }
        let requested = || only_value(request, &ACCESS_CONTROL_REQUEST_HEADERS).filter(is_name_list).cloned();
        if let Some(names) = self.cors.headers.clone().or_else(requested).filter(|names| !names.is_empty()) {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names);
        }
        headers.insert(ACCESS_CONTROL_MAX_AGE, self.cors.max_age.clone());
    }

    /// Writes the fields that allow the origin; false if it is not allowed.
    fn write_permission(&self, headers: &mut HeaderMap) -> bool {
        let Some(origin) = &self.allowed_origin else { return false };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        if self.cors.credentials {
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE);
        }
        true
    }
}

fn remove_cors_fields(headers: &mut HeaderMap) {
    let is_cors = |name: &&HeaderName| name.as_str().starts_with("access-control-");
    let names: Vec<HeaderName> = headers.keys().filter(is_cors).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// True if caches already keep the response apart for each origin, or do not keep it at all.
fn varies_by_origin(headers: &HeaderMap) -> bool {
    let mut names = headers.get_all(VARY).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    names.any(|name| {
        let name = name.trim_ascii();
        name == b"*" || name.eq_ignore_ascii_case(b"origin")
    })
}

/// A method with a lower-case letter would be rejected, so the browser is told that before.
fn has_no_lower_case(method: &&HeaderValue) -> bool {
    !method.as_bytes().iter().any(u8::is_ascii_lowercase)
}

/// True if a value is a list of header names that is short enough to be sent back.
fn is_name_list(value: &&HeaderValue) -> bool {
    let is_name = |name: &[u8]| HeaderName::from_bytes(name.trim_ascii()).is_ok();
    value.len() <= REQUESTED_HEADERS_MAX && value.as_bytes().split(|byte| *byte == b',').all(is_name)
}

#[cfg(test)]
mod tests;
