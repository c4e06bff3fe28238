//! One endpoint of the admin API: its row in the table, and a request for it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::answer::{AdminError, Answer};
use super::connections::AdminConnection;
use super::state::{ActionFuture, AdminState};
use super::status::StatusToken;
use sluicegate_base::json_shape::JsonShape::{Nullable, Object, Text};
use sluicegate_base::json_shape::{JsonObject, JsonShape, always, maybe};
use sluicegate_model::AdminRights;

/// A row of the table of endpoints.
pub(super) struct Endpoint {
    /// The name in the OpenAPI document, in audit lines and as the label of the metric.
    pub name: &'static str,
    pub method: &'static str,
    /// E.g. `/limits/{limit}/keys`; each part in braces is a parameter.
    pub path: &'static str,
    /// One sentence.
    pub summary: &'static str,
    pub parameters: &'static [Parameter],
    /// Changing endpoints without one accept an object with a `reason` alone.
    pub body: Option<BodyFormat>,
    /// The answers of the endpoint itself, the first one for success.
    pub answers: &'static [AnswerFormat],
    pub access: EndpointAccess,
    pub handler: Handler,
}

/// The callers that are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndpointAccess {
    /// Everybody, by any host name: it shows only health, or nothing.
    Public,
    /// Each caller with a token, or from this host if there is none.
    Read,
    /// Callers with a token for changes. Each endpoint is audited, and its body may hold a `reason`.
    Change,
}

/// A parameter in the path or in the query.
pub(super) struct Parameter {
    pub name: &'static str,
    /// The value that an absent one has; `None` = it is a part of the path.
    pub default: Option<&'static str>,
    pub kind: ParameterKind,
    pub example: &'static str,
    pub sentence: &'static str,
}

pub(super) enum ParameterKind {
    Text,
    /// A text in which slashes may stand plain.
    TextWithSlashes,
    /// Both bounds are included.
    Integer(u64, u64),
    Flag,
    Words(&'static [&'static str]),
}

impl Parameter {
    pub(super) const fn in_path(
        name: &'static str,
        kind: ParameterKind,
        example: &'static str,
        sentence: &'static str,
    ) -> Parameter {
        Parameter { name, default: None, kind, example, sentence }
    }

    pub(super) const fn in_query(
        (name, default): (&'static str, &'static str),
        kind: ParameterKind,
        example: &'static str,
        sentence: &'static str,
    ) -> Parameter {
        Parameter { name, default: Some(default), kind, example, sentence }
    }
}

/// A body of JSON.
pub(super) struct BodyFormat {
    pub object: &'static JsonObject,
    pub required: bool,
    /// JSON text.
    pub example: &'static str,
}

/// A documented answer.
pub(super) struct AnswerFormat {
    pub status: u16,
    pub sentence: &'static str,
    pub forms: &'static [AnswerForm],
}

