//! The table of all endpoints of the admin API. Routing, methods, access, the page of a wrong path and the OpenAPI
//! document come from it.

use std::sync::atomic::Ordering::Relaxed;

use http::StatusCode;
use serde_json::json;

use super::answer::{AdminError, Answer, Change};
use super::endpoint::AnswerForm::{Events, Json, Other};
use super::endpoint::{
    AdminRequest, AnswerForm, AnswerFormat, Answered, BodyFormat, Endpoint, EndpointAccess, Parameter,
    ParameterKind, error, ok,
};
use super::events::TrafficEvent;
use super::limits::LimitList;
use super::status::{Reloaded, Status};
use super::{bans, events, examples, history, keys, limit_changes, limits, openapi, page, upstreams, usage};
use crate::operate::explain::{Explanation, Query as ExplainQuery, explain_request};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::JsonShape::{Any, Object, Text, Words};
use sluicegate_base::json_shape::{JsonObject, JsonShaped, always, maybe};
use sluicegate_http::upstream::{ServerStatus, UpstreamStatus};
use sluicegate_model::Problem;
use sluicegate_observe::metrics;

const UPSTREAM: Parameter =
    Parameter::in_path("upstream", ParameterKind::Text, "app", "The name of the upstream, percent-encoded.");
/// [`UPSTREAM`] where the path goes on.
const UPSTREAM_OF_SERVER: Parameter = Parameter { kind: ParameterKind::TextWithSlashes, ..UPSTREAM };
const SERVER: Parameter = Parameter::in_path(
    "server",
    ParameterKind::TextWithSlashes,
    "10.0.0.7:8080",
    "The server as the file names it, percent-encoded; slashes may stand plain.",
);

const fn not_reloaded(status: u16, sentence: &'static str) -> AnswerFormat {
    const FORMS: &[AnswerForm] = &[
        AnswerForm::Text("server.workers changes from 2 to 4: that needs a restart\n"),
        Json(Object(&NOT_RELOADED), examples::NOT_RELOADED),
    ];
    AnswerFormat { status, sentence, forms: FORMS }
}

const FORCE: Parameter = Parameter::in_query(
    ("force", "false"),
    ParameterKind::Flag,
    "true",
    "Drains the server even if no other one of the upstream is up.",
);

static NOT_RELOADED: JsonObject = JsonObject::named("NotReloaded").with(&[
    always("error", Text, "What is wrong, and often what to do."),
    always("result", Words(&["invalid", "refused", "handed on"]), "Why nothing was reloaded."),
    maybe("message", Text, "The reason, unless the file is invalid."),
    maybe("file", Text, "The invalid file."),
    maybe("problems", Vec::<Problem>::SHAPE, "All problems of an invalid file."),
]);

