//! Rewrites the head of a request for the upstream, and the head of a response for the client.

use std::rc::Rc;

use http::header::{ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, UPGRADE};
use http::uri::Uri;
use http::{Response, StatusCode, Version};
use http_body::Body;
use hyper::ext::ReasonPhrase;

use super::response_body::ResponseBody;
use crate::gateway::worker::Worker;
use crate::gateway::{Gateway, Route};
use crate::judge::conclusion::{RequestTexts, response_context};
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::RequestState;
use crate::reject::header_edits::{CompiledEdits, RenderedValues};
use sluicegate_http::request::api_key;
use sluicegate_http::request::body::TrailerFilter;
use sluicegate_http::request::headers::added_fields::AddedFields;
use sluicegate_http::request::headers::forwarded::ForwardedHop;
use sluicegate_http::request::headers::hop_by_hop::{self, FramingError, HopOptions};
use sluicegate_http::request::headers::summary::HeaderSummary;
use sluicegate_http::request::location;
use sluicegate_http::upstream::ServerBody;
use sluicegate_model::{HostHeader, LocationId};

/// Renders the values with variables of `edits`, before the head is rewritten.
#[inline]
pub(super) fn render_values(
    edits: &CompiledEdits,
    inbound: &InboundRequest,
    state: &RequestState,
) -> RenderedValues {
    if !edits.has_variables {
        return RenderedValues::default();
    }
    edits.render_values(&response_context(state, &RequestTexts::read_again(inbound)))
}

/// Rewrites the head of the request for the upstream: target, hop-by-hop fields, forwarded fields, request id, edits.
/// The returned fields are to be sent with it.
pub(super) fn rewrite_request(
    gateway: &Gateway,
    route: &Route,
    inbound: &mut InboundRequest,
    state: &RequestState,
) -> (HopOptions, AddedFields) {
    let stripped_keys = gateway.config.account.keys.as_ref();
    let stripped_keys = stripped_keys.filter(|keys| state.identity.key.is_some() && !keys.is_passed);
    if let Some(keys) = stripped_keys {
        api_key::strip_fields(keys, inbound.summary, inbound.request.headers_mut());
        api_key::strip_query(keys, inbound.request.uri_mut());
    }
    let values = render_values(&route.request_edits, inbound, state);
    let InboundRequest { request, authority, target, summary, .. } = inbound;
    let RequestState { connection, identity, .. } = state;
    *request.version_mut() = Version::HTTP_11;
    if let Some(authority) = authority {
        location::set_host_header(request.headers_mut(), authority);
    }
    // Without a new target, the judged one is sent.
    if let Some(target) = target.take() {
        *request.uri_mut() = Uri::from(target);
        if let Some(keys) = stripped_keys {
            api_key::strip_query(keys, request.uri_mut());
        }
    }
    let headers = request.headers_mut();
    let hop_options = hop_by_hop::strip_request(headers, *summary, &gateway.headers.protected);
    if summary.has_any(HeaderSummary::MAYBE_UNDERSCORES) || gateway.headers.underscores.applies_to_all {
        gateway.headers.underscores.strip_headers(headers, &route.request_headers);
    }
    if let Some(answer) = state.auth_answer() {
        for (name, value) in &answer.copied {
            headers.append(name.clone(), value.clone());
        }
    }
    let arrival = ForwardedHop {
        peer: connection.peer_value.as_ref(),
        trusted_peer: identity.client.trusted_peer,
        scheme: connection.scheme,
    };
    let mut added = AddedFields::new();
    gateway.headers.forwarded.rewrite_headers(headers, *summary, arrival, &mut added);
    let id_name = &gateway.config.server.request_id;
    if headers.keys().any(|name| name == id_name) {
        headers.remove(id_name);
    }
    added.set(id_name.clone(), identity.request_id.to_value());
    if let Some(tracer) = &state.worker.tracer {
        tracer.write_context(state.span.as_ref().map(|span| span.context), headers);
    }
    if let HostHeader::Fixed(host) = &route.host_header {
        headers.insert(HOST, host.clone());
    }
    if state.response.reading.as_ref().is_some_and(|reading| reading.reads_body()) {
        // A compressed body cannot be read.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    if !route.request_edits.is_empty() {
        // Edits may concern added fields.
        added.move_into(headers);
        route.request_edits.apply(headers, &values);
    }
    (hop_options, added)
}

/// A filter of the trailers of a request, which arrive after the judgement. It removes fields with underscores, and
/// those that only the answers of auth services may bring.
pub(super) fn trailer_filter(worker: Rc<Worker>, route: Option<LocationId>) -> TrailerFilter {
    Box::new(move |trailers| {
        let gateway = &worker.gateway;
        if let Some(route) = route {
            gateway.headers.underscores.strip_trailers(trailers, &gateway.routes[route.0].request_headers);
        }
        if let Some(copied) = &gateway.headers.copied {
            copied.strip(trailers);
        }
    })
}

/// Rewrites the head of a response for the client, which can switch protocols if `may_upgrade`: edits and
/// their values are those of the location.
///
/// # Errors
/// The framing of the response is ambiguous.
pub(super) fn rewrite_response(
    (edits, values): (&CompiledEdits, &RenderedValues),
    response: &mut Response<ServerBody>,
    keep_trailer: bool,
    may_upgrade: bool,
) -> Result<(), FramingError> {
    // The upstream's version and reason phrase do not concern the client.
    *response.version_mut() = Version::HTTP_11;
    response.extensions_mut().clear();
    // A 426 names the protocols to switch to (RFC 9110, section 15.5.22).
    let names_upgrade = may_upgrade && response.status() == StatusCode::UPGRADE_REQUIRED;
    let upgrade: Vec<HeaderValue> = match names_upgrade {
        true => response.headers().get_all(UPGRADE).iter().cloned().collect(),
        false => Vec::new(),
    };
    hop_by_hop::strip_response(response.headers_mut(), keep_trailer)?;
    if !upgrade.is_empty() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        for protocols in upgrade {
            response.headers_mut().append(UPGRADE, protocols);
        }
    }
    if response.status() == StatusCode::NO_CONTENT {
        // A 204 must not have a Content-Length (RFC 9110, section 8.6).
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    edits.apply(response.headers_mut(), values);
    Ok(())
}

/// Sets an empty reason phrase for a status without a standard one; hyper would invent one over HTTP/1.
pub fn clear_unknown_reason(response: &mut Response<ResponseBody>) {
    if response.status().canonical_reason().is_none() {
        response.extensions_mut().insert(ReasonPhrase::from_static(b""));
    }
}

/// Drops the body of a response that ends with its head; the head of a response to HEAD keeps the length. hyper does
/// this over HTTP/1 only.
pub fn drop_unsent_body(is_head: bool, response: &mut Response<ResponseBody>) {
    let is_bodiless = matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if !is_head && !is_bodiless {
        return;
    }
    let length = response.body().size_hint().exact().filter(|&length| length > 0 && !is_bodiless);
    if let Some(length) = length {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
    }
    response.body_mut().clear();
}
