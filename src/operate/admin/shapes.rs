//! The JSON objects of the admin API.

use super::json_shape::JsonShape::{Count, Flag, List, Nullable, Number, Object, Text, Words};
use super::json_shape::{JsonObject, JsonShape, always, maybe};
use super::store_shapes;

/// The body of an error.
pub(super) static ERROR: JsonObject =
    JsonObject { name: "Error", fields: &[always("error", Text, "What is wrong, and often what to do.")] };

/// The body of a change that has no fields of its own.
pub(super) static REASON: JsonObject = JsonObject {
    name: "Reason",
    fields: &[maybe("reason", Nullable(&Text), "Why, for the audit line; at most 200 characters.")],
};

pub(super) static RELOADED: JsonObject = JsonObject {
    name: "Reloaded",
    fields: &[
        always("result", Words(&["ok"]), "The file is in force."),
        always("generation", Count, "The number of the configuration in force, counted from 1."),
        always("changes", Text, "What is different from before."),
    ],
};

pub(super) static NOT_RELOADED: JsonObject = JsonObject {
    name: "NotReloaded",
    fields: &[
        always("error", Text, "What is wrong, and often what to do."),
        always("result", Words(&["invalid", "refused", "handed on"]), "Why nothing was reloaded."),
        maybe("message", Text, "The reason, unless the file is invalid."),
        maybe("file", Text, "The invalid file."),
        maybe("problems", List(&Object(&PROBLEM)), "All problems of an invalid file."),
    ],
};

static PROBLEM: JsonObject = JsonObject {
    name: "Problem",
    fields: &[
        always("code", Text, "The code of the problem, e.g. E006."),
        always("line", Count, "Its line in the file, from 1."),
        always("column", Count, "Its column, from 1."),
        always("message", Text, "The problem."),
        always("field", Text, "The field, e.g. `limits.per-ip.rate`; empty for the file as a whole."),
        always("suggestion", Nullable(&Text), "What to do."),
    ],
};

// === Upstreams ===

pub(super) static UPSTREAM_LIST: JsonObject = JsonObject {
    name: "UpstreamList",
    fields: &[always("upstreams", List(&Object(&UPSTREAM)), "All upstreams, in file order.")],
};

pub(super) static UPSTREAM: JsonObject = JsonObject {
    name: "Upstream",
    fields: &[
        always("upstream", Text, "Its name."),
        always("balance", Text, "How a server is chosen."),
        maybe("queue", Object(&SERVER_QUEUE), "The queue in front of its servers; absent without one."),
        always("servers", List(&Object(&SERVER)), "Its servers."),
        maybe("stop", Object(&STOP), "Its stops; absent without `obey`."),
    ],
};

static STOP: JsonObject = JsonObject {
    name: "UpstreamStops",
    fields: &[
        always("stopped_s", Number, "Seconds left of the longest stop; 0 = nothing is stopped."),
        always("stops", Count, "Stops since the start."),
        always("held", Count, "Requests that waited for the end of a stop."),
        always("rejected", Count, "Requests that a stop rejected."),
    ],
};

static SERVER_QUEUE: JsonObject = JsonObject {
    name: "ServerQueue",
    fields: &[
        always("size", Count, "The most requests that may wait."),
        always("waiting", Count, "Requests that wait now."),
        always("waits", Count, "Waits that have ended, whatever their end."),
        always("wait_seconds", Number, "The time of all these waits."),
        always("timeouts", Count, "Waits that `max_wait` ended."),
    ],
};

pub(super) static SERVERS: JsonShape = List(&Object(&SERVER));

static SERVER: JsonObject = JsonObject {
    name: "Server",
    fields: &[
        always("server", Text, "Its address, or its name with the port."),
        always("state", Words(&["up", "down", "ejected", "draining"]), "Its state."),
        always("weight", Count, "Its configured weight."),
        always("share", Count, "Its effective weight, in percent of the configured one."),
        always("backup", Flag, "Whether it is used only while no other server is up."),
        always("in_flight", Count, "Requests in flight."),
        maybe("max_connections", Count, "The most requests in flight; absent without a bound."),
        maybe("addresses", List(&Text), "The addresses of its name."),
        always("ejections", Count, "How often it was ejected."),
        maybe("last_error", Object(&SERVER_ERROR), "Its last error."),
    ],
};

