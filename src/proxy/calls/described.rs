//! The request that a check describes, and what its limits need beside it.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
    UPGRADE,
};
use http::{Method, Request, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::call_body::{CheckCall, CheckSubject, DescribedRequest};
use super::call_value::CallFault;
use crate::config::{self, JsonPointer, KeyPart, LimitConfig, LimitId, Scheme, ValueSource};
use crate::proxy::gateway::Gateway;
use crate::proxy::judge::{CallTerms, StatedFacts};
use crate::request::account::Tier;
use crate::request::body::RequestBody;
use crate::request::client::UNIX_CLIENT;
use crate::request::location;
use crate::request::source::BodyValues;

/// A request, from the facts of a call.
pub(super) struct Described {
    pub request: Request<RequestBody>,
    /// [`UNIX_CLIENT`] if the call names none.
    pub ip: IpAddr,
    pub terms: CallTerms,
}

/// The host of a request that names none; it matches no location with a host.
const NO_HOST: HeaderValue = HeaderValue::from_static("localhost");

impl Described {
    /// # Errors
    /// A member of the call has a value that no request could have, or a part of a key is missing.
    pub fn from_call(call: &CheckCall, gateway: &Gateway) -> Result<Described, CallFault> {
        let (facts, limits) = match &call.subject {
            CheckSubject::Limits { limits, key } => {
                let limits = find_limits(limits, gateway)?;
                let mut facts = Facts::default();
                key.iter().try_for_each(|(part, text)| facts.state_part(part, text, gateway))?;
                facts.check_parts(key, &limits, gateway)?;
                (facts, Some(limits))
            }
            CheckSubject::Request(described) => (Facts::of_request(described)?, None),
        };
        let Facts { ip, method, scheme, path, query, mut headers, stated } = facts;
        headers.entry(HOST).or_insert(NO_HOST);
        let target = match (path, query.is_empty()) {
            (path, true) => path,
            (path, false) => format!("{path}?{query}"),
        };
        let target = if target.starts_with('/') { target } else { format!("/{target}") };
        let uri =
            target.parse::<Uri>().map_err(|_| CallFault::new("uri", "the path is not one of a request"))?;
        let mut request = Request::new(RequestBody::Empty);
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers);
        let max_wait_ns = u64::try_from(call.wait.as_nanos()).unwrap_or(u64::MAX - 1);
        let terms = CallTerms { limits, cost: call.cost, max_wait_ns, takes_slots: true, scheme, stated };
        Ok(Described { request, ip, terms })
    }
}

/// The limits with these names.
fn find_limits(names: &[String], gateway: &Gateway) -> Result<Vec<LimitId>, CallFault> {
    let find = |name: &String| {
        let found = gateway.config.limits.iter().position(|limit| limit.name == *name);
        let message = || format!("there is no limit `{name}`");
        found.map(LimitId).ok_or_else(|| CallFault::new("limits", message()))
    };
    names.iter().map(find).collect()
}

/// The facts of a request, while they are collected.
struct Facts {
    ip: IpAddr,
    method: Method,
    scheme: Scheme,
    path: String,
    /// Without its question mark.
    query: String,
    headers: HeaderMap,
    stated: StatedFacts,
}

impl Default for Facts {
    fn default() -> Facts {
        Facts {
            ip: UNIX_CLIENT,
            method: Method::GET,
            scheme: Scheme::Http,
            path: "/".to_owned(),
            query: String::new(),
            headers: HeaderMap::new(),
            stated: StatedFacts::default(),
        }
    }
}

impl Facts {
    fn of_request(described: &DescribedRequest) -> Result<Facts, CallFault> {
        let mut facts = Facts { path: described.path.clone(), ..Facts::default() };
        if !described.path.starts_with('/') {
            return Err(CallFault::new("request.path", "`request.path` must begin with /"));
        }
        facts.set_ip("request.ip", &described.ip)?;
        if let Some(method) = &described.method {
            facts.set_method("request.method", method)?;
        }
        if let Some(scheme) = &described.scheme {
            let known = Scheme::WORDS.iter().find(|(word, _)| word == scheme);
            let wrong = || CallFault::new("request.scheme", "`request.scheme` must be http or https");
            facts.scheme = known.map(|(_, scheme)| *scheme).ok_or_else(wrong)?;
        }
        for (name, value) in &described.headers {
            let field = format!("request.headers.{name}");
            let (name, value) = parse_header(&field, name, value)?;
            // They say how the request came to the caller; what it asks for is in the other members.
            let is_of_hop =
                [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, UPGRADE, EXPECT].contains(&name);
            if !is_of_hop {
                facts.headers.append(name, value);
            }
        }
        if let Some(host) = &described.host {
            facts.set_host("request.host", host)?;
        }
        Ok(facts)
    }

