//! Templates compiled into fixed texts and slots, so that rendering is a few copies into one allocation.

use std::io::Write;

use bytes::Bytes;
use http::HeaderValue;

use super::RejectContext;
use sluicegate_base::escape;
use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_http::request::location;
use sluicegate_http::request::source::BodyTexts;
use sluicegate_model::{TemplateConfig, TemplatePiece, TemplateVar};

/// Bytes of a header value with variables; a longer one is cut.
const HEADER_VALUE_MAX: usize = 8 * 1024;

/// A template, ready to be rendered.
#[derive(Debug, Clone, Default)]
pub struct CompiledTemplate {
    parts: Box<[TemplatePart]>,
    text_bytes: usize,
    /// A value is the whole seconds until the retry.
    uses_seconds: bool,
    escape: Escape,
    /// A URL on this host with a path that begins with text of the client.
    begins_with_path: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TemplatePart {
    Text(String),
    /// A value that each request fills in.
    Slot(TemplateVar),
    /// A value that few templates have.
    Rare(Box<RareValue>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RareValue {
    /// The value of a further column of the request's API key.
    KeyColumn(Box<str>),
    /// The value at this place of the request's body.
    Json(JsonPointer),
    /// The `id` of the JSON-RPC message that is the request's body, as it was written.
    RpcId,
}

/// The escaping of values for the content type they are written into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Escape {
    Json,
    Html,
    #[default]
    Plain,
    /// A header value.
    Header,
    /// A URL in a header value.
    Url,
}

/// The time until a retry: whole seconds for people, exact milliseconds for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RetryTimes {
    pub seconds: Option<u64>,
    pub ms: Option<u64>,
}

/// The values that are known when the configuration is read.
#[derive(Debug, Clone, Default)]
pub(super) struct FixedValues {
    pub status: u16,
    pub title: String,
    pub message: Vec<TemplatePart>,
    pub limit: String,
    pub rate: String,
}

// === impl CompiledTemplate ===

impl CompiledTemplate {
    /// Compiles the body of `respond`, which concerns no limit.
    pub fn for_body(template: &TemplateConfig, content_type: &HeaderValue) -> CompiledTemplate {
        let escape = Escape::for_content_type(content_type);
        CompiledTemplate::compile_with(template, escape, &FixedValues::default())
    }

    /// Compiles the target of `redirect`.
    pub fn for_url(template: &TemplateConfig) -> CompiledTemplate {
        let mut compiled = CompiledTemplate::compile_with(template, Escape::Url, &FixedValues::default());
        compiled.begins_with_path = match compiled.parts.first() {
            Some(TemplatePart::Slot(slot)) => *slot != TemplateVar::Scheme,
            Some(TemplatePart::Text(text)) => text == "/",
            _ => false,
        };
        compiled
    }

    pub(super) fn compile_with(
        template: &TemplateConfig,
        escape: Escape,
        fixed: &FixedValues,
    ) -> CompiledTemplate {
        let mut builder = TemplateBuilder::new(escape);
        for piece in &template.0 {
            match piece {
                TemplatePiece::Text(text) => builder.push_verbatim(text),
                TemplatePiece::Var(var) => builder.push_variable(*var, fixed),
                TemplatePiece::KeyColumn(column) => {
                    builder.push_rare(RareValue::KeyColumn(column.as_str().into()));
                }
                TemplatePiece::JsonValue(pointer) => builder.push_rare(RareValue::Json(pointer.clone())),
            }
        }
        builder.finish()
    }

    /// Renders the text, with the slots filled from `context`.
    pub fn render(&self, context: &RejectContext<'_>) -> Vec<u8> {
        self.render_with_retry(context, RetryTimes::default())
    }

    /// Renders a header value; `None` = it is empty. Values of clients cannot end the line, see [`Escape::Header`].
    pub fn render_header_value(&self, context: &RejectContext<'_>) -> Option<HeaderValue> {
        let mut rendered = Bytes::from(self.render(context));
        rendered.truncate(HEADER_VALUE_MAX);
        // HTTP/2 forbids spaces at both ends.
        let trimmed = rendered.slice_ref(rendered.trim_ascii());
        if trimmed.is_empty() { None } else { HeaderValue::from_maybe_shared(trimmed).ok() }
    }

    /// True if a value is the host of the request or a part of its target.
    pub fn uses_target(&self) -> bool {
        let is_of_target = |slot: &TemplateVar| {
            let (host, request_uri) = (TemplateVar::Host, TemplateVar::RequestUri);
            [host, request_uri, TemplateVar::Uri, TemplateVar::Path].contains(slot)
        };
        self.parts.iter().any(|part| matches!(part, TemplatePart::Slot(slot) if is_of_target(slot)))
    }

