//! The request that a check describes, and the facts that its limits need beside it.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
    UPGRADE,
};
use http::{Method, Request, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::call_body::{CheckCall, CheckSubject, DescribedRequest};
use super::call_value::{CallFault, CallText};
use crate::gateway::Gateway;
use crate::judge::{CallTerms, StatedFacts};
use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_http::request::account::Tier;
use sluicegate_http::request::body::RequestBody;
use sluicegate_http::request::client::UNIX_CLIENT;
use sluicegate_http::request::location;
use sluicegate_http::request::source::BodyValues;
use sluicegate_model::{
    self as model, KeyPart, LimitConfig, LimitId, McpPart, Scheme, ValueSource, mcp_pointers,
};

/// A request, from the facts of a call.
pub struct Described {
    /// The described request, with an empty body.
    pub request: Request<RequestBody>,
    /// [`UNIX_CLIENT`] if the call names none.
    pub ip: IpAddr,
    /// The terms of the call, with the facts that the request cannot hold.
    pub terms: CallTerms,
}

/// The host of a request that names none; it matches no location with a host.
const NO_HOST: HeaderValue = HeaderValue::from_static("localhost");

impl Described {
    /// Reads a call that names limits, as `/check` does.
    ///
    /// # Errors
    /// A sentence on the fault for which `/check` would refuse the call.
    pub fn read_named(body: &[u8], gateway: &Gateway) -> Result<Described, String> {
        if gateway.config.service.is_none() {
            return Err("the configuration has no rate-limit service".to_owned());
        }
        let call = CheckCall::read(body).map_err(|fault| fault.message)?;
        if matches!(call.subject, CheckSubject::Request(_)) {
            return Err(
                "a call with `request` is explained as that request, by its method and URL".to_owned()
            );
        }
        Described::from_call(&call, gateway).map_err(|fault| fault.message)
    }

    /// # Errors
    /// A member of the call has a value that no request could have, or a part of a key is missing.
    pub(super) fn from_call(call: &CheckCall<'_>, gateway: &Gateway) -> Result<Described, CallFault> {
        let (facts, limits) = match &call.subject {
            CheckSubject::Limits { limits, key } => {
                let limits = find_limits(limits, gateway)?;
                let mut facts = Facts::default();
                key.iter()
                    .try_for_each(|(part, text)| facts.state_part(Member("key.", part), text, gateway))?;
                facts.check_parts(key, &limits, gateway)?;
                (facts, Some(limits))
            }
            CheckSubject::Request(described) => (Facts::of_request(described)?, None),
        };
        let Facts { ip, method, scheme, path, query, headers, stated } = facts;
        let target = match (path, query.is_empty()) {
            (None, true) => None,
            (Some(path), true) => Some(path),
            (path, false) => Some(format!("{}?{query}", path.as_deref().unwrap_or("/"))),
        };
        let field = if limits.is_some() { "key.uri" } else { "request.path" };
        let wrong = |_| CallFault::new(field, format!("`{field}` is not the path of a request"));
        // Without a target it is `/`.
        let uri = target.map_or(Ok(Uri::default()), Uri::from_maybe_shared).map_err(wrong)?;
        let mut request = Request::new(RequestBody::Empty);
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers);
        let max_wait_ns = u64::try_from(call.wait.as_nanos()).unwrap_or(u64::MAX - 1);
        let scheme = scheme.unwrap_or(Scheme::Http);
        let terms = CallTerms { limits, cost: call.cost, max_wait_ns, takes_slots: true, scheme, stated };
        Ok(Described { request, ip: ip.unwrap_or(UNIX_CLIENT), terms })
    }
}

fn find_limits(names: &[CallText<'_>], gateway: &Gateway) -> Result<Vec<LimitId>, CallFault> {
    let find = |name: &CallText<'_>| {
        let message = || format!("there is no limit `{name}`");
        gateway.calls.find_limit(name).ok_or_else(|| CallFault::new("limits", message()))
    };
    names.iter().map(find).collect()
}

/// A member of the call: the object that it is in, with a point behind it, and its name.
#[derive(Clone, Copy)]
struct Member<'a>(&'static str, &'a str);

impl Member<'_> {
    /// A fault with `message` about the needed value.
    fn fault(self, message: &str) -> CallFault {
        let Member(object, name) = self;
        CallFault::new(format!("{object}{name}"), format!("`{object}{name}` {message}"))
    }
}

/// The facts of a request, while they are collected.
#[derive(Default)]
struct Facts {
    ip: Option<IpAddr>,
    method: Method,
    scheme: Option<Scheme>,
    /// The path from its `/` on; `None` = only that.
    path: Option<String>,
    /// The query without its question mark.
    query: String,
    headers: HeaderMap,
    stated: StatedFacts,
}

impl Facts {
    fn of_request(described: &DescribedRequest<'_>) -> Result<Facts, CallFault> {
        let mut facts = Facts { path: Some(described.path.to_string()), ..Facts::default() };
        if !described.path.starts_with('/') {
            return Err(CallFault::new("request.path", "`request.path` must begin with /"));
        }
        facts.set_ip(Member("request.", "ip"), &described.ip)?;
        if let Some(method) = &described.method {
            facts.set_method(Member("request.", "method"), method)?;
        }
        if let Some(scheme) = &described.scheme {
            let known = Scheme::WORDS.iter().find(|(word, _)| word == scheme);
            let wrong = || CallFault::new("request.scheme", "`request.scheme` must be http or https");
            facts.scheme = Some(known.ok_or_else(wrong)?.1);
        }
        for (name, value) in &described.headers {
            let (name, value) = parse_header(Member("request.headers.", name), name, value)?;
            // They say how the request came to the caller; the request itself is in the other members.
            let is_of_hop =
                [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, UPGRADE, EXPECT].contains(&name);
            if !is_of_hop {
                facts.headers.append(name, value);
            }
        }
        facts.headers.insert(HOST, NO_HOST);
        if let Some(host) = &described.host {
            facts.set_host(Member("request.", "host"), host)?;
        }
        Ok(facts)
    }

