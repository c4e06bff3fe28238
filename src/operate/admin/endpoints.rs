//! The table of all endpoints of the admin API. Routing, methods, access, the page of a wrong path and the OpenAPI
//! document come from it.

use super::endpoint::Handler::{Immediate, Waiting};
use super::endpoint::ParameterPlace::{Path, Query};
use super::endpoint::{
    AnswerForm, AnswerFormat, BodyFormat, Endpoint, EndpointAccess, Parameter, ParameterKind, box_answer,
    error, ok,
};
use super::events::TrafficEvent;
use super::limits::LimitList;
use super::status::{Reloaded, Status};
use super::upstreams::UpstreamList;
use super::{
    bans, control, events, examples, explain, health, keys, limits, openapi, page, shapes, upstreams,
};
use crate::operate::explain::Explanation;
use sluicegate_base::json_shape::{JsonShape, JsonShaped};
use sluicegate_http::upstream::{ServerStatus, UpstreamStatus};
use sluicegate_observe::metrics;

const UPSTREAM: Parameter = Parameter {
    name: "upstream",
    place: Path,
    kind: ParameterKind::Text,
    example: "app",
    sentence: "The name of the upstream, percent-encoded.",
};
/// [`UPSTREAM`] where the path goes on.
const UPSTREAM_OF_SERVER: Parameter = Parameter { kind: ParameterKind::TextWithSlashes, ..UPSTREAM };
const SERVER: Parameter = Parameter {
    name: "server",
    place: Path,
    kind: ParameterKind::TextWithSlashes,
    example: "10.0.0.7:8080",
    sentence: "The server as the file names it, percent-encoded; slashes may stand plain.",
};

const NOT_RELOADED: &[AnswerForm] = &[
    AnswerForm::Text("server.workers changes from 2 to 4: that needs a restart\n"),
    AnswerForm::Json(JsonShape::Object(&shapes::NOT_RELOADED), examples::NOT_RELOADED),
];

const FORCE: Parameter = Parameter {
    name: "force",
    place: Query { default: "false" },
    kind: ParameterKind::Flag,
    example: "true",
    sentence: "Drains the server even if no other one of the upstream is up.",
};

