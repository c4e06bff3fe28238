//! The JSON objects of the admin API that no struct defines.

use sluicegate_base::json_shape::JsonShape::{Any, Count, Flag, List, Nullable, Number, Object, Text, Words};
use sluicegate_base::json_shape::{JsonObject, JsonShaped, always, maybe};
use sluicegate_http::upstream::UpstreamStatus;
use sluicegate_model::Problem;

pub(super) static RELOADED: JsonObject = JsonObject::named("Reloaded").with(&[
    always("result", Words(&["ok"]), "The file is in force."),
    always("generation", Count, "The number of the configuration in force, counted from 1."),
    always("changes", Text, "What is different from before."),
]);

pub(super) static NOT_RELOADED: JsonObject = JsonObject::named("NotReloaded").with(&[
    always("error", Text, "What is wrong, and often what to do."),
    always("result", Words(&["invalid", "refused", "handed on"]), "Why nothing was reloaded."),
    maybe("message", Text, "The reason, unless the file is invalid."),
    maybe("file", Text, "The invalid file."),
    maybe("problems", Vec::<Problem>::SHAPE, "All problems of an invalid file."),
]);

// === Status ===

pub(super) static STATUS: JsonObject = JsonObject::named("Status").with(&[
    always("version", Text, "The version of the program."),
    always("pid", Count, "The process."),
    always("file", Nullable(&Text), "The file of the configuration."),
    always("uptime_s", Count, "Seconds since the process began to serve."),
    always("generation", Count, "The number of the configuration in force, counted from 1."),
    always("workers", Count, "Worker threads."),
    always("listening", List(&Text), "The addresses of the listeners."),
    always("connections", Count, "Open client connections."),
    always("in_flight", Count, "Requests in flight."),
    always("rejections", Object(&REJECTION_RATE), "Rejections of all limits and bans."),
    always("bans", Nullable(&Object(&STATUS_BANS)), "Null without bans."),
    always(
        "shared_limits",
        List(&Object(&SHARED_TROUBLE)),
        "Shared limits that other gateways count differently.",
    ),
    always("redis", Nullable(&Object(&STATUS_REDIS)), "Null without Redis."),
    always("snapshot", Nullable(&Object(&SNAPSHOT)), "Null without a snapshot."),
    always("last_reload", Nullable(&Object(&LAST_RELOAD)), "Null before the first reload."),
    always("limits", List(&Object(&STATUS_LIMIT)), "All limits; GET /limits has more about them."),
    always("upstreams", List(&UpstreamStatus::SHAPE), "All upstreams."),
]);

static REJECTION_RATE: JsonObject = JsonObject::named("RejectionRate").with(&[
    always("per_s", Number, "Rejections per second."),
    always("over_s", Number, "The seconds that the rate is of."),
]);

static STATUS_BANS: JsonObject = JsonObject::named("StatusBans").with(&[
    always("active", Count, "Clients that are banned."),
    always("rejected", Count, "Requests rejected because of a ban, since the start."),
    always("rejected_per_s", Number, "The same per second."),
]);

static SHARED_TROUBLE: JsonObject = JsonObject::named("SharedTrouble")
    .with(&[always("limit", Text, "The limit."), always("trouble", Text, "The difference.")]);

static SNAPSHOT: JsonObject = JsonObject::named("Snapshot").with(&[
    always("file", Text, "Its file."),
    always("error", Nullable(&Text), "Why the last one was not written."),
]);

static LAST_RELOAD: JsonObject = JsonObject::named("LastReload").with(&[
    always("at", Count, "When, in seconds since 1970."),
    always("result", Words(&["ok", "failed"]), "Its result."),
    always("told", Text, "The changes, or the reason."),
]);

static STATUS_LIMIT: JsonObject = JsonObject::named("StatusLimit").with(&[
    always("limit", Text, "Its name."),
    always("keys", Nullable(&Count), "Keys with counters; null if only the store knows them."),
    always("rejected", Count, "Rejections since the start."),
    always("rejected_per_s", Number, "The same per second."),
]);

// === Redis, in the status ===

static STATUS_REDIS: JsonObject = JsonObject::named("StatusRedis").with(&[
    always("reachable", Flag, "Whether every server answers."),
    always("unreachable_since_ms", Nullable(&Count), "Since when not, in milliseconds since 1970."),
    always("outages", Count, "Outages since the start, with the present one."),
    always("last_outage", Nullable(&Object(&OUTAGE)), "The last one that is over."),
    always("gateways", Count, "Gateways that use it, as last counted."),
    always("servers", List(&Object(&STORE_SERVER)), "Its servers."),
    always(
        "nodes",
        Nullable(&List(&Object(&NODE))),
        "What those gateways report, by name; null while it does not answer.",
    ),
]);

static OUTAGE: JsonObject = JsonObject::named("Outage").with(&[
    always("began_at_ms", Count, "When it began, in milliseconds since 1970."),
    always("lasted_s", Number, "Its length, in seconds."),
]);

static STORE_SERVER: JsonObject = JsonObject::named("RedisServer").with(&[
    always("server", Text, "Its host and port."),
    always(
        "role",
        Nullable(&Words(&["primary"])),
        "Its role, as a Sentinel or a Cluster names it; null for a single server.",
    ),
    always("up", Flag, "Whether calls are made to it."),
    always(
        "breaker",
        Words(&["closed", "recovering", "open"]),
        "Whether all, some or no calls are made to it.",
    ),
    always("calls", Count, "Calls that were made to it."),
    always("mean_ms", Nullable(&Number), "Their mean time; null without calls."),
    always("evicts_by", Nullable(&Text), "The policy by which it may drop counters; null if it drops none."),
]);

static NODE: JsonObject = JsonObject::named("Node").with(&[
    always("name", Text, "The name of its host."),
    always("version", Text, "The version of its program."),
    always(
        "file_hash",
        Text,
        "The first 12 digits of the SHA-256 of its gateway.yaml in force; empty without a file.",
    ),
    always("started_at_ms", Count, "When it began to serve, in milliseconds since 1970."),
    always("own", Flag, "Whether it is the gateway that answers."),
    always(
        "file_differs",
        Nullable(&Flag),
        "Whether its file differs from that of the gateway that answers; null without a file.",
    ),
]);

// === Requests ===

/// The request to explain.
pub(super) static QUERY: JsonObject = JsonObject::named("ExplainRequest").with(&[
    maybe("method", Text, "The method, in capitals; absent only with `call`."),
    maybe("url", Text, "A path with or without a query, or a URL; absent only with `call`."),
    maybe("ip", Text, "The address of the peer; 127.0.0.1 if absent."),
    maybe("headers", List(&Text), "Header lines, `Name: value` each."),
    maybe("listener", Nullable(&Text), "The name of the listener; else the first one of the URL's scheme."),
    maybe("data", Nullable(&Text), "The body, for limits that read it."),
    maybe("call", Any, "The body of a `/check` that names limits, in place of a request."),
]);