    /// States a part of a key, which is named as in the file.
    fn state_part(&mut self, part: Member<'_>, text: &str, gateway: &Gateway) -> Result<(), CallFault> {
        match part.1.split_once(':') {
            None => return self.state_plain_part(part, text, gateway),
            Some(("header", name)) => {
                let (name, value) = parse_header(part, name, text)?;
                self.headers.insert(name, value);
            }
            Some(("cookie", name)) => {
                let is_pair = !name.contains(['=', ';']) && !text.contains(';') && text.trim() == text;
                let pair = HeaderValue::from_str(&format!("{name}={text}")).ok().filter(|_| is_pair);
                self.headers.append(COOKIE, pair.ok_or_else(|| part.fault("cannot be a cookie"))?);
            }
            Some(("query", name)) => {
                let [name, text] = [name, text].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
                let separator = if self.query.is_empty() { "" } else { "&" };
                self.query += &format!("{separator}{name}={text}");
            }
            Some(("jwt", claim)) => self.stated.claims.push((claim.to_owned(), text.to_owned())),
            // Read with the pointers of the limits, once all parts are known.
            Some(("json", _) | ("mcp", "method" | "name")) => {}
            Some(_) => return Err(part.fault("is no part of a key")),
        }
        Ok(())
    }

    fn state_plain_part(&mut self, part: Member<'_>, text: &str, gateway: &Gateway) -> Result<(), CallFault> {
        match part.1 {
            "ip" => self.set_ip(part, text)?,
            "account" => self.stated.account = Some(text.as_bytes().into()),
            "tier" if model::is_tier_name(text) => self.stated.tier = Some(Tier::from(text)),
            "tier" => return Err(part.fault("cannot be the name of a tier")),
            "uri" if text.starts_with('/') && location::normalise_path(text).is_ok() => {
                self.path = Some(text.to_owned())
            }
            "uri" => return Err(part.fault("must be a path that begins with /")),
            "location" => {
                let found = gateway.config.locations.iter().position(|location| location.name == text);
                let found = found.ok_or_else(|| part.fault("is not the name of a location"));
                self.stated.location = Some(model::LocationId(found?));
            }
            "host" => self.set_host(part, text)?,
            "method" => self.set_method(part, text)?,
            _ => return Err(part.fault("is no part of a key")),
        }
        Ok(())
    }

    /// Checks that each part by which the limits count is stated, and reads the values of bodies.
    fn check_parts(
        &mut self,
        key: &[(CallText<'_>, CallText<'_>)],
        limits: &[LimitId],
        gateway: &Gateway,
    ) -> Result<(), CallFault> {
        let mut body: Vec<(JsonPointer, String)> = Vec::new();
        for id in limits {
            let limit: &LimitConfig = &gateway.config.limits[*id];
            let by_method = (!limit.methods.is_empty()).then_some(&KeyPart::Method);
            for part in limit.parts().chain(by_method) {
                let (kind, name) = part.words();
                let is_header = matches!(part, KeyPart::Source(ValueSource::Header(_)));
                let is_name = |known: &str| known == name || is_header && known.eq_ignore_ascii_case(name);
                let stated = key.iter().find(|(known, _)| known.strip_prefix(kind).is_some_and(is_name));
                match (part, stated) {
                    (KeyPart::Global | KeyPart::Tier | KeyPart::Priority, _) => {}
                    (_, None) => {
                        let field = format!("key.{kind}{name}");
                        let message =
                            format!("`{field}` is missing: the limit `{}` counts by it", limit.name);
                        return Err(CallFault::new(field, message));
                    }
                    (KeyPart::Source(ValueSource::Json(pointer)), Some((_, text))) => {
                        if !body.iter().any(|(known, _)| known == pointer) {
                            body.push((pointer.clone(), text.to_string()));
                        }
                    }
                    (KeyPart::Mcp(stated), Some((_, text))) => {
                        let [method, name, uri] = mcp_pointers();
                        let places = if *stated == McpPart::Method { &[method][..] } else { &[name, uri] };
                        body.extend(places.iter().map(|place| ((*place).clone(), text.to_string())));
                    }
                    (_, Some(_)) => {}
                }
            }
        }
        self.stated.body = (!body.is_empty()).then(|| BodyValues::from_texts(body));
        Ok(())
    }

    fn set_ip(&mut self, member: Member<'_>, text: &str) -> Result<(), CallFault> {
        let wrong = |_| member.fault("must be an address such as 192.0.2.1");
        self.ip = Some(text.parse::<IpAddr>().map_err(wrong)?.to_canonical());
        self.stated.has_ip = true;
        Ok(())
    }

    fn set_method(&mut self, member: Member<'_>, text: &str) -> Result<(), CallFault> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        let method = Method::from_bytes(text.as_bytes()).ok().filter(|_| is_plain);
        self.method = method.ok_or_else(|| member.fault("must be a method such as GET"))?;
        Ok(())
    }

    fn set_host(&mut self, member: Member<'_>, text: &str) -> Result<(), CallFault> {
        let value = HeaderValue::from_str(text).ok().filter(|_| location::canonical_host(text).is_ok());
        self.headers.insert(HOST, value.ok_or_else(|| member.fault("must be a host"))?);
        Ok(())
    }
}

fn parse_header(member: Member<'_>, name: &str, value: &str) -> Result<(HeaderName, HeaderValue), CallFault> {
    let parsed = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
    parsed.ok_or_else(|| member.fault("must be a header"))
}