    /// States a part of a key, which is named as in the file.
    fn state_part(&mut self, part: &str, text: &str, gateway: &Gateway) -> Result<(), CallFault> {
        let field = format!("key.{part}");
        let wrong = |message: &str| CallFault::new(&field, format!("`{field}` {message}"));
        match part.split_once(':') {
            None => return self.state_plain_part(&field, part, text, gateway),
            Some(("header", name)) => {
                let (name, value) = parse_header(&field, name, text)?;
                self.headers.insert(name, value);
            }
            Some(("cookie", name)) => {
                let is_pair = !name.contains(['=', ';']) && !text.contains(';') && text.trim() == text;
                let pair = HeaderValue::from_str(&format!("{name}={text}")).ok().filter(|_| is_pair);
                self.headers.append(COOKIE, pair.ok_or_else(|| wrong("cannot be a cookie"))?);
            }
            Some(("query", name)) => {
                let [name, text] = [name, text].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
                let separator = if self.query.is_empty() { "" } else { "&" };
                self.query += &format!("{separator}{name}={text}");
            }
            Some(("jwt", claim)) => self.stated.claims.push((claim.to_owned(), text.to_owned())),
            // Read with the pointers of the limits, once all parts are known.
            Some(("json", _)) => {}
            Some(_) => return Err(wrong("is no part of a key")),
        }
        Ok(())
    }

    fn state_plain_part(
        &mut self,
        field: &str,
        part: &str,
        text: &str,
        gateway: &Gateway,
    ) -> Result<(), CallFault> {
        let wrong = |message: &str| CallFault::new(field, format!("`{field}` {message}"));
        match part {
            "ip" => self.set_ip(field, text)?,
            "account" => self.stated.account = Some(text.as_bytes().into()),
            "tier" if config::is_tier_name(text) => self.stated.tier = Some(Tier::from(text)),
            "tier" => return Err(wrong("cannot be the name of a tier")),
            "uri" if text.starts_with('/') && location::normalise_path(text).is_ok() => {
                self.path = text.to_owned()
            }
            "uri" => return Err(wrong("must be a path that begins with /")),
            "location" => {
                let found = gateway.config.locations.iter().position(|location| location.name == text);
                let found =
                    found.ok_or_else(|| CallFault::new(field, format!("there is no location `{text}`")));
                self.stated.location = Some(config::LocationId(found?));
            }
            "host" => self.set_host(field, text)?,
            "method" => self.set_method(field, text)?,
            _ => return Err(wrong("is no part of a key")),
        }
        Ok(())
    }

    /// Checks that each part by which the limits count is stated, and reads the values of bodies.
    fn check_parts(
        &mut self,
        key: &[(String, String)],
        limits: &[LimitId],
        gateway: &Gateway,
    ) -> Result<(), CallFault> {
        let mut body: Vec<(JsonPointer, String)> = Vec::new();
        for id in limits {
            let limit: &LimitConfig = &gateway.config.limits[*id];
            let by_method = (!limit.methods.is_empty()).then_some(&KeyPart::Method);
            for part in limit.key.iter().chain(&limit.fair_by).chain(by_method) {
                let (kind, name) = part.words();
                let field = format!("{kind}{name}");
                let is_header = matches!(part, KeyPart::Source(ValueSource::Header(_)));
                let is_same =
                    |known: &str| *known == field || is_header && known.eq_ignore_ascii_case(&field);
                let stated = key.iter().find(|(known, _)| is_same(known));
                match (part, stated) {
                    (KeyPart::Global | KeyPart::Tier, _) => {}
                    (_, None) => {
                        let message =
                            format!("`key.{field}` is missing: the limit `{}` counts by it", limit.name);
                        return Err(CallFault::new(format!("key.{field}"), message));
                    }
                    (KeyPart::Source(ValueSource::Json(pointer)), Some((_, text))) => {
                        if !body.iter().any(|(known, _)| known == pointer) {
                            body.push((pointer.clone(), text.clone()));
                        }
                    }
                    (_, Some(_)) => {}
                }
            }
        }
        self.stated.body = (!body.is_empty()).then(|| BodyValues::from_texts(body));
        Ok(())
    }

    fn set_ip(&mut self, field: &str, text: &str) -> Result<(), CallFault> {
        let wrong = |_| CallFault::new(field, format!("`{field}` must be an address such as 192.0.2.1"));
        self.ip = text.parse::<IpAddr>().map_err(wrong)?.to_canonical();
        self.stated.has_ip = true;
        Ok(())
    }

    fn set_method(&mut self, field: &str, text: &str) -> Result<(), CallFault> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        let method = Method::from_bytes(text.as_bytes()).ok().filter(|_| is_plain);
        let wrong = || CallFault::new(field, format!("`{field}` must be a method such as GET"));
        self.method = method.ok_or_else(wrong)?;
        Ok(())
    }

    fn set_host(&mut self, field: &str, text: &str) -> Result<(), CallFault> {
        let value = HeaderValue::from_str(text).ok().filter(|_| location::canonical_host(text).is_ok());
        let wrong = || CallFault::new(field, format!("`{field}` must be a host"));
        self.headers.insert(HOST, value.ok_or_else(wrong)?);
        Ok(())
    }
}

fn parse_header(field: &str, name: &str, value: &str) -> Result<(HeaderName, HeaderValue), CallFault> {
    let parsed = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
    parsed.ok_or_else(|| CallFault::new(field, format!("`{field}` must be a header")))
}
