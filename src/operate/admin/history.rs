//! `GET /history`: the traffic of the last ten minutes or of the last day, also from before somebody looked.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::answer::{AdminBody, AdminError, Answer, JSON};
use super::endpoint::{AdminRequest, AnswerForm, Answered, Endpoint, Parameter, ParameterKind, error, ok};
use super::examples;
use sluicegate_base::json_shape::JsonShape::{Count, List, Nullable, Number, Object, Text};
use sluicegate_base::json_shape::{JsonField, JsonObject, JsonShape, always, maybe};
use sluicegate_observe::metrics::SeriesKind;

const SHAPE: JsonShape = Object(&JsonObject::named("History").with(&[
    always("end_ms", Count, "The end of the last value, in milliseconds since 1970; 0 in the first second."),
    always("step_ms", Count, "The time of one value, in milliseconds."),
    maybe("limits", List(&Object(&LIMIT)), "The 100 busiest limits, and the rest."),
    maybe("locations", List(&Object(&LOCATION)), "The 100 busiest locations, and the rest."),
    maybe("upstreams", List(&Object(&UPSTREAM)), "The 100 busiest upstreams, and the rest."),
]));
const LIMIT: JsonObject = JsonObject::named("LimitHistory").with(&[
    name("limit"),
    counts("admitted", "Admitted at once, the oldest first; null where nothing ran."),
    counts("waited", "Made to wait."),
    counts("rejected", "Rejected, also if they got another response instead."),
    counts("would_reject", "What it would have rejected, in a dry run or for keys it does not act on."),
]);
const LOCATION: JsonObject = JsonObject::named("LocationHistory").with(&[
    name("location"),
    counts("2xx", OF_SERVERS),
    counts("3xx", OF_SERVERS),
    counts("4xx", OF_SERVERS),
    counts("5xx", OF_SERVERS),
    counts("own", "Answers that no server made."),
]);
const UPSTREAM: JsonObject = JsonObject::named("UpstreamHistory").with(&[
    name("upstream"),
    counts("2xx", OF_SERVERS),
    counts("3xx", OF_SERVERS),
    counts("4xx", OF_SERVERS),
    counts("5xx", OF_SERVERS),
    always(
        "p50_ms",
        List(&Nullable(&Number)),
        "The median time to the head of a response; null without any.",
    ),
    always("p99_ms", List(&Nullable(&Number)), "The time that 99 of 100 do not exceed."),
]);
const OF_SERVERS: &str = "Responses of servers with this status, the oldest first; null where nothing ran.";

const fn name(field: &'static str) -> JsonField {
    always(field, Nullable(&Text), "Its name; null for the sum of the rest, which has no times.")
}

const fn counts(field: &'static str, sentence: &'static str) -> JsonField {
    always(field, List(&Nullable(&Count)), sentence)
}

/// The words for all kinds, and for one.
const KINDS: [&str; 4] = ["all", SeriesKind::LABELS[0], SeriesKind::LABELS[1], SeriesKind::LABELS[2]];

pub(super) const SHOW_HISTORY: Endpoint = Endpoint {
    name: "show_history",
    path: "/history",
    summary: "The traffic of the last ten minutes by seconds, or of the last day by minutes.",
    parameters: &[
        Parameter::in_query(
            ("span", "10m"),
            ParameterKind::Words(&["10m", "1d"]),
            "1d",
            "Ten minutes by seconds, or a day by minutes.",
        ),
        Parameter::in_query(("of", KINDS[0]), ParameterKind::Words(&KINDS), "limits", "One kind alone."),
        Parameter::in_query(("name", ""), ParameterKind::Text, "per-ip", "What has this name alone."),
    ],
    answers: &[
        ok("The history.", &[AnswerForm::Json(SHAPE, examples::HISTORY)]),
        error(404, "Nothing of this name has a history."),
    ],
    handler: |request| Box::pin(show_history(request)),
    ..Endpoint::READ
};

/// Text, and the row after it.
type BodyPart = (String, Option<(SeriesKind, Option<Arc<str>>)>);

/// Renders one row after the other as the caller takes them, so that a slow caller holds no more than one.
async fn show_history(request: AdminRequest) -> Answered {
    let (traffic, wanted) = (request.state.traffic.clone(), request.query_value("name"));
    let (of, of_minutes) = (request.query_value("of"), request.query_value("span") == "1d");
    let kinds = SeriesKind::ALL.into_iter().filter(|kind| of == KINDS[0] || of == kind.name());
    let history = traffic.history.borrow();
    let (end, end_ms) = history.end_of(of_minutes);
    let step_ms = if of_minutes { 60_000 } else { 1_000 };
    let mut parts: Vec<BodyPart> = vec![(format!("{{\"end_ms\":{end_ms},\"step_ms\":{step_ms}"), None)];
    for kind in kinds {
        parts.push((format!(",\"{}\":[", kind.name()), None));
        let names = history.names(kind).filter(|name| wanted.is_empty() || name.as_deref() == Some(wanted));
        let separators = std::iter::once("").chain(std::iter::repeat(","));
        parts.extend(separators.zip(names).map(|(text, name)| (text.to_owned(), Some((kind, name)))));
        parts.push(("]".to_owned(), None));
    }
    parts.push(("}\n".to_owned(), None));
    drop(history);
    if !wanted.is_empty() && parts.iter().all(|(_, row)| row.is_none()) {
        let why = format!("nothing of the name `{}` has a history", wanted.escape_debug());
        return Err(AdminError::new(StatusCode::NOT_FOUND, &why));
    }
    let body = parts.into_iter().map(move |(text, row)| {
        let mut out = text.into_bytes();
        if let Some((kind, name)) = row {
            traffic.history.borrow().write_row(&mut out, (kind, name.as_deref()), (of_minutes, end));
        }
        Bytes::from(out)
    });
    Ok(Answer::fixed(JSON, AdminBody::Parts(Box::new(body))))
}