static SERVER_ERROR: JsonObject = JsonObject {
    name: "ServerError",
    fields: &[
        always("error", Text, "The error, in the words of the access log."),
        always("seconds_ago", Number, "Its age."),
    ],
};

// === Status ===

pub(super) static STATUS: JsonObject = JsonObject {
    name: "Status",
    fields: &[
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
        always("redis", Nullable(&Object(&store_shapes::STATUS_REDIS)), "Null without Redis."),
        always("snapshot", Nullable(&Object(&SNAPSHOT)), "Null without a snapshot."),
        always("last_reload", Nullable(&Object(&LAST_RELOAD)), "Null before the first reload."),
        always("limits", List(&Object(&STATUS_LIMIT)), "All limits; GET /limits has more about them."),
        always("upstreams", List(&Object(&UPSTREAM)), "All upstreams."),
    ],
};

static REJECTION_RATE: JsonObject = JsonObject {
    name: "RejectionRate",
    fields: &[
        always("per_s", Number, "Rejections per second."),
        always("over_s", Number, "The seconds that the rate is of."),
    ],
};

static STATUS_BANS: JsonObject = JsonObject {
    name: "StatusBans",
    fields: &[
        always("active", Count, "Clients that are banned."),
        always("rejected", Count, "Requests rejected because of a ban, since the start."),
        always("rejected_per_s", Number, "The same per second."),
    ],
};

static SHARED_TROUBLE: JsonObject = JsonObject {
    name: "SharedTrouble",
    fields: &[always("limit", Text, "The limit."), always("trouble", Text, "The difference.")],
};

static SNAPSHOT: JsonObject = JsonObject {
    name: "Snapshot",
    fields: &[
        always("file", Text, "Its file."),
        always("error", Nullable(&Text), "Why the last one was not written."),
    ],
};

static LAST_RELOAD: JsonObject = JsonObject {
    name: "LastReload",
    fields: &[
        always("at", Count, "When, in seconds since 1970."),
        always("result", Words(&["ok", "failed"]), "Its result."),
        always("told", Text, "The changes, or the reason."),
    ],
};

static STATUS_LIMIT: JsonObject = JsonObject {
    name: "StatusLimit",
    fields: &[
        always("limit", Text, "Its name."),
        always("keys", Nullable(&Count), "Keys with counters; null if only the store knows them."),
        always("rejected", Count, "Rejections since the start."),
        always("rejected_per_s", Number, "The same per second."),
    ],
};

// === Limits ===

/// A count and its rates.
static TRAFFIC: JsonObject = JsonObject {
    name: "Traffic",
    fields: &[
        always("total", Count, "Since the start."),
        always("per_s", Number, "Per second, now."),
        always("per_s_1m", Number, "Per second, over the last minute."),
    ],
};

pub(super) static LIMIT_LIST: JsonObject = JsonObject {
    name: "LimitList",
    fields: &[always("limits", List(&Object(&LIMIT)), "The limits, one for each name.")],
};

static LIMIT: JsonObject = JsonObject {
    name: "Limit",
    fields: &[
        always("limit", Text, "Its name."),
        always("algorithm", Text, "Its algorithm, as in the file."),
        always("key", Text, "What it counts by, in words."),
        always("sentence", Text, "The whole limit as a sentence."),
        always("numbers", Text, "Its rates or slots, in words."),
        always("rates", List(&Object(&RATE)), "Its rates; empty for concurrency."),
        always("max_concurrent", Nullable(&Count), "The most slots; null for rates."),
        always("tiers", List(&Object(&TIER)), "Tiers with other numbers."),
        always("dry_run", Flag, "Whether it only counts."),
        always("enforce", Nullable(&Text), "The share of its keys on which it acts; null: all."),
        always(
            "shadow_of",
            Nullable(&Text),
            "The limit that it judges beside with other numbers; null: none.",
        ),
        always("shared", Flag, "Whether it is counted in Redis."),
        always("keys", Nullable(&Count), "Keys with counters; null if only the store knows them."),
        always("waiting", Count, "Requests in its queues."),
        always("admitted", Object(&TRAFFIC), "Requests that it admitted at once."),
        always("waited", Object(&TRAFFIC), "Requests that it made wait."),
        always("rejected", Object(&TRAFFIC), "Requests that it rejected."),
        always(
            "dry_run_rejected",
            Object(&TRAFFIC),
            "Requests that it would have rejected, in a dry run or for keys it does not act on.",
        ),
    ],
};

