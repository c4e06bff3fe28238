//! Reads `on_reject` and canned responses.

use super::headers::{self, read_body_template};
use super::upstreams::UpstreamReader;
use crate::schema::tables::limits::limit;
use crate::schema::tables::reject::{json_rpc, json_rpc_body, on_reject, response, template};
use crate::schema::tables::root::root as root_fields;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::NodeContent;
use sluicegate_model::value::words::{parse_or_none, parse_word};
use sluicegate_model::{
    Algorithm, CannedResponse, Degrade, LimitConfig, OnReject, OnRejectPatch, RateLimitDraft,
    RateLimitHeaders, RejectBody, RetryAfter, TemplateConfig, ValueError, codes,
};

/// The top-level section.
pub(crate) fn read_on_reject(root: &FieldReader<'_>, upstreams: &UpstreamReader<'_>) -> OnReject {
    let defaults = OnReject {
        status: on_reject::STATUS.parse_default(),
        body: RejectBody::Problem,
        headers: Vec::new(),
        ratelimit_headers: RateLimitHeaders { draft: Some(RateLimitDraft::Draft11), legacy: false },
        retry_after: on_reject::RETRY_AFTER.parse_default(),
        turns_at_most: on_reject::TURNS_AT_MOST.parse_default(),
        retry_jitter: on_reject::RETRY_JITTER.parse_default(),
        degrade: None,
    };
    defaults.merge_patch(&read_patch(root.find(&root_fields::ON_REJECT).as_ref(), upstreams))
}

/// The section of a limit or a location, with only its written fields. An upstream named here counts as used.
pub(crate) fn read_patch(value: Option<&FieldValue<'_>>, upstreams: &UpstreamReader<'_>) -> OnRejectPatch {
    let Some(value) = value else { return OnRejectPatch::default() };
    value.open_section(&on_reject::SECTION).read_all(|fields| OnRejectPatch {
        status: fields.read_written(&on_reject::STATUS),
        body: fields.find(&on_reject::BODY).and_then(|value| read_body(&value)),
        headers: fields.find(&on_reject::HEADERS).map(|value| headers::read_texts(&value)),
        ratelimit_headers: fields
            .find(&on_reject::RATELIMIT_HEADERS)
            .map(|value| read_ratelimit_headers(&value)),
        retry_after: fields.read_written(&on_reject::RETRY_AFTER),
        turns_at_most: fields.read_written(&on_reject::TURNS_AT_MOST),
        retry_jitter: fields.read_written(&on_reject::RETRY_JITTER),
        degrade: fields.find(&on_reject::DEGRADE).and_then(|value| read_degrade(&value, upstreams)),
    })
}

/// Reports turns in the section of a limit that judges no rate.
pub(crate) fn refuse_turns(fields: &FieldReader<'_>, config: &LimitConfig) {
    let tells = config.on_reject.retry_after == Some(RetryAfter::Turns);
    if tells
        && matches!(config.algorithm, Algorithm::Concurrency { .. })
        && let Some(value) = fields.find(&limit::ON_REJECT)
    {
        let message =
            "nobody knows when the turn of a rejected request comes, because slots are freed at any time";
        let help = "remove retry_after, or write e.g. queue: 20 in this limit, so that requests wait in turn";
        value.refuse(codes::FOREIGN_FIELD, message, help);
    }
}

fn read_body(value: &FieldValue<'_>) -> Option<RejectBody> {
    if !value.is_map() {
        let kinds = [
            ("problem", RejectBody::Problem),
            ("envelope", RejectBody::Envelope),
            ("openai", RejectBody::OpenAi),
            ("anthropic", RejectBody::Anthropic),
            ("json-rpc", RejectBody::JsonRpc { code: json_rpc::CODE.parse_default() }),
            ("none", RejectBody::None),
        ];
        return value.parse_with(parse_word(&kinds));
    }
    if value.entries().iter().any(|(key, _)| key.name == json_rpc_body::JSON_RPC.name) {
        let code = value.open_section(&json_rpc_body::SECTION).read_all(|fields| {
            fields.read_section(&json_rpc_body::JSON_RPC, |error| error.read(&json_rpc::CODE))
        });
        return Some(RejectBody::JsonRpc { code });
    }
    value.open_section(&template::SECTION).read_all(|fields| {
        let (text, content_type) = (fields.find(&template::TEMPLATE), fields.read(&template::CONTENT_TYPE));
        if text.is_none() {
            fields.report_missing(
                "template",
                "write { template: \"try again in ${retry_after} s\", content_type: text/plain }",
            );
        }
        Some(RejectBody::Template { template: read_body_template(&text?)?, content_type })
    })
}

/// The upstream or the response that replaces a rejection.
fn read_degrade(value: &FieldValue<'_>, upstreams: &UpstreamReader<'_>) -> Option<Option<Degrade>> {
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
    value.open_section(&response::SECTION).read_all(|fields| {
        let body = match fields.find(&response::BODY) {
            Some(value) => read_body_template(&value),
            None => Some(TemplateConfig(Vec::new())),
        };
        let (status, content_type) = (fields.read(&response::STATUS), fields.read(&response::CONTENT_TYPE));
        Some(CannedResponse { status, body: body?, content_type })
    })
}

/// The words for the forms of the fields; `None` is the three fields of draft-03.
const FORMS: [(&str, Option<RateLimitDraft>); 5] = [
    ("draft-11", Some(RateLimitDraft::Draft11)),
    ("draft-10", Some(RateLimitDraft::Draft10)),
    ("draft-03", None),
    ("standard", Some(RateLimitDraft::Draft11)),
    ("legacy", None),
];

fn read_ratelimit_headers(value: &FieldValue<'_>) -> RateLimitHeaders {
    let mut headers = RateLimitHeaders::default();
    if value.is_word("none") {
        return headers;
    }
    for form in value.parse_list(parse_or_none(parse_word(&FORMS))) {
        match form {
            Some(None) => headers.legacy = true,
            Some(Some(_)) if headers.draft.is_some() => {
                let help = "write draft-11 or draft-10, or [draft-11, draft-03] for X-RateLimit-* as well";
                value.refuse(codes::WORD, "`RateLimit` has one form", help);
            }
            Some(draft) => headers.draft = draft,
            None => value.report_at_value(ValueError::new(codes::WORD, "`none` stands alone or not at all")),
        }
    }
    headers
}
