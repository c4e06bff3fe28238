//! Parses the request to explain from its form on a command line.

use std::net::IpAddr;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use http_body::SizeHint;
use serde::Deserialize;
use serde_json::Value;

use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_http::request::client::Client;
use sluicegate_http::request::location;
use sluicegate_model::{ListenConfig, Scheme};
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::judge::RequestHead;
use sluicegate_proxy::reject::Fault;

json_object! {
    /// A request as text.
    #[derive(Debug, Clone, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Query as "ExplainRequest" {
        pub method: String = maybe "The method, in capitals; absent only with `call`.",
        pub url: String = maybe "A path with or without a query, or a URL; absent only with `call`.",
        pub ip: String = maybe "The address of the peer; 127.0.0.1 if absent.",
        pub headers: Vec<String> = maybe "Header lines, `Name: value` each.",
        pub listener: Option<String>
            = nullable "The name of the listener; else the first one of the URL's scheme.",
        pub auth: Vec<String>
            = maybe "Header lines of the auth service's answer, which admits the request.",
        pub data: Option<String> = nullable "The body, for limits that read it.",
        pub call: Option<Value> = maybe "The body of a `/check` that names limits, in place of a request.",
    }
}

impl Default for Query {
    fn default() -> Query {
        let (method, url, ip) = (String::new(), String::new(), "127.0.0.1".to_owned());
        let (headers, auth) = (Vec::new(), Vec::new());
        Query { method, url, ip, headers, listener: None, auth, data: None, call: None }
    }
}

impl Query {
    /// True if it has members of a request.
    pub(super) fn describes_request(&self) -> bool {
        Query { call: None, ..self.clone() } != Query::default()
    }
}

/// The parsed query: a request as it would arrive.
#[derive(Debug)]
pub struct ParsedQuery {
    /// The method of the request.
    pub method: Method,
    /// The target in origin form: a path, or the `*` of OPTIONS.
    pub uri: Uri,
    /// The headers of the request, with its host.
    pub headers: HeaderMap,
    /// The address of the peer, which may be a trusted proxy.
    pub peer: IpAddr,
    /// The scheme of the connection.
    pub scheme: Scheme,
    /// The name of the listener.
    pub listener: Option<String>,
    /// The headers of the auth service's answer.
    pub answer: HeaderMap,
    /// `None` = not given.
    pub data: Option<String>,
}

impl ParsedQuery {
    /// The host is that of the URL, else of the header, else `localhost`. The listener is one of `listen`.
    pub fn parse_query(query: &Query, listen: &[ListenConfig]) -> Result<ParsedQuery, String> {
        let (uri, scheme, host) = parse_target(&query.url)?;
        let listener = find_listener(query.listener.as_deref(), scheme, listen)?;
        let scheme = scheme.or(listener.map(ListenConfig::scheme)).unwrap_or(Scheme::Http);
        let listener = listener.and_then(|listener| listener.name.clone());
        let (mut headers, answer) = (parse_headers(&query.headers)?, parse_headers(&query.auth)?);
        if let Some(host) = host {
            headers.insert(HOST, host);
        } else if !headers.contains_key(HOST) {
            headers.insert(HOST, HeaderValue::from_static("localhost"));
        }
        let (method, peer) = (parse_method(&query.method)?, parse_peer(&query.ip)?);
        let data = query.data.clone();
        if let Some(data) = data.as_ref().filter(|data| !data.is_empty())
            && !headers.contains_key(CONTENT_LENGTH)
            && !headers.contains_key(TRANSFER_ENCODING)
        {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(data.len()));
        }
        Ok(ParsedQuery { method, uri, headers, peer, scheme, listener, answer, data })
    }

    /// The head as it would arrive over HTTP/1.1.
    pub(super) fn to_head(&self, client: Client, received: Now) -> RequestHead<'_> {
        RequestHead {
            method: &self.method,
            uri: &self.uri,
            version: Version::HTTP_11,
            headers: &self.headers,
            authority: None,
            client,
            scheme: self.scheme,
            listener: self.listener.as_deref(),
            received,
            is_websocket_connect: false,
        }
    }

    /// The size of the body as its head announces it.
    pub(super) fn body_size(&self) -> SizeHint {
        if self.headers.contains_key(TRANSFER_ENCODING) {
            return SizeHint::default();
        }
        SizeHint::with_exact(self.announced_length().unwrap_or_default())
    }

    /// `None` = not a length.
    fn announced_length(&self) -> Option<u64> {
        let is_digits = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let read = |length: &HeaderValue| length.to_str().ok().filter(is_digits)?.parse().ok();
        let mut lengths = self.headers.get_all(CONTENT_LENGTH).iter().map(read);
        let first = lengths.next().unwrap_or(Some(0))?;
        lengths.all(|other| other == Some(first)).then_some(first)
    }

    /// The fault that the parser of HTTP/1 would answer, before the request is judged.
    pub(super) fn find_parser_fault(&self, gateway: &Gateway) -> Option<Fault> {
        let fields = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
        // The request line ends with " HTTP/1.1\r\n", the head with an empty line.
        let target = self.uri.path_and_query().map_or(0, |target| target.as_str().len());
        let bytes = self.method.as_str().len() + 1 + target + 11 + fields.sum::<usize>() + 2;
        if bytes > gateway.config.server.max_header_size {
            return Some(Fault::HeadTooLarge);
        }
        self.announced_length().is_none().then_some(Fault::BadHead)
    }
}