/// Every endpoint, in the order in which the documents list them.
pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        name: "show_page",
        path: "/",
        summary: "The page for operators, which asks the other calls.",
        answers: &[ok("The page.", &[Other(page::HTML, "<!doctype html>")])],
        access: EndpointAccess::Public,
        handler: |request| Box::pin(page::show_page(request)),
        ..Endpoint::READ
    },
    Endpoint {
        name: "show_page_file",
        path: "/page/{file}",
        summary: "A file of the page: its style, or a module.",
        parameters: &[page::FILE],
        answers: &[
            ok(
                "The file.",
                &[Other(page::JAVASCRIPT, "export {};"), Other(page::CSS, "body { margin: 0; }")],
            ),
            error(404, "The page has no such file."),
        ],
        access: EndpointAccess::Public,
        handler: |request| Box::pin(page::show_page_file(request)),
        ..Endpoint::READ
    },
    Endpoint {
        name: "show_health",
        path: "/healthz",
        summary: "Whether the process answers.",
        answers: &[ok("It does.", &[AnswerForm::Text("ok")])],
        access: EndpointAccess::Public,
        handler: |request| Box::pin(show_health(request)),
        ..Endpoint::READ
    },
    Endpoint {
        name: "show_readiness",
        path: "/readyz",
        summary: "Whether the gateway takes requests; with lines `degraded: redis` while a fallback decides, and \
                  `degraded: issuer NAME` while its keys are unknown.",
        answers: &[ok("It does.", &[AnswerForm::Text("ready\n")]), error(503, "It starts or stops.")],
        access: EndpointAccess::Public,
        handler: |request| Box::pin(show_readiness(request)),
        ..Endpoint::READ
    },
    Endpoint {
        name: "show_metrics",
        path: "/metrics",
        summary: "All metrics, in the OpenMetrics text format.",
        answers: &[ok("The metrics.", &[Other(metrics::CONTENT_TYPE, "# EOF\n")])],
        handler: |request| Box::pin(show_metrics(request)),
        ..Endpoint::READ
    },
    Endpoint {
        name: "show_status",
        path: "/status",
        summary: "The state of the gateway, on one screen.",
        answers: &[
            ok(
                "The state.",
                &[
                    AnswerForm::Text("sluicegate 0.1.0, process 4711, up 86400 s\n"),
                    Json(Status::SHAPE, examples::STATUS),
                ],
            ),
            error(503, "The process is shutting down."),
        ],
        handler: |request| Box::pin(show_status(request)),
        ..Endpoint::READ
    },
    Endpoint {
        name: "list_limits",
        path: "/limits",
        summary: "Every limit with its numbers, its keys, its queue and its traffic.",
        parameters: &[
            Parameter::in_query(
                ("by", "file"),
                ParameterKind::Words(&["file", "rejected"]),
                "rejected",
                "The order: as in the file, or those with most rejections per second first.",
            ),
            Parameter::in_query(
                ("top", "1000"),
                ParameterKind::Integer(1, 100_000),
                "20",
                "The most limits to list.",
            ),
        ],
        answers: &[ok(
            "The limits.",
            &[
                AnswerForm::Text("limit   numbers\nper-ip  10 requests per second, burst 20\n"),
                Json(LimitList::SHAPE, examples::LIMIT_LIST),
            ],
        )],
        handler: |request| Box::pin(limits::list_limits(request)),
        ..Endpoint::READ
    },
    limit_changes::PAUSE_LIMIT,
    limit_changes::RESUME_LIMIT,
    limit_changes::PAUSE_LIMITS,
    limit_changes::RESUME_LIMITS,
    limit_changes::SHOW_NUMBERS,
    limit_changes::SET_NUMBERS,
    limit_changes::UNSET_NUMBERS,
    usage::LIST_USAGE,
    keys::LIST_KEYS,
    keys::SHOW_KEY,
    keys::RESET_KEY,
    keys::GRANT_KEY,
    keys::REVOKE_GRANT,
    bans::LIST_BANS,
    bans::BAN_CLIENT,
    bans::UNBAN_CLIENT,
    Endpoint {
        name: "list_upstreams",
        path: "/upstreams",
        summary: "Every upstream with the state of its servers.",
        answers: &[ok("The upstreams.", &[Json(upstreams::UpstreamList::SHAPE, examples::UPSTREAM_LIST)])],
        handler: |request| Box::pin(upstreams::list_upstreams(request)),
        ..Endpoint::READ
    },
    Endpoint {
        name: "show_upstream",
        path: "/upstreams/{upstream}",
        summary: "One upstream with the state of its servers.",
        parameters: &[UPSTREAM],
        answers: &[
            ok("The upstream.", &[Json(UpstreamStatus::SHAPE, examples::UPSTREAM)]),
            error(404, "There is no such upstream."),
        ],
        handler: |request| Box::pin(upstreams::show_upstream(request)),
        ..Endpoint::READ
    },
    Endpoint {
        name: "drain_server",
        path: "/upstreams/{upstream}/servers/{server}/drain",
        summary: "Stops new requests to a server; those in flight finish.",
        parameters: &[UPSTREAM_OF_SERVER, SERVER, FORCE],
        answers: &[
            ok(
                "The servers of this name, now draining.",
                &[Json(Vec::<ServerStatus>::SHAPE, examples::SERVERS)],
            ),
            error(404, "There is no such upstream or server."),
            error(409, "No other server of the upstream is up."),
        ],
        handler: |request| Box::pin(upstreams::change_drain(request, true)),
        ..Endpoint::CHANGE
    },
    Endpoint {
        name: "undrain_server",
        path: "/upstreams/{upstream}/servers/{server}/undrain",
        summary: "Ends the drain of a server.",
        parameters: &[UPSTREAM_OF_SERVER, SERVER],
        answers: &[
            ok("The servers of this name.", &[Json(Vec::<ServerStatus>::SHAPE, examples::SERVERS)]),
            error(404, "There is no such upstream or server."),
        ],
        handler: |request| Box::pin(upstreams::change_drain(request, false)),
        ..Endpoint::CHANGE
    },
    Endpoint {
        name: "explain",
        method: "POST",
        path: "/explain",
        summary: "Explains the decision on a request, from the running counters, and charges nothing.",
        body: Some(BodyFormat { object: &ExplainQuery::OBJECT, required: true, example: examples::QUERY }),
        answers: &[ok(
            "The decision and its reasons.",
            &[
                AnswerForm::Text("client    203.0.113.7: the peer\n"),
                Json(Explanation::SHAPE, examples::EXPLANATION),
            ],
        )],
        handler: |request| Box::pin(post_explain(request)),
        ..Endpoint::READ
    },
    Endpoint {
        name: "reload",
        path: "/reload",
        summary: "Reads the file again, and puts it in force if it is valid.",
        answers: &[
            ok(
                "The file is in force.",
                &[AnswerForm::Text("reloaded: limits per-ip\n"), Json(Reloaded::SHAPE, examples::RELOADED)],
            ),
            not_reloaded(409, "There is no file to read."),
            not_reloaded(422, "The file is invalid or cannot be applied."),
            not_reloaded(503, "The process is shutting down."),
        ],
        handler: |request| Box::pin(post_reload(request)),
        ..Endpoint::CHANGE
    },
    Endpoint {
        name: events::STREAM_EVENTS,
        path: "/events",
        summary: "The traffic as server-sent events, one a second, for an hour at most.",
        answers: &[
            ok(
                "The events; the data of each is an object.",
                &[Events(TrafficEvent::SHAPE, examples::TRAFFIC_EVENT)],
            ),
            error(403, "The page of another site asks for events."),
            error(503, "8 streams are open, which is the most."),
        ],
        handler: |request| Box::pin(events::stream_events(request)),
        ..Endpoint::READ
    },
    history::SHOW_HISTORY,
    Endpoint {
        name: "describe_calls",
        path: "/openapi.json",
        summary: "This API as an OpenAPI 3.1 document.",
        answers: &[ok("The document.", &[Json(Any, "{}")])],
        handler: |request| Box::pin(openapi::describe_endpoints(request)),
        ..Endpoint::READ
    },
];