    /// True if a value is more than an id or a time.
    pub(super) fn uses_context(&self) -> bool {
        let is_of_response = |slot: &TemplateVar| {
            matches!(slot, TemplateVar::RequestId | TemplateVar::RetryAfter | TemplateVar::RetryAfterMs)
        };
        self.parts.iter().any(|part| match part {
            TemplatePart::Slot(slot) => !is_of_response(slot),
            TemplatePart::Rare(_) => true,
            TemplatePart::Text(_) => false,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn render_with_retry(&self, context: &RejectContext<'_>, retry: RetryTimes) -> Vec<u8> {
        let (mut seconds, mut ms) = (itoa::Buffer::new(), itoa::Buffer::new());
        // Templates write numbers without quotes, so an empty text would not be valid JSON.
        let unknown = if self.escape == Escape::Json { "0" } else { "" };
        let seconds = retry.seconds.filter(|_| self.uses_seconds).map_or(unknown, |n| seconds.format(n));
        let ms = retry.ms.map_or(unknown, |n| ms.format(n));
        let text = |slot: TemplateVar| match slot {
            TemplateVar::RetryAfter => seconds.as_bytes(),
            TemplateVar::RetryAfterMs => ms.as_bytes(),
            TemplateVar::RequestId => context.request_id,
            TemplateVar::Account => context.account.as_bytes(),
            TemplateVar::Tier => context.tier.as_bytes(),
            TemplateVar::Class => context.class.as_bytes(),
            TemplateVar::Host => context.host.as_bytes(),
            // A header or URL gets the bytes of the path, whatever they are.
            TemplateVar::Uri if !matches!(self.escape, Escape::Header | Escape::Url) => {
                context.uri.as_bytes()
            }
            TemplateVar::Uri | TemplateVar::Path => context.path,
            TemplateVar::RequestUri => context.request_uri.as_bytes(),
            TemplateVar::Scheme => context.scheme.as_bytes(),
            TemplateVar::Location => context.location.as_bytes(),
            TemplateVar::Upstream => context.upstream.as_bytes(),
            TemplateVar::ClientIp => b"",
            // No slots, see [`TemplateBuilder::push_variable`].
            TemplateVar::Status
            | TemplateVar::Title
            | TemplateVar::Message
            | TemplateVar::Limit
            | TemplateVar::Rate => b"",
        };
        // Exact unless a value is escaped or rare, so the body needs no second allocation.
        let values = self.parts.iter().map(|part| match part {
            TemplatePart::Slot(slot) => text(*slot).len(),
            TemplatePart::Text(_) | TemplatePart::Rare(_) => 0,
        });
        let mut out = Vec::with_capacity(self.text_bytes + values.sum::<usize>());
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplatePart::Slot(TemplateVar::ClientIp) => {
                    if let Some(ip) = context.client_ip {
                        // Writing into a Vec cannot fail.
                        let _ = write!(out, "{ip}");
                    }
                }
                // No content type needs to escape ids and numbers.
                TemplatePart::Slot(
                    slot @ (TemplateVar::RequestId | TemplateVar::RetryAfter | TemplateVar::RetryAfterMs),
                ) => {
                    out.extend_from_slice(text(*slot));
                }
                TemplatePart::Slot(slot) => self.escape.write_slot(&mut out, *slot, text(*slot)),
                TemplatePart::Rare(value) => self.escape.write_rare(&mut out, value, context),
            }
        }
        if self.begins_with_path {
            keep_host(&mut out);
        }
        out
    }
}

/// Leaves one of several slashes at the beginning of a URL, behind which browsers look for another host.
fn keep_host(url: &mut Vec<u8>) {
    let slashes = url.iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
    if slashes > 1 {
        url.splice(..slashes, [b'/']);
    }
}

// === impl Escape ===

impl Escape {
    /// The escaping for a content type.
    pub(super) fn for_content_type(content_type: &HeaderValue) -> Escape {
        let text = String::from_utf8_lossy(content_type.as_bytes()).to_ascii_lowercase();
        let essence = text.split(';').next().unwrap_or_default().trim();
        if essence.ends_with("/json") || essence.ends_with("+json") {
            Escape::Json
        } else if essence == "text/html" || essence.ends_with("/xml") || essence.ends_with("+xml") {
            Escape::Html
        } else {
            Escape::Plain
        }
    }

