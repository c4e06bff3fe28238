//! `on_reject`, and the templates that answers are made from.

use http::{HeaderValue, StatusCode};

use super::headers;
use super::upstreams::Upstreams;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Complaint, did_you_mean};
use crate::config::model::reject::{
    Canned, Degrade, OnReject, OnRejectPatch, Piece, RateLimitHeaders, RejectBody, Template, Var,
};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::yaml::fields::{Fields, Value, or_none, word};
use crate::config::yaml::tree::{Content, TextPiece};

/// The top-level section.
pub(crate) fn read(root: &mut Fields<'_>, upstreams: &mut Upstreams<'_>) -> OnReject {
    let defaults = OnReject {
        status: None,
        body: RejectBody::Problem,
        headers: Vec::new(),
        ratelimit_headers: RateLimitHeaders { standard: true, legacy: false },
        retry_jitter: 0,
        degrade: None,
    };
    match root.get("on_reject") {
        Some(value) => defaults.over(&read_patch(&value, upstreams)),
        None => defaults,
    }
}

/// The section of a limit or a location: only what is written. An upstream that is named counts as used.
pub(crate) fn read_patch(value: &Value<'_>, upstreams: &mut Upstreams<'_>) -> OnRejectPatch {
    if value.is_null() {
        return OnRejectPatch::default();
    }
    let mut fields = value.fields();
    let status = |text: &str| match text {
        "auto" => Ok(None),
        _ => names::status(text, 400).map(Some),
    };
    let patch = OnRejectPatch {
        status: fields.get("status").and_then(|value| value.read(status)),
        body: fields.get("body").and_then(|value| read_body(&value)),
        headers: fields.get("headers").map(|value| headers::read_pairs(&value)),
        ratelimit_headers: fields.get("ratelimit_headers").map(|value| read_ratelimit_headers(&value)),
        retry_jitter: fields.get("retry_jitter").and_then(|value| value.read(scalars::whole_percent)),
        degrade: fields.get("degrade").and_then(|value| read_degrade(&value, upstreams)),
    };
    fields.close();
    patch
}

fn read_body(value: &Value<'_>) -> Option<RejectBody> {
    if !matches!(value.node.content, Content::Map(_)) {
        let kinds = [
            ("problem", RejectBody::Problem),
            ("envelope", RejectBody::Envelope),
            ("none", RejectBody::None),
        ];
        return value.read(word(&kinds));
    }
    let mut fields = value.fields();
    let template = fields.get("template");
    if template.is_none() {
        fields.missing(
            "template",
            "write { template: \"try again in ${retry_after} s\", content_type: text/plain }",
        );
    }
    let content_type = read_content_type(&mut fields);
    fields.close();
    Some(RejectBody::Template { template: read_template(&template?)?, content_type })
}

/// The upstream or the answer that stands in for a rejection.
fn read_degrade(value: &Value<'_>, upstreams: &mut Upstreams<'_>) -> Option<Option<Degrade>> {
    if value.is_word("none") {
        return Some(None);
    }
    let degrade = match value.node.content {
        Content::Map(_) => Degrade::Canned(read_canned(value)?),
        Content::Text(_) => Degrade::Upstream(upstreams.resolve(value)?),
        _ => {
            value.complain_of_shape(
                "none, an upstream or an answer such as { status: 200, body: \"sold out\" }",
            );
            return None;
        }
    };
    Some(Some(degrade))
}

/// `{ status, body, content_type }`, each of which may be left out.
pub(crate) fn read_canned(value: &Value<'_>) -> Option<Canned> {
    let mut fields = value.fields();
    let status = fields.read("status", StatusCode::OK, |text| names::status(text, 200));
    let body = match fields.get("body") {
        Some(value) => read_template(&value),
        None => Some(Template(Vec::new())),
    };
    let content_type = read_content_type(&mut fields);
    fields.close();
    Some(Canned { status, body: body?, content_type })
}

/// `content_type`, plain text unless written.
fn read_content_type(fields: &mut Fields<'_>) -> HeaderValue {
    fields.read("content_type", HeaderValue::from_static("text/plain"), |text| {
        let value = names::header_value(text)?;
        let (kind, rest) = text.split_once('/').unwrap_or((text, ""));
        let word = |part: &str| !part.is_empty() && !part.contains([' ', ',', '/']);
        if !word(kind) || !word(rest.split(';').next().unwrap_or_default().trim_end()) {
            return Err(Complaint::new(codes::HEADER, format!("`{text}` is not a content type"))
                .help("write e.g. text/plain or application/json"));
        }
        Ok(value)
    })
}

fn read_ratelimit_headers(value: &Value<'_>) -> RateLimitHeaders {
    let mut headers = RateLimitHeaders::default();
    let standard = RateLimitHeaders { standard: true, legacy: false };
    let legacy = RateLimitHeaders { standard: false, legacy: true };
    let kinds = [("standard", standard), ("legacy", legacy)];
    if value.is_word("none") {
        return headers;
    }
    for kind in value.read_list(or_none(word(&kinds))) {
        match kind {
            Some(kind) => {
                headers = RateLimitHeaders {
                    standard: headers.standard || kind.standard,
                    legacy: headers.legacy || kind.legacy,
                }
            }
            None => value.complain(Complaint::new(codes::WORD, "`none` stands alone or not at all")),
        }
    }
    headers
}

/// The template variables by name.
const VARS: [(&str, Var); 15] = [
    ("status", Var::Status),
    ("title", Var::Title),
    ("message", Var::Message),
    ("limit", Var::Limit),
    ("tier", Var::Tier),
    ("rate", Var::Rate),
    ("retry_after", Var::RetryAfter),
    ("retry_after_ms", Var::RetryAfterMs),
    ("request_id", Var::RequestId),
    ("client_ip", Var::ClientIp),
    ("account", Var::Account),
    ("host", Var::Host),
    ("uri", Var::Uri),
    ("request_uri", Var::RequestUri),
    ("location", Var::Location),
];

/// A scalar with template variables.
pub(crate) fn read_template(value: &Value<'_>) -> Option<Template> {
    let Content::Text(text) = &value.node.content else {
        value.complain_of_shape("text");
        return None;
    };
    let mut pieces = Vec::new();
    for piece in &text.pieces {
        match piece {
            TextPiece::Plain(plain) => pieces.push(Piece::Text(plain.clone())),
            TextPiece::Variable(name) => match VARS.iter().find(|(known, _)| known == name) {
                Some((_, var)) => pieces.push(Piece::Var(*var)),
                None => {
                    let names = VARS.map(|(name, _)| name);
                    let help = did_you_mean(name, names)
                        .unwrap_or_else(|| format!("the variables are {}", names.join(", ")));
                    value.complain(
                        Complaint::new(codes::TEMPLATE, format!("unknown template variable `${{{name}}}`"))
                            .help(help),
                    );
                    return None;
                }
            },
        }
    }
    Some(Template(pieces))
}