/// Every endpoint, in the order in which the documents list them.
pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        name: "show_page",
        path: "/",
        summary: "The page for operators, which asks the other calls.",
        answers: &[ok("The page.", &[AnswerForm::Other(page::HTML, "<!doctype html>")])],
        access: EndpointAccess::Public,
        handler: Immediate(page::show_page),
        ..Endpoint::READ
    },
    Endpoint {
        name: "show_health",
        path: "/healthz",
        summary: "Whether the process answers.",
        answers: &[ok("It does.", &[AnswerForm::Text("ok")])],
        access: EndpointAccess::Public,
        handler: Immediate(health::show_health),
        ..Endpoint::READ
    },
    Endpoint {
        name: "show_readiness",
        path: "/readyz",
        summary: "Whether the gateway takes requests; with a line `degraded: redis` while a fallback decides.",
        answers: &[ok("It does.", &[AnswerForm::Text("ready\n")]), error(503, "It starts or stops.")],
        access: EndpointAccess::Public,
        handler: Immediate(health::show_readiness),
        ..Endpoint::READ
    },
    Endpoint {
        name: "show_metrics",
        path: "/metrics",
        summary: "All metrics, in the OpenMetrics text format.",
        answers: &[ok("The metrics.", &[AnswerForm::Other(metrics::CONTENT_TYPE, "# EOF\n")])],
        handler: Immediate(health::show_metrics),
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
                    AnswerForm::Json(Status::SHAPE, examples::STATUS),
                ],
            ),
            error(503, "The process is shutting down."),
        ],
        handler: Waiting(|request| box_answer(control::show_status(request))),
        ..Endpoint::READ
    },
    Endpoint {
        name: "list_limits",
        path: "/limits",
        summary: "Every limit with its numbers, its keys, its queue and its traffic.",
        parameters: &[
            Parameter {
                name: "by",
                place: Query { default: "file" },
                kind: ParameterKind::Words(&["file", "rejected"]),
                example: "rejected",
                sentence: "The order: as in the file, or those with most rejections per second first.",
            },
            Parameter {
                name: "top",
                place: Query { default: "1000" },
                kind: ParameterKind::Integer(1, 100_000),
                example: "20",
                sentence: "The most limits to list.",
            },
        ],
        answers: &[ok(
            "The limits.",
            &[
                AnswerForm::Text("limit   numbers\nper-ip  10 requests per second, burst 20\n"),
                AnswerForm::Json(LimitList::SHAPE, examples::LIMIT_LIST),
            ],
        )],
        handler: Immediate(limits::list_limits),
        ..Endpoint::READ
    },
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
        answers: &[ok("The upstreams.", &[AnswerForm::Json(UpstreamList::SHAPE, examples::UPSTREAM_LIST)])],
        handler: Immediate(upstreams::list_upstreams),
        ..Endpoint::READ
    },
    Endpoint {
        name: "show_upstream",
        path: "/upstreams/{upstream}",
        summary: "One upstream with the state of its servers.",
        parameters: &[UPSTREAM],
        answers: &[
            ok("The upstream.", &[AnswerForm::Json(UpstreamStatus::SHAPE, examples::UPSTREAM)]),
            error(404, "There is no such upstream."),
        ],
        handler: Immediate(upstreams::show_upstream),
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
                &[AnswerForm::Json(Vec::<ServerStatus>::SHAPE, examples::SERVERS)],
            ),
            error(404, "There is no such upstream or server."),
            error(409, "No other server of the upstream is up."),
        ],
        handler: Immediate(upstreams::drain_server),
        ..Endpoint::CHANGE
    },
    Endpoint {
        name: "undrain_server",
        path: "/upstreams/{upstream}/servers/{server}/undrain",
        summary: "Ends the drain of a server.",
        parameters: &[UPSTREAM_OF_SERVER, SERVER],
        answers: &[
            ok(
                "The servers of this name.",
                &[AnswerForm::Json(Vec::<ServerStatus>::SHAPE, examples::SERVERS)],
            ),
            error(404, "There is no such upstream or server."),
        ],
        handler: Immediate(upstreams::undrain_server),
        ..Endpoint::CHANGE
    },
    Endpoint {
        name: "explain",
        method: "POST",
        path: "/explain",
        summary: "Explains the decision on a request, from the running counters, and charges nothing.",
        body: Some(BodyFormat { object: &shapes::QUERY, required: true, example: examples::QUERY }),
        answers: &[ok(
            "The decision and its reasons.",
            &[
                AnswerForm::Text("client    203.0.113.7: the peer\n"),
                AnswerForm::Json(Explanation::SHAPE, examples::EXPLANATION),
            ],
        )],
        handler: Waiting(explain::post_explain),
        ..Endpoint::READ
    },
    Endpoint {
        name: "reload",
        path: "/reload",
        summary: "Reads the file again, and puts it in force if it is valid.",
        answers: &[
            ok(
                "The file is in force.",
                &[
                    AnswerForm::Text("reloaded: limits per-ip\n"),
                    AnswerForm::Json(Reloaded::SHAPE, examples::RELOADED),
                ],
            ),
            AnswerFormat { status: 409, sentence: "There is no file to read.", forms: NOT_RELOADED },
            AnswerFormat {
                status: 422,
                sentence: "The file is invalid or cannot be applied.",
                forms: NOT_RELOADED,
            },
            AnswerFormat { status: 503, sentence: "The process is shutting down.", forms: NOT_RELOADED },
        ],
        handler: Waiting(|request| box_answer(control::post_reload(request))),
        ..Endpoint::CHANGE
    },
    Endpoint {
        name: events::STREAM_EVENTS,
        path: "/events",
        summary: "The traffic as server-sent events, one a second, for an hour at most.",
        answers: &[
            ok(
                "The events; the data of each is an object.",
                &[AnswerForm::Events(TrafficEvent::SHAPE, examples::TRAFFIC_EVENT)],
            ),
            error(403, "The page of another site asks for events."),
            error(503, "8 streams are open, which is the most."),
        ],
        handler: Waiting(events::stream_events),
        ..Endpoint::READ
    },
    Endpoint {
        name: "describe_calls",
        path: "/openapi.json",
        summary: "This API as an OpenAPI 3.1 document.",
        answers: &[ok("The document.", &[AnswerForm::Json(JsonShape::Any, "{}")])],
        handler: Immediate(openapi::describe_endpoints),
        ..Endpoint::READ
    },
];