fn parse_method(text: &str) -> Result<Method, String> {
    let capitals = text.to_ascii_uppercase();
    match Method::from_bytes(text.as_bytes()) {
        Ok(_) if text != capitals => Err(format!("methods are written in capitals: {capitals}")),
        Ok(method) => Ok(method),
        Err(_) => Err(format!("`{}` is not a method; write e.g. GET", text.escape_debug())),
    }
}

/// The listener of this name; without a name the first one that serves the scheme, which one must.
fn find_listener<'l>(
    name: Option<&str>,
    scheme: Option<Scheme>,
    listen: &'l [ListenConfig],
) -> Result<Option<&'l ListenConfig>, String> {
    let Some(name) = name else {
        let Some(scheme) = scheme else { return Ok(listen.first()) };
        let serving = listen.iter().find(|listen| listen.scheme() == scheme);
        return serving.map(Some).ok_or_else(|| explain_unserved(scheme));
    };
    if let Some(found) = listen.iter().find(|listen| listen.name.as_deref() == Some(name)) {
        return Ok(Some(found));
    }
    let known: Vec<&str> = listen.iter().filter_map(|listen| listen.name.as_deref()).collect();
    let known = if known.is_empty() { "none has a name".to_owned() } else { known.join(", ") };
    Err(format!("no listener is named `{}`; the listeners are: {known}", name.escape_debug()))
}

/// The fault of a URL with a scheme that none of the listeners has.
fn explain_unserved(scheme: Scheme) -> String {
    match scheme {
        Scheme::Https => {
            "no listener serves https; write an http URL, behind a proxy that ends TLS with --ip PROXY and \
             -H 'X-Forwarded-Proto: https'"
        }
        Scheme::Http => "no listener serves http; write an https URL",
    }
    .to_owned()
}

fn parse_target(text: &str) -> Result<(Uri, Option<Scheme>, Option<HeaderValue>), String> {
    let wrong = || {
        let shown = text.escape_debug();
        format!("`{shown}` is neither a path nor a URL; write e.g. /api/ or http://example.com/api/")
    };
    let text = text.split('#').next().unwrap_or_default();
    let mut uri: Uri = text.parse().map_err(|_| wrong())?;
    let scheme = match uri.scheme_str() {
        Some("https") => Some(Scheme::Https),
        Some("http") => Some(Scheme::Http),
        _ => None,
    };
    match location::take_authority(&mut uri) {
        None if text.starts_with('/') || text == "*" => Ok((uri, None, None)),
        None => Err(wrong()),
        Some(authority) => {
            let host = HeaderValue::from_str(authority.as_str()).map_err(|_| wrong())?;
            Ok((uri, scheme, Some(host)))
        }
    }
}

fn parse_headers(lines: &[String]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for line in lines {
        let wrong = || format!("`{}` is not a header; write e.g. 'X-Account-Id: acme'", line.escape_debug());
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| wrong())?;
        let value = HeaderValue::from_bytes(value.trim().as_bytes()).map_err(|_| wrong())?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn parse_peer(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("`{}` is not an address; write e.g. 203.0.113.7", text.escape_debug()))
}