static RATE: JsonObject = JsonObject {
    name: "Rate",
    fields: &[
        always("units", Count, "Units in each period."),
        always("period_ms", Number, "The period, in milliseconds."),
        maybe("burst", Count, "Units that pass at once."),
        maybe("queue", Count, "Requests that may wait."),
    ],
};

static TIER: JsonObject = JsonObject {
    name: "Tier",
    fields: &[
        always("tier", Text, "Its name."),
        always("numbers", Nullable(&Text), "Its rates or slots, in words; null without a limit."),
    ],
};

// === Events ===

pub(super) static TRAFFIC_EVENT: JsonObject = JsonObject {
    name: "TrafficEvent",
    fields: &[
        always("at_ms", Count, "When, in milliseconds since 1970."),
        always("requests", Object(&VERDICT_RATES), "Finished requests per second, by verdict."),
        always("in_flight", Count, "Requests in flight."),
        always("waiting", Count, "Requests in the queues of limits and upstreams."),
        always("bans", Count, "Clients that are banned."),
        always("wait", Nullable(&Object(&QUANTILES)), "The waits in queues, over the last minute."),
        always("limits", List(&Object(&LIMIT_RATES)), "The busiest limits, at most 100."),
        always("upstreams", List(&Object(&UPSTREAM_STATE)), "The busiest upstreams, at most 100."),
        always("refusals", List(&Object(&REFUSAL)), "The last refusals, at most 100, the newest first."),
        always("redis", Nullable(&Object(&store_shapes::EVENT_REDIS)), "Null without Redis."),
    ],
};

static REFUSAL: JsonObject = JsonObject {
    name: "Refusal",
    fields: &[
        always("at_ms", Count, "When, in milliseconds since 1970."),
        always("limit", Text, "The limit that refused the request."),
        always(
            "key",
            Nullable(&Text),
            "Its key, as `GET /limits/{limit}/keys/{key}` takes it; null if unknown.",
        ),
        always("ip", Nullable(&Text), "The address of the client; null on a unix socket."),
        always("location", Nullable(&Text), "The location; null if the request had none."),
        always("status", Nullable(&Count), "The status of the answer; null if an upstream answered instead."),
        always("cause", Text, "Why, as in the access log, e.g. `rate`."),
        always("retry_after_ms", Nullable(&Count), "When the same request would pass; null if unknown."),
    ],
};

static VERDICT_RATES: JsonObject = JsonObject {
    name: "VerdictRates",
    fields: &[
        always("admit", Number, "Admitted at once."),
        always("wait", Number, "Admitted after a wait."),
        always("reject", Number, "Rejected by a limit."),
        always("missing_key", Number, "Rejected because they lack a key."),
        always("degrade", Number, "Answered otherwise instead of a rejection."),
        always("ban", Number, "Rejected because of a ban."),
        always("fault", Number, "Answered by the gateway because something broke."),
    ],
};

static QUANTILES: JsonObject = JsonObject {
    name: "Quantiles",
    fields: &[
        always("p50_ms", Number, "The median, in milliseconds."),
        always("p99_ms", Number, "99 of 100 are not longer."),
    ],
};

static LIMIT_RATES: JsonObject = JsonObject {
    name: "LimitRates",
    fields: &[
        always("limit", Text, "Its name."),
        always("admitted_per_s", Number, "Admitted at once, per second."),
        always("waited_per_s", Number, "Made to wait, per second."),
        always("rejected_per_s", Number, "Rejected, per second."),
        always("keys", Nullable(&Count), "Keys with counters; null if only the store knows them."),
        always("waiting", Count, "Requests in its queues."),
    ],
};

static UPSTREAM_STATE: JsonObject = JsonObject {
    name: "UpstreamRates",
    fields: &[
        always("upstream", Text, "Its name."),
        always("up", Count, "Servers that get requests."),
        always("down", Count, "Servers whose health checks fail."),
        always("ejected", Count, "Servers left out after errors."),
        always("draining", Count, "Servers that get no new requests."),
        always("in_flight", Count, "Requests in flight."),
        always(
            "waiting",
            Nullable(&Count),
            "Requests in the queue in front of its servers; null without one.",
        ),
        always("stopped_s", Number, "Seconds left of a stop that it asked for."),
        always(
            "response",
            Nullable(&Object(&QUANTILES)),
            "The times to the head of a response, over the last minute.",
        ),
    ],
};