    fn write_escaped(self, out: &mut Vec<u8>, text: &[u8]) {
        match self {
            Escape::Json => escape::escape_json(out, text),
            Escape::Html => escape::escape_html(out, text),
            Escape::Plain => out.extend_from_slice(text),
            Escape::Header => escape::escape_header_text(out, text),
            Escape::Url => escape::escape_url_component(out, text),
        }
    }

    #[cold]
    fn write_rare(self, out: &mut Vec<u8>, value: &RareValue, context: &RejectContext<'_>) {
        let text = match value {
            RareValue::KeyColumn(name) => context.key_column(name),
            RareValue::Json(pointer) => context.body.map_or("", |body| body.value(pointer)),
            RareValue::RpcId => context.body.map_or("null", BodyTexts::rpc_id),
        };
        match (value, self) {
            (RareValue::RpcId, _) => out.extend_from_slice(text.as_bytes()),
            // A text of the operator, as the name of a location is.
            (RareValue::KeyColumn(_), Escape::Header) => {
                escape::escape_header_controls(out, text.as_bytes());
            }
            _ => self.write_escaped(out, text.as_bytes()),
        }
    }

    fn write_slot(self, out: &mut Vec<u8>, slot: TemplateVar, text: &[u8]) {
        match (self, slot) {
            (Escape::Header | Escape::Url, TemplateVar::Uri | TemplateVar::Path) => {
                out.extend_from_slice(location::encode_path(text).as_bytes());
            }
            // A target has its own escapes, a host needs none.
            (Escape::Header | Escape::Url, TemplateVar::RequestUri | TemplateVar::Host)
            | (Escape::Header, TemplateVar::Location | TemplateVar::Upstream) => {
                escape::escape_header_controls(out, text);
            }
            _ => self.write_escaped(out, text),
        }
    }
}

// === TemplateBuilder ===

/// Builds a [`CompiledTemplate`], and joins adjacent texts.
pub(super) struct TemplateBuilder {
    parts: Vec<TemplatePart>,
    escape: Escape,
}

impl TemplateBuilder {
    pub(super) fn new(escape: Escape) -> TemplateBuilder {
        TemplateBuilder { parts: Vec::new(), escape }
    }

    /// Appends text without escaping.
    pub(super) fn push_verbatim(&mut self, text: &str) {
        match self.parts.last_mut() {
            Some(TemplatePart::Text(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.parts.push(TemplatePart::Text(text.to_owned())),
        }
    }

    /// Appends text, escaped for the content type.
    pub(super) fn push_escaped(&mut self, text: &str) {
        let mut out = Vec::with_capacity(text.len());
        self.escape.write_escaped(&mut out, text.as_bytes());
        self.push_verbatim(&String::from_utf8_lossy(&out));
    }

    pub(super) fn push_rare(&mut self, value: RareValue) {
        self.parts.push(TemplatePart::Rare(Box::new(value)));
    }

    pub(super) fn push_slot(&mut self, slot: TemplateVar) {
        self.parts.push(TemplatePart::Slot(slot));
    }

    pub(super) fn push_parts(&mut self, parts: &[TemplatePart]) {
        for part in parts {
            match part {
                TemplatePart::Text(text) => self.push_escaped(text),
                TemplatePart::Slot(slot) => self.push_slot(*slot),
                part => self.parts.push(part.clone()),
            }
        }
    }

    fn push_variable(&mut self, var: TemplateVar, fixed: &FixedValues) {
        match var {
            TemplateVar::Status if fixed.status > 0 => self.push_verbatim(&fixed.status.to_string()),
            TemplateVar::Status => {}
            TemplateVar::Title => self.push_escaped(&fixed.title),
            TemplateVar::Message => self.push_parts(&fixed.message),
            TemplateVar::Limit => self.push_escaped(&fixed.limit),
            TemplateVar::Rate => self.push_escaped(&fixed.rate),
            slot => self.push_slot(slot),
        }
    }

    pub(super) fn finish(self) -> CompiledTemplate {
        let text_bytes = self.parts.iter().map(|part| match part {
            TemplatePart::Text(text) => text.len(),
            _ => 0,
        });
        CompiledTemplate {
            text_bytes: text_bytes.sum(),
            uses_seconds: self.parts.contains(&TemplatePart::Slot(TemplateVar::RetryAfter)),
            parts: self.parts.into_boxed_slice(),
            escape: self.escape,
            begins_with_path: false,
        }
    }
}