/// One media type of an answer, with an example unless that is empty.
pub(super) enum AnswerForm {
    Text(&'static str),
    Json(JsonShape, &'static str),
    /// Server-sent events with such an object as data.
    Events(JsonShape, &'static str),
    /// Any other kind.
    Other(&'static str, &'static str),
}

/// The body of an error.
pub(super) static ERROR: JsonObject =
    JsonObject::named("Error").with(&[always("error", Text, "What is wrong, and often what to do.")]);

/// The body of a change that has no fields of its own.
pub(super) static REASON: JsonObject = JsonObject::named("Reason").with(&[maybe(
    "reason",
    Nullable(&Text),
    "Why, for the audit line; at most 200 characters.",
)]);

/// Their texts differ, so they have no example.
const ERROR_FORMS: &[AnswerForm] = &[AnswerForm::Text(""), AnswerForm::Json(Object(&ERROR), "")];

pub(super) const fn ok(sentence: &'static str, forms: &'static [AnswerForm]) -> AnswerFormat {
    AnswerFormat { status: 200, sentence, forms }
}

pub(super) const fn error(status: u16, sentence: &'static str) -> AnswerFormat {
    AnswerFormat { status, sentence, forms: ERROR_FORMS }
}

/// The answer of a handler, or its refusal.
pub(super) type Answered = Result<Answer, AdminError>;

/// Answers a request, when its answer is there.
pub(super) type Handler = fn(AdminRequest) -> ActionFuture<Answered>;

/// A request that belongs to an endpoint and is authorized.
pub(super) struct AdminRequest {
    pub state: AdminState,
    pub endpoint: &'static Endpoint,
    /// All endpoints, for the endpoint that describes them.
    pub endpoints: &'static [Endpoint],
    /// The configuration has tokens.
    pub needs_token: bool,
    pub connection: Rc<AdminConnection>,
    /// Percent-decoded values by name.
    pub path_values: Vec<(&'static str, String)>,
    /// Values by name; each fits its parameter.
    pub query_values: Vec<(&'static str, String)>,
    /// The members beside `reason`; empty without a body.
    pub body: Map<String, Value>,
    /// The reason of a change.
    pub reason: Option<String>,
    /// The caller.
    pub caller: AdminCaller,
}

/// The caller of a request.
#[derive(Debug, Clone)]
pub(super) struct AdminCaller {
    /// The name of its token; `loopback` without tokens.
    pub name: Arc<str>,
    pub address: SocketAddr,
    pub rights: AdminRights,
    /// Accounts are shown in clear.
    pub sees_accounts: bool,
}

impl Endpoint {
    /// An endpoint that shows something, without parameters; a row of the table sets its other fields.
    pub(super) const READ: Endpoint = Endpoint {
        name: "",
        method: "GET",
        path: "",
        summary: "",
        parameters: &[],
        body: None,
        answers: &[],
        access: EndpointAccess::Read,
        handler: |_| Box::pin(std::future::ready(Err(AdminError::shutting_down()))),
    };
    /// An endpoint that changes something; a row of the table sets its other fields.
    pub(super) const CHANGE: Endpoint =
        Endpoint { method: "POST", access: EndpointAccess::Change, ..Endpoint::READ };

    /// The parameters of the query with their defaults.
    pub(super) fn query_parameters(
        &self,
    ) -> impl Iterator<Item = (&'static Parameter, &'static str)> + use<> {
        self.parameters.iter().filter_map(|parameter| Some((parameter, parameter.default?)))
    }

    /// The answer to a body that does not fit the endpoint.
    pub(super) fn reject_body(&self, why: &str) -> AdminError {
        let example = self.body.as_ref().map_or("{\"reason\": \"maintenance\"}", |body| body.example);
        AdminError::new(StatusCode::BAD_REQUEST, &format!("{why}; post e.g. {example}"))
    }

    /// The answer to a body with members that the endpoint does not have.
    ///
    /// # Errors
    /// The first such member.
    pub(super) fn check_members(&self, body: &Map<String, Value>) -> Result<(), AdminError> {
        let fields = self.body.as_ref().map_or(&[][..], |body| body.object.fields);
        let is_unknown = |name: &&String| fields.iter().all(|field| field.name != name.as_str());
        match body.keys().find(is_unknown) {
            Some(name) => Err(self.reject_body(&format!("unknown field `{}`", name.escape_debug()))),
            None => Ok(()),
        }
    }
}

impl AdminRequest {
    /// The caller, for the status.
    pub(super) fn token(&self) -> StatusToken {
        let allow = ["all", "read", "numbers"][self.caller.rights as usize];
        StatusToken { name: self.caller.name.to_string(), allow }
    }

    /// The value of a parameter in the path; empty if the path has none of this name.
    pub(super) fn path_value(&self, name: &str) -> &str {
        find_value(&self.path_values, name).unwrap_or_default()
    }

    /// The value of a parameter in the query, or its default.
    pub(super) fn query_value(&self, name: &str) -> &str {
        let default = || self.endpoint.query_parameters().find(|(parameter, _)| parameter.name == name);
        find_value(&self.query_values, name).or_else(|| Some(default()?.1)).unwrap_or_default()
    }

    /// The value of an integer in the query.
    pub(super) fn query_number(&self, name: &str) -> usize {
        self.query_value(name).parse().unwrap_or(usize::MAX)
    }

    /// The body as a `T`.
    ///
    /// # Errors
    /// The answer to a body that is none.
    pub(super) fn read_body<T: DeserializeOwned>(&self) -> Result<T, AdminError> {
        let body = Value::Object(self.body.clone());
        serde_json::from_value(body).map_err(|error| self.endpoint.reject_body(&error.to_string()))
    }

    /// The text of a member of the body; `None` without one, and for null.
    ///
    /// # Errors
    /// The answer to a member that is no text.
    pub(super) fn body_text(&self, name: &str) -> Result<Option<&str>, AdminError> {
        match self.body.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.endpoint.reject_body(&format!("`{name}` is not a text"))),
        }
    }
}

fn find_value<'v>(values: &'v [(&'static str, String)], name: &str) -> Option<&'v str> {
    values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}
