//! Reads `on_reject` and canned responses.

use http::{HeaderValue, StatusCode};

use super::headers;
use super::templates::read_template;
use super::upstreams::UpstreamReader;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::reject::{
    CannedResponse, Degrade, OnReject, OnRejectPatch, RateLimitHeaders, RejectBody, TemplateConfig,
};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::yaml::fields::{FieldReader, FieldValue, parse_or_none, parse_word};
use crate::config::yaml::tree::NodeContent;

/// The top-level section.
pub(crate) fn read_on_reject(root: &mut FieldReader<'_>, upstreams: &mut UpstreamReader<'_>) -> OnReject {
    let defaults = OnReject {
        status: None,
        body: RejectBody::Problem,
        headers: Vec::new(),
        ratelimit_headers: RateLimitHeaders { standard: true, legacy: false },
        retry_jitter: 0,
        degrade: None,
    };
    match root.get_field("on_reject") {
        Some(value) => defaults.merge_patch(&read_patch(&value, upstreams)),
        None => defaults,
    }
}

/// The section of a limit or a location, with only its written fields. An upstream named here counts as used.
pub(crate) fn read_patch(value: &FieldValue<'_>, upstreams: &mut UpstreamReader<'_>) -> OnRejectPatch {
    if value.is_null() {
        return OnRejectPatch::default();
    }
    let mut fields = value.field_reader();
    let status = |text: &str| match text {
        "auto" => Ok(None),
        _ => names::parse_status(text, 400).map(Some),
    };
    let patch = OnRejectPatch {
        status: fields.get_field("status").and_then(|value| value.parse_with(status)),
        body: fields.get_field("body").and_then(|value| read_body(&value)),
        headers: fields.get_field("headers").map(|value| headers::read_fixed_pairs(&value)),
        ratelimit_headers: fields.get_field("ratelimit_headers").map(|value| read_ratelimit_headers(&value)),
        retry_jitter: fields
            .get_field("retry_jitter")
            .and_then(|value| value.parse_with(scalars::parse_whole_percent)),
        degrade: fields.get_field("degrade").and_then(|value| read_degrade(&value, upstreams)),
    };
    fields.report_unknown();
    patch
}

fn read_body(value: &FieldValue<'_>) -> Option<RejectBody> {
    if !matches!(value.node.content, NodeContent::Map(_)) {
        let kinds = [
            ("problem", RejectBody::Problem),
            ("envelope", RejectBody::Envelope),
            ("none", RejectBody::None),
        ];
        return value.parse_with(parse_word(&kinds));
    }
    let mut fields = value.field_reader();
    let template = fields.get_field("template");
    if template.is_none() {
        fields.report_missing(
            "template",
            "write { template: \"try again in ${retry_after} s\", content_type: text/plain }",
        );
    }
    let content_type = read_content_type(&mut fields);
    fields.report_unknown();
    Some(RejectBody::Template { template: read_template(&template?)?, content_type })
}

/// The upstream or the response that replaces a rejection.
fn read_degrade(value: &FieldValue<'_>, upstreams: &mut UpstreamReader<'_>) -> Option<Option<Degrade>> {
    if value.is_word("none") {
        return Some(None);
    }
    let degrade = match value.node.content {
        NodeContent::Map(_) => Degrade::Canned(read_canned(value)?),
        NodeContent::Text(_) => Degrade::Upstream(upstreams.resolve_name(value)?),
        _ => {
            value.report_shape("none, an upstream or an answer such as { status: 200, body: \"sold out\" }");
            return None;
        }
    };
    Some(Some(degrade))
}

/// `{ status, body, content_type }`, all optional.
pub(crate) fn read_canned(value: &FieldValue<'_>) -> Option<CannedResponse> {
    let mut fields = value.field_reader();
    let status = fields.read_scalar("status", StatusCode::OK, |text| names::parse_status(text, 200));
    let body = match fields.get_field("body") {
        Some(value) => read_template(&value),
        None => Some(TemplateConfig(Vec::new())),
    };
    let content_type = read_content_type(&mut fields);
    fields.report_unknown();
    Some(CannedResponse { status, body: body?, content_type })
}

/// `content_type`; the default is plain text.
fn read_content_type(fields: &mut FieldReader<'_>) -> HeaderValue {
    fields.read_scalar("content_type", HeaderValue::from_static("text/plain"), |text| {
        let value = names::parse_header_value(text)?;
        let (kind, rest) = text.split_once('/').unwrap_or((text, ""));
        let word = |part: &str| !part.is_empty() && !part.contains([' ', ',', '/']);
        if !word(kind) || !word(rest.split(';').next().unwrap_or_default().trim_end()) {
            return Err(ValueError::new(codes::HEADER, format!("`{text}` is not a content type"))
                .with_help("write e.g. text/plain or application/json"));
        }
        Ok(value)
    })
}

fn read_ratelimit_headers(value: &FieldValue<'_>) -> RateLimitHeaders {
    let mut headers = RateLimitHeaders::default();
    let standard = RateLimitHeaders { standard: true, legacy: false };
    let legacy = RateLimitHeaders { standard: false, legacy: true };
    let kinds = [("standard", standard), ("legacy", legacy)];
    if value.is_word("none") {
        return headers;
    }
    for kind in value.parse_list(parse_or_none(parse_word(&kinds))) {
        match kind {
            Some(kind) => {
                headers = RateLimitHeaders {
                    standard: headers.standard || kind.standard,
                    legacy: headers.legacy || kind.legacy,
                }
            }
            None => value.report_at_value(ValueError::new(codes::WORD, "`none` stands alone or not at all")),
        }
    }
    headers
}