async fn show_health(_: AdminRequest) -> Answered {
    Ok(Answer::text("ok"))
}

async fn show_readiness(request: AdminRequest) -> Answered {
    if !request.state.ready.load(Relaxed) {
        return Err(AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "not ready"));
    }
    let gateway = request.state.gateway();
    let mut text = "ready\n".to_owned();
    if gateway.store.as_ref().is_some_and(|store| store.is_degraded()) {
        text += "degraded: redis\n";
    }
    for set in gateway.key_sets().filter(|set| set.keys().is_none()) {
        text += &format!("degraded: issuer {}\n", set.config.issuer);
    }
    Ok(Answer::text(text))
}

async fn show_metrics(request: AdminRequest) -> Answered {
    let metrics = request.state.gateway().metrics.render();
    Ok(Answer::fixed(metrics::CONTENT_TYPE, metrics))
}

async fn show_status(request: AdminRequest) -> Answered {
    let status = request.state.actions.show_status(request.token()).await?;
    Ok(Answer::forms(status.to_string(), &status))
}

async fn post_reload(request: AdminRequest) -> Answered {
    let actions = &request.state.actions;
    let generation = async || actions.show_status(request.token()).await.ok().map(|status| status.generation);
    let mut before = json!({ "generation": generation().await });
    let reloaded = actions.reload().await;
    let changes = reloaded.as_ref().ok().map(|reloaded| &reloaded.changes);
    let mut after = json!({ "generation": generation().await, "changes": changes });
    for change in reloaded.iter().flat_map(|reloaded| &reloaded.values) {
        before["values"][&change.path] = json!(change.from);
        after["values"][&change.path] = json!(change.to);
    }
    let answer = match reloaded {
        Ok(reloaded) => Answer::forms(reloaded.to_string(), &reloaded),
        Err(error) => error.into(),
    };
    Ok(answer.with_change(Change { target: String::new(), before, after }))
}

/// Explains the running gateway's decision on a request, without charging anything.
async fn post_explain(request: AdminRequest) -> Answered {
    let query: ExplainQuery = request.read_body()?;
    let Some((gateway, session)) = request.state.actions.open_session() else {
        return Err(AdminError::new(StatusCode::BAD_REQUEST, "this process is shutting down"));
    };
    match explain_request(&gateway, session.as_deref(), &query, Now::read_clock()).await {
        Ok(explanation) => Ok(Answer::forms(explanation.to_string(), &explanation)),
        Err(why) => Err(AdminError::new(StatusCode::BAD_REQUEST, &why)),
    }
}
