//! Answers of the admin API: text for people, JSON for programs.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// The answer to a request that is refused, in two forms.
#[derive(Debug, Clone)]
pub struct AdminError {
    /// The status of the answer.
    pub status: StatusCode,
    /// The answer for people, with its line end.
    pub text: String,
    /// Without an `error`, it gets that of the text.
    pub json: Value,
}

/// The answer of an endpoint.
pub(super) struct Answer {
    pub status: StatusCode,
    content: AnswerContent,
    /// The change that the endpoint made.
    pub change: Option<Change>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

enum AnswerContent {
    /// Text for people, JSON for programs.
    Forms { text: String, json: String },
    /// The same for people and programs.
    Fixed { kind: &'static str, body: AdminBody },
}

/// A change for the audit line.
pub(super) struct Change {
    /// The changed object, e.g. `upstream app, server 10.0.0.7:80`; empty for the gateway as a whole.
    pub target: String,
    pub before: Value,
    pub after: Value,
}

pub(super) const TEXT: &str = "text/plain; charset=utf-8";
pub(super) const JSON: &str = "application/json";

/// The body of an answer: whole, in parts, or a stream of events.
pub(super) enum AdminBody {
    Whole(Full<Bytes>),
    /// Each part is made when it is sent.
    Parts(Box<dyn Iterator<Item = Bytes>>),
    /// Ends when the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

impl From<String> for AdminBody {
    fn from(text: String) -> AdminBody {
        AdminBody::Whole(text.into())
    }
}

impl From<Bytes> for AdminBody {
    fn from(bytes: Bytes) -> AdminBody {
        AdminBody::Whole(bytes.into())
    }
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            AdminBody::Whole(body) => Pin::new(body).poll_frame(cx),
            AdminBody::Parts(parts) => Poll::Ready(parts.next().map(|part| Ok(Frame::data(part)))),
            AdminBody::Stream(events) => {
                events.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AdminBody::Whole(body) if body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AdminBody::Whole(body) => body.size_hint(),
            AdminBody::Parts(_) | AdminBody::Stream(_) => SizeHint::default(),
        }
    }
}

// === impl AdminError ===

impl AdminError {
    /// `why` is one sentence without its full stop.
    pub(super) fn new(status: StatusCode, why: &str) -> AdminError {
        AdminError { status, text: format!("{why}\n"), json: json!({ "error": why }) }
    }

    /// A refusal to reload; `result` is the word for it.
    pub fn not_reloaded(status: StatusCode, result: &str, why: &str) -> AdminError {
        AdminError { status, text: format!("{why}\n"), json: json!({ "result": result, "message": why }) }
    }

    /// The process is shutting down; another may have taken over.
    pub fn shutting_down() -> AdminError {
        let why = "this process is shutting down; if another process has taken over, ask that one";
        AdminError::not_reloaded(StatusCode::SERVICE_UNAVAILABLE, "refused", why)
    }

    /// Process `pid` has taken over and received the request to reload.
    pub fn handed_to_process(pid: u32) -> AdminError {
        let why = format!("process {pid} has taken over and was told to reload; its log has the result");
        AdminError::not_reloaded(StatusCode::SERVICE_UNAVAILABLE, "handed on", &why)
    }

    /// Rejects the method of an endpoint; `allow` lists those that the path has.
    pub(super) fn wrong_method(allow: &str) -> Answer {
        let why = format!("this call accepts only {allow}");
        let allow = HeaderValue::from_str(allow).ok().map(|allow| (ALLOW, allow));
        let answer = Answer::from(AdminError::new(StatusCode::METHOD_NOT_ALLOWED, &why));
        answer.with_headers(allow.into_iter().collect())
    }
}

// === impl Answer ===

impl Answer {
    /// Text for people, JSON for programs.
    pub(super) fn forms(text: String, json: &impl Serialize) -> Answer {
        AnswerContent::Forms { text, json: render_json(json) }.into()
    }

    /// JSON for every caller.
    pub(super) fn json(value: &impl Serialize) -> Answer {
        Answer::fixed(JSON, render_json(value))
    }

    /// Text for every caller.
    pub(super) fn text(text: impl Into<Bytes>) -> Answer {
        Answer::fixed(TEXT, text.into())
    }

    /// A body of any `kind` with status 200.
    pub(super) fn fixed(kind: &'static str, body: impl Into<AdminBody>) -> Answer {
        AnswerContent::Fixed { kind, body: body.into() }.into()
    }

    /// Records the change that the endpoint made.
    pub(super) fn with_change(self, change: Change) -> Answer {
        Answer { change: Some(change), ..self }
    }

    pub(super) fn with_headers(self, headers: Vec<(HeaderName, HeaderValue)>) -> Answer {
        Answer { headers, ..self }
    }

    /// The form that the caller asks for; of an error JSON also for a caller that sends JSON.
    pub(super) fn into_response(self, headers: &HeaderMap) -> Response<AdminBody> {
        let is_error = !self.status.is_success();
        let (kind, body) = match self.content {
            AnswerContent::Fixed { kind, body } => (kind, body),
            AnswerContent::Forms { text, json } => {
                match accepts_json(headers).unwrap_or_else(|| is_error && sends_json(headers)) {
                    true => (JSON, json.into()),
                    false => (TEXT, text.into()),
                }
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.extend(self.headers);
        response
    }
}

impl From<AnswerContent> for Answer {
    fn from(content: AnswerContent) -> Answer {
        Answer { status: StatusCode::OK, content, change: None, headers: Vec::new() }
    }
}

impl From<AdminError> for Answer {
    fn from(error: AdminError) -> Answer {
        let AdminError { status, text, mut json } = error;
        if json.get("error").is_none() {
            json["error"] = json!(text.trim_end());
        }
        Answer { status, ..Answer::forms(text, &json) }
    }
}

fn render_json(value: &impl Serialize) -> String {
    // Only maps with odd keys fail to serialize, and there are none.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// True if the caller prefers JSON to text; `None` = it does not say.
fn accepts_json(headers: &HeaderMap) -> Option<bool> {
    let fields = headers.get_all(ACCEPT).iter().filter_map(|field| field.to_str().ok());
    let kinds = fields.flat_map(|field| field.split(',')).map(|kind| media_type(kind).to_ascii_lowercase());
    kinds
        .filter_map(|kind| match kind.as_str() {
            "application/json" => Some(true),
            "text/plain" | "text/*" => Some(false),
            _ => None,
        })
        .next()
}

/// True if the body of the request is JSON: a form on another site can send any other type.
pub(super) fn sends_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    media_type(kind).eq_ignore_ascii_case("application/json")
}

/// A media type without its parameters.
fn media_type(field: &str) -> &str {
    field.split(';').next().unwrap_or_default().trim()
}
